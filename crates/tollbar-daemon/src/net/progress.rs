//! How fast each connection of a listener is, so that a full listener can close the slowest one. A read or write costs one
//! relaxed addition.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tollbar_gateway::ConnectionActivity;

/// A connection that was accepted just now has sent nothing yet, and is not to be closed for that.
const AGE_MIN: Duration = Duration::from_secs(1);

/// What is known of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionProgress {
    begun: Instant,
    /// In both directions.
    bytes: AtomicU64,
    /// True while the client does not take what is sent to it.
    is_write_blocked: AtomicBool,
    pub(crate) activity: Arc<ConnectionActivity>,
    evicted: Notify,
}

/// The connections of a listener. There are as many as it has permits.
#[derive(Debug, Default)]
pub(super) struct ProgressTable(Mutex<HashMap<u64, Arc<ConnectionProgress>>>);

/// A connection in the table, until this is dropped.
#[derive(Debug)]
pub(super) struct TrackedConnection {
    table: Arc<ProgressTable>,
    number: u64,
    pub(super) progress: Arc<ConnectionProgress>,
}

impl ConnectionProgress {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            bytes: AtomicU64::new(0),
            is_write_blocked: AtomicBool::new(false),
            activity: Arc::default(),
            evicted: Notify::new(),
        }
    }

    /// Notes that bytes have moved.
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn set_write_blocked(&self, is_blocked: bool) {
        self.is_write_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Waits until the connection is to make room for another. A response that has begun since it was chosen is not cut
    /// off.
    pub(super) async fn wait_until_evicted(&self) {
        loop {
            self.evicted.notified().await;
            if self.rate(Instant::now()).is_some() {
                return;
            }
        }
    }

    /// Returns bytes per 1,000 seconds, rounded down. `None` if the connection must not be closed: it is new, or a response
    /// is due or being written.
    fn rate(&self, now: Instant) -> Option<u128> {
        let age = now.duration_since(self.begun);
        let is_busy = self.activity.has_response() || self.is_write_blocked.load(Ordering::Relaxed);
        // 30 bytes in 2,000 ms are 15,000 in 1,000 s.
        let bytes = u128::from(self.bytes.load(Ordering::Relaxed));
        (age >= AGE_MIN && !is_busy).then(|| bytes * 1_000_000 / age.as_millis())
    }
}

impl ProgressTable {
    /// Adds a connection. Its number must be used only once.
    pub(super) fn track(self: &Arc<Self>, number: u64) -> TrackedConnection {
        let progress = Arc::new(ConnectionProgress::new());
        self.connections().insert(number, Arc::clone(&progress));
        TrackedConnection { table: Arc::clone(self), number, progress }
    }

    /// Ends the slowest connection that waits for its client. Returns false if there is none.
    pub(super) fn evict_slowest(&self) -> bool {
        let now = Instant::now();
        let connections = self.connections();
        let rates = connections.values().filter_map(|known| Some((known.rate(now)?, known)));
        let slowest = rates.min_by_key(|(rate, _)| *rate);
        slowest.inspect(|(_, slowest)| slowest.evicted.notify_one()).is_some()
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<ConnectionProgress>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TrackedConnection {
    fn drop(&mut self) {
        self.table.connections().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_evicted(connection: &TrackedConnection) -> bool {
        let evicted = connection.progress.wait_until_evicted();
        tokio::time::timeout(Duration::from_millis(1), evicted).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_that_waits_for_its_client_is_closed() {
        let table = Arc::<ProgressTable>::default();
        let [fast, slow, blocked] = [0, 1, 2].map(|number| table.track(number));
        fast.progress.add(1_000);
        slow.progress.add(10);
        assert!(!table.evict_slowest(), "all of them are new");
        tokio::time::advance(AGE_MIN).await;
        blocked.progress.set_write_blocked(true);
        let new = table.track(3);
        assert!(table.evict_slowest());
        assert!(is_evicted(&slow).await);
        drop(slow);
        assert!(table.evict_slowest());
        // It is asked for something before it knows.
        fast.progress.set_write_blocked(true);
        assert!(!is_evicted(&fast).await);
        assert!(!table.evict_slowest(), "one is new, the others take a response");
        blocked.progress.set_write_blocked(false);
        assert!(table.evict_slowest());
        assert!(is_evicted(&blocked).await);
        drop((fast, blocked, new));
        assert!(table.connections().is_empty());
    }
}
