//! What loans do to a counter: tokens are charged early, and the tolerance of a bucket is cut.

use std::time::Duration;

use super::Counter;
use crate::algorithm::Algorithm;
use crate::algorithm::debt::Meter;
use crate::policy::Kind;
use crate::store::{Loan, LoanRequest};
use crate::{Decision, Timestamp};

impl Counter {
    /// Charges as many of the tokens as there are. Of a bucket these are the tokens beneath the cut that the loan
    /// asks for. If there are none, nothing is changed.
    pub(in crate::counter) fn lend(
        &mut self,
        kind: &Kind,
        now: Timestamp,
        request: LoanRequest,
    ) -> Loan {
        let mut lent = self.clone();
        lent.raise_cut(kind, now, request.cut);
        let tokens = request.tokens.min(lent.charge(kind, now, 0).0.remaining);
        let (_, stamp) = lent.charge(kind, now, tokens);
        // When there is one more to lend.
        let outcome = lent.clone().charge(kind, now, 1).0.outcome;
        if tokens > 0 {
            *self = lent;
        }
        let mut decision = self.charge(kind, now, 0).0;
        if tokens < request.tokens {
            let Decision { limit, remaining, reset_at, .. } = decision;
            decision = Decision::new(outcome, limit, remaining, reset_at);
        }
        let life = match kind {
            _ if tokens == 0 => Duration::ZERO,
            Kind::Bucket(_) => request.term,
            // The stamp of a window is its end. What was charged in it is not spent in the next.
            _ => request.term.min(Timestamp::from_micros(stamp).since(now)),
        };
        Loan { tokens, life, decision: Some(decision) }
    }

    /// What is left of its cut at `now`.
    pub(super) fn cut_left_us(&mut self, kind: &Kind, now: Timestamp) -> u64 {
        match self.cut_us {
            0 => 0,
            cut_us => Meter::cut_left_us(self.fit(kind), cut_us, now),
        }
    }

    /// [`charge`](Self::charge) of a bucket that is cut. The cut is written anew where the state is.
    pub(super) fn charge_with_cut(
        &mut self,
        kind: &Kind,
        meter: &Meter,
        now: Timestamp,
        cost: u64,
    ) -> (Decision, u64) {
        let cut_us = self.cut_left_us(kind, now);
        let decision = meter.transition_with_cut(self.fit(kind), cut_us, now, cost);
        if cost > 0 && decision.is_allowed() {
            self.cut_us = cut_us;
        }
        (decision, meter.stamp(&self.state))
    }

    /// Cuts the tolerance of a bucket by `cut`, unless more is cut already.
    fn raise_cut(&mut self, kind: &Kind, now: Timestamp, cut: Duration) {
        let cut_us = u64::try_from(cut.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        if cut_us > 0 && matches!(kind, Kind::Bucket(_)) {
            self.cut_us = self.cut_left_us(kind, now).max(cut_us);
            Meter::begin_cut(self.fit(kind), now);
        }
    }
}

#[cfg(test)]
mod exploration;
