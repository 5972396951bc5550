//! Which rules fit together, and what is said of those that do not.

use super::*;
use crate::{Costs, Limit, LimitOptions, Test, TierLimits, Tiers};

fn rule(name: &str, limits: &[&str]) -> Rule {
    let limits = limits.iter().map(|text| Limit::parse(text).unwrap()).collect();
    Rule { limits, ..Rule::new(name) }
}

#[track_caller]
fn refused(rules: Vec<Rule>, messages: &[&str]) {
    let errors = RuleSet::new(rules).expect_err("these do not fit together").errors;
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), messages);
}

#[test]
fn rules_are_looked_at_by_priority_and_then_by_name() {
    let high = Rule { priority: 5, ..rule("z", &["1/s"]) };
    let set = RuleSet::new(vec![rule("b", &["1/s"]), high, rule("a", &["1/s"])]).unwrap();
    let names: Vec<&str> = set.rules().iter().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["z", "a", "b"]);
}

#[test]
fn an_error_says_how_many_rules_are_wrong_and_what_is_wrong_with_the_first() {
    let error = RuleSet::new(vec![rule("a", &[]), rule("b", &[])]).unwrap_err();
    let [first, _] = &*error.errors else { panic!("{error:?}") };
    assert!(first.to_string().contains("of rule `a`"), "{first}");
    assert_eq!(error.to_string(), format!("2 of the rules cannot be used: {first}"));
}

#[test]
fn names_are_identities() {
    refused(
        vec![rule("a", &["1/s"]), rule("a", &["2/s"])],
        &[
            "`name` of rule `a`: another rule has the name `a`: counters are kept by name, so write another one",
        ],
    );
    let with_id = Rule { id: Some("a".into()), ..rule("b", &["1/s"]) };
    refused(
        vec![rule("a", &["1/s"]), with_id],
        &[
            "`id` of rule `b`: another rule has the id or the name `a`: counters are kept by it, so write another one",
        ],
    );
    refused(
        vec![rule("a#b", &["1/s"])],
        &[
            "`name` of rule `a#b`: a name has 1 to 128 letters, digits and `_ - . : /`: write one such as `per_client`",
        ],
    );
}

#[test]
fn a_rule_has_limits_that_can_be_told_apart() {
    refused(
        vec![rule("a", &[])],
        &[
            "`limit` of rule `a`: the rule has no limit: write one such as `limit: 10/s`, or `unlimited: true`",
        ],
    );
    refused(
        vec![Rule { unlimited: true, ..rule("a", &["1/s"]) }],
        &[
            "`limit` of rule `a`: an unlimited rule has no limits: leave out `limit`, or `unlimited`",
        ],
    );
    refused(
        vec![rule("a", &["10/min", "20/60s"])],
        &[
            "`limit` of rule `a`: `10/min` and `20/60s` have the same algorithm and window, so they would count together: keep the lower one",
        ],
    );
    let nine: Vec<String> = (1..=9).map(|n| format!("1/{n}s")).collect();
    let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
    refused(
        vec![rule("a", &nine)],
        &["`limit` of rule `a`: 9 limits are too many: write at most 8"],
    );
    let bucket = Limit::new("10/min", LimitOptions { burst: Some(9), ..LimitOptions::default() });
    let mut both = rule("a", &["10/min"]);
    both.limits.push(bucket.unwrap());
    assert!(RuleSet::new(vec![both]).is_ok());
}

#[test]
fn tiers_cover_every_request() {
    let tier =
        |name: &str| (Box::from(name), TierLimits::Limits(vec![Limit::parse("9/s").unwrap()]));
    let tiers = Tiers { limits: vec![tier("free"), tier("paid")], default: None };
    let without = Rule { tiers: tiers.clone(), ..Rule::new("a") };
    refused(
        vec![without],
        &[
            "`tiers` of rule `a`: requests of another tier have no limit: write `default: free` among the tiers, or a `limit`",
        ],
    );
    let wrong = Tiers { default: Some("fre".into()), ..tiers.clone() };
    refused(
        vec![Rule { tiers: wrong, ..Rule::new("a") }],
        &["`tiers` of rule `a`: there is no tier `fre`: write one of `free`, `paid`"],
    );
    let right = Tiers { default: Some("free".into()), ..tiers.clone() };
    assert!(RuleSet::new(vec![Rule { tiers: right, ..Rule::new("a") }]).is_ok());
    assert!(RuleSet::new(vec![Rule { tiers, ..rule("a", &["1/s"]) }]).is_ok());
}

#[test]
fn a_cost_that_can_never_be_paid_is_refused() {
    let costly = |cost| Rule { costs: Costs::fixed(cost), ..rule("a", &["10/s", "9/min"]) };
    assert!(RuleSet::new(vec![costly(9)]).is_ok());
    refused(
        vec![costly(10)],
        &[
            "`cost` of rule `a`: a cost of 10 can never be paid under `9/min`, which holds 9: write a lower cost, or a larger limit or burst",
        ],
    );
}

#[test]
fn rules_replace_others_that_exist() {
    let replacing = |name: &str| Rule { replaces: vec![name.into()], ..rule("a", &["1/s"]) };
    refused(
        vec![replacing("b")],
        &[
            "`replaces` of rule `a`: there is no rule `b` to be replaced: write the name of another rule",
        ],
    );
    refused(
        vec![replacing("a")],
        &["`replaces` of rule `a`: a rule cannot replace itself: write the name of another rule"],
    );
    assert!(RuleSet::new(vec![replacing("b"), rule("b", &["1/s"])]).is_ok());
    let fallback = Rule { fallback: true, stop: true, ..rule("a", &["1/s"]) };
    refused(
        vec![fallback],
        &[
            "`stop` of rule `a`: a fallback applies only where no other rule does, so it can keep none from applying: leave out `stop`",
        ],
    );
}

#[test]
fn more_limits_on_every_request_than_a_store_takes_are_refused() {
    let mut rules: Vec<Rule> = (0..33).map(|n| rule(&format!("r{n}"), &["1/s"])).collect();
    let errors = RuleSet::new(rules.clone()).unwrap_err().errors;
    assert_eq!((errors.len(), errors[0].rule), (1, 32));
    assert!(errors[0].to_string().contains("33 limits apply to every request"));
    rules[0].conditions = rules[0].conditions.clone().and("tenant", Test::equal("acme"));
    assert!(RuleSet::new(rules).is_ok());
}

#[test]
fn rules_whose_counters_matter_for_an_hour_or_longer_are_found() {
    let rules = vec![
        rule("minutely", &["100/min"]),
        rule("half_hourly", &["100/30min"]),
        rule("hourly", &["100/h"]),
        rule("mixed", &["10/s", "1000/day"]),
        rule("monthly", &["10000 per calendar month"]),
        rule("daily", &["10 per calendar day"]),
        Rule { enabled: false, ..rule("disabled", &["100/h"]) },
        Rule { mode: Mode::Shadow, ..rule("shadow", &["100/h"]) },
    ];
    let options = LimitOptions { burst: Some(10), ..LimitOptions::default() };
    // Ten requests of a thousand a day are earned back in a quarter of an hour.
    let limits = vec![Limit::new("1000/day", options).unwrap()];
    let small_burst = Rule { limits, ..Rule::new("small_burst") };
    let set = RuleSet::new([rules, vec![small_burst]].concat()).unwrap();
    let names: Vec<&str> = set.rules_with_long_windows().map(|rule| &*rule.name).collect();
    assert_eq!(names, ["daily", "hourly", "mixed", "monthly"]);
}
