//! Rules that have decided nothing for an hour, each reported once: what it was meant to limit may go by another
//! name now, so that nothing limits it.
//!
//! Only time in which requests are checked counts, so that a quiet night is nobody's fault. Rules that are
//! disabled, limit nothing by themselves or only stand in for others are left out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollbar::Timestamp;
use tollbar_rules::{AsyncEngine, Rule, Tallies};
use tracing::warn;

/// For how long a rule decides nothing before it is reported.
const IDLE_TIME: Duration = Duration::from_hours(1);

/// How often rules are looked at.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// The most rules that one line of the log names.
const NAMES_MAX: usize = 20;

/// Which rules decide, and which do not.
#[derive(Debug, Default)]
pub(super) struct IdleRules {
    looked_at: Option<Timestamp>,
    /// How many checks there had been then.
    check_count: u64,
    /// How much time there was in which requests were checked.
    busy_time: Duration,
    /// By the rules' identities.
    activity: HashMap<Arc<str>, RuleActivity>,
    idle_count: usize,
}

/// When a rule decided last.
#[derive(Debug)]
struct RuleActivity {
    rule: Arc<Rule>,
    decision_count: u64,
    /// The busy time until then.
    busy_time: Duration,
    is_reported: bool,
}

impl IdleRules {
    /// Looks at all rules, if it is time to, and logs those that are newly idle. Returns their names.
    pub(super) fn tick(
        &mut self,
        engine: &AsyncEngine,
        tallies: &Tallies,
        check_count: u64,
        now: Timestamp,
    ) -> Vec<Arc<str>> {
        let elapsed = self.looked_at.map(|at| now.since(at));
        if elapsed.is_some_and(|elapsed| elapsed < LOOK_EVERY) {
            return Vec::new();
        }
        if check_count > self.check_count {
            self.busy_time += elapsed.unwrap_or_default();
        }
        (self.looked_at, self.check_count) = (Some(now), check_count);
        let idle = self.look(engine, tallies);
        if !idle.is_empty() {
            let names: Vec<&str> = idle.iter().take(NAMES_MAX).map(|name| &**name).collect();
            warn!(
                rules = names.join(" "),
                more = idle.len() - names.len(),
                "these rules have decided nothing for an hour in which requests were checked: no request \
                 meets their conditions, or another rule lets, stops or replaces all that do"
            );
        }
        idle
    }

    /// How many rules are idle.
    pub(super) fn idle_count(&self) -> usize {
        self.idle_count
    }

    fn look(&mut self, engine: &AsyncEngine, tallies: &Tallies) -> Vec<Arc<str>> {
        let mut decision_counts: HashMap<&str, u64> = HashMap::new();
        for tally in tallies.iter() {
            *decision_counts.entry(tally.rule.identity()).or_default() += tally.counts.decisions();
        }
        let (mut newly_idle, mut idle_count) = (Vec::new(), 0);
        let mut activity = HashMap::with_capacity(self.activity.len());
        for rule in engine.rules().rules().iter().filter(|rule| is_expected_to_decide(rule)) {
            let decision_count = decision_counts.get(&**rule.identity()).copied().unwrap_or(0);
            let known = self.activity.remove(&**rule.identity());
            // A rule that was changed is as good as new: whoever changed it wants to know.
            let known = known.filter(|known| Arc::ptr_eq(&known.rule, rule) || known.rule == *rule);
            let mut its = known.unwrap_or_else(|| RuleActivity {
                rule: Arc::clone(rule),
                decision_count,
                busy_time: self.busy_time,
                is_reported: false,
            });
            if its.decision_count != decision_count {
                (its.decision_count, its.busy_time) = (decision_count, self.busy_time);
            }
            if self.busy_time >= its.busy_time + IDLE_TIME {
                idle_count += 1;
                if !std::mem::replace(&mut its.is_reported, true) {
                    newly_idle.push(Arc::clone(&rule.name));
                }
            }
            activity.insert(Arc::clone(rule.identity()), its);
        }
        (self.activity, self.idle_count) = (activity, idle_count);
        newly_idle
    }
}

fn is_expected_to_decide(rule: &Rule) -> bool {
    rule.enabled && !rule.unlimited && !rule.fallback
}

#[cfg(test)]
mod tests {
    use tollbar_rules::{Engine, Request, RuleFile, RuleSet};

    use super::*;

    const RULES: &str = "rules:
  - { name: used, match: { path: /a }, limit: 100000/day }
  - { name: misspelt, match: { path: /ab }, limit: 9/day }
  - { name: off, enabled: false, match: { path: /c }, limit: 9/day }
  - { name: free, match: { path: /d }, unlimited: true }
  - { name: rest, fallback: true, limit: 9/day }
";

    struct Fixture {
        engine: Engine,
        idle: IdleRules,
        now: Timestamp,
        check_count: u64,
    }

    fn rules(text: &str) -> RuleSet {
        RuleFile::parse("rules.yaml", text).unwrap().rules
    }

    impl Fixture {
        fn new() -> Self {
            let (engine, idle) = (Engine::new(rules(RULES)), IdleRules::default());
            let mut fixture =
                Self { engine, idle, now: Timestamp::from_micros(1_000_000), check_count: 0 };
            assert!(fixture.look(0, "").is_empty());
            fixture
        }

        fn look(&mut self, minutes: u64, path: &str) -> Vec<String> {
            self.now = self.now.after(Duration::from_mins(minutes));
            if !path.is_empty() {
                let verdict = self.engine.check(&Request::new("GET", path).unwrap());
                assert!(verdict.rules_version() > 0);
                self.check_count += 1;
            }
            let tallies = self.engine.tallies();
            let idle = self.idle.tick(&self.engine, &tallies, self.check_count, self.now);
            idle.iter().map(ToString::to_string).collect()
        }

        /// What is reported in so many minutes, each with a check of this path.
        fn minutes(&mut self, count: u64, path: &str) -> Vec<String> {
            (0..count).flat_map(|_| self.look(1, path)).collect()
        }
    }

    #[test]
    fn a_rule_that_decides_nothing_for_an_hour_is_reported_once() {
        let mut fixture = Fixture::new();
        assert!(fixture.minutes(59, "/a").is_empty(), "not before the hour is over");
        assert_eq!(fixture.minutes(1, "/a"), ["misspelt"]);
        assert_eq!(fixture.idle.idle_count(), 1);
        assert!(fixture.minutes(600, "/a").is_empty(), "once");
        // One that is used no more is reported as well, and one that is used again is not idle.
        assert_eq!(fixture.minutes(61, "/ab"), ["used"]);
        assert_eq!(fixture.idle.idle_count(), 1);
    }

    #[test]
    fn a_rule_that_was_changed_has_an_hour_again() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.minutes(60, "/a"), ["misspelt"]);
        fixture.engine.replace(rules(&RULES.replace("/ab", "/abc")));
        assert!(fixture.minutes(60, "/a").is_empty());
        assert_eq!(fixture.minutes(1, "/a"), ["misspelt"]);
        // A reload that changes nothing is no news.
        fixture.engine.replace(rules(&RULES.replace("/ab", "/abc")));
        assert!(fixture.minutes(120, "/a").is_empty());
    }

    #[test]
    fn time_in_which_nobody_asks_is_nobody_s_fault() {
        let mut fixture = Fixture::new();
        assert!(fixture.minutes(500, "").is_empty());
        assert!(fixture.minutes(59, "/a").is_empty());
        assert!(fixture.minutes(500, "").is_empty());
        assert_eq!(fixture.minutes(1, "/a"), ["misspelt"]);
    }
}
