//! Requests against rules: what applies, what it costs, what is answered when things go wrong.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::{Adjustment, ReservationId};
use tollbar::{
    Batch, Decision, Degraded, ManualClock, MemoryStore, Outcome, Policy, Reply, Store, StoreError,
    Timestamp,
};
use tollbar_rules::{Capacity, Criticality, Engine, Reason, Request, RuleFile, RuleSet, Verdict};

fn rules(text: &str) -> RuleSet {
    RuleFile::parse("rules.yaml", text).unwrap_or_else(|error| panic!("{error}")).rules
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000))
}

fn engine(text: &str) -> Engine {
    engine_at(text, &clock())
}

fn engine_at(text: &str, clock: &ManualClock) -> Engine {
    Engine::builder(rules(text)).clock(clock.clone()).build()
}

/// `GET /path name=value ..`
fn check(engine: &Engine, text: &str) -> Verdict {
    let mut words = text.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut attributes: Vec<(&str, &str)> = Vec::new();
    let mut request = Request::new(method, path).unwrap();
    for word in words {
        match word.split_once('=').unwrap() {
            ("cost", cost) => request = request.with_cost(cost.parse().unwrap()),
            ("criticality", name) => {
                request = request.with_criticality(Criticality::of_name(name).unwrap());
            }
            pair => attributes.push(pair),
        }
    }
    engine.check(&request.with_attributes(&attributes).unwrap())
}

/// The verdict in a word or two: `allow per_client 9`, `deny per_client`, `allow (no rule)`.
fn answer(verdict: &Verdict) -> String {
    let outcome = match verdict.outcome() {
        Outcome::Allow => "allow",
        Outcome::Deny { .. } => "deny",
        Outcome::Busy => "busy",
        Outcome::Never => "never",
    };
    let reason = match verdict.reason() {
        Reason::NoRule => "(no rule)".to_owned(),
        Reason::Unlimited(rule) => format!("{} (unlimited)", rule.name),
        Reason::Exempt(rule, _) => format!("{} (exempt)", rule.name),
        Reason::MissingAttribute { rule, attribute } => format!("{} (no {attribute})", rule.name),
        Reason::TooManyLimits { count } => format!("({count} limits)"),
        Reason::Limits => {
            let binding = verdict.binding().unwrap();
            let remaining = if binding.decision().is_allowed() {
                format!(" {}", binding.decision().remaining())
            } else {
                String::new()
            };
            format!("{}{remaining}", binding.rule().name)
        }
        reason => panic!("{reason:?}"),
    };
    format!("{outcome} {reason}")
}

#[track_caller]
fn expect(engine: &Engine, steps: &[(&str, &str)]) {
    for (step, (request, expected)) in steps.iter().enumerate() {
        assert_eq!(answer(&check(engine, request)), *expected, "step {step}: {request}");
    }
}

#[test]
fn no_rule_allows_and_says_so() {
    let engine = engine("rules: [{ name: a, match: { path: /a }, limit: 1/h }]");
    expect(
        &engine,
        &[("GET /b", "allow (no rule)"), ("GET /a", "allow a 0"), ("GET /a", "deny a")],
    );
}

#[test]
fn all_matching_rules_apply_and_all_are_paid_or_none() {
    let engine = engine(
        "rules:
         - { name: everybody, per: [], limit: 3/h }
         - { name: per_user, per: user, limit: 2/h }",
    );
    expect(
        &engine,
        &[
            ("GET / user=1", "allow per_user 1"),
            ("GET / user=1", "allow per_user 0"),
            // Denied by the user's limit: the limit of all is not charged.
            ("GET / user=1", "deny per_user"),
            ("GET / user=1", "deny per_user"),
            ("GET / user=2", "allow everybody 0"),
            ("GET / user=2", "deny everybody"),
            ("GET / user=2 cost=0", "allow everybody 0"),
        ],
    );
}

#[test]
fn several_limits_of_one_rule_hold_together() {
    let clock = clock();
    let engine =
        engine_at("rules: [{ name: a, limit: [2/s, 3/h], algorithm: fixed_window }]", &clock);
    expect(&engine, &[("GET /", "allow a 1"), ("GET /", "allow a 0"), ("GET /", "deny a")]);
    clock.advance(Duration::from_secs(1));
    expect(&engine, &[("GET /", "allow a 0"), ("GET /", "deny a")]);
    let verdict = check(&engine, "GET /");
    assert_eq!(verdict.binding().unwrap().limit().text(), "3/h");
    assert_eq!(verdict.decisions().count(), 2);
}

#[test]
fn the_client_is_the_key_the_user_or_the_address() {
    let engine = engine("rules: [{ name: a, limit: 1/h }]");
    expect(
        &engine,
        &[
            ("GET / ip=1.1.1.1", "allow a 0"),
            ("GET / ip=1.1.1.1", "deny a"),
            ("GET / ip=::ffff:1.1.1.1", "deny a"),
            ("GET / ip=1.1.1.1 user=1", "allow a 0"),
            ("GET / ip=2.2.2.2 user=1", "deny a"),
            ("GET / ip=1.1.1.1 user=1 api_key=1", "allow a 0"),
            ("GET / user=2 api_key=1", "deny a"),
            // Without the header it is the address again, which has had its turn.
            ("GET / ip=1.1.1.1 user=", "deny a"),
            // Two addresses of one /64 are one client.
            ("GET / ip=2001:db8::1", "allow a 0"),
            ("GET / ip=2001:db8::2", "deny a"),
        ],
    );
}

#[test]
fn a_missing_attribute_is_answered_as_the_rule_says() {
    let of = |missing: &str| {
        engine(&format!(
            "rules: [{{ name: a, per: user, missing: {missing}, limit: 1/h }}, {{ name: f, fallback: true, per: [], limit: 9/h }}]"
        ))
    };
    expect(
        &of("ip"),
        &[
            ("GET / ip=1.1.1.1", "allow a 0"),
            ("GET / ip=1.1.1.1", "deny a"),
            ("GET / ip=2.2.2.2", "allow a 0"),
            ("GET /", "allow a 0"),
            ("GET /", "deny a"),
        ],
    );
    expect(&of("shared"), &[("GET / ip=1.1.1.1", "allow a 0"), ("GET / ip=2.2.2.2", "deny a")]);
    // A rule that was skipped covers nobody: the fallback does.
    expect(&of("skip"), &[("GET / user=1", "allow a 0"), ("GET /", "allow f 8")]);
    expect(&of("deny"), &[("GET / user=1", "allow a 0"), ("GET /", "busy a (no user)")]);
}

#[test]
fn keys_are_of_the_rule_and_of_every_attribute() {
    let engine = engine(
        "rules:
         - { name: a, per: [user, path], limit: 1/h }
         - { name: b, per: [user, path], limit: 2/h }",
    );
    expect(
        &engine,
        &[
            ("GET /x user=1", "allow a 0"),
            ("GET /x user=1", "deny a"),
            ("GET /y user=1", "allow a 0"),
            ("GET /x user=2", "allow a 0"),
        ],
    );
}

#[test]
fn tiers_have_limits_of_their_own() {
    let engine = engine(
        "rules:
         - name: a
           tiers: { free: 1/h, gold: { limit: 2/h, burst: 3 }, staff: unlimited, default: free }
         - name: b
           match: { path: /b }
           limit: 2/h
           tiers: { gold: 3/h }",
    );
    expect(
        &engine,
        &[
            ("GET / user=1", "allow a 0"),
            ("GET / user=1 tier=what", "deny a"),
            // The same window counts on: one of the two is spent.
            ("GET / user=2 tier=gold", "allow a 2"),
            ("GET / user=3 tier=staff", "allow a (unlimited)"),
            ("GET /b user=4 tier=staff", "allow b 1"),
            ("GET /b user=5 tier=gold", "allow b 2"),
        ],
    );
    assert_eq!(check(&engine, "GET / user=9 tier=gold").binding().unwrap().tier(), Some("gold"));
}

#[test]
fn costs_go_by_route_and_attribute() {
    let engine = engine(
        r#"rules:
         - { name: a, match: { path: /a/** }, limit: 100/h, cost: { "GET /a/search": 5, "/a/big": 50, attribute: weight } }
         - { name: b, match: { path: /b }, limit: 100/h, cost: [{ match: { plan: { prefix: bulk } }, cost: 7 }] }"#,
    );
    expect(
        &engine,
        &[
            ("GET /a/x", "allow a 99"),
            ("GET /a/search", "allow a 94"),
            ("POST /a/search", "allow a 93"),
            ("GET /a/search cost=2", "allow a 83"),
            ("GET /a/big", "allow a 33"),
            ("GET /a/big", "deny a"),
            ("GET /a/x weight=30", "allow a 3"),
            ("GET /a/x weight=101", "never a"),
            ("GET /b plan=bulk-9", "allow b 93"),
            ("GET /b plan=x", "allow b 92"),
        ],
    );
}

#[test]
fn exemptions_end_when_they_say() {
    let clock = ManualClock::at(Timestamp::from_micros(1_798_761_599_999_999));
    let engine = engine_at(
        "rules:
         - name: a
           limit: 1/h
           exempt: [{ api_key: internal }, { ip: 10.0.0.0/8, until: 2027-01-01, reason: move }]",
        &clock,
    );
    let internal = ("GET / api_key=internal", "allow a (exempt)");
    expect(&engine, &[internal, internal, ("GET / ip=10.1.1.1", "allow a (exempt)")]);
    clock.advance(Duration::from_micros(1));
    expect(
        &engine,
        &[internal, ("GET / ip=10.1.1.1", "allow a 0"), ("GET / ip=10.1.1.1", "deny a")],
    );
}

#[test]
fn many_exemptions_are_found() {
    let exempt: Vec<String> = (0..100).map(|n| format!("{{ api_key: k{n} }}")).collect();
    let costs: Vec<String> = (0..100).map(|n| format!("/p{n}: {n}")).collect();
    let engine = engine(&format!(
        "rules: [{{ name: a, per: [], limit: 1000/h, exempt: [{}], cost: {{ {} }} }}]",
        exempt.join(", "),
        costs.join(", ")
    ));
    expect(
        &engine,
        &[
            ("GET /p9 api_key=k77", "allow a (exempt)"),
            ("GET /p99 api_key=k100", "allow a 901"),
            ("GET /x", "allow a 900"),
        ],
    );
}

#[test]
fn unlimited_rules_lift_what_is_not_above_them() {
    let engine = engine(
        "rules:
         - { name: z_health, match: { path: /health/** }, unlimited: true }
         - { name: a_all, limit: 1/h }
         - { name: ddos, priority: 1, match: { path: /health/deep }, limit: 2/h }
         - { name: other, fallback: true, limit: 1/h }",
    );
    let free = ("GET /health", "allow z_health (unlimited)");
    expect(
        &engine,
        &[
            free,
            free,
            ("GET /health/deep", "allow ddos 1"),
            ("GET /health/deep", "allow ddos 0"),
            ("GET /health/deep", "deny ddos"),
            ("GET /x", "allow a_all 0"),
        ],
    );
}

#[test]
fn stop_and_replaces_keep_others_from_applying() {
    let engine = engine(
        "rules:
         - { name: general, limit: 1/h }
         - { name: partner, match: { tenant: acme }, replaces: general, limit: 2/h }
         - { name: admin, priority: 5, match: { path: /admin/** }, stop: true, limit: 3/h }
         - { name: same_level, priority: 5, match: { path: /admin/x }, limit: 4/h }",
    );
    expect(
        &engine,
        &[
            ("GET / user=1", "allow general 0"),
            ("GET / user=1", "deny general"),
            ("GET / user=2 tenant=acme", "allow partner 1"),
            ("GET /admin user=1", "allow admin 2"),
            ("GET /admin user=1 tenant=acme", "allow admin 1"),
        ],
    );
    assert_eq!(check(&engine, "GET /admin/x user=1").decisions().count(), 2);
}

#[test]
fn fallbacks_are_for_requests_that_no_live_rule_matches() {
    let engine = engine(
        "rules:
         - { name: a, match: { path: /a }, limit: 9/h, exempt: { user: vip } }
         - { name: s, match: { path: /s }, limit: 9/h, mode: shadow }
         - { name: f, fallback: true, limit: 5/h }
         - { name: f_posts, fallback: true, match: { method: POST }, limit: 4/h }
         - { name: off, enabled: false, limit: 1/h }",
    );
    expect(
        &engine,
        &[
            ("GET /a", "allow a 8"),
            ("GET /a user=vip", "allow a (exempt)"),
            ("GET /b", "allow f 4"),
            ("POST /b", "allow f 3"),
            // What is tried out in the shadow changes nothing.
            ("GET /s", "allow f 2"),
        ],
    );
}

#[test]
fn shadows_and_candidates_report_and_never_deny() {
    let engine = engine(
        "rules:
         - { name: live, limit: 4/h, candidate: { limit: 2/h } }
         - { name: shadow, mode: shadow, limit: 1/h, stop: true, priority: 9, replaces: live }",
    );
    let reports = |request: &str| {
        let verdict = check(&engine, request);
        let would: Vec<String> = verdict
            .would_deny()
            .map(|it| format!("{} {:?}", it.rule().name, it.capacity()))
            .collect();
        (answer(&verdict), would.join(", "))
    };
    let row = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(reports("GET /"), row("allow live 3", ""));
    assert_eq!(reports("GET /"), row("allow live 2", "shadow Shadow"));
    assert_eq!(reports("GET /"), row("allow live 1", "shadow Shadow, live Candidate"));
    assert_eq!(reports("GET /"), row("allow live 0", "shadow Shadow, live Candidate"));
    assert_eq!(reports("GET /"), row("deny live", "shadow Shadow, live Candidate"));
}

#[test]
fn a_shadow_is_charged_only_if_the_live_verdict_allows() {
    let engine = engine(
        "rules:
         - { name: live, per: user, limit: 1/h }
         - { name: shadow, mode: shadow, per: [], limit: 2/h }",
    );
    for _ in 0..5 {
        let _ = check(&engine, "GET / user=1");
    }
    let verdict = check(&engine, "GET / user=2");
    let shadow = verdict.decisions().find(|it| it.capacity() == Capacity::Shadow).unwrap();
    assert_eq!((shadow.decision().is_allowed(), shadow.decision().remaining()), (true, 0));
}

#[test]
fn more_limits_than_a_store_takes_deny_and_say_so() {
    let many: Vec<String> = (0..33)
        .map(|n| format!("{{ name: r{n}, match: {{ x: {{ prefix: a }} }}, per: [], limit: 9/h }}"))
        .collect();
    let engine = engine(&format!("rules: [{}]", many.join(", ")));
    expect(&engine, &[("GET / x=ab", "busy (33 limits)"), ("GET / x=b", "allow (no rule)")]);
    let shadows = many.join(", ").replace("limit: 9/h", "limit: 9/h, mode: shadow");
    let shadows = shadows.replacen(", mode: shadow", "", 3);
    let engine = self::engine(&format!("rules: [{shadows}]"));
    let verdict = check(&engine, "GET / x=ab");
    assert_eq!((answer(&verdict).as_str(), verdict.decisions().count()), ("allow r0 8", 32));
}

/// A store that cannot answer.
#[derive(Debug)]
struct Down;

fn down<'a, T>() -> Reply<'a, T> {
    Reply::Ready(Err(StoreError::Unavailable { source: Arc::new(std::fmt::Error) }))
}

impl Store for Down {
    fn check<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64) -> Reply<'a, Decision> {
        down()
    }

    fn check_all<'a, 'e: 'a>(&'a self, _: Batch<'a, 'e>) -> Reply<'a, ()> {
        down()
    }

    fn refund<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64, _: u64) -> Reply<'a, u64> {
        down()
    }

    fn renew<'a>(&'a self, _: &'a [u8], _: &'a Policy, _: u64) -> Reply<'a, Option<Timestamp>> {
        down()
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        _: ReservationId,
        _: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        down()
    }

    fn reset<'a>(&'a self, _: &'a [u8], _: &'a Policy) -> Reply<'a, ()> {
        down()
    }
}

#[test]
fn each_rule_says_what_happens_while_the_store_cannot_answer() {
    let engine =
        |text: &str| Engine::builder(rules(text)).clock(clock()).store(Arc::new(Down)).build();
    let of = |failure: &str| {
        engine(&format!(
            "nodes: 4\nrules: [{{ name: a, limit: 10/h, on_store_failure: {failure} }}]"
        ))
    };
    let allow = of("allow");
    for _ in 0..20 {
        let verdict = check(&allow, "GET /");
        assert!(verdict.is_allowed() && verdict.degraded().is_some());
        assert_eq!(verdict.binding().unwrap().degraded(), Some(Degraded::Allowed));
    }
    let verdict = check(&of("deny"), "GET /");
    assert_eq!(verdict.retry_after(), Some(Duration::from_secs(1)));
    assert_eq!(verdict.binding().unwrap().degraded(), Some(Degraded::Denied));
    assert_eq!(verdict.degraded().unwrap().to_string(), "the store cannot answer");
    // A fourth of ten, rounded down.
    let local = of("local");
    expect(
        &local,
        &[
            ("GET / ip=1", "allow a 1"),
            ("GET / ip=1", "allow a 0"),
            ("GET / ip=1", "deny a"),
            ("GET / ip=2", "allow a 1"),
        ],
    );
    assert_eq!(check(&local, "GET /").binding().unwrap().degraded(), Some(Degraded::Fallback));
    let shed = of("shed");
    expect(
        &shed,
        &[
            ("GET /", "deny a"),
            ("GET / criticality=low", "deny a"),
            ("GET / criticality=high", "allow a 0"),
            ("GET / criticality=critical", "allow a 0"),
        ],
    );
    expect(
        &of("{ shed: critical }"),
        &[("GET / criticality=high", "deny a"), ("GET / criticality=critical", "allow a 0")],
    );
    expect(&of("{ shed: low }"), &[("GET / criticality=low", "allow a 0")]);

    // A rule that denies keeps the share of another from being charged.
    let both = engine(
        "rules:
         - { name: counted, per: [], limit: 1/h, on_store_failure: local }
         - { name: denied, match: { path: /x }, limit: 9/h, on_store_failure: deny }",
    );
    expect(
        &both,
        &[
            ("GET /x", "deny denied"),
            ("GET /x", "deny denied"),
            ("GET /", "allow counted 0"),
            ("GET /", "deny counted"),
        ],
    );
}

#[test]
fn an_answer_that_takes_a_while_is_awaited() {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    let engine = engine("rules: [{ name: a, limit: 1/h }]");
    let request = Request::new("GET", "/").unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for expected in ["allow a 0", "deny a"] {
        let Poll::Ready(verdict) = pin!(engine.check_async(&request)).poll(&mut context) else {
            panic!("the memory store answers at once");
        };
        assert_eq!(answer(&verdict), expected);
    }
}

#[test]
fn rules_that_change_keep_their_counters() {
    let clock = clock();
    let text = |limit: &str| {
        rules(&format!("rules: [{{ name: a, per: [], limit: {limit}, algorithm: fixed_window }}]"))
    };
    let engine = Engine::builder(text("3/h")).clock(clock).build();
    expect(&engine, &[("GET /", "allow a 2"), ("GET /", "allow a 1")]);
    let diff = engine.replace(text("5/h"));
    assert_eq!(diff.to_string(), "~ a: limit\n0 unchanged");
    expect(&engine, &[("GET /", "allow a 2")]);
    engine.replace(text("2/h"));
    expect(&engine, &[("GET /", "deny a")]);
    let diff = engine.replace(text("2/min"));
    assert_eq!(diff.to_string(), "~ a: limit (counters start fresh: 2/min)\n0 unchanged");
    expect(&engine, &[("GET /", "allow a 1")]);
    assert_eq!(check(&engine, "GET /").rules_version(), 4);
}

#[test]
fn counters_are_shared_by_engines_over_one_store() {
    let store = Arc::new(MemoryStore::builder().max_keys(100).clock(clock()).build());
    let build = |text| Engine::builder(rules(text)).store(store.clone()).clock(clock()).build();
    let one = build("rules: [{ name: a, limit: 1/h }]");
    let two = build("rules: [{ name: a, limit: 1/h }]");
    let other = build("rules: [{ name: b, limit: 1/h }]");
    expect(&one, &[("GET /", "allow a 0")]);
    expect(&two, &[("GET /", "deny a")]);
    expect(&other, &[("GET /", "allow b 0")]);
}

#[test]
fn permits_are_held_until_they_are_released_or_their_lease_ends() {
    let clock = clock();
    let engine = engine_at(
        "rules:
         - { name: busy, algorithm: concurrency, limit: 2, lease: 30s }
         - { name: rate, limit: 9/h }",
        &clock,
    );
    let first = check(&engine, "GET /");
    let second = check(&engine, "GET /");
    assert!(first.holds_permits() && second.is_allowed());
    expect(&engine, &[("GET /", "busy busy"), ("GET / user=1", "allow busy 1")]);
    assert!(engine.release(&first));
    // Once, however often it is said, and by whichever copy.
    assert!(!engine.release(&first) && !engine.release(&first.clone()) && !first.holds_permits());
    expect(&engine, &[("GET /", "allow busy 0"), ("GET /", "busy busy")]);
    clock.advance(Duration::from_secs(29));
    assert!(engine.renew(&second));
    clock.advance(Duration::from_secs(1));
    // The other's lease has ended, the second's goes on.
    expect(&engine, &[("GET /", "allow busy 0"), ("GET /", "busy busy")]);
    assert!(engine.release(&second));
    // A denied request and a peek hold nothing.
    assert!(!check(&engine, "GET / cost=0").holds_permits());
}

#[test]
fn permits_in_the_shadow_come_back_too() {
    let engine = engine(
        "rules:
         - { name: busy, algorithm: concurrency, mode: shadow, limit: 1 }
         - { name: rate, per: user, limit: 1/h }",
    );
    let first = check(&engine, "GET / user=1 api_key=k");
    assert_eq!(first.would_deny().count(), 0);
    // Denied by the rate: the shadow's permit is not taken.
    assert!(!check(&engine, "GET / user=1 api_key=j").holds_permits());
    assert_eq!(check(&engine, "GET / user=2 api_key=k").would_deny().count(), 1);
    assert!(engine.release(&first));
    assert_eq!(check(&engine, "GET / user=3 api_key=k").would_deny().count(), 0);
}

#[test]
fn permits_of_a_store_that_is_down_are_held_in_this_process() {
    let text = "nodes: 2\nrules: [{ name: busy, algorithm: concurrency, limit: 3, on_store_failure: local }]";
    let engine = Engine::builder(rules(text)).clock(clock()).store(Arc::new(Down)).build();
    let first = check(&engine, "GET /");
    expect(&engine, &[("GET /", "busy busy")]);
    assert!(engine.release(&first));
    expect(&engine, &[("GET /", "allow busy 0")]);
}
