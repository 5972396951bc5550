//! A set of rules that is made out of another by a few changes is the one that would be made from the
//! start, and an engine that goes from one to the next decides as one that has just been made.

use std::sync::Arc;

use proptest::prelude::*;
use tollbar::{ManualClock, MemoryStore, Timestamp};
use tollbar_rules::{
    Conditions, Diff, Effect, Engine, Exemption, Limit, Mode, Override, Per, Request, Rule,
    RuleSet, Test, TierLimits,
};

/// Few enough that rules often meet.
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g#"];

const LIMITS: [&[&str]; 5] = [
    &["3/min"],
    &["5/min", "9/h"],
    &["1/min", "2/min"],
    &[],
    &["9/s", "9/2s", "9/3s", "9/4s", "9/5s", "9/6s", "9/7s", "9/8s"],
];

const REQUESTS: [(&str, &[(&str, &str)]); 6] = [
    ("/", &[("ip", "10.0.0.1")]),
    ("/p/1", &[("ip", "10.0.0.1"), ("user", "u")]),
    ("/p/2", &[("ip", "10.0.0.2"), ("user", "v"), ("tier", "gold")]),
    ("/p/1", &[("ip", "10.0.0.1"), ("api_key", "k")]),
    ("/q", &[("user", "u"), ("tier", "lead")]),
    ("/q/p%2F1", &[("ip", "10.0.0.3")]),
];

fn one_limit(text: &str) -> Vec<Limit> {
    vec![Limit::parse(text).unwrap()]
}

/// A rule by numbers: most of them fit together, and some do not.
fn rule((name, id, limits, conditions, rest): (usize, usize, usize, usize, u32)) -> Rule {
    let mut rule = Rule::new(NAMES[name]);
    rule.id = [None, None, Some("a"), Some("x"), Some("y#")][id].map(Into::into);
    rule.limits = LIMITS[limits].iter().map(|text| Limit::parse(text).unwrap()).collect();
    let path = |text: &str| Test::Path([text.parse().unwrap()].into());
    rule.conditions = match conditions {
        0 => Conditions::new(),
        1 => Conditions::new().and("path", path("/p/*")),
        2 => Conditions::new().and("path", path("/**")).and("user", Test::equal("u")),
        3 => Conditions::new().and("user", Test::Not(Box::new(Test::equal("u")))),
        _ => Conditions::new().and("tier", Test::Present),
    };
    let has = |bit: u32| (rest >> bit).trailing_zeros() >= 2;
    rule.priority = (rest & 0b11).cast_signed();
    rule.stop = has(2) && has(3);
    rule.fallback = has(4) && has(5);
    rule.enabled = !(has(5) && has(6));
    if has(15) {
        let replaced = if has(18) { &["b", "c"][..] } else { &["b"] };
        rule.replaces = replaced.iter().map(|name| (*name).into()).collect();
    }
    if has(6) {
        rule.per = vec![Per::of_name("user")];
    }
    if has(7) {
        rule.mode = Mode::Shadow;
    }
    if has(8) {
        rule.tiers.limits = vec![
            ("gold".into(), TierLimits::Limits(one_limit("50/min"))),
            ("lead".into(), TierLimits::Unlimited),
        ];
        rule.tiers.default = has(9).then(|| "gold".into());
    }
    if has(10) {
        let conditions = Conditions::new().and("api_key", Test::equal("k"));
        rule.exemptions = vec![Exemption::new(conditions)];
    }
    if has(11) {
        rule.candidate = one_limit("2/min");
    }
    if has(12) && has(13) {
        (rule.unlimited, rule.limits) = (true, Vec::new());
    }
    if has(20) {
        rule.costs.default = 4;
    }
    rule
}

fn any_rule() -> impl Strategy<Value = Rule> {
    // The first of each is the one that fits.
    let of = |count: usize| prop_oneof![3 => Just(0), 2 => 0..count];
    (0..NAMES.len(), of(5), of(LIMITS.len()), 0..5_usize, any::<u32>()).prop_map(rule)
}

fn any_rules(count_max: usize) -> impl Strategy<Value = Vec<Rule>> {
    prop::collection::vec(any_rule(), 0..count_max)
}

/// As many of the rules as fit together.
fn fitting(rules: Vec<Rule>) -> RuleSet {
    let mut kept: Vec<Rule> = Vec::new();
    for rule in rules {
        kept.push(rule);
        if RuleSet::new(kept.clone()).is_err() {
            kept.pop();
        }
    }
    RuleSet::new(kept).unwrap()
}

/// The same rules, none of them shared.
fn copied(rules: &RuleSet) -> RuleSet {
    let all = rules.rules().iter().map(|rule| Rule::clone(rule)).collect();
    let copy = RuleSet::new(all).unwrap().with_node_count(rules.node_count());
    copy.with_overrides(rules.overrides().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_changed_set_is_the_one_that_would_be_made_from_the_start(
        rules in any_rules(9),
        without in prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "x", "none"]), 0..3),
        with in any_rules(4),
    ) {
        let before = fitting(rules).with_node_count(3);
        let is_kept = |rule: &&Arc<Rule>| !without.contains(&&**rule.identity());
        let kept = before.rules().iter().filter(is_kept).map(|rule| Rule::clone(rule));
        let made = RuleSet::new(kept.chain(with.iter().cloned()).collect());
        let changed = before.changed(&without, with.into_iter().map(Arc::new).collect());
        prop_assert_eq!(changed, made.map(|rules| rules.with_node_count(3)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn an_engine_that_is_changed_decides_as_a_new_one(
        rules in any_rules(9),
        steps in prop::collection::vec((0..12_usize, any_rules(3)), 1..12),
    ) {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        let store = Arc::new(MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build());
        let build = |rules| {
            Engine::builder(rules).store(store.clone()).clock(clock.clone()).build()
        };
        let engine = build(fitting(rules));
        for (step, with) in steps {
            let before = engine.rules();
            // Some take the place of a rule of their identity, and some are new.
            let without: Vec<&str> = if step < 8 {
                with.iter().map(|rule| &**rule.identity()).collect()
            } else {
                let gone = before.rules().get(step - 8);
                gone.map(|rule| &**rule.identity()).into_iter().collect()
            };
            let with = with.iter().cloned().map(Arc::new).collect();
            let mut after = before.changed(&without, with).unwrap_or_else(|_| before.clone());
            if step == 10 {
                after = after.with_node_count(2);
            }
            if step % 4 == 3 {
                let factor_percent = 100 * step as u32;
                let mut boost = Override::new("u", Effect::Boost { factor_percent });
                boost.rule = Some("a".into());
                let all = Override::new("user:v", Effect::Boost { factor_percent: 300 });
                after = after.with_overrides(vec![boost, all, Override::new("user:w", Effect::Ban)]);
            }
            let fresh = build(copied(&after));
            let diff = Diff::between(&copied(&before), &copied(&after));
            prop_assert_eq!(engine.replace(after), diff);
            for (path, attributes) in REQUESTS {
                let request = Request::new("GET", path).unwrap();
                let request = request.with_attributes(attributes).unwrap();
                let told = |engine: &Engine| format!("{:?}", engine.explain(&request));
                prop_assert_eq!(told(&engine), told(&fresh));
                // A look-up that names no tier goes by the requests that an engine has seen.
                let named = [attributes, &[("tier", "none")]].concat();
                let is_named = attributes.iter().any(|(name, _)| *name == "tier");
                let named = if is_named { attributes } else { &named };
                let look_up = Request::new("GET", path).unwrap().with_attributes(named).unwrap();
                let look_up = look_up.with_cost(0);
                let peeked = |engine: &Engine| {
                    let verdict = engine.check(&look_up);
                    let decided = |limit: tollbar_rules::RuleDecision<'_>| {
                        (limit.rule().name.clone(), limit.decision())
                    };
                    let all: Vec<_> = verdict.decisions().map(decided).collect();
                    (verdict.outcome(), verdict.rule().map(|rule| rule.name.clone()), all)
                };
                // A look-up that names no tier goes by the latest one, which only `engine` has seen.
                if attributes.iter().any(|(name, _)| *name == "tier") {
                    prop_assert_eq!(peeked(&engine), peeked(&fresh));
                }
                let _ = engine.check(&request);
            }
        }
    }
}
