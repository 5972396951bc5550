//! The live overview: server-sent events to every open page, one a second.
//!
//! What is sent is gathered and written once for all, and only while somebody watches. How many may is
//! bounded. Who reads slowly misses what is between, and holds nobody up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use hyper::StatusCode;
use tokio::sync::watch;

use super::session::{ActiveSession, SessionId, Sessions};
use crate::api::response::HttpResponse;
use crate::dashboard::panel::overview::OverviewPanels;
use crate::dashboard::panel::traffic::TimeRange;
use crate::dashboard::response::respond;
use crate::operations::Admin;
use crate::operations::auth::access::Permission;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::shutdown::ShutdownSignal;

/// Those who watch at the same time.
const WATCHERS_MAX: usize = 64;

/// Those of one token; its own oldest makes room.
const WATCHERS_PER_TOKEN_MAX: usize = 8;

/// How often something is sent.
const EVERY: Duration = Duration::from_secs(1);

/// For gathering it once. The database may not answer.
const GATHER_MAX: Duration = Duration::from_secs(90);

/// After which a browser comes back, in its own words.
const RETRY: &str = "retry: 3000\n\n";

/// The overview that open pages are sent.
#[derive(Debug)]
pub(crate) struct LiveUpdates {
    watchers: Arc<Watchers>,
    latest: watch::Receiver<Bytes>,
}

/// The open pages, the oldest first.
#[derive(Debug, Default)]
struct Watchers {
    all: Mutex<VecDeque<WatcherEntry>>,
    /// The number of the next page. No number is used twice.
    next_number: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WatcherEntry {
    number: u64,
    token_id: i64,
}

/// The seat of one open page. Dropping it frees the seat.
#[derive(Debug)]
struct WatcherSeat {
    watchers: Arc<Watchers>,
    number: u64,
}

/// The stream of one open page.
struct Watcher {
    admin: Arc<Admin>,
    sessions: Arc<Sessions>,
    session: SessionId,
    latest: watch::Receiver<Bytes>,
    is_greeted: bool,
    seat: WatcherSeat,
}

impl LiveUpdates {
    /// Starts the task that gathers the overview. The streams of all pages end when the daemon stops.
    pub(crate) fn start(admin: Arc<Admin>, stopped: &ShutdownSignal) -> Self {
        let (sender, latest) = watch::channel(Bytes::new());
        let tasks = Arc::clone(&admin.daemon.tasks);
        tasks.start_periodic("dashboard", EVERY, GATHER_MAX, stopped, move || {
            // One receiver is ours.
            let watched =
                (sender.receiver_count() > 1).then(|| (Arc::clone(&admin), sender.clone()));
            async move {
                if let Some((admin, sender)) = watched {
                    let panels = OverviewPanels::gather(&admin, TimeRange::Minutes).await;
                    sender.send_replace(event(&panels));
                }
                Ok(())
            }
        });
        Self { watchers: Arc::default(), latest }
    }

    /// Returns the stream for a session that may see everything.
    pub(crate) fn watch(
        &self,
        admin: Arc<Admin>,
        sessions: Arc<Sessions>,
        session: &ActiveSession,
    ) -> Result<HttpResponse, Problem> {
        let seat = self.watchers.take_seat(session.actor.token_id).ok_or_else(|| {
            let detail = format!(
                "{WATCHERS_MAX} pages are live already: close one, or reload this one by hand"
            );
            Problem::unavailable(detail)
        })?;
        let mut latest = self.latest.clone();
        // What was sent to others before is old.
        latest.mark_unchanged();
        let session = session.id;
        let watcher = Watcher { admin, sessions, session, latest, is_greeted: false, seat };
        let body = Body::from_stream(stream::unfold(watcher, Watcher::next));
        Ok(respond(StatusCode::OK, "text/event-stream; charset=utf-8", body))
    }
}

impl Watchers {
    /// Takes a place for a page of this token; `None` if all are taken.
    fn take_seat(self: &Arc<Self>, token_id: i64) -> Option<WatcherSeat> {
        let mut all = self.lock();
        let is_own = |entry: &WatcherEntry| entry.token_id == token_id;
        if all.iter().filter(|entry| is_own(entry)).count() >= WATCHERS_PER_TOKEN_MAX
            && let Some(oldest) = all.iter().position(is_own)
        {
            all.remove(oldest);
        }
        if all.len() >= WATCHERS_MAX {
            return None;
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        all.push_back(WatcherEntry { number, token_id });
        Some(WatcherSeat { watchers: Arc::clone(self), number })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<WatcherEntry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatcherSeat {
    /// Returns false if a later page of the same token has taken the place.
    fn is_taken(&self) -> bool {
        self.watchers.lock().iter().any(|entry| entry.number == self.number)
    }
}

impl Drop for WatcherSeat {
    fn drop(&mut self) {
        self.watchers.lock().retain(|entry| entry.number != self.number);
    }
}

impl Watcher {
    /// The next event. The stream ends with the session, within a second, and with the daemon.
    async fn next(mut self) -> Option<(std::io::Result<Bytes>, Self)> {
        if !std::mem::replace(&mut self.is_greeted, true) {
            return Some((Ok(Bytes::from_static(RETRY.as_bytes())), self));
        }
        self.latest.changed().await.ok()?;
        if !self.seat.is_taken() {
            return None;
        }
        let now = self.admin.now();
        let active = self.sessions.resume(&self.admin.repository, self.session, now).await;
        active.ok()??.actor.reach(Permission::SeeAll).ok()?;
        let event = self.latest.borrow_and_update().clone();
        Some((Ok(event), self))
    }
}

/// One line of JSON, which has no line ends in it.
fn event(parts: &OverviewPanels) -> Bytes {
    // Fails only for maps whose keys are no texts, and there are none.
    let json = serde_json::to_string(parts).unwrap_or_default();
    format!("event: overview\ndata: {json}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The weakest token that may watch took all live streams.
    #[test]
    fn a_token_takes_the_place_of_its_own_pages_only() {
        let watchers = Arc::new(Watchers::default());
        let operator = watchers.take_seat(1).unwrap();
        let pages: Vec<_> = (0..100).map(|_| watchers.take_seat(2).unwrap()).collect();
        assert!(operator.is_taken());
        let taken: Vec<_> = pages.iter().map(WatcherSeat::is_taken).collect();
        assert_eq!(taken, [vec![false; 92], vec![true; 8]].concat());
        let others: Vec<_> = (0..55).map(|at| watchers.take_seat(100 + at)).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(watchers.take_seat(3).is_none(), "all places are taken");
        drop(pages);
        assert!(watchers.take_seat(3).is_some());
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let text = "<b>\r\n\u{2028}data: x\n\n</b>";
        let parts = OverviewPanels {
            now: text.to_owned(),
            health: text.to_owned(),
            traffic: text.to_owned(),
            rules: text.to_owned(),
            keys: text.to_owned(),
            tail: text.to_owned(),
        };
        let event = event(&parts);
        let event = std::str::from_utf8(&event).unwrap();
        let lines: Vec<&str> = event.split(['\r', '\n']).collect();
        assert_eq!(lines.len(), 4, "{event}");
        assert!(lines[1].starts_with("data: {") && lines[2..].iter().all(|line| line.is_empty()));
    }
}
