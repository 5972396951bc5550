//! What rules have decided, counted as it happens: one relaxed add for a rule and a check, on a line of
//! memory that few threads share.
//!
//! Whom a rule has limited is in [`top`](crate::snapshot::top); no client appears here. What is counted belongs to
//! a rule's identity and the name of its tier, and goes on when the rules change around it.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use tollbar::Decision;

/// More threads than this share lines.
const LINES_MAX: usize = 16;

/// Counters of a rule, or of one tier of it.
#[derive(Debug, Clone)]
pub(crate) struct Tally(Arc<[CounterLine]>);

/// The counters of some threads, on one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct CounterLine {
    pub(crate) allowed: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) shadow_allowed: AtomicU64,
    pub(crate) shadow_denied: AtomicU64,
    pub(crate) degraded_allowed: AtomicU64,
    pub(crate) degraded_denied: AtomicU64,
    pub(crate) near_limit: AtomicU64,
    /// What was paid beyond a token for each allowed request; wraps where it was less. So a request of
    /// one token, as most are, costs one add.
    pub(crate) extra_tokens: AtomicU64,
}

/// What a rule, or one tier of it, has decided since it has been there. Each check counts once, however
/// many limits the rule has; one of cost 0 does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Allowed, by a store that answered.
    pub allowed: u64,
    /// Denied, by a store that answered or for want of an attribute.
    pub denied: u64,
    /// What a rule in shadow mode, or a candidate, would have allowed.
    pub shadow_allowed: u64,
    /// What it would have denied.
    pub shadow_denied: u64,
    /// Allowed by the failure policy, because the store could not answer.
    pub degraded_allowed: u64,
    /// Denied by it.
    pub degraded_denied: u64,
    /// How many of the allowed ones left at most a fifth of a limit's capacity.
    pub near_limit: u64,
    /// What was charged for requests that passed. What a reservation gives back is not taken off.
    pub admitted_tokens: u64,
    /// How many of the denied ones were by counters that owe more than their policy can: see
    /// [`AheadOfClock`](crate::AheadOfClock). Of all tiers together, with the rule's own.
    pub ahead_of_clock: u64,
    /// How many requests of new keys shared the counter of their network, under a rule with `new_keys`. Of all tiers
    /// together, with the rule's own.
    pub new_keys_limited: u64,
}

impl Counts {
    /// How many decisions there were, live or not.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        let live = self.allowed + self.denied + self.degraded_allowed + self.degraded_denied;
        live + self.shadow_allowed + self.shadow_denied
    }
}

/// Tells rules apart across versions, for as long as somebody holds the [`Tallies`](crate::Tallies) that it is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TallyId(usize);

impl Default for Tally {
    fn default() -> Self {
        static LINES: LazyLock<usize> = LazyLock::new(|| {
            let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
            threads.next_power_of_two().min(LINES_MAX)
        });
        Self((0..*LINES).map(|_| CounterLine::default()).collect())
    }
}

impl Tally {
    /// The line of this thread.
    #[inline]
    pub(crate) fn line(&self) -> &CounterLine {
        // A power of two.
        &self.0[thread_number() & (self.0.len() - 1)]
    }

    /// One rule alone has decided, and the store has answered.
    #[inline]
    pub(crate) fn decided(&self, is_allowed: bool, cost: u64, is_near: impl FnOnce() -> bool) {
        if cost == 0 {
            return;
        }
        let line = self.line();
        if !is_allowed {
            return add(&line.denied, 1);
        }
        add(&line.allowed, 1);
        if cost != 1 {
            add(&line.extra_tokens, cost - 1);
        }
        if is_near() {
            add(&line.near_limit, 1);
        }
    }

    /// Turned away before any counter was asked.
    pub(crate) fn refused(&self) {
        add(&self.line().denied, 1);
    }

    /// By where it is.
    pub(crate) fn id(&self) -> TallyId {
        TallyId(self.0.as_ptr().addr())
    }

    pub(crate) fn counts(&self) -> Counts {
        let sum = |of: fn(&CounterLine) -> &AtomicU64| {
            let counts = self.0.iter().map(|line| of(line).load(Ordering::Relaxed));
            counts.fold(0, u64::wrapping_add)
        };
        let allowed = sum(|line| &line.allowed);
        Counts {
            allowed,
            denied: sum(|line| &line.denied),
            shadow_allowed: sum(|line| &line.shadow_allowed),
            shadow_denied: sum(|line| &line.shadow_denied),
            degraded_allowed: sum(|line| &line.degraded_allowed),
            degraded_denied: sum(|line| &line.degraded_denied),
            near_limit: sum(|line| &line.near_limit),
            admitted_tokens: allowed.wrapping_add(sum(|line| &line.extra_tokens)),
            ahead_of_clock: 0,
            new_keys_limited: 0,
        }
    }
}

/// Returns true if at least four fifths are known to be used: 20 of 100 remain, not 21.
#[inline]
pub(crate) fn is_near(decision: &Decision, capacity: u64) -> bool {
    decision.remaining().is_some_and(|remaining| remaining <= capacity / 5)
}

#[inline]
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Threads are numbered as they first count.
#[inline]
fn thread_number() -> usize {
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);

    let number = NUMBER.get();
    if number != usize::MAX {
        return number;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1);
    NUMBER.set(number);
    number
}
