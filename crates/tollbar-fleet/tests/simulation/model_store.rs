//! A store that counts by the book: buckets with a cut, and windows. Written for these tests alone, so that it shares
//! no arithmetic with the stores it stands for, and so that it can be broken.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollbar::{
    Batch, Charge, Decision, Loan, LoanRequest, Outcome, Policy, PolicyParts, Reply, Role, Store,
    Timestamp,
};

use crate::network::true_now_us;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ModelStore {
    counters: Mutex<HashMap<(Vec<u8>, u64), State>>,
    fault: Option<ModelFault>,
}

impl ModelStore {
    pub(crate) fn with_fault(fault: ModelFault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }
}

/// What a store must not do: simulations have to notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelFault {
    /// Lends from a bucket without cutting its tolerance.
    NoCut,
    /// Says that a loan outlives its window.
    LongLife,
}

/// For buckets, when the debt is paid and the cut; for windows, the window's number and its count.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    first: u64,
    second: u64,
}

/// What a charge would find.
struct Room {
    tokens: u64,
    retry_after_us: u64,
    reset_at_us: u64,
}

impl State {
    fn room(self, policy: &Policy, cost: u64, now_us: u64) -> Room {
        match policy.parts(b"") {
            PolicyParts::Bucket { interval, burst, .. } => {
                let token_us = interval.numerator_us / interval.denominator;
                let (debt_us, cut_us) = (self.first.saturating_sub(now_us), self.cut_us(now_us));
                let free_us = (burst * token_us).saturating_sub(debt_us + cut_us);
                Room {
                    tokens: free_us / token_us,
                    retry_after_us: (cost * token_us).saturating_sub(free_us),
                    reset_at_us: now_us + debt_us + cut_us,
                }
            }
            PolicyParts::FixedWindow { limit, window_us, .. } => {
                let window = now_us / window_us;
                let count = if self.first == window { self.second } else { 0 };
                let end_us = (window + 1) * window_us;
                Room { tokens: limit - count, retry_after_us: end_us - now_us, reset_at_us: end_us }
            }
            other => panic!("the model cannot count {other:?}"),
        }
    }

    fn cut_us(self, now_us: u64) -> u64 {
        self.second.saturating_sub(now_us.saturating_sub(self.first))
    }

    fn charge(&mut self, policy: &Policy, tokens: u64, now_us: u64) {
        match policy.parts(b"") {
            PolicyParts::Bucket { interval, .. } => {
                self.second = self.cut_us(now_us);
                let token_us = interval.numerator_us / interval.denominator;
                self.first = self.first.max(now_us) + tokens * token_us;
            }
            PolicyParts::FixedWindow { window_us, .. } => {
                let window = now_us / window_us;
                let count = if self.first == window { self.second } else { 0 };
                (self.first, self.second) = (window, count + tokens);
            }
            other => panic!("the model cannot count {other:?}"),
        }
    }
}

fn decision(policy: &Policy, room: &Room, cost: u64, is_charged: bool) -> Decision {
    let is_allowed = cost <= room.tokens;
    let outcome = if is_allowed {
        Outcome::Allow
    } else {
        Outcome::Deny { retry_after_us: room.retry_after_us }
    };
    let remaining = room.tokens - if is_charged && is_allowed { cost } else { 0 };
    Decision::new(outcome, policy.limit(), remaining, Timestamp::from_micros(room.reset_at_us))
}

impl Store for ModelStore {
    fn decide<'a, 'e: 'a>(&'a self, mut batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        let now_us = true_now_us();
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let is_all_or_none = batch.charge() == Charge::AllOrNone;
        let mut is_denied = false;
        for entry in batch.entries_mut() {
            let name = (entry.key().to_vec(), entry.policy().identity());
            let state = counters.get(&name).copied().unwrap_or_default();
            let room = state.room(entry.policy(), entry.cost(), now_us);
            entry.decide(decision(entry.policy(), &room, entry.cost(), true));
            is_denied |= entry.role() == Role::Enforce && entry.cost() > room.tokens;
        }
        for entry in batch.entries_mut() {
            let is_paid = entry.is_paid() && !(is_all_or_none && is_denied);
            if is_paid {
                let name = (entry.key().to_vec(), entry.policy().identity());
                counters.entry(name).or_default().charge(entry.policy(), entry.cost(), now_us);
            }
        }
        Reply::Ready(Ok(()))
    }

    fn lend<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        request: LoanRequest,
    ) -> Reply<'a, Loan> {
        let now_us = true_now_us();
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state =
            counters.get(&(key.to_vec(), policy.identity())).copied().unwrap_or_default();
        let mut life = request.term;
        match policy.parts(b"") {
            PolicyParts::FixedWindow { window_us, .. } => {
                let left = Duration::from_micros(window_us - now_us % window_us);
                if self.fault != Some(ModelFault::LongLife) {
                    life = life.min(left);
                }
            }
            _ if self.fault == Some(ModelFault::NoCut) => {}
            _ => {
                let cut_us = state.cut_us(now_us).max(request.cut.as_micros() as u64);
                // So that it shrinks from now on, or from when the debt is paid.
                state.first = state.first.max(now_us);
                state.second = cut_us;
            }
        }
        let room = state.room(policy, request.tokens, now_us);
        let tokens = request.tokens.min(room.tokens);
        let decision = Some(decision(policy, &room, request.tokens, true));
        if tokens == 0 {
            return Reply::Ready(Ok(Loan { tokens, life: Duration::ZERO, decision }));
        }
        state.charge(policy, tokens, now_us);
        counters.insert((key.to_vec(), policy.identity()), state);
        Reply::Ready(Ok(Loan { tokens, life, decision }))
    }
}
