//! Servers that answer and say no: what the store knows of it, and that it notices when it is over.
//! Real servers, old and new.

use std::time::Duration;

use crate::support::{Patient, builder as with_namespace, cause};
use redis::Value;
use tokio::time::{Instant, sleep};
use tollbar::{Policy, Store, StoreError};
use tollbar_redis::{
    BreakerState, FaultKind, FleetSecret, KeyNames, RedisStore, RedisStoreError, RefusalReason,
    StoreFault,
};
use tollbar_testkit::redis::launch::{Launch, Program};
use tollbar_testkit::redis::process::RedisProcess;

const PATIENCE: Duration = Duration::from_secs(30);

fn ask(server: &RedisProcess, words: &[&str]) -> Value {
    let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    redis::cmd(words[0]).arg(&words[1..]).query(&mut client).expect("the server answers")
}

fn info(server: &RedisProcess, section: &str) -> String {
    redis::from_redis_value(ask(server, &["INFO", section])).unwrap()
}

fn policy() -> Policy {
    Policy::fixed_window("1000000/day").unwrap()
}

async fn connect(server: &RedisProcess) -> RedisStore {
    with_namespace(server).patient().deny_cache(0).connect().await.expect("the server is there")
}

async fn faults_after_probe(store: &RedisStore) -> Vec<StoreFault> {
    // What is wrong is told by the faults.
    store.probe().await.ok();
    store.faults()
}

/// Probes, as a daemon does every second, until it is so.
async fn until(store: &RedisStore, what: &str, is_so: impl Fn(&[StoreFault]) -> bool) {
    let started = Instant::now();
    while !is_so(&faults_after_probe(store).await) {
        assert!(started.elapsed() < PATIENCE, "never {what}: {:?}", store.faults());
        sleep(Duration::from_millis(20)).await;
    }
}

fn count(store: &RedisStore, reason: RefusalReason) -> u64 {
    let counts = store.refusals();
    counts.iter().find(|(counted, _)| *counted == reason).map_or(0, |(_, count)| *count)
}

/// A way to make a server refuse, and to end that.
struct Trouble {
    reason: RefusalReason,
    begin: fn(&RedisProcess),
    end: fn(&RedisProcess),
    /// What the server says: one of these, by its version.
    words: &'static [&'static str],
    advice: &'static str,
}

/// A directory stands where the server wants to save its data.
fn begin_failing_saves(server: &RedisProcess) {
    std::fs::create_dir_all(server.directory().join("dump.rdb/full")).unwrap();
    ask(server, &["CONFIG", "SET", "save", "3600 1"]);
    ask(server, &["SET", "something", "to save"]);
    ask(server, &["BGSAVE"]);
    let started = Instant::now();
    while !info(server, "persistence").contains("rdb_last_bgsave_status:err") {
        assert!(started.elapsed() < PATIENCE, "the save has not failed");
    }
}

fn end_failing_saves(server: &RedisProcess) {
    ask(server, &["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
}

const TROUBLES: [Trouble; 4] = [
    Trouble {
        reason: RefusalReason::OutOfMemory,
        begin: |server| drop(ask(server, &["CONFIG", "SET", "maxmemory", "1"])),
        end: |server| drop(ask(server, &["CONFIG", "SET", "maxmemory", "0"])),
        words: &["OOM command not allowed"],
        advice: "raise `maxmemory`",
    },
    Trouble {
        reason: RefusalReason::NoPermission,
        begin: |server| drop(ask(server, &["ACL", "SETUSER", "default", "-set"])),
        end: |server| drop(ask(server, &["ACL", "SETUSER", "default", "+set"])),
        words: &["can't run this command", "ACL failure in script"],
        advice: "grant it: ACL SETUSER default +evalsha +eval +get +set +del +time +info ~tollbar1:",
    },
    Trouble {
        reason: RefusalReason::NoReplicas,
        begin: |server| drop(ask(server, &["CONFIG", "SET", "min-replicas-to-write", "1"])),
        end: |server| drop(ask(server, &["CONFIG", "SET", "min-replicas-to-write", "0"])),
        words: &["NOREPLICAS Not enough good replicas"],
        advice: "lower `min-replicas-to-write`",
    },
    Trouble {
        reason: RefusalReason::NotPersisted,
        begin: begin_failing_saves,
        end: end_failing_saves,
        words: &["MISCONF"],
        advice: "free space on its disk",
    },
];

/// No check is made: the probe alone finds the refusal, and finds that it is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_is_found_by_the_probe_alone_and_so_is_the_end() {
    for program in Program::ALL {
        for Trouble { reason, begin, end, words, advice } in TROUBLES {
            let server = RedisProcess::launch(Launch::new(program));
            let store = connect(&server).await;
            assert_eq!(faults_after_probe(&store).await, []);
            begin(&server);
            let faults = faults_after_probe(&store).await;
            let [fault] = &faults[..] else { panic!("{program:?}, {reason:?}: {faults:?}") };
            assert_eq!(fault.kind, FaultKind::Refused(reason), "{program:?}: {fault}");
            assert!(fault.kind.is_outage());
            assert!(words.iter().any(|words| fault.detail.contains(words)), "{program:?}: {fault}");
            assert!(fault.detail.contains(&format!("127.0.0.1:{}", server.port())), "{fault}");
            assert!(fault.advice.contains(advice), "{program:?}: {fault}");
            assert!(count(&store, reason) >= 1, "{program:?}: {:?}", store.refusals());
            // The server is there: the breaker has nothing to do with it.
            assert_eq!(store.health().breaker, BreakerState::Closed);
            end(&server);
            assert_eq!(faults_after_probe(&store).await, [], "{program:?}, {reason:?}");
            assert!(store.check(b"key", &policy(), 1).await.is_ok());
        }
    }
}

/// Checks find it, too: nobody waits for the next probe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_is_refused_is_a_fault_at_once() {
    let server = RedisProcess::start();
    let store = connect(&server).await;
    ask(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(store.faults(), []);
    store.check(b"key", &policy(), 1).await.unwrap_err();
    assert_eq!(store.faults()[0].kind, FaultKind::Refused(RefusalReason::OutOfMemory));
    assert_eq!(count(&store, RefusalReason::OutOfMemory), 1);
}

/// A replica used to be connected to, refused, given up and connected to again, several times a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_opens_the_breaker_once_until_it_is_a_master() {
    for program in Program::ALL {
        let server = RedisProcess::launch(Launch::new(program));
        let store = connect(&server).await;
        store.check(b"key", &policy(), 1).await.unwrap();
        // Of a master that is not there: it stays as it is, and takes no writes.
        ask(&server, &["REPLICAOF", "127.0.0.1", "1"]);
        store.check(b"key", &policy(), 1).await.unwrap_err();
        // Several attempts to connect have found a replica, and probes go on meanwhile.
        let several = count(&store, RefusalReason::ReadOnly) + 4;
        until(&store, "asked again", |faults| {
            assert_eq!(faults[0].kind, FaultKind::Refused(RefusalReason::ReadOnly), "{faults:?}");
            assert_eq!(store.health().breaker, BreakerState::Open, "{program:?}");
            count(&store, RefusalReason::ReadOnly) >= several
        })
        .await;
        assert_eq!(store.health().opened, 1, "{program:?}");
        let fault = &store.faults()[0];
        assert!(fault.detail.contains("READONLY"), "{fault}");
        assert!(fault.advice.contains("address of the master"), "{fault}");
        ask(&server, &["REPLICAOF", "NO", "ONE"]);
        until(&store, "over", <[StoreFault]>::is_empty).await;
        assert!(store.check(b"key", &policy(), 1).await.is_ok());
    }
}

/// The probe's own key is as it should be: it looks at the one that a check has met.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_is_looked_at_until_it_is_gone() {
    let server = RedisProcess::start();
    let store = connect(&server).await;
    store.check(b"key", &policy(), 1).await.unwrap();
    let keys: Vec<String> = redis::from_redis_value(ask(&server, &["KEYS", "tollbar1:*"])).unwrap();
    let [key] = &keys[..] else { panic!("{keys:?}") };
    ask(&server, &["DEL", key]);
    ask(&server, &["LPUSH", key, "x"]);
    assert_eq!(faults_after_probe(&store).await, [], "no check has met it yet");
    let error = store.check(b"key", &policy(), 1).await.unwrap_err();
    assert!(matches!(cause(&error), RedisStoreError::WrongType { .. }), "{error:?}");
    let of_key = RefusalReason::WrongType;
    for met in 2..5 {
        let faults = faults_after_probe(&store).await;
        assert_eq!(faults[0].kind, FaultKind::Refused(of_key), "{faults:?}");
        assert!(faults[0].advice.contains("`tollbar1:"), "{}", faults[0]);
        assert_eq!(count(&store, of_key), met);
    }
    ask(&server, &["DEL", key]);
    for _ in 0..3 {
        store.probe().await.ok();
        assert_eq!(count(&store, of_key), 4, "it is gone");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_evict_counters_is_a_fault_and_what_it_evicts_is_counted() {
    for program in Program::ALL {
        let options = ["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"];
        let server = RedisProcess::launch(Launch::new(program).with(&options));
        let store = connect(&server).await;
        let faults = faults_after_probe(&store).await;
        let [fault] = &faults[..] else { panic!("{faults:?}") };
        assert!(fault.kind == FaultKind::Evicts && !fault.kind.is_outage(), "{fault:?}");
        assert!(fault.detail.contains("may evict counters"), "{fault}");
        assert!(fault.detail.contains("maxmemory-policy allkeys-lru"), "{fault}");
        assert!(fault.advice.contains("maxmemory-policy noeviction"), "{fault}");
        assert_eq!(store.evicted_keys(), 0);
        // Another tenant of the server fills it.
        let filler = "x".repeat(64 * 1024);
        for number in 0..100 {
            ask(&server, &["SET", &format!("other{number}"), &filler]);
        }
        let faults = faults_after_probe(&store).await;
        assert!(faults[0].detail.contains("evicts keys"), "{program:?}: {faults:?}");
        let stats = info(&server, "stats");
        let evicted = stats.lines().find_map(|line| line.strip_prefix("evicted_keys:")).unwrap();
        assert_eq!(store.evicted_keys().to_string(), evicted);
        assert!(store.evicted_keys() > 0, "{stats}");
        // Counters expire, so this one takes them as well.
        ask(&server, &["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
        assert_eq!(faults_after_probe(&store).await[0].kind, FaultKind::Evicts);
        ask(&server, &["FLUSHALL"]);
        ask(&server, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        assert_eq!(faults_after_probe(&store).await, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_secrets_in_one_namespace_are_a_fault_of_the_second() {
    let server = RedisProcess::start();
    let connect = async |names: KeyNames, namespace: &str| {
        let builder = RedisStore::builder(&server.url(), names).namespace(namespace);
        builder.patient().connect().await.unwrap()
    };
    let secret = |byte: u8| KeyNames::Hashed(FleetSecret::new([byte; 32]));
    let first = connect(secret(1), "shop").await;
    let second = connect(secret(2), "shop").await;
    assert_eq!(faults_after_probe(&first).await, []);
    for other in [&second, &connect(KeyNames::Raw, "shop").await] {
        let faults = faults_after_probe(other).await;
        let [fault] = &faults[..] else { panic!("{faults:?}") };
        assert!(fault.kind == FaultKind::OtherSecret && !fault.kind.is_outage(), "{fault:?}");
        assert!(fault.detail.contains("`tollbar1:shop:`"), "{fault}");
    }
    assert_eq!(faults_after_probe(&first).await, []);
    for fine in [connect(secret(1), "shop").await, connect(secret(2), "bar").await] {
        assert_eq!(faults_after_probe(&fine).await, []);
    }
    // The whole fleet gets another secret: the claim of the old one ends by itself.
    let left: i64 =
        redis::from_redis_value(ask(&server, &["PTTL", "tollbar1:shop:secret"])).unwrap();
    assert!((1..=15_000).contains(&left), "{left}");
    ask(&server, &["DEL", "tollbar1:shop:secret"]);
    assert_eq!(faults_after_probe(&second).await, []);
    assert_eq!(faults_after_probe(&first).await[0].kind, FaultKind::OtherSecret);
}

/// A probe leaves nothing behind but the claim of the namespace, which expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_cleans_up() {
    let server = RedisProcess::start();
    let store = connect(&server).await;
    store.probe().await.ok();
    let keys: Vec<String> = redis::from_redis_value(ask(&server, &["KEYS", "*"])).unwrap();
    assert!(keys.len() == 1 && keys[0].ends_with(":secret"), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_is_unreachable_until_it_is_back() {
    let mut server = RedisProcess::start();
    let store = connect(&server).await;
    server.kill();
    until(&store, "unreachable", |faults| {
        faults.iter().any(|fault| fault.kind == FaultKind::Unreachable)
    })
    .await;
    server.restart();
    until(&store, "back", <[StoreFault]>::is_empty).await;
}

/// A wrong password used to be a connection that is missing, like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_told_as_such() {
    let server = RedisProcess::start_with(&["--requirepass", "right"]);
    for url in [server.url(), server.url().replace("redis://", "redis://:wrong@")] {
        let builder = RedisStore::builder(&url, KeyNames::Raw);
        let store = builder.connect_in_background().unwrap();
        until(&store, "refused", |faults| {
            faults.iter().any(|fault| {
                fault.kind == FaultKind::Refused(RefusalReason::NotAuthenticated)
                    && fault.advice.contains("password")
            })
        })
        .await;
    }
}

/// Some services take commands away by `rename-command`. A script that calls one fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_run_the_scripts_is_told_as_such() {
    for program in Program::ALL {
        let server =
            RedisProcess::launch(Launch::new(program).with(&["--rename-command", "TIME", ""]));
        let store = connect(&server).await;
        let failed = FaultKind::Refused(RefusalReason::ScriptError);
        let faults = faults_after_probe(&store).await;
        let [fault] = &faults[..] else { panic!("{program:?}: {faults:?}") };
        assert_eq!(fault.kind, failed, "{program:?}: {fault}");
        assert!(fault.detail.contains("nknown") && fault.detail.contains("script"), "{fault}");
        assert!(fault.advice.contains("tollbar needs Redis 6.2, or Valkey"), "{fault}");
        let met = count(&store, RefusalReason::ScriptError);
        let error = store.check(b"key", &policy(), 1).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{program:?}: {error:?}");
        assert_eq!(count(&store, RefusalReason::ScriptError), met + 1, "{program:?}");
    }
}
