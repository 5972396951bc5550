//! The bounds that are stated for a rule, held against random rules and traffic: over every interval of what passed.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use tollbar::{ManualClock, MemoryStore, Outcome};
use tollbar_rules::{AdmittedTokens, AsyncEngine, LimitBounds, RuleFile, RuleSet};
use tollbar_testkit::admissions::{Admissions, IntervalSum};
use tollbar_testkit::strategy::cases;

use crate::support::{NodeStore, check, clock, rules};

/// Requests of a greedy client.
const REQUESTS: usize = 150;

/// Nodes with one store, and what they have let pass together.
struct Fleet {
    clock: ManualClock,
    rules: RuleSet,
    nodes: Vec<AsyncEngine>,
    admitted: Admissions,
}

impl Fleet {
    fn new(text: &str, is_down: bool) -> Self {
        let (rules, clock) = (rules(text), clock());
        let shared = MemoryStore::builder().clock(clock.clone()).max_keys(1_000).build();
        let shared = Arc::new(shared);
        let node = |_| {
            let store = NodeStore::new(&shared, &clock);
            store.set_down(is_down);
            let builder = AsyncEngine::builder(rules.clone(), store);
            builder.clock(clock.clone()).build().unwrap()
        };
        let nodes = (0..rules.node_count()).map(node).collect();
        Self { clock, nodes, rules: rules.clone(), admitted: Admissions::default() }
    }

    /// Asks a node. What passes is written down.
    fn ask(&mut self, node: usize, line: &str, cost: u64) -> Outcome {
        let node = &self.nodes[node % self.nodes.len()];
        let verdict = check(node, &format!("{line} cost={cost}"));
        if verdict.is_allowed() {
            let now_us = tollbar::Clock::now(&self.clock).as_micros();
            self.admitted.charges.push((now_us, cost));
        }
        verdict.outcome()
    }

    /// The bounds of each limit of the tier for intervals as long as these.
    fn bounds(&self, tier: Option<&str>, spans: &[IntervalSum]) -> Vec<LimitBounds> {
        let lengths: Vec<Duration> =
            spans.iter().map(|span| Duration::from_micros(span.length_us)).collect();
        let rule = self.rules.get("a").unwrap();
        let mut bounds = self.rules.bounds_of(rule, &lengths);
        bounds.retain(|bounds| bounds.tier.as_deref() == tier);
        bounds
    }
}

fn window() -> impl Strategy<Value = &'static str> {
    select(vec!["10us", "1ms", "7ms", "100ms", "1s", "3s"])
}

/// Any limit but one that warms up.
fn plain_limit() -> impl Strategy<Value = String> {
    let plain = select(vec![
        "",
        ", algorithm: fixed_window",
        ", algorithm: fixed_window, staggered: true",
        ", algorithm: token_bucket",
        ", algorithm: leaky_bucket",
        ", algorithm: sliding_window_log",
        ", burst: 3",
        ", burst: 50",
        ", algorithm: leaky_queue, queue: 0",
        ", algorithm: leaky_queue, queue: 5",
        ", algorithm: leaky_queue, queue: 9, max_wait: 2ms",
        ", algorithm: sliding_window_strict, subwindows: 3",
        ", algorithm: sliding_window_strict",
    ]);
    prop_oneof![
        9 => (1_u64..40, window(), plain)
            .prop_map(|(limit, window, options)| format!("{{ limit: {limit}/{window}{options} }}")),
        1 => (1_u64..40, select(vec!["day", "week", "month"]))
            .prop_map(|(limit, period)| format!("{limit} per calendar {period}")),
    ]
}

fn limit() -> impl Strategy<Value = String> {
    let warming = select(vec![
        "",
        ", algorithm: token_bucket",
        ", algorithm: sliding_window_log",
        ", algorithm: leaky_queue, queue: 9",
        ", algorithm: leaky_queue, queue: 9, max_wait: 2ms",
    ]);
    prop_oneof![
        9 => plain_limit(),
        1 => (4_u64..40, select(vec!["10ms", "1s"]), warming).prop_map(
            |(limit, window, options)| {
                format!("{{ limit: {limit}/{window}, warm_up: {{ start: 2, over: 20s }}{options} }}")
            }
        ),
    ]
}

/// How many limits a rule has, and whether a request pays one of them or both.
#[derive(Debug, Clone, Copy)]
enum LimitCount {
    One,
    Two,
    Alternatives,
}

/// A file with one rule `a` for `path` and, if that is not all, another that is always exact; and the tier of requests.
fn file() -> impl Strategy<Value = (String, Option<&'static str>)> {
    let accuracy = select(vec!["exact", "local", "local", "conservative"]);
    let failure = select(vec!["allow", "deny", "local", "shed", "{ shed: low }"]);
    let count = select(vec![LimitCount::One, LimitCount::Two, LimitCount::Alternatives]);
    let parts = (limit(), limit(), count, any::<bool>(), accuracy, failure, 1_u64..5);
    parts.prop_map(|(one, other, has_two, has_tier, accuracy, failure, nodes)| {
        let limits = match has_two {
            LimitCount::One => one.clone(),
            LimitCount::Two => format!("[{one}, {other}]"),
            LimitCount::Alternatives => format!("{{ any_of: [{one}, {other}] }}"),
        };
        let (fields, tier) = if has_tier {
            (format!("limit: 9/s, tiers: {{ gold: {limits} }}"), Some("gold"))
        } else {
            (format!("limit: {limits}"), None)
        };
        let text = format!(
            "nodes: {nodes}\naccuracy: {accuracy}\nrules:\n\
             - {{ name: a, per: [], {fields}, on_store_failure: {failure} }}\n\
             - {{ name: b, match: {{ path: /b }}, limit: 1000000/s, accuracy: exact }}"
        );
        (text, tier)
    })
}

fn sound_file() -> impl Strategy<Value = (String, Option<&'static str>)> {
    let is_sound = |(text, _): &(String, _)| RuleFile::parse("r", text).is_ok();
    file().prop_filter("two limits may have one counter", is_sound)
}

fn line(tier: Option<&str>, path: &str) -> String {
    tier.map_or_else(|| format!("GET {path}"), |tier| format!("GET {path} tier={tier}"))
}

/// How long to wait, as a word or a number of microseconds; which node to ask; for how much.
fn step() -> impl Strategy<Value = (u64, usize, u64, bool)> {
    let advance = prop_oneof![
        4 => Just(0_u64),
        2 => 1_u64..20,
        2 => 1_u64..9_000,
        2 => 1_u64..2_000_000,
        1 => select(vec![10, 1_000, 7_000, 100_000, 1_000_000, 3_000_000, 86_400_000_000]),
    ];
    (advance, 0_usize..4, 1_u64..4, proptest::bool::weighted(0.3))
}

fn is_within(span: IntervalSum, admitted: AdmittedTokens) -> bool {
    admitted.most.is_none_or(|most| span.tokens <= most)
}

fn is_enough(span: IntervalSum, admitted: AdmittedTokens) -> bool {
    admitted.least.is_none_or(|least| span.tokens >= least)
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn no_interval_admits_more_than_is_stated(
        (text, tier) in sound_file(),
        is_down in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut fleet = Fleet::new(&text, is_down);
        for (advance_us, node, cost, is_beside_another) in steps {
            fleet.clock.advance(Duration::from_micros(advance_us));
            // What the store would count is not asked together with what each node counts: this store cannot.
            let path = if is_down && is_beside_another { "/b" } else { "/" };
            fleet.ask(node, &line(tier, path), cost);
        }
        let spans: Vec<IntervalSum> = fleet.admitted.intervals().collect();
        for bounds in fleet.bounds(tier, &spans) {
            for (span, stated) in spans.iter().zip(&bounds.intervals) {
                let admitted = if is_down { stated.unreachable } else { stated.answering };
                prop_assert!(is_within(*span, admitted), "{span:?} {admitted:?} of {text}");
            }
        }
    }

    #[test]
    fn a_client_that_always_asks_gets_at_least_what_is_stated(
        (one, other) in (plain_limit(), proptest::option::of(plain_limit())),
        accuracy in select(vec!["exact", "local"]),
        failure in select(vec!["allow", "deny", "local", "shed"]),
        nodes in 1_u64..4,
        is_down in any::<bool>(),
    ) {
        let limit = other.map_or_else(|| one.clone(), |other| format!("{{ any_of: [{one}, {other}] }}"));
        let text = format!(
            "nodes: {nodes}\naccuracy: {accuracy}\n\
             rules: [{{ name: a, per: [], limit: {limit}, on_store_failure: {failure} }}]"
        );
        prop_assume!(RuleFile::parse("r", &text).is_ok());
        let mut fleet = Fleet::new(&text, is_down);
        for _ in 0..REQUESTS {
            match fleet.ask(0, "GET /", 1) {
                Outcome::Deny { retry_after_us } => {
                    fleet.clock.advance(Duration::from_micros(retry_after_us));
                }
                Outcome::Allow => {}
                outcome => unreachable!("one token fits sooner or later: {outcome:?}"),
            }
        }
        let spans: Vec<IntervalSum> = fleet.admitted.gaps().collect();
        for bounds in fleet.bounds(None, &spans) {
            for (span, stated) in spans.iter().zip(&bounds.intervals) {
                let admitted = if is_down { stated.unreachable } else { stated.answering };
                prop_assert!(is_enough(*span, admitted), "{span:?} {admitted:?} of {text}");
            }
        }
    }
}
