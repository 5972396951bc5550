//! What a limit admits at most and at least in any interval, as numbers: for its algorithm, its accuracy and the
//! number of nodes, while the store answers and while it does not.
//!
//! Integers only. What is too large for a number is `u64::MAX`. "At most" rounds up and "at least" rounds down.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollbar::{Accuracy, Interval, LoanTerms, Period, Policy, PolicyParts};

use crate::rule::alternative::{alternatives, text_of};
use crate::{
    Criticality, Limit, LimitAccuracyError, Mode, OnOutage, Reserve, Rule, RuleAccuracy, RuleSet,
    TierLimits,
};

/// What one limit of a rule or of a tier admits to one subject, in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitBounds {
    /// The rule's name.
    pub rule: String,
    /// The tier whose limit it is, where it is one's.
    pub tier: Option<String>,
    /// The limit as it was written; `unlimited` where there is none. Alternatives have one row together.
    pub limit: String,
    /// How it counts, or `any_of` for alternatives; `None` where there is no limit.
    pub algorithm: Option<&'static str>,
    /// How exactly it counts.
    pub accuracy: LimitAccuracy,
    /// For each length of interval that was asked for.
    pub intervals: Vec<IntervalBounds>,
}

/// How exactly one limit counts, and what that costs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitAccuracy {
    /// What the rule says, or the rule set for it.
    pub written: RuleAccuracy,
    /// How the limit is counted.
    pub accuracy: Accuracy,
    /// Why it is counted exactly although something else is said.
    pub exact_because: Option<String>,
    /// Over how many nodes the limit is divided.
    pub nodes: u64,
    /// How many tokens more than exact counting it admits in any interval, at most.
    pub over_tokens: u64,
    /// How many tokens fewer than exact counting it admits, at most: those that a bucket does without while tokens
    /// are lent, and one loan that a node forfeits because it stops or falls idle. Where each node has its part, what
    /// a client loses that reaches one node only.
    pub under_tokens: u64,
}

/// The bounds on what is admitted in any interval of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct IntervalBounds {
    /// The length.
    pub length: Duration,
    /// While the store answers.
    pub answering: AdmittedTokens,
    /// While it does not, by the rule's `on_store_failure`.
    pub unreachable: AdmittedTokens,
}

/// Tokens that are admitted. `None` is without a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdmittedTokens {
    /// At most.
    pub most: Option<u64>,
    /// At least, to a client that always asks, for one token at a time. Of a limit with a reserve this is what the least
    /// critical requests get if nobody else asks.
    pub least: Option<u64>,
}

impl RuleSet {
    /// Returns what each limit of each enabled rule admits to one subject in any interval of these lengths. Bans,
    /// boosts and exemptions aside; candidates limit nothing, and are left out.
    #[must_use]
    pub fn bounds(&self, lengths: &[Duration]) -> Vec<LimitBounds> {
        let enabled = self.rules().iter().filter(|rule| rule.enabled);
        enabled.flat_map(|rule| self.bounds_of(rule, lengths)).collect()
    }

    /// Returns what each limit of a rule admits.
    #[must_use]
    pub fn bounds_of(&self, rule: &Rule, lengths: &[Duration]) -> Vec<LimitBounds> {
        let tiers = rule.tiers.limits.iter();
        let tiers = tiers.map(|(name, limits)| (Some(&**name), limits.limits(), limits));
        let mut bounds = Vec::new();
        if rule.tiers.default.is_none() {
            let is_unlimited = rule.unlimited;
            self.add_bounds(rule, None, &rule.limits, is_unlimited, lengths, &mut bounds);
        }
        for (tier, limits, of_tier) in tiers {
            let is_unlimited = *of_tier == TierLimits::Unlimited;
            self.add_bounds(rule, tier, limits, is_unlimited, lengths, &mut bounds);
        }
        bounds
    }

    fn add_bounds(
        &self,
        rule: &Rule,
        tier: Option<&str>,
        limits: &[Limit],
        is_unlimited: bool,
        lengths: &[Duration],
        bounds: &mut Vec<LimitBounds>,
    ) {
        let row = |limit: &str, algorithm, accuracy: LimitAccuracy, intervals| LimitBounds {
            rule: rule.name.to_string(),
            tier: tier.map(str::to_owned),
            limit: limit.to_owned(),
            algorithm,
            accuracy,
            intervals,
        };
        if is_unlimited {
            let unbounded = |length: &Duration| IntervalBounds {
                length: *length,
                answering: AdmittedTokens::UNBOUNDED,
                unreachable: AdmittedTokens::UNBOUNDED,
            };
            let intervals = lengths.iter().map(unbounded).collect();
            bounds.push(row(
                "unlimited",
                None,
                LimitAccuracy::exact(RuleAccuracy::Exact),
                intervals,
            ));
        }
        if limits.iter().any(|limit| limit.alternative().is_some()) {
            let accuracy = LimitAccuracy::of_limit(self, rule, &limits[0], limits[0].policy());
            let intervals =
                lengths.iter().map(|length| self.of_alternatives(rule, limits, *length));
            let intervals = intervals.collect();
            bounds.push(row(&text_of(limits), Some("any_of"), accuracy, intervals));
            return;
        }
        for limit in limits {
            let accuracy = LimitAccuracy::of_limit(self, rule, limit, limit.policy());
            let counting = Counting::new(self, rule, limit, &accuracy);
            let intervals = lengths.iter().map(|length| counting.interval(*length)).collect();
            let algorithm = Some(limit.policy().algorithm().name());
            bounds.push(row(limit.text(), algorithm, accuracy, intervals));
        }
    }

    /// Returns what alternatives admit together. A request pays one of them: at most all of what each admits, and at least
    /// what the largest does. What several limits of one alternative admit together at least is not known, and neither is
    /// what is left for one subject of a counter that others use.
    fn of_alternatives(&self, rule: &Rule, limits: &[Limit], length: Duration) -> IntervalBounds {
        let of_limit = |limit: &Limit| {
            let accuracy = LimitAccuracy::of_limit(self, rule, limit, limit.policy());
            Counting::new(self, rule, limit, &accuracy).interval(length)
        };
        let together = |of: fn(&IntervalBounds) -> AdmittedTokens| {
            alternatives(limits).fold(AdmittedTokens::NOTHING, |sum, limits| {
                let each = || limits.iter().map(|limit| (limit, of(&of_limit(limit))));
                let most = each().filter_map(|(_, admitted)| admitted.most).min();
                let least = match limits {
                    [limit] if rule.own_per(limit).is_none() => of(&of_limit(limit)).least,
                    _ if each().all(|(_, admitted)| admitted == AdmittedTokens::UNBOUNDED) => None,
                    _ => Some(0),
                };
                AdmittedTokens {
                    most: sum.most.zip(most).map(|(sum, most)| sum.saturating_add(most)),
                    least: sum.least.zip(least).map(|(sum, least)| sum.max(least)),
                }
            })
        };
        let answering = together(|interval| interval.answering);
        let unreachable = together(|interval| interval.unreachable);
        IntervalBounds { length, answering, unreachable }
    }

    /// Returns by how many tokens a rule exceeds exact counting at most, and by how many it stays below it: the most
    /// of any of its limits.
    #[must_use]
    pub fn accuracy_bounds(&self, rule: &Rule) -> (u64, u64) {
        let of_limit = |limit: &Limit| LimitAccuracy::of_limit(self, rule, limit, limit.policy());
        rule.live_limits().map(of_limit).fold((0, 0), |(over, under), limit| {
            (over.max(limit.over_tokens), under.max(limit.under_tokens))
        })
    }
}

impl RuleSet {
    /// Returns for how long a node that is gone must be counted among the nodes: what it has admitted by itself under
    /// limits that are divided among all nodes weighs for as long. Zero where there are no such limits.
    #[must_use]
    pub fn node_memory(&self) -> Duration {
        let is_divided = |rule: &&Arc<Rule>| {
            rule.enabled && self.accuracy_of(rule) == RuleAccuracy::Local { nodes: None }
        };
        let limits = self.rules().iter().filter(is_divided).flat_map(|rule| rule.live_limits());
        limits.map(|limit| memory(limit.policy())).max().unwrap_or_default()
    }
}

/// For how long a policy remembers what it has admitted.
fn memory(policy: &Policy) -> Duration {
    match policy.parts(b"") {
        PolicyParts::Bucket { interval, burst, .. } => {
            let Interval { numerator_us, denominator } = interval;
            let full_us = u128::from(burst) * u128::from(numerator_us);
            let full_us = full_us.div_ceil(denominator.into());
            Duration::from_micros(u64::try_from(full_us).unwrap_or(u64::MAX))
        }
        PolicyParts::CalendarWindow { period, .. } => Duration::from_micros(period_us(period).1),
        // The last window counts as long as this one lasts.
        PolicyParts::SlidingWindow { .. } => policy.window().saturating_mul(2),
        _ => policy.window(),
    }
}

impl LimitAccuracy {
    /// How exactly a limit of a rule counts, by its own policy or by another one, over a store that other nodes use as
    /// well.
    pub(crate) fn of_limit(rules: &RuleSet, rule: &Rule, limit: &Limit, policy: &Policy) -> Self {
        let written = rules.accuracy_of(rule);
        if limit.alternative().is_some() && written != RuleAccuracy::Exact {
            let exact_because = Some(LimitAccuracyError::Alternatives.to_string());
            return Self { exact_because, ..Self::exact(written) };
        }
        Self::new(rules, rule, policy, limit.options().reserve)
    }

    /// How exactly `policy` counts as a limit of a rule that reserves `reserve`, over a store that other nodes use as
    /// well.
    #[must_use]
    pub fn new(rules: &RuleSet, rule: &Rule, policy: &Policy, reserve: Option<Reserve>) -> Self {
        let written = rules.accuracy_of(rule);
        match written.of_limit(policy, reserve, rules.node_count()) {
            Ok(Accuracy::Exact) => Self::exact(written),
            Ok(Accuracy::Local) => {
                let nodes = written.nodes(rules.node_count());
                let under_tokens = policy.capacity() - policy.share(nodes).capacity();
                let accuracy = Accuracy::Local;
                Self { accuracy, nodes, under_tokens, ..Self::exact(written) }
            }
            Ok(accuracy) => Self { accuracy, ..Self::loaned(written, policy, accuracy) },
            Err(error) => Self { exact_because: Some(error.to_string()), ..Self::exact(written) },
        }
    }

    /// On which terms its tokens are lent; `None` where they are not.
    #[must_use]
    pub fn loan_terms(&self) -> Option<LoanTerms> {
        match self.accuracy {
            Accuracy::Loaned(terms) => Some(terms),
            _ => None,
        }
    }

    /// How exactly a limit counts in this process, whatever is written.
    pub(crate) fn in_process(written: RuleAccuracy) -> Self {
        let why = "the counters are in this process, where every request is counted at once";
        let exact_because = (written != RuleAccuracy::Exact).then(|| why.to_owned());
        Self { exact_because, ..Self::exact(written) }
    }

    fn exact(written: RuleAccuracy) -> Self {
        Self {
            written,
            accuracy: Accuracy::Exact,
            exact_because: None,
            nodes: 1,
            over_tokens: 0,
            under_tokens: 0,
        }
    }

    fn loaned(written: RuleAccuracy, policy: &Policy, accuracy: Accuracy) -> Self {
        let (Accuracy::Loaned(terms), parts) = (accuracy, policy.parts(b"")) else {
            return Self::exact(written);
        };
        let PolicyParts::Bucket { interval, .. } = parts else {
            // What a window lends is spent in that window, or forfeited.
            return Self { under_tokens: terms.tokens_max, ..Self::exact(written) };
        };
        // 500 ms of 1000/s are 500 tokens. A cut as long as the term is what keeps a bucket from exceeding its limit.
        let over_us = terms.term.saturating_sub(terms.cut).as_micros();
        let over_tokens = earned(interval, over_us, u128::div_ceil);
        let cut_tokens = earned(interval, terms.cut.as_micros(), u128::div_ceil);
        let under_tokens = cut_tokens.saturating_add(terms.tokens_max);
        Self { over_tokens, under_tokens, ..Self::exact(written) }
    }
}

/// In a sentence: `conservative(5%): a loan lasts 500ms, and 500ms of the burst are cut; at most 0 tokens over and 2875 under`.
impl fmt::Display for LimitAccuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { written, over_tokens, under_tokens, nodes, .. } = self;
        if let Some(why) = &self.exact_because {
            return write!(f, "exact and not {written}: {why}");
        }
        match self.accuracy {
            Accuracy::Loaned(LoanTerms { term, cut, .. }) => {
                write!(f, "{written}: a loan lasts {term:?}, and {cut:?} of the burst are cut")?;
            }
            Accuracy::Local => write!(f, "{written}: this node's part of {nodes}")?,
            _ => return f.write_str("exact"),
        }
        write!(f, "; at most {over_tokens} tokens over and {under_tokens} under")
    }
}

impl AdmittedTokens {
    const UNBOUNDED: Self = Self { most: None, least: None };
    const NOTHING: Self = Self { most: Some(0), least: Some(0) };
}

/// How a limit is counted, while the store answers and while it does not.
struct Counting<'a> {
    policy: &'a Policy,
    accuracy: &'a LimitAccuracy,
    /// What each node counts by itself, if the accuracy is local.
    part: Policy,
    /// What each node counts by itself, if that is what the rule does without the store.
    outage_share: Policy,
    /// The policies of the least critical requests: under the limit, and under a node's share.
    lowest: [Policy; 2],
    node_count: u64,
    mode: Mode,
    on_outage: OnOutage,
}

impl<'a> Counting<'a> {
    fn new(rules: &RuleSet, rule: &Rule, limit: &'a Limit, accuracy: &'a LimitAccuracy) -> Self {
        let (policy, reserve) = (limit.policy(), limit.options().reserve);
        let outage_share = policy.share(rules.node_count());
        let lowest = |policy: &Policy| match reserve {
            Some(reserve) => reserve.apply(policy, Criticality::Low).into_owned(),
            None => policy.clone(),
        };
        Self {
            policy,
            accuracy,
            part: policy.share(accuracy.nodes),
            lowest: [lowest(policy), lowest(&outage_share)],
            outage_share,
            node_count: rules.node_count(),
            mode: rule.mode,
            on_outage: rule.on_store_failure,
        }
    }

    fn interval(&self, length: Duration) -> IntervalBounds {
        let length_us = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let (answering, unreachable) = match self.mode {
            // It denies nothing.
            Mode::Shadow => (AdmittedTokens::UNBOUNDED, AdmittedTokens::UNBOUNDED),
            Mode::Enforce => (self.answering(length_us), self.unreachable(length_us)),
        };
        IntervalBounds { length, answering, unreachable }
    }

    fn answering(&self, length_us: u64) -> AdmittedTokens {
        let LimitAccuracy { accuracy, nodes, over_tokens, under_tokens, .. } = *self.accuracy;
        if accuracy == Accuracy::Local {
            return on_each_node(&self.part, nodes, length_us);
        }
        let least = match self.accuracy.loan_terms() {
            Some(terms) => least_of_loans(self.policy, &terms, length_us),
            // A limit with a reserve is never lent from.
            None => least(&self.lowest[0], length_us),
        };
        AdmittedTokens {
            most: most(self.policy, length_us).map(|tokens| tokens.saturating_add(over_tokens)),
            least: Some(least.saturating_sub(under_tokens)),
        }
    }

    fn unreachable(&self, length_us: u64) -> AdmittedTokens {
        // Tokens that were lent before are spent all the same. Without a cut, what was earned while the first of them
        // were held is lent as well.
        let lent = match self.accuracy.accuracy {
            Accuracy::Loaned(_) => self.policy.capacity().saturating_add(self.accuracy.over_tokens),
            _ => 0,
        };
        let admitted = match self.on_outage {
            // It goes on. Requests that other rules count in the store as well have a part of their own.
            _ if self.accuracy.accuracy == Accuracy::Local => {
                let alone = on_each_node(&self.part, self.accuracy.nodes, length_us);
                AdmittedTokens { most: alone.most.map(|tokens| tokens.saturating_mul(2)), ..alone }
            }
            OnOutage::Allow => AdmittedTokens::UNBOUNDED,
            OnOutage::Deny => AdmittedTokens::NOTHING,
            OnOutage::Local => AdmittedTokens {
                least: Some(least(&self.lowest[1], length_us)),
                ..on_each_node(&self.outage_share, self.node_count, length_us)
            },
            OnOutage::Shed { .. } => AdmittedTokens { most: None, least: Some(0) },
        };
        AdmittedTokens { most: admitted.most.map(|tokens| tokens.saturating_add(lent)), ..admitted }
    }
}

/// All nodes together at most; at least to a client that reaches one of them.
fn on_each_node(part: &Policy, nodes: u64, length_us: u64) -> AdmittedTokens {
    AdmittedTokens {
        most: most(part, length_us).map(|tokens| tokens.saturating_mul(nodes)),
        least: Some(least(part, length_us)),
    }
}

/// The most that a policy admits from one microsecond to another `length_us` later, both included. `None` for permits:
/// they bound what is in flight, and not how often.
fn most(policy: &Policy, length_us: u64) -> Option<u64> {
    // 100/s with a burst of 20 in 2 s: 20 + 200.
    let bucket = |interval, places: u64| {
        places.saturating_add(earned(interval, length_us.into(), floor_div))
    };
    Some(match policy.parts(b"") {
        PolicyParts::Bucket { interval, burst, .. } => bucket(interval, burst),
        PolicyParts::LeakyQueue { interval, places, .. } => bucket(interval, places),
        // Two microseconds may lie in two windows: 10/s in 1 s is 20, in 2 s 30.
        PolicyParts::FixedWindow { limit, window_us, .. } => {
            limit.saturating_mul(length_us.div_ceil(window_us).saturating_add(1))
        }
        PolicyParts::CalendarWindow { limit, period, .. } => {
            let (shortest_us, _) = period_us(period);
            limit.saturating_mul(length_us.div_ceil(shortest_us).saturating_add(1))
        }
        // What was admitted in the last window weighs less by as much as has passed of this one.
        PolicyParts::SlidingWindow { limit, window_us, .. } => {
            limit.saturating_add(portion(limit, length_us, window_us))
        }
        PolicyParts::SlidingStrict { limit, .. } => {
            let window_us = micros(policy.window());
            limit.saturating_mul((length_us / window_us).saturating_add(1))
        }
        PolicyParts::SlidingLog { limit, window_us } => {
            limit.saturating_mul((length_us / window_us).saturating_add(1))
        }
        _ => return None,
    })
}

/// The least that a client gets in such an interval if it asks at every microsecond from some time before it.
fn least(policy: &Policy, length_us: u64) -> u64 {
    // Who is idle for long is new again: the first step of a warm-up is all that is sure.
    let first_step = |limit: u64| policy.warm_up().map_or(limit, |warm_up| warm_up.start);
    let bucket = |interval, places| {
        let tokens = least_of_bucket(interval, places, length_us);
        match policy.warm_up() {
            Some(warm_up) => portion(tokens, warm_up.start, policy.limit()).saturating_sub(1),
            None => tokens,
        }
    };
    match policy.parts(b"") {
        PolicyParts::Bucket { interval, burst, .. } => bucket(interval, burst),
        PolicyParts::LeakyQueue { interval, places, wait_us_max } => {
            // Nobody waits for a place that is further away than the longest wait.
            let reached =
                |wait_us: u64| earned(interval, wait_us.into(), floor_div).saturating_add(1);
            bucket(interval, wait_us_max.map_or(places, |wait_us| places.min(reached(wait_us))))
        }
        PolicyParts::FixedWindow { limit, window_us, .. }
        | PolicyParts::SlidingLog { limit, window_us } => {
            first_step(limit).saturating_mul(length_us / window_us)
        }
        PolicyParts::CalendarWindow { limit, period, .. } => {
            first_step(limit).saturating_mul(length_us / period_us(period).1)
        }
        // By the end of each whole window, all but what the one before weighs in its last tick, rounded up.
        PolicyParts::SlidingWindow { limit, window_us, tick_us } => {
            let limit = first_step(limit);
            let weight = limit.div_ceil((window_us / tick_us).max(1));
            let windows = (length_us / window_us).saturating_sub(1);
            limit.saturating_sub(weight).saturating_mul(windows)
        }
        // The whole limit, once for each window and one sub-window more.
        PolicyParts::SlidingStrict { limit, subwindow_us, subwindows } => {
            let cycle_us = subwindow_us.saturating_mul(u64::from(subwindows) + 1);
            first_step(limit).saturating_mul(length_us / cycle_us)
        }
        _ => 0,
    }
}

/// [`least`] of a limit that is lent. After a loan that was smaller than what was asked for, a node denies for a while by
/// itself, and what the counter has meanwhile is spent after that: an interval may end in such a pause.
fn least_of_loans(policy: &Policy, terms: &LoanTerms, length_us: u64) -> u64 {
    let pause_us = micros(terms.pause_max());
    let rest_us = length_us.saturating_sub(pause_us);
    let tokens = least(policy, rest_us);
    let PolicyParts::SlidingWindow { limit, window_us, .. } = policy.parts(b"") else {
        return tokens;
    };
    // What a sliding window has not admitted by its end weighs nothing in the next, and is lost. Every window may end in
    // a pause, and with a loan that arrives too late: 400/s and pauses of 150 ms lose 2 x 60.
    let lost = portion(limit, pause_us, window_us).saturating_add(1).saturating_mul(2);
    let windows = (rest_us / window_us).saturating_sub(1);
    tokens.saturating_sub(lost.saturating_mul(windows))
}

/// The rate, but for one token. A bucket that becomes full between two microseconds loses what it would have earned.
fn least_of_bucket(interval: Interval, burst: u64, length_us: u64) -> u64 {
    let Interval { numerator_us, denominator } = interval;
    let all_but_one = u128::from(burst.saturating_sub(1)) * u128::from(numerator_us);
    if denominator == 1 || all_but_one >= u128::from(denominator) {
        return earned(interval, length_us.into(), floor_div).saturating_sub(1);
    }
    match burst {
        // One token, whenever the time for it is over: 1.5 us are 2.
        0 | 1 => length_us / numerator_us.div_ceil(denominator).max(1),
        // All but one of them are earned within a microsecond.
        _ => length_us.saturating_mul(burst - 1),
    }
}

/// How many tokens a time earns.
fn earned(interval: Interval, time_us: u128, divide: fn(u128, u128) -> u128) -> u64 {
    let Interval { numerator_us, denominator } = interval;
    let tokens = divide(time_us * u128::from(denominator), numerator_us.into());
    u64::try_from(tokens).unwrap_or(u64::MAX)
}

fn floor_div(dividend: u128, divisor: u128) -> u128 {
    dividend / divisor
}

/// `tokens` x `part` / `whole`, rounded down.
fn portion(tokens: u64, part: u64, whole: u64) -> u64 {
    let tokens = u128::from(tokens) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(tokens).unwrap_or(u64::MAX)
}

/// The shortest and the longest that a period can be.
fn period_us(period: Period) -> (u64, u64) {
    const DAY_US: u64 = 86_400_000_000;
    match period {
        Period::Day => (DAY_US, DAY_US),
        Period::Week => (7 * DAY_US, 7 * DAY_US),
        // A month.
        _ => (28 * DAY_US, 31 * DAY_US),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}
