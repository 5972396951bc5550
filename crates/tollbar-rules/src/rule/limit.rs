//! Limits as they are written, and the policies they mean: `450/15min`, `10000 per calendar month`.
//!
//! The grammar of rates is the library's; the calendar and the choice of an algorithm are added
//! here. [`Limit::new`] is the one place where a name of an algorithm becomes a policy.

#[cfg(test)]
mod tests;

use std::time::Duration;

use thiserror::Error;
use tollbar::{Concurrency, Period, Policy, PolicyError, Rate, RateError, WarmUp};

use super::alternative::LimitPlace;
use crate::rule::cost::whole_digits;
use crate::{Criticality, Reserve, ReserveError};

/// Parts of a strict window unless a limit says otherwise: it then admits 10/11 of the limit.
const SUBWINDOWS_DEFAULT: u32 = 10;

/// How a limit counts, by the names that files use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlgorithmKind {
    /// [`Policy::sliding_window`].
    SlidingWindowCounter,
    /// [`Policy::sliding_window_strict`].
    SlidingWindowStrict,
    /// [`Policy::sliding_window_log`].
    SlidingWindowLog,
    /// [`Policy::token_bucket`].
    TokenBucket,
    /// [`Policy::leaky_bucket`].
    LeakyBucket,
    /// [`Policy::leaky_queue`].
    LeakyQueue,
    /// [`Policy::fixed_window`].
    FixedWindow,
    /// [`Policy::calendar_window`].
    CalendarWindow,
    /// [`tollbar::Concurrency`].
    Concurrency,
}

/// What may be said of a limit beside its rate. All of it may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LimitOptions {
    /// The algorithm. By default a token bucket where there is a burst, a leaky queue where there is
    /// a queue, a calendar window where there is a calendar, and a sliding window counter otherwise.
    pub counting: Option<AlgorithmKind>,
    /// What a bucket holds, instead of one window's worth.
    pub burst: Option<u64>,
    /// Whether a fixed window begins at another moment for every key.
    pub staggered: bool,
    /// How far the midnight of a calendar is east of UTC.
    pub utc_offset_minutes: Option<i32>,
    /// The parts of a strict window.
    pub subwindows: Option<u32>,
    /// How the limit of a new key climbs.
    pub warm_up: Option<WarmUp>,
    /// How many wait in a queue.
    pub queue: Option<u64>,
    /// How long they wait at most.
    pub max_wait: Option<Duration>,
    /// How long a permit is held at most, unless it is renewed.
    pub lease: Option<Duration>,
    /// What of it is reserved for more critical requests.
    pub reserve: Option<Reserve>,
}

/// A limit: a policy, and how it was written.
#[derive(Debug, Clone)]
pub struct Limit {
    text: Box<str>,
    options: LimitOptions,
    policy: Policy,
    /// Set for one of alternatives.
    pub(super) place: Option<Box<LimitPlace>>,
}

/// Why a text and its options are not a limit. Says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The numbers make no policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A number of the calendar that is none.
    #[error("`{number}` is not a whole number: write digits such as `10000` or `10_000`")]
    Number {
        /// The part that was not understood.
        number: String,
    },
    /// A part of the calendar that there is not.
    #[error(
        "a calendar has no `{period}` here: write `calendar day`, `calendar week` or `calendar \
         month`"
    )]
    Period {
        /// The part that was not understood.
        period: String,
    },
    /// A calendar counted by something else.
    #[error(
        "a calendar is counted by `calendar_window`: leave the algorithm out, or write `30 days` \
         instead"
    )]
    CalendarCounting,
    /// A plain window counted by the calendar.
    #[error("`{text}` is not of the calendar: write `1000 per calendar day`, week or month")]
    NoCalendar {
        /// The whole text.
        text: String,
    },
    /// Permits with a window.
    #[error("permits have no window: write the number that may be in flight, such as `20`")]
    NoPermits {
        /// The whole text.
        text: String,
    },
    /// A queue without its length.
    #[error("a queue has a length: write `queue: 100`, or as many as may wait")]
    NoQueue,
    /// The length of what is no queue.
    #[error("only `leaky_queue` has a queue: leave it out, or use that algorithm")]
    QueueWithoutQueue,
    /// A reserve that leaves too little.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// Parts of what has none.
    #[error("only `sliding_window_strict` has sub-windows: leave them out, or use that algorithm")]
    SubwindowsWithoutStrict,
}

impl AlgorithmKind {
    /// Every one with its name.
    pub(crate) const NAMED: [(&'static str, Self); 9] = [
        ("sliding_window_counter", Self::SlidingWindowCounter),
        ("sliding_window_strict", Self::SlidingWindowStrict),
        ("sliding_window_log", Self::SlidingWindowLog),
        ("token_bucket", Self::TokenBucket),
        ("leaky_bucket", Self::LeakyBucket),
        ("leaky_queue", Self::LeakyQueue),
        ("fixed_window", Self::FixedWindow),
        ("calendar_window", Self::CalendarWindow),
        ("concurrency", Self::Concurrency),
    ];

    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].0
    }

    /// The one of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

impl LimitOptions {
    /// Returns the options of a limit that is `written` so and has `own` ones, within a rule that has
    /// these: its own, and of the rule's those that fit it. A burst and a warm-up are inherited only by the
    /// rule's own limit, not by those of tiers and candidates.
    pub(crate) fn inherited_by(self, written: &str, own: Self, is_rules_own: bool) -> Self {
        let mut all = own;
        if is_rules_own {
            all.burst = own.burst.or(self.burst);
            all.warm_up = own.warm_up.or(self.warm_up);
        }
        all.reserve = own.reserve.or(self.reserve);
        // The calendar is counted in one way only, and a burst of its own makes a limit a bucket.
        let is_bucket =
            matches!(self.counting, Some(AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket));
        let has_its_own = calendar(written).is_some() || own.burst.is_some() && !is_bucket;
        if own.counting.is_none() && !has_its_own {
            let queue = self.queue.filter(|_| all.burst.is_none());
            all.counting = self.counting.or(queue.map(|_| AlgorithmKind::LeakyQueue));
        }
        match counting(written, all) {
            AlgorithmKind::FixedWindow => all.staggered |= self.staggered,
            AlgorithmKind::CalendarWindow => {
                all.utc_offset_minutes = own.utc_offset_minutes.or(self.utc_offset_minutes);
            }
            AlgorithmKind::SlidingWindowStrict => {
                all.subwindows = own.subwindows.or(self.subwindows);
            }
            AlgorithmKind::LeakyQueue => {
                all.queue = own.queue.or(self.queue);
                all.max_wait = own.max_wait.or(self.max_wait);
            }
            AlgorithmKind::Concurrency => all.lease = own.lease.or(self.lease),
            _ => {}
        }
        all
    }
}

impl Limit {
    /// The limit that `text` and `options` mean.
    ///
    /// ```
    /// use tollbar_rules::{Limit, LimitOptions};
    /// # fn main() -> Result<(), tollbar_rules::LimitError> {
    /// let quota = Limit::new("10_000 per calendar month", LimitOptions::default())?;
    /// assert_eq!(quota.policy().limit(), 10_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(text: &str, options: LimitOptions) -> Result<Self, LimitError> {
        let policy = build(text, options)?;
        if let Some(reserve) = options.reserve {
            reserve.check(policy.capacity())?;
            policy.reserving(reserve.held_back(policy.capacity(), Criticality::Low))?;
        }
        Ok(Self { text: text.into(), options, policy, place: None })
    }

    /// Returns a limit that was not written as a rule's: `policy`, and `text` to tell people of it.
    pub(crate) fn of_policy(text: &str, policy: Policy) -> Self {
        Self { text: text.into(), options: LimitOptions::default(), policy, place: None }
    }

    /// A limit of the default algorithm: `10/s`.
    pub fn parse(text: &str) -> Result<Self, LimitError> {
        Self::new(text, LimitOptions::default())
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What was said of it besides.
    #[must_use]
    pub fn options(&self) -> LimitOptions {
        self.options
    }

    /// The policy, without a name.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns what tells its counters from those of other limits of its rule: limits with the same kind share them.
    pub(crate) fn counter_kind(&self) -> (&str, u64, u64) {
        let algorithm = self.policy.algorithm();
        (algorithm.name(), algorithm.window_us(), algorithm.variant())
    }
}

/// Two limits are the same if they were written the same.
impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.options == other.options && self.place == other.place
    }
}

impl Eq for Limit {}

/// The algorithm a limit has, given or by default.
fn counting(text: &str, options: LimitOptions) -> AlgorithmKind {
    match options.counting {
        Some(counting) => counting,
        None if calendar(text).is_some() => AlgorithmKind::CalendarWindow,
        None if options.burst.is_some() => AlgorithmKind::TokenBucket,
        None if options.queue.is_some() => AlgorithmKind::LeakyQueue,
        None => AlgorithmKind::SlidingWindowCounter,
    }
}

/// The one match from a name to a policy: a new algorithm is a variant above and an arm here.
fn build(text: &str, options: LimitOptions) -> Result<Policy, LimitError> {
    let rate = || text.parse::<Rate>().map_err(PolicyError::from);
    let counting = counting(text, options);
    let policy = match (counting, calendar(text)) {
        (AlgorithmKind::CalendarWindow, Some((number, period))) => {
            Policy::calendar_window(whole(number)?, parse_period(period)?)?
        }
        (AlgorithmKind::CalendarWindow, None) => {
            return Err(LimitError::NoCalendar { text: crate::message::shorten(text) });
        }
        (_, Some(_)) => return Err(LimitError::CalendarCounting),
        // Permits have no window: what is in flight is a number.
        (AlgorithmKind::Concurrency, None) => match whole(text) {
            Ok(limit) => permits(limit, options.lease)?,
            Err(_) => {
                return Err(LimitError::NoPermits { text: crate::message::shorten(text) });
            }
        },
        (AlgorithmKind::SlidingWindowCounter, None) => Policy::sliding_window(rate()?)?,
        (AlgorithmKind::SlidingWindowStrict, None) => {
            let subwindows = options.subwindows.unwrap_or(SUBWINDOWS_DEFAULT);
            Policy::sliding_window_strict(rate()?, subwindows)?
        }
        (AlgorithmKind::SlidingWindowLog, None) => Policy::sliding_window_log(rate()?)?,
        (AlgorithmKind::TokenBucket, None) => Policy::token_bucket(rate()?)?,
        (AlgorithmKind::LeakyBucket, None) => Policy::leaky_bucket(rate()?)?,
        (AlgorithmKind::LeakyQueue, None) => {
            let length = options.queue.ok_or(LimitError::NoQueue)?;
            Policy::leaky_queue(rate()?, length)?
        }
        (AlgorithmKind::FixedWindow, None) => Policy::fixed_window(rate()?)?,
    };
    if options.subwindows.is_some() && counting != AlgorithmKind::SlidingWindowStrict {
        return Err(LimitError::SubwindowsWithoutStrict);
    }
    if options.queue.is_some() && counting != AlgorithmKind::LeakyQueue {
        return Err(LimitError::QueueWithoutQueue);
    }
    let policy = match options.max_wait {
        Some(max_wait) => policy.with_max_wait(max_wait)?,
        None => policy,
    };
    let policy = match options.burst {
        Some(burst) => policy.with_burst(burst)?,
        None => policy,
    };
    let policy = if options.staggered { policy.with_stagger()? } else { policy };
    let policy = match options.utc_offset_minutes {
        Some(minutes) => policy.with_utc_offset(minutes)?,
        None => policy,
    };
    if options.lease.is_some() && counting != AlgorithmKind::Concurrency {
        let algorithm = policy.algorithm().name();
        return Err(PolicyError::LeaseWithoutPermits { algorithm }.into());
    }
    Ok(match options.warm_up {
        Some(warm_up) => policy.with_warm_up(warm_up)?,
        None => policy,
    })
}

fn permits(limit: u64, lease: Option<Duration>) -> Result<Policy, PolicyError> {
    let permits = Concurrency::new(limit)?;
    let permits = match lease {
        Some(ttl) => permits.with_lease(ttl)?,
        None => permits,
    };
    Ok(permits.into_policy())
}

/// `10000 per calendar month` as its number and its period.
fn calendar(text: &str) -> Option<(&str, &str)> {
    let (number, window) = text.split_once('/').or_else(|| text.split_once(" per "))?;
    let period = window.trim().strip_prefix("calendar")?;
    period.starts_with(' ').then(|| (number.trim(), period.trim()))
}

fn parse_period(period: &str) -> Result<Period, LimitError> {
    Ok(match period {
        "day" => Period::Day,
        "week" => Period::Week,
        "month" => Period::Month,
        period => return Err(LimitError::Period { period: crate::message::shorten(period) }),
    })
}

/// `10_000`, digits and no more of them than fit.
pub(crate) fn whole(number: &str) -> Result<u64, LimitError> {
    let text: String = number.chars().filter(|c| *c != '_').collect();
    let is_number =
        number.starts_with(|first: char| first.is_ascii_digit()) && !number.ends_with('_');
    match whole_digits(&text).filter(|digits| digits.len() <= 18).map(str::parse) {
        Some(Ok(value)) if is_number => Ok(value),
        _ => Err(LimitError::Number { number: crate::message::shorten(number) }),
    }
}

impl LimitError {
    /// The field of a file that is to be changed.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Policy(
                PolicyError::ZeroBurst
                | PolicyError::BurstTooLarge { .. }
                | PolicyError::BurstWithoutBucket { .. },
            ) => "burst",
            Self::Policy(PolicyError::StaggerWithoutFixedWindow { .. }) => "staggered",
            Self::Policy(
                PolicyError::UtcOffset { .. } | PolicyError::OffsetWithoutCalendar { .. },
            ) => "utc_offset",
            Self::Policy(PolicyError::Subwindows { .. } | PolicyError::UnevenSubwindows { .. })
            | Self::SubwindowsWithoutStrict => "subwindows",
            Self::Policy(
                PolicyError::WarmUpWithoutLimit { .. }
                | PolicyError::WarmUpStart { .. }
                | PolicyError::WarmUpDuration { .. }
                | PolicyError::WarmUpSteps { .. }
                | PolicyError::WarmUpSubwindows { .. }
                | PolicyError::WarmUpInexact { .. },
            ) => "warm_up",
            Self::Policy(
                PolicyError::LeaseTime { .. } | PolicyError::LeaseWithoutPermits { .. },
            ) => "lease",
            Self::Policy(PolicyError::QueueTooLong { .. }) | Self::QueueWithoutQueue => "queue",
            Self::Policy(PolicyError::MaxWaitWithoutQueue { .. }) => "max_wait",
            Self::CalendarCounting => "algorithm",
            Self::Reserve(_)
            | Self::Policy(PolicyError::ReserveWithWarmUp | PolicyError::ReserveOfCustom) => {
                "reserve"
            }
            _ => "limit",
        }
    }
}

impl From<RateError> for LimitError {
    fn from(error: RateError) -> Self {
        Self::Policy(error.into())
    }
}

/// From this long on, what a counter forgets at a restart is worth a warning.
const LONG_WINDOW: Duration = Duration::from_hours(1);

/// Returns true if what was charged under `policy` counts for an hour or longer.
pub(crate) fn has_long_window(policy: &Policy) -> bool {
    // A bucket remembers what its burst takes to come back, however its rate is written.
    let is_bucket = policy.interval().is_some();
    let window = if is_bucket { policy.memory() } else { Some(policy.window()) };
    policy.period().is_some() || window.is_some_and(|window| window >= LONG_WINDOW)
}

/// Returns true if permits under `policy` stay taken until they are returned.
pub(crate) fn is_unleased(policy: &Policy) -> bool {
    policy.has_permits() && policy.lease_ttl().is_none()
}
