//! A policy as scripts read it: which algorithm it has, and its numbers.
//!
//! The numbers are a policy's [`PolicyParts`]; the rounding was done when it was made.

use tollbar::{Interval, Period, Policy, PolicyParts};

use super::blob::Blob;
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
    pub(crate) fn for_policy(policy: &Policy) -> Result<Self, RedisStoreError> {
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

    /// True where tokens can be charged early and lent. Everything else is always counted exactly.
    pub(crate) fn is_lendable(self) -> bool {
        matches!(
            self,
            Self::Bucket | Self::FixedWindow | Self::CalendarWindow | Self::SlidingWindow
        )
    }

    /// Of `policy` without its warm-up; an error if it has no twin.
    pub(crate) fn plain_of(policy: &Policy) -> Result<Self, RedisStoreError> {
        // The kind is the same for every key.
        let kind = Self::from_parts(policy.parts(&[]));
        kind.ok_or(RedisStoreError::Unsupported { algorithm: policy.algorithm().name() })
    }

    fn from_parts(parts: PolicyParts) -> Option<Self> {
        Some(match parts {
            PolicyParts::Bucket { .. } => Self::Bucket,
            PolicyParts::LeakyQueue { .. } => Self::LeakyQueue,
            PolicyParts::FixedWindow { .. } => Self::FixedWindow,
            PolicyParts::CalendarWindow { .. } => Self::CalendarWindow,
            PolicyParts::SlidingWindow { .. } => Self::SlidingWindow,
            PolicyParts::SlidingStrict { .. } => Self::SlidingStrict,
            PolicyParts::SlidingLog { .. } => Self::SlidingLog,
            PolicyParts::Concurrency { .. } => Self::Concurrency,
            PolicyParts::Leased { .. } => Self::Leased,
            _ => return None,
        })
    }
}

/// Appends the numbers of `policy` as they are for `key`.
pub(crate) fn write_numbers(
    policy: &Policy,
    key: &[u8],
    blob: &mut Blob,
) -> Result<(), RedisStoreError> {
    let kind = Kind::plain_of(policy)?;
    let parts = policy.parts(key);
    let Some(warm_up) = policy.warm_up() else {
        write_plain(parts, None, blob);
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
            write_plain(parts, Some(warm_up.limit_at(step, policy.limit())), &mut rungs);
        }
    }
    let rungs = rungs.into_bytes();
    blob.byte((rungs.len() / (warm_up.steps as usize + 1)) as u8);
    blob.bytes(&rungs);
    Ok(())
}

/// Appends the numbers of a policy that does not warm up, or of one step of a policy that does and only has
/// another limit there.
fn write_plain(parts: PolicyParts, step_limit: Option<u64>, blob: &mut Blob) {
    let at_step = |limit: u64| step_limit.unwrap_or(limit);
    match parts {
        PolicyParts::Bucket { interval, burst, overdraft } => {
            let Interval { numerator_us, denominator } = interval;
            // Below 2^53, as `Policy` has seen to.
            let (full, most) = (burst * numerator_us, (burst + overdraft) * numerator_us);
            blob.numbers([numerator_us, denominator, full, most, burst]);
        }
        PolicyParts::LeakyQueue { interval, places, wait_us_max } => {
            write_queue(interval, places, wait_us_max, blob);
        }
        PolicyParts::FixedWindow { limit, window_us, stagger_us } => {
            blob.numbers([at_step(limit), window_us, stagger_us]);
        }
        PolicyParts::CalendarWindow { limit, period, utc_offset_minutes } => {
            let period = match period {
                Period::Day => 0,
                Period::Week => 1,
                _ => 2,
            };
            blob.numbers([at_step(limit), period]);
            blob.signed(i64::from(utc_offset_minutes) * 60 * 1_000_000);
        }
        PolicyParts::SlidingWindow { limit, window_us, tick_us } => {
            // Whole: the tick divides the window.
            blob.numbers([at_step(limit), window_us, tick_us, window_us / tick_us]);
        }
        PolicyParts::SlidingStrict { limit, subwindow_us, subwindows } => {
            blob.numbers([at_step(limit), subwindow_us, subwindows.into()]);
        }
        PolicyParts::SlidingLog { limit, window_us } => blob.numbers([at_step(limit), window_us]),
        PolicyParts::Concurrency { limit } => blob.number(at_step(limit)),
        PolicyParts::Leased { limit, ttl_us } => blob.numbers([at_step(limit), ttl_us]),
        // Refused before: it has no kind.
        _ => {}
    }
}

fn write_queue(interval: Interval, places: u64, wait_us_max: Option<u64>, blob: &mut Blob) {
    let Interval { numerator_us, denominator } = interval;
    let full = places * numerator_us;
    // A wait whose product does not fit is longer than a full debt.
    let wait_max = wait_us_max.map_or(full, |wait_us| wait_us.saturating_mul(denominator));
    blob.numbers([numerator_us, denominator, full, wait_max.min(full), places]);
}

/// The buckets or queues of a warm-up, one for each step: as `Ladder` makes them from their intervals.
fn write_ladder(policy: &Policy, intervals: &[Interval], blob: &mut Blob) {
    let wait_us_max =
        policy.max_wait().map(|max_wait| u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX));
    let burst = policy.capacity();
    let full_numerator = intervals.last().map_or(1, |last| last.numerator_us);
    // One token fits in any case, and of the others as many as the rate allows.
    let others = (burst - 1) * full_numerator;
    let burst_at = |interval: &Interval| 1 + others / interval.numerator_us;
    let fulls = intervals.iter().map(|interval| burst_at(interval) * interval.numerator_us);
    let most = fulls.max().unwrap_or(0).max((burst + policy.overdraft()) * full_numerator);
    for interval in intervals {
        let (numerator, burst) = (interval.numerator_us, burst_at(interval));
        if policy.queue_length().is_some() {
            write_queue(*interval, burst, wait_us_max, blob);
            continue;
        }
        blob.numbers([numerator, interval.denominator, burst * numerator, most, burst]);
    }
}
