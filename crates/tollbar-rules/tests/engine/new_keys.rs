//! New keys of one network: how many have counters of their own, and what becomes of the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tollbar::{Batch, MemoryStore, Reply, Store};
use tollbar_rules::{AsyncEngine, Engine, RuleFile};

use crate::support::{
    answer, ask, check, clock, engine_at, engine_without_store, expect, reserve, rules,
};

const PER_IP: &str = "rules: [{ name: ip, per: [ip], limit: 10/h, new_keys: 100/min }]";

fn is_allowed(engine: &AsyncEngine, ip: &str) -> bool {
    check(engine, &format!("GET / ip={ip}")).is_allowed()
}

fn limited(engine: &AsyncEngine) -> u64 {
    engine.tallies().iter().map(|tally| tally.counts.new_keys_limited).sum()
}

/// Every /64 of `2001:db8:bad::/48`, each once: 65,536 clients, of which each had a whole limit.
fn flood(engine: &AsyncEngine) -> usize {
    (0..=u16::MAX).filter(|block| is_allowed(engine, &format!("2001:db8:bad:{block:x}::1"))).count()
}

#[test]
fn a_flood_of_one_network_shares_one_counter() {
    let clock = clock();
    let store = Arc::new(MemoryStore::builder().max_keys(100_000).clock(clock.clone()).build());
    let engine = Engine::builder(rules(PER_IP)).store(store.clone()).clock(clock).build();
    // Two clients that were there before, one of them in the network that will attack.
    assert!(is_allowed(&engine, "2001:db8:bad:1::7") && is_allowed(&engine, "2001:db8:900d::7"));
    // 99 more new keys with a limit of their own, ten requests of all the others, and the client that was there.
    assert_eq!(flood(&engine), 99 + 10 + 1);
    assert_eq!(store.stats().live_keys, 100 + 1 + 1, "the keys, the network's, the other client's");
    assert_eq!(limited(&engine), 65_536 - 100);
    // Whoever was there keeps its own counter: two of ten are used.
    expect(&engine, &[("GET / ip=2001:db8:bad:1::8", "allow ip 7")]);
    // Other networks are untouched, be they known or new.
    expect(
        &engine,
        &[
            ("GET / ip=2001:db8:900d::7", "allow ip 8"),
            ("GET / ip=2001:db8:bae::1", "allow ip 9"),
            ("GET / ip=203.0.113.7", "allow ip 9"),
            ("GET / ip=2001:db8:bad:ffff::1", "deny ip"),
        ],
    );
}

#[test]
fn more_keys_are_new_when_the_window_has_passed() {
    let clock = clock();
    let engine = engine_at(PER_IP, &clock);
    assert_eq!(flood(&engine), 110);
    // A sliding window has forgotten all of it after two.
    clock.advance(Duration::from_mins(2));
    assert_eq!(flood(&engine), 100 + 100, "those that are known, and as many new ones");
}

/// With names that nobody checks, one address is as many clients as it likes.
#[test]
fn names_that_are_made_up_are_new_keys_of_their_network() {
    let text = "rules: [{ name: c, limit: 5/h, new_keys: { limit: 2/min, burst: 3 } }]";
    let engine = engine_at(text, &clock());
    let names = |range: std::ops::Range<u32>, ip: &str| {
        let of = |name: u32| check(&engine, &format!("GET / user=u{name} ip={ip}")).is_allowed();
        range.filter(|name| of(*name)).count()
    };
    // Anywhere in one /24, however the addresses are written.
    assert_eq!(names(0..2, "203.0.113.7"), 2);
    assert_eq!(names(2..50, "::ffff:203.0.113.99"), 1 + 5);
    assert_eq!(names(50..60, "203.0.113.255"), 0);
    assert_eq!(names(60..70, "203.0.114.0"), 3 + 5, "the next network");
    // One key is known wherever it comes from.
    expect(&engine, &[("GET / user=u0 ip=203.0.113.7", "allow c 3")]);
    expect(&engine, &[("GET / user=u0 ip=198.51.100.1", "allow c 2")]);
}

#[test]
fn a_request_without_an_address_is_of_no_network() {
    let engine = engine_at("rules: [{ name: c, limit: 1/h, new_keys: 1/h }]", &clock());
    for name in 0..100 {
        assert_eq!(answer(&check(&engine, &format!("GET / user=u{name}"))), "allow c 0");
    }
    assert_eq!(limited(&engine), 0);
}

#[test]
fn looking_brings_no_new_key() {
    let engine = engine_at("rules: [{ name: ip, per: [ip], limit: 3/h, new_keys: 1/h }]", &clock());
    let explained = |text: &str| ask(text, |request| engine.explain(request)).rules.remove(0);
    for _ in 0..3 {
        expect(&engine, &[("GET / ip=203.0.113.9 cost=0", "allow ip 3")]);
        assert_eq!(explained("GET / ip=203.0.113.9").subject.as_deref(), Some("ip:203.0.113.9"));
    }
    expect(&engine, &[("GET / ip=203.0.113.1", "allow ip 2")]);
    let rule = explained("GET / ip=203.0.113.9");
    assert_eq!(rule.subject.as_deref(), Some("ip:203.0.113.0/24"));
    assert!(rule.why.contains("shares the counter of network 203.0.113.0/24"), "{}", rule.why);
    assert!(rule.why.contains("more than 1/h new keys"), "{}", rule.why);
    let known = explained("GET / ip=203.0.113.1");
    assert_eq!(known.subject.as_deref(), Some("ip:203.0.113.1"));
    assert!(!known.why.contains("network"), "{}", known.why);
    assert_eq!(limited(&engine), 0);
    // Usage is that of the counter in which the next request counts.
    expect(
        &engine,
        &[("GET / ip=203.0.113.9", "allow ip 2"), ("GET / ip=203.0.113.8", "allow ip 1")],
    );
    let usage =
        |text: &str| ask(text, |request| engine.rule("ip").unwrap().usage(request)).unwrap();
    let shared = usage("GET / ip=203.0.113.77").remove(0);
    assert_eq!((shared.remaining, &*shared.subject), (1, "ip:203.0.113.0/24"));
    assert_eq!(usage("GET / ip=203.0.113.1")[0].remaining, 2);
    assert_eq!(limited(&engine), 2);
}

/// It may be settled for any cost: otherwise it would give every name a counter of its own.
#[test]
fn a_reservation_of_nothing_brings_a_new_key() {
    let engine = engine_at("rules: [{ name: ip, per: [ip], limit: 9/h, new_keys: 1/h }]", &clock());
    let reserved = reserve(&engine, "GET / ip=203.0.113.1 cost=0", Duration::from_mins(1));
    assert!(reserved.verdict.is_allowed());
    expect(&engine, &[("GET / ip=203.0.113.2", "allow ip 8")]);
    assert_eq!(limited(&engine), 1);
}

#[test]
fn a_key_that_comes_often_is_remembered_for_longer() {
    let text = "rules: [{ name: ip, per: [ip], limit: 100/s, new_keys: 2/year }]";
    let subject = |engine: &Engine, ip: &str| {
        ask(&format!("GET / ip={ip}"), |request| engine.explain(request)).rules[0].subject.clone()
    };
    let second = Duration::from_secs(1);
    let until = |hours: u64| Duration::from_secs(hours * 3_600 - 1);
    let clock = clock();
    let engine = engine_at(text, &clock);
    for _ in 0..20 {
        assert!(is_allowed(&engine, "203.0.113.1"));
    }
    assert!(is_allowed(&engine, "203.0.113.2"));
    let share = Some("ip:203.0.113.0/24".to_owned());
    clock.advance(until(3));
    assert_ne!(subject(&engine, "203.0.113.2"), share);
    clock.advance(second);
    assert_eq!(subject(&engine, "203.0.113.2"), share, "one request is remembered for 3 hours");
    clock.advance(until(21));
    assert_ne!(subject(&engine, "203.0.113.1"), share);
    clock.advance(second);
    assert_eq!(subject(&engine, "203.0.113.1"), share, "eight or more for a day");
}

#[test]
fn a_reload_knows_the_keys_that_were_there() {
    let engine = engine_at("rules: [{ name: ip, per: [ip], limit: 9/h, new_keys: 1/h }]", &clock());
    assert!(is_allowed(&engine, "203.0.113.1") && is_allowed(&engine, "203.0.113.2"));
    engine.replace(rules("rules: [{ name: ip, per: [ip], limit: 5/h, new_keys: 2/h }]"));
    expect(
        &engine,
        &[
            ("GET / ip=203.0.113.1", "allow ip 3"),
            // One more than before, and the network's counter goes on.
            ("GET / ip=203.0.113.3", "allow ip 4"),
            ("GET / ip=203.0.113.4", "allow ip 3"),
        ],
    );
    assert_eq!(limited(&engine), 2, "before and after");
    // Each rule counts the new keys under it.
    engine.replace(rules("rules: [{ name: other, per: [ip], limit: 5/h, new_keys: 1/h }]"));
    expect(&engine, &[("GET / ip=203.0.113.9", "allow other 4")]);
}

#[test]
fn threads_bring_no_more_new_keys_than_one() {
    let clock = clock();
    let store = Arc::new(MemoryStore::builder().max_keys(100_000).clock(clock.clone()).build());
    let engine = Engine::builder(rules(PER_IP)).store(store.clone()).clock(clock).build();
    let allowed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for part in 0..4_u16 {
            let (engine, allowed) = (&engine, &allowed);
            scope.spawn(move || {
                let mine = (0..2_000).map(|at| at * 4 + part);
                let passed =
                    mine.filter(|at| is_allowed(engine, &format!("2001:db8:bad:{at:x}::")));
                allowed.fetch_add(passed.count(), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(allowed.into_inner(), 100 + 10);
    assert_eq!(store.stats().live_keys, 101);
}

/// A retry of a request that shared a counter finds its answer there again, and pays once.
#[test]
fn a_request_id_is_paid_once_in_a_shared_counter() {
    let engine = engine_at("rules: [{ name: ip, per: [ip], limit: 9/h, new_keys: 1/h }]", &clock());
    expect(
        &engine,
        &[
            ("GET / ip=203.0.113.1", "allow ip 8"),
            ("GET / ip=203.0.113.2 id=a", "allow ip 8"),
            ("GET / ip=203.0.113.2 id=a", "allow ip 8"),
            ("GET / ip=203.0.113.2 id=b", "allow ip 7"),
        ],
    );
}

/// Counts how often the store is asked.
#[derive(Debug)]
struct CountingStore {
    store: MemoryStore,
    calls: AtomicUsize,
}

impl Store for CountingStore {
    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.store.decide(batch)
    }
}

#[test]
fn the_store_is_asked_once_and_an_outage_changes_nothing() {
    let store = MemoryStore::builder().max_keys(1_000).clock(clock()).build();
    let store = Arc::new(CountingStore { store, calls: AtomicUsize::new(0) });
    let engine = AsyncEngine::builder(rules(PER_IP), store.clone()).clock(clock()).build().unwrap();
    for block in 0..200 {
        let _ = is_allowed(&engine, &format!("2001:db8:bad:{block:x}::1"));
    }
    assert_eq!(store.calls.load(Ordering::Relaxed), 200);
    let local =
        "rules: [{ name: ip, per: [ip], limit: 10/h, new_keys: 1/min, on_store_failure: local }]";
    let engine = engine_without_store(local);
    let passed = (0..50).filter(|at| is_allowed(&engine, &format!("203.0.113.{at}"))).count();
    assert_eq!(passed, 1 + 10, "one key of its own, and the share of the network");
}

#[test]
fn what_bounds_no_new_keys_is_refused() {
    for (fields, message) in [
        ("limit: 1/s, per: [], new_keys: 1/s", "one counter for all"),
        ("unlimited: true, new_keys: 1/s", "leave out `new_keys`"),
        (
            "limit: 1/s, new_keys: { limit: 5, algorithm: concurrency }",
            "write a rate such as `100/min`",
        ),
        ("limit: 1/s, new_keys: { limit: 5/s, queue: 3 }", "write a rate such as `100/min`"),
        ("limit: 1/s, new_keys: { limit: 5/s, algorithm: sliding_window_log }", "write a rate"),
        ("limit: 1/s, new_keys: 5 per calendar day", "write a rate such as `100/min`"),
        ("limit: 1/s, new_keys: many", "`many`"),
        ("limit: 1/s, new_keys: [1/s, 2/s]", "limit"),
    ] {
        let text = format!("rules: [{{ name: a, {fields} }}]");
        let error = RuleFile::parse("r", &text).expect_err(&text).to_string();
        assert!(error.contains(message) && error.contains("new_keys"), "{fields}: {error}");
    }
    // It inherits nothing from its rule.
    let own = "rules: [{ name: a, limit: 1/s, burst: 9, algorithm: token_bucket, new_keys: 5/s }]";
    let rules = RuleFile::parse("r", own).unwrap().rules;
    assert_eq!(rules.rules()[0].new_keys.as_ref().unwrap().policy().capacity(), 5);
}
