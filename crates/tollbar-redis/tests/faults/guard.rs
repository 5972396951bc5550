//! Stampedes: what reaches the server, and what those get who do not.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::support::{Patient, RUNTIME, cause};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollbar::store::Once;
use tollbar::{Batch, Entry, ManualClock, Outcome, Policy, Store, Timestamp};
use tollbar_redis::{
    FaultKind, FleetSecret, KeyNames, RedisStore, RedisStoreBuilder, RedisStoreError,
};
use tollbar_testkit::redis::process::RedisProcess;
use tollbar_testkit::subject::Subject;
use tollbar_testkit::suite;

const ASKING: usize = 2_000;
const SAME_MAX: usize = 4;

fn builder(server: &RedisProcess) -> RedisStoreBuilder {
    RedisStore::builder(&server.url(), KeyNames::Hashed(FleetSecret::new([7; 32]))).patient()
}

fn ask(server: &RedisProcess, words: &[&str]) -> String {
    let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    redis::cmd(words[0]).arg(&words[1..]).query(&mut client).expect("the server answers")
}

fn evalsha_calls(server: &RedisProcess) -> u64 {
    let stats = ask(server, &["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    line.and_then(|line| line.split(['=', ',']).nth(1)).map_or(0, |calls| calls.parse().unwrap())
}

/// How many of those are admitted who ask at once, and how many calls that takes.
fn stampede(store: RedisStore, server: &RedisProcess, policies: &'static [Policy]) -> (u64, u64) {
    let store = Arc::new(store);
    let before = evalsha_calls(server);
    // None is answered before all have asked.
    ask(server, &["CLIENT", "PAUSE", "500", "ALL"]);
    let admitted = RUNTIME.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..ASKING {
            let store = store.clone();
            tasks.spawn(async move {
                if let [policy] = policies {
                    return store.check(b"key", policy, 1).await.unwrap().is_allowed();
                }
                let mut entries: Vec<Entry<'_>> =
                    policies.iter().map(|policy| Entry::new("key", policy)).collect();
                store.decide(Batch::all_or_none(&mut entries)).await.unwrap();
                entries.iter().all(|entry| entry.decision().unwrap().is_allowed())
            });
        }
        tasks.join_all().await.into_iter().filter(|is_allowed| *is_allowed).count()
    });
    (admitted as u64, evalsha_calls(server) - before)
}

fn leaked(policies: Vec<Policy>) -> &'static [Policy] {
    policies.leak()
}

#[test]
fn a_stampede_on_one_key_is_answered_by_the_first_that_are_denied() {
    let ten = || Policy::fixed_window("10/day").unwrap();
    let several = || vec![ten(), Policy::token_bucket("20/day").unwrap()];
    for policies in [vec![ten()], several()] {
        let server = RedisProcess::start();
        let policies = leaked(policies);
        let store =
            RUNTIME.block_on(builder(&server).max_in_flight_per_key(SAME_MAX).connect()).unwrap();
        let (admitted, calls) = stampede(store, &server, policies);
        assert_eq!(admitted, 10);
        // Ten that pass, and those that were under way with them; the server forgets what takes a second.
        assert!(calls <= 10 + 2 * SAME_MAX as u64, "{calls} calls for {} policies", policies.len());
        // Without it nearly all of them reach the server.
        let server = RedisProcess::start();
        let store = RUNTIME.block_on(builder(&server).max_in_flight_per_key(0).connect()).unwrap();
        let (admitted, calls) = stampede(store, &server, policies);
        assert_eq!(admitted, 10);
        assert!(calls > ASKING as u64 / 4, "{calls} calls: the guard was not needed");
    }
}

/// Whoever waits is sent in turn: a guard takes nothing from what the limit allows.
#[test]
fn a_guard_denies_nobody_whom_the_limit_allows() {
    let server = RedisProcess::start();
    let policies = leaked(vec![Policy::fixed_window("1500/day").unwrap()]);
    let store = RUNTIME.block_on(builder(&server).max_in_flight_per_key(1).connect()).unwrap();
    let (admitted, calls) = stampede(store, &server, policies);
    assert_eq!((admitted, calls), (1_500, 1_501));
}

/// A store with a guard, on a clock of the test's.
struct GuardedStore {
    store: RedisStore,
    clock: ManualClock,
    _server: Arc<RedisProcess>,
}

impl Subject for GuardedStore {
    fn name(&self) -> &'static str {
        "redis behind a guard"
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_now(&self, now: Timestamp) {
        self.clock.set(now);
    }
}

#[test]
fn a_guarded_store_passes_the_whole_suite() {
    suite::run_all(&|now| {
        let server = crate::support::server();
        let clock = ManualClock::at(now);
        let builder = crate::support::builder(&server)
            .patient()
            .test_clock(clock.clone(), Duration::from_hours(1))
            .max_in_flight_per_key(1);
        let store = RUNTIME.block_on(builder.connect()).unwrap();
        Box::new(GuardedStore { store, clock, _server: server })
    });
}

#[test]
fn one_check_too_many_fails_at_once_and_leaves_room_when_others_are_done() {
    let server = RedisProcess::start();
    let store = RUNTIME.block_on(builder(&server).max_in_flight(3).connect()).unwrap();
    let policy = Policy::fixed_window("10/day").unwrap();
    RUNTIME.block_on(async {
        let check = |_| Box::pin(store.check(b"key", &policy, 1).into_future());
        let mut waiting: Vec<_> = (0..3).map(check).collect();
        // Under way from the moment on that somebody waits for it.
        for check in &mut waiting {
            poll_fn(|context| Poll::Ready(check.as_mut().poll(context).is_ready())).await;
        }
        for _ in 0..10 {
            let error = store.check(b"key", &policy, 1).await.unwrap_err();
            let is_it = matches!(cause(&error), RedisStoreError::Overloaded { max_in_flight: 3 });
            assert!(is_it, "{error:?}");
        }
        assert_eq!(store.stats().errors.overloaded, 10);
        let faults = store.faults();
        let [fault] = &faults[..] else { panic!("{faults:?}") };
        assert!(fault.kind == FaultKind::Overloaded && fault.kind.is_outage(), "{fault:?}");
        assert!(fault.detail.contains("more than 3 checks"), "{fault}");
        // One that is given up makes room.
        drop(waiting.pop());
        store.check(b"key", &policy, 0).await.unwrap();
        for check in waiting {
            check.await.unwrap();
        }
        store.check(b"key", &policy, 1).await.unwrap();
    });
}

/// A flood on one key filled the room of all checks: those of every key failed, and were let through.
#[test]
fn a_flood_on_one_key_is_denied_and_leaves_room_for_other_keys() {
    let policy = || Policy::fixed_window("10/day").unwrap();
    for is_named in [false, true] {
        let server = RedisProcess::start();
        let builder = builder(&server).max_in_flight(64).max_in_flight_per_key(4);
        let store = Arc::new(RUNTIME.block_on(builder.connect()).unwrap());
        ask(&server, &["CLIENT", "PAUSE", "500", "ALL"]);
        RUNTIME.block_on(async {
            let mut flood = JoinSet::new();
            for number in 0..200_u64 {
                let store = store.clone();
                flood.spawn(async move {
                    let policy = policy();
                    if !is_named {
                        return store.check(b"hot", &policy, 1).await.unwrap().outcome();
                    }
                    let mut entries = [Entry::new("hot", &policy)];
                    let request_id = number.to_le_bytes();
                    let once = Once::new(&request_id, Duration::from_mins(1));
                    store.decide(Batch::all_or_none(&mut entries).once(once)).await.unwrap();
                    entries[0].decision().unwrap().outcome()
                });
            }
            // Behind all of them.
            let other = flood.spawn({
                let store = store.clone();
                async move { store.check(b"other", &policy(), 0).await.unwrap().outcome() }
            });
            let (mut allowed, mut busy) = (0, 0);
            while let Some(checked) = flood.join_next_with_id().await {
                let (id, outcome) = checked.unwrap();
                if id == other.id() {
                    assert_eq!(outcome, Outcome::Allow);
                    continue;
                }
                allowed += u64::from(outcome == Outcome::Allow);
                busy += u64::from(outcome == Outcome::Busy);
            }
            // Four were sent and sixteen waited.
            assert_eq!((allowed, busy), (10, 180), "with an id: {is_named}");
            assert_eq!(store.faults(), []);
        });
    }
}

/// Those who wait behind others wait for half as long as a check may take.
#[test]
fn whoever_waits_at_the_guard_does_so_within_the_deadline() {
    const DEADLINE: Duration = Duration::from_millis(60);
    let server = RedisProcess::start();
    let builder =
        builder(&server).max_in_flight_per_key(1).timeout(DEADLINE).breaker_failures(1_000);
    let store = Arc::new(RUNTIME.block_on(builder.connect()).unwrap());
    RUNTIME.block_on(async {
        let policy = Policy::fixed_window("10/day").unwrap();
        ask(&server, &["CLIENT", "PAUSE", "1000", "ALL"]);
        let started = Instant::now();
        let mut waiting = JoinSet::new();
        for _ in 0..50 {
            let (store, policy) = (store.clone(), policy.clone());
            waiting.spawn(async move { store.check(b"key", &policy, 1).await });
        }
        let mut sent = 0;
        for checked in waiting.join_all().await {
            match checked {
                Ok(decision) => assert_eq!(decision.outcome(), Outcome::Busy),
                Err(error) => {
                    let is_it = matches!(cause(&error), RedisStoreError::DeadlineMissed { .. });
                    assert!(is_it, "{error:?}");
                    sent += 1;
                }
            }
        }
        assert_eq!(sent, 1, "one is under way, and all others wait for it");
        assert!(
            started.elapsed() < DEADLINE + Duration::from_millis(250),
            "{:?}",
            started.elapsed()
        );
    });
}
