//! Bounds worked out by hand. The property test is in `tests/engine/bounds.rs`.

use super::*;
use crate::RuleFile;

fn rules(text: &str) -> RuleSet {
    RuleFile::parse("r", text).unwrap_or_else(|error| panic!("{error}")).rules
}

/// At most and at least in one and in ten seconds: while the store answers, and while it does not.
fn bounds(file: &str, fields: &str) -> [[(Option<u64>, Option<u64>); 2]; 2] {
    let rules = rules(&format!("{file}\nrules: [{{ name: a, {fields} }}]"));
    let found = rules.bounds(&[Duration::from_secs(1), Duration::from_secs(10)]);
    let [row] = found.as_slice() else { panic!("{found:?}") };
    let of = |at: usize, admitted: fn(&IntervalBounds) -> AdmittedTokens| {
        let admitted = admitted(&row.intervals[at]);
        (admitted.most, admitted.least)
    };
    [0, 1].map(|at| [of(at, |bounds| bounds.answering), of(at, |bounds| bounds.unreachable)])
}

const UNBOUNDED: (Option<u64>, Option<u64>) = (None, None);

fn of(most: u64, least: u64) -> (Option<u64>, Option<u64>) {
    (Some(most), Some(least))
}

#[test]
fn each_algorithm_has_its_bounds() {
    for (fields, second, ten_seconds) in [
        ("limit: { limit: 100/s, burst: 20 }", of(120, 99), of(1_020, 999)),
        ("limit: { limit: 100/s, algorithm: leaky_queue, queue: 9 }", of(110, 99), of(1_010, 999)),
        ("limit: { limit: 100/s, algorithm: fixed_window }", of(200, 100), of(1_100, 1_000)),
        ("limit: 100 per calendar day", of(200, 0), of(200, 0)),
        ("limit: 100/s", of(200, 0), of(1_100, 891)),
        ("limit: { limit: 100/s, algorithm: sliding_window_log }", of(200, 100), of(1_100, 1_000)),
        ("limit: { limit: 100/s, algorithm: sliding_window_strict }", of(200, 0), of(1_100, 900)),
        ("limit: 7, algorithm: concurrency, lease: 1s", (None, Some(0)), (None, Some(0))),
    ] {
        let [one, ten] = bounds("", fields);
        assert_eq!([one, ten], [[second, UNBOUNDED], [ten_seconds, UNBOUNDED]], "{fields}");
    }
}

#[test]
fn each_accuracy_has_its_bounds() {
    let bucket = "limit: { limit: 1000/s, burst: 10_000 }, on_store_failure: deny";
    let with = |accuracy: &str| bounds("nodes: 4", &format!("{bucket}, accuracy: {accuracy}"))[0];
    assert_eq!(with("exact"), [of(11_000, 999), of(0, 0)]);
    // 500 ms of 1000/s are cut, and a loan has a quarter of the rest. What is lent outlives the store.
    let rules = rules(&format!("rules: [{{ name: a, {bucket}, accuracy: conservative }}]"));
    assert_eq!(rules.accuracy_bounds(&rules.rules()[0]), (0, 500 + 2_375));
    assert_eq!(with("conservative"), [of(11_000, 0), of(10_000, 0)]);
    // Without a cut, what is earned in a term may be lent besides.
    assert_eq!(with("optimistic"), [of(11_500, 0), of(10_500, 0)]);
    // Each of four nodes has 250/s and a burst of 2500; without the store other rules bring as much again.
    assert_eq!(with("local"), [of(11_000, 249), of(22_000, 249)]);
    assert_eq!(with("local(3)")[0], of(10_998, 332), "a third of the burst is rounded down");
}

/// `crates/tollbar-fleet/tests/bounds.rs` has what happened before.
#[test]
fn pauses_after_small_loans_are_in_what_is_admitted_at_least() {
    let ten_seconds = |limit: &str| {
        let fields = format!("limit: {limit}, accuracy: conservative, on_store_failure: deny");
        bounds("", &fields)[1]
    };
    // Of ten seconds less a pause of 150 ms nine windows are whole, and the first counts for nothing. In each of the
    // others one token is what the window before weighs, and 2 x 61 are lost. A loan has 100.
    let least = 8 * (400 - 1 - 2 * 61) - 100;
    assert_eq!(ten_seconds("400/s"), [of(4_400, least), of(400, 0)]);
    let window = "{ limit: 400/s, algorithm: fixed_window }";
    assert_eq!(ten_seconds(window), [of(4_400, 9 * 400 - 100), of(400, 0)]);
    // 20 tokens are cut, 95 are a loan, and 8 are earned in a pause of 18.75 ms.
    let bucket = "{ limit: 400/s, burst: 400 }";
    assert_eq!(ten_seconds(bucket), [of(4_400, 4_000 - 8 - 1 - 20 - 95), of(400, 0)]);
}

#[test]
fn each_outage_policy_has_its_bounds() {
    let with = |policy: &str| {
        bounds(
            "nodes: 4",
            &format!("limit: {{ limit: 8/s, burst: 8 }}, on_store_failure: {policy}"),
        )[0][1]
    };
    assert_eq!(with("allow"), UNBOUNDED);
    assert_eq!(with("deny"), of(0, 0));
    assert_eq!(with("local"), of(16, 1));
    assert_eq!(with("shed"), (None, Some(0)));
}

#[test]
fn tiers_shadows_and_rules_without_limits_are_listed() {
    let rules = rules(
        "rules:
- { name: tiered, limit: 5/s, tiers: { free: 2/s, paid: unlimited } }
- { name: off, limit: 5/s, enabled: false }
- { name: shadow, limit: 5/s, mode: shadow, on_store_failure: deny }
- { name: open, match: { path: /open }, unlimited: true }",
    );
    let second = Duration::from_secs(1);
    let rows = rules.bounds(&[second]);
    let row = |row: &LimitBounds| {
        let most = row.intervals[0].answering.most;
        (row.rule.clone(), row.tier.clone().unwrap_or_default(), row.limit.clone(), most)
    };
    let row_of = |rule: &str, tier: &str, limit: &str, most: Option<u64>| {
        (rule.to_owned(), tier.to_owned(), limit.to_owned(), most)
    };
    assert_eq!(
        rows.iter().map(row).collect::<Vec<_>>(),
        [
            row_of("open", "", "unlimited", None),
            row_of("shadow", "", "5/s", None),
            row_of("tiered", "", "5/s", Some(10)),
            row_of("tiered", "free", "2/s", Some(4)),
            row_of("tiered", "paid", "unlimited", None),
        ]
    );
}

#[test]
fn what_is_too_large_for_a_number_is_the_largest() {
    let rules = rules("rules: [{ name: a, limit: 1_000_000_000/s, algorithm: fixed_window }]");
    let bounds = rules.bounds(&[Duration::MAX, Duration::ZERO]);
    assert_eq!(bounds[0].intervals[0].answering.most, Some(u64::MAX));
    assert_eq!(bounds[0].intervals[1].answering.most, Some(1_000_000_000));
}

#[test]
fn a_node_that_is_gone_counts_for_as_long_as_what_it_admitted_weighs() {
    for (limit, seconds) in [
        ("{ limit: 10/s, burst: 300 }", 30),
        ("{ limit: 10/min, algorithm: fixed_window }", 60),
        ("[10/min, 9/s]", 120),
        ("9 per calendar week", 7 * 86_400),
    ] {
        let memory = |accuracy: &str| {
            let text = format!("rules: [{{ name: a, limit: {limit}, accuracy: {accuracy} }}]");
            rules(&text).node_memory()
        };
        assert_eq!(memory("local"), Duration::from_secs(seconds), "{limit}");
        assert_eq!(memory("local(2)"), Duration::ZERO, "its number is given");
    }
}

#[test]
fn what_is_inherited_and_cannot_be_says_why() {
    let rules = rules("accuracy: conservative\nrules: [{ name: a, limit: 3/s }]");
    let accuracy = &rules.bounds(&[])[0].accuracy;
    assert_eq!(accuracy.written.to_string(), "conservative(5%)");
    assert_eq!(accuracy.accuracy, Accuracy::Exact);
    let why = accuracy.exact_because.as_deref().unwrap();
    assert!(why.starts_with("a limit of 3 is too small to lend from"), "{why}");
}
