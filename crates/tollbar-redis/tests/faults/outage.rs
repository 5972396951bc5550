//! What happens when the server is slow, gone, full or empty. Real servers, and real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::Patient;
use crate::support::proxy::Proxy;
use redis::Value;
use tokio::time::{Instant, sleep};
use tollbar::{AsyncLimiter, Batch, Degraded, Entry, OutagePolicy, Policy, Store, StoreError};
use tollbar_redis::{
    BreakerState, FleetSecret, KeyNames, RedisStore, RedisStoreBuilder, RedisStoreError,
};
use tollbar_testkit::redis::process::RedisProcess;

const DEADLINE: Duration = Duration::from_millis(40);

/// What a busy machine adds to a deadline: other tests run on it as well.
const SCHEDULING: Duration = Duration::from_millis(250);

const SERVICE_BACK_WITHIN: Duration = Duration::from_secs(20);

fn builder(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url, KeyNames::Hashed(FleetSecret::new([7; 32])))
        .timeout(DEADLINE)
        .deny_cache(0)
}

async fn connect(url: &str) -> Arc<RedisStore> {
    Arc::new(builder(url).connect().await.expect("the server is there"))
}

fn policy() -> Policy {
    Policy::fixed_window("1000000/day").unwrap()
}

fn ask(server: &RedisProcess, words: &[&str]) -> Value {
    let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    redis::cmd(words[0]).arg(&words[1..]).query(&mut client).expect("the server answers")
}

/// What a few tasks that never stop asking have seen.
#[derive(Default)]
struct LoadCounts {
    answered: AtomicU64,
    failed: AtomicU64,
    longest_us: AtomicU64,
}

struct Load {
    seen: Arc<LoadCounts>,
    tasks: tokio::task::JoinSet<()>,
}

impl Load {
    fn on(store: &Arc<RedisStore>) -> Self {
        let seen = Arc::new(LoadCounts::default());
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..4_u8 {
            let (store, seen) = (store.clone(), seen.clone());
            tasks.spawn(async move {
                let policy = policy();
                loop {
                    let asked = Instant::now();
                    let answer = store.check(&[task], &policy, 1).await;
                    let took_us = asked.elapsed().as_micros() as u64;
                    seen.longest_us.fetch_max(took_us, Ordering::Relaxed);
                    let count = if answer.is_ok() { &seen.answered } else { &seen.failed };
                    count.fetch_add(1, Ordering::Relaxed);
                    // Those that fail at once would keep the only thread.
                    sleep(Duration::from_millis(1)).await;
                }
            });
        }
        Self { seen, tasks }
    }

    async fn until(&self, what: &str, is_so: impl Fn(&LoadCounts) -> bool) {
        let started = Instant::now();
        while !is_so(&self.seen) {
            assert!(started.elapsed() < SERVICE_BACK_WITHIN, "waited in vain: {what}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn until_answered(&self, more: u64) {
        let goal = self.seen.answered.load(Ordering::Relaxed) + more;
        self.until("answers", |seen| seen.answered.load(Ordering::Relaxed) >= goal).await;
    }

    async fn until_failed(&self, more: u64) {
        let goal = self.seen.failed.load(Ordering::Relaxed) + more;
        self.until("failures", |seen| seen.failed.load(Ordering::Relaxed) >= goal).await;
    }

    /// Ends it; nothing took longer than it may have.
    fn finish(mut self) {
        self.tasks.abort_all();
        let longest = Duration::from_micros(self.seen.longest_us.load(Ordering::Relaxed));
        assert!(longest < DEADLINE + SCHEDULING, "a check took {longest:?}");
    }
}

async fn until_state(store: &RedisStore, state: BreakerState) {
    let started = Instant::now();
    while store.health().breaker != state {
        assert!(started.elapsed() < SERVICE_BACK_WITHIN, "never {state:?}: {store:?}");
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_comes_back_empty_is_found_again() {
    let mut server = RedisProcess::start();
    let store = connect(&server.url()).await;
    let load = Load::on(&store);
    load.until_answered(50).await;
    server.kill();
    load.until_failed(20).await;
    until_state(&store, BreakerState::Open).await;
    let health = store.health();
    assert!(health.opened >= 1 && health.last_error.is_some(), "{health:?}");
    server.restart();
    until_state(&store, BreakerState::Closed).await;
    assert!(store.health().last_error.is_none());
    load.until_answered(50).await;
    // Exact again from the first check on: the server has forgotten, so the key is fresh.
    let decision = store.check(b"another", &policy(), 1).await.unwrap();
    assert_eq!(decision.remaining().unwrap(), 999_999);
    load.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_hangs_checks_fail_in_time_and_soon_at_once() {
    let server = RedisProcess::start();
    let store = connect(&server.url()).await;
    let load = Load::on(&store);
    load.until_answered(50).await;
    let hanging = std::thread::spawn({
        let url = server.url();
        move || {
            let mut client = redis::Client::open(url).unwrap().get_connection().unwrap();
            redis::cmd("DEBUG").arg(&["SLEEP", "1.5"]).exec(&mut client).unwrap();
        }
    });
    until_state(&store, BreakerState::Open).await;
    let asked = Instant::now();
    let error = store.check(b"key", &policy(), 1).await.unwrap_err();
    let StoreError::Unavailable { source } = error else { panic!("{error:?}") };
    let is_at_once = matches!(source.downcast_ref(), Some(RedisStoreError::Disconnected { .. }));
    assert!(is_at_once && asked.elapsed() < DEADLINE, "{source:?} after {:?}", asked.elapsed());
    until_state(&store, BreakerState::Closed).await;
    load.until_answered(50).await;
    hanging.join().unwrap();
    load.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_pauses_its_clients_is_asked_again_when_it_goes_on() {
    let server = RedisProcess::start();
    let store = connect(&server.url()).await;
    let load = Load::on(&store);
    load.until_answered(50).await;
    ask(&server, &["CLIENT", "PAUSE", "700", "ALL"]);
    load.until_failed(20).await;
    load.until_answered(50).await;
    load.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_everything_is_noticed_by_deadlines_alone() {
    let server = RedisProcess::start();
    let proxy = Proxy::to(server.port()).await;
    let store = connect(&proxy.url()).await;
    let load = Load::on(&store);
    load.until_answered(50).await;
    proxy.cut(true);
    load.until_failed(20).await;
    until_state(&store, BreakerState::Open).await;
    proxy.cut(false);
    load.until_answered(50).await;
    load.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_not_noticed_at_all() {
    let server = RedisProcess::start();
    let store = Arc::new(builder(&server.url()).patient().connect().await.expect("it is there"));
    let load = Load::on(&store);
    for _ in 0..20 {
        load.until_answered(10).await;
        ask(&server, &["SCRIPT", "FLUSH"]);
    }
    load.until_answered(10).await;
    assert_eq!(load.seen.failed.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_refuses_all_of_a_batch_and_stays_connected() {
    let server = RedisProcess::start_with(&["--maxmemory-policy", "noeviction"]);
    let store = builder(&server.url()).patient().connect().await.unwrap();
    let policy = policy();
    assert_eq!(store.check(b"key", &policy, 1).await.unwrap().remaining().unwrap(), 999_999);
    ask(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let error = store.check(b"key", &policy, 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    let mut entries = [Entry::new("key", &policy), Entry::new("other", &policy)];
    store.decide(Batch::all_or_none(&mut entries)).await.unwrap_err();
    // The server is there: others need not stop asking.
    assert_eq!(store.health().breaker, BreakerState::Closed);
    ask(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(store.check(b"key", &policy, 1).await.unwrap().remaining().unwrap(), 999_998);
    assert_eq!(store.check(b"other", &policy, 1).await.unwrap().remaining().unwrap(), 999_999);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_refused_and_used_once_it_is_a_master() {
    let server = RedisProcess::start();
    let store = connect(&server.url()).await;
    assert!(store.check(b"key", &policy(), 1).await.is_ok());
    // Of a master that is not there: it stays as it is, and takes no writes.
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    store.check(b"key", &policy(), 1).await.unwrap_err();
    ask(&server, &["REPLICAOF", "NO", "ONE"]);
    let load = Load::on(&store);
    load.until_answered(10).await;
    load.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_can_start_before_its_server() {
    let mut server = RedisProcess::start();
    server.kill();
    assert!(builder(&server.url()).connect().await.is_err());
    let store = Arc::new(builder(&server.url()).connect_in_background().unwrap());
    let denying = AsyncLimiter::builder(policy().with_name("api"), store.clone());
    let limiter = denying.on_outage(OutagePolicy::Deny).build().unwrap();
    let decision = limiter.check("key").await.unwrap();
    assert_eq!(decision.degraded(), Some(Degraded::Denied));
    server.restart();
    until_state(&store, BreakerState::Closed).await;
    let started = Instant::now();
    while limiter.check("key").await.unwrap().degraded().is_some() {
        assert!(started.elapsed() < SERVICE_BACK_WITHIN);
    }
}

/// Waiting without a runtime is no excuse for missing a deadline.
#[test]
fn a_thread_without_a_runtime_waits_no_longer() {
    let server = RedisProcess::start();
    let store = crate::support::RUNTIME.block_on(connect(&server.url()));
    assert!(store.check(b"key", &policy(), 1).wait().is_ok());
    ask(&server, &["CLIENT", "PAUSE", "2000", "ALL"]);
    let asked = Instant::now();
    store.check(b"key", &policy(), 1).wait().unwrap_err();
    assert!(asked.elapsed() < DEADLINE + SCHEDULING, "{:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_dropped_leaves_no_task_behind() {
    let server = RedisProcess::start();
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..3 {
        let store = connect(&server.url()).await;
        store.check(b"key", &policy(), 1).await.unwrap();
    }
    drop(builder("redis://127.0.0.1:1").connect_in_background().unwrap());
    let started = Instant::now();
    while tokio::runtime::Handle::current().metrics().num_alive_tasks() > before {
        assert!(started.elapsed() < SERVICE_BACK_WITHIN, "tasks stay");
        sleep(Duration::from_millis(2)).await;
    }
}
