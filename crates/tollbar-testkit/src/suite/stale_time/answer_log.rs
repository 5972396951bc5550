//! What was answered for each counter of a trace, and when.

use tollbar::{Interval, Outcome, Policy, Timestamp};

use crate::answer::Answer;
use crate::bounds::{AdmissionLog, Span, Spans};
use crate::oracle::OracleEntry;

/// When a request was decided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// By the clock that was read for it.
    pub(super) read_us: u64,
    /// In true time.
    pub(super) applied_us: u64,
}

impl Moment {
    pub(super) fn reading(self) -> Timestamp {
        Timestamp::from_micros(self.read_us)
    }

    pub(super) fn span(self, tokens: u64) -> Span {
        Span { from_us: self.read_us, to_us: self.applied_us, tokens }
    }
}

/// What was answered, by key and policy.
#[derive(Debug, Default)]
pub(super) struct AnswerLog<'p> {
    counters: Vec<Counter<'p>>,
}

#[derive(Debug)]
struct Counter<'p> {
    key: Vec<u8>,
    policy: &'p Policy,
    admitted: AdmissionLog,
    denied: Vec<Span>,
    /// Of a queue, from when to when each request had the way out to itself.
    turns: Vec<Span>,
}

impl<'p> AnswerLog<'p> {
    /// Adds an answer. An allowed entry of a batch that another one denied is not charged.
    pub(super) fn record(
        &mut self,
        asked: &OracleEntry<'p>,
        moment: Moment,
        answer: &Answer,
        is_charged: bool,
    ) {
        let counter = self.counter(asked.key, asked.policy);
        match answer.outcome {
            Outcome::Allow if is_charged && asked.cost > 0 => {
                let span = moment.span(asked.cost);
                counter.admitted.admitted.push(span);
                if let Some(token) = asked.policy.interval() {
                    counter.turns.push(turn(span, token, answer.delay_us));
                }
            }
            Outcome::Deny { .. } => counter.denied.push(moment.span(asked.cost)),
            _ => {}
        }
    }

    fn counter(&mut self, key: &[u8], policy: &'p Policy) -> &mut Counter<'p> {
        let is_it =
            |counter: &Counter<'_>| counter.key == key && std::ptr::eq(counter.policy, policy);
        let at = self.counters.iter().position(is_it).unwrap_or_else(|| {
            self.counters.push(Counter {
                key: key.to_vec(),
                policy,
                admitted: AdmissionLog::default(),
                denied: Vec::new(),
                turns: Vec::new(),
            });
            self.counters.len() - 1
        });
        &mut self.counters[at]
    }

    /// Checks both bounds of every counter.
    pub(super) fn judge(&self) -> Result<(), String> {
        self.counters.iter().try_for_each(|counter| {
            let both = counter.at_most().and_then(|()| counter.at_least());
            both.map_err(|story| format!("{:?}: {story}", counter.policy))
        })
    }

    /// Checks the upper bound of every counter, where the clock was set back in between.
    pub(super) fn judge_prolonged(&self) -> Result<(), String> {
        self.counters.iter().try_for_each(|counter| {
            let most = counter.at_most_prolonged();
            most.map_err(|story| format!("{:?}: {story}", counter.policy))
        })
    }
}

impl Counter<'_> {
    fn at_most(&self) -> Result<(), String> {
        match (self.policy.queue_length(), self.policy.interval()) {
            (Some(_), Some(token)) => turns_follow_each_other(token, self.turns.clone()),
            _ => self.admitted.at_most(self.policy, &self.key),
        }
    }

    /// Windows last longer where the clock is set back, and begin at other instants of true time. An
    /// interval shorter than a window still touches two of them at most.
    fn at_most_prolonged(&self) -> Result<(), String> {
        let window_us = self.policy.window().as_micros() as u64;
        let limit = match self.policy.algorithm().name() {
            "fixed_window" | "staggered_window" | "calendar_window" => 2 * self.policy.limit(),
            "sliding_window_counter" => 2 * self.policy.limit() - 1,
            _ => return self.at_most(),
        };
        Spans::new(self.admitted.admitted.clone()).at_most_in_any(window_us, limit)
    }

    fn at_least(&self) -> Result<(), String> {
        // A limit that climbs promises no least.
        if self.policy.warm_up().is_some() {
            return Ok(());
        }
        self.admitted.justifies(self.policy, &self.key, &self.denied, 0)
    }
}

/// From when to when an admitted request of a queue has the way out to itself: it departs when its
/// delay has passed, and takes its cost in intervals.
pub(super) fn turn(admitted: Span, token: Interval, delay_us: u64) -> Span {
    let taken_us = admitted.tokens * token.numerator_us / token.denominator;
    Span {
        from_us: admitted.from_us + delay_us,
        to_us: admitted.to_us + delay_us + taken_us,
        tokens: admitted.tokens,
    }
}

/// Checks that no two turns of a queue overlap: what lies wholly in an interval takes no longer than
/// it. Delays are rounded up, and what a turn takes is rounded down.
pub(super) fn turns_follow_each_other(token: Interval, turns: Vec<Span>) -> Result<(), String> {
    Spans::new(turns).at_most_at_rate(token, 0, 2)
}
