//! The overview as it changes, for those who watch: server-sent events, one a second.
//!
//! What is sent is gathered and written once for all, and only while somebody watches. How many may is
//! bounded. Who reads slowly misses what is between, and holds nobody up.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use hyper::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::session::{SessionId, Sessions};
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

/// How often something is sent.
const EVERY: Duration = Duration::from_secs(1);

/// For gathering it once. The database may not answer.
const GATHER_MAX: Duration = Duration::from_secs(90);

/// After which a browser comes back, in its own words.
const RETRY: &str = "retry: 3000\n\n";

/// What is sent to those who watch.
#[derive(Debug)]
pub(crate) struct LiveUpdates {
    permits: Arc<Semaphore>,
    latest: watch::Receiver<Bytes>,
}

/// Somebody who watches.
struct Watcher {
    admin: Arc<Admin>,
    sessions: Arc<Sessions>,
    session: SessionId,
    latest: watch::Receiver<Bytes>,
    is_greeted: bool,
    _permit: OwnedSemaphorePermit,
}

impl LiveUpdates {
    /// Starts the task that writes until the daemon stops. Then the streams of all who watch end.
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
        Self { permits: Arc::new(Semaphore::new(WATCHERS_MAX)), latest }
    }

    /// The stream for somebody who may see everything.
    pub(crate) fn watch(
        &self,
        admin: Arc<Admin>,
        sessions: Arc<Sessions>,
        session: SessionId,
    ) -> Result<HttpResponse, Problem> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            let detail = format!(
                "{WATCHERS_MAX} pages are live already: close one, or reload this one by hand"
            );
            Problem::unavailable(detail)
        })?;
        let mut latest = self.latest.clone();
        // What was sent to others before is old.
        latest.mark_unchanged();
        let watcher =
            Watcher { admin, sessions, session, latest, is_greeted: false, _permit: permit };
        let body = Body::from_stream(stream::unfold(watcher, Watcher::next));
        Ok(respond(StatusCode::OK, "text/event-stream; charset=utf-8", body))
    }
}

impl Watcher {
    /// The next event. The stream ends with the session, within a second, and with the daemon.
    async fn next(mut self) -> Option<(std::io::Result<Bytes>, Self)> {
        if !std::mem::replace(&mut self.is_greeted, true) {
            return Some((Ok(Bytes::from_static(RETRY.as_bytes())), self));
        }
        self.latest.changed().await.ok()?;
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
