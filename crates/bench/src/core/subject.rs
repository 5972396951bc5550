//! The subjects: how each limiter is built and asked.
//!
//! One file per limiter. Every closure checks a slice of keys and counts what was allowed; the
//! loop is inside, so that a call through a pointer is paid once per thousand checks.

pub(crate) mod algorithms;
pub(crate) mod floor;
#[cfg(feature = "governor")]
pub(crate) mod governor;
pub(crate) mod in_flight;
#[cfg(feature = "leaky-bucket")]
pub(crate) mod leaky_bucket;
#[cfg(feature = "limitador")]
pub(crate) mod limitador;
#[cfg(feature = "ratelimit")]
pub(crate) mod ratelimit;
#[cfg(feature = "throttlecrab")]
pub(crate) mod throttlecrab;
pub(crate) mod tollbar;
pub(crate) mod waiting;

use std::sync::Arc;

use tollbar_bench::harness::Checks;

/// A family with its table, before it is filled.
pub(crate) struct FamilyTable {
    pub(crate) trials: Vec<Trial>,
    /// Makes the table know the keys it is given.
    pub(crate) fill: Arc<Checks>,
    /// Read once, after filling: metric and value.
    pub(crate) facts: Box<dyn Fn() -> Vec<(String, f64)>>,
}

/// What can be timed.
pub(crate) struct Trial {
    pub(crate) subject: &'static str,
    /// The workload it is for; `None` for every workload of the table.
    pub(crate) workload: Option<&'static str>,
    pub(crate) checks: Arc<Checks>,
    pub(crate) expected: Expectation,
}

/// How its checks must come out for the time to mean anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expectation {
    Allow,
    Deny,
}

impl FamilyTable {
    /// One keyed subject that allows everything.
    pub(crate) fn keyed(
        subject: &'static str,
        checks: impl Fn(&[String]) -> u64 + Send + Sync + 'static,
    ) -> Self {
        let trial = Trial::allowing(subject, checks);
        Self { fill: Arc::clone(&trial.checks), trials: vec![trial], facts: Box::new(Vec::new) }
    }

    /// Trials with a limiter each, all of which are filled.
    pub(crate) fn separate(trials: Vec<Trial>) -> Self {
        let fills: Vec<_> = trials.iter().map(|trial| Arc::clone(&trial.checks)).collect();
        let fill = Arc::new(move |keys: &[String]| fills.iter().map(|fill| fill(keys)).sum());
        Self { trials, fill, facts: Box::new(Vec::new) }
    }

    pub(crate) fn trial(&self, subject: &str, workload: &str) -> Option<&Trial> {
        self.trials.iter().find(|trial| {
            trial.subject == subject && trial.workload.is_none_or(|name| name == workload)
        })
    }
}

impl Trial {
    /// Allows everything, under any workload.
    pub(crate) fn allowing(
        subject: &'static str,
        checks: impl Fn(&[String]) -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self { subject, workload: None, checks: Arc::new(checks), expected: Expectation::Allow }
    }

    /// For one workload only.
    pub(crate) fn under(
        subject: &'static str,
        workload: &'static str,
        expected: Expectation,
        checks: impl Fn(&[String]) -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self { subject, workload: Some(workload), checks: Arc::new(checks), expected }
    }
}

/// The two trials of a limiter without keys.
#[cfg(any(feature = "governor", feature = "leaky-bucket", feature = "ratelimit"))]
pub(crate) fn unkeyed<L: Send + Sync + 'static>(
    subject: &'static str,
    [allowing, denying]: [L; 2],
    check: impl Fn(&L) -> bool + Send + Sync + Copy + 'static,
) -> FamilyTable {
    let checks = move |limiter: L| move |keys: &[String]| count(keys, |_| check(&limiter));
    FamilyTable::separate(vec![
        Trial::under(subject, "unkeyed_allow", Expectation::Allow, checks(allowing)),
        Trial::under(subject, "unkeyed_deny", Expectation::Deny, checks(denying)),
    ])
}

/// How many of `keys` are allowed.
#[inline]
pub(crate) fn count(keys: &[String], mut is_allowed: impl FnMut(&String) -> bool) -> u64 {
    keys.iter().map(|key| u64::from(is_allowed(key))).sum()
}
