//! A store under judgement, with a clock the judge may move.

use std::rc::Rc;

use tollbar::store::{Adjustment, Hold, Loan, LoanRequest, Once, ReservationRef};
use tollbar::{Batch, Charge, Decision, Entry, Policy, Store, StoreError, Timestamp};

use crate::answer::Answer;
use crate::oracle::{ChargedAnswer, OracleEntry, RequestIdReused};

/// A store and its clock.
pub trait Subject {
    /// What to call it when it is wrong.
    fn name(&self) -> &str;

    /// The store, empty at first.
    fn store(&self) -> &dyn Store;

    /// Puts the store's clock to `now`, forward or back.
    fn set_now(&self, now: Timestamp);

    /// Asks for one token of each key, in the way that is meant for many.
    ///
    /// # Panics
    /// If the store fails, or leaves a key without an answer.
    fn decide_many(&self, keys: &[&[u8]], policy: &Policy) -> Vec<Decision> {
        let mut entries: Vec<Entry<'_>> = keys.iter().map(|key| Entry::new(*key, policy)).collect();
        let reply = self.store().decide(Batch::independent(&mut entries)).wait();
        reply.unwrap_or_else(|error| panic!("store `{}` failed: {error}", self.name()));
        let decision = |entry: &Entry<'_>| entry.decision().expect("a store answers every entry");
        entries.iter().map(decision).collect()
    }
}

impl<S: Subject + ?Sized> Subject for Rc<S> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn store(&self) -> &dyn Store {
        (**self).store()
    }

    fn set_now(&self, now: Timestamp) {
        (**self).set_now(now);
    }

    fn decide_many(&self, keys: &[&[u8]], policy: &Policy) -> Vec<Decision> {
        (**self).decide_many(keys, policy)
    }
}

/// Makes an empty store whose clock stands at the given time.
pub type Factory<'a> = dyn Fn(Timestamp) -> Box<dyn Subject> + 'a;

impl dyn Subject + '_ {
    /// Asks for `cost` at `now`.
    ///
    /// # Panics
    /// If the store fails.
    pub fn check(&self, now: Timestamp, key: &[u8], policy: &Policy, cost: u64) -> Answer {
        self.set_now(now);
        self.answered(self.store().check(key, policy, cost).wait()).into()
    }

    /// Asks for what is left at `now`.
    pub fn peek(&self, now: Timestamp, key: &[u8], policy: &Policy) -> Answer {
        self.check(now, key, policy, 0)
    }

    /// Asks for a whole batch at `now`.
    ///
    /// # Panics
    /// If the store fails, or leaves an entry without an answer.
    pub fn check_all(
        &self,
        now: Timestamp,
        charge: Charge,
        batch: &[OracleEntry<'_>],
    ) -> Vec<Answer> {
        self.set_now(now);
        let mut entries: Vec<Entry<'_>> = batch.iter().map(Entry::from).collect();
        let batch = match charge {
            Charge::AllOrNone => Batch::all_or_none(&mut entries),
            Charge::Independent => Batch::independent(&mut entries),
        };
        self.answered(self.store().decide(batch).wait());
        entries
            .iter()
            .map(|entry| entry.decision().expect("a store answers every entry").into())
            .collect()
    }

    /// Asks for one token of each key at `now`, each charged by itself.
    pub fn check_many(&self, now: Timestamp, keys: &[&[u8]], policy: &Policy) -> Vec<Answer> {
        self.set_now(now);
        self.decide_many(keys, policy).into_iter().map(Answer::from).collect()
    }

    /// Gives `count` permits back at `now`; how many were out.
    ///
    /// # Panics
    /// If the store fails.
    pub fn release(&self, now: Timestamp, key: &[u8], policy: &Policy, count: u64) -> u64 {
        self.release_lease(now, key, policy, 0, count)
    }

    /// Gives `count` permits of a lease back at `now`; how many it still had.
    ///
    /// # Panics
    /// If the store fails.
    pub fn release_lease(
        &self,
        now: Timestamp,
        key: &[u8],
        policy: &Policy,
        stamp: u64,
        count: u64,
    ) -> u64 {
        self.set_now(now);
        self.answered(self.store().refund(key, policy, stamp, count).wait())
    }

    /// Forgets that a request was charged under its id. `key` is one that it counts by.
    ///
    /// # Panics
    /// If the store fails.
    pub fn forget_request(&self, now: Timestamp, request_id: &[u8], key: &[u8]) {
        self.set_now(now);
        self.answered(self.store().forget_request(request_id, key).wait());
    }

    /// Renews a lease at `now`; until when it is held then.
    ///
    /// # Panics
    /// If the store fails.
    pub fn renew(
        &self,
        now: Timestamp,
        key: &[u8],
        policy: &Policy,
        stamp: u64,
    ) -> Option<Timestamp> {
        self.set_now(now);
        self.answered(self.store().renew(key, policy, stamp).wait())
    }

    /// Asks for one request under several policies at `now`, perhaps charged once, perhaps to be
    /// settled.
    ///
    /// # Errors
    /// If its id was used for another question.
    ///
    /// # Panics
    /// If the store fails in another way, or leaves an entry without an answer.
    pub fn check_marked(
        &self,
        now: Timestamp,
        batch: &[OracleEntry<'_>],
        once: Option<Once<'_>>,
        hold: Option<Hold>,
    ) -> Result<Vec<ChargedAnswer>, RequestIdReused> {
        self.set_now(now);
        let mut entries: Vec<Entry<'_>> = batch.iter().map(Entry::from).collect();
        let mut batch = Batch::all_or_none(&mut entries);
        if let Some(once) = once {
            batch = batch.once(once);
        }
        if let Some(hold) = hold {
            batch = batch.held(hold);
        }
        match self.store().decide(batch).wait() {
            Err(StoreError::RequestIdReused) => return Err(RequestIdReused),
            other => self.answered(other),
        }
        let charged = |entry: &Entry<'_>| {
            let answer = entry.decision().expect("a store answers every entry").into();
            ChargedAnswer { answer, stamp: entry.stamp(), repeat_of: entry.repeat_of() }
        };
        Ok(entries.iter().map(charged).collect())
    }

    /// Settles a reservation at `now`.
    ///
    /// # Panics
    /// If the store fails.
    pub fn settle<'r>(
        &self,
        now: Timestamp,
        reservation: impl Into<ReservationRef<'r>>,
        adjustments: &mut [Adjustment<'_>],
    ) -> bool {
        self.set_now(now);
        self.answered(self.store().settle(reservation.into(), adjustments).wait())
    }

    /// Borrows tokens at `now`.
    ///
    /// # Panics
    /// If the store fails.
    pub fn lend(&self, now: Timestamp, key: &[u8], policy: &Policy, request: LoanRequest) -> Loan {
        self.set_now(now);
        self.answered(self.store().lend(key, policy, request).wait())
    }

    /// Forgets one counter.
    ///
    /// # Panics
    /// If the store fails.
    pub fn reset(&self, now: Timestamp, key: &[u8], policy: &Policy) {
        self.set_now(now);
        self.answered(self.store().reset(key, policy).wait());
    }

    fn answered<T>(&self, reply: Result<T, StoreError>) -> T {
        reply.unwrap_or_else(|error| panic!("store `{}` failed: {error}", self.name()))
    }
}
