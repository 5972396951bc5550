//! Headers as clients read them.

use std::fmt::Write as _;

use proptest::prelude::*;
use sfv::{BareItem, Item, List, ListEntry, Parser};
use tollbar::{Clock as _, ManualClock};
use tollbar_rules::{Effect, Engine, Override, Request};

use super::*;
use crate::testing::{START, check, engine, engine_of, engine_without_store, rules};

fn written(style: HeaderStyle, verdict: &Verdict, now: Timestamp) -> HeaderMap {
    let mut headers = HeaderMap::new();
    style.write(verdict, verdict.retry_after(), now, &mut headers);
    headers
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[test]
fn headers_say_what_is_left_and_until_when() {
    let (engine, _) =
        engine("rules: [{ name: per_client, limit: 100/100s, algorithm: fixed_window }]");
    let headers = written(HeaderStyle::default(), &check(&engine, 58), START);
    assert_eq!(text(&headers, "x-ratelimit-limit"), Some("100"));
    assert_eq!(text(&headers, "x-ratelimit-remaining"), Some("42"));
    assert_eq!(text(&headers, "x-ratelimit-reset"), Some("1700000100"));
    assert_eq!(text(&headers, "ratelimit-policy"), Some(r#""per_client";q=100;w=100"#));
    assert_eq!(text(&headers, "ratelimit"), Some(r#""per_client";r=42;t=100"#));
    assert_eq!(text(&headers, "retry-after"), None);
    assert_eq!(text(&headers, "x-ratelimit-degraded"), None);
}

/// Both would be read as limits that hold.
#[test]
fn of_alternatives_the_one_with_most_left_is_listed() {
    let (engine, _) = engine(
        "rules:
         - name: a
           algorithm: fixed_window
           limit: { any_of: [2/100s, { limit: 50/100s, per: [] }] }
         - { name: b, limit: 40/100s, algorithm: fixed_window }",
    );
    let headers = written(HeaderStyle::default(), &check(&engine, 1), START);
    let state = text(&headers, "ratelimit").unwrap();
    let left: Vec<&str> = state.split(';').filter(|part| part.starts_with("r=")).collect();
    assert_eq!(left, ["r=39", "r=50"], "{state}");
}

#[test]
fn times_round_up() {
    let (engine, clock) = engine("rules: [{ name: a, limit: 100/100s, algorithm: fixed_window }]");
    clock.advance(Duration::from_micros(99_000_001));
    let verdict = check(&engine, 1);
    let delta = HeaderStyle::default().reset(Reset::Delta);
    let headers = written(delta, &verdict, clock.now());
    assert_eq!(text(&headers, "x-ratelimit-reset"), Some("1"));
    assert_eq!(text(&headers, "ratelimit"), Some(r#""a";r=99;t=1"#));
    let late = written(delta, &verdict, START.after(Duration::from_secs(1_000)));
    assert_eq!(text(&late, "x-ratelimit-reset"), Some("0"));
}

#[test]
fn retry_after_is_whole_seconds_up_and_never_nothing() {
    let table = [(0, 1), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (59_500_000, 60)];
    for (wait_us, seconds) in table {
        assert_eq!(retry_after_s(Duration::from_micros(wait_us)), seconds, "{wait_us} us");
    }
    assert!(retry_after_s(Duration::MAX) > 0);
}

#[test]
fn the_binding_policy_is_first_and_each_has_a_name_of_its_own() {
    let (engine, _) = engine(
        "rules:
  - { name: wide, priority: 9, limit: [1000/min, 50/s], per: [] }
  - { name: narrow, limit: 5/min }
  - { name: tried, limit: 1/min, mode: shadow }",
    );
    let headers = written(HeaderStyle::default(), &check(&engine, 1), START);
    let expected = r#""narrow";q=5;w=60, "wide";q=1000;w=60, "wide#2";q=50;w=1"#;
    assert_eq!(text(&headers, "ratelimit-policy"), Some(expected));
    let names = |header: &str| -> Vec<String> {
        let list: List = Parser::new(headers[header].as_bytes()).parse().unwrap();
        list.iter().map(|item| name_of(item).0).collect()
    };
    assert_eq!(names("ratelimit"), ["narrow", "wide", "wide#2"]);
    assert_eq!(text(&headers, "x-ratelimit-limit"), Some("5"));
}

#[test]
fn a_window_that_is_not_whole_seconds_is_not_told() {
    let (engine, _) =
        engine("rules: [{ name: a, limit: [100/500ms, 10/1500ms, 10000 per calendar month] }]");
    let headers = written(HeaderStyle::default(), &check(&engine, 9), START);
    let expected = r#""a#2";q=10, "a";q=100, "a#3";q=10000"#;
    assert_eq!(text(&headers, "ratelimit-policy"), Some(expected));
}

#[test]
fn where_nothing_limits_there_is_nothing_to_say() {
    let (engine, _) = engine("rules: [{ name: a, unlimited: true }]");
    assert!(written(HeaderStyle::default(), &check(&engine, 1), START).is_empty());
    let (engine, _) = crate::testing::engine("rules: [{ name: a, limit: 1/s, mode: shadow }]");
    assert!(written(HeaderStyle::default(), &check(&engine, 1), START).is_empty());
}

#[test]
fn styles_leave_out_what_they_say() {
    let (engine, _) = engine("rules: [{ name: a, limit: 5/min }]");
    let verdict = check(&engine, 1);
    assert!(written(HeaderStyle::none(), &verdict, START).is_empty());
    let x = written(HeaderStyle::default().without_ietf(), &verdict, START);
    assert!(x.len() == 3 && x.contains_key("x-ratelimit-limit"));
    let ietf = written(HeaderStyle::default().without_x(), &verdict, START);
    assert!(ietf.len() == 2 && ietf.contains_key("ratelimit"));
    let split = written(HeaderStyle::none().with_split(), &verdict, START);
    assert!(split.len() == 3 && split.contains_key("ratelimit-limit"));
    let all = written(HeaderStyle::default().with_split(), &verdict, START);
    assert_eq!(all.len(), 8);
}

#[test]
fn split_headers_count_seconds_from_now() {
    let (engine, clock) = engine("rules: [{ name: a, limit: 100/100s, algorithm: fixed_window }]");
    clock.advance(Duration::from_millis(30_500));
    let headers = written(HeaderStyle::none().with_split(), &check(&engine, 58), clock.now());
    assert_eq!(text(&headers, "ratelimit-limit"), Some("100"));
    assert_eq!(text(&headers, "ratelimit-remaining"), Some("42"));
    assert_eq!(text(&headers, "ratelimit-reset"), Some("70"));
}

/// `0.01/s` was written as one a second.
#[test]
fn a_rate_of_a_fraction_is_never_written_faster_than_it_is() {
    for (limit, expected) in [
        ("0.01/s, burst: 2", r#""a";q=1;w=100"#),
        ("0.5/min, burst: 9", r#""a";q=1;w=120"#),
        // 1 in 3.33 s, and 2 in 0.8 s.
        ("0.3/s, burst: 2", r#""a";q=1;w=4"#),
        ("2.5/s, burst: 2", r#""a";q=2"#),
        ("10.5/min, burst: 2", r#""a";q=10;w=58"#),
        ("10/min, burst: 2", r#""a";q=10;w=60"#),
    ] {
        let (engine, _) = engine(&format!("rules: [{{ name: a, limit: {limit} }}]"));
        let headers = written(HeaderStyle::default(), &check(&engine, 1), START);
        assert_eq!(text(&headers, "ratelimit-policy"), Some(expected), "{limit}");
    }
}

#[test]
fn no_more_than_the_limit_is_left_in_headers() {
    let (engine, _) = engine("rules: [{ name: a, limit: 5/min, burst: 50 }]");
    let verdict = check(&engine, 1);
    assert_eq!(verdict.summary().remaining, Some(49));
    let headers = written(HeaderStyle::default().with_split(), &verdict, START);
    for (name, expected) in [
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "5"),
        ("ratelimit-remaining", "5"),
        ("ratelimit", r#""a";r=5;t=12"#),
    ] {
        assert_eq!(text(&headers, name), Some(expected), "{name}");
    }
    let headers = written(HeaderStyle::default(), &check(&engine, 46), START);
    assert_eq!(text(&headers, "x-ratelimit-remaining"), Some("3"));
}

/// The default algorithm told a client to wait for 12 s, and that its limit resets in 10 s.
#[test]
fn no_reset_is_before_the_retry_after() {
    let (engine, _) = engine("rules: [{ name: a, limit: 5/10s }]");
    // The last that passes is told already when there is room again.
    let passed = written(HeaderStyle::default(), &check(&engine, 5), START);
    assert_eq!(text(&passed, "ratelimit"), Some(r#""a";r=0;t=20"#));
    let verdict = check(&engine, 1);
    let headers = written(HeaderStyle::default().with_split(), &verdict, START);
    assert_eq!(text(&headers, "retry-after"), Some("12"));
    assert_eq!(text(&headers, "x-ratelimit-reset"), Some("1700000012"));
    assert_eq!(text(&headers, "ratelimit-reset"), Some("12"));
    assert_eq!(text(&headers, "ratelimit"), Some(r#""a";r=0;t=12"#));
    // With jitter, all of them move.
    let mut headers = HeaderMap::new();
    let wait = Some(Duration::from_secs(15));
    HeaderStyle::default().with_split().write(&verdict, wait, START, &mut headers);
    assert_eq!(text(&headers, "retry-after"), Some("15"));
    assert_eq!(text(&headers, "x-ratelimit-reset"), Some("1700000015"));
    assert_eq!(text(&headers, "ratelimit-reset"), Some("15"));
    assert_eq!(text(&headers, "ratelimit"), Some(r#""a";r=0;t=15"#));
}

#[test]
fn permits_promise_no_reset() {
    let (engine, _) = engine("rules: [{ name: a, algorithm: concurrency, limit: 2, lease: 30s }]");
    let verdict = check(&engine, 1);
    assert_eq!(verdict.summary().reset_at, None);
    let headers = written(HeaderStyle::default().with_split(), &verdict, START);
    assert_eq!(text(&headers, "x-ratelimit-remaining"), Some("1"));
    assert_eq!(text(&headers, "ratelimit"), Some(r#""a";r=1"#));
    assert!(!headers.contains_key("x-ratelimit-reset") && !headers.contains_key("ratelimit-reset"));
}

#[test]
fn a_limit_without_a_verdict_is_written_alike() {
    let (engine, _) = engine("rules: [{ name: a, limit: 5/min, burst: 50 }]");
    let style = HeaderStyle::default().with_split();
    let expected = written(style, &check(&engine, 1), START);
    let mut headers = HeaderMap::new();
    let until_reset = Some(Duration::from_secs(12));
    let report =
        LimitReport { name: "a", limit: 5, window_s: Some(60), remaining: 49, until_reset };
    style.write_limit(&report, START, &mut headers);
    assert_eq!(headers, expected);
    let mut headers = HeaderMap::new();
    style.write_limit(&LimitReport { name: "\"\u{e9}\\", ..report }, START, &mut headers);
    assert!(Parser::new(headers["ratelimit"].as_bytes()).parse::<List>().is_ok(), "{headers:?}");
}

#[test]
fn an_answer_without_the_store_says_so_and_makes_no_figures_up() {
    let table = [("allow", "allowed", false), ("deny", "denied", false), ("local", "local", true)];
    for (policy, how, has_figures) in table {
        let engine = engine_without_store(&format!(
            "rules: [{{ name: a, limit: 5/min, on_store_failure: {policy} }}]"
        ));
        let headers = written(HeaderStyle::default(), &check(&engine, 1), START);
        assert_eq!(text(&headers, "x-ratelimit-degraded"), Some(how));
        assert_eq!(text(&headers, "x-ratelimit-limit"), Some("5"));
        assert_eq!(text(&headers, "ratelimit-policy"), Some(r#""a";q=5;w=60"#));
        assert_eq!(headers.contains_key("x-ratelimit-remaining"), has_figures, "{policy}");
        assert_eq!(headers.contains_key("ratelimit"), has_figures, "{policy}");
        // Whatever this process has counted, it does not know when the store lets the client pass.
        assert!(!headers.contains_key("x-ratelimit-reset"), "{policy}");
        assert!(text(&headers, "ratelimit").is_none_or(|state| !state.contains("t=")), "{policy}");
        assert_eq!(check(&engine, 1).summary().reset_at, None, "{policy}");
    }
    // Also where no header was asked for.
    let engine = engine_without_store("rules: [{ name: a, limit: 5/min }]");
    let headers = written(HeaderStyle::none(), &check(&engine, 1), START);
    assert_eq!(text(&headers, "x-ratelimit-degraded"), Some("allowed"));
}

#[test]
fn numbers_fit_a_structured_field() {
    let mut text = HeaderText::new();
    text.write(b"\"a\"");
    write_parameter(*b";q=", u64::MAX, &mut text);
    assert_eq!(&*text.0, b"\"a\";q=999999999999999");
    assert!(Parser::new(&*text.0).parse::<List>().is_ok());
}

#[test]
fn numbers_are_told_as_they_are_whatever_was_told_before() {
    // More than are kept, in the same places, and each twice.
    let numbers = (0..300).chain([u64::MAX, 1_700_000_000, 1_700_000_064]);
    for number in numbers.flat_map(|number| [number, number, number.wrapping_add(64), number]) {
        assert_eq!(number_text::cached(number), number.to_string().as_str());
        assert_eq!(number_text::fresh(number), number.to_string().as_str());
    }
}

/// A buffer that is too small would cut a header in the middle of an item.
#[test]
fn the_longest_headers_fit_their_buffer() {
    let name = |at: u32| format!("{at}{}", "n".repeat(127));
    let rule = |at| format!("  - {{ name: {}, limit: 999999999/3h }}\n", name(at));
    let rules: String = (0..9).map(rule).collect();
    let (engine, _) = engine(&format!("rules:\n{rules}"));
    let headers = written(HeaderStyle::default(), &check(&engine, 1), START);
    for header in ["ratelimit-policy", "ratelimit"] {
        let list: List = Parser::new(headers[header].as_bytes()).parse().unwrap();
        assert_eq!(list.len(), LISTED_MAX, "{header}");
        assert!(list.iter().all(|item| name_of(item).0.len() == 128 && name_of(item).1.len() == 2));
    }
    // And they would still with the widest numbers there are.
    let widest = "\"\";q=999999999999999;w=999999999999999, #32".len() + 128;
    assert!(LISTED_MAX * widest <= TEXT_BYTES_MAX);
}

/// The string of an item and its parameters.
fn name_of(entry: &ListEntry) -> (String, Vec<(String, u64)>) {
    let ListEntry::Item(Item { bare_item: BareItem::String(name), params }) = entry else {
        panic!("not a string: {entry:?}");
    };
    let number = |value: &BareItem| match value {
        BareItem::Integer(number) => u64::try_from(i64::from(*number)).unwrap(),
        other => panic!("not an integer: {other:?}"),
    };
    let params = params.iter().map(|(key, value)| (key.as_str().to_owned(), number(value)));
    (name.as_str().to_owned(), params.collect())
}

/// Limits of each algorithm, but for permits: alone, in pairs, by tiers, and warming up. Each takes a cost of 4, also at half
/// of its size.
const LIMITS: [&str; 17] = [
    "limit: 8/10s",
    "limit: 15/3s, burst: 20",
    "limit: 0.3/s, burst: 8",
    "limit: 8/10s, algorithm: leaky_bucket",
    "limit: 8/s, queue: 7",
    "limit: 8/10s, algorithm: fixed_window",
    "limit: 8/10s, algorithm: fixed_window, staggered: true",
    "limit: 8 per calendar day",
    "limit: 8/10s, algorithm: sliding_window_strict",
    "limit: 8/10s, algorithm: sliding_window_log",
    "limit: [8/10s, 20/min, 100/h]",
    "limit: [8/10s, 20/min], algorithm: fixed_window",
    "limit: [{ limit: 15/3s, burst: 20 }, 60/min, 100 per calendar day]",
    "tiers: { free: 8/10s, gold: [9/7s, 30/min], default: free }",
    "limit: 20/10s, cost: 2",
    "limit: 16/10s, warm_up: { start: 8, over: 30s, steps: 3 }",
    "limit: 16/10s, burst: 16, warm_up: { start: 8, over: 1min, steps: 4 }",
];

/// An engine with one rule of each of these limits, for a client that is boosted. 100 leaves its limits as they are.
fn boosted_engine(limits: &[&str], factor_percent: u32) -> (Engine, ManualClock) {
    let mut yaml = "rules:\n".to_owned();
    for (at, limit) in limits.iter().enumerate() {
        writeln!(yaml, "  - {{ name: r{at}, {limit} }}").unwrap();
    }
    let boost = Override::new("ip:203.0.113.7", Effect::Boost { factor_percent });
    engine_of(rules(&yaml).with_overrides(vec![boost]))
}

fn check_in_tier(engine: &Engine, tier: &str, cost: u64) -> Verdict {
    let attributes = [("ip", "203.0.113.7"), ("tier", tier)];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    engine.check(&request.with_cost(cost))
}

/// The number of a parameter in each item of a list.
fn parameters(headers: &HeaderMap, header: &str, key: &str) -> Vec<u64> {
    let list: List = Parser::new(headers[header].as_bytes()).parse().unwrap();
    let of_item =
        |item: &ListEntry| name_of(item).1.into_iter().find(|(name, _)| name == key).unwrap().1;
    list.iter().map(of_item).collect()
}

proptest! {
    /// Whatever was answered, under one limit or several, in whatever tier, boosted or not: a client that waits as headers say
    /// is not denied.
    #[test]
    fn a_client_that_waits_until_the_reset_is_not_denied(
        limits in prop::collection::vec(prop::sample::select(LIMITS.to_vec()), 1..4),
        factor_percent in prop::sample::select(vec![100, 50, 150, 333]),
        steps in prop::collection::vec((0_u64..8_000_000, 1_u64..5, any::<bool>(), 0..3_u8), 1..25),
    ) {
        let (engine, clock) = boosted_engine(&limits, factor_percent);
        for (later_us, cost, is_gold, waits_for) in steps {
            let tier = if is_gold { "gold" } else { "free" };
            clock.advance(Duration::from_micros(later_us));
            let verdict = check_in_tier(&engine, tier, cost);
            let headers =
                written(HeaderStyle::default().with_split(), &verdict, clock.now());
            let number = |name: &str| text(&headers, name).unwrap().parse::<u64>().unwrap();
            let wait = match waits_for {
                0 => Timestamp::from_secs(number("x-ratelimit-reset")).since(clock.now()),
                1 => Duration::from_secs(number("ratelimit-reset")),
                // The longest of all limits that have no room left for what the request costs there.
                _ => {
                    let (left, times) =
                        (parameters(&headers, "ratelimit", "r"), parameters(&headers, "ratelimit", "t"));
                    let most = cost * if limits.iter().any(|limit| limit.contains("cost: 2")) { 2 } else { 1 };
                    let used_up = left.iter().zip(&times).filter(|(left, _)| **left < most);
                    let used_up = used_up.map(|(_, time)| *time).max().unwrap_or_default();
                    Duration::from_secs(used_up)
                }
            };
            if let Some(exact) = verdict.retry_after() {
                prop_assert!(wait >= exact, "{wait:?} {headers:?}");
                prop_assert!(number("retry-after") <= number("ratelimit-reset"), "{headers:?}");
                // The exact reset of bodies is not before the exact wait either.
                prop_assert!(verdict.reset_at().unwrap() >= clock.now().after(exact), "{headers:?}");
            }
            clock.advance(wait);
            let verdict = check_in_tier(&engine, tier, cost);
            prop_assert!(verdict.is_allowed(), "{wait:?} {headers:?} {:?}", verdict.summary());
        }
    }
}

const WINDOWS: [&str; 6] = ["s", "7s", "min", "15min", "day", "300ms"];

proptest! {
    /// Whatever the rules, whoever reads our headers by RFC 9651 finds in them what was decided.
    #[test]
    fn every_header_reads_back_as_what_was_decided(
        rules in prop::collection::vec(
            ("[a-zA-Z0-9_.:/-]{1,120}", prop::sample::subsequence(WINDOWS.to_vec(), 1..4), 1_u64..2_000_000),
            1..5,
        ),
        costs in prop::collection::vec(0_u64..3_000_000, 1..4),
        later_us in 0_u64..200_000_000,
        delta: bool,
    ) {
        let mut yaml = "rules:\n".to_owned();
        for (at, (name, windows, limit)) in rules.iter().enumerate() {
            let limits: Vec<String> =
                windows.iter().map(|window| format!("{limit}/{window}")).collect();
            let limits = limits.join(", ");
            writeln!(yaml, "  - {{ name: \"r{at}{name}\", limit: [{limits}] }}").unwrap();
        }
        let (engine, clock) = engine(&yaml);
        for cost in costs {
            let verdict = check(&engine, cost);
            let now = START.after(Duration::from_micros(later_us));
            let reset = if delta { Reset::Delta } else { Reset::Epoch };
            let headers = written(HeaderStyle::default().reset(reset), &verdict, now);
            let binding = verdict.binding().unwrap();
            for (name, value) in [
                ("x-ratelimit-limit", binding.decision().limit()),
                ("x-ratelimit-remaining", binding.decision().remaining().unwrap()),
            ] {
                let expected = value.to_string();
                prop_assert_eq!(text(&headers, name), Some(expected.as_str()));
            }
            prop_assert!(text(&headers, "x-ratelimit-reset").unwrap().parse::<u64>().is_ok());

            let policies: List = Parser::new(headers["ratelimit-policy"].as_bytes()).parse().unwrap();
            let states: List = Parser::new(headers["ratelimit"].as_bytes()).parse().unwrap();
            let live = verdict.decisions().count().min(LISTED_MAX);
            prop_assert_eq!((policies.len(), states.len()), (live, live));
            let mut names = std::collections::BTreeSet::new();
            for (at, (policy, state)) in policies.iter().zip(&states).enumerate() {
                let ((name, policy), (state_name, state)) = (name_of(policy), name_of(state));
                prop_assert_eq!(&name, &state_name);
                prop_assert!(names.insert(name.clone()), "{} twice", name);
                let mut decisions = verdict.decisions();
                let its = decisions.find(|decision| super::name_of(decision) == name).unwrap();
                prop_assert!(at > 0 || its.decision() == binding.decision());
                prop_assert_eq!(&policy[0], &("q".to_owned(), its.decision().limit()));
                let window = its.limit().policy().window();
                let window_s = policy.get(1).map(|(_, window_s)| Duration::from_secs(*window_s));
                prop_assert_eq!(window_s, (window.subsec_nanos() == 0).then_some(window));
                prop_assert_eq!(&state[0], &("r".to_owned(), its.decision().remaining().unwrap()));
                // Whoever waits t seconds finds it reset.
                let waited = now.after(Duration::from_secs(state[1].1));
                prop_assert!(state[1].0 == "t" && waited >= its.decision().reset_at().unwrap());
            }
            clock.advance(Duration::from_micros(later_us));
        }
    }
}
