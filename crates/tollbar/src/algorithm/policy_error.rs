//! What is wrong with a policy, and what to write instead.

use std::time::Duration;

use thiserror::Error;

use crate::algorithm::STATE_WORDS_MAX;
use crate::algorithm::calendar_window::UTC_OFFSET_MINUTES_MAX;
use crate::algorithm::concurrency::LIMIT_MAX;
use crate::algorithm::leased::LEASE_LIMIT_MAX;
use crate::algorithm::sliding_log::LOG_LIMIT_MAX;
use crate::algorithm::sliding_strict::SUBWINDOWS_MAX;
use crate::algorithm::warm_up;
use crate::units::{RateError, readable_duration};

/// Why numbers do not make a policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The rate is a text that cannot be read.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// A limit of 0 would deny everything.
    #[error("the limit is 0: write at least 1, or deny the request without asking a limiter")]
    ZeroLimit,
    /// A window of 0 has no rate.
    #[error("the window is 0: write a window of at least 1 microsecond, such as `10/s`")]
    ZeroWindow,
    /// A window of more than ten years.
    #[error("a window of {} is too long: write at most ten years", readable_duration(Duration::from_micros(*.window_us)))]
    WindowTooLong {
        /// The window asked for.
        window_us: u64,
    },
    /// More than the arithmetic can hold exactly.
    #[error(
        "a limit of {limit} cannot be counted exactly in this window: write a smaller limit, or a \
         shorter window with a smaller limit"
    )]
    LimitTooLarge {
        /// The limit asked for.
        limit: u64,
    },
    /// More permits than are counted.
    #[error("{limit} permits in flight are too many: write at most {LIMIT_MAX}")]
    TooManyPermits {
        /// The limit asked for.
        limit: u64,
    },
    /// More leases than are looked through.
    #[error("{limit} leases in flight are too many: write at most {LEASE_LIMIT_MAX}")]
    TooManyLeases {
        /// The limit asked for.
        limit: u64,
    },
    /// A lease of no time, or of too much.
    #[error("a lease cannot last {}: write one microsecond to ten years", readable_duration(*.ttl))]
    LeaseTime {
        /// The time asked for.
        ttl: Duration,
    },
    /// Only permits are leased.
    #[error("`{algorithm}` has nothing to lease: leave it out, or use concurrency")]
    LeaseWithoutPermits {
        /// The algorithm that was to be leased.
        algorithm: &'static str,
    },
    /// More than a billion a second.
    #[error("the rate is above 1,000,000,000 a second: write a lower one")]
    RateTooFast,
    /// Windows count whole tokens.
    #[error(
        "a window counts whole tokens: write `1/2s` instead of `0.5/s`, or use a bucket, which \
         takes fractions"
    )]
    FractionalLimit,
    /// A bucket that holds nothing denies everything.
    #[error("the burst is 0: write at least 1")]
    ZeroBurst,
    /// The bucket is too large for its rate.
    #[error(
        "a burst of {burst} is too large at this rate: it would take decades to fill, or could \
         not be counted exactly; write a smaller burst"
    )]
    BurstTooLarge {
        /// The burst asked for.
        burst: u64,
    },
    /// The overdraft is too large for the bucket's rate.
    #[error(
        "an overdraft of {overdraft} is too large at this rate: it would take decades to pay, or \
         could not be counted exactly; write a smaller overdraft"
    )]
    OverdraftTooLarge {
        /// The overdraft asked for.
        overdraft: u64,
    },
    /// Only buckets have an overdraft.
    #[error(
        "`{algorithm}` has no overdraft: leave it out; what is committed above a reservation \
         counts until its window ends"
    )]
    OverdraftWithoutBucket {
        /// The algorithm that was given an overdraft.
        algorithm: &'static str,
    },
    /// The queue is too long for its rate.
    #[error(
        "a queue of {length} is too long at this rate: the last would wait for decades, or could \
         not be counted exactly; write a shorter queue"
    )]
    QueueTooLong {
        /// The length asked for.
        length: u64,
    },
    /// Only a queue has anybody waiting.
    #[error("nobody waits in `{algorithm}`: leave the longest wait out, or use a leaky queue")]
    MaxWaitWithoutQueue {
        /// The algorithm that was given a longest wait.
        algorithm: &'static str,
    },
    /// Only buckets have a burst.
    #[error("`{algorithm}` has no burst: leave it out, or use a token bucket")]
    BurstWithoutBucket {
        /// The algorithm that was given a burst.
        algorithm: &'static str,
    },
    /// Only a fixed window can begin anywhere.
    #[error("`{algorithm}` cannot be staggered: leave it out, or use a fixed window")]
    StaggerWithoutFixedWindow {
        /// The algorithm that was to be staggered.
        algorithm: &'static str,
    },
    /// An offset from UTC that is on no clock.
    #[error(
        "an offset of {minutes} minutes from UTC is too far: write minutes from \
         -{UTC_OFFSET_MINUTES_MAX} to {UTC_OFFSET_MINUTES_MAX}, such as 330 for +05:30"
    )]
    UtcOffset {
        /// The offset asked for.
        minutes: i32,
    },
    /// Only a calendar has a midnight.
    #[error("`{algorithm}` knows no calendar: leave the offset out, or use a calendar window")]
    OffsetWithoutCalendar {
        /// The algorithm that was given an offset.
        algorithm: &'static str,
    },
    /// The number of sub-windows of a strict window.
    #[error("a strict window cannot have {subwindows} sub-windows: write 1 to {SUBWINDOWS_MAX}")]
    Subwindows {
        /// The number asked for.
        subwindows: u32,
    },
    /// A strict window that its sub-windows exceed by more than a thousandth.
    #[error(
        "a window of {window_us} us cannot be cut into {subwindows} sub-windows of whole \
         microseconds: write {fewer} of them, or a window of {longer_us} us"
    )]
    UnevenSubwindows {
        /// The window asked for.
        window_us: u64,
        /// The number asked for.
        subwindows: u32,
        /// The largest number below it that is possible with this window.
        fewer: u32,
        /// The next longer window that is a multiple of this number.
        longer_us: u64,
    },
    /// More than a sliding window log keeps.
    #[error(
        "a sliding window log keeps every instant, so a limit of {limit} is too large for it: write \
         at most {LOG_LIMIT_MAX}, or use `sliding_window_strict` or `sliding_window`"
    )]
    LogLimit {
        /// The limit asked for.
        limit: u64,
    },
    /// Not every algorithm has a limit that can climb.
    #[error("`{algorithm}` cannot warm up: leave it out, or use an algorithm of this crate")]
    WarmUpWithoutLimit {
        /// The algorithm that was to warm up.
        algorithm: &'static str,
    },
    /// Where a warm-up starts.
    #[error(
        "a warm-up cannot start at {start} where the limit is {limit}: write at least 1, and less \
         than the limit"
    )]
    WarmUpStart {
        /// The limit asked for at first.
        start: u64,
        /// The full limit.
        limit: u64,
    },
    /// How long a warm-up takes.
    #[error(
        "a warm-up cannot take {}: write at least one microsecond, and at most ten years",
        readable_duration(Duration::from_micros(*.over_us))
    )]
    WarmUpDuration {
        /// The duration asked for.
        over_us: u64,
    },
    /// The number of steps of a warm-up.
    #[error("a warm-up cannot have {steps} steps: write 1 to {}", warm_up::STEPS_MAX)]
    WarmUpSteps {
        /// The number asked for.
        steps: u32,
    },
    /// A strict window that warms up has less room for its counts.
    #[error(
        "a strict window that warms up cannot have {subwindows} sub-windows: write 1 to {}",
        warm_up::SUBWINDOWS_MAX
    )]
    WarmUpSubwindows {
        /// The number the window has.
        subwindows: u32,
    },
    /// The steps of a bucket's warm-up have no common measure that is fine enough.
    #[error(
        "the steps of a warm-up from {start} cannot be counted exactly with this rate and burst: \
         write a smaller burst, fewer steps, or a start that divides the limit"
    )]
    WarmUpInexact {
        /// The limit asked for at first.
        start: u64,
    },
    /// A limit that warms up reserves nothing: at each step of its climb the reserve would be another.
    #[error(
        "a limit with a warm-up cannot be reserved in part: leave the reserve out, or the warm-up"
    )]
    ReserveWithWarmUp,
    /// An algorithm of one's own reserves nothing.
    #[error(
        "an algorithm of your own cannot be reserved in part: leave the reserve out, or use one of \
         this crate"
    )]
    ReserveOfCustom,
    /// A reserve that leaves nothing.
    #[error(
        "a reserve of {reserved} leaves nothing of {capacity} to other requests: write at most {}",
        .capacity.saturating_sub(1)
    )]
    ReserveTooLarge {
        /// The tokens that were to be reserved.
        reserved: u64,
        /// The largest cost that can pass.
        capacity: u64,
    },
    /// A custom algorithm's state.
    #[error("an algorithm cannot have {words} words of state: 1 to {STATE_WORDS_MAX} are possible")]
    StateWords {
        /// The number asked for.
        words: usize,
    },
}
