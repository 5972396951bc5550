//! A rate limiter that is exact about what it promises.
//!
//! ```
//! use tollbar::{Limiter, Policy};
//! # fn main() -> Result<(), tollbar::PolicyError> {
//! let limiter = Limiter::new(Policy::token_bucket("10/s")?);
//! if limiter.check("user:42").is_allowed() {
//!     // serve the request
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A [`Policy`] is numbers and an algorithm, checked and rounded once. A [`Limiter`] asks a
//! [`Store`] whether a key may pay its cost, and gets a [`Decision`]: allowed or not, what remains,
//! when to come back. The [`MemoryStore`] counts in this process, in memory that is bounded when it
//! is made; other stores implement the same trait.
//!
//! # What is promised
//!
//! | algorithm | at most, in any interval of length T | one that always asks gets at least |
//! |---|---|---|
//! | [token bucket](Policy::token_bucket), [leaky bucket](Policy::leaky_bucket) | burst + rate x T | rate x T - 1 |
//! | [leaky queue](Policy::leaky_queue) | one per 1/rate on the way out, and a bounded number waits | rate x T - 1 |
//! | [fixed window](Policy::fixed_window) | limit in any aligned window (twice that across a boundary) | limit per window |
//! | [staggered window](Policy::staggered) | the same, each key in windows of its own | limit per window |
//! | [calendar window](Policy::calendar_window) | limit in any day, week or month (twice that across a boundary) | limit per day, week or month |
//! | [sliding window](Policy::sliding_window) | estimate + cost within the limit; below twice the limit in any window | |
//! | [strict sliding window](Policy::sliding_window_strict) | limit in any window | n / (n + 1) of limit |
//! | [sliding window log](Policy::sliding_window_log) | limit in any window | limit in any window |
//! | any bucket or window, [warming up](Policy::with_warm_up) | no more than without; while a key is new, the same at its first limit | the same at the limit of its step |
//! | [concurrency](Policy::concurrency), [leased](Policy::leased) or not | limit in flight at any instant | |
//!
//! Time is whole microseconds. A bucket that becomes full between two of them earns nothing until
//! the next, so where the time per token is not whole, "rate x T - 1" needs a burst of more than a
//! microsecond's worth. The n parts of a strict window are whole microseconds too: where they exceed
//! the window, which they may by a thousandth of it, "n / (n + 1)" is less by as much.
//!
//! Permits in flight come back when whoever holds them is done, so for them no retry-after is told.
//! Every other retry-after is exact: alone, the same request is denied one microsecond before it and
//! allowed at it. A denied request charges nothing, and a request under several limits
//! ([`Limiter::check_all`]) charges all of them or none. Where no wait can be promised, as for a key
//! that would no longer be [warm](Policy::with_warm_up) after it, the answer is [`Outcome::Busy`].
//!
//! # What is defined at the edges
//!
//! Keys are any bytes of any length, the empty key included. Cost 0 peeks: it is allowed, charges
//! nothing and says what remains. A cost above the policy's [capacity](Policy::capacity) is
//! [`Outcome::Never`], which no retry will change. A clock that goes back mints nothing: counters
//! wait until it has caught up. A clock past [`Timestamp::MAX`] reads as `MAX` and so stands
//! still: what was charged stays charged.

pub mod algorithm;
pub mod charge;
mod clock;
pub mod counter;
mod decision;
mod failure;
mod fnv;
mod fraction;
mod lease;
mod limiter;
mod memory;
mod permit;
mod policy;
pub mod receipt;
#[cfg(feature = "remote")]
pub mod remote;
mod resolver;
pub mod store;
mod units;
mod verdict;
#[cfg(feature = "until-ready")]
mod waiting;

pub use algorithm::Algorithm;
pub use algorithm::calendar_window::Period;
pub use algorithm::debt::Interval;
pub use algorithm::warm_up::WarmUp;
pub use charge::{ChargeSettlement, SettleError, Settlement};
pub use clock::{Clock, ManualClock, SystemClock};
pub use counter::{CounterBackend, CounterStore};
pub use decision::{Decision, Degraded, Outcome};
pub use failure::FailurePolicy;
pub use lease::Lease;
pub use limiter::{AcquireError, Limiter, LimiterBuilder, RequestError, Reservation};
pub use memory::{MemoryStats, MemoryStore, MemoryStoreBuilder, SnapshotError, SnapshotSummary};
pub use permit::{OwnedPermit, Permit};
pub use policy::{Policy, PolicyError, PolicyParts};
pub use receipt::{RECEIPT_BYTES_MAX, Receipt, ReceiptError, ReceiptKey};
pub use resolver::{Overrides, PolicyResolver};
pub use store::{Batch, Charge, Consistency, Entry, Feature, Reply, Role, Store, StoreError};
pub use units::{DurationError, Rate, RateError, Timestamp, parse_duration};
pub use verdict::Verdict;
#[cfg(feature = "until-ready")]
pub use waiting::{ManualTimer, Sleep, Timer, WaitError, WaitingStats};
