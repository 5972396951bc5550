//! The requests that wait for each key, in the order they came.
//!
//! A queue exists only while something waits in it. In a leaky queue its waiters have brought turns:
//! places that the store has charged. The first waiter has the first turn, whichever of them brought it.
//! So a waiter that gives up moves all behind it up by one and leaves the *last* turn over, the only one
//! that a store can take back. If the store refuses, because a request has queued behind it elsewhere,
//! the turn is kept for the next waiter.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use crate::Interval;
use crate::memory::counter_id::CounterId;
use crate::memory::sync::{AtomicU64, Mutex, Ordering, lock};

#[cfg(not(tollbar_loom))]
const SHARD_COUNT: usize = 64;
#[cfg(tollbar_loom)]
const SHARD_COUNT: usize = 1;

/// How many requests wait, and what they take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WaitingStats {
    /// Requests that wait for their turn.
    pub waiters: usize,
    /// Keys that have any.
    pub keys: usize,
    /// Memory for them, beside that of their futures.
    pub bytes: usize,
}

/// The queues of all keys, each under the lock of its shard.
#[derive(Debug)]
pub(super) struct WaitQueues {
    shards: Box<[Mutex<BTreeMap<u64, WaitQueue>>]>,
    waiter_count: AtomicU64,
}

/// The waiters of one key.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    /// In the order of their tickets.
    waiters: VecDeque<Waiter>,
    /// In the order of time: one for each waiter of a queue, then those left over. Empty under other
    /// policies.
    turns: VecDeque<Turn>,
    ticket_last: Ticket,
    /// True once two turns had different widths.
    is_mixed: bool,
    /// A permit has come back, or an earlier turn: the first waiter has to look again.
    is_notified: bool,
}

/// Names a waiter in its queue. Later ones are larger.
pub(super) type Ticket = u64;

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    width_ns: u64,
    waker: Option<Waker>,
}

/// A place in the store's queue, or several in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// When it comes, by the store's clock.
    pub(super) at_us: u64,
    /// How many tokens it was charged.
    pub(super) places: u64,
    /// How long they take. Nanoseconds, rounded down.
    pub(super) width_ns: u64,
    /// The interval it was charged under: what is given back must be what was taken.
    pub(super) interval: Interval,
    /// The store's name for the charge; 0 where it cannot be given back.
    pub(super) stamp: u64,
}

/// A waker to wake and one to drop, both after the lock is released: an executor may run a task as soon
/// as it is woken, and a waker may own the last reference to a task that waits here.
#[derive(Default)]
pub(super) struct Wakers {
    woken: Option<Waker>,
    dropped: Option<Waker>,
}

impl WaitQueues {
    /// Counts one more waiter, and says how many there were before it.
    pub(super) fn enter(&self) -> u64 {
        self.waiter_count.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) fn exit(&self) {
        self.waiter_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// True where no request waits, so that none needs to be notified.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiter_count.load(Ordering::SeqCst) == 0
    }

    /// Looks at the queue of `id`, or changes it. A queue that is empty afterwards is removed.
    pub(super) fn with<T>(
        &self,
        id: CounterId,
        f: impl FnOnce(&mut WaitQueue, &mut Wakers) -> T,
    ) -> T {
        let mut wakers = Wakers::default();
        let mut shard = lock(&self.shards[id.shard(self.shards.len())]);
        let queue = shard.entry(id.get()).or_default();
        let result = f(queue, &mut wakers);
        if queue.waiters.is_empty() {
            shard.remove(&id.get());
        }
        drop(shard);
        if let Some(waker) = wakers.woken {
            waker.wake();
        }
        result
    }

    pub(super) fn stats(&self) -> WaitingStats {
        let mut stats = WaitingStats::default();
        for shard in &self.shards {
            let shard = lock(shard);
            stats.keys += shard.len();
            stats.bytes += shard.len() * size_of::<(u64, WaitQueue)>();
            for queue in shard.values() {
                stats.waiters += queue.waiters.len();
                stats.bytes += queue.waiters.capacity() * size_of::<Waiter>();
                stats.bytes += queue.turns.capacity() * size_of::<Turn>();
            }
        }
        stats
    }
}

impl Default for WaitQueues {
    fn default() -> Self {
        let shards = (0..SHARD_COUNT).map(|_| Mutex::default()).collect();
        Self { shards, waiter_count: AtomicU64::new(0) }
    }
}

impl WaitQueue {
    /// Joins at the end.
    pub(super) fn join(&mut self, width_ns: u64) -> Ticket {
        self.ticket_last += 1;
        let ticket = self.ticket_last;
        self.waiters.push_back(Waiter { ticket, width_ns, waker: None });
        ticket
    }

    /// Joins at the end of a queue, and brings a turn along. `is_exact` is false where the turn was
    /// reckoned from the moment an answer came in: then it may be out of step with those before it.
    pub(super) fn join_queue(
        &mut self,
        mut turn: Turn,
        is_exact: bool,
        now_us: u64,
        wakers: &mut Wakers,
    ) -> Ticket {
        self.is_mixed |= self.turns.back().is_some_and(|last| last.width_ns != turn.width_ns);
        // Of the turns left over, one that has passed would meet the one after it, and one that is too
        // narrow is passed over: later waiters have to go after this one.
        let is_over = |other: &Turn| other.at_us <= now_us || other.width_ns < turn.width_ns;
        while self.turns.get(self.waiters.len()).is_some_and(is_over) {
            self.turns.remove(self.waiters.len());
        }
        if self.turns.front().is_some_and(|first| first.interval != turn.interval) {
            // The rule has changed: a place of 10 us cannot be given back as one of 100 us.
            turn.stamp = 0;
        }
        if is_exact && !self.is_mixed {
            // Any turn will do for any waiter, so the first to come has the first.
            let at = self.turns.partition_point(|other| other.at_us <= turn.at_us);
            self.turns.insert(at, turn);
            if at == 0 {
                self.notify(wakers);
            }
        } else {
            let end_us = |last: &Turn| last.at_us.saturating_add(last.width_ns / 1_000);
            turn.at_us = turn.at_us.max(self.turns.back().map_or(0, end_us));
            self.turns.push_back(turn);
        }
        self.join(turn.width_ns)
    }

    /// Gives the turns at the end back that no waiter needs, the last one first, until the store
    /// refuses one.
    pub(super) fn give_back(&mut self, mut refund: impl FnMut(Turn) -> bool) {
        while self.turns.len() > self.waiters.len()
            && self.turns.back().is_some_and(|last| refund(*last))
        {
            self.turns.pop_back();
        }
    }

    /// When the turn of the first waiter in a queue comes. `None` where it has come: then the waiter has
    /// left the queue with it.
    pub(super) fn take_turn(&mut self, now_us: u64, wakers: &mut Wakers) -> Option<u64> {
        if let Some(turn) = self.turns.front().filter(|turn| turn.at_us > now_us) {
            return Some(turn.at_us);
        }
        self.turns.pop_front();
        self.remove(0, wakers);
        None
    }

    /// True where the waiter is the first. `waker` is woken when it becomes so, or is notified.
    pub(super) fn is_first(&mut self, ticket: Ticket, waker: &Waker, wakers: &mut Wakers) -> bool {
        let Some(at) = self.find(ticket) else { return true };
        let own = &mut self.waiters[at].waker;
        if !own.as_ref().is_some_and(|own| own.will_wake(waker)) {
            wakers.dropped = own.replace(waker.clone());
        }
        at == 0
    }

    /// A waiter gives up, and those behind it move up.
    pub(super) fn leave(&mut self, ticket: Ticket, wakers: &mut Wakers) {
        let Some(at) = self.find(ticket) else { return };
        self.remove(at, wakers);
        if self.is_mixed {
            // A turn that is too narrow for the waiter that would move up into it is lost, and all from
            // there on keep their own.
            let mut pairs = self.waiters.range(at..).zip(self.turns.range(at..));
            if let Some(lost) = pairs.position(|(waiter, turn)| turn.width_ns < waiter.width_ns) {
                self.turns.remove(at + lost);
            }
        }
    }

    /// Lets the first waiter look again.
    pub(super) fn notify(&mut self, wakers: &mut Wakers) {
        self.is_notified = true;
        wakers.woken = self.waiters.front_mut().and_then(|first| first.waker.take());
    }

    /// True, once, after a notification.
    pub(super) fn take_notification(&mut self) -> bool {
        std::mem::take(&mut self.is_notified)
    }

    fn find(&self, ticket: Ticket) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }

    fn remove(&mut self, at: usize, wakers: &mut Wakers) {
        wakers.dropped = self.waiters.remove(at).and_then(|waiter| waiter.waker);
        if at == 0 {
            wakers.woken = self.waiters.front_mut().and_then(|first| first.waker.take());
        }
    }
}
