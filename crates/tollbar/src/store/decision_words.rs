//! The answers of an allowed batch as words, so that they can be given again.
//!
//! The first word is the question's fingerprint, how often it was answered again, and how many words there are. Of each entry follow what remained (and in the bits
//! above it the outcome, and which words follow), when it resets, the charge's stamp or, for a shadow
//! that denied, its retry-after; then the limit where it is not the policy's, and the delay where
//! there is one.
//!
//! The first four words, which hold the answers of one entry, are a state of their own. What comes
//! after them is another one of the same name, so that one look tells a request that is new.

use arrayvec::ArrayVec;

use crate::algorithm::STATE_WORDS_MAX;
use crate::algorithm::word::NUMBER_MAX;
use crate::store::alternative::mark_unused;
use crate::store::{Entry, StoreError};
use crate::{Decision, Outcome, Timestamp};

/// As many as a wide state has.
pub(crate) type DecisionWords = ArrayVec<u64, STATE_WORDS_MAX>;

/// How many words are looked at first.
pub(crate) const FIRST_WORDS: usize = 4;

/// How many entries always fit, unless they have delays or limits of their own.
const ENTRIES_MAX: usize = (STATE_WORDS_MAX - 1) / 3;

/// The low bits of the first word: how many words there are.
const LEN_MASK: u64 = 0x7f;

/// The bits above them: how often the answers were given again.
const REPLAYS_SHIFT: u32 = 7;
const REPLAYS_MASK: u64 = 0xff << REPLAYS_SHIFT;

const FINGERPRINT_MASK: u64 = !(LEN_MASK | REPLAYS_MASK);

const DENY: u64 = 1 << 63;
const BUSY: u64 = 1 << 62;
const NEVER: u64 = 1 << 61;
const HAS_LIMIT: u64 = 1 << 60;
const HAS_DELAY: u64 = 1 << 59;

pub(crate) fn write(fingerprint: u64, entries: &[Entry<'_>]) -> Result<DecisionWords, StoreError> {
    let too_large =
        |_| StoreError::BatchTooLarge { entries: entries.len(), entries_max: ENTRIES_MAX };
    let mut words = DecisionWords::new();
    words.try_push(fingerprint & FINGERPRINT_MASK).map_err(too_large)?;
    for entry in entries {
        let Some(decision) = entry.decision else { continue };
        let (outcome, third) = match decision.outcome() {
            Outcome::Allow => (0, entry.stamp),
            Outcome::Deny { retry_after_us } => (DENY, retry_after_us),
            Outcome::Busy => (BUSY, 0),
            Outcome::Never => (NEVER, 0),
        };
        let limit = Some(decision.limit()).filter(|limit| *limit != entry.policy.limit());
        let delay_us = Some(decision.delay_us()).filter(|delay_us| *delay_us > 0);
        let first = decision.remaining.min(NUMBER_MAX)
            | outcome
            | limit.map_or(0, |_| HAS_LIMIT)
            | delay_us.map_or(0, |_| HAS_DELAY);
        let fixed = [first, decision.reset_at.as_micros(), third];
        for word in fixed.into_iter().chain(limit).chain(delay_us) {
            words.try_push(word).map_err(too_large)?;
        }
    }
    // The name of `more` would be that of `first` if it were as short: it is kept longer.
    if (FIRST_WORDS + 1..=2 * FIRST_WORDS).contains(&words.len()) {
        words.extend([0; FIRST_WORDS]);
    }
    words[0] |= words.len() as u64;
    Ok(words)
}

/// How many words there are, by the first one; `None` where it is of another question.
pub(crate) fn len(first: u64, fingerprint: u64) -> Option<usize> {
    let len = (first & LEN_MASK) as usize;
    let is_same = (first ^ fingerprint) & FINGERPRINT_MASK == 0;
    (is_same && len <= STATE_WORDS_MAX).then_some(len)
}

/// How many words there are, by the first one, whatever the question was.
pub(crate) fn stored_len(first: u64) -> usize {
    ((first & LEN_MASK) as usize).min(STATE_WORDS_MAX)
}

/// Returns the first word of answers that are given once more; `None` if they were given `replays_max` times.
pub(crate) fn replay(first: u64, replays_max: u8) -> Option<u64> {
    let replays = (first & REPLAYS_MASK) >> REPLAYS_SHIFT;
    (replays < u64::from(replays_max)).then_some(first + (1 << REPLAYS_SHIFT))
}

/// Leaves the answers of a charge at `charged_at` in `entries`.
pub(crate) fn read(words: &[u64], charged_at: Timestamp, entries: &mut [Entry<'_>]) {
    let mut words = words.iter().copied().skip(1);
    for entry in &mut *entries {
        // Words that are missing, which nobody has written, read as an allowed nothing.
        let mut next = || words.next().unwrap_or(0);
        let (first, reset_at_us, third) = (next(), next(), next());
        let limit = if first & HAS_LIMIT == 0 { entry.policy.limit() } else { next() };
        let delay_us = if first & HAS_DELAY == 0 { 0 } else { next() };
        let outcome = if first & DENY != 0 {
            Outcome::Deny { retry_after_us: third }
        } else if first & BUSY != 0 {
            Outcome::Busy
        } else if first & NEVER != 0 {
            Outcome::Never
        } else {
            entry.stamp = third;
            Outcome::Allow
        };
        let reset_at = Timestamp::from_micros(reset_at_us);
        let decision = Decision::new(outcome, limit, first & NUMBER_MAX, reset_at);
        entry.decision = Some(decision.with_delay_us(delay_us));
        entry.repeat_of = Some(charged_at);
    }
    mark_unused(entries);
}
