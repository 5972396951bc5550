//! Parts of limits that are reserved for more critical requests.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    ask, check, clock, engine, engine_at, engine_over, engine_without_store, expect, reserve,
};
use tollbar::store::block_on;
use tollbar::{MemoryStore, Outcome};
use tollbar_rules::{AsyncEngine, Effect, Override};

/// How many of 30 requests pass.
fn passed(engine: &AsyncEngine, request: &str) -> usize {
    (0..30).filter(|_| check(engine, request).is_allowed()).count()
}

const ALL: [&str; 4] = ["low", "normal", "high", "critical"];

/// Ten of every algorithm.
const LIMITS: [&str; 9] = [
    "10/h",
    "10/h, algorithm: token_bucket",
    "10/h, algorithm: leaky_bucket",
    "10/day, algorithm: fixed_window, staggered: true",
    "10 per calendar month",
    "10/h, algorithm: sliding_window_strict",
    "10/h, algorithm: sliding_window_log",
    "10/h, queue: 9",
    "10, algorithm: concurrency, lease: 1h",
];

#[test]
fn lower_classes_leave_what_is_reserved_for_higher_ones() {
    for limit in LIMITS {
        let rules = format!(
            "rules: [{{ name: a, limit: {limit}, reserve: {{ critical: 10%, high: 20% }} }}]"
        );
        // Whichever comes first, each class gets what the ones below it have left.
        let engine = engine(&rules);
        let taken = ALL.map(|class| passed(&engine, &format!("GET / criticality={class}")));
        assert_eq!(taken, [7, 0, 2, 1], "{limit}");
        for (class, expected) in ALL.into_iter().zip([7, 7, 9, 10]) {
            let alone = engine_at(&rules, &clock());
            assert_eq!(passed(&alone, &format!("GET / criticality={class}")), expected, "{limit}");
        }
        // Requests that are more critical count for all.
        let engine = engine_at(&rules, &clock());
        assert!(check(&engine, "GET / cost=8 criticality=critical").is_allowed(), "{limit}");
        assert_eq!(passed(&engine, "GET /"), 0, "{limit}");
        assert_eq!(passed(&engine, "GET / criticality=high"), 1, "{limit}");
    }
}

#[test]
fn a_class_is_told_what_is_left_to_it_and_never_only_what_is_true_for_it() {
    let engine = engine("rules: [{ name: a, limit: 10/h, reserve: { critical: 30% } }]");
    expect(
        &engine,
        &[
            ("GET / cost=0", "allow a 7"),
            ("GET / cost=0 criticality=critical", "allow a 10"),
            ("GET / cost=8", "never a"),
            ("GET / cost=8 criticality=critical", "allow a 2"),
            ("GET / cost=0", "allow a 0"),
            ("GET /", "deny a"),
            ("GET / cost=7", "deny a"),
            ("GET / criticality=critical", "allow a 1"),
        ],
    );
}

/// 10 per hour in a bucket: a token takes 6 min. With all ten taken, one of ten is left to lower classes after 4.
#[test]
fn the_retry_after_of_a_class_is_when_it_passes() {
    let clock = clock();
    let rules =
        "rules: [{ name: a, limit: 10/h, algorithm: token_bucket, reserve: { critical: 30% } }]";
    let engine = engine_at(rules, &clock);
    assert_eq!(passed(&engine, "GET / criticality=critical"), 10);
    let denied = check(&engine, "GET /");
    assert_eq!(denied.retry_after(), Some(Duration::from_mins(24)));
    clock.advance(Duration::from_mins(24) - Duration::from_micros(1));
    assert!(!check(&engine, "GET /").is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(check(&engine, "GET /").is_allowed());
    assert_eq!(engine.ahead_of_clock().denials, 0, "the debt of others is no clock that ran ahead");
}

#[test]
fn tiers_candidates_and_shadows_reserve_too_and_boosts_leave_a_token() {
    let tiers = "rules: [{ name: a, limit: 10/h, reserve: { critical: 50% },
        tiers: { gold: 20/h, lead: { limit: 10/h, reserve: { critical: 10% } } }, candidate: 6/h }]";
    let engine = engine(tiers);
    assert_eq!(passed(&engine, "GET / user=1"), 5);
    assert_eq!(passed(&engine, "GET / user=2 tier=gold"), 10);
    assert_eq!(passed(&engine, "GET / user=3 tier=lead"), 9);
    // The candidate is of the rule's algorithm and window, and half of it is reserved.
    let candidate = check(&engine, "GET / user=4");
    let shown: Vec<_> = candidate.decisions().map(|decision| decision.remaining()).collect();
    assert_eq!(shown, [Some(4), Some(2)]);

    let boosted = |percent| {
        let boost = Override::new("user:1", Effect::Boost { factor_percent: percent });
        let rules =
            crate::support::rules("rules: [{ name: a, limit: 10/h, reserve: { critical: 50% } }]");
        let rules = rules.with_overrides(vec![boost]);
        let store = Arc::new(MemoryStore::builder().clock(clock()).build());
        AsyncEngine::new(rules, store).unwrap()
    };
    assert_eq!(passed(&boosted(200), "GET / user=1"), 10);
    assert_eq!(passed(&boosted(10), "GET / user=1"), 1);
}

#[test]
fn each_nodes_part_during_an_outage_reserves_too() {
    let rules = "nodes: 2\nrules: [{ name: a, limit: 20/h, reserve: { critical: 50% }, on_store_failure: local }]";
    let engine = engine_without_store(rules);
    assert_eq!(passed(&engine, "GET /"), 5);
    assert_eq!(passed(&engine, "GET / criticality=critical"), 5);
    // What would never pass does not pass either while nobody counts.
    let blind =
        engine_without_store("rules: [{ name: a, limit: 10/h, reserve: { critical: 30% } }]");
    expect(
        &blind,
        &[("GET / cost=8", "never a"), ("GET / cost=8 criticality=critical", "allow a ?")],
    );
}

#[test]
fn a_reservation_of_a_lower_class_is_settled_and_gives_back() {
    for limit in &LIMITS[..8] {
        let rules = format!("rules: [{{ name: a, limit: {limit}, reserve: {{ critical: 30% }} }}]");
        let engine = engine_over(MemoryStore::builder().clock(clock()).build(), &rules);
        let held = reserve(&engine, "GET / cost=7", Duration::from_mins(1)).hold.unwrap();
        let token = engine.token(held).unwrap();
        expect(&engine, &[("GET /", "deny a"), ("GET / criticality=critical", "allow a 2")]);
        let held = engine.resume(&token).unwrap();
        let settled = block_on(engine.settle(&held, Some(3))).unwrap();
        let refunded = settled.limits[0].refunded;
        // Of a queue only the last places come back, and another request stands behind them.
        assert_eq!(refunded, if limit.contains("queue") { 0 } else { 4 }, "{limit}");
        // Seven are left to the class, and the other one is charged like any.
        let left = (7 + refunded).saturating_sub(8) as usize;
        assert_eq!(passed(&engine, "GET /"), left, "{limit}");
    }
}

#[test]
fn a_request_that_comes_again_is_answered_again_whatever_its_class() {
    let engine = engine("rules: [{ name: a, limit: 10/h, reserve: { critical: 50% } }]");
    expect(
        &engine,
        &[
            ("GET / cost=6 criticality=critical id=1", "allow a 4"),
            ("GET / cost=6 criticality=critical id=1", "allow a 4"),
            ("GET / cost=0 criticality=critical", "allow a 4"),
            ("GET / criticality=normal id=2", "deny a"),
            ("GET / criticality=critical id=2", "allow a 3"),
        ],
    );
}

#[test]
fn what_a_file_says_of_accuracy_is_exact_where_something_is_reserved() {
    let rules = crate::support::rules(
        "accuracy: conservative\nrules: [{ name: a, limit: 1000/s, burst: 1000, reserve: { critical: 10% } }]",
    );
    let store = Arc::new(MemoryStore::builder().clock(clock()).build());
    let bounds = rules.bounds(&[]);
    assert_eq!(
        bounds[0].accuracy.to_string(),
        "exact and not conservative(5%): a limit with a `reserve` is always counted exactly: write \
         `accuracy: exact`, or leave the reserve out"
    );
    let engine = AsyncEngine::new(rules, store).unwrap();
    assert!(check(&engine, "GET /").is_allowed());
}

#[test]
fn an_explanation_shows_what_is_left_to_the_class() {
    let engine = engine("rules: [{ name: a, limit: 10/h, reserve: { critical: 30% } }]");
    let left = |line: &str| {
        ask(line, |request| {
            let explained = engine.explain(request);
            let limit = &explained.rules[0].limits[0];
            (limit.limit, limit.remaining, explained.is_allowed)
        })
    };
    assert_eq!(left("GET / cost=8"), (7, Some(7), false));
    assert_eq!(left("GET / cost=8 criticality=critical"), (10, Some(10), true));
    assert_eq!(check(&engine, "GET / cost=8").outcome(), Outcome::Never);
}

/// The limit as a whole at most, and at least what is left to the lowest class.
#[test]
fn bounds_are_those_of_all_classes() {
    let second = Duration::from_secs(1);
    let bounds = |reserve: &str| {
        let text = format!(
            "nodes: 2\nrules: [{{ name: a, limit: 20/s, algorithm: sliding_window_log, on_store_failure: local{reserve} }}]"
        );
        let interval = crate::support::rules(&text).bounds(&[second])[0].intervals[0];
        [interval.answering, interval.unreachable].map(|tokens| (tokens.most, tokens.least))
    };
    assert_eq!(bounds(""), [(Some(40), Some(20)), (Some(40), Some(10))]);
    assert_eq!(
        bounds(", reserve: { critical: 10%, normal: 30% }"),
        [(Some(40), Some(12)), (Some(40), Some(6))]
    );
}
