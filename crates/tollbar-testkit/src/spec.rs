//! A policy as the vectors write it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollbar::{Concurrency, Period, Policy, PolicyError, Rate, WarmUp};

/// The algorithms the crate has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Tokens earned over time, spent at will.
    TokenBucket,
    /// The same decisions, seen as a meter that drains.
    LeakyBucket,
    /// The same debt, waited for.
    LeakyQueue,
    /// A count per aligned window.
    FixedWindow,
    /// A count per window, aligned by the key.
    StaggeredWindow,
    /// A count per day, week or month.
    CalendarWindow,
    /// The current window and a share of the previous one.
    #[serde(rename = "sliding_window_counter")]
    SlidingWindow,
    /// The current sub-window and the n before it.
    SlidingWindowStrict,
    /// Every charge of the last window.
    SlidingWindowLog,
    /// Permits in flight.
    Concurrency,
    /// Permits in flight that end by themselves.
    LeasedConcurrency,
}

impl Kind {
    /// Each of them.
    pub const ALL: [Self; 11] = [
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::LeakyQueue,
        Self::FixedWindow,
        Self::StaggeredWindow,
        Self::CalendarWindow,
        Self::SlidingWindow,
        Self::SlidingWindowStrict,
        Self::SlidingWindowLog,
        Self::Concurrency,
        Self::LeasedConcurrency,
    ];

    /// Its name in rules, metrics and vectors.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::LeakyQueue => "leaky_queue",
            Self::FixedWindow => "fixed_window",
            Self::StaggeredWindow => "staggered_window",
            Self::CalendarWindow => "calendar_window",
            Self::SlidingWindow => "sliding_window_counter",
            Self::SlidingWindowStrict => "sliding_window_strict",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::Concurrency => "concurrency",
            Self::LeasedConcurrency => "leased_concurrency",
        }
    }

    /// True for those that owe time: they take a burst, which for a queue is one more than may wait.
    #[must_use]
    pub fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket | Self::LeakyQueue)
    }
}

/// The numbers of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// How it counts.
    pub algorithm: Kind,
    /// Tokens in a window.
    pub limit: u64,
    /// How long the window is; 0 for permits, which have none.
    pub window_us: u64,
    /// Buckets: how many tokens fit; the limit where absent. A queue holds one of them on its way
    /// out, and the others wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// Buckets: how many tokens more may be owed; none where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdraft: Option<u64>,
    /// `leased_concurrency`: how long a lease lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_us: Option<u64>,
    /// `leaky_queue`: how long one may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_us: Option<u64>,
    /// `sliding_window_strict`: into how many parts the window is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict_n: Option<u32>,
    /// `calendar_window`: what of the calendar a window is. `window_us` is then only what is
    /// reported: a month has 30 days there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<PeriodName>,
    /// `calendar_window`: how far its midnight is east of UTC; absent means UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc_offset_minutes: Option<i32>,
    /// How the limit of a new key climbs; absent where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<WarmUpSpec>,
}

/// [`WarmUp`] as the vectors write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmUpSpec {
    /// The limit of a new key.
    pub start: u64,
    /// How long the climb takes, and how long a key is idle until it is new again.
    pub over_us: u64,
    /// In how many steps.
    pub steps: u32,
}

impl From<WarmUpSpec> for WarmUp {
    fn from(WarmUpSpec { start, over_us, steps }: WarmUpSpec) -> Self {
        Self { start, over: Duration::from_micros(over_us), steps }
    }
}

/// [`Period`] as the vectors write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeriodName {
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday.
    Week,
    /// From the first to the last.
    Month,
}

impl PeriodName {
    const DAY_US: u64 = 86_400_000_000;

    /// The shortest that is at least `window_us` long, or a month.
    fn of_window(window_us: u64) -> Self {
        match window_us.div_ceil(Self::DAY_US) {
            0..=1 => Self::Day,
            2..=7 => Self::Week,
            _ => Self::Month,
        }
    }

    fn period(self) -> Period {
        match self {
            Self::Day => Period::Day,
            Self::Week => Period::Week,
            Self::Month => Period::Month,
        }
    }

    /// The length reported.
    fn window_us(self) -> u64 {
        match self {
            Self::Day => Self::DAY_US,
            Self::Week => 7 * Self::DAY_US,
            Self::Month => 30 * Self::DAY_US,
        }
    }
}

impl PolicySpec {
    /// `limit` tokens in `window_us`; strict windows are cut in ten, a calendar window is the day,
    /// week or month nearest above, and permits have no window but leases that last as long.
    #[must_use]
    pub fn new(algorithm: Kind, limit: u64, window_us: u64) -> Self {
        let strict_n = (algorithm == Kind::SlidingWindowStrict).then_some(10);
        let period = (algorithm == Kind::CalendarWindow).then(|| PeriodName::of_window(window_us));
        let window_us = period.map_or(window_us, PeriodName::window_us);
        let ttl_us = (algorithm == Kind::LeasedConcurrency).then_some(window_us);
        let has_window = !matches!(algorithm, Kind::Concurrency | Kind::LeasedConcurrency);
        let window_us = if has_window { window_us } else { 0 };
        let burst = None;
        Self {
            algorithm,
            limit,
            window_us,
            burst,
            overdraft: None,
            ttl_us,
            max_wait_us: None,
            strict_n,
            period,
            utc_offset_minutes: None,
            warm_up: None,
        }
    }

    /// The same with a burst.
    #[must_use]
    pub fn with_burst(self, burst: u64) -> Self {
        Self { burst: Some(burst), ..self }
    }

    /// The same with an overdraft.
    #[must_use]
    pub fn with_overdraft(self, overdraft: u64) -> Self {
        Self { overdraft: Some(overdraft), ..self }
    }

    /// The same queue with a longest wait.
    #[must_use]
    pub fn with_max_wait_us(self, max_wait_us: u64) -> Self {
        Self { max_wait_us: Some(max_wait_us), ..self }
    }

    /// The same with another number of parts.
    #[must_use]
    pub fn with_parts(self, strict_n: u32) -> Self {
        Self { strict_n: Some(strict_n), ..self }
    }

    /// The same calendar at another offset from UTC.
    #[must_use]
    pub fn with_utc_offset(self, minutes: i32) -> Self {
        Self { utc_offset_minutes: Some(minutes), ..self }
    }

    /// The same with a limit that climbs.
    #[must_use]
    pub fn with_warm_up(self, warm_up: WarmUpSpec) -> Self {
        Self { warm_up: Some(warm_up), ..self }
    }

    /// The policy itself.
    pub fn build(&self) -> Result<Policy, PolicyError> {
        let rate = Rate::new(self.limit, Duration::from_micros(self.window_us));
        let policy = match self.algorithm {
            Kind::TokenBucket => Policy::token_bucket(rate),
            Kind::LeakyBucket => Policy::leaky_bucket(rate),
            Kind::LeakyQueue => return self.build_queue(rate),
            Kind::FixedWindow => Policy::fixed_window(rate),
            Kind::StaggeredWindow => Policy::fixed_window(rate).and_then(Policy::with_stagger),
            Kind::CalendarWindow => {
                let period = self.period.unwrap_or_else(|| PeriodName::of_window(self.window_us));
                Policy::calendar_window(self.limit, period.period())
                    .and_then(|policy| policy.with_utc_offset(self.utc_offset_minutes.unwrap_or(0)))
            }
            Kind::SlidingWindow => Policy::sliding_window(rate),
            Kind::SlidingWindowStrict => {
                Policy::sliding_window_strict(rate, self.strict_n.unwrap_or(10))
            }
            Kind::SlidingWindowLog => Policy::sliding_window_log(rate),
            Kind::Concurrency => Concurrency::new(self.limit).map(Concurrency::into_policy),
            Kind::LeasedConcurrency => {
                let ttl = Duration::from_micros(self.ttl_us.unwrap_or_default());
                Concurrency::new(self.limit)
                    .and_then(|permits| permits.with_lease(ttl))
                    .map(Concurrency::into_policy)
            }
        }?;
        let policy = match self.burst {
            Some(burst) => policy.with_burst(burst)?,
            None => policy,
        };
        let policy = match self.overdraft {
            Some(overdraft) => policy.with_overdraft(overdraft)?,
            None => policy,
        };
        self.warming(policy)
    }

    fn warming(&self, policy: Policy) -> Result<Policy, PolicyError> {
        match self.warm_up {
            Some(warm_up) => policy.with_warm_up(warm_up.into()),
            None => Ok(policy),
        }
    }

    fn build_queue(&self, rate: Rate) -> Result<Policy, PolicyError> {
        let places = self.burst.unwrap_or(self.limit).max(1);
        let policy = Policy::leaky_queue(rate, places - 1)?;
        match self.max_wait_us {
            Some(max_wait_us) => {
                self.warming(policy.with_max_wait(Duration::from_micros(max_wait_us))?)
            }
            None => self.warming(policy),
        }
    }
}
