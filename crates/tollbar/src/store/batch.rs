//! Several questions asked of a store at once.

use std::time::Duration;

use super::alternative::Alternative;
use super::loan::{Accuracy, Source};
use super::settlement::{Hold, Once};
use crate::{Decision, Policy, Timestamp};

/// One question: may `key` pay `cost` under `policy`? The store writes the answer into it.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a Policy,
    pub(crate) cost: u64,
    pub(crate) role: Role,
    pub(crate) accuracy: Accuracy,
    pub(crate) source: Source,
    pub(crate) alternative: Option<Alternative>,
    /// Set if another alternative pays.
    pub(crate) is_unused: bool,
    pub(crate) decision: Option<Decision>,
    pub(crate) stamp: u64,
    pub(crate) repeat_of: Option<Timestamp>,
}

/// Whether an entry may deny the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// It may.
    #[default]
    Enforce,
    /// It only reports. It is charged if it and the enforced entries allow, and never denies.
    Shadow,
}

/// How the entries of a batch hang together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// They are one request under several limits: all are charged, or none.
    AllOrNone,
    /// They are different requests: each is charged by itself.
    Independent,
}

/// The entries of one call to a store.
#[derive(Debug)]
pub struct Batch<'a, 'e> {
    pub(crate) entries: &'a mut [Entry<'e>],
    pub(crate) charge: Charge,
    pub(crate) once: Option<Once<'a>>,
    pub(crate) hold: Option<Hold>,
}

impl<'a> Entry<'a> {
    /// A question of cost 1, enforced.
    #[must_use]
    pub fn new<K: AsRef<[u8]> + ?Sized>(key: &'a K, policy: &'a Policy) -> Self {
        Self {
            key: key.as_ref(),
            policy,
            cost: 1,
            role: Role::Enforce,
            accuracy: Accuracy::Exact,
            source: Source::Store,
            alternative: None,
            is_unused: false,
            decision: None,
            stamp: 0,
            repeat_of: None,
        }
    }

    /// The same question at another cost; 0 peeks.
    #[must_use]
    pub fn with_cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The same question in another role.
    #[must_use]
    pub fn with_role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// The same question, counted less exactly.
    #[must_use]
    pub fn with_accuracy(self, accuracy: Accuracy) -> Self {
        Self { accuracy, ..self }
    }

    /// Makes the entry a part of an alternative. The entries of one alternative stand side by side in a batch, and so
    /// do the alternatives of one group. Means nothing for independent entries.
    #[must_use]
    pub fn with_alternative(self, alternative: Alternative) -> Self {
        Self { alternative: Some(alternative), ..self }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// The cost.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// How exactly it must be counted.
    #[must_use]
    pub fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// The alternative that the entry belongs to; `None` for an entry that must allow by itself.
    #[must_use]
    pub fn alternative(&self) -> Option<Alternative> {
        self.alternative
    }

    /// Writes the role, and the place among alternatives if there is one: at most 3 bytes, for fingerprints of
    /// requests.
    pub fn write_role(&self, bytes: &mut impl Extend<u8>) {
        match self.alternative {
            None => bytes.extend([self.role as u8]),
            // No role by itself is as large.
            Some(Alternative { group, order }) => {
                bytes.extend([self.role as u8 | 0x80, group, order]);
            }
        }
    }

    /// Where the answer comes from.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// The store's answer; `None` until it has answered.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.decision
    }

    /// True if an allowed batch has charged it. A shadow that denies is not charged, and neither is an alternative in
    /// place of which another one pays.
    #[must_use]
    pub fn is_paid(&self) -> bool {
        !self.is_unused && self.decision.is_some_and(|decision| decision.is_allowed())
    }

    /// What the store calls the charge, for [`Store::refund`](crate::Store::refund). It means
    /// something only where the entry was charged: in an allowed batch of all or none.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// When the charge was made that this answer repeats: the request was sent before under its
    /// [id](Once::request_id), and has paid nothing now. `None` for an answer of its own.
    ///
    /// Stores remember when an id ends, and subtract the [`Once::ttl`] that it is sent with now. The
    /// time is that of the charge if an id always has the same `ttl`.
    #[must_use]
    pub fn repeat_of(&self) -> Option<Timestamp> {
        self.repeat_of
    }

    /// For stores: says that the answer repeats the one of a charge at `charged_at`.
    pub fn mark_repeat_of(&mut self, charged_at: Timestamp) {
        self.repeat_of = Some(charged_at);
    }

    /// For stores: says where the answer comes from.
    pub fn set_source(&mut self, source: Source) {
        self.source = source;
    }

    /// For stores: leaves the name of the charge in the entry.
    pub fn set_stamp(&mut self, stamp: u64) {
        self.stamp = stamp;
    }

    /// For stores: leaves the answer in the entry.
    pub fn decide(&mut self, decision: Decision) {
        self.decision = Some(decision);
    }
}

impl<'a, 'e> Batch<'a, 'e> {
    /// One request under several limits.
    #[must_use]
    pub fn all_or_none(entries: &'a mut [Entry<'e>]) -> Self {
        Self { entries, charge: Charge::AllOrNone, once: None, hold: None }
    }

    /// Requests that have nothing to do with each other.
    #[must_use]
    pub fn independent(entries: &'a mut [Entry<'e>]) -> Self {
        Self { entries, charge: Charge::Independent, once: None, hold: None }
    }

    /// The same request, charged once however often it is sent. Means nothing for independent ones.
    ///
    /// It is remembered for no longer than the shortest of its [leases](Policy::lease_ttl) lasts: a request
    /// whose permits have come back by themselves has to take them again.
    #[must_use]
    pub fn once(self, once: Once<'a>) -> Self {
        let leases = self.entries.iter().filter_map(|entry| entry.policy.lease_ttl());
        let ttl = leases.fold(once.ttl, Duration::min);
        Self { once: Some(Once { ttl, ..once }), ..self }
    }

    /// The same request as a reservation. Means nothing for independent ones.
    #[must_use]
    pub fn held(self, hold: Hold) -> Self {
        Self { hold: Some(hold), ..self }
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> &[Entry<'e>] {
        self.entries
    }

    /// For stores: the entries, to be decided.
    pub fn entries_mut(&mut self) -> &mut [Entry<'e>] {
        self.entries
    }

    /// By which name it is charged once.
    #[must_use]
    pub fn charged_once(&self) -> Option<Once<'a>> {
        self.once
    }

    /// The reservation it is.
    #[must_use]
    pub fn hold(&self) -> Option<Hold> {
        self.hold
    }

    /// How they are charged.
    #[must_use]
    pub fn charge(&self) -> Charge {
        self.charge
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Outcome, Timestamp};

    #[test]
    fn a_store_leaves_its_answers_in_the_entries() {
        let policy = Policy::token_bucket("5/s").unwrap();
        let mut entries = [Entry::new("a", &policy), Entry::new("b", &policy)];
        let decision = Decision::new(Outcome::Allow, 5, 3, Timestamp::ZERO);
        let mut batch = Batch::all_or_none(&mut entries);
        let [_, second] = batch.entries_mut() else { panic!("there are two") };
        second.decide(decision);
        second.set_stamp(7);
        assert_eq!(batch.entries().len(), 2);
        assert_eq!((entries[0].decision(), entries[0].stamp()), (None, 0));
        assert_eq!((entries[1].decision(), entries[1].stamp()), (Some(decision), 7));
    }
}
