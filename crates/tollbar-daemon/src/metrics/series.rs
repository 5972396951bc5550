//! Which rules have series of their own. The first so many have; the others share one, named `(other)`,
//! so that a scrape is bounded whatever the rules are.
//!
//! A rule that has its own keeps it for as long as it is there, and its series end with it. What is
//! counted together never goes down: rules that are gone stay in the sums.

use std::collections::HashMap;
use std::sync::Arc;

use tollbar_rules::{Counts, Limit, RuleTally, Tallies};

/// Rules, or tiers of rules, that have series of their own.
pub(crate) const OWN_SERIES_MAX: usize = 1_000;

/// The name of the others. No rule has brackets in its name.
pub(super) const OTHER: &str = "(other)";

/// Remembers who has series of their own.
#[derive(Debug, Default)]
pub(crate) struct RuleSeries {
    /// By the rules' identities.
    known: HashMap<Arc<str>, Vec<TierSeries>>,
    own_count: usize,
    /// What there was at the last look.
    last: Option<Tallies>,
    /// Of the others that are gone.
    others_gone: Counts,
    /// Of all that are gone.
    gone: Counts,
}

#[derive(Debug)]
struct TierSeries {
    tier: Option<Box<str>>,
    has_own: bool,
}

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct RuleSamples {
    /// Those that have series of their own.
    pub(super) own: Vec<RuleSample>,
    /// The others together, once there has been one.
    pub(super) others: Option<Counts>,
    /// All, those that are gone as well.
    pub(super) total: Counts,
    pub(super) rules_version: u64,
    pub(super) rule_count: usize,
}

/// One rule, or one tier of it.
#[derive(Debug)]
pub(super) struct RuleSample {
    pub(super) rule: Arc<str>,
    pub(super) tier: Option<Box<str>>,
    pub(super) counts: Counts,
    pub(super) rate: Option<SustainedRate>,
    /// Whether everybody is counted together.
    pub(super) is_for_all: bool,
    /// By how many tokens the rule exceeds exact counting at most, and by how many it stays below. `None` of other
    /// tiers than its first, and of rules that count exactly.
    pub(super) over_and_under: Option<(u64, u64)>,
}

/// What a limit admits in the long run: no more than `burst + per_window x T / window` in any time `T`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SustainedRate {
    pub(super) per_window: u64,
    pub(super) window_us: u64,
    pub(super) burst: u64,
}

impl RuleSeries {
    pub(super) fn collect(&mut self, tallies: &Tallies) -> RuleSamples {
        let mut samples = RuleSamples {
            rules_version: tallies.rules_version(),
            rule_count: tallies.rule_count(),
            ..RuleSamples::default()
        };
        for tally in tallies.iter() {
            add(&mut samples.total, &tally.counts);
            if self.register(&tally) {
                // Once for a rule, with the first of its tiers.
                let is_first = samples.own.last().is_none_or(|last| last.rule != tally.rule.name);
                let bounds = is_first.then(|| tallies.accuracy_bounds(tally.rule));
                let over_and_under = bounds.flatten();
                samples.own.push(RuleSample { over_and_under, ..RuleSample::from_tally(&tally) });
            } else {
                add(samples.others.get_or_insert_default(), &tally.counts);
            }
        }
        self.update(tallies);
        add(&mut samples.total, &self.gone);
        if self.others_gone != Counts::default() {
            add(samples.others.get_or_insert_default(), &self.others_gone);
        }
        samples
    }

    /// Returns true if the rule has series of its own. One that is new gets them while there is room.
    fn register(&mut self, tally: &RuleTally<'_>) -> bool {
        let identity = tally.rule.identity();
        if let Some(tiers) = self.known.get(&**identity)
            && let Some(known) = tiers.iter().find(|series| series.tier.as_deref() == tally.tier)
        {
            return known.has_own;
        }
        let has_own = self.own_count < OWN_SERIES_MAX;
        self.own_count += usize::from(has_own);
        let known = TierSeries { tier: tally.tier.map(Into::into), has_own };
        self.known.entry(Arc::clone(identity)).or_default().push(known);
        has_own
    }

    /// Forgets those that are gone since the last look, but for what they have counted. They have counted to
    /// their end: nobody is told of it but by what was held on to.
    pub(super) fn update(&mut self, tallies: &Tallies) {
        let before = self.last.replace(tallies.clone());
        let is_other = |before: &Tallies| before.rules_version() != tallies.rules_version();
        let Some(before) = before.filter(is_other) else {
            return;
        };
        for tally in tallies.gone_since(&before) {
            add(&mut self.gone, &tally.counts);
            if self.forget(&tally) {
                self.own_count -= 1;
            } else {
                add(&mut self.others_gone, &tally.counts);
            }
        }
    }

    /// Returns true if the rule had series of its own.
    fn forget(&mut self, tally: &RuleTally<'_>) -> bool {
        let identity = &**tally.rule.identity();
        let Some(tiers) = self.known.get_mut(identity) else {
            return false;
        };
        let place = tiers.iter().position(|series| series.tier.as_deref() == tally.tier);
        let known = place.map(|at| tiers.swap_remove(at));
        if tiers.is_empty() {
            self.known.remove(identity);
        }
        known.is_some_and(|series| series.has_own)
    }
}

impl RuleSample {
    fn from_tally(tally: &RuleTally<'_>) -> Self {
        Self {
            rule: Arc::clone(&tally.rule.name),
            tier: tally.tier.map(Into::into),
            counts: tally.counts,
            rate: SustainedRate::from_limits(tally.limits),
            is_for_all: tally.rule.per.is_empty(),
            over_and_under: None,
        }
    }
}

impl SustainedRate {
    /// That of the slowest limit. What is in flight has none.
    fn from_limits(limits: &[Limit]) -> Option<Self> {
        let paces = limits.iter().filter(|limit| !limit.policy().has_permits()).map(|limit| {
            let policy = limit.policy();
            let window_us =
                u64::try_from(policy.limit_window().as_micros()).unwrap_or(u64::MAX).max(1);
            let per_window = policy.limit();
            // A window may be met at its end and at its beginning again.
            let burst = policy.capacity().max(per_window.saturating_mul(2));
            Self { per_window, window_us, burst }
        });
        // a.limit / a.window < b.limit / b.window, without division.
        paces.min_by(|a, b| {
            let product =
                |one: &Self, other: &Self| u128::from(one.per_window) * u128::from(other.window_us);
            product(a, b).cmp(&product(b, a))
        })
    }

    /// Tokens a second, for people and graphs.
    pub(super) fn per_second(self) -> f64 {
        self.per_window as f64 * 1_000_000.0 / self.window_us as f64
    }
}

fn add(sum: &mut Counts, counts: &Counts) {
    sum.allowed += counts.allowed;
    sum.denied += counts.denied;
    sum.shadow_allowed += counts.shadow_allowed;
    sum.shadow_denied += counts.shadow_denied;
    sum.degraded_allowed += counts.degraded_allowed;
    sum.degraded_denied += counts.degraded_denied;
    sum.near_limit += counts.near_limit;
    sum.admitted_tokens = sum.admitted_tokens.wrapping_add(counts.admitted_tokens);
    sum.ahead_of_clock += counts.ahead_of_clock;
    sum.new_keys_limited += counts.new_keys_limited;
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use tollbar_rules::{Engine, Request, RuleFile, RuleSet};

    use super::*;

    /// So many rules, each of a path of its own.
    fn rules(range: std::ops::Range<usize>) -> RuleSet {
        let mut text = "rules:\n".to_owned();
        for at in range {
            let _ = writeln!(text, "  - {{ name: r{at}, match: {{ path: /{at} }}, limit: 9/day }}");
        }
        RuleFile::parse("rules.yaml", &text).unwrap().rules
    }

    fn check(engine: &Engine, path: usize) {
        let path = format!("/{path}");
        let request = Request::new("GET", &path).unwrap().with_attributes(&[("user", "1")]);
        assert!(engine.check(&request.unwrap()).is_allowed());
    }

    #[test]
    fn the_first_have_series_of_their_own_and_the_others_share_one() {
        let engine = Engine::new(rules(0..OWN_SERIES_MAX + 5));
        let mut series = RuleSeries::default();
        for path in 0..OWN_SERIES_MAX + 5 {
            check(&engine, path);
        }
        let samples = series.collect(&engine.tallies());
        assert_eq!(samples.own.len(), OWN_SERIES_MAX);
        assert!(samples.own.iter().all(|sample| sample.counts.allowed == 1));
        assert_eq!(samples.others.unwrap().allowed, 5);
        assert_eq!(samples.total.allowed, OWN_SERIES_MAX as u64 + 5);
    }

    #[test]
    fn series_of_a_rule_end_with_it_and_sums_never_go_down() {
        let engine = Engine::new(rules(0..OWN_SERIES_MAX + 5));
        let mut series = RuleSeries::default();
        for path in 0..OWN_SERIES_MAX + 5 {
            check(&engine, path);
        }
        let before = series.collect(&engine.tallies());
        let others: Vec<Arc<str>> = {
            let own: Vec<Arc<str>> =
                before.own.iter().map(|sample| Arc::clone(&sample.rule)).collect();
            let rules = engine.rules();
            let names = rules.rules().iter().map(|rule| Arc::clone(&rule.name));
            names.filter(|name| !own.contains(name)).collect()
        };
        // Ten that have their own go, and one of the others; one comes in their place.
        let gone: Vec<Arc<str>> = before.own[..10]
            .iter()
            .map(|sample| Arc::clone(&sample.rule))
            .chain([others[0].clone()])
            .collect();
        let in_force = engine.rules();
        let kept = in_force.rules().iter().filter(|rule| !gone.contains(&rule.name)).cloned();
        let new = rules(5_000..5_001).rules()[0].clone();
        engine.replace(RuleSet::of_shared(kept.chain([new]).collect()).unwrap());
        let after = series.collect(&engine.tallies());
        assert!(after.own.iter().all(|sample| !gone.contains(&sample.rule)));
        assert_eq!(
            after.own.len(),
            OWN_SERIES_MAX - 10,
            "the new one came before places were free"
        );
        assert_eq!(after.others.unwrap().allowed, 5, "what the one that is gone has counted stays");
        assert_eq!(after.total, before.total);
        for other in &others[1..] {
            let has_own = after.own.iter().any(|sample| sample.rule == *other);
            assert!(!has_own, "{other} would leave the sum of the others, which would go down");
        }
    }

    #[test]
    fn what_a_rule_has_counted_since_the_last_look_stays_when_it_goes() {
        let engine = Engine::new(rules(0..2));
        let mut series = RuleSeries::default();
        check(&engine, 0);
        series.update(&engine.tallies());
        for path in [0, 0, 1] {
            check(&engine, path);
        }
        engine.replace(rules(1..2));
        series.update(&engine.tallies());
        let samples = series.collect(&engine.tallies());
        assert_eq!((samples.own.len(), samples.total.allowed), (1, 4));
        // Nobody has seen it, so it had no series of its own.
        assert_eq!(samples.others.unwrap().allowed, 3);
    }

    #[test]
    fn the_pace_is_that_of_the_slowest_limit() {
        let rate = |limits: &[&str]| {
            let limits: Vec<Limit> =
                limits.iter().map(|text| Limit::parse(text).unwrap()).collect();
            SustainedRate::from_limits(&limits)
                .map(|rate| (rate.per_window, rate.window_us / 1_000_000, rate.burst))
        };
        assert_eq!(rate(&[]), None);
        assert_eq!(rate(&["10/s"]), Some((10, 1, 20)));
        assert_eq!(rate(&["10/s", "450/15min"]), Some((450, 900, 900)));
        assert_eq!(rate(&["450/15min", "10/s"]), Some((450, 900, 900)));
    }
}
