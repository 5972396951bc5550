//! The leases of a trace: granted by the oracle, then released and renewed.

use tollbar::{Charge, Outcome, Policy, Timestamp};

use crate::answer::Answer;
use crate::oracle::Oracle;
use crate::vector::{Release, Renew, Step};
use crate::xorshift::Xorshift;

/// The leases that a trace has been granted.
#[derive(Default)]
pub(super) struct Leases {
    granted: Vec<GrantedLease>,
}

struct GrantedLease {
    key: String,
    policy: usize,
    /// The oracle's.
    stamp: u64,
}

impl Leases {
    /// Releases or renews one of the last, in two of three steps. Not drawn where there are none.
    pub(super) fn draw(
        &self,
        random: &mut Xorshift,
        policies: &[Policy],
        policy_in_force: usize,
        step: &mut Step,
    ) {
        if self.granted.is_empty() {
            return;
        }
        let act = random.below(3);
        let lease =
            self.granted.len() - 1 - random.below(self.granted.len().min(6) as u64) as usize;
        let GrantedLease { key, policy, .. } = &self.granted[lease];
        // Where the rule has changed, the numbers of today count.
        let is_changed = policies[policy_in_force].lease_ttl().is_some();
        let (key, policy) = (key.clone(), if is_changed { policy_in_force } else { *policy });
        if act == 0 {
            let count = random.pick(&[1, 1 << 40, 1 << 40]);
            step.release.push(Release { key, policy, count, lease: Some(lease), expect: 0 });
        } else if act == 1 {
            step.renew.push(Renew { key, policy, lease, expect: None });
        }
    }

    /// Gives permits back and renews leases, and writes down what came of it.
    pub(super) fn settle(&self, oracle: &mut Oracle, policies: &[Policy], step: &mut Step) {
        let now = Timestamp::from_micros(step.at_us);
        let stamp = |lease: usize| self.granted[lease].stamp;
        for Release { key, policy, count, lease, expect } in &mut step.release {
            let stamp = lease.map_or(0, stamp);
            *expect = oracle.refund(now, key.as_bytes(), &policies[*policy], stamp, *count);
        }
        for Renew { key, policy, lease, expect } in &mut step.renew {
            let (key, policy) = (key.as_bytes(), &policies[*policy]);
            *expect = oracle.renew(now, key, policy, stamp(*lease)).map(Timestamp::as_micros);
        }
    }

    /// The answers the oracle gives to a step.
    pub(super) fn ask(
        &mut self,
        oracle: &mut Oracle,
        policies: &[Policy],
        step: &Step,
    ) -> Vec<Answer> {
        let now = Timestamp::from_micros(step.at_us);
        let questions = step.questions(policies);
        if step.charge == Charge::Independent {
            return oracle.check_all(now, step.charge, &questions);
        }
        let charged = oracle.check_marked(now, &questions, None, None);
        let charged = charged.expect("what has no id cannot be sent twice");
        let leased = step.entries.iter().zip(&charged).filter(|(entry, charged)| {
            let is_leased = policies[entry.policy].lease_ttl().is_some();
            is_leased && entry.cost > 0 && charged.answer.outcome == Outcome::Allow
        });
        // As many as are told: all of these, or none.
        for ((entry, _), stamp) in leased.zip(step.granted(policies, &charged)) {
            let (key, policy) = (entry.key.clone(), entry.policy);
            self.granted.push(GrantedLease { key, policy, stamp });
        }
        charged.iter().map(|charged| charged.answer).collect()
    }
}
