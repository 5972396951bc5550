//! Warm-up: whichever law a policy has, under the numbers of the step that the key has reached.
//!
//! Everything follows from the log: when the key was born, when it was last charged, how old that
//! makes it, and so which step it is on.

use std::collections::BTreeSet;

use tollbar::Policy;

use super::bucket::{Bucket, Prices};
use super::calendar::Calendar;
use super::concurrency::Concurrency;
use super::fixed::Fixed;
use super::leased::Leased;
use super::log::{Event, Log, Visit};
use super::queue::Queue;
use super::sliding::Sliding;
use super::staggered::{Staggered, stagger_us};
use super::strict::Strict;
use super::window_log::WindowLog;
use crate::oracle::almanac::Almanac;
use crate::oracle::model::Model;
use crate::oracle::ratio::Ratio;

/// A law for each step.
#[derive(Debug)]
pub struct WarmUp {
    /// How long the climb takes, and how long a key is idle until it is new again.
    pub over_us: u128,
    /// The limit and the law of each step; the first is that of a new key, the last the full one.
    pub steps: Vec<(u64, Box<dyn Model>)>,
    /// Of buckets, the most that is owed at any step, in microseconds.
    pub debt_max: Option<Ratio>,
}

/// The key's first charge since it was new, and when it will be new again.
#[derive(Debug, Clone, Copy)]
struct Life {
    born_us: u128,
    new_at_us: u128,
}

impl WarmUp {
    /// Reads a policy as it is for one key, or without one. `None` where it does not warm up.
    ///
    /// # Panics
    /// If the algorithm is none of the crate's own.
    #[must_use]
    pub fn from_policy(policy: &Policy, key: Option<&[u8]>) -> Option<Self> {
        let warm_up = policy.warm_up()?;
        let climb = policy.limit() - warm_up.start;
        let limits = (0..=warm_up.steps).map(|step| {
            let climbed = u128::from(climb) * u128::from(step) / u128::from(warm_up.steps);
            warm_up.start + u64::try_from(climbed).expect("no more than the limit")
        });
        let over_us = warm_up.over.as_nanos().div_ceil(1_000);
        if policy.queue_length().is_some() {
            let laws = buckets(policy).into_iter().map(|bucket| queue(policy, bucket));
            return Some(Self { over_us, steps: limits.zip(laws).collect(), debt_max: None });
        }
        if policy.interval().is_some() {
            let buckets = buckets(policy);
            let debt_max = buckets.iter().map(Bucket::full_debt).max();
            let plain_max = buckets.last().map(Bucket::debt_max);
            let debt_max = debt_max.max(plain_max);
            let laws = buckets.into_iter().map(|bucket| Box::new(bucket) as Box<dyn Model>);
            return Some(Self { over_us, steps: limits.zip(laws).collect(), debt_max });
        }
        let steps = limits.map(|limit| (limit, window(policy, key, limit))).collect();
        Some(Self { over_us, steps, debt_max: None })
    }

    /// Visit by visit: who comes before being new stays as old as before.
    fn life(log: &Log) -> Option<Life> {
        log.visits.iter().fold(None, |life, visit| {
            let born_us = match life {
                Some(Life { born_us, new_at_us }) if visit.at_us < new_at_us => born_us,
                _ => visit.at_us,
            };
            Some(Life { born_us, new_at_us: visit.new_at_us })
        })
    }

    /// How many steps there are to climb.
    fn height(&self) -> u128 {
        self.steps.len() as u128 - 1
    }

    fn step(&self, log: &Log, now_us: u128) -> &(u64, Box<dyn Model>) {
        let climbed = match Self::life(log) {
            Some(life) if now_us < life.new_at_us => {
                let age_us = now_us.saturating_sub(life.born_us);
                let is_climbed = |step: &u128| age_us * self.height() >= self.over_us * step;
                (1..=self.height()).filter(is_climbed).count()
            }
            _ => 0,
        };
        &self.steps[climbed]
    }

    fn model(&self, log: &Log, now_us: u128) -> &dyn Model {
        &*self.step(log, now_us).1
    }

    /// Now, and every later instant at which a key that is charged nothing changes its step.
    fn changes_us(&self, log: &Log, now_us: u128) -> BTreeSet<u128> {
        let mut changes_us = BTreeSet::from([now_us]);
        if let Some(Life { born_us, new_at_us }) = Self::life(log) {
            let climbs = (1..=self.height())
                .map(|step| born_us + (self.over_us * step).div_ceil(self.height()));
            changes_us.extend(climbs.filter(|at_us| *at_us < new_at_us));
            changes_us.insert(new_at_us);
        }
        changes_us.split_off(&now_us)
    }
}

/// Of a burst, one token is there from the beginning, and the others climb as the rate does.
fn buckets(policy: &Policy) -> Vec<Bucket> {
    let intervals = policy.warm_up_intervals().expect("a bucket has intervals");
    let tokens_us: Vec<Ratio> = intervals
        .iter()
        .map(|interval| Ratio::new(interval.numerator_us.into(), interval.denominator.into()))
        .collect();
    let full = *tokens_us.last().expect("a warm-up has a last step");
    let others = full.times(u128::from(policy.capacity()) - 1);
    let bucket = |token_us: Ratio| {
        let burst = 1 + u64::try_from(others.whole_parts(token_us)).expect("less than the burst");
        Bucket { token_us, burst, overdraft: policy.overdraft() }
    };
    tokens_us.into_iter().map(bucket).collect()
}

/// Of a queue, the first token is on its way out, and the others wait.
fn queue(policy: &Policy, bucket: Bucket) -> Box<dyn Model> {
    let intervals = policy.warm_up_intervals().expect("a queue has intervals");
    let gives_back = intervals.iter().all(|interval| interval.denominator <= 1_024);
    Box::new(Queue { bucket, max_wait: policy.max_wait(), gives_back })
}

fn window(policy: &Policy, key: Option<&[u8]>, limit: u64) -> Box<dyn Model> {
    let window_us = policy.window().as_micros();
    match policy.algorithm().name() {
        "fixed_window" => Box::new(Fixed { limit, window_us }),
        "staggered_window" => {
            let stagger_us = key.map_or(0, |key| stagger_us(key, window_us));
            Box::new(Staggered { fixed: Fixed { limit, window_us }, stagger_us })
        }
        "calendar_window" => {
            let period = policy.period().expect("a calendar window has a period");
            let utc_offset_minutes = policy.utc_offset_minutes().expect("and an offset");
            Box::new(Calendar { limit, almanac: Almanac { period, utc_offset_minutes } })
        }
        "sliding_window_counter" => {
            let granularity_us = policy.sliding_granularity_us().unwrap_or(1).into();
            Box::new(Sliding { limit, window_us, granularity_us })
        }
        "sliding_window_strict" => {
            let parts = policy.algorithm().variant() as u32;
            Box::new(Strict { limit, window_us, parts })
        }
        "sliding_window_log" => Box::new(WindowLog { limit, window_us }),
        "concurrency" => Box::new(Concurrency { limit }),
        "leased_concurrency" => {
            let ttl = policy.lease_ttl().expect("a lease has an end");
            Box::new(Leased { limit, ttl_us: ttl.as_micros() })
        }
        other => panic!("the oracle knows no warm-up of `{other}`"),
    }
}

impl Model for WarmUp {
    fn capacity(&self) -> u64 {
        self.steps.last().map_or(0, |(_, model)| model.capacity())
    }

    fn limit(&self, log: &Log, now_us: u128) -> Option<u64> {
        Some(self.step(log, now_us).0)
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        self.model(log, now_us).fits(log, now_us, cost)
    }

    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        self.model(log, now_us).remaining(log, now_us)
    }

    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        self.model(log, now_us).reset_at_us(log, now_us)
    }

    /// As the step says that the key is on.
    fn told_reset_at_us(&self, log: &Log, now_us: u128, cost: u64) -> u128 {
        self.model(log, now_us).told_reset_at_us(log, now_us, cost)
    }

    fn tells_when(&self) -> bool {
        self.steps.iter().all(|(_, model)| model.tells_when())
    }

    fn numbers_charges(&self) -> bool {
        self.steps.iter().all(|(_, model)| model.numbers_charges())
    }

    fn delay_us(&self, log: &Log, now_us: u128) -> u128 {
        self.model(log, now_us).delay_us(log, now_us)
    }

    fn renew(&self, log: &mut Log, now_us: u128, stamp: u64) -> Option<u128> {
        self.steps[0].1.renew(log, now_us, stamp)
    }

    fn charge(&self, log: &mut Log, now_us: u128, cost: u64) {
        let step = self.step(log, now_us);
        step.1.charge(log, now_us, cost);
        log.visits.push(Visit { at_us: now_us, new_at_us: now_us + self.over_us });
    }

    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool {
        self.model(log, now_us).counts(log, now_us, stamp)
    }

    /// At the price it was charged at.
    fn refund(&self, log: &mut Log, now_us: u128, stamp: u64, amount: u64) -> u64 {
        match (self.debt_max, log.events.get(stamp as usize)) {
            (Some(debt_max), Some(Event::Charged { token_us, .. })) => {
                Prices { token_us: *token_us, debt_max }.refund(log, now_us, stamp, amount)
            }
            (Some(_), _) => 0,
            // A queue and leases by what they were charged, windows and permits by the number of tokens.
            (None, _) => self.steps[0].1.refund(log, now_us, stamp, amount),
        }
    }

    fn overdraw(&self, log: &mut Log, now_us: u128, amount: u64) -> u64 {
        let (_, model) = self.step(log, now_us);
        let charged = match (self.debt_max, model.token_us()) {
            (Some(debt_max), Some(token_us)) => {
                Prices { token_us, debt_max }.overdraw(log, now_us, amount)
            }
            _ => model.overdraw(log, now_us, amount),
        };
        if charged > 0 {
            log.visits.push(Visit { at_us: now_us, new_at_us: now_us + self.over_us });
        }
        charged
    }

    /// Between two changes of the step, what has been let go stays let go: there it is searched.
    fn wait_us(&self, log: &Log, now_us: u128, cost: u64) -> Option<u128> {
        let changes_us: Vec<u128> = self.changes_us(log, now_us).into_iter().collect();
        for (from_us, until_us) in changes_us.iter().zip(&changes_us[1..]) {
            if self.fits(log, until_us - 1, cost) {
                if self.fits(log, *from_us, cost) {
                    return Some(from_us - now_us);
                }
                let (mut too_early_us, mut late_enough_us) = (*from_us, until_us - 1);
                while late_enough_us - too_early_us > 1 {
                    let middle_us = too_early_us.midpoint(late_enough_us);
                    if self.fits(log, middle_us, cost) {
                        late_enough_us = middle_us;
                    } else {
                        too_early_us = middle_us;
                    }
                }
                return Some(late_enough_us - now_us);
            }
        }
        // From here on the key is new.
        let new_at_us = *changes_us.last().expect("now is among them");
        let model = self.model(log, new_at_us);
        if cost > model.capacity() {
            return None;
        }
        let waited_us = new_at_us - now_us;
        if model.fits(log, new_at_us, cost) {
            return Some(waited_us);
        }
        Some(waited_us + model.retry_after_us(log, new_at_us, cost))
    }
}
