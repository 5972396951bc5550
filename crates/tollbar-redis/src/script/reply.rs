//! Reads the replies of scripts.

use std::time::Duration;

use tollbar::store::{Adjustment, Loan, Once, mark_unused};
use tollbar::{Decision, Entry, Outcome, Policy, StoreError, Timestamp};

use super::blob::Reader;
use super::policy::Kind;
use crate::error::RedisStoreError;

/// What the script says where a request id came back with another question.
const REUSED: &[u8] = b"reused";
/// What its answer to a request begins with that has paid before. A decision begins with a smaller byte.
pub(crate) const REPEATED: u8 = b'A';
/// What it says where there is no such reservation.
const ABSENT: &[u8] = b"absent";

/// What it says where an attempt was ended before its charge came.
pub(crate) const CANCELLED: &[u8] = b"cancelled";

/// The length of the decision on one entry.
pub(crate) const ENTRY_BYTES: usize = 50;

/// Where a stamp has the step of its charge, as in memory; below it are a time and a sum of times.
const STAMP_STEP_SHIFT: u32 = 56;

/// Set in the stamp of a window that was reserved, as in memory: prelude.lua takes it off again.
const RESERVED_BIT: u64 = 1 << 55;

/// Where the stamp of a queue has its time, as in memory; below it is a part of a microsecond.
const QUEUE_STAMP_SHIFT: u32 = 10;

/// Reads the decision on one request.
pub(crate) fn read_one(bytes: &[u8], policy: &Policy) -> Result<Decision, RedisStoreError> {
    let mut reader = Reader(bytes);
    let (decision, _) = read_decision(&mut reader, policy)?;
    reader.finish()?;
    Ok(decision)
}

/// Reads the decision on each entry into the entry, of a request that is charged `once` where it has an id.
pub(crate) fn read_batch(
    bytes: &[u8],
    once: Option<Once<'_>>,
    entries: &mut [Entry<'_>],
) -> Result<(), StoreError> {
    match (bytes, once) {
        (REUSED, _) => Err(StoreError::RequestIdReused),
        ([REPEATED, repeated @ ..], Some(once)) => Ok(read_repeated(repeated, once, entries)?),
        _ => Ok(read_decisions(bytes, entries)?),
    }
}

/// Reads the answers of a request that has paid before: until when it is remembered, and the decisions.
pub(crate) fn read_repeated(
    bytes: &[u8],
    once: Once<'_>,
    entries: &mut [Entry<'_>],
) -> Result<(), RedisStoreError> {
    let mut reader = Reader(bytes);
    let remembered_until_us = reader.number()?;
    read_decisions(reader.0, entries)?;
    let ttl_us = u64::try_from(once.ttl.as_micros()).unwrap_or(u64::MAX);
    let charged_at = Timestamp::from_micros(remembered_until_us.saturating_sub(ttl_us));
    for entry in entries {
        entry.mark_repeat_of(charged_at);
    }
    Ok(())
}

/// Reads the decision on each entry, of a request without an id.
pub(crate) fn read_decisions(
    bytes: &[u8],
    entries: &mut [Entry<'_>],
) -> Result<(), RedisStoreError> {
    let mut reader = Reader(bytes);
    for entry in &mut *entries {
        let (decision, step) = read_decision(&mut reader, entry.policy())?;
        let [stamp, low] = [reader.number()?, reader.number()?];
        entry.decide(decision);
        let step = u64::from(step) << STAMP_STEP_SHIFT;
        entry.set_stamp(match Kind::plain_of(entry.policy())? {
            // With the step of a warm-up above the instant.
            Kind::LeakyQueue => stamp << QUEUE_STAMP_SHIFT | low,
            kind if kind.is_counted_window() && low > 0 => step | RESERVED_BIT | (stamp + low),
            // It is the lease's name, whatever it was granted at.
            Kind::Leased => stamp,
            // A sum of times, for buckets that are reserved.
            _ => step | (stamp + low),
        });
    }
    mark_unused(entries);
    reader.finish()
}

/// Reads what was lent.
pub(crate) fn read_loan(bytes: &[u8], policy: &Policy) -> Result<Loan, RedisStoreError> {
    let mut reader = Reader(bytes);
    let (decision, _) = read_decision(&mut reader, policy)?;
    let [tokens, life_us] = [reader.number()?, reader.number()?];
    reader.finish()?;
    Ok(Loan { tokens, life: Duration::from_micros(life_us), decision: Some(decision) })
}

/// Until when a lease is held now; `None` where it is not.
pub(crate) fn read_renewal(bytes: &[u8]) -> Result<Option<Timestamp>, RedisStoreError> {
    let mut reader = Reader(bytes);
    let ends_at_us = reader.number()?;
    reader.finish()?;
    Ok(Some(ends_at_us).filter(|ends_at_us| *ends_at_us > 0).map(Timestamp::from_micros))
}

/// False where there was nothing to settle; else how much was adjusted is left in each.
pub(crate) fn read_settlement(
    bytes: &[u8],
    adjustments: &mut [Adjustment<'_>],
) -> Result<bool, RedisStoreError> {
    if bytes == ABSENT {
        return Ok(false);
    }
    let mut reader = Reader(bytes);
    for adjustment in adjustments {
        adjustment.adjust(reader.number()?);
    }
    reader.finish()?;
    Ok(true)
}

/// Reads one decision, and the step of its warm-up.
fn read_decision(
    reader: &mut Reader<'_>,
    policy: &Policy,
) -> Result<(Decision, u8), RedisStoreError> {
    let outcome = reader.byte()?;
    let [remaining, reset_at_us, retry_after_us] =
        [reader.number()?, reader.number()?, reader.number()?];
    let step = reader.byte()?;
    let delay_us = reader.number()?;
    let limit = match policy.warm_up() {
        Some(warm_up) => warm_up.limit_at(step.into(), policy.limit()),
        None => policy.limit(),
    };
    let outcome = match outcome {
        0 => Outcome::Allow,
        1 => Outcome::Deny { retry_after_us },
        2 => Outcome::Busy,
        3 => Outcome::Never,
        _ => return Err(RedisStoreError::Garbled),
    };
    let reset_at = Timestamp::from_micros(reset_at_us);
    Ok((Decision::new(outcome, limit, remaining, reset_at).with_delay_us(delay_us), step))
}
