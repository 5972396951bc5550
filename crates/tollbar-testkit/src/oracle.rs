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

use tollbar::store::{Alternative, Loan, LoanRequest};
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
    /// Of which group it is an alternative, if of any.
    pub alternative: Option<Alternative>,
}

impl<'a> From<&OracleEntry<'a>> for Entry<'a> {
    fn from(asked: &OracleEntry<'a>) -> Self {
        let entry = Self::new(asked.key, asked.policy).with_cost(asked.cost).with_role(asked.role);
        match asked.alternative {
            Some(alternative) => entry.with_alternative(alternative),
            None => entry,
        }
    }
}

/// The places of the entries of each group. An entry without alternatives is a group of its own.
fn groups(batch: &[OracleEntry<'_>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, asked) in batch.iter().enumerate() {
        let group = |asked: &OracleEntry<'_>| {
            asked.alternative.map(|alternative| (asked.role, alternative.group))
        };
        match groups.last_mut() {
            Some(last) if group(asked).is_some() && group(asked) == group(&batch[last[0]]) => {
                last.push(at);
            }
            _ => groups.push(vec![at]),
        }
    }
    groups
}

/// Returns which entries an allowed request has paid: those of the first alternative of each group that passes in whole.
/// `None` if an enforced group has no such alternative, and so the request was denied.
#[must_use]
pub fn paid_places(
    batch: &[OracleEntry<'_>],
    passes: impl Fn(usize) -> bool,
) -> Option<Vec<usize>> {
    let mut paid = Vec::new();
    for group in groups(batch) {
        let mut alternatives =
            group.chunk_by(|a, b| batch[*a].alternative == batch[*b].alternative);
        match alternatives.find(|alternative| alternative.iter().all(|at| passes(*at))) {
            Some(alternative) => paid.extend(alternative),
            None if batch[group[0]].role == Role::Enforce => return None,
            None => {}
        }
    }
    Some(paid)
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
    /// copy becomes the world if every enforced group was allowed.
    fn check_all_or_none(&mut self, now: Timestamp, batch: &[OracleEntry<'_>]) -> Vec<Answer> {
        let mut tried = self.clone();
        let mut answers: Vec<Option<Answer>> = vec![None; batch.len()];
        for role in [Role::Enforce, Role::Shadow] {
            for group in groups(batch).into_iter().filter(|group| batch[group[0]].role == role) {
                tried.pay_one_alternative(now, batch, &group, &mut answers);
            }
        }
        let passes = |at: usize| answers[at].is_some_and(|it| it.outcome == Outcome::Allow);
        let paid = paid_places(batch, passes);
        if paid.is_some() {
            *self = tried;
        }
        let paid = paid.unwrap_or_default();
        let answer = |(at, answer): (usize, &Option<Answer>)| match answer {
            Some(answer) if answer.outcome != Outcome::Allow || paid.contains(&at) => *answer,
            // It has not paid: what remains is what remained.
            _ => self.check(now, batch[at].key, batch[at].policy, 0),
        };
        answers.iter().enumerate().map(answer).collect()
    }

    /// Tries the alternatives of a group in their order, each on a world of its own, and takes the first in which
    /// all of its entries pass. Those after it are not asked.
    fn pay_one_alternative(
        &mut self,
        now: Timestamp,
        batch: &[OracleEntry<'_>],
        group: &[usize],
        answers: &mut [Option<Answer>],
    ) {
        for alternative in group.chunk_by(|a, b| batch[*a].alternative == batch[*b].alternative) {
            let mut tried = self.clone();
            for &at in alternative {
                let OracleEntry { key, policy, cost, .. } = batch[at];
                answers[at] = Some(tried.check(now, key, policy, cost));
            }
            let passes = |at: &usize| answers[*at].is_some_and(|it| it.outcome == Outcome::Allow);
            if alternative.iter().all(passes) {
                *self = tried;
                return;
            }
        }
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
