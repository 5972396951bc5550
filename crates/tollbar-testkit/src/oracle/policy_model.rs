//! What the oracle reads from a policy: its numbers, and which counters it shares.

use std::time::Duration;

use tollbar::store::{Loan, LoanRequest};
use tollbar::{Outcome, Policy, Timestamp};

use super::bucket::Bucket;
use super::calendar::Calendar;
use super::concurrency::Concurrency;
use super::fixed::Fixed;
use super::leased::Leased;
use super::log::{Event, Log};
use super::queue::Queue;
use super::sliding::Sliding;
use super::staggered::{Staggered, stagger_us};
use super::strict::Strict;
use super::warm_up::WarmUp;
use super::window_log::WindowLog;
use crate::answer::Answer;
use crate::oracle::almanac::Almanac;
use crate::oracle::model::{Lending, Model};
use crate::oracle::ratio::Ratio;

/// Policies of one identity count on the same counter of a key, whatever their limits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Token bucket and leaky bucket decide alike, and yet do not share.
    pub algorithm: &'static str,
    /// The window's length.
    pub window_us: u128,
    /// The n of strict(n); zero elsewhere.
    pub parts: u32,
    /// Of calendar windows.
    pub almanac: Option<Almanac>,
    /// With a warm-up or without, but whichever it is.
    pub warms_up: bool,
}

/// A policy as the oracle sees it.
#[derive(Debug)]
pub struct PolicyModel {
    /// Whose counter it is.
    pub identity: Identity,
    /// The limit reported.
    pub limit: u64,
    /// How it decides.
    pub model: Box<dyn Model>,
}

impl PolicyModel {
    /// Reads a policy as it is for one key.
    ///
    /// # Panics
    /// If the algorithm is none of the crate's own.
    #[must_use]
    pub fn for_key(policy: &Policy, key: &[u8]) -> Self {
        let mut policy_model = Self::from_policy(policy);
        if policy.algorithm().name() == "staggered_window" {
            let window_us = policy.window().as_micros();
            let fixed = Fixed { limit: policy.limit(), window_us };
            let stagger_us = stagger_us(key, window_us);
            policy_model.model = Box::new(Staggered { fixed, stagger_us });
        }
        if let Some(warm_up) = WarmUp::from_policy(policy, Some(key)) {
            policy_model.model = Box::new(warm_up);
        }
        policy_model
    }

    /// Reads a policy as its algorithm is without a key: nothing is staggered.
    ///
    /// # Panics
    /// If the algorithm is none of the crate's own.
    #[must_use]
    pub fn from_policy(policy: &Policy) -> Self {
        let algorithm = policy.algorithm().name();
        let limit = policy.limit();
        let window_us = policy.window().as_micros();
        let mut parts = 0;
        let mut almanac = None;
        let mut model: Box<dyn Model> = match algorithm {
            "token_bucket" | "leaky_bucket" | "leaky_queue" => {
                let interval = policy.interval().expect("a bucket has an interval");
                let numerator = u128::from(interval.numerator_us);
                let token_us = Ratio::new(numerator, u128::from(interval.denominator));
                let overdraft = policy.overdraft();
                let bucket = Bucket { token_us, burst: policy.capacity(), overdraft };
                match policy.queue_length() {
                    Some(_) => {
                        let gives_back = interval.denominator <= 1_024;
                        Box::new(Queue { bucket, max_wait: policy.max_wait(), gives_back })
                    }
                    None => Box::new(bucket),
                }
            }
            "fixed_window" | "staggered_window" => Box::new(Fixed { limit, window_us }),
            "calendar_window" => {
                let period = policy.period().expect("a calendar window has a period");
                let utc_offset_minutes = policy.utc_offset_minutes().expect("and an offset");
                let of_policy = Almanac { period, utc_offset_minutes };
                almanac = Some(of_policy);
                Box::new(Calendar { limit, almanac: of_policy })
            }
            "sliding_window_counter" => {
                let granularity_us = policy.sliding_granularity_us().unwrap_or(1).into();
                Box::new(Sliding { limit, window_us, granularity_us })
            }
            "sliding_window_strict" => {
                parts = policy.algorithm().variant() as u32;
                Box::new(Strict { limit, window_us, parts })
            }
            "sliding_window_log" => Box::new(WindowLog { limit, window_us }),
            "concurrency" => Box::new(Concurrency { limit }),
            "leased_concurrency" => {
                let ttl = policy.lease_ttl().expect("a lease has an end");
                Box::new(Leased { limit, ttl_us: ttl.as_micros() })
            }
            other => panic!("the oracle has no model of `{other}`"),
        };
        let warms_up = policy.warm_up().is_some();
        if let Some(climbing) = WarmUp::from_policy(policy, None) {
            model = Box::new(climbing);
        }
        let identity = Identity { algorithm, window_us, parts, almanac, warms_up };
        Self { identity, limit, model }
    }

    /// The answer to `cost` at `now`, which is also written down in `log` if it is a charge.
    ///
    /// # Panics
    /// If a number does not fit in 64 bits: policies are refused before that.
    pub fn answer(&self, log: &mut Log, now: Timestamp, cost: u64) -> Answer {
        let now_us = u128::from(now.as_micros());
        let model = &*self.model;
        let mut delay_us = 0;
        let outcome = if cost > model.capacity() {
            Outcome::Never
        } else if cost == 0 {
            Outcome::Allow
        } else if model.fits(log, now_us, cost) {
            delay_us = narrow(model.delay_us(log, now_us));
            model.charge(log, now_us, cost);
            Outcome::Allow
        } else if !model.tells_when() {
            Outcome::Busy
        } else {
            match model.wait_us(log, now_us, cost) {
                Some(wait_us) => Outcome::Deny { retry_after_us: narrow(wait_us) },
                None => Outcome::Busy,
            }
        };
        let mut reset_at_us = model.told_reset_at_us(log, now_us, cost);
        if let Outcome::Deny { retry_after_us } = outcome {
            reset_at_us = reset_at_us.max(now_us + u128::from(retry_after_us));
        }
        Answer {
            outcome,
            limit: model.limit(log, now_us).unwrap_or(self.limit),
            remaining: narrow(model.remaining(log, now_us)),
            reset_at: Timestamp::from_micros(narrow(reset_at_us)),
            delay_us,
        }
    }
}

impl PolicyModel {
    /// Lends as many tokens as fit under the cut that is asked for. If none do, nothing is written down.
    ///
    /// # Panics
    /// If a number does not fit in 64 bits: policies are refused before that.
    pub fn lend(&self, log: &mut Log, now: Timestamp, request: LoanRequest) -> Loan {
        let model = &*self.model;
        let Some(lending) = model.lends() else {
            return Loan::NONE;
        };
        let now_us = u128::from(now.as_micros());
        let mut lent = log.clone();
        let cut_us = request.cut.as_nanos().div_ceil(1_000);
        if lending == Lending::UnderCut {
            lent.events.push(Event::Cut { at_us: now_us, cut_us });
        }
        let tokens = request.tokens.min(narrow(model.remaining(&lent, now_us)));
        let mut life = Duration::ZERO;
        if tokens > 0 {
            let ends_in_us = narrow(model.reset_at_us(&lent, now_us) - now_us);
            life = match lending {
                Lending::UnderCut => request.term,
                Lending::UntilReset => request.term.min(Duration::from_micros(ends_in_us)),
            };
            model.charge(&mut lent, now_us, tokens);
            log.clone_from(&lent);
        }
        let mut answer = self.answer(log, now, 0);
        if tokens < request.tokens {
            let retry_after_us = narrow(model.retry_after_us(&lent, now_us, 1));
            answer.outcome = Outcome::Deny { retry_after_us };
        }
        Loan { tokens, life, decision: Some(answer.into()) }
    }
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).expect("an answer fits in 64 bits")
}
