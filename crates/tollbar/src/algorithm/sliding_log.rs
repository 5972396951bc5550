//! Sliding window log: never more than `limit` in any window, and a client that always asks gets
//! all of it.
//!
//! The instant of every charge is kept until a window has passed over it. What counts at `now` is
//! what was charged in (now - window, now]: nothing is estimated and nothing counts too long. It is
//! paid for in memory, a word for each instant, which is why the limit has a bound of its own. The
//! retry-after is exact: the instant at which enough has left.
//!
//! Where the clock has gone back, the newest charge stays the present until it has caught up: so
//! there is one order of time, and what has left does not come back.

mod stamp;
mod stamp_slice;

pub(crate) use stamp::{Stamp, Stamps};

use stamp_slice::StampSlice;

use super::{Algorithm, Refund};
use crate::units::Rate;
use crate::{Decision, Outcome, PolicyError, Timestamp};

/// The algorithm's name.
pub const NAME: &str = "sliding_window_log";

/// The largest limit: a full log takes a word for each token.
pub const LOG_LIMIT_MAX: u64 = 10_000;

/// What a log counts at most, where more was spent than its limit allows.
pub const LOG_TOKENS_MAX: u64 = 2 * LOG_LIMIT_MAX;

const OVERDRAWN_STAMPS_MAX: usize = LOG_TOKENS_MAX.div_ceil(Stamp::TOKENS_MAX) as usize;

/// The numbers of one log policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlidingLog {
    limit: u64,
    window_us: u64,
}

/// How a log stands at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogStatus {
    now_us: u64,
    /// The clock, or the newest stamp where the clock has gone back before it.
    present_us: u64,
    /// How many stamps have left the window, and what they were worth.
    gone: usize,
    gone_tokens: u64,
}

/// Tokens that are about to be charged to a log, and when.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PendingTokens {
    pub(crate) at_us: u64,
    pub(crate) tokens: u64,
}

impl LogStatus {
    /// Writes down `tokens` that were charged, and drops the stamps that have left.
    #[inline]
    pub(crate) fn charge(&self, stamps: &mut impl Stamps, tokens: u64) {
        if self.gone > 0 {
            stamps.drop_front(self.gone, self.gone_tokens);
        }
        let mut left = tokens;
        let newest = stamps.newest();
        if newest.at_us() == self.present_us && newest.tokens() > 0 {
            // Charges of one microsecond are one stamp, as far as it holds them.
            let more = left.min(Stamp::TOKENS_MAX - newest.tokens());
            stamps.set_newest(Stamp::new(self.present_us, newest.tokens() + more));
            left -= more;
        }
        while left > 0 {
            let part = left.min(Stamp::TOKENS_MAX);
            stamps.push(Stamp::new(self.present_us, part));
            left -= part;
        }
    }

    /// How many of `amount` tokens that were spent already can be written down.
    pub(crate) fn overdraft(&self, stamps: &impl Stamps, amount: u64) -> u64 {
        let used = stamps.tokens().saturating_sub(self.gone_tokens);
        amount.min(LOG_TOKENS_MAX.saturating_sub(used))
    }

    /// What a charge made at this instant is called.
    pub(crate) fn stamp(&self) -> u64 {
        self.present_us
    }
}

impl SlidingLog {
    pub(crate) fn new(rate: Rate) -> Result<Self, PolicyError> {
        let limit = rate.whole_limit()?;
        if limit > LOG_LIMIT_MAX {
            return Err(PolicyError::LogLimit { limit });
        }
        Ok(Self { limit, window_us: rate.window_us })
    }

    /// The same window with another limit, which must be a lower one.
    pub(crate) fn with_limit(&self, limit: u64) -> Self {
        debug_assert!(limit <= self.limit);
        Self { limit, ..*self }
    }

    /// How `stamps` stand at `now_us`.
    #[inline]
    pub(crate) fn status(&self, stamps: &impl Stamps, now_us: u64) -> LogStatus {
        let newest = stamps.newest();
        let mut status =
            LogStatus { now_us, present_us: now_us.max(newest.at_us()), gone: 0, gone_tokens: 0 };
        if self.has_left(newest, status.present_us) {
            // Then so have all before it.
            return LogStatus { gone: stamps.len(), gone_tokens: stamps.tokens(), ..status };
        }
        stamps.visit(|stamp| {
            let has_left = self.has_left(stamp, status.present_us);
            if has_left {
                status.gone += 1;
                status.gone_tokens += stamp.tokens();
            }
            has_left
        });
        status
    }

    /// Decides `cost`. Reads only: what is allowed is then [charged](LogStatus::charge).
    ///
    /// The `pending` tokens are about to be charged, and are not among the stamps yet.
    #[inline]
    pub(crate) fn decide(
        &self,
        stamps: &impl Stamps,
        status: &LogStatus,
        pending: PendingTokens,
        cost: u64,
    ) -> Decision {
        let pending = match pending {
            PendingTokens { at_us, .. } if at_us + self.window_us <= status.present_us => {
                PendingTokens::default()
            }
            pending => pending,
        };
        let used = stamps.tokens().saturating_sub(status.gone_tokens) + pending.tokens;
        let remaining = self.limit.saturating_sub(used);
        let is_charge = cost > 0 && cost <= remaining;
        let outcome = if cost > self.limit {
            Outcome::Never
        } else if cost <= remaining || cost == 0 {
            Outcome::Allow
        } else {
            let needed = used + cost - self.limit;
            let allowed_at_us = self.allowed_at_us(stamps, status, pending.at_us, needed);
            Outcome::Deny { retry_after_us: allowed_at_us.saturating_sub(status.now_us) }
        };
        let newest = if is_charge {
            Some(status.present_us)
        } else if pending.tokens > 0 {
            Some(pending.at_us)
        } else {
            let charged = stamps.newest_charged();
            charged.filter(|stamp| !self.has_left(*stamp, status.present_us)).map(Stamp::at_us)
        };
        let reset_at_us = newest.map_or(status.now_us, |at_us| at_us + self.window_us);
        let reset_at = Timestamp::from_micros(reset_at_us);
        Decision::new(
            outcome,
            self.limit,
            if is_charge { remaining - cost } else { remaining },
            reset_at,
        )
    }

    /// Takes back up to `amount` tokens that were charged at `at_us`, and says how many. What has
    /// left the window was given back by time.
    pub(crate) fn give_back(
        &self,
        stamps: &mut impl Stamps,
        now_us: u64,
        at_us: u64,
        amount: u64,
    ) -> u64 {
        let present_us = now_us.max(stamps.newest().at_us());
        let left_at_us = at_us.saturating_add(self.window_us);
        if left_at_us <= present_us || amount == 0 {
            return 0;
        }
        let mut left = amount;
        let reduced = |stamp: Stamp, left: &mut u64| {
            let back = if stamp.at_us() == at_us { stamp.tokens().min(*left) } else { 0 };
            *left -= back;
            Stamp::new(stamp.at_us(), stamp.tokens() - back)
        };
        // Stays even if nothing is left of it: it is the present where the clock goes back.
        stamps.set_newest(reduced(stamps.newest(), &mut left));
        if left > 0 {
            stamps.alter_older(|stamp| {
                Some(reduced(stamp, &mut left)).filter(|stamp| stamp.tokens() > 0)
            });
        }
        amount - left
    }

    /// From when on nothing of `stamps` counts.
    pub(crate) fn fresh_at_us(&self, stamps: &impl Stamps) -> u64 {
        stamps.newest_charged().map_or(0, |stamp| stamp.at_us() + self.window_us)
    }

    #[inline]
    fn has_left(&self, stamp: Stamp, present_us: u64) -> bool {
        stamp.at_us() + self.window_us <= present_us
    }

    /// When `needed` more tokens will have left than have so far.
    fn allowed_at_us(
        &self,
        stamps: &impl Stamps,
        status: &LogStatus,
        pending_at_us: u64,
        needed: u64,
    ) -> u64 {
        // Those that are pending leave last.
        let mut last_us = pending_at_us;
        let mut to_skip = status.gone;
        let mut needed = needed;
        stamps.visit(|stamp| {
            if to_skip > 0 {
                to_skip -= 1;
                return true;
            }
            let is_last = stamp.tokens() >= needed;
            needed = needed.saturating_sub(stamp.tokens());
            if is_last {
                last_us = stamp.at_us();
            }
            !is_last
        });
        last_us + self.window_us
    }
}

/// Over words that are nobody's list: the stamps oldest first, then zeros. A store that keeps a log
/// like this keeps all of it when the limit changes, and hands in as many words as the larger limit
/// needs.
impl Algorithm for SlidingLog {
    fn name(&self) -> &'static str {
        NAME
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window_us(&self) -> u64 {
        self.window_us
    }

    /// A token has a stamp of its own at worst, and what is overdrawn a few.
    fn words(&self) -> usize {
        self.limit as usize + OVERDRAWN_STAMPS_MAX
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        let mut stamps = StampSlice::new(state);
        let status = self.status(&stamps, now.clamp_to_clock().as_micros());
        let decision = self.decide(&stamps, &status, PendingTokens::default(), cost);
        if cost > 0 && decision.is_allowed() {
            status.charge(&mut stamps, cost);
        }
        decision
    }

    fn stamp(&self, state: &[u64]) -> u64 {
        stamp_slice::newest(state).at_us()
    }

    fn refund(&self, state: &mut [u64], now: Timestamp, stamp: u64, amount: u64) -> Refund {
        let now_us = now.clamp_to_clock().as_micros();
        let tokens = self.give_back(&mut StampSlice::new(state), now_us, stamp, amount);
        Refund { tokens, sooner_us: 0 }
    }

    fn overdraw(&self, state: &mut [u64], now: Timestamp, amount: u64) -> u64 {
        let mut stamps = StampSlice::new(state);
        let status = self.status(&stamps, now.clamp_to_clock().as_micros());
        let charged = status.overdraft(&stamps, amount);
        status.charge(&mut stamps, charged);
        charged
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        let charged = stamp_slice::newest_charged(state);
        Timestamp::from_micros(charged.map_or(0, |stamp| stamp.at_us() + self.window_us))
    }
}
