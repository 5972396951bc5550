//! The oracle dressed as a store, so that the suite and the tables can judge the judge.

use std::sync::{Mutex, MutexGuard};

use tollbar::store::{Adjustment, Loan, LoanRequest, ReservationRef, mark_unused};
use tollbar::{
    Batch, Charge, Clock, Decision, Feature, ManualClock, Policy, Reply, Store, StoreError,
    Timestamp,
};

use crate::oracle::{Oracle, OracleEntry};
use crate::subject::Subject;

/// A store that forgets nothing and is in no hurry.
#[derive(Debug)]
pub struct OracleStore {
    oracle: Mutex<Oracle>,
    clock: ManualClock,
}

impl OracleStore {
    /// An empty one whose clock stands at `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self { oracle: Mutex::default(), clock: ManualClock::at(now) }
    }

    fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().expect("no judge has panicked")
    }
}

impl Store for OracleStore {
    /// Everything but custom algorithms, of which the oracle has no model.
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        match feature {
            Feature::Policy(policy) if policy.is_custom() => Err(feature.unsupported()),
            _ => Ok(()),
        }
    }

    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        if let Err(error) = self.supports(Feature::Policy(policy)) {
            return Reply::Ready(Err(error));
        }
        Reply::Ready(Ok(self.oracle().check(self.clock.now(), key, policy, cost).into()))
    }

    fn decide<'a, 'e: 'a>(&'a self, mut batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        for entry in batch.entries() {
            if let Err(error) = self.supports(Feature::Policy(entry.policy())) {
                return Reply::Ready(Err(error));
            }
        }
        let questions: Vec<OracleEntry<'_>> = batch
            .entries()
            .iter()
            .map(|entry| OracleEntry {
                key: entry.key(),
                policy: entry.policy(),
                cost: entry.cost(),
                role: entry.role(),
                alternative: entry.alternative(),
            })
            .collect();
        let now = self.clock.now();
        if batch.charge() == Charge::Independent {
            let answers = self.oracle().check_all(now, Charge::Independent, &questions);
            for (entry, answer) in batch.entries_mut().iter_mut().zip(answers) {
                entry.decide(answer.into());
            }
            return Reply::Ready(Ok(()));
        }
        let (once, hold) = (batch.charged_once(), batch.hold());
        let Ok(answers) = self.oracle().check_marked(now, &questions, once, hold) else {
            return Reply::Ready(Err(StoreError::RequestIdReused));
        };
        for (entry, charged) in batch.entries_mut().iter_mut().zip(answers) {
            entry.decide(charged.answer.into());
            entry.set_stamp(charged.stamp);
            if let Some(charged_at) = charged.repeat_of {
                entry.mark_repeat_of(charged_at);
            }
        }
        mark_unused(batch.entries_mut());
        Reply::Ready(Ok(()))
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        Reply::Ready(Ok(self.oracle().refund(self.clock.now(), key, policy, stamp, amount)))
    }

    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        Reply::Ready(Ok(self.oracle().renew(self.clock.now(), key, policy, stamp)))
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        reservation: ReservationRef<'a>,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        Reply::Ready(Ok(self.oracle().settle(self.clock.now(), reservation, adjustments)))
    }

    fn forget_request<'a>(&'a self, request_id: &'a [u8], _: &'a [u8]) -> Reply<'a, ()> {
        self.oracle().forget_request(request_id);
        Reply::Ready(Ok(()))
    }

    fn lend<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        request: LoanRequest,
    ) -> Reply<'a, Loan> {
        Reply::Ready(Ok(self.oracle().lend(self.clock.now(), key, policy, request)))
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.oracle().reset(key, policy);
        Reply::Ready(Ok(()))
    }
}

impl Subject for OracleStore {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn store(&self) -> &dyn Store {
        self
    }

    fn set_now(&self, now: Timestamp) {
        self.clock.set(now);
    }
}
