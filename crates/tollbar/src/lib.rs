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
//! A [`Policy`] is numbers and an algorithm, checked and rounded once. A [`Limiter`] decides whether a
//! key may pay its cost, by counters in this process, in memory that is bounded when it is made. Its
//! answer is a [`Decision`]: allowed or not, what remains, when to come back.
//!
//! | verb | what it does |
//! |---|---|
//! | [`check`](Limiter::check) | charges, and answers at once |
//! | `wait` (feature `until-ready`) | waits for its turn, first in, first out for each key |
//! | [`reserve`](Limiter::reserve) | charges now, and settles when it is known what it cost |
//! | [`admit`](Limiter::admit) | charges one request under several limits: all of them, or none |
//! | [`try_acquire`](ConcurrencyLimiter::try_acquire) | takes a permit, which comes back when it is dropped |
//!
//! [`AsyncLimiter`] and [`AsyncConcurrencyLimiter`] have the same verbs over any [`Store`], such as one in
//! Redis. No method blocks.
//!
//! # What is promised
//!
//! | algorithm | at most, in any interval of length T | one that always asks gets at least |
//! |---|---|---|
//! | [token bucket](Policy::token_bucket), [leaky bucket](Policy::leaky_bucket) | burst + rate x T | rate x T - 1 |
//! | [leaky queue](Policy::leaky_queue) | one per 1/rate on the way out, and a bounded number waits | rate x T - 1 |
//! | [fixed window](Policy::fixed_window) | limit in any aligned window (twice that across a boundary) | limit per window |
//! | [staggered window](Policy::with_stagger) | the same, each key in windows of its own | limit per window |
//! | [calendar window](Policy::calendar_window) | limit in any day, week or month (twice that across a boundary) | limit per day, week or month |
//! | [sliding window](Policy::sliding_window) | estimate + cost within the limit; below twice the limit in any window | |
//! | [strict sliding window](Policy::sliding_window_strict) | limit in any window | n / (n + 1) of limit |
//! | [sliding window log](Policy::sliding_window_log) | limit in any window | limit in any window |
//! | [concurrency](Concurrency), [leased](Concurrency::with_lease) or not | limit in flight at any instant | |
//! | any of them, [warming up](Policy::with_warm_up) | no more than without; while a key is new, the same at its first limit | the same at the limit of its step |
//!
//! Time is whole microseconds. A bucket that becomes full between two of them earns nothing until
//! the next, so where the time per token is not whole, "rate x T - 1" needs a burst of more than a
//! microsecond's worth. The n parts of a strict window are whole microseconds too: where they exceed
//! the window, which they may by a thousandth of it, "n / (n + 1)" is less by as much.
//!
//! Permits in flight come back when their holder is done, so a denial has no retry-after for them
//! ([`DenyReason::Busy`]). Every other retry-after is exact: alone, the same request is denied one
//! microsecond before it and allowed at it. A denied request charges nothing, and a request under several
//! limits ([`Limiter::admit`]) charges all of them or none. Where no wait can be promised, as for a key
//! that would no longer be [warm](Policy::with_warm_up) after it, the reason is `Busy` as well.
//!
//! # What is defined at the edges
//!
//! Keys are any bytes of any length, the empty key included. Cost 0 peeks: it is allowed, charges
//! nothing and says what remains. A cost above the policy's [capacity](Policy::capacity) is
//! [`DenyReason::ExceedsCapacity`], which no retry will change. A clock that goes back mints nothing: counters
//! wait until it has caught up. A clock past [`Timestamp::MAX`] reads as `MAX` and so stands
//! still: what was charged stays charged.
//!
//! # The modules
//!
//! | module | what it has |
//! |---|---|
//! | `units`, `key` | points in time, durations, rates and their grammar; keys as bytes |
//! | [`algorithm`] | pure functions from a state, an instant and a cost to a decision and the next state |
//! | `policy` | an algorithm and its numbers, checked and rounded once |
//! | `decision` | one policy's answer, and a denial as an error |
//! | `clock` | the only reader of the machine's clock, and a clock for tests |
//! | [`store`] | what a limiter asks of any store: batches, replies, reservations, features |
//! | `memory` | counters in this process |
//! | [`counter`] | counters in any database that can compare and swap |
//! | `remote` (feature `remote`) | what every store across a network needs beside its protocol |
//! | [`charge`], [`receipt`] | charges that outlive a call; the signed text that a reservation is settled by |
//! | `limiter` | the limiters, their policies by key, permits, leases, outages and waiting |
//! | `fnv` | a hash for what must be the same everywhere and holds no secret |

#![cfg_attr(
    test,
    allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")
)]

pub mod algorithm;
pub mod charge;
mod clock;
pub mod counter;
mod decision;
mod fnv;
mod key;
mod limiter;
mod memory;
mod policy;
pub mod receipt;
#[cfg(feature = "remote")]
pub mod remote;
pub mod store;
mod units;

pub use algorithm::Algorithm;
pub use algorithm::calendar_window::Period;
pub use algorithm::debt::Interval;
pub use algorithm::policy_error::PolicyError;
pub use algorithm::warm_up::WarmUp;
pub use charge::{ChargeSettlement, SettleError, Settlement};
pub use clock::{Clock, ManualClock, SystemClock};
pub use counter::{CounterBackend, CounterStore};
pub use decision::denied::{Denied, DenyReason};
pub use decision::{Decision, Degraded, Outcome};
pub use key::Key;
pub use limiter::admit::{AdmitError, Charges, Grant};
pub use limiter::async_concurrency_limiter::{
    AcquireError, AsyncConcurrencyLimiter, AsyncConcurrencyLimiterBuilder,
};
pub use limiter::async_limiter::{AsyncLimiter, AsyncLimiterBuilder};
pub use limiter::concurrency_limiter::{ConcurrencyLimiter, ConcurrencyLimiterBuilder, LeaseError};
pub use limiter::decisions::Decisions;
pub use limiter::lease::Lease;
pub use limiter::outage::OutagePolicy;
pub use limiter::permit::Permit;
pub use limiter::policies::{Policies, PolicyMap};
pub use limiter::reserve::{Reservation, ReserveError};
#[cfg(feature = "until-ready")]
pub use limiter::waiting::{ManualTimer, Sleep, Timer, WaitError, WaitingStats};
pub use limiter::{BuildError, Limiter, LimiterBuilder};
pub use memory::{MemoryStats, MemoryStore, MemoryStoreBuilder, SnapshotError, SnapshotSummary};
pub use policy::concurrency::Concurrency;
pub use policy::{Policy, PolicyParts};
pub use receipt::{RECEIPT_BYTES_MAX, Receipt, ReceiptError, ReceiptKey};
pub use store::{
    Accuracy, Batch, Charge, Entry, Feature, Loan, LoanError, LoanHolding, LoanMode, LoanRequest,
    LoanTerms, Reply, Role, Source, Store, StoreError,
};
pub use units::{
    DurationError, IntoRate, Rate, RateError, Timestamp, parse_duration, readable_duration,
};
