//! The algorithms: pure functions from (state, now, cost) to a decision and the next state.
//!
//! An algorithm knows numbers and time and nothing else: no keys, no threads, no store. The store
//! owns atomicity and hands the state in. Each algorithm has a file of its own:
//!
//! | file | at most, in any interval of length T |
//! |---|---|
//! | [`token_bucket`] | burst + rate x T |
//! | [`leaky_bucket`] | burst + rate x T |
//! | [`leaky_queue`] | one per interval on the way out; a bounded number waits |
//! | [`fixed_window`] | limit in any aligned window, so up to twice the limit across a boundary |
//! | [`staggered_window`] | the same, and each key has windows of its own |
//! | [`calendar_window`] | limit in any day, week or month, so up to twice the limit across a boundary |
//! | [`sliding_window`] | the weighted estimate stays within the limit; below twice the limit |
//! | [`sliding_strict`] | limit in any window |
//! | [`sliding_log`] | limit in any window, and a client that always asks gets it |
//! | [`concurrency`], [`leased`] | limit in flight at any instant |
//!
//! [`warm_up`] is none of its own: it has the limit of any of these climb, and forgives nothing.
//!
//! A new one is a type that implements [`Algorithm`], in any crate: see
//! [`Policy::custom`](crate::Policy::custom).

pub mod calendar_window;
pub mod concurrency;
mod counted_window;
pub(crate) mod debt;
pub mod fixed_window;
pub(crate) mod fraction;
pub mod leaky_bucket;
pub mod leaky_queue;
pub mod leased;
pub(crate) mod policy_error;
pub mod sliding_log;
pub mod sliding_strict;
pub mod sliding_window;
pub mod staggered_window;
pub mod token_bucket;
pub mod warm_up;
pub(crate) mod word;

use std::fmt;

use crate::{Decision, Timestamp};

/// The most words of state an algorithm may ask for.
pub const STATE_WORDS_MAX: usize = 64;

/// What was given back of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refund {
    /// Whole tokens.
    pub tokens: u64,
    /// Where time pays charges in their order: how much sooner those behind this one are paid, in
    /// microseconds, rounded up. Their stamps are late by as much from now on.
    pub sooner_us: u64,
}

/// How requests are counted: a pure step from one state to the next.
///
/// The state is a few words whose meaning only the algorithm knows. All zeros is *fresh*: a
/// counter nobody has ever charged. A store may forget a state at any instant from
/// [`fresh_at`](Self::fresh_at) on, and hand in zeros instead; no later decision may differ for it.
///
/// ```
/// use tollbar::{Algorithm, Decision, Limiter, Outcome, Policy, Timestamp};
///
/// /// One request, then none for a second.
/// #[derive(Debug)]
/// struct Spacing;
///
/// impl Algorithm for Spacing {
///     fn name(&self) -> &'static str {
///         "spacing"
///     }
///     fn limit(&self) -> u64 {
///         1
///     }
///     fn window_us(&self) -> u64 {
///         1_000_000
///     }
///     fn words(&self) -> usize {
///         1
///     }
///     fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
///         let open_at = state[0];
///         let closed_us = open_at.saturating_sub(now.as_micros());
///         let outcome = match (cost, closed_us) {
///             (0, _) => Outcome::Allow,
///             (1, 0) => {
///                 state[0] = now.as_micros() + self.window_us();
///                 Outcome::Allow
///             }
///             (1, retry_after_us) => Outcome::Deny { retry_after_us },
///             _ => Outcome::Never,
///         };
///         let reset_at = Timestamp::from_micros(state[0].max(now.as_micros()));
///         Decision::new(outcome, 1, u64::from(reset_at <= now), reset_at)
///     }
///     fn fresh_at(&self, state: &[u64]) -> Timestamp {
///         Timestamp::from_micros(state[0])
///     }
/// }
///
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let limiter = Limiter::new(Policy::custom(Spacing)?);
/// assert!(limiter.check("user:42").is_allowed());
/// assert!(!limiter.check("user:42").is_allowed());
/// # Ok(())
/// # }
/// ```
pub trait Algorithm: fmt::Debug + Send + Sync + 'static {
    /// The name in metrics and explanations: `token_bucket`. Part of a counter's identity.
    fn name(&self) -> &'static str;

    /// Anything beside the name and the window that makes counters incomparable, such as the
    /// number of sub-windows. Not the limit: a changed limit keeps its counters.
    fn variant(&self) -> u64 {
        0
    }

    /// Tokens per window, as reported to clients.
    fn limit(&self) -> u64;

    /// The largest cost that can ever pass; above it the answer is [`Outcome::Never`].
    ///
    /// [`Outcome::Never`]: crate::Outcome::Never
    fn capacity(&self) -> u64 {
        self.limit()
    }

    /// The window in microseconds, as reported to clients. Part of a counter's identity.
    fn window_us(&self) -> u64;

    /// How many words of state a counter needs, 1 to [`STATE_WORDS_MAX`]. Only a
    /// [log](sliding_log) asks for more: a store that keeps lists keeps it in its own way.
    fn words(&self) -> usize;

    /// Decides a request of `cost` at `now` and, if it is allowed, charges it to `state`.
    ///
    /// `state` has [`words`](Self::words) words. Denied, never and cost 0 must leave it as good as
    /// it was. It must not panic, whatever the state, the time or the cost: after a rule change
    /// the state was written under other numbers.
    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision;

    /// Names the charge that [`transition`](Self::transition) has just left in `state`, so that
    /// [`refund`](Self::refund) can tell later what is left of it: the instant it will be paid, the
    /// window it is counted in.
    fn stamp(&self, _state: &[u64]) -> u64 {
        0
    }

    /// Takes back `amount` tokens of the charge called `stamp`, as far as it still counts at `now`.
    /// It must not give back what time has given back already, or a client would be let through
    /// twice for it; an algorithm that cannot tell gives nothing back.
    fn refund(&self, _state: &mut [u64], _now: Timestamp, _stamp: u64, _amount: u64) -> Refund {
        Refund::default()
    }

    /// Charges `amount` tokens that were spent already, whether or not there is room for them, and
    /// says how many it has charged: by default none.
    fn overdraw(&self, _state: &mut [u64], _now: Timestamp, _amount: u64) -> u64 {
        0
    }

    /// From when on `state` is as good as fresh.
    fn fresh_at(&self, state: &[u64]) -> Timestamp;
}
