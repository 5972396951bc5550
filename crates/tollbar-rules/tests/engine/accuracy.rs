//! How exactly limits are counted, as the store is asked.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{NodeStore, answer, ask, check, clock, rules};
use tollbar::store::block_on;
use tollbar::{Accuracy, Degraded, MemoryStore, Source};
use tollbar_rules::{AsyncEngine, Effect, Engine, Override, RuleAccuracy};

fn node(text: &str) -> (Arc<NodeStore>, AsyncEngine) {
    let clock = clock();
    let shared = Arc::new(MemoryStore::builder().clock(clock.clone()).max_keys(1_000).build());
    let store = NodeStore::new(&shared, &clock);
    let engine = AsyncEngine::builder(rules(text), store.clone()).clock(clock).build().unwrap();
    (store, engine)
}

/// What the store is asked for one request: each limit with its mode.
fn asked(text: &str, request: &str) -> Vec<(u64, &'static str)> {
    let (store, engine) = node(text);
    check(&engine, request);
    let mode = |accuracy| match accuracy {
        Accuracy::Exact => "exact",
        Accuracy::Loaned(terms) if terms.cut > Duration::ZERO => "cut",
        Accuracy::Loaned(_) => "uncut",
        _ => "local",
    };
    store.take_asked().into_iter().map(|(limit, accuracy)| (limit, mode(accuracy))).collect()
}

const BUCKET: &str = "limit: { limit: 1000/s, burst: 5000 }";

#[test]
fn every_limit_tier_and_candidate_is_counted_as_its_rule_says() {
    let of = |fields: &str, request: &str| {
        asked(&format!("nodes: 4\nrules: [{{ name: a, {fields} }}]"), request)
    };
    assert_eq!(of(BUCKET, "GET /"), [(1000, "exact")]);
    assert_eq!(of(&format!("{BUCKET}, accuracy: exact"), "GET /"), [(1000, "exact")]);
    assert_eq!(of(&format!("{BUCKET}, accuracy: conservative"), "GET /"), [(1000, "cut")]);
    assert_eq!(of(&format!("{BUCKET}, accuracy: optimistic(1%)"), "GET /"), [(1000, "uncut")]);
    let tiers = "limit: [10/s, 900/min], tiers: { gold: 80/s }, candidate: 70/s, accuracy: local";
    assert_eq!(of(tiers, "GET /"), [(2, "local"), (225, "local"), (17, "local")]);
    assert_eq!(of(tiers, "GET / tier=gold"), [(20, "local"), (17, "local")]);
    assert_eq!(of("limit: 10/s, accuracy: local(3)", "GET /"), [(3, "local")]);
}

#[test]
fn what_a_rule_inherits_holds_as_far_as_it_can() {
    let of = |default: &str, fields: &str| {
        asked(&format!("nodes: 4\naccuracy: {default}\nrules: [{{ name: a, {fields} }}]"), "GET /")
    };
    assert_eq!(of("conservative", BUCKET), [(1000, "cut")]);
    assert_eq!(of("conservative", &format!("{BUCKET}, accuracy: exact")), [(1000, "exact")]);
    assert_eq!(of("local", &format!("{BUCKET}, accuracy: optimistic")), [(1000, "uncut")]);
    // A log cannot be lent, and a burst of 10 is spent within 10 ms.
    let mixed = "limit: [{ limit: 9/s, algorithm: sliding_window_log }, 9/min]";
    assert_eq!(of("conservative", mixed), [(9, "exact"), (9, "uncut")]);
    assert_eq!(of("conservative", "limit: { limit: 1000/s, burst: 10 }"), [(1000, "exact")]);
    assert_eq!(of("local", "limit: [3/s, 9/min]"), [(3, "exact"), (2, "local")]);
}

#[test]
fn a_boost_is_divided_and_lent_as_well() {
    let boosted = |accuracy: &str| {
        let (store, engine) = node("rules: [{ name: a, limit: { limit: 100/s, burst: 800 } }]");
        let boost = Override::new("user:1", Effect::Boost { factor_percent: 50 });
        let accuracy: RuleAccuracy = accuracy.parse().unwrap();
        let rules = engine.rules().with_accuracy(accuracy).with_node_count(2);
        engine.replace(rules.with_overrides(vec![boost])).unwrap();
        check(&engine, "GET / user=1");
        store.take_asked()[0]
    };
    assert_eq!(boosted("local"), (50, Accuracy::Local), "50 in two seconds");
    let (limit, Accuracy::Loaned(terms)) = boosted("conservative(10%)") else {
        panic!("it is lent");
    };
    assert_eq!((limit, terms.term), (50, Duration::from_millis(800)));
}

/// Tokens that are held are for those who may have them: a lending store is not asked at all.
#[test]
fn a_ban_is_decided_before_any_token_is_taken() {
    let (store, engine) =
        node(&format!("rules: [{{ name: a, {BUCKET}, accuracy: conservative }}]"));
    let bans = vec![Override::new("user:1", Effect::Ban)];
    engine.replace(engine.rules().with_overrides(bans)).unwrap();
    assert!(!check(&engine, "GET / user=1").is_allowed());
    assert_eq!(store.take_asked(), []);
    assert!(check(&engine, "GET / user=2").is_allowed());
    assert_eq!(store.take_asked().len(), 1);
}

#[test]
fn counters_in_this_process_are_exact_whatever_the_rules_say() {
    let text = "nodes: 4\nrules: [{ name: a, limit: 8/h, accuracy: local }]";
    let engine = Engine::builder(rules(text)).clock(clock()).build();
    let verdict = check(&engine, "GET /");
    assert_eq!(answer(&verdict), "allow a 7");
    assert_eq!(verdict.binding().unwrap().source(), Some(Source::Store));
    engine.replace(rules(text).with_node_count(2));
    assert_eq!(answer(&check(&engine, "GET /")), "allow a 6", "after a change as well");
}

#[test]
fn a_decision_says_where_it_comes_from() {
    let (_, engine) = node("nodes: 2\nrules: [{ name: a, limit: 8/h, accuracy: local }]");
    let verdict = check(&engine, "GET /");
    assert_eq!(answer(&verdict), "allow a 3");
    assert_eq!(verdict.binding().unwrap().source(), Some(Source::Local));
    let (_, engine) = node("rules: [{ name: a, limit: 8/h }]");
    assert_eq!(check(&engine, "GET /").binding().unwrap().source(), Some(Source::Store));
}

/// The lines of an explanation that are about limits.
fn explained(engine: &AsyncEngine) -> Vec<String> {
    let text = ask("GET /", |request| block_on(engine.explain(request))).to_string();
    text.lines().filter_map(|line| line.strip_prefix("      ")).map(str::to_owned).collect()
}

#[test]
fn explanations_say_how_exactly_a_limit_counts_and_why_it_does_not() {
    let of = |text: &str| explained(&node(text).1);
    let rule = |fields: &str| of(&format!("nodes: 4\nrules: [{{ name: a, {fields} }}]"));
    assert_eq!(rule(BUCKET), [""; 0], "exact needs no words");
    assert_eq!(
        rule(&format!("{BUCKET}, accuracy: conservative")),
        [
            "conservative(5%): a loan lasts 250ms, and 250ms of the burst are cut; at most 0 tokens over and 1437 under; 7 tokens held here"
        ]
    );
    assert_eq!(
        rule(&format!("{BUCKET}, accuracy: optimistic(10%)")),
        [
            "optimistic(10%): a loan lasts 500ms, and 0ns of the burst are cut; at most 500 tokens over and 1250 under; 7 tokens held here"
        ]
    );
    assert_eq!(
        rule(&format!("{BUCKET}, accuracy: local")),
        ["local: this node's part of 4; at most 0 tokens over and 3750 under; 7 tokens held here"]
    );
    let inherited = of("accuracy: conservative\nrules: [{ name: a, limit: 3/s }]");
    let expected = "exact and not conservative(5%): a limit of 3 is too small to lend from: ";
    assert!(inherited[0].starts_with(expected), "{inherited:?}");
    let text = "rules: [{ name: a, limit: 8/h, accuracy: local }]";
    let in_memory = explained(&Engine::builder(rules(text)).clock(clock()).build());
    let expected = "exact and not local: the counters are in this process, ";
    assert!(in_memory[0].starts_with(expected), "{in_memory:?}");
}

/// It would have passed uncounted because of another rule that cannot do without the store.
#[test]
fn what_each_node_counts_goes_on_while_the_store_is_down() {
    let (store, engine) = node(
        "nodes: 2
rules:
- { name: local, per: [], limit: 4/h, accuracy: local, on_store_failure: allow }
- { name: exact, match: { path: /x }, limit: 9/h }",
    );
    store.set_down(true);
    assert_eq!(answer(&check(&engine, "GET /")), "allow local 1");
    for remaining in [1, 0, 0] {
        let verdict = check(&engine, "GET /x");
        let local = verdict.decisions().find(|limit| &*limit.rule().name == "local").unwrap();
        assert_eq!(local.remaining(), Some(remaining));
        assert_eq!(local.degraded(), Some(Degraded::Fallback));
        assert_eq!(local.source(), None);
    }
    assert_eq!(answer(&check(&engine, "GET /x")), "deny local");
}
