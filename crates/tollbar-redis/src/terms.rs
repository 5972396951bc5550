//! What a script needs to know of a policy: which algorithm it has, and its numbers.
//!
//! The numbers are those of the policy's public methods; the rounding was done when it was made.

use tollbar::algorithm::{
    calendar_window, concurrency, fixed_window, leaky_bucket, leaky_queue, leased, sliding_log,
    sliding_strict, sliding_window, staggered_window, token_bucket,
};
use tollbar::{Interval, Period, Policy};

use crate::blob::Blob;
use crate::error::RedisStoreError;

/// The algorithms that have a twin in Lua, by the number the scripts know them by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Bucket = 1,
    FixedWindow = 2,
    CalendarWindow = 3,
    SlidingWindow = 4,
    SlidingStrict = 5,
    SlidingLog = 6,
    /// Around one of the others.
    WarmUp = 7,
    LeakyQueue = 8,
    Concurrency = 9,
    Leased = 10,
}

impl Kind {
    pub(crate) const ALL: [Self; 10] = [
        Self::Bucket,
        Self::FixedWindow,
        Self::CalendarWindow,
        Self::SlidingWindow,
        Self::SlidingStrict,
        Self::SlidingLog,
        Self::WarmUp,
        Self::LeakyQueue,
        Self::Concurrency,
        Self::Leased,
    ];

    /// Of `policy`; an error where it has no twin.
    pub(crate) fn of(policy: &Policy) -> Result<Self, RedisStoreError> {
        let plain = Self::plain_of(policy)?;
        Ok(if policy.warm_up().is_some() { Self::WarmUp } else { plain })
    }

    /// True for windows that count: their state does not tell a charge from one before a reset.
    pub(crate) fn is_counted_window(self) -> bool {
        matches!(
            self,
            Self::FixedWindow | Self::CalendarWindow | Self::SlidingWindow | Self::SlidingStrict
        )
    }

    /// The same without its warm-up.
    pub(crate) fn plain_of(policy: &Policy) -> Result<Self, RedisStoreError> {
        let name = policy.algorithm().name();
        let kind = match name {
            _ if policy.is_custom() => None,
            token_bucket::NAME | leaky_bucket::NAME => Some(Self::Bucket),
            fixed_window::NAME | staggered_window::NAME => Some(Self::FixedWindow),
            calendar_window::NAME => Some(Self::CalendarWindow),
            sliding_window::NAME => Some(Self::SlidingWindow),
            sliding_strict::NAME => Some(Self::SlidingStrict),
            sliding_log::NAME => Some(Self::SlidingLog),
            leaky_queue::NAME => Some(Self::LeakyQueue),
            concurrency::NAME => Some(Self::Concurrency),
            leased::NAME => Some(Self::Leased),
            _ => None,
        };
        kind.ok_or(RedisStoreError::Unsupported { algorithm: name })
    }
}

/// Appends the numbers of `policy` as they are for `key`.
pub(crate) fn write_numbers(
    policy: &Policy,
    key: &[u8],
    blob: &mut Blob,
) -> Result<(), RedisStoreError> {
    let kind = Kind::plain_of(policy)?;
    let Some(warm_up) = policy.warm_up() else {
        write_plain(kind, policy, key, policy.limit(), blob);
        return Ok(());
    };
    let over_us = u64::try_from(warm_up.over.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
    blob.numbers([over_us, warm_up.steps.into(), policy.capacity()]);
    blob.byte(kind as u8);
    let mut rungs = Blob::default();
    if let Some(intervals) = policy.warm_up_intervals() {
        write_ladder(policy, &intervals, &mut rungs);
    } else {
        for step in 0..=warm_up.steps {
            let limit = warm_up.limit_at(step, policy.limit());
            write_plain(kind, policy, key, limit, &mut rungs);
        }
    }
    let rungs = rungs.into_bytes();
    blob.byte((rungs.len() / (warm_up.steps as usize + 1)) as u8);
    blob.bytes(&rungs);
    Ok(())
}

fn write_plain(kind: Kind, policy: &Policy, key: &[u8], limit: u64, blob: &mut Blob) {
    let window_us = policy.algorithm().window_us();
    match kind {
        Kind::Bucket => {
            let (burst, overdraft) = (policy.capacity(), policy.overdraft());
            if let Some(Interval { numerator_us, denominator }) = policy.interval() {
                // Below 2^53, as `Policy` has seen to.
                let (full, most) = (burst * numerator_us, (burst + overdraft) * numerator_us);
                blob.numbers([numerator_us, denominator, full, most, burst]);
            }
        }
        Kind::FixedWindow => {
            blob.numbers([limit, window_us, policy.stagger_us(key).unwrap_or(0)]);
        }
        Kind::CalendarWindow => {
            let period = match policy.period() {
                Some(Period::Day) => 0,
                Some(Period::Week) => 1,
                _ => 2,
            };
            let minutes = policy.utc_offset_minutes().unwrap_or(0);
            blob.numbers([limit, period]);
            blob.signed(i64::from(minutes) * 60 * 1_000_000);
        }
        Kind::SlidingWindow => {
            let tick_us = policy.sliding_granularity_us().unwrap_or(1);
            // Whole: the granularity divides the window.
            blob.numbers([limit, window_us, tick_us, window_us / tick_us]);
        }
        Kind::SlidingStrict => {
            // Above the number of sub-windows is whether it warms up.
            let parts = policy.algorithm().variant() & u64::from(u32::MAX);
            blob.numbers([limit, window_us.div_ceil(parts.max(1)), parts]);
        }
        Kind::LeakyQueue => {
            let places = policy.capacity();
            if let Some(Interval { numerator_us, denominator }) = policy.interval() {
                let full = places * numerator_us;
                let wait_us_max = policy.max_wait().map(|it| it.as_micros() as u64);
                // A wait whose product does not fit is longer than a full debt.
                let wait_max = wait_us_max.map_or(full, |it| it.saturating_mul(denominator));
                blob.numbers([numerator_us, denominator, full, wait_max.min(full), places]);
            }
        }
        Kind::Concurrency => blob.number(limit),
        Kind::Leased => {
            blob.numbers([limit, policy.lease_ttl().map_or(0, |ttl| ttl.as_micros() as u64)]);
        }
        Kind::SlidingLog | Kind::WarmUp => blob.numbers([limit, window_us]),
    }
}

/// The buckets of a warm-up, one for each step: as `Ladder` makes them from their intervals.
fn write_ladder(policy: &Policy, intervals: &[Interval], blob: &mut Blob) {
    let burst = policy.capacity();
    let full_numerator = intervals.last().map_or(1, |last| last.numerator_us);
    // One token fits in any case, and of the others as many as the rate allows.
    let others = (burst - 1) * full_numerator;
    let burst_at = |interval: &Interval| 1 + others / interval.numerator_us;
    let fulls = intervals.iter().map(|it| burst_at(it) * it.numerator_us);
    let most = fulls.max().unwrap_or(0).max((burst + policy.overdraft()) * full_numerator);
    for interval in intervals {
        let (numerator, burst) = (interval.numerator_us, burst_at(interval));
        blob.numbers([numerator, interval.denominator, burst * numerator, most, burst]);
    }
}
