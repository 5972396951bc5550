//! What a store keeps beside a counter so that reserved charges can be given back.
//!
//! # Debts that move up
//!
//! Time pays the charges of a bucket in their order, and a charge can be given back until it is
//! paid. When one is given back, those behind it are paid sooner than their stamps say. So each
//! bucket with reservations has a sum of all the time that was ever given back, which changes at the
//! same instant as its counter. A stamp has the sum of its moment added. Less the sum of today it
//! tells when the charge is paid, or would be if all that was given back since was ahead of it.
//!
//! Two tokens of 2 s each, X paid at 2 s and Y at 4 s. X is given back: Y is paid at 2 s, and so says
//! 4 + 0 - 2. Without the sum, Y could be given back at 3 s once more, though time has given it back.
//!
//! # Resets
//!
//! A reset makes a counter fresh, so nothing charged before it may be given back: that would be taken
//! from what was charged since. A window only counts, and cannot tell. So a window with reservations
//! has a sum as well, which no refund adds to. A reset adds to the sum as much time as it takes until
//! nothing charged so far could be given back, and a day in case the clock goes back; from then on the
//! stamps of those charges, less the sum, name instants that are over.
//!
//! A refund of a window that was not reserved names the window alone. The stamp of a reservation has
//! [`RESERVED_BIT`] set, so that the two are told apart.

use crate::algorithm::Refund;
use crate::policy::Kind;

/// The part of a stamp that is an instant, or an instant and a sum. Above it are [`RESERVED_BIT`] and
/// the step of a warm-up.
const TIME_MASK: u64 = (1 << 55) - 1;

/// How far the clock may go back after a reset before a charge from before it looks as if it could be
/// given back.
const CLOCK_STEP_MAX_US: u64 = 24 * 3_600_000_000;

/// Set in the stamp of a charge to a window that can be given back because it was reserved.
const RESERVED_BIT: u64 = 1 << 55;

/// The time that was given back to a counter, and until when a refund may need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefundRecord {
    pub(crate) sum_us: u64,
    pub(crate) open_until_us: u64,
}

impl RefundRecord {
    /// True if the charge that `stamp` names can only be given back by a record.
    pub(crate) fn is_needed(kind: &Kind, stamp: u64) -> bool {
        let names_the_window_alone = kind.is_counted_window() && stamp & RESERVED_BIT == 0;
        kind.needs_refund_record() && !names_the_window_alone
    }

    /// For a charge of `kind` that may be given back: the record from now on, and the charge's stamp
    /// made to last. Only for kinds that need a record.
    pub(crate) fn reserve(
        before: Option<Self>,
        kind: &Kind,
        stamp: u64,
        now_us: u64,
    ) -> (Self, u64) {
        // Sums begin where the clock is, so that a stamp from a sum that was forgotten before its
        // time tells little when it is read by another.
        let sum_us = before.map_or(now_us, |before| before.sum_us);
        let until_us = kind.refundable_until_us(stamp & TIME_MASK);
        let open_until_us = before.map_or(0, |before| before.open_until_us).max(until_us);
        let reserved = if kind.is_counted_window() { RESERVED_BIT } else { 0 };
        let stamp = with_time(stamp, |time| time.saturating_add(sum_us)) | reserved;
        (Self { sum_us, open_until_us }, stamp)
    }

    /// The stamp as the algorithm understands it today.
    pub(crate) fn stamp_today(&self, stamp: u64) -> u64 {
        with_time(stamp & !RESERVED_BIT, |time| time.saturating_sub(self.sum_us))
    }

    /// The record after a refund.
    pub(crate) fn refunded(self, refund: Refund) -> Self {
        Self { sum_us: self.sum_us.saturating_add(refund.sooner_us), ..self }
    }

    /// The record after a reset: nothing charged before can be given back. The sum is not forgotten,
    /// because the next one would begin at the clock, and within the same microsecond that may be
    /// where this one began.
    pub(crate) fn closed(self, now_us: u64) -> Self {
        let open_us = self.open_until_us.saturating_sub(now_us);
        let sum_us = self.sum_us.saturating_add(open_us + CLOCK_STEP_MAX_US);
        Self { sum_us, open_until_us: 0 }
    }

    /// Until when it is kept: until the clock has passed the sum as well. The next one begins at the
    /// clock, and one that is less would make charges that are paid look as if they were not.
    pub(crate) fn kept_until_us(&self) -> u64 {
        self.open_until_us.max(self.sum_us)
    }
}

/// A stamp whose time is changed, and nothing else of it: a time that does not fit is cut to the
/// largest, which gives back less.
fn with_time(stamp: u64, change: impl FnOnce(u64) -> u64) -> u64 {
    stamp & !TIME_MASK | change(stamp & TIME_MASK).min(TIME_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_never_reaches_the_step_of_a_warm_up() {
        let stamp = (3 << 56) + 1_000;
        let later = with_time(stamp, |time| time.saturating_add(500));
        assert_eq!((later >> 56, later & TIME_MASK), (3, 1_500));
        let none_left = with_time(later, |time| time.saturating_sub(2_000));
        assert_eq!((none_left >> 56, none_left & TIME_MASK), (3, 0));
        let too_late = with_time(stamp, |time| time.saturating_add(u64::MAX));
        assert_eq!((too_late >> 56, too_late & TIME_MASK), (3, TIME_MASK));
    }
}
