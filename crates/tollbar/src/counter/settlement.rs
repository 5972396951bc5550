//! Refunds, renewals, settlements, loans and resets.

use super::backend::Value;
use super::batch::{Counters, mark_words};
use super::value::Counter;
use super::{Change, ContentionError, CounterBackend, CounterStore};
use crate::policy::Kind;
use crate::store::{Adjustment, Due, Feature, Loan, LoanRequest, ReservationRef, StoreError};
use crate::{Policy, Store, Timestamp};

impl<B: CounterBackend> CounterStore<B> {
    /// Changes the counter of `key` under `policy`.
    async fn alter<T: Send>(
        &self,
        key: &[u8],
        policy: &Policy,
        mut change: impl FnMut(&mut Counter, &Kind, Timestamp) -> T + Send,
    ) -> Result<T, StoreError> {
        self.supports(Feature::Policy(policy))?;
        let kind = policy.kind.for_key(key);
        let mut counters = Counters::default();
        counters.push(self.backend_keys.counter(key, policy), kind.clone());
        let step = |values: &[_], now| {
            let before = counters.read(values)?;
            let mut after = before.clone();
            let answer = change(counters.at(&mut after, 0), &kind, now);
            Ok((counters.changes(&before, &after), answer))
        };
        self.run(&counters.keys, step).await
    }

    pub(super) async fn refund_one(
        &self,
        key: &[u8],
        policy: &Policy,
        stamp: u64,
        amount: u64,
    ) -> Result<u64, StoreError> {
        self.alter(key, policy, |counter, kind, now| counter.refund(kind, now, stamp, amount)).await
    }

    pub(super) async fn renew_one(
        &self,
        key: &[u8],
        policy: &Policy,
        stamp: u64,
    ) -> Result<Option<Timestamp>, StoreError> {
        self.alter(key, policy, |counter, kind, now| counter.renew(kind, now, stamp)).await
    }

    pub(super) async fn lend_one(
        &self,
        key: &[u8],
        policy: &Policy,
        request: LoanRequest,
    ) -> Result<Loan, StoreError> {
        let lent =
            self.alter(key, policy, |counter, kind, now| counter.lend(kind, now, request)).await;
        match lent {
            Err(StoreError::Overloaded { source }) if source.is::<ContentionError>() => {
                Ok(Loan { decision: Some(self.busy(policy)), ..Loan::NONE })
            }
            lent => lent,
        }
    }

    pub(super) async fn reset_one(&self, key: &[u8], policy: &Policy) -> Result<(), StoreError> {
        self.alter(key, policy, |counter, _, now| counter.reset(now)).await
    }

    pub(super) async fn forget_mark(&self, request_id: &[u8]) -> Result<(), StoreError> {
        self.supports(Feature::RequestIds)?;
        let step = |values: &[Value], now| {
            let is_there = !values[0].words.is_empty();
            let forgotten = Change { at: 0, after: Vec::new(), forgettable_at: now };
            Ok((is_there.then_some(forgotten).into_iter().collect(), ()))
        };
        self.run(&[self.backend_keys.request(request_id)], step).await
    }

    pub(super) async fn settle_all(
        &self,
        reservation: ReservationRef<'_>,
        adjustments: &mut [Adjustment<'_>],
    ) -> Result<bool, StoreError> {
        self.supports(Feature::Reservations)?;
        let mut counters = Counters::default();
        for Adjustment { key, policy, .. } in &*adjustments {
            self.supports(Feature::Policy(policy))?;
            counters.push(self.backend_keys.counter(key, policy), policy.kind.for_key(key));
        }
        let mut keys = counters.keys.clone();
        keys.push(self.backend_keys.reservation(reservation.id));
        let mark = keys.len() - 1;
        let forgotten = reservation.request_id.filter(|_| Adjustment::gives_back(adjustments));
        keys.extend(forgotten.map(|request_id| self.backend_keys.request(request_id)));
        self.fits(keys.len(), adjustments.len())?;
        let step = |values: &[_], now| {
            if mark_words(&values[mark], now).is_none() {
                return Ok((Vec::new(), false));
            }
            let before = counters.read(values)?;
            let mut after = before.clone();
            for (at, adjustment) in adjustments.iter_mut().enumerate() {
                let Adjustment { key, policy, stamp, .. } = *adjustment;
                let (counter, kind) = (counters.at(&mut after, at), policy.kind.for_key(key));
                adjustment.adjust(match adjustment.due() {
                    Due::Refund(tokens) => counter.refund(&kind, now, stamp, tokens),
                    Due::Overdraw(tokens) => counter.overdraw(&kind, now, tokens),
                });
            }
            let mut changes = counters.changes(&before, &after);
            // Deleted in the same swap, so that it cannot be settled again, and its request pays again.
            for at in mark..values.len() {
                changes.push(Change { at, after: Vec::new(), forgettable_at: now });
            }
            Ok((changes, true))
        };
        self.run(&keys, step).await
    }
}
