//! What rules say that they have decided.

use crate::support::{check, engine, engine_without_store, rules};
use tollbar_rules::{AsyncEngine, Counts, Tallies};

/// The counts of a rule, or of a tier of it, by the words `rule` or `rule tier`.
fn counts(engine: &AsyncEngine, of: &str) -> Counts {
    let (rule, tier) = of.split_once(' ').map_or((of, None), |(rule, tier)| (rule, Some(tier)));
    let tallies = engine.tallies();
    let mut found = tallies.iter().filter(|tally| *tally.rule.name == *rule && tally.tier == tier);
    found.next().unwrap_or_else(|| panic!("no tally of {of}")).counts
}

/// Allowed, denied, tokens admitted, and how many were near the limit.
fn told(engine: &AsyncEngine, of: &str) -> [u64; 4] {
    let counts = counts(engine, of);
    [counts.allowed, counts.denied, counts.admitted_tokens, counts.near_limit]
}

fn ask(engine: &AsyncEngine, times: usize, request: &str) {
    for _ in 0..times {
        let _ = check(engine, request);
    }
}

#[test]
fn a_check_counts_once_for_a_rule_however_many_limits_it_has() {
    // Alone and plain; with a second limit it takes the general way.
    for rule in ["limit: 5/h", "limit: [5/h, 50/day]"] {
        let engine = engine(&format!("rules: [{{ name: a, {rule} }}]"));
        ask(&engine, 7, "GET / user=1");
        ask(&engine, 1, "GET / user=2 cost=3");
        // Who only looks decides nothing.
        ask(&engine, 9, "GET / user=1 cost=0");
        assert_eq!(told(&engine, "a"), [6, 2, 8, 2], "{rule}");
    }
}

#[test]
fn near_is_a_fifth_of_what_a_limit_holds_or_less() {
    // Ten at once, though a hundred an hour.
    for rule in ["limit: 100/h, burst: 10", "limit: 100/h, burst: 10, candidate: { limit: 200/h }"]
    {
        let engine = engine(&format!("rules: [{{ name: a, {rule} }}]"));
        ask(&engine, 7, "GET / user=1");
        assert_eq!(told(&engine, "a"), [7, 0, 7, 0], "3 of 10 remain");
        ask(&engine, 1, "GET / user=1");
        assert_eq!(told(&engine, "a"), [8, 0, 8, 1], "2 of 10 remain");
    }
}

#[test]
fn what_another_rule_denies_is_allowed_and_not_admitted() {
    let engine = engine(
        "rules: [{ name: all, per: [], limit: 2/h }, { name: each, limit: 100/h, cost: 7 }]",
    );
    ask(&engine, 5, "GET / user=1");
    assert_eq!(told(&engine, "all"), [2, 3, 2, 1]);
    assert_eq!(told(&engine, "each"), [5, 0, 14, 0]);
}

#[test]
fn shadows_candidates_and_missing_attributes_are_told_apart() {
    let engine = engine(
        "rules:
         - { name: shadow, mode: shadow, limit: 1/h }
         - { name: tried, limit: 5/h, candidate: { limit: 2/h } }
         - { name: lacking, match: { path: /x }, per: [tenant], missing: deny, limit: 9/h }",
    );
    ask(&engine, 4, "GET / user=1");
    let shadow = counts(&engine, "shadow");
    assert_eq!((shadow.shadow_allowed, shadow.shadow_denied), (1, 3));
    assert_eq!(told(&engine, "shadow"), [0, 0, 0, 0]);
    let tried = counts(&engine, "tried");
    assert_eq!((tried.shadow_allowed, tried.shadow_denied), (2, 2));
    assert_eq!(told(&engine, "tried"), [4, 0, 4, 1]);
    ask(&engine, 2, "GET /x user=2");
    assert_eq!(told(&engine, "lacking"), [0, 2, 0, 0]);
}

#[test]
fn tiers_count_apart_and_unlimited_ones_not_at_all() {
    let engine = engine(
        "rules: [{ name: a, limit: 9/h, tiers: { free: 1/h, paid: 2/h, staff: unlimited } }]",
    );
    for request in ["GET / user=1", "GET / user=1 tier=free", "GET / user=2 tier=paid"] {
        ask(&engine, 3, request);
    }
    ask(&engine, 3, "GET / user=3 tier=staff");
    assert_eq!(told(&engine, "a")[..2], [3, 0]);
    assert_eq!(told(&engine, "a paid")[..2], [2, 1]);
    assert_eq!(engine.tallies().iter().filter(|tally| tally.tier == Some("staff")).count(), 0);
}

#[test]
fn counts_go_on_when_the_rules_change_around_them() {
    let before = "rules:
         - { name: a, id: one, limit: 5/h, tiers: { free: 9/h, paid: 9/h } }
         - { name: b, limit: 5/h, match: { path: /b } }";
    let engine = engine(before);
    ask(&engine, 2, "GET / user=1 tier=paid");
    ask(&engine, 3, "GET / user=5");
    ask(&engine, 7, "GET /b user=9");
    let told_before = told(&engine, "a");
    let held = engine.tallies();
    // Another name, other places for the rule and its tiers, other numbers; and `b` is another rule.
    engine.replace(rules(
        "rules:
         - { name: a0, limit: 1/h, match: { path: /0 } }
         - { name: b, id: two, limit: 5/h, match: { path: /b } }
         - { name: renamed, id: one, limit: 6/h, tiers: { new: 9/h, paid: 8/h, free: 9/h } }",
    ));
    assert_eq!(told(&engine, "renamed paid")[0], 2);
    assert_eq!(told(&engine, "renamed"), told_before);
    assert_eq!(told_before[..2], [8, 2], "three, and seven that went to /b");
    ask(&engine, 1, "GET / user=1 tier=paid");
    assert_eq!(told(&engine, "renamed paid")[0], 3);
    assert_eq!(told(&engine, "renamed new"), [0; 4]);
    assert_eq!(told(&engine, "b"), [0; 4]);
    assert_eq!((held.rules_version(), engine.tallies().rules_version()), (1, 2));
    assert!(
        held.iter().all(|tally| &*tally.rule.name != "renamed"),
        "what is held is its version's"
    );
}

#[test]
fn what_the_failure_policy_said_is_told_apart() {
    let text = "rules:
         - { name: open, match: { path: /open }, limit: 9/h }
         - { name: shut, match: { path: /shut }, limit: 9/h, on_store_failure: deny }
         - { name: share, match: { path: /share }, limit: 2/h, on_store_failure: local }";
    let engine = engine_without_store(text);
    for path in ["/open", "/shut", "/share"] {
        ask(&engine, 5, &format!("GET {path} user=1"));
    }
    let degraded = |rule| {
        let counts = counts(&engine, rule);
        assert_eq!(told(&engine, rule), [0; 4], "{rule}");
        [counts.degraded_allowed, counts.degraded_denied]
    };
    assert_eq!(degraded("open"), [5, 0]);
    assert_eq!(degraded("shut"), [0, 5]);
    assert_eq!(degraded("share"), [2, 3]);
}

#[test]
fn threads_that_count_at_once_lose_nothing() {
    let engine = engine("rules: [{ name: a, limit: 1000000/h, burst: 1000000 }]");
    std::thread::scope(|scope| {
        for thread in 0..20 {
            let engine = &engine;
            scope.spawn(move || ask(engine, 500, &format!("GET / user={thread}")));
        }
    });
    assert_eq!(told(&engine, "a"), [10_000, 0, 10_000, 0]);
}

#[test]
fn what_is_gone_is_told_with_what_it_has_counted_to_its_end() {
    let engine = engine(
        "rules:
         - { name: a, limit: 9/h, tiers: { free: 9/h, paid: 9/h } }
         - { name: b, id: two, limit: 9/h, match: { path: /b } }
         - { name: c, limit: 9/h, match: { path: /c } }",
    );
    let held = engine.tallies();
    ask(&engine, 2, "GET / user=1 tier=free");
    ask(&engine, 3, "GET /c user=1 tier=paid");
    // A tier goes and one comes, a rule is called otherwise, one goes and one comes.
    engine.replace(rules(
        "rules:
         - { name: a, limit: 9/h, tiers: { paid: 9/h, new: 9/h } }
         - { name: d, limit: 9/h, match: { path: /d } }
         - { name: other, id: two, limit: 9/h, match: { path: /b } }",
    ));
    let after = engine.tallies();
    let gone = after.gone_since(&held);
    let gone = gone.iter().map(|tally| (&*tally.rule.name, tally.tier, tally.counts.allowed));
    assert_eq!(gone.collect::<Vec<_>>(), [("a", Some("free"), 2), ("c", None, 3)]);
    assert!(held.gone_since(&held).is_empty());
    // The ids of those that stay are the same.
    let id = |tallies: &Tallies, name: &str| {
        tallies.iter().find(|tally| *tally.rule.name == *name).map(|tally| tally.id)
    };
    assert_eq!(id(&held, "a"), id(&after, "a"));
    assert_eq!(id(&held, "b"), id(&after, "other"));
    assert_ne!(id(&held, "c"), id(&after, "d"));
}
