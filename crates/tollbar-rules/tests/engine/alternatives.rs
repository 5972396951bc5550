//! `any_of`: a request pays the first of several alternatives that allows it.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::{Alternative, block_on};
use tollbar::{Accuracy, Degraded, ManualClock, MemoryStore, Outcome, Store};
use tollbar_rules::{
    AsyncEngine, Effect, Enforcement, Override, Request, RuleDecision, RuleFile, UsageError,
    Verdict,
};

use crate::support::{
    NodeStore, admit, answer, ask, check, clock, engine, engine_at, engine_without_store, expect,
    reserve, rules,
};

/// Own quota, else the shared pool.
const POOL: &str = "rules: [{ name: a, limit: { any_of: [3/s, { limit: 4/min, per: [] }] } }]";

/// Which alternative was paid, of those of live rules; 0 for none.
fn paid(verdict: &Verdict) -> u32 {
    let mut paid = verdict.decisions().filter(|limit| {
        limit.enforcement() == Enforcement::Live && limit.alternative().is_some() && limit.is_paid()
    });
    paid.next().and_then(|limit| limit.alternative()).unwrap_or_default()
}

fn paid_by(engine: &AsyncEngine, requests: &[&str]) -> Vec<u32> {
    requests.iter().map(|request| paid(&check(engine, request))).collect()
}

#[test]
fn a_user_has_a_quota_and_beyond_it_the_pool_that_all_share() {
    let clock = clock();
    let text = "rules: [{ name: a, limit: { any_of: [20/s, { limit: 1000/min, per: [] }] } }]";
    let engine = engine_at(text, &clock);
    let pays = |user: &str| paid(&check(&engine, &format!("GET / user={user}")));
    let seen: Vec<u32> = (0..30).map(|_| pays("1")).collect();
    assert_eq!(seen, [vec![1; 20], vec![2; 10]].concat());
    assert_eq!((0..21).map(|_| pays("2")).max(), Some(2), "the quota of another is its own");
    // 989 are left of the pool, for anybody.
    assert_eq!((0..1_000).map(|_| pays("1")).filter(|paid| *paid == 2).count(), 989);
    assert_eq!((pays("1"), pays("2"), pays("3")), (0, 0, 1));
    clock.advance(Duration::from_secs(2));
    assert_eq!(pays("1"), 1);
}

#[test]
fn what_does_not_fit_a_second_is_taken_from_the_month() {
    let clock = clock();
    let engine = engine_at(
        "rules: [{ name: a, limit: { any_of: [20/s, 1000 per calendar month] } }]",
        &clock,
    );
    let second = || (0..120).filter(|_| check(&engine, "GET / user=1").is_allowed()).count();
    assert_eq!(second(), 120);
    for _ in 0..9 {
        clock.advance(Duration::from_secs(2));
        assert_eq!(second(), 120);
    }
    clock.advance(Duration::from_secs(2));
    assert_eq!(second(), 20, "10 times 100 were taken from the month");
    clock.advance(Duration::from_hours(31 * 24));
    assert_eq!(second(), 120);
}

#[test]
fn a_verdict_speaks_by_the_easiest_alternative() {
    let clock = clock();
    let engine = engine_at(POOL, &clock);
    let first = check(&engine, "GET / user=1");
    // 2 are left of the quota, and 4 of the pool: 4 and not 6, for a request pays one of them.
    assert_eq!(answer(&first), "allow a 4");
    let said = |limit: &RuleDecision<'_>| {
        (limit.alternative(), limit.is_paid(), limit.speaks(), limit.remaining())
    };
    let all: Vec<_> = first.decisions().map(|limit| said(&limit)).collect();
    assert_eq!(all, [(Some(1), true, false, Some(2)), (Some(2), false, true, Some(4))]);
    for _ in 0..6 {
        assert!(check(&engine, "GET / user=1").is_allowed());
    }
    let denied = check(&engine, "GET / user=1");
    assert_eq!(answer(&denied), "deny a");
    assert!(denied.decisions().all(|limit| limit.denies() && !limit.is_paid()));
    assert_eq!(denied.would_deny().count(), 0);
    // By the quota, and not by the pool.
    assert!(denied.retry_after().unwrap() < Duration::from_secs(2), "{:?}", denied.retry_after());
    assert_eq!(denied.binding().unwrap().limit().text(), "3/s");
    assert!(
        denied.reset_at().unwrap()
            >= tollbar::Clock::now(&clock).after(denied.retry_after().unwrap())
    );
}

#[test]
fn an_allowed_request_may_be_sent_again_before_its_used_up_alternative_resets() {
    let clock = clock();
    let engine = engine_at(
        "rules:
         - { name: a, limit: { any_of: [1/h, 1000/s] } }
         - { name: b, limit: 5000/s }",
        &clock,
    );
    let verdict = check(&engine, "GET / user=1");
    assert_eq!(paid(&verdict), 1);
    let soon = tollbar::Clock::now(&clock).after(Duration::from_secs(2));
    assert!(verdict.reset_at().unwrap() < soon, "the second alternative has room");
}

#[test]
fn a_cost_that_one_alternative_never_takes_is_paid_by_another() {
    let engine = engine(
        "rules:
         - { name: a, limit: { any_of: [3/s, 50/h] }, cost: { /report: 10, default: 1 } }",
    );
    expect(&engine, &[("GET /report", "allow a 40"), ("GET / cost=60", "never a")]);
    assert_eq!(paid(&check(&engine, "GET /report")), 2);
    assert_eq!(paid(&check(&engine, "GET /")), 1);
}

#[test]
fn all_limits_of_an_alternative_have_to_allow() {
    let engine = engine(
        "rules: [{ name: a, limit: { any_of: [[5/s, 2/min], [{ limit: 9/s, per: [] }, { limit: 3/h, per: [] }]] } }]",
    );
    let requests = ["GET / user=1", "GET / user=1", "GET / user=1", "GET / user=2", "GET / user=1"];
    assert_eq!(paid_by(&engine, &requests), [1, 1, 2, 1, 2]);
    assert_eq!(paid_by(&engine, &["GET / user=1", "GET / user=1"]), [2, 0]);
    let denied = check(&engine, "GET / user=1");
    assert_eq!(denied.decisions().filter(|limit| !limit.decision().is_allowed()).count(), 2);
}

/// `acme` may be a tenant and a user.
#[test]
fn a_limit_with_a_per_of_its_own_has_counters_of_its_own() {
    let engine = engine(
        "rules: [{ name: a, per: [user], limit: { any_of: [1/s, { limit: 1/s, per: [tenant] }] } }]",
    );
    let request = "GET / user=acme tenant=acme";
    assert_eq!(paid_by(&engine, &[request, request, request]), [1, 2, 0]);
    assert_eq!(paid(&check(&engine, "GET / user=bee tenant=acme")), 1);
    assert_eq!(paid(&check(&engine, "GET / user=bee tenant=acme")), 0);
    assert_eq!(paid(&check(&engine, "GET / user=bee tenant=bee")), 2);
}

#[test]
fn a_request_that_another_rule_denies_pays_no_alternative() {
    let engine = engine(
        "rules:
         - { name: a, limit: { any_of: [2/h, { limit: 5/h, per: [] }] } }
         - { name: b, match: { path: /b }, limit: { any_of: [1/h, 1/day] } }",
    );
    assert!((0..2).all(|_| check(&engine, "GET /b user=1").is_allowed()));
    let denied = check(&engine, "GET /b user=1");
    assert_eq!(answer(&denied), "deny b");
    assert!(!denied.decisions().any(|limit| limit.is_paid()));
    assert_eq!(
        paid(&check(&engine, "GET / user=1")),
        2,
        "two of a were paid, and none of the pool"
    );
}

#[test]
fn a_shadow_and_a_candidate_have_alternatives_of_their_own() {
    let engine = engine(
        "rules:
         - { name: a, limit: 100/h, candidate: { any_of: [1/s, 1/min] } }
         - { name: b, mode: shadow, limit: { any_of: [1/s, 1/min] }, candidate: { any_of: [2/s, 2/min] } }",
    );
    let denied = |verdict: &Verdict| {
        verdict
            .would_deny()
            .map(|limit| format!("{}{:?}", limit.rule().name, limit.enforcement()))
            .collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert_eq!(denied(&check(&engine, "GET /")), [""; 0], "one of each pair allows");
    }
    let third = check(&engine, "GET /");
    assert!(third.is_allowed());
    let expected = ["aCandidate", "aCandidate", "bShadow", "bShadow"];
    assert_eq!(denied(&third), expected);
    let tallies = engine.tallies();
    let of = |name: &str| {
        let mut all = tallies.iter();
        let counts = all.find(|tally| &*tally.rule.name == name).unwrap().counts;
        (counts.shadow_allowed, counts.shadow_denied)
    };
    assert_eq!((of("a"), of("b")), ((2, 1), (5, 1)));
}

#[test]
fn tiers_have_alternatives() {
    let engine = engine(
        "rules:
         - name: a
           tiers:
             free: 1/h
             gold: { any_of: [2/h, { limit: 1/min, per: [tenant] }] }
             default: free",
    );
    assert_eq!(answer(&check(&engine, "GET / user=1")), "allow a 0");
    let gold = "GET / user=2 tier=gold tenant=x";
    assert_eq!(paid_by(&engine, &[gold, gold, gold, gold]), [1, 1, 2, 0]);
}

#[test]
fn a_boost_raises_the_own_quota_and_not_the_pool() {
    let engine = engine(POOL);
    let boost = Override::new("user:1", Effect::Boost { factor_percent: 200 });
    engine.replace(rules(POOL).with_overrides(vec![boost]));
    let seen: Vec<u32> = (0..11).map(|_| paid(&check(&engine, "GET / user=1"))).collect();
    assert_eq!(seen, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0]);
}

#[test]
fn what_was_denied_is_counted_once_and_for_the_rules_subject() {
    let engine =
        engine("rules: [{ name: a, limit: { any_of: [{ limit: 1/min, per: [] }, 1/h] } }]");
    for _ in 0..5 {
        check(&engine, "GET / user=1");
    }
    let tallies = engine.tallies();
    let counts = tallies.iter().next().unwrap().counts;
    assert_eq!((counts.allowed, counts.denied, counts.admitted_tokens), (2, 3, 2));
    let top = engine.rule("a").unwrap().top_denied(5);
    assert_eq!(top.len(), 1);
    assert_eq!((&*top[0].subject, top[0].count), ("user:1", 3));
}

#[test]
fn usage_is_that_of_the_counter_that_was_charged() {
    let engine = engine(POOL);
    let mut records = Vec::new();
    for _ in 0..8 {
        ask("GET / user=1", |request| {
            block_on(AsyncEngine::check(&engine, request)).meter(request, |record| {
                let key = tollbar_rules::readable(record.key);
                records.push(format!(
                    "{} {key} {}",
                    record.rule,
                    record.amounts.admitted - record.amounts.denied
                ));
            });
        });
    }
    let (own, pool) = ("a user:1 1", "a (everybody) 1");
    assert_eq!(records, [own, own, own, pool, pool, pool, pool, "a user:1 -1"]);
}

#[test]
fn a_reservation_settles_what_it_has_paid() {
    let engine = engine(POOL);
    let reserved = |cost: u64| {
        let line = format!("GET / user=1 cost={cost}");
        let mut admission = reserve(&engine, &line, Duration::from_mins(1));
        let mut hold = admission.hold.take().unwrap();
        ask(&line, |request| {
            hold.note_usage(&admission.verdict, request, tollbar::Timestamp::ZERO);
        });
        (hold, paid(&admission.verdict))
    };
    let (own, by_quota) = reserved(3);
    let (pool, by_pool) = reserved(3);
    assert_eq!((by_quota, by_pool), (1, 2));
    let mut told = Vec::new();
    pool.meter_settlement(Some(1), |_, record| {
        told.push(format!(
            "{} {} {}",
            record.rule,
            tollbar_rules::readable(record.key),
            record.amounts.admitted
        ));
    });
    assert_eq!(told, ["a (everybody) -2"]);
    let settled = block_on(AsyncEngine::settle(&engine, &pool, Some(1))).unwrap();
    let limits: Vec<_> =
        settled.limits.iter().map(|one| (&*one.rule, one.reserved, one.refunded)).collect();
    assert_eq!(limits, [("a", 3, 2)], "the quota was not charged");
    let left = |verdict: &Verdict| {
        verdict.decisions().map(|limit| limit.remaining().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(left(&check(&engine, "GET / user=1 cost=0")), [0, 3]);
    block_on(AsyncEngine::cancel(&engine, &own)).unwrap();
    assert_eq!(left(&check(&engine, "GET / user=1 cost=0")), [3, 3]);
}

/// Behind an alternative that is not charged, the charges of other rules were in other places than the note said.
#[test]
fn a_settlement_is_metered_under_the_rules_that_were_charged() {
    let engine = engine(
        "rules:
         - { name: a, limit: { any_of: [3/s, { limit: 4/min, per: [] }] } }
         - { name: b, per: [tenant], limit: 9/min }",
    );
    let line = "GET / user=1 tenant=x cost=2";
    let admission = reserve(&engine, line, Duration::from_mins(1));
    let mut hold = admission.hold.unwrap();
    ask(line, |request| hold.note_usage(&admission.verdict, request, tollbar::Timestamp::ZERO));
    let mut told = Vec::new();
    hold.meter_settlement(Some(1), |_, record| {
        let key = tollbar_rules::readable(record.key);
        told.push(format!("{} {key} {}", record.rule, record.amounts.admitted));
    });
    assert_eq!(told, ["a user:1 -1", "b x -1"]);
}

#[test]
fn permits_are_held_of_the_alternative_that_pays() {
    let engine = engine(
        "rules:
         - { name: jobs, algorithm: concurrency, lease: 30s, limit: { any_of: [1, { limit: 2, per: [] }] } }",
    );
    let first = admit(&engine, "GET / user=1");
    let second = admit(&engine, "GET / user=1");
    assert_eq!((paid(&first.verdict), paid(&second.verdict)), (1, 2));
    let hold = first.hold.unwrap();
    assert!(block_on(AsyncEngine::release(&engine, &hold)).unwrap());
    assert_eq!(paid(&admit(&engine, "GET / user=1").verdict), 1);
    assert!(block_on(AsyncEngine::release(&engine, &second.hold.unwrap())).unwrap());
    assert_eq!(paid(&admit(&engine, "GET / user=1").verdict), 2);
}

#[test]
fn a_request_id_pays_one_alternative_once() {
    let engine = engine(POOL);
    let requests = ["GET / user=1 cost=3", "GET / user=1 cost=2 id=x", "GET / user=1 cost=2 id=x"];
    assert_eq!(paid_by(&engine, &requests), [1, 2, 2]);
    assert!(check(&engine, "GET / user=1 cost=2 id=x").repeat_of().is_some());
    assert_eq!(answer(&check(&engine, "GET / user=1 cost=0")), "allow a 2");
}

#[test]
fn usage_and_resets_are_of_all_alternatives() {
    let engine = engine(
        "rules: [{ name: a, limit: { any_of: [3/s, { limit: 4/min, per: [tenant] }, { limit: 9/h, per: [] }] } }]",
    );
    let line = "GET / user=1 tenant=x";
    for _ in 0..8 {
        assert!(check(&engine, line).is_allowed());
    }
    let rule = engine.rule("a").unwrap();
    let left = |line: &str| {
        let usage = ask(line, |request| rule.usage(request).unwrap());
        usage
            .iter()
            .map(|usage| (usage.subject.clone(), usage.alternative.unwrap(), usage.remaining))
            .collect::<Vec<_>>()
    };
    let [user, tenant, all] = ["user:1", "x", "(everybody)"].map(str::to_owned);
    assert_eq!(left(line), [(user.clone(), 1, 0), (tenant.clone(), 2, 0), (all.clone(), 3, 8)]);
    // Which tenant's is not said, so it is left out.
    assert_eq!(left("GET / user=1"), [(user.clone(), 1, 0), (all.clone(), 3, 8)]);
    let incomplete = rule.check_complete(|name| name == "user").unwrap_err();
    assert!(
        matches!(&incomplete, UsageError::Incomplete { missing, .. } if *missing == ["tenant"]),
        "{incomplete}"
    );
    assert!(rule.check_complete(|name| name == "user" || name == "tenant").is_ok());
    ask(line, |request| rule.reset(request).unwrap());
    assert_eq!(left(line), [(user, 1, 3), (tenant, 2, 4), (all, 3, 9)]);
}

#[test]
fn an_explanation_says_which_alternative_would_pay() {
    let engine = engine(POOL);
    let told = |line: &str| {
        let explanation = ask(line, |request| tollbar_rules::Engine::explain(&engine, request));
        let limits = explanation.rules[0].limits.iter();
        let limits = limits.map(|limit| (limit.alternative.unwrap(), limit.would_pay, limit.binds));
        (explanation.is_allowed, limits.collect::<Vec<_>>(), explanation.to_string())
    };
    let (is_allowed, limits, _) = told("GET / user=1");
    assert!(is_allowed);
    assert_eq!(limits, [(1, true, false), (2, false, true)]);
    for _ in 0..3 {
        check(&engine, "GET / user=1");
    }
    let (is_allowed, limits, text) = told("GET / user=1");
    assert!(is_allowed);
    assert_eq!(limits, [(1, false, false), (2, true, true)]);
    assert!(text.contains("counts user:1 at a cost of 1"), "{text}");
    assert!(
        text.contains(
            "alternative 1: 3/s (sliding_window_counter): 0 of 3 left, does not allow\n    \
             alternative 2: 4/min (sliding_window_counter, counts (everybody)): 4 of 4 left, pays, binds"
        ),
        "{text}"
    );
    let (is_allowed, limits, _) = told("GET / user=1 cost=5");
    assert!(!is_allowed);
    assert!(limits.iter().all(|limit| !limit.1));
    for line in ["GET / user=1", "GET / user=1 cost=4", "GET / user=2 cost=3"] {
        let told = told(line).0;
        assert_eq!(told, check(&engine, line).is_allowed(), "{line}");
    }
}

#[test]
fn new_keys_of_a_network_share_the_own_quota_and_the_pool_stays_one() {
    let engine = engine(
        "rules:
         - { name: a, new_keys: 1/h, limit: { any_of: [{ limit: 1/h, per: [] }, 2/min] } }",
    );
    let line = |user: usize| format!("GET / user={user} ip=192.0.2.1");
    let seen: Vec<u32> = (0..5).map(|user| paid(&check(&engine, &line(user)))).collect();
    // The first takes from the pool. The others are one too many, and share two a minute.
    assert_eq!(seen, [1, 2, 2, 0, 0]);
}

#[test]
fn inherited_accuracy_leaves_alternatives_exact() {
    let text = format!("accuracy: conservative\n{POOL}");
    let clock = clock();
    let shared = MemoryStore::builder().clock(clock.clone()).max_keys(100).build();
    let store = NodeStore::new(&Arc::new(shared), &clock);
    let engine = AsyncEngine::builder(rules(&text), Arc::clone(&store) as Arc<dyn Store>);
    let engine = engine.clock(clock).build().unwrap();
    assert!(check(&engine, "GET / user=1").is_allowed());
    assert!(store.take_asked().iter().all(|(_, accuracy)| *accuracy == Accuracy::Exact));
    let explanation = ask("GET / user=1", |request| block_on(engine.explain(request)));
    for limit in &explanation.rules[0].limits {
        let why = limit.accuracy.to_string();
        let expected = "exact and not conservative(5%): alternatives are counted exactly";
        assert!(why.starts_with(expected), "{why}");
    }
}

#[test]
fn without_the_store_the_failure_policy_speaks_for_all_alternatives() {
    let of = |fields: &str| {
        engine_without_store(&format!(
            "nodes: 2\nrules: [{{ name: a, limit: {{ any_of: [4/h, {{ limit: 6/min, per: [] }}] }}, {fields} }}]"
        ))
    };
    let allow = of("on_store_failure: allow");
    let verdict = check(&allow, "GET / user=1 cost=5");
    assert!(verdict.is_allowed());
    assert_eq!(paid(&verdict), 2, "the first one never takes so much");
    assert_eq!(answer(&check(&allow, "GET / user=1 cost=7")), "never a");
    assert_eq!(paid(&check(&allow, "GET / user=1")), 1);
    let deny = of("on_store_failure: deny");
    assert_eq!(answer(&check(&deny, "GET / user=1")), "deny a");
    assert_eq!(check(&deny, "GET / user=1").retry_after(), Some(Duration::from_secs(1)));
    // Half of each: 2 for the user, and 3 for all.
    let local = of("on_store_failure: local");
    let user = "GET / user=1";
    assert_eq!(
        paid_by(&local, &[user, user, user, "GET / user=2", user, user, user]),
        [1, 1, 2, 1, 2, 2, 0]
    );
    let denied = check(&local, user);
    assert_eq!(denied.binding().unwrap().degraded(), Some(Degraded::Fallback));
    let large = of("on_store_failure: local");
    assert_eq!(
        paid(&check(&large, "GET / user=1 cost=3")),
        2,
        "more than this node's part of the first"
    );
    assert_eq!(answer(&check(&large, "GET / user=1 cost=7")), "never a");
}

#[test]
fn without_the_store_an_alternative_that_never_passes_keeps_no_share_from_paying() {
    // A cost of 5: the second alternative never passes because of its second limit.
    let engine = engine_without_store(
        "rules:
         - { name: a, on_store_failure: local, limit: { any_of: [[9/h, 4/min], [8/day, 4/s], 7/2min] } }",
    );
    assert_eq!(paid(&check(&engine, "GET / user=1 cost=5")), 3);
    let left = check(&engine, "GET / user=1 cost=0");
    let left: Vec<u64> = left.decisions().map(|limit| limit.remaining().unwrap()).collect();
    assert_eq!(left, [9, 4, 8, 4, 2]);
}

#[test]
fn more_shadows_than_fit_are_left_out_group_by_group() {
    let shadow = |number: usize| {
        format!(
            "- {{ name: s{number:02}, match: {{ path: /s }}, mode: shadow, limit: {{ any_of: [1/s, 1/min, 1/h] }} }}\n"
        )
    };
    let shadows: String = (0..12).map(shadow).collect();
    let text = format!(
        "rules:\n- {{ name: a, priority: -1, limit: {{ any_of: [1/s, 1/min] }} }}\n{shadows}"
    );
    let engine = engine(&text);
    let verdict = check(&engine, "GET /s");
    assert!(verdict.is_allowed());
    // 10 of 12 groups of 3 fit beside the 2 that are live.
    assert_eq!(verdict.decisions().count(), 32);
    assert_eq!(paid(&verdict), 1);
    let each_pays_once = |name: &str| {
        let paid =
            verdict.decisions().filter(|limit| &*limit.rule().name == name && limit.is_paid());
        paid.count() == 1
    };
    assert!((0..10).all(|number| each_pays_once(&format!("s{number:02}"))));
}

#[test]
fn alternatives_are_told_to_the_store_group_by_group() {
    #[derive(Debug)]
    struct Watcher(MemoryStore, std::sync::Mutex<Vec<Option<Alternative>>>);
    impl Store for Watcher {
        fn decide<'a, 'e: 'a>(&'a self, batch: tollbar::Batch<'a, 'e>) -> tollbar::Reply<'a, ()> {
            let alternatives = batch.entries().iter().map(tollbar::Entry::alternative);
            self.1.lock().unwrap().extend(alternatives);
            self.0.decide(batch)
        }
    }
    let store = MemoryStore::builder().max_keys(100).build();
    let store = Arc::new(Watcher(store, std::sync::Mutex::default()));
    let text = "rules:
      - { name: a, limit: { any_of: [1/s, [2/min, 3/h]] } }
      - { name: b, limit: 9/s }
      - { name: c, limit: { any_of: [1/s, 2/min] } }";
    let shared: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
    let engine = AsyncEngine::builder(rules(text), shared).clock(clock()).build().unwrap();
    check(&engine, "GET /");
    let at = |group, order| Some(Alternative { group, order });
    let expected = [at(0, 0), at(0, 1), at(0, 1), None, at(2, 0), at(2, 1)];
    assert_eq!(*store.1.lock().unwrap(), expected);
}

mod oracle {
    //! The engine held against the oracle, under random rules and requests.

    use proptest::prelude::*;
    use proptest::sample::select;
    use tollbar::{Charge, Decision, Role};
    use tollbar_testkit::oracle::{Oracle, OracleEntry, paid_places};
    use tollbar_testkit::strategy::cases;

    use super::*;

    const START: tollbar::Timestamp = tollbar::Timestamp::from_micros(1_700_000_000_000_000);

    /// The limit of an alternative, and whether it counts all together.
    fn limit() -> impl Strategy<Value = (String, bool)> {
        let window = select(vec!["s", "2s", "3s", "5s", "min"]);
        let algorithm = select(vec!["fixed_window", "token_bucket", "sliding_window_log"]);
        (1_u64..6, window, algorithm, any::<bool>()).prop_map(
            |(limit, window, algorithm, is_shared)| {
                let per = if is_shared { ", per: []" } else { "" };
                (format!("{{ limit: {limit}/{window}, algorithm: {algorithm}{per} }}"), is_shared)
            },
        )
    }

    fn rule() -> impl Strategy<Value = Vec<Vec<(String, bool)>>> {
        let alternative = proptest::collection::vec(limit(), 1..3);
        proptest::collection::vec(alternative, 2..4)
    }

    proptest! {
        #![proptest_config(cases(96))]

        #[test]
        fn the_engine_pays_as_the_oracle_does(
            all in proptest::collection::vec(rule(), 1..3),
            steps in proptest::collection::vec((0_u64..1_500, 0_usize..3, 1_u64..4), 1..40),
        ) {
            let alternative = |limits: &Vec<(String, bool)>| {
                let texts: Vec<&str> = limits.iter().map(|limit| &*limit.0).collect();
                format!("[{}]", texts.join(", "))
            };
            let fields = |(at, rule): (usize, &Vec<Vec<(String, bool)>>)| {
                let any_of: Vec<String> = rule.iter().map(alternative).collect();
                format!("- {{ name: r{at}, limit: {{ any_of: [{}] }} }}", any_of.join(", "))
            };
            let text: Vec<String> = all.iter().enumerate().map(fields).collect();
            let text = format!("rules:\n{}", text.join("\n"));
            let Ok(file) = RuleFile::parse("r", &text) else {
                // Two limits of one counter.
                return Ok(());
            };
            let clock = ManualClock::at(START);
            let engine = tollbar_rules::Engine::builder(file.rules.clone()).clock(clock.clone()).build();
            let mut oracle = Oracle::new();
            let mut now = START;
            for (wait_ms, user, cost) in steps {
                clock.advance(Duration::from_millis(wait_ms));
                now = now.after(Duration::from_millis(wait_ms));
                let mut keys = Vec::new();
                for (at, rule) in all.iter().enumerate() {
                    for (_, is_shared) in rule.iter().flatten() {
                        let who = if *is_shared { "all".to_owned() } else { format!("user {user}") };
                        keys.push((at, format!("r{at} {who}")));
                    }
                }
                let limits = file.rules.rules().iter().flat_map(|rule| &rule.limits);
                let entries: Vec<OracleEntry<'_>> = keys
                    .iter()
                    .zip(limits)
                    .map(|((group, key), limit)| OracleEntry {
                        key: key.as_bytes(),
                        policy: limit.policy(),
                        cost,
                        role: Role::Enforce,
                        alternative: Some(Alternative {
                            group: *group as u8,
                            order: limit.alternative().unwrap(),
                        }),
                    })
                    .collect();
                let expected = oracle.check_all(now, Charge::AllOrNone, &entries);
                let expected: Vec<Decision> = expected.into_iter().map(Decision::from).collect();
                let places = paid_places(&entries, |at| expected[at].is_allowed());
                let name = user.to_string();
                let attributes = [("user", name.as_str())];
                let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
                let verdict = engine.check(&request.with_cost(cost));
                prop_assert_eq!(verdict.is_allowed(), places.is_some(), "{} {}", text, answer(&verdict));
                let paid: Vec<bool> = verdict.decisions().map(|limit| limit.is_paid()).collect();
                let places = places.unwrap_or_default();
                let should: Vec<bool> = (0..entries.len()).map(|at| places.contains(&at)).collect();
                prop_assert_eq!(paid, should, "{}", text);
                for (limit, expected) in verdict.decisions().zip(expected) {
                    prop_assert_eq!(limit.decision(), expected, "{}", text);
                }
                if let Outcome::Deny { retry_after_us } = verdict.outcome() {
                    // It passes then, and not before: nobody else asks.
                    let probe = |engine: &tollbar_rules::Engine, clock: &ManualClock, wait_us: u64| {
                        clock.advance(Duration::from_micros(wait_us));
                        ask(&format!("GET / user={user} cost={cost}"), |request| engine.explain(request).is_allowed)
                    };
                    let back = tollbar::Clock::now(&clock);
                    prop_assert!(probe(&engine, &clock, retry_after_us), "{} at {}", text, retry_after_us);
                    clock.set(back);
                    if retry_after_us > 0 {
                        prop_assert!(!probe(&engine, &clock, retry_after_us - 1), "{}", text);
                    }
                    clock.set(back);
                }
            }
        }
    }
}
