//! A policy: numbers and an algorithm, checked and rounded once, trusted from then on.

pub(crate) mod code;
mod error;
mod kind;
mod warm_up;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::calendar_window::{CalendarWindow, Period};
use crate::algorithm::debt::{Interval, Meter, PRODUCT_MAX};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leaky_bucket::leaky_bucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_strict::SlidingStrict;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::staggered_window::stagger_us;
use crate::algorithm::token_bucket::token_bucket;
use crate::algorithm::{Algorithm, STATE_WORDS_MAX};
use crate::fnv::fnv1a_spread;
use crate::units::{Rate, RateError};

pub use error::PolicyError;
pub(crate) use kind::Kind;

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
/// the same key in the same store count together, unless they have [names](Self::named):
///
/// ```
/// # use tollbar::{MemoryStore, Policy, Store};
/// # fn main() -> Result<(), tollbar::PolicyError> {
/// let reads = Policy::token_bucket("100/s")?.named("reads");
/// let writes = Policy::token_bucket("10/s")?.named("writes");
/// # let store = MemoryStore::builder().max_keys(10).build();
/// # store.check(b"key", &reads, 50).wait().unwrap();
/// # assert_eq!(store.check(b"key", &writes, 0).wait().unwrap().remaining(), 10);
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
    pub fn token_bucket<R>(rate: R) -> Result<Self, PolicyError>
    where
        R: TryInto<Rate>,
        RateError: From<R::Error>,
    {
        let rate = valid(rate)?;
        Ok(Self::of_rate(Kind::Bucket(token_bucket(rate, None)?), rate))
    }

    /// A bucket that leaks at `rate` and denies what would overflow it.
    pub fn leaky_bucket<R>(rate: R) -> Result<Self, PolicyError>
    where
        R: TryInto<Rate>,
        RateError: From<R::Error>,
    {
        let rate = valid(rate)?;
        Ok(Self::of_rate(Kind::Bucket(leaky_bucket(rate, None)?), rate))
    }

    /// So many in each window of the clock; up to twice as many across a boundary.
    pub fn fixed_window<R>(rate: R) -> Result<Self, PolicyError>
    where
        R: TryInto<Rate>,
        RateError: From<R::Error>,
    {
        let rate = valid(rate)?;
        Ok(Self::of_rate(Kind::FixedWindow(FixedWindow::new(rate)?), rate))
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
        Ok(Self::of_rate(Kind::CalendarWindow(CalendarWindow::new(limit, period)), rate))
    }

    /// This window's count plus a share of the last one's stays within the limit.
    pub fn sliding_window<R>(rate: R) -> Result<Self, PolicyError>
    where
        R: TryInto<Rate>,
        RateError: From<R::Error>,
    {
        let rate = valid(rate)?;
        Ok(Self::of_rate(Kind::SlidingWindow(SlidingWindow::new(rate)?), rate))
    }

    /// Never more than the limit in any window, counted in `subwindows` parts (1 to 62).
    ///
    /// A client that always asks gets `subwindows / (subwindows + 1)` of the limit; a counter costs
    /// `subwindows + 2` words.
    pub fn sliding_window_strict<R>(rate: R, subwindows: u32) -> Result<Self, PolicyError>
    where
        R: TryInto<Rate>,
        RateError: From<R::Error>,
    {
        let rate = valid(rate)?;
        Ok(Self::of_rate(Kind::SlidingStrict(SlidingStrict::new(rate, subwindows)?), rate))
    }

    /// Never more than the limit in any window, and all of it for a client that always asks: the
    /// instant of every request is kept. Limits up to
    /// [`LOG_LIMIT_MAX`](crate::algorithm::sliding_log::LOG_LIMIT_MAX).
    ///
    /// ```
    /// use tollbar::{Limiter, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::sliding_window_log("5/15min")?);
    /// # assert_eq!(limiter.check("user:42").remaining(), 4);
    /// assert!(Policy::sliding_window_log("1000000/h").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A counter costs a word for each instant at which it was charged within the window; see
    /// [`MemoryStoreBuilder::max_log_stamps`](crate::MemoryStoreBuilder::max_log_stamps).
    pub fn sliding_window_log<R>(rate: R) -> Result<Self, PolicyError>
    where
        R: TryInto<Rate>,
        RateError: From<R::Error>,
    {
        let rate = valid(rate)?;
        Ok(Self::of_rate(Kind::SlidingLog(SlidingLog::new(rate)?), rate))
    }

    /// An algorithm of your own. See [`Algorithm`].
    pub fn custom(algorithm: Arc<dyn Algorithm>) -> Result<Self, PolicyError> {
        let words = algorithm.words();
        if !(1..=STATE_WORDS_MAX).contains(&words) {
            return Err(PolicyError::StateWords { words });
        }
        Ok(Self::of(Kind::Custom(algorithm), None))
    }

    /// The same bucket holding `burst` tokens instead of one window's worth.
    pub fn with_burst(self, burst: u64) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().with_burst(burst)?.with_warm_up(warm_up);
        }
        match (&self.kind, self.rate) {
            (Kind::Bucket(meter), Some(rate)) => {
                let overdraft = meter.overdraft();
                let meter = Meter::with_overdraft(meter.name(), rate, Some(burst), overdraft)?;
                Ok(Self { kind: Kind::Bucket(meter), ..self })
            }
            (kind, _) => Err(PolicyError::BurstWithoutBucket { algorithm: kind.as_dyn().name() }),
        }
    }

    /// The same bucket going up to `tokens` into debt where a reservation is
    /// [committed](crate::Limiter::commit) with more than it reserved. 0 by default: then such a
    /// commit takes what is there, and says what it could not take.
    ///
    /// A bucket in debt allows nothing until it has paid. It is also what a debt is cut to when the
    /// rule changes or the clock goes back: a full debt and the overdraft.
    pub fn with_overdraft(self, tokens: u64) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().with_overdraft(tokens)?.with_warm_up(warm_up);
        }
        match (&self.kind, self.rate) {
            (Kind::Bucket(meter), Some(rate)) => {
                let burst = Some(meter.capacity());
                let meter = Meter::with_overdraft(meter.name(), rate, burst, tokens)?;
                Ok(Self { kind: Kind::Bucket(meter), ..self })
            }
            (kind, _) => {
                Err(PolicyError::OverdraftWithoutBucket { algorithm: kind.as_dyn().name() })
            }
        }
    }

    /// The same fixed window beginning at another moment for every key, so that not all who were
    /// denied come back at once. It has counters of its own, apart from the plain window's.
    ///
    /// ```
    /// use tollbar::{Limiter, Policy};
    /// # fn main() -> Result<(), tollbar::PolicyError> {
    /// let limiter = Limiter::new(Policy::fixed_window("100/h")?.staggered()?);
    /// assert_ne!(limiter.check("user:42").reset_at(), limiter.check("user:43").reset_at());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// When a key's windows begin follows from its bytes: [`stagger_us`](Self::stagger_us).
    pub fn staggered(self) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().staggered()?.with_warm_up(warm_up);
        }
        match &self.kind {
            Kind::FixedWindow(window) => {
                let kind = Kind::StaggeredWindow(window.staggered());
                let salt = salt(kind.as_dyn(), self.name.as_deref());
                Ok(Self { kind, salt, ..self })
            }
            Kind::StaggeredWindow(_) => Ok(self),
            kind => Err(PolicyError::StaggerWithoutFixedWindow { algorithm: kind.as_dyn().name() }),
        }
    }

    /// The same calendar at a fixed offset from UTC, in minutes, positive to the east: -1080 to
    /// 1080. Each offset has counters of its own.
    ///
    /// A time zone that has summer time has two of them; this stays with the one it is given.
    pub fn with_utc_offset(self, minutes: i32) -> Result<Self, PolicyError> {
        if let Some(warm_up) = self.warm_up() {
            return self.without_warm_up().with_utc_offset(minutes)?.with_warm_up(warm_up);
        }
        match self.kind {
            Kind::CalendarWindow(window) => {
                let kind = Kind::CalendarWindow(window.with_utc_offset(minutes)?);
                let salt = salt(kind.as_dyn(), self.name.as_deref());
                Ok(Self { kind, salt, ..self })
            }
            kind => Err(PolicyError::OffsetWithoutCalendar { algorithm: kind.as_dyn().name() }),
        }
    }

    /// The same policy under a name, with counters of its own.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let salt = salt(self.kind.as_dyn(), Some(name));
        Self { salt, name: Some(name.into()), ..self }
    }

    fn of_rate(kind: Kind, rate: Rate) -> Self {
        Self::of(kind, Some(rate))
    }

    fn of(kind: Kind, rate: Option<Rate>) -> Self {
        let salt = salt(kind.as_dyn(), None);
        Self { kind, salt, rate, name: None }
    }

    /// The name, where it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Tokens per window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.algorithm().limit()
    }

    /// The window.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.algorithm().window_us())
    }

    /// The largest cost that can ever pass: the burst of a bucket, the limit of a window.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.algorithm().capacity()
    }

    /// The algorithm, as a pure function. It knows no key, so of a [staggered](Self::staggered)
    /// window it is that of a key whose [`stagger_us`](Self::stagger_us) is 0. A
    /// [log](Self::sliding_window_log) asks for more words than
    /// [`STATE_WORDS_MAX`](crate::algorithm::STATE_WORDS_MAX): as many as its limit.
    #[must_use]
    pub fn algorithm(&self) -> &dyn Algorithm {
        self.kind.as_dyn()
    }

    /// True for an [algorithm of one's own](Self::custom), which only this process can count by.
    #[must_use]
    pub fn is_custom(&self) -> bool {
        matches!(self.kind, Kind::Custom(_))
    }

    /// For buckets, the time that earns one token, after rounding: never shorter than asked for,
    /// and longer by less than one part in a million.
    #[must_use]
    pub fn interval(&self) -> Option<Interval> {
        match &*self.kind.plain() {
            Kind::Bucket(meter) => Some(meter.interval()),
            _ => None,
        }
    }

    /// How many tokens more than it holds a bucket may owe.
    #[must_use]
    pub fn overdraft(&self) -> u64 {
        match &*self.kind.plain() {
            Kind::Bucket(meter) => meter.overdraft(),
            _ => 0,
        }
    }

    /// For staggered windows, how long after a multiple of the window those of `key` begin. Public
    /// arithmetic, the same in every store: see
    /// [`staggered_window::stagger_us`](crate::algorithm::staggered_window::stagger_us).
    #[must_use]
    pub fn stagger_us(&self, key: &[u8]) -> Option<u64> {
        match &*self.kind.plain() {
            Kind::StaggeredWindow(window) => Some(stagger_us(key, window.window_us())),
            _ => None,
        }
    }

    /// For calendar windows, what of the calendar they are.
    #[must_use]
    pub fn period(&self) -> Option<Period> {
        match &*self.kind.plain() {
            Kind::CalendarWindow(window) => Some(window.period()),
            _ => None,
        }
    }

    /// For calendar windows, how far their midnight is east of UTC.
    #[must_use]
    pub fn utc_offset_minutes(&self) -> Option<i32> {
        match &*self.kind.plain() {
            Kind::CalendarWindow(window) => Some(window.utc_offset_minutes()),
            _ => None,
        }
    }

    /// For sliding window counters, the unit in which time within a window is counted: 1 unless
    /// limit x window would reach 2<sup>53</sup>.
    #[must_use]
    pub fn sliding_granularity_us(&self) -> Option<u64> {
        match &*self.kind.plain() {
            Kind::SlidingWindow(window) => Some(window.tick_us()),
            _ => None,
        }
    }
}

/// The longest window: ten years of 366 days.
const WINDOW_US_MAX: u64 = 10 * 366 * 86_400 * 1_000_000;

/// A billion a second is a thousand a microsecond.
const TOKENS_PER_US_MAX: u128 = 1_000;

fn valid<R>(rate: R) -> Result<Rate, PolicyError>
where
    R: TryInto<Rate>,
    RateError: From<R::Error>,
{
    let rate: Rate = rate.try_into().map_err(RateError::from)?;
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
    /// For windows, which count whole tokens.
    pub(crate) fn whole_limit(self) -> Result<u64, PolicyError> {
        if self.tokens.is_multiple_of(self.tokens_divisor) {
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
