//! A policy: numbers and an algorithm, checked and rounded once, trusted from then on.

mod accessors;
pub(crate) mod code;
pub(crate) mod concurrency;
mod display;
mod kind;
mod options;
mod parts;
mod reserve;
mod share;
mod warm_up;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::calendar_window::{CalendarWindow, Period};
use crate::algorithm::concurrency::ConcurrencyLimit;
use crate::algorithm::debt::PRODUCT_MAX;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leaky_bucket::leaky_bucket;
use crate::algorithm::leaky_queue::LeakyQueue;
use crate::algorithm::leased::LeasedConcurrency;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_strict::SlidingStrict;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::token_bucket;
use crate::algorithm::{Algorithm, STATE_WORDS_MAX};
use crate::fnv::fnv1a_spread;
use crate::units::{IntoRate, Rate};

use crate::algorithm::policy_error::PolicyError;
pub(crate) use kind::Kind;
pub use parts::PolicyParts;

/// How many tokens, in what time, counted how.
///
/// ```
/// use tollbar::{Policy, Rate};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let api = Policy::token_bucket("10/s")?.with_burst(50)?;
/// let login = Policy::sliding_window_strict(Rate::per_minute(5), 10)?;
/// assert_eq!((api.limit(), api.capacity()), (10, 50));
/// # Ok(())
/// # }
/// ```
///
/// The same policy serves any number of keys. What identifies a counter is the key together with
/// the policy's name, algorithm and window: a changed limit or burst keeps its counters, a changed
/// algorithm or window starts fresh. So two policies of one algorithm and one window that meet on
/// the same key in the same store count together, unless they have [names](Self::with_name):
///
/// ```
/// # use tollbar::{MemoryStore, Policy, Store};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let reads = Policy::token_bucket("100/s")?.with_name("reads");
/// let writes = Policy::token_bucket("10/s")?.with_name("writes");
/// # let store = MemoryStore::builder().max_keys(10).build();
/// # store.check(b"key", &reads, 50).wait().unwrap();
/// # assert_eq!(store.check(b"key", &writes, 0).wait().unwrap().remaining(), Some(10));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Policy {
    pub(crate) kind: Kind,
    /// What the name, the algorithm and the window add to a key's hash.
    pub(crate) salt: u64,
    rate: Option<Rate>,
    name: Option<Arc<str>>,
}

impl Policy {
    /// A bucket of tokens that fills at `rate` and holds, by default, one window's worth.
    pub fn token_bucket(rate: impl IntoRate) -> Result<Self, PolicyError> {
        let rate = valid(rate)?;
        Ok(Self::from_rate(Kind::Bucket(token_bucket(rate, None)?), rate))
    }

    /// A bucket that leaks at `rate` and denies what would overflow it.
    pub fn leaky_bucket(rate: impl IntoRate) -> Result<Self, PolicyError> {
        let rate = valid(rate)?;
        Ok(Self::from_rate(Kind::Bucket(leaky_bucket(rate, None)?), rate))
    }

    /// A queue that requests leave one at a time at `rate`, and in which up to `length` wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar::{Limiter, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::leaky_queue("1/min", 2)?);
    /// assert_eq!(limiter.check("user:42").delay(), Duration::ZERO);
    /// assert!(limiter.check("user:42").delay() > Duration::from_secs(59));
    /// assert!(limiter.check("user:42").delay() > Duration::from_secs(119));
    /// assert!(!limiter.check("user:42").is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An allowed request has its place and is told the [delay](crate::Decision::delay) until its
    /// turn, exactly, rounded up to a microsecond. A cost of several tokens takes as many places;
    /// its turn is that of the first of them. One that finds the queue full is denied with the
    /// exact retry-after. Waiting is up to the caller; the feature `until-ready` has
    /// `Limiter::wait` for it.
    pub fn leaky_queue(rate: impl IntoRate, length: u64) -> Result<Self, PolicyError> {
        let rate = valid(rate)?;
        Ok(Self::from_rate(Kind::LeakyQueue(LeakyQueue::new(rate, length)?), rate))
    }

    /// So many in each window of the clock; up to twice as many across a boundary.
    pub fn fixed_window(rate: impl IntoRate) -> Result<Self, PolicyError> {
        let rate = valid(rate)?;
        Ok(Self::from_rate(Kind::FixedWindow(FixedWindow::new(rate)?), rate))
    }

    /// So many in each day, week or month of the calendar in UTC; up to twice as many across a
    /// boundary. [`with_utc_offset`](Self::with_utc_offset) has it begin at another midnight.
    ///
    /// ```
    /// use tollbar::{Period, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let monthly = Policy::calendar_window(10_000, Period::Month)?;
    /// let daily_in_delhi = Policy::calendar_window(500, Period::Day)?.with_utc_offset(5 * 60 + 30)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The [window](Self::window) of a month is reported as 30 days; what is counted is the month.
    pub fn calendar_window(limit: u64, period: Period) -> Result<Self, PolicyError> {
        let rate = valid(Rate::new(limit, Duration::from_micros(period.nominal_us())))?;
        Ok(Self::from_rate(Kind::CalendarWindow(CalendarWindow::new(limit, period)), rate))
    }

    /// This window's count plus a share of the last one's stays within the limit.
    pub fn sliding_window(rate: impl IntoRate) -> Result<Self, PolicyError> {
        let rate = valid(rate)?;
        Ok(Self::from_rate(Kind::SlidingWindow(SlidingWindow::new(rate)?), rate))
    }

    /// Never more than the limit in any window, counted in `subwindows` parts (1 to 62).
    ///
    /// A client that always asks gets `subwindows / (subwindows + 1)` of the limit, less a thousandth
    /// where the window is not a multiple of the parts; a counter costs `subwindows + 2` words.
    ///
    /// A part is a whole number of microseconds. A window that is shorter than 61 ms and cannot be
    /// cut so, to a thousandth, is refused with the nearest numbers that can:
    ///
    /// ```
    /// use tollbar::Policy;
    /// assert!(Policy::sliding_window_strict("100/20us", 10).is_ok());
    /// let refused = Policy::sliding_window_strict("100/15us", 10).unwrap_err();
    /// assert_eq!(
    ///     refused.to_string(),
    ///     "a window of 15 us cannot be cut into 10 sub-windows of whole microseconds: write 5 of \
    ///      them, or a window of 20 us"
    /// );
    /// ```
    pub fn sliding_window_strict(
        rate: impl IntoRate,
        subwindows: u32,
    ) -> Result<Self, PolicyError> {
        let rate = valid(rate)?;
        Ok(Self::from_rate(Kind::SlidingStrict(SlidingStrict::new(rate, subwindows)?), rate))
    }

    /// Never more than the limit in any window, and all of it for a client that always asks: the
    /// instant of every request is kept. Limits up to
    /// [`LOG_LIMIT_MAX`](crate::algorithm::sliding_log::LOG_LIMIT_MAX).
    ///
    /// ```
    /// use tollbar::{Limiter, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::sliding_window_log("5/15min")?);
    /// # assert_eq!(limiter.check("user:42").remaining(), Some(4));
    /// assert!(Policy::sliding_window_log("1000000/h").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A counter costs a word for each instant at which it was charged within the window; see
    /// [`MemoryStoreBuilder::max_log_stamps`](crate::MemoryStoreBuilder::max_log_stamps).
    pub fn sliding_window_log(rate: impl IntoRate) -> Result<Self, PolicyError> {
        let rate = valid(rate)?;
        Ok(Self::from_rate(Kind::SlidingLog(SlidingLog::new(rate)?), rate))
    }

    /// At most `limit` permits in flight at any instant: the policy of a
    /// [`Concurrency`](crate::Concurrency). There is no window: [`window`](Self::window) is zero.
    pub(crate) fn concurrency(limit: u64) -> Result<Self, PolicyError> {
        Ok(Self::from_kind(Kind::Concurrency(ConcurrencyLimit::new(limit)?), None))
    }

    /// Gives permits a lease: see [`Concurrency::with_lease`](crate::Concurrency::with_lease).
    pub(crate) fn leased(self, ttl: Duration) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().leased(ttl)?.with_warm_up(warm_up);
        }
        match &self.kind {
            Kind::Concurrency(permits) => {
                let kind = Kind::Leased(LeasedConcurrency::new(permits, ttl)?);
                let salt = salt(kind.as_dyn(), self.name.as_deref());
                Ok(Self { kind, salt, ..self })
            }
            kind => Err(PolicyError::LeaseWithoutPermits { algorithm: kind.as_dyn().name() }),
        }
    }

    /// An algorithm of your own. See [`Algorithm`].
    pub fn custom(algorithm: impl Algorithm) -> Result<Self, PolicyError> {
        let algorithm: Arc<dyn Algorithm> = Arc::new(algorithm);
        let words = algorithm.words();
        if !(1..=STATE_WORDS_MAX).contains(&words) {
            return Err(PolicyError::StateWords { words });
        }
        Ok(Self::from_kind(Kind::Custom(algorithm), None))
    }

    fn from_rate(kind: Kind, rate: Rate) -> Self {
        Self::from_kind(kind, Some(rate))
    }

    fn from_kind(kind: Kind, rate: Option<Rate>) -> Self {
        let salt = salt(kind.as_dyn(), None);
        Self { kind, salt, rate, name: None }
    }
}

/// The longest window: ten years of 366 days.
const WINDOW_US_MAX: u64 = 10 * 366 * 86_400 * 1_000_000;

/// A billion a second is a thousand a microsecond.
const TOKENS_PER_US_MAX: u128 = 1_000;

fn valid(rate: impl IntoRate) -> Result<Rate, PolicyError> {
    let rate = rate.into_rate()?;
    if rate.tokens == 0 {
        return Err(PolicyError::ZeroLimit);
    }
    if rate.window_us == 0 {
        return Err(PolicyError::ZeroWindow);
    }
    if rate.window_us > WINDOW_US_MAX {
        return Err(PolicyError::WindowTooLong { window_us: rate.window_us });
    }
    if rate.tokens >= PRODUCT_MAX {
        return Err(PolicyError::LimitTooLarge { limit: rate.tokens });
    }
    let tokens_max =
        u128::from(rate.window_us) * u128::from(rate.tokens_divisor) * TOKENS_PER_US_MAX;
    if u128::from(rate.tokens) > tokens_max {
        return Err(PolicyError::RateTooFast);
    }
    Ok(rate)
}

impl Rate {
    /// True where a window has whole tokens: `5/2s`, but not `2.5/s`.
    pub(crate) fn is_whole(self) -> bool {
        self.tokens.is_multiple_of(self.tokens_divisor)
    }

    /// For windows, which count whole tokens.
    pub(crate) fn whole_limit(self) -> Result<u64, PolicyError> {
        if self.is_whole() {
            Ok(self.tokens / self.tokens_divisor)
        } else {
            Err(PolicyError::FractionalLimit)
        }
    }
}

/// A hash of the identity. It only has to tell policies apart, and to lay two policies of one key
/// in different lines: the key's hash is what is keyed.
fn salt(algorithm: &dyn Algorithm, name: Option<&str>) -> u64 {
    let numbers = [algorithm.window_us(), algorithm.variant()];
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    let bytes = algorithm.name().bytes().chain([0]).chain(bytes);
    fnv1a_spread(bytes.chain(name.unwrap_or_default().bytes()))
}
