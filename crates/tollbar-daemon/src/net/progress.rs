//! How fast each connection of a listener is, so that a full listener can close the slowest one. A read or write costs one
//! relaxed addition.

use std::collections::BTreeMap;
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

/// How many connections are compared while the table is locked.
const COMPARED_MAX: usize = 4_096;

/// The connections of a listener. There are as many as it has permits.
#[derive(Debug, Default)]
pub(super) struct ProgressTable(Mutex<TrackedConnections>);

#[derive(Debug, Default)]
struct TrackedConnections {
    /// By number, so the oldest is first.
    by_number: BTreeMap<u64, Arc<ConnectionProgress>>,
    /// The number from which the next comparison goes on.
    next: u64,
}

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
        self.connections().by_number.insert(number, Arc::clone(&progress));
        TrackedConnection { table: Arc::clone(self), number, progress }
    }

    /// Ends the slowest connection that waits for its client. Returns false if there is none.
    ///
    /// A listener with more than [`COMPARED_MAX`] connections compares so many, in turn, and the others only if none of those
    /// can be ended: connections come and go under the same lock.
    pub(super) fn evict_slowest(&self) -> bool {
        let now = Instant::now();
        let count = self.connections().by_number.len();
        (0..=count / COMPARED_MAX).any(|_| self.connections().evict_slowest_of_next(now))
    }

    fn connections(&self) -> MutexGuard<'_, TrackedConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrackedConnections {
    fn evict_slowest_of_next(&mut self, now: Instant) -> bool {
        let following = self.by_number.range(self.next..);
        let compared = following.chain(self.by_number.range(..self.next)).take(COMPARED_MAX);
        let mut slowest: Option<(u128, &Arc<ConnectionProgress>)> = None;
        let mut last = self.next;
        for (number, progress) in compared {
            last = *number;
            if let Some(rate) = progress.rate(now)
                && slowest.is_none_or(|(least, _)| rate < least)
            {
                slowest = Some((rate, progress));
            }
        }
        let is_found = slowest.inspect(|(_, slowest)| slowest.evicted.notify_one()).is_some();
        self.next = last.wrapping_add(1);
        is_found
    }
}

impl Drop for TrackedConnection {
    fn drop(&mut self) {
        self.table.connections().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    use super::*;
    use crate::net::stream::{Stream, Transport};

    async fn is_evicted(connection: &TrackedConnection) -> bool {
        let evicted = connection.progress.wait_until_evicted();
        timeout(Duration::from_millis(1), evicted).await.is_ok()
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
        assert!(table.connections().by_number.is_empty());
    }

    #[tokio::test]
    async fn what_a_stream_moves_counts_in_both_directions() {
        let connection = Arc::<ProgressTable>::default().track(0);
        let (socket, mut client) = UnixStream::pair().unwrap();
        let progress = &connection.progress;
        let transport = Transport::Unix(socket);
        let mut stream = Stream::new(transport, Duration::from_mins(1), Some(progress.clone()));
        let moved = || progress.bytes.load(Ordering::Relaxed);
        let is_blocked = || progress.is_write_blocked.load(Ordering::Relaxed);
        client.write_all(b"request").await.unwrap();
        stream.read_exact(&mut [0; 7]).await.unwrap();
        assert_eq!(moved(), 7);
        stream.write_all(b"answer").await.unwrap();
        assert_eq!((moved(), is_blocked()), (13, false));
        // More than a socket holds.
        let answer = vec![0; 16 << 20];
        let mut written = Box::pin(stream.write_all(&answer));
        assert!(timeout(Duration::from_millis(20), written.as_mut()).await.is_err());
        assert!(is_blocked());
        let mut taken = vec![0; answer.len()];
        let (_, written) = tokio::join!(client.read_exact(&mut taken), written);
        written.unwrap();
        assert_eq!((moved(), is_blocked()), (13 + answer.len() as u64, false));
    }

    /// A full listener of 100,000 connections compared all of them for each newcomer, under the lock that every connection
    /// needs to begin and to end.
    #[tokio::test(start_paused = true)]
    async fn of_many_connections_some_are_compared_in_turn() {
        let table = Arc::<ProgressTable>::default();
        let count = COMPARED_MAX as u64 * 3;
        let held: Vec<_> = (0..count).map(|number| table.track(number)).collect();
        tokio::time::advance(AGE_MIN).await;
        // The slowest of each part, the slowest of all last.
        for (at, connection) in held.iter().enumerate() {
            let is_slow = at % COMPARED_MAX == 7;
            connection.progress.add(if is_slow { 10_000 - at / 2 } else { 1_000_000 });
        }
        for part in 0..3 {
            assert!(table.evict_slowest());
            assert!(is_evicted(&held[part * COMPARED_MAX + 7]).await, "part {part}");
        }
        // Where all others are busy, the one that is not is found in one go.
        for connection in &held {
            connection.progress.set_write_blocked(true);
        }
        assert!(!table.evict_slowest());
        let idle = &held[2 * COMPARED_MAX + 9];
        idle.progress.set_write_blocked(false);
        assert!(table.evict_slowest());
        assert!(is_evicted(idle).await);
    }
}
