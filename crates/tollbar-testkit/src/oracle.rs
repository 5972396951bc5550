//! The naive judge: it writes down every charge and answers each question from the whole log.
//!
//! Slow on purpose, so that it is plainly right. It shares no arithmetic with the crate: a bucket
//! is a debt replayed in fractions, a window is a filter over the log, and a retry-after is found
//! by asking when the same request would pass.

pub mod almanac;
mod bucket;
mod calendar;
mod concurrency;
mod fixed;
mod leased;
mod log;
mod model;
mod policy_model;
mod queue;
pub mod ratio;
mod request_records;
mod sliding;
mod staggered;
mod strict;
mod warm_up;
mod window_log;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use tollbar::store::{Loan, LoanRequest};
use tollbar::{Charge, Entry, Outcome, Policy, Role, Timestamp};

pub use self::bucket::Bucket;
pub use self::calendar::Calendar;
pub use self::concurrency::Concurrency;
pub use self::fixed::Fixed;
pub use self::leased::Leased;
pub use self::log::{Event, Log, Visit};
pub use self::queue::Queue;
pub use self::sliding::Sliding;
pub use self::staggered::Staggered;
pub use self::strict::Strict;
pub use self::warm_up::WarmUp;
pub use self::window_log::WindowLog;
use crate::answer::Answer;
pub use crate::oracle::model::{Lending, Model};
pub use crate::oracle::policy_model::{Identity, PolicyModel};
use crate::oracle::request_records::RequestRecords;
pub use crate::oracle::request_records::{ChargedAnswer, RequestIdReused};

/// One entry of a batch, as the oracle is asked.
#[derive(Debug, Clone, Copy)]
pub struct OracleEntry<'a> {
    /// Who.
    pub key: &'a [u8],
    /// Under which numbers.
    pub policy: &'a Policy,
    /// For how many tokens.
    pub cost: u64,
    /// Whether it counts towards the verdict.
    pub role: Role,
}

impl<'a> From<&OracleEntry<'a>> for Entry<'a> {
    fn from(asked: &OracleEntry<'a>) -> Self {
        Self::new(asked.key, asked.policy).with_cost(asked.cost).with_role(asked.role)
    }
}

/// Every counter there ever was.
#[derive(Debug, Clone, Default)]
pub struct Oracle {
    logs: HashMap<(Vec<u8>, Identity), Log>,
    records: RequestRecords,
}

impl Oracle {
    /// A judge that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One request under one policy.
    pub fn check(&mut self, now: Timestamp, key: &[u8], policy: &Policy, cost: u64) -> Answer {
        let policy_model = PolicyModel::for_key(policy, key);
        let log = self.logs.entry((key.to_vec(), policy_model.identity.clone())).or_default();
        policy_model.answer(log, now, cost)
    }

    /// Several requests at one instant.
    pub fn check_all(
        &mut self,
        now: Timestamp,
        charge: Charge,
        batch: &[OracleEntry<'_>],
    ) -> Vec<Answer> {
        match charge {
            Charge::AllOrNone => self.check_all_or_none(now, batch),
            Charge::Independent => self.check_independent(now, batch),
        }
    }

    fn check_independent(&mut self, now: Timestamp, batch: &[OracleEntry<'_>]) -> Vec<Answer> {
        batch.iter().map(|asked| self.check(now, asked.key, asked.policy, asked.cost)).collect()
    }

    /// The entries are tried in order on a copy of the world, each seeing the charges of those
    /// before it: first the enforced ones, so that no shadow can be the reason for a denial. The
    /// copy becomes the world if every enforced entry was allowed.
    fn check_all_or_none(&mut self, now: Timestamp, batch: &[OracleEntry<'_>]) -> Vec<Answer> {
        let mut tried = self.clone();
        let mut answers = vec![None; batch.len()];
        for role in [Role::Enforce, Role::Shadow] {
            for (asked, answer) in batch.iter().zip(&mut answers) {
                if asked.role == role {
                    *answer = Some(tried.check(now, asked.key, asked.policy, asked.cost));
                }
            }
        }
        let answers: Vec<Answer> = answers.into_iter().flatten().collect();
        let denied = |(asked, answer): (&OracleEntry<'_>, &Answer)| {
            asked.role == Role::Enforce && answer.outcome != Outcome::Allow
        };
        if !batch.iter().zip(&answers).any(denied) {
            *self = tried;
            return answers;
        }
        let reported = batch.iter().zip(answers).map(|(asked, answer)| match answer.outcome {
            // It would have passed, and has not paid: what remains is what remained.
            Outcome::Allow => self.check(now, asked.key, asked.policy, 0),
            Outcome::Deny { .. } | Outcome::Busy | Outcome::Never => answer,
        });
        reported.collect()
    }

    /// Gives back up to `amount` of the charge that `stamp` numbers, as far as it still counts.
    pub fn refund(
        &mut self,
        now: Timestamp,
        key: &[u8],
        policy: &Policy,
        stamp: u64,
        amount: u64,
    ) -> u64 {
        let policy_model = PolicyModel::for_key(policy, key);
        let log = self.logs.entry((key.to_vec(), policy_model.identity.clone())).or_default();
        // A permit is like any other, whenever it was taken.
        let number =
            if policy_model.model.numbers_charges() { log.number_of(stamp) } else { Some(0) };
        number.map_or(0, |number| {
            policy_model.model.refund(log, now.as_micros().into(), number, amount)
        })
    }

    /// Charges what was spent already, as far as a debt may go.
    pub fn overdraw(&mut self, now: Timestamp, key: &[u8], policy: &Policy, amount: u64) -> u64 {
        let policy_model = PolicyModel::for_key(policy, key);
        let log = self.logs.entry((key.to_vec(), policy_model.identity.clone())).or_default();
        policy_model.model.overdraw(log, now.as_micros().into(), amount)
    }

    /// Charges tokens early, for somebody to spend later.
    pub fn lend(
        &mut self,
        now: Timestamp,
        key: &[u8],
        policy: &Policy,
        request: LoanRequest,
    ) -> Loan {
        let policy_model = PolicyModel::for_key(policy, key);
        let log = self.logs.entry((key.to_vec(), policy_model.identity.clone())).or_default();
        policy_model.lend(log, now, request)
    }

    /// Renews the lease that `stamp` numbers, and says until when; `None` where it is gone.
    pub fn renew(
        &mut self,
        now: Timestamp,
        key: &[u8],
        policy: &Policy,
        stamp: u64,
    ) -> Option<Timestamp> {
        let policy_model = PolicyModel::for_key(policy, key);
        let log = self.logs.entry((key.to_vec(), policy_model.identity.clone())).or_default();
        let number = log.number_of(stamp)?;
        let ends_at_us = policy_model.model.renew(log, now.as_micros().into(), number)?;
        Some(Timestamp::from_micros(u64::try_from(ends_at_us).unwrap_or(u64::MAX)))
    }

    /// Forgets one counter; but not that it did, so that no stamp from before names a charge since.
    pub fn reset(&mut self, key: &[u8], policy: &Policy) {
        if let Some(log) =
            self.logs.get_mut(&(key.to_vec(), PolicyModel::from_policy(policy).identity))
        {
            *log = Log { resets: log.resets + 1, ..Log::default() };
        }
    }
}
