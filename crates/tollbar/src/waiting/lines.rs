//! The requests that wait for each key, in the order they came.
//!
//! A line is there only while something waits in it. In a queue its waiters have brought turns: places
//! that the store has charged. The first waiter has the first turn, whichever of them had brought it. So
//! one that gives up moves all behind it up by one and leaves the *last* turn over, which alone a store
//! can take back; where it cannot, because somebody has queued behind it elsewhere, the turn stays for
//! the next waiter.

use std::collections::{HashMap, VecDeque};
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

/// The lines of all keys, each under the lock of its shard.
#[derive(Debug)]
pub(super) struct Lines {
    shards: Box<[Mutex<HashMap<u64, Line>>]>,
    tickets: AtomicU64,
    waiter_count: AtomicU64,
    waiters_max: usize,
}

/// The waiters of one key.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// In the order of their tickets.
    waiters: VecDeque<Waiter>,
    /// In the order of time. As many as waiters in a queue, or more; none under other policies.
    turns: VecDeque<Turn>,
    /// A permit has come back: the first waiter has to look again.
    is_notified: bool,
}

/// Names a waiter for as long as it waits. Later ones are larger.
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

/// What a waiter of a queue has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its turn has come, and it has left the line.
    Go,
    /// It is the first: sleep until then, and look again.
    First { until_us: u64 },
    /// Wait to be woken.
    Behind,
}

/// Wakers to wake, and wakers to drop. Both only without a lock: an executor may run a task as soon as
/// it is woken, and a waker may hold the last of a task that waits here.
#[derive(Default)]
pub(super) struct Wakers {
    woken: Vec<Waker>,
    dropped: Vec<Waker>,
}

/// Room for one waiter, counted over all keys.
#[derive(Debug)]
pub(super) struct Room<'a>(&'a Lines);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.waiter_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lines {
    pub(super) fn new(waiters_max: usize) -> Self {
        Self {
            shards: (0..SHARD_COUNT).map(|_| Mutex::new(HashMap::new())).collect(),
            tickets: AtomicU64::new(0),
            waiter_count: AtomicU64::new(0),
            waiters_max,
        }
    }

    pub(super) fn waiters_max(&self) -> usize {
        self.waiters_max
    }

    /// True where no request has room to wait, so that nobody needs to be notified.
    pub(super) fn is_empty(&self) -> bool {
        self.waiter_count.load(Ordering::Relaxed) == 0
    }

    /// Room for one more, if there is any.
    pub(super) fn room(&self) -> Option<Room<'_>> {
        // Counted first, so that no two get the same room; one too many leaves again.
        let room = Room(self);
        let before = self.waiter_count.fetch_add(1, Ordering::Relaxed);
        (before < self.waiters_max as u64).then_some(room)
    }

    pub(super) fn next_ticket(&self) -> Ticket {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks at the line of `id`, or changes it. A line that is empty afterwards is removed.
    pub(super) fn with<T>(&self, id: CounterId, f: impl FnOnce(&mut Line, &mut Wakers) -> T) -> T {
        let mut wakers = Wakers::default();
        let mut shard = lock(&self.shards[id.shard(self.shards.len())]);
        let line = shard.entry(id.get()).or_default();
        let result = f(line, &mut wakers);
        if line.waiters.is_empty() {
            shard.remove(&id.get());
            if shard.is_empty() {
                shard.shrink_to_fit();
            }
        }
        drop(shard);
        wakers.woken.into_iter().for_each(Waker::wake);
        result
    }

    pub(super) fn stats(&self) -> WaitingStats {
        let mut stats = WaitingStats::default();
        for shard in &self.shards {
            let shard = lock(shard);
            stats.keys += shard.len();
            stats.bytes += shard.capacity() * size_of::<(u64, Line)>();
            for line in shard.values() {
                stats.waiters += line.waiters.len();
                stats.bytes += line.waiters.capacity() * size_of::<Waiter>();
                stats.bytes += line.turns.capacity() * size_of::<Turn>();
            }
        }
        stats
    }
}

impl Line {
    /// Joins at the end. True where it is the first.
    pub(super) fn join(&mut self, ticket: Ticket, width_ns: u64) -> bool {
        // Tickets are drawn without the lock, so two may come here in the other order.
        let at = self.waiters.partition_point(|waiter| waiter.ticket < ticket);
        self.waiters.insert(at, Waiter { ticket, width_ns, waker: None });
        at == 0
    }

    /// Adds the turn of a waiter that is about to join. `is_exact` is false where the turn was reckoned
    /// from the moment an answer came in: then it may be out of step with those before it.
    pub(super) fn add_turn(
        &mut self,
        mut turn: Turn,
        is_exact: bool,
        now_us: u64,
        wakers: &mut Wakers,
    ) {
        // A turn that was left over and has passed is over: used now, it would meet the one after it.
        let left_over = self.left_over();
        while self.turns.len() > left_over && self.turns[self.turns.len() - 1].at_us <= now_us {
            self.turns.pop_back();
        }
        if self.turns.front().is_some_and(|first| first.interval != turn.interval) {
            // The rule has changed: a place of 10 us cannot be given back as one of 100 us.
            turn.stamp = 0;
        }
        let is_alike = self.turns.iter().all(|other| other.width_ns == turn.width_ns);
        if is_exact && is_alike {
            // Any turn will do for any waiter, so the first to come has the first.
            let at = self.turns.partition_point(|other| other.at_us <= turn.at_us);
            self.turns.insert(at, turn);
            if at == 0 {
                // The first waiter sleeps until a later one.
                self.wake_first(wakers);
            }
        } else {
            let end_us = |last: &Turn| last.at_us.saturating_add(last.width_ns / 1_000);
            turn.at_us = turn.at_us.max(self.turns.back().map_or(0, end_us));
            self.turns.push_back(turn);
        }
    }

    /// Where the turns begin that no waiter needs. A turn that is too narrow for the next waiter is
    /// passed over: those behind it have to go after it.
    fn left_over(&self) -> usize {
        let mut at = 0;
        for waiter in &self.waiters {
            while self.turns.get(at).is_some_and(|turn| turn.width_ns < waiter.width_ns) {
                at += 1;
            }
            at += 1;
        }
        at.min(self.turns.len())
    }

    /// Gives the turns at the end back that no waiter needs, the last one first, until the store
    /// refuses one.
    pub(super) fn give_back(&mut self, mut refund: impl FnMut(Turn) -> bool) {
        let left_over = self.left_over();
        while self.turns.len() > left_over && self.turns.back().is_some_and(|last| refund(*last)) {
            self.turns.pop_back();
        }
    }

    /// How it stands with a waiter of a queue. If its turn has come it leaves the line; if not,
    /// `waker` is woken when it should look again.
    pub(super) fn look(
        &mut self,
        ticket: Ticket,
        now_us: u64,
        waker: &Waker,
        wakers: &mut Wakers,
    ) -> Progress {
        if !self.is_first(ticket, waker, wakers) {
            return Progress::Behind;
        }
        let width_ns = self.waiters[0].width_ns;
        while self.turns.front().is_some_and(|turn| turn.width_ns < width_ns) {
            self.turns.pop_front();
        }
        match self.turns.front() {
            Some(turn) if turn.at_us > now_us => Progress::First { until_us: turn.at_us },
            _ => {
                self.turns.pop_front();
                self.leave(ticket, wakers);
                Progress::Go
            }
        }
    }

    /// True where the waiter is the first. `waker` is woken when it becomes so, or is notified.
    pub(super) fn is_first(&mut self, ticket: Ticket, waker: &Waker, wakers: &mut Wakers) -> bool {
        let Ok(at) = self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket) else {
            return true;
        };
        let waiter = &mut self.waiters[at];
        if !waiter.waker.as_ref().is_some_and(|own| own.will_wake(waker)) {
            wakers.dropped.extend(waiter.waker.replace(waker.clone()));
        }
        at == 0
    }

    /// A waiter leaves. False where it had left already.
    pub(super) fn leave(&mut self, ticket: Ticket, wakers: &mut Wakers) -> bool {
        let Ok(at) = self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket) else {
            return false;
        };
        wakers.dropped.extend(self.waiters.remove(at).and_then(|waiter| waiter.waker));
        if at == 0 {
            self.wake_first(wakers);
        }
        true
    }

    /// A permit has come back.
    pub(super) fn notify(&mut self, wakers: &mut Wakers) {
        self.is_notified = true;
        self.wake_first(wakers);
    }

    /// True, once, after a notification.
    pub(super) fn take_notification(&mut self) -> bool {
        std::mem::take(&mut self.is_notified)
    }

    fn wake_first(&mut self, wakers: &mut Wakers) {
        if let Some(first) = self.waiters.front_mut() {
            wakers.woken.extend(first.waker.take());
        }
    }
}
