//! A request under one plain rule takes a short cut where the store is in memory. It must not be
//! told from the long way, which is taken over any other store.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::prelude::*;
use tollbar::store::block_on;
use tollbar::{ManualClock, MemoryStore, Timestamp};
use tollbar_rules::{AsyncEngine, Engine, Request, RuleFile, Verdict};
use tollbar_testkit::later_store::LaterStore;

/// Rules of all kinds, of which a path chooses one, two or none.
const RULES: &str = r#"
rules:
  - { name: plain, match: { path: /plain }, limit: 3/100s }
  - { name: dear, match: { path: /dear }, limit: 9/100s, algorithm: fixed_window, cost: 4 }
  - { name: by_length, match: { path: /by_length }, limit: 9/100s, cost: { attribute: length } }
  - { name: users, match: { path: /users }, per: [user], missing: skip, limit: 2/100s }
  - { name: known, match: { path: /known }, per: [user], missing: deny, limit: 2/100s }
  - { name: all, match: { path: /all }, per: [], limit: 4/100s, burst: 2 }
  - { name: queue, match: { path: /queue }, limit: 1/s, queue: 3 }
  - { name: shadow, match: { path: /shadow }, limit: 1/100s, mode: shadow }
  - { name: off, match: { path: /off }, limit: 1/100s, enabled: false }
  - { name: free, match: { path: /free }, unlimited: true }
  - { name: tiers, match: { path: /tiers }, tiers: { a: 1/100s, b: 5/100s, default: a } }
  - { name: exempt, match: { path: /exempt }, limit: 1/100s, exempt: { user: "1" } }
  - { name: tried, match: { path: /tried }, limit: 5/100s, candidate: { limit: 1/100s } }
  - { name: two, match: { path: /two }, limit: [1/s, 3/100s] }
  - { name: held, match: { path: /held }, limit: 2, algorithm: concurrency }
  - { name: one_of_two, match: { path: "/both/*" }, limit: 2/100s }
  - { name: other_of_two, match: { path: /both/x }, limit: 3/100s, stop: true }
  - { name: rest, match: { path: /rest }, fallback: true, limit: 2/100s }
"#;

const PATHS: [&str; 20] = [
    "/plain",
    "/dear",
    "/by_length",
    "/users",
    "/known",
    "/all",
    "/queue",
    "/shadow",
    "/off",
    "/free",
    "/tiers",
    "/exempt",
    "/tried",
    "/two",
    "/held",
    "/both/x",
    "/both%2fx",
    "/both/y",
    "/rest",
    "/nothing",
];

/// All that a verdict says, but for what it holds on to.
fn told(verdict: &Verdict) -> String {
    let decisions: Vec<String> = verdict
        .decisions()
        .map(|limit| {
            let (rule, tier, place) = (&limit.rule().name, limit.tier(), limit.place());
            let (enforcement, cost, degraded) =
                (limit.enforcement(), limit.cost(), limit.degraded());
            format!(
                "{rule} {tier:?} {place} {enforcement:?} {cost} {degraded:?} {:?}",
                limit.decision()
            )
        })
        .collect();
    let binding = verdict.binding().map(|limit| limit.rule().name.clone());
    format!("{:?} {:?} {binding:?} {decisions:?}", verdict.outcome(), verdict.reason())
}

/// One engine over memory, and one over a store that is not known to be.
struct EnginePair {
    clock: ManualClock,
    short: Engine,
    long: AsyncEngine,
}

impl EnginePair {
    fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        let memory =
            || Arc::new(MemoryStore::builder().max_keys(10_000).clock(clock.clone()).build());
        let file = RuleFile::parse("rules.yaml", RULES);
        let rules = file.unwrap_or_else(|error| panic!("{error}")).rules;
        let short = Engine::builder(rules.clone()).store(memory()).clock(clock.clone()).build();
        let later = Arc::new(LaterStore::new(memory()));
        let long = AsyncEngine::builder(rules, later).clock(clock.clone()).build().unwrap();
        Self { clock, short, long }
    }
}

/// Made once, because it takes longer than a case; between cases all counters become fresh.
static ENGINES: LazyLock<EnginePair> = LazyLock::new(EnginePair::new);

proptest! {
    #[test]
    fn the_short_cut_says_what_the_long_way_says(
        asked in prop::collection::vec(
            (prop::sample::select(&PATHS), 0..3_u64, 0..4_u32, 0..3_u32, 0..20_u64), 1..60),
    ) {
        let EnginePair { clock, short, long } = &*ENGINES;
        let mut holds = Vec::new();
        for (path, cost, user, tier, seconds) in asked {
            clock.advance(Duration::from_secs(seconds / 4));
            let (user, tier) = (user.to_string(), ["", "a", "b"][tier as usize]);
            let user = if user == "0" { "" } else { &user };
            let attributes = [("user", user), ("tier", tier), ("ip", "10.0.0.1"), ("length", "2")];
            let request = Request::new("GET", path).unwrap().with_attributes(&attributes).unwrap();
            let request = request.with_cost(cost);
            let by_short = short.admit(&request, None);
            let by_long = block_on(long.admit(&request, None));
            prop_assert_eq!(told(&by_short.verdict), told(&by_long.verdict));
            prop_assert_eq!(by_short.hold.is_some(), by_long.hold.is_some());
            holds.extend(by_short.hold.zip(by_long.hold));
        }
        let top = |engine: &AsyncEngine| {
            format!("{:?}", engine.rule("plain").map(|rule| rule.top_denied(9)))
        };
        prop_assert_eq!(top(short), top(long));
        for (by_short, by_long) in holds {
            prop_assert!(short.release(&by_short).unwrap());
            prop_assert!(block_on(long.release(&by_long)).unwrap());
        }
        clock.advance(Duration::from_hours(1));
    }
}
