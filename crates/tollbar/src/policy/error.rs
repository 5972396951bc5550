//! What is wrong with a policy, and what to write instead.

use thiserror::Error;

use crate::algorithm::STATE_WORDS_MAX;
use crate::algorithm::calendar_window::UTC_OFFSET_MINUTES_MAX;
use crate::algorithm::sliding_strict::SUBWINDOWS_MAX;
use crate::units::RateError;

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
    #[error("a window of {window_us} microseconds is too long: write at most ten years")]
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
    /// A custom algorithm's state.
    #[error("an algorithm cannot have {words} words of state: 1 to {STATE_WORDS_MAX} are possible")]
    StateWords {
        /// The number asked for.
        words: usize,
    },
}
