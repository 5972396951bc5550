//! What the store leaves in a real server, and what it makes of what others leave there.

use crate::support::{Patient, RUNTIME, builder, cause, server};
use redis::Value;
use tollbar::store::{Hold, ReservationId};
use tollbar::{Batch, Entry, Period, Policy, Store, StoreError, WarmUp};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, RedisStoreError};
use tollbar_testkit::redis::process::RedisProcess;

/// A client of the test's own, and a store on the clock of the server.
struct ServerFixture {
    store: RedisStore,
    client: redis::Connection,
    server: RedisProcess,
}

impl ServerFixture {
    fn new() -> Self {
        let server = RedisProcess::start();
        let secret = KeyNames::Hashed(FleetSecret::new([7; 32]));
        let builder = RedisStore::builder(&server.url(), secret).patient().deny_cache(0);
        let store = RUNTIME.block_on(builder.connect()).expect("the server is there");
        let client = redis::Client::open(server.url()).and_then(|client| client.get_connection());
        Self { store, client: client.expect("the server is there"), server }
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.client).expect("the server answers")
    }

    fn keys(&mut self) -> Vec<String> {
        self.ask(&["KEYS", "*"])
    }

    fn only_key(&mut self) -> String {
        let keys = self.keys();
        assert_eq!(keys.len(), 1, "{keys:?}");
        keys.into_iter().next().expect("there is one")
    }

    fn calls_of(&mut self, command: &str) -> u64 {
        let stats: String = self.ask(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
        calls.map_or(0, |calls| calls.parse().expect("a count is a number"))
    }
}

/// With windows so long that none of their counters expires during a test.
fn one_word_policies() -> Vec<Policy> {
    let policies = [
        Policy::token_bucket("10/h"),
        Policy::token_bucket("1000001/h"),
        Policy::leaky_bucket("7/3h"),
        Policy::leaky_queue("10/h", 9),
        Policy::fixed_window("1000000/h"),
        Policy::fixed_window("100/day").and_then(Policy::with_stagger),
        Policy::calendar_window(10_000, Period::Month),
        Policy::sliding_window("1000000/h"),
    ];
    policies.map(|policy| policy.expect("these are policies")).into()
}

#[test]
fn a_counter_of_one_word_takes_at_most_100_bytes() {
    for policy in one_word_policies() {
        let mut fixture = ServerFixture::new();
        fixture.store.check(b"user:42", &policy, policy.capacity() - 1).wait().unwrap();
        fixture.store.check(b"user:42", &policy, 1).wait().unwrap();
        let key = fixture.only_key();
        let bytes: u64 = fixture.ask(&["MEMORY", "USAGE", &key]);
        println!("{}: {bytes} bytes", policy.algorithm().name());
        assert!(bytes <= 100, "{policy:?} takes {bytes} bytes");
    }
}

/// Not a promise; what `cargo test -- --nocapture` prints is what the guide says.
#[test]
fn larger_counters_take_what_they_need() {
    let warm_up = WarmUp { start: 10, over: std::time::Duration::from_mins(1), steps: 3 };
    let policies = [
        Policy::sliding_window_strict("100/min", 10),
        Policy::sliding_window_strict("100/min", 62),
        Policy::sliding_window_log("100/min"),
        Policy::sliding_window_log("10000/min"),
        Policy::token_bucket("100/s").and_then(|policy| policy.with_warm_up(warm_up)),
    ];
    for policy in policies.map(Result::unwrap) {
        let mut fixture = ServerFixture::new();
        for _ in 0..policy.limit().min(100) {
            fixture.store.check(b"user:42", &policy, 1).wait().unwrap();
        }
        let key = fixture.only_key();
        let bytes: u64 = fixture.ask(&["MEMORY", "USAGE", &key]);
        println!("{} of {}: {bytes} bytes", policy.algorithm().name(), policy.limit());
        assert!(bytes <= 2_000, "{policy:?} takes {bytes} bytes");
    }
}

#[test]
fn a_bucket_with_reservations_takes_little_more() {
    let mut fixture = ServerFixture::new();
    let policy = Policy::token_bucket("10/h").unwrap();
    let mut entries = [Entry::new("user:42", &policy)];
    let hold = Hold { id: ReservationId(1), ttl: std::time::Duration::from_mins(1) };
    fixture.store.decide(Batch::all_or_none(&mut entries).held(hold)).wait().unwrap();
    let keys = fixture.keys();
    let counter = keys.iter().find(|key| !key.contains("hold:")).expect("the counter is there");
    let bytes: u64 = fixture.ask(&["MEMORY", "USAGE", counter]);
    println!("token_bucket with a reservation: {bytes} bytes");
    assert!(bytes <= 120, "{bytes} bytes");
}

#[test]
fn a_counter_lives_until_it_is_fresh_and_no_longer() {
    let policies = [
        ("token bucket, half full", Policy::token_bucket("10/100s"), 5, 50_000),
        ("sliding window, a window longer", Policy::sliding_window("10/100s"), 5, 200_000),
        ("fixed window, to its end", Policy::fixed_window("10/100s"), 5, 100_000),
        ("strict window", Policy::sliding_window_strict("10/100s", 10), 5, 110_000),
        ("log", Policy::sliding_window_log("10/100s"), 5, 100_000),
    ];
    for (name, policy, cost, ttl_ms_max) in policies {
        let mut fixture = ServerFixture::new();
        let policy = policy.unwrap();
        // Charged more than once: what is counted up lives no longer and no shorter than what is new.
        let checks = (0..cost).map(|_| fixture.store.check(b"user:42", &policy, 1).wait().unwrap());
        let decision = checks.last().expect("it costs something");
        let key = fixture.only_key();
        let expires_ms: u64 = fixture.ask(&["PEXPIRETIME", &key]);
        let reset_ms = decision.reset_at().unwrap().as_micros().div_ceil(1_000);
        let fresh_ms = if name.starts_with("sliding") { reset_ms + 100_000 } else { reset_ms };
        assert!(expires_ms >= fresh_ms, "{name}: dies {} ms early", fresh_ms - expires_ms);
        // A millisecond is added, and the clock may have been in the one before.
        assert!(expires_ms <= fresh_ms + 2, "{name}: lives {} ms long", expires_ms - fresh_ms);
        let now_ms = fixture.ask::<[u64; 2]>(&["TIME"])[0] * 1_000;
        assert!(expires_ms <= now_ms + 1_000 + ttl_ms_max, "{name}: {expires_ms}");
    }
}

#[test]
fn a_denial_and_a_peek_write_nothing() {
    let mut fixture = ServerFixture::new();
    let policy = Policy::fixed_window("1/h").unwrap();
    assert!(fixture.store.check(b"key", &policy, 0).wait().unwrap().is_allowed());
    let denied = fixture.store.check(b"key", &policy, 2).wait().unwrap().ok().unwrap_err();
    assert!(denied.retry_after().is_none());
    assert_eq!(fixture.keys(), [""; 0]);
    fixture.store.check(b"key", &policy, 1).wait().unwrap();
    let sets = fixture.calls_of("set");
    assert!(!fixture.store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
    assert_eq!(fixture.calls_of("set"), sets);
}

#[test]
fn a_check_is_one_call_whatever_the_number_of_policies_and_reads_the_clock_once() {
    let mut fixture = ServerFixture::new();
    let policies = one_word_policies();
    let check_all = |store: &RedisStore| {
        let mut entries: Vec<Entry<'_>> =
            policies.iter().map(|policy| Entry::new("user:42", policy)).collect();
        store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
    };
    check_all(&fixture.store);
    let before = ["evalsha", "eval", "time"].map(|name| fixture.calls_of(name));
    for _ in 0..10 {
        check_all(&fixture.store);
        fixture.store.check(b"user:42", &policies[0], 1).wait().unwrap();
    }
    let after = ["evalsha", "eval", "time"].map(|name| fixture.calls_of(name));
    // The script of a single check was new to the server.
    assert_eq!([0, 1, 2].map(|at| after[at] - before[at]), [20, 1, 20]);
}

#[test]
fn a_script_that_the_server_has_forgotten_is_sent_again_within_the_check() {
    let mut fixture = ServerFixture::new();
    let policy = Policy::fixed_window("100/h").unwrap();
    for left in (90..100).rev() {
        assert_eq!(
            fixture.store.check(b"key", &policy, 1).wait().unwrap().remaining().unwrap(),
            left
        );
        let _: Value = fixture.ask(&["SCRIPT", "FLUSH"]);
    }
    assert_eq!(fixture.calls_of("eval"), 10);
}

#[test]
fn a_key_is_not_readable_in_the_server() {
    let mut fixture = ServerFixture::new();
    let policy = Policy::token_bucket("10/h").unwrap();
    let mut entries = [Entry::new("ann@example.com", &policy)];
    let hold = Hold { id: ReservationId(1), ttl: std::time::Duration::from_mins(1) };
    fixture.store.decide(Batch::all_or_none(&mut entries).held(hold)).wait().unwrap();
    let keys = fixture.keys();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(keys.iter().all(|key| !key.contains("ann")), "{keys:?}");
}

#[test]
fn a_key_of_another_type_is_an_error_that_says_so_and_stays_as_it_was() {
    let mut fixture = ServerFixture::new();
    let policy = Policy::token_bucket("10/h").unwrap();
    fixture.store.check(b"key", &policy, 1).wait().unwrap();
    let key = fixture.only_key();
    let _: Value = fixture.ask(&["DEL", &key]);
    let _: Value = fixture.ask(&["LPUSH", &key, "x"]);
    let error = fixture.store.check(b"key", &policy, 1).wait().unwrap_err();
    assert!(matches!(cause(&error), RedisStoreError::WrongType { .. }), "{error:?}");
    let mut entries = [Entry::new("other", &policy), Entry::new("key", &policy)];
    let error = fixture.store.decide(Batch::all_or_none(&mut entries)).wait().unwrap_err();
    assert!(matches!(cause(&error), RedisStoreError::WrongType { .. }), "{error:?}");
    // Nothing of the batch was charged either.
    assert_eq!(fixture.only_key(), key);
    assert_eq!(fixture.ask::<String>(&["TYPE", &key]), "list");
}

#[test]
fn a_state_that_nobody_can_have_written_is_an_error_that_says_so() {
    let mut policies = one_word_policies();
    policies.push(Policy::sliding_window_strict("1000/h", 10).unwrap());
    policies.push(Policy::sliding_window_log("10/h").unwrap());
    for policy in policies {
        let mut fixture = ServerFixture::new();
        // Of a strict window, so many that a count takes two bytes: one less is a fault.
        fixture.store.check(b"key", &policy, policy.capacity().min(300)).wait().unwrap();
        let key = fixture.only_key();
        let written: Vec<u8> = fixture.ask(&["GET", &key]);
        let truncated = written[..written.len() - 1].to_vec();
        let overlong = [&written[..], b"x"].concat();
        let enormous: Vec<u8> = [&written[..2], &vec![0xff; written.len() - 2]].concat();
        for state in [truncated, overlong, enormous, b"".to_vec(), b"hello".to_vec()] {
            redis::cmd("SET").arg(&key).arg(&state).exec(&mut fixture.client).unwrap();
            let answer = fixture.store.check(b"key", &policy, 1).wait();
            // An enormous count is a count all the same.
            let Err(error) = answer else {
                assert!(state.ends_with(&[0xff]), "{policy:?} reads {state:?}");
                continue;
            };
            let is_clear = matches!(cause(&error), RedisStoreError::CorruptState { .. });
            assert!(is_clear, "{policy:?} reads {state:?}: {error:?}");
        }
        fixture.store.reset(b"key", &policy).wait().unwrap();
        assert!(fixture.store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
    }
}

#[test]
fn a_custom_algorithm_is_refused_with_advice() {
    #[derive(Debug)]
    struct Mine;
    impl tollbar::Algorithm for Mine {
        fn name(&self) -> &'static str {
            "token_bucket"
        }
        fn limit(&self) -> u64 {
            1
        }
        fn window_us(&self) -> u64 {
            1
        }
        fn words(&self) -> usize {
            1
        }
        fn transition(&self, _: &mut [u64], now: tollbar::Timestamp, _: u64) -> tollbar::Decision {
            tollbar::Decision::new(tollbar::Outcome::Allow, 1, 1, now)
        }
        fn fresh_at(&self, _: &[u64]) -> tollbar::Timestamp {
            tollbar::Timestamp::ZERO
        }
    }
    let fixture = ServerFixture::new();
    let policy = Policy::custom(Mine).unwrap();
    let error = fixture.store.check(b"key", &policy, 1).wait().unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }) && !error.is_outage(), "{error:?}");
}

#[test]
fn a_unix_socket_leads_to_the_same_counters() {
    let fixture = ServerFixture::new();
    let policy = Policy::fixed_window("2/h").unwrap();
    assert_eq!(fixture.store.check(b"key", &policy, 1).wait().unwrap().remaining().unwrap(), 1);
    let socket = format!("unix://{}", fixture.server.socket().display());
    let builder = RedisStore::builder(&socket, KeyNames::Hashed(FleetSecret::new([7; 32])));
    let store = RUNTIME.block_on(builder.patient().connect()).unwrap();
    assert_eq!(store.check(b"key", &policy, 1).wait().unwrap().remaining().unwrap(), 0);
}

#[test]
fn stores_of_two_namespaces_or_two_secrets_share_nothing() {
    let server = server();
    let policy = Policy::fixed_window("1/h").unwrap();
    for _ in 0..2 {
        let store = RUNTIME.block_on(builder(&server).patient().connect()).unwrap();
        assert!(store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
    }
    for secret in [1, 2] {
        let builder =
            RedisStore::builder(&server.url(), KeyNames::Hashed(FleetSecret::new([secret; 32])));
        let store = RUNTIME.block_on(builder.patient().connect()).unwrap();
        assert!(store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
    }
}

/// A server that refuses keeps refusing until an operator acts; one that is gone may come back by itself.
#[test]
fn a_server_that_refuses_is_told_apart_from_one_that_is_gone() {
    let policy = Policy::token_bucket("10/h").unwrap();
    let refused = |fixture: &ServerFixture, what: &str| {
        let error = fixture.store.check(b"key", &policy, 1).wait().unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{what}: {error:?}");
        assert!(error.is_outage(), "{what}");
        let mut entries = [Entry::new("a", &policy), Entry::new("b", &policy)];
        let error = fixture.store.decide(Batch::all_or_none(&mut entries)).wait().unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{what}: {error:?}");
    };

    let mut fixture = ServerFixture::new();
    assert!(fixture.store.check(b"key", &policy, 1).wait().is_ok());
    let _: () = fixture.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    refused(&fixture, "it is out of memory");
    let _: () = fixture.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(fixture.store.check(b"key", &policy, 1).wait().is_ok(), "somebody has acted");
    let _: () = fixture.ask(&["ACL", "SETUSER", "default", "-set"]);
    refused(&fixture, "it does not grant the permission to write");
    let _: () = fixture.ask(&["ACL", "SETUSER", "default", "+set"]);

    let mut fixture = ServerFixture::new();
    let _: () = fixture.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    refused(&fixture, "it has too few replicas to write");
}
