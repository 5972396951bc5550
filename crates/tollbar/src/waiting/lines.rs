//! The lines of all keys, each under the lock of its shard.
//!
//! A line is there only while somebody waits in it. It goes by the 64 bits that name the counter
//! in a memory store as well, under a secret of its own, so no key is kept.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;

use super::line::{InHand, Line, Progress, Ticket, Turn};
use crate::memory::counter_id::{CounterHash, CounterId};
use crate::memory::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::{Interval, Policy};

#[cfg(not(tollbar_loom))]
const SHARD_COUNT: usize = 64;
#[cfg(tollbar_loom)]
const SHARD_COUNT: usize = 1;

/// A map that has once held more lines than this gives its memory back when it is empty.
const LINES_KEPT: usize = 28;

/// How many wait, and what they take up.
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

#[derive(Debug)]
pub(super) struct Lines {
    shards: Box<[Mutex<Shard>]>,
    hash: CounterHash,
    waiter_count: AtomicU64,
    waiters_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    lines: HashMap<u64, Line, BuildHasherDefault<IsHashed>>,
    ticket_last: Ticket,
}

/// The names of counters are hashes already, and keyed.
#[derive(Debug, Default)]
struct IsHashed(u64);

impl Hasher for IsHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, name: u64) {
        // The low bits, which a table looks at, are the same for all of a shard.
        self.0 = name.rotate_left(32);
    }
}

/// What became of one who came to wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joined {
    pub(super) ticket: Ticket,
    /// It has a turn that had been left over, so there is one to give back.
    pub(super) has_left_over: bool,
}

/// Room for one who waits, counted over all keys.
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
            shards: (0..SHARD_COUNT).map(|_| Mutex::new(Shard::default())).collect(),
            hash: CounterHash::random(),
            waiter_count: AtomicU64::new(0),
            waiters_max,
        }
    }

    pub(super) fn id(&self, key: &[u8], policy: &Policy) -> CounterId {
        self.hash.id(key, policy)
    }

    pub(super) fn waiters_max(&self) -> usize {
        self.waiters_max
    }

    /// Room for one more, if there is any.
    pub(super) fn room(&self) -> Option<Room<'_>> {
        // Counted first, so that no two get the same room; who is too many leaves again.
        let room = Room(self);
        let before = self.waiter_count.fetch_add(1, Ordering::Relaxed);
        (before < self.waiters_max as u64).then_some(room)
    }

    /// A waiter joins the line of `id`. Its turn may have come by then.
    pub(super) fn join(
        &self,
        id: CounterId,
        turn: Turn,
        interval: Interval,
        is_exact: bool,
    ) -> Joined {
        let mut shard = self.shard(id);
        shard.ticket_last += 1;
        let ticket = shard.ticket_last;
        let line = shard.lines.entry(id.get());
        let line = line.or_insert_with(|| Line::new(interval, turn.width_ns));
        let mut woken = Vec::new();
        line.join(ticket, turn, interval, is_exact, &mut woken);
        let has_left_over = line.has_left_over();
        drop(shard);
        wake(woken);
        Joined { ticket, has_left_over }
    }

    /// How it stands with a waiter. Lets go whoever is due at `now_us`; where that is not the
    /// waiter itself, `waker` is woken when it may be.
    pub(super) fn look(
        &self,
        id: CounterId,
        ticket: Ticket,
        now_us: u64,
        waker: &Waker,
    ) -> Progress {
        let mut woken = Vec::new();
        let mut shard = self.shard(id);
        let Some(line) = shard.lines.get_mut(&id.get()) else {
            return Progress::Go;
        };
        let mut own = line.take_waker(ticket);
        line.let_go(now_us, &mut woken);
        let progress = line.progress(ticket);
        if progress != Progress::Go {
            let listening = own.take_if(|own| own.will_wake(waker));
            line.set_waker(ticket, listening.unwrap_or_else(|| waker.clone()));
        }
        if line.is_over() {
            shard.remove(id);
        }
        drop(shard);
        wake(woken);
        // Without a lock as well: a waker may hold the last of a task that waits here.
        drop(own);
        progress
    }

    /// A waiter gives up; false where it had been let go already. What it leaves over is to be
    /// taken with [`take_left_over`](Self::take_left_over), which also ends an empty line.
    pub(super) fn leave(&self, id: CounterId, ticket: Ticket) -> bool {
        let mut woken = Vec::new();
        let mut shard = self.shard(id);
        let Some(line) = shard.lines.get_mut(&id.get()) else {
            return false;
        };
        let own = line.take_waker(ticket);
        let was_waiting = line.leave(ticket, &mut woken);
        drop(shard);
        wake(woken);
        drop(own);
        was_waiting
    }

    /// A turn of `id` that nobody waits for and that the store might take back. It is either
    /// [`returned`](Self::returned) or [`refused`](Self::refused) then. Not the one that was refused
    /// just now.
    pub(super) fn take_left_over(
        &self,
        id: CounterId,
        interval: Interval,
        refused: Option<InHand>,
    ) -> Option<InHand> {
        let mut shard = self.shard(id);
        let line = shard.lines.get_mut(&id.get())?;
        let in_hand = line.take_left_over(interval, refused);
        if in_hand.is_none() && line.is_over() {
            shard.remove(id);
        }
        in_hand
    }

    /// The store has taken a turn back.
    pub(super) fn returned(&self, id: CounterId) {
        if let Some(line) = self.shard(id).lines.get_mut(&id.get()) {
            line.returned();
        }
    }

    /// The store has not taken a turn back: it is for whoever comes next, if it is still ahead.
    pub(super) fn refused(&self, id: CounterId, in_hand: InHand, now_us: u64) {
        let mut woken = Vec::new();
        let mut shard = self.shard(id);
        if let Some(line) = shard.lines.get_mut(&id.get()) {
            // One that has come meanwhile is over: used now, it would meet the one after it.
            let ahead = Some(in_hand.turn).filter(|turn| turn.at_us > now_us);
            line.refused(ahead, &mut woken);
        }
        drop(shard);
        wake(woken);
    }

    pub(super) fn stats(&self) -> WaitingStats {
        let mut stats = WaitingStats::default();
        for shard in &self.shards {
            let shard = lock(shard);
            stats.keys += shard.lines.len();
            stats.bytes += shard.lines.capacity() * size_of::<(u64, Line)>();
            for line in shard.lines.values() {
                stats.waiters += line.waiter_count();
                stats.bytes += line.bytes();
            }
        }
        stats
    }

    fn shard(&self, id: CounterId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[id.shard(self.shards.len())])
    }
}

impl Shard {
    fn remove(&mut self, id: CounterId) {
        self.lines.remove(&id.get());
        if self.lines.is_empty() && self.lines.capacity() > LINES_KEPT {
            self.lines.shrink_to_fit();
        }
    }
}

/// Without a lock held: some executors run a task as soon as it is woken.
fn wake(woken: Vec<Waker>) {
    for waker in woken {
        waker.wake();
    }
}
