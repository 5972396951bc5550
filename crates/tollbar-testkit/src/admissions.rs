//! What a store let through, and every sum over it that a promise speaks of. Brute force.

use std::collections::BTreeMap;

use tollbar::{Outcome, Policy, Timestamp};

use crate::adversary::TraceState;
use crate::strategy::Move;
use crate::subject::Subject;

/// The admitted requests in the order of time.
#[derive(Debug, Clone, Default)]
pub struct Admissions {
    /// When, and for how many tokens.
    pub charges: Vec<(u64, u64)>,
}

/// An interval and the tokens that passed in it.
#[derive(Debug, Clone, Copy)]
pub struct IntervalSum {
    /// How long it is.
    pub length_us: u64,
    /// What passed.
    pub tokens: u64,
}

impl Admissions {
    /// Plays a trace and keeps what passes.
    pub fn from_trace(
        subject: &dyn Subject,
        policy: &Policy,
        start: Timestamp,
        moves: &[Move],
    ) -> Self {
        let mut trace_state = TraceState::at(start);
        let mut admitted = Self::default();
        for each in moves {
            trace_state.now = trace_state.advanced(each.advance, policy);
            let cost = trace_state.cost(each.price, policy);
            let answer = subject.check(trace_state.now, b"key", policy, cost);
            if answer.outcome == Outcome::Allow {
                admitted.charges.push((trace_state.now.as_micros(), cost));
            }
            trace_state.last = Some(answer);
        }
        admitted
    }

    /// What a client gets that asks for one token at every instant at which it could pass, until
    /// `requests` are answered. Asking in between would be denied, and a denial charges nothing.
    pub fn from_greedy_client(
        subject: &dyn Subject,
        policy: &Policy,
        start: Timestamp,
        requests: usize,
    ) -> Self {
        let mut now_us = start.as_micros();
        let mut admitted = Self::default();
        for _ in 0..requests {
            let now = Timestamp::from_micros(now_us);
            match subject.check(now, b"key", policy, 1).outcome {
                Outcome::Allow => admitted.charges.push((now_us, 1)),
                Outcome::Deny { retry_after_us } => now_us += retry_after_us,
                Outcome::Busy | Outcome::Never => unreachable!("one token always fits"),
            }
        }
        admitted
    }

    /// Every interval from one admitted request to another, both included: where the most passes.
    pub fn intervals(&self) -> impl Iterator<Item = IntervalSum> {
        (0..self.charges.len()).flat_map(move |first| {
            let from_us = self.charges[first].0;
            self.charges[first..].iter().scan(0, move |tokens, (at_us, cost)| {
                *tokens += cost;
                Some(IntervalSum { length_us: at_us - from_us, tokens: *tokens })
            })
        })
    }

    /// Every interval between two admitted requests, neither included: where the least passes.
    pub fn gaps(&self) -> impl Iterator<Item = IntervalSum> {
        (0..self.charges.len()).flat_map(move |first| {
            let from_us = self.charges[first].0;
            let after = self.charges[first + 1..].iter();
            after.scan(0, move |tokens, (at_us, cost)| {
                let span =
                    IntervalSum { length_us: (at_us - from_us).saturating_sub(1), tokens: *tokens };
                *tokens += cost;
                Some(span)
            })
        })
    }

    /// What passed after `end_us - window_us` and not after `end_us`.
    #[must_use]
    pub fn in_window_ending(&self, end_us: u64, window_us: u64) -> u64 {
        let within = |at_us: u64| at_us <= end_us && end_us - at_us < window_us;
        self.charges.iter().filter(|(at_us, _)| within(*at_us)).map(|(_, cost)| cost).sum()
    }

    /// The most that passed in any window of this length, wherever it begins.
    #[must_use]
    pub fn most_in_any_window(&self, window_us: u64) -> u64 {
        let ends = self.charges.iter().map(|(at_us, _)| *at_us);
        ends.map(|end_us| self.in_window_ending(end_us, window_us)).max().unwrap_or(0)
    }

    /// What passed in each window of this length that begins at a multiple of it.
    #[must_use]
    pub fn by_aligned_window(&self, window_us: u64) -> BTreeMap<u64, u64> {
        let mut sums = BTreeMap::new();
        for (at_us, cost) in &self.charges {
            *sums.entry(at_us / window_us).or_default() += cost;
        }
        sums
    }
}
