//! Requests that pay once and reservations that are settled once, written down and never deleted.

use std::collections::HashMap;
use std::time::Duration;

use tollbar::store::{Adjustment, Alternative, Due, Hold, Once, ReservationRef};
use tollbar::{Charge, Outcome, Role, Timestamp};

use super::{Oracle, OracleEntry, paid_places};
use crate::answer::Answer;
use crate::oracle::policy_model::{Identity, PolicyModel};

/// An answer, and the number of the charge in its counter's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChargedAnswer {
    /// The answer.
    pub answer: Answer,
    /// Means something only where the whole batch was charged.
    pub stamp: u64,
    /// When it was charged that is answered again; `None` for an answer of its own.
    pub repeat_of: Option<Timestamp>,
}

/// Who asked for what, and the content of the request id.
type RequestContent = (Vec<(Vec<u8>, Identity, u64, Role, Option<Alternative>)>, u128);

/// Everything that was ever marked.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestRecords {
    answered: HashMap<Vec<u8>, AnsweredRequest>,
    open: HashMap<u128, Timestamp>,
}

#[derive(Debug, Clone)]
struct AnsweredRequest {
    asked: RequestContent,
    answers: Vec<ChargedAnswer>,
    until: Timestamp,
    replays: u8,
}

/// That a request id came back with another question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestIdReused;

impl Oracle {
    /// One request under several policies, perhaps charged once, perhaps to be settled.
    ///
    /// # Errors
    /// If its id was used for another question.
    pub fn check_marked(
        &mut self,
        now: Timestamp,
        batch: &[OracleEntry<'_>],
        once: Option<Once<'_>>,
        hold: Option<Hold>,
    ) -> Result<Vec<ChargedAnswer>, RequestIdReused> {
        let entries = batch
            .iter()
            .map(|each| {
                (
                    each.key.to_vec(),
                    PolicyModel::from_policy(each.policy).identity,
                    each.cost,
                    each.role,
                    each.alternative,
                )
            })
            .collect();
        let asked: RequestContent = (entries, once.map_or(0, |once| once.content));
        let leases = batch.iter().filter_map(|each| each.policy.lease_ttl());
        let ttl = leases.fold(once.map_or(Duration::MAX, |once| once.ttl), Duration::min);
        if let Some(once) = once
            && let Some(before) = self.records.answered.get_mut(once.request_id)
            && now < before.until
        {
            if before.asked != asked {
                return Err(RequestIdReused);
            }
            if before.replays < once.replays_max {
                before.replays += 1;
                let ttl_us = ttl.as_micros().try_into().unwrap_or(u64::MAX);
                let charged_at_us = before.until.as_micros().saturating_sub(ttl_us);
                let repeat_of = Some(Timestamp::from_micros(charged_at_us));
                let again = |answer: &ChargedAnswer| ChargedAnswer { repeat_of, ..*answer };
                return Ok(before.answers.iter().map(again).collect());
            }
        }
        let answers = self.check_all(now, Charge::AllOrNone, batch);
        let paid = paid_places(batch, |at| answers[at].outcome == Outcome::Allow);
        let paid_or_none = paid.as_deref().unwrap_or_default();
        let stamps: Vec<u64> =
            (0..batch.len()).map(|at| self.stamp(batch, paid_or_none, at)).collect();
        let charged = |(answer, stamp)| ChargedAnswer { answer, stamp, repeat_of: None };
        let answers: Vec<ChargedAnswer> = answers.into_iter().zip(stamps).map(charged).collect();
        if paid.is_some() {
            if let Some(once) = once {
                let (answers, until) = (answers.clone(), now.after(ttl));
                let answered = AnsweredRequest { asked, answers, until, replays: 0 };
                self.records.answered.insert(once.request_id.to_vec(), answered);
            }
            if let Some(hold) = hold {
                self.records.open.insert(hold.id.0, now.after(hold.ttl));
            }
        }
        Ok(answers)
    }

    /// The charge of entry `at`: the last of its counter's log, before those of later entries of the
    /// same counter. Enforced entries were charged before shadows.
    fn stamp(&self, batch: &[OracleEntry<'_>], paid: &[usize], at: usize) -> u64 {
        let asked = &batch[at];
        let counter = |each: &OracleEntry<'_>| {
            (each.key.to_vec(), PolicyModel::from_policy(each.policy).identity)
        };
        let rank = |role: Role, at: usize| (role == Role::Shadow, at);
        let later = batch.iter().enumerate().filter(|(other, each)| {
            rank(each.role, *other) > rank(asked.role, at)
                && counter(each) == counter(asked)
                && each.cost > 0
                && paid.contains(other)
        });
        let later = later.count();
        let log = self.logs.get(&counter(asked));
        log.map_or(0, |log| log.stamp_of(log.events.len().saturating_sub(1 + later) as u64))
    }

    /// Forgets that a request was charged under its id.
    pub fn forget_request(&mut self, request_id: &[u8]) {
        self.records.answered.remove(request_id);
    }

    /// Settles a reservation; false where there is none.
    pub fn settle(
        &mut self,
        now: Timestamp,
        reservation: ReservationRef<'_>,
        adjustments: &mut [Adjustment<'_>],
    ) -> bool {
        let ReservationRef { id, request_id } = reservation;
        if self.records.open.get(&id.0).is_none_or(|until| now >= *until) {
            return false;
        }
        self.records.open.remove(&id.0);
        if let Some(request_id) = request_id
            && adjustments.iter().any(|adjustment| matches!(adjustment.due(), Due::Refund(1..)))
        {
            self.forget_request(request_id);
        }
        for adjustment in adjustments {
            let (key, policy) = (adjustment.key(), adjustment.policy());
            let adjusted = match adjustment.due() {
                Due::Refund(tokens) => self.refund(now, key, policy, adjustment.stamp(), tokens),
                Due::Overdraw(tokens) => self.overdraw(now, key, policy, tokens),
            };
            adjustment.adjust(adjusted);
        }
        true
    }
}
