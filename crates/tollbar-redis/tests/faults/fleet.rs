//! One limit for several processes, and a client that asks in vain.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Patient, RUNTIME};
use tollbar::{Batch, Entry, ManualClock, Outcome, Policy, Store, Timestamp};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore};
use tollbar_testkit::redis::process::RedisProcess;

const URL: &str = "TOLLBAR_TEST_REDIS";
const TASKS: u64 = 4;
const CHECKS_PER_TASK: u64 = 500;
const LIMIT: u64 = 1_000;

/// Not a test, but a process of the one below: asks as fast as it can, and says what it got.
#[test]
fn member_of_a_fleet() {
    let Ok(url) = std::env::var(URL) else { return };
    let admitted = RUNTIME.block_on(async {
        let builder = RedisStore::builder(&url, KeyNames::Hashed(FleetSecret::new([7; 32])));
        let store = std::sync::Arc::new(builder.patient().connect().await.unwrap());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let store = store.clone();
            tasks.spawn(async move {
                let policy = Policy::token_bucket("1000/day").unwrap();
                let mut admitted = 0;
                for _ in 0..CHECKS_PER_TASK {
                    let decision = store.check(b"one key", &policy, 1).await.unwrap();
                    admitted += u64::from(decision.is_allowed());
                }
                admitted
            });
        }
        tasks.join_all().await.iter().sum::<u64>()
    });
    println!("admitted={admitted}");
}

#[test]
fn eight_tasks_in_two_processes_admit_exactly_the_limit() {
    let server = RedisProcess::start();
    let member = || {
        Command::new(std::env::current_exe().expect("a test has a path"))
            .args(["--exact", "fleet::member_of_a_fleet", "--nocapture"])
            .env(URL, server.url())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a test can be started")
    };
    let members = [member(), member()];
    let admitted: Vec<u64> = members
        .into_iter()
        .map(|member| {
            let output = member.wait_with_output().expect("it ends");
            let text = String::from_utf8(output.stdout).expect("tests print text");
            let (_, rest) = text.split_once("admitted=").expect("it says what it got");
            rest.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
        })
        .collect();
    // 2,000 asked of each, so each got some; a day's thousand earns one every 86 s.
    assert_eq!(admitted.iter().sum::<u64>(), LIMIT, "{admitted:?}");
}

fn evalsha_calls(server: &RedisProcess) -> u64 {
    let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut client).unwrap();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    line.and_then(|line| line.split(['=', ',']).nth(1)).map_or(0, |calls| calls.parse().unwrap())
}

/// A store with a deny cache, and its clock, which is the server's as well.
fn with_deny_cache(server: &RedisProcess, now: Timestamp) -> (RedisStore, ManualClock) {
    let clock = ManualClock::at(now);
    let builder = RedisStore::builder(&server.url(), KeyNames::Hashed(FleetSecret::new([7; 32])))
        .patient()
        .test_clock(clock.clone(), Duration::from_hours(1))
        .deny_cache(64);
    (RUNTIME.block_on(builder.connect()).unwrap(), clock)
}

#[test]
fn a_client_that_asks_in_vain_reaches_the_server_once_a_second() {
    let server = RedisProcess::start();
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    let (store, clock) = with_deny_cache(&server, start);
    let policy = Policy::token_bucket("10/min").unwrap();
    store.check(b"key", &policy, 10).wait().unwrap();
    let before = evalsha_calls(&server);
    // For four seconds, every 100 us: 40,000 times.
    for tick in 0..40_000 {
        clock.set(start.after(Duration::from_micros(tick * 100)));
        let decision = store.check(b"key", &policy, 1).wait().unwrap();
        let retry_after_us = 6_000_000 - tick * 100;
        assert_eq!(decision.outcome(), Outcome::Deny { retry_after_us }, "at {tick}");
        assert_eq!(decision.remaining().unwrap(), 0);
    }
    let calls = evalsha_calls(&server) - before;
    assert_eq!(calls, 4);
    // And a request under several limits.
    let other = Policy::fixed_window("5/h").unwrap();
    let before = evalsha_calls(&server);
    for _ in 0..100 {
        let mut entries = [Entry::new("key", &policy), Entry::new("key", &other)];
        store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
        let [denied, allowed] = entries.map(|entry| entry.decision().unwrap());
        assert!(!denied.is_allowed() && allowed.is_allowed());
        assert_eq!(allowed.remaining().unwrap(), 5);
    }
    assert_eq!(evalsha_calls(&server) - before, 1);
    // Allowed at the instant it was told, not later.
    clock.set(start.after(Duration::from_secs(6)));
    assert!(store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
}

#[test]
fn peeks_changed_rules_lower_costs_and_resets_are_not_answered_from_the_cache() {
    let server = RedisProcess::start();
    let (store, _clock) = with_deny_cache(&server, Timestamp::from_micros(1_700_000_000_000_000));
    let policy = Policy::fixed_window("10/min").unwrap();
    store.check(b"key", &policy, 8).wait().unwrap();
    assert!(!store.check(b"key", &policy, 5).wait().unwrap().is_allowed());
    assert!(!store.check(b"key", &policy, 6).wait().unwrap().is_allowed());
    assert!(store.check(b"key", &policy, 0).wait().unwrap().is_allowed());
    assert_eq!(store.check(b"key", &policy, 11).wait().unwrap().outcome(), Outcome::Never);
    assert!(store.check(b"key", &policy, 2).wait().unwrap().is_allowed());
    let raised = Policy::fixed_window("20/min").unwrap();
    assert!(store.check(b"key", &raised, 5).wait().unwrap().is_allowed());
    assert!(!store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
    store.reset(b"key", &policy).wait().unwrap();
    assert!(store.check(b"key", &policy, 1).wait().unwrap().is_allowed());
}
