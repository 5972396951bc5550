//! One policy's answer, and what may be read from it.

pub(crate) mod denied;

use std::fmt;
use std::time::Duration;

use crate::Timestamp;

/// Whether a request may pass one policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It may, and has paid.
    Allow,
    /// Not now. Nothing was charged.
    Deny {
        /// How long until the same request passes, if nobody else asks: denied one microsecond
        /// before, allowed at it.
        retry_after_us: u64,
    },
    /// Not now, and when is not known: permits come back when whoever holds them is done. Nothing
    /// was charged.
    Busy,
    /// Not now and not later: the cost is above what the policy can ever hold.
    Never,
}

/// What happened when the store could not answer and the [`OutagePolicy`](crate::OutagePolicy)
/// answered in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Degraded {
    /// Let through unlimited.
    Allowed,
    /// Turned away unseen.
    Denied,
    /// Counted in this process.
    Fallback,
}

/// What few decisions have: a delay, and how they were degraded. Together in one word, because a
/// decision that is whole words is cheap to copy: with a byte in it, it cost 5 ns.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DecisionExtras(u64);

/// One policy's answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub(crate) outcome: Outcome,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_at: Timestamp,
    extras: DecisionExtras,
}

impl Decision {
    /// An answer from a store or an algorithm. `remaining` and `reset_at` are those after the
    /// charge, where there was one.
    #[must_use]
    pub const fn new(outcome: Outcome, limit: u64, remaining: u64, reset_at: Timestamp) -> Self {
        Self { outcome, limit, remaining, reset_at, extras: DecisionExtras::NONE }
    }

    /// An answer that no counter was asked for: it knows the limit, and neither what remains nor when
    /// it resets. For answers in place of a store that cannot answer.
    #[must_use]
    pub const fn uncounted(outcome: Outcome, limit: u64, how: Degraded) -> Self {
        Self::new(outcome, limit, 0, Timestamp::ZERO).into_degraded(how)
    }

    /// Adds the delay of a queue, in which an allowed request waits `delay_us` for its turn.
    #[must_use]
    pub const fn with_delay_us(mut self, delay_us: u64) -> Self {
        self.extras = self.extras.with_delay_us(delay_us);
        self
    }

    /// What stands in a decision's place until it is made.
    pub(crate) const UNDECIDED: Self = Self::new(Outcome::Never, 0, 0, Timestamp::ZERO);

    /// The answer as stores and algorithms give it. Callers of a limiter read
    /// [`is_allowed`](Self::is_allowed) or [`ok`](Self::ok).
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// True where the request may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow)
    }

    /// The policy's limit per window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The largest cost that would pass now. `None` where nothing was counted: see
    /// [`degraded`](Self::degraded).
    #[must_use]
    pub const fn remaining(&self) -> Option<u64> {
        if self.is_counted() { Some(self.remaining) } else { None }
    }

    pub(crate) const fn delay_us(&self) -> u64 {
        self.extras.delay_us()
    }

    /// For an allowed request, how long it has to wait for its turn before it goes on. Zero, but
    /// for queues.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        Duration::from_micros(self.extras.delay_us())
    }

    /// The window's end; for a bucket, when it is full again. If nobody else asks, the same request
    /// passes then: it is never before the retry-after of a denial, and of a sliding window counter
    /// it is later than the window's end if that takes longer.
    ///
    /// Permits in flight may come back at any moment and promise nothing: theirs is the present.
    /// `None` for a [degraded](Self::degraded) answer, because the store's counter was not read.
    #[must_use]
    pub const fn reset_at(&self) -> Option<Timestamp> {
        if self.degraded().is_none() { Some(self.reset_at) } else { None }
    }

    /// False where neither the store nor this process has counted the request.
    const fn is_counted(&self) -> bool {
        matches!(self.degraded(), None | Some(Degraded::Fallback))
    }

    /// Set where the store could not answer and the outage policy did.
    #[must_use]
    pub const fn degraded(&self) -> Option<Degraded> {
        self.extras.degraded()
    }

    /// Marks the answer as given without the store.
    #[must_use]
    pub const fn into_degraded(mut self, how: Degraded) -> Self {
        self.extras = self.extras.with_degraded(how);
        self
    }

    /// True where this binds harder than `other`: `Never` before the longest retry, before `Busy`,
    /// before the least share of its limit remaining.
    #[must_use]
    pub fn binds_before(&self, other: &Self) -> bool {
        match (self.outcome, other.outcome) {
            (Outcome::Deny { retry_after_us: mine }, Outcome::Deny { retry_after_us: theirs }) => {
                mine > theirs
            }
            (Outcome::Allow, Outcome::Allow) => {
                // mine.remaining / mine.limit < theirs.remaining / theirs.limit, without division.
                u128::from(self.remaining) * u128::from(other.limit)
                    < u128::from(other.remaining) * u128::from(self.limit)
            }
            (mine, theirs) => mine.severity() > theirs.severity(),
        }
    }
}

impl Outcome {
    fn severity(self) -> u8 {
        match self {
            Self::Allow => 0,
            Self::Busy => 1,
            Self::Deny { .. } => 2,
            Self::Never => 3,
        }
    }
}

impl DecisionExtras {
    const NONE: Self = Self(0);

    /// The low bits; the delay is above them.
    const DEGRADED_BITS: u32 = 2;
    const DEGRADED_MASK: u64 = (1 << Self::DEGRADED_BITS) - 1;

    /// A delay too long for its bits, 140,000 years, is cut.
    const DELAY_US_MAX: u64 = u64::MAX >> Self::DEGRADED_BITS;

    const fn with_delay_us(self, delay_us: u64) -> Self {
        let delay_us = if delay_us < Self::DELAY_US_MAX { delay_us } else { Self::DELAY_US_MAX };
        Self(delay_us << Self::DEGRADED_BITS | self.0 & Self::DEGRADED_MASK)
    }

    const fn with_degraded(self, how: Degraded) -> Self {
        let code = match how {
            Degraded::Allowed => 1,
            Degraded::Denied => 2,
            Degraded::Fallback => 3,
        };
        Self(self.0 & !Self::DEGRADED_MASK | code)
    }

    const fn delay_us(self) -> u64 {
        self.0 >> Self::DEGRADED_BITS
    }

    const fn degraded(self) -> Option<Degraded> {
        match self.0 & Self::DEGRADED_MASK {
            1 => Some(Degraded::Allowed),
            2 => Some(Degraded::Denied),
            3 => Some(Degraded::Fallback),
            _ => None,
        }
    }
}

impl fmt::Debug for DecisionExtras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{delay_us: {}, degraded: {:?}}}", self.delay_us(), self.degraded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_and_a_degradation_do_not_disturb_each_other() {
        for how in [Degraded::Allowed, Degraded::Denied, Degraded::Fallback] {
            let plain = Decision::new(Outcome::Allow, 1, 1, Timestamp::ZERO);
            assert_eq!((plain.delay(), plain.degraded()), (Duration::ZERO, None));
            assert_eq!((plain.remaining(), plain.reset_at()), (Some(1), Some(Timestamp::ZERO)));
            let degraded = plain.into_degraded(how);
            let is_counted = how == Degraded::Fallback;
            assert_eq!(degraded.remaining(), is_counted.then_some(1), "{how:?}");
            assert_eq!(degraded.reset_at(), None, "{how:?}");
            let both = plain.with_delay_us(1_500).into_degraded(how);
            assert_eq!((both.delay(), both.degraded()), (Duration::from_micros(1_500), Some(how)));
            assert_eq!(both, plain.into_degraded(how).with_delay_us(1_500));
        }
        let longest = Decision::UNDECIDED.with_delay_us(u64::MAX).delay();
        assert_eq!(longest, Duration::from_micros(u64::MAX >> 2));
    }

    /// So that of several that bind alike the first is told.
    #[test]
    fn no_decision_binds_before_one_like_itself() {
        let deny = Outcome::Deny { retry_after_us: 9 };
        for outcome in [Outcome::Allow, Outcome::Busy, deny, Outcome::Never] {
            let decision = Decision::new(outcome, 4, 2, Timestamp::ZERO);
            assert!(!decision.binds_before(&decision), "{outcome:?}");
        }
    }
}
