//! A cluster that changes under a store: slots that move, and a master that dies beside others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Patient, RUNTIME};
use tokio::time::{Instant, sleep};
use tollbar::{Batch, Entry, Policy, Store};
use tollbar_redis::{BreakerState, KeyNames, RedisStore, RedisStoreBuilder};
use tollbar_testkit::redis::cluster::{Master, RedisCluster};
use tollbar_testkit::redis::launch::Launch;
use tollbar_testkit::redis::process::RedisProcess;

/// The slot of `foo`.
const SLOT: u16 = 12_182;

fn builder(cluster: &RedisCluster) -> RedisStoreBuilder {
    let urls = cluster.urls();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    RedisStore::cluster_builder(&urls, KeyNames::Raw).patient().deny_cache(0)
}

fn connect(builder: RedisStoreBuilder) -> RedisStore {
    RUNTIME.block_on(builder.connect()).expect("the cluster is there")
}

fn has(master: &Master, slot: u16) -> bool {
    master.slots.iter().any(|range| range.contains(&slot))
}

/// Moves the slot of `foo` from one master to another, step by step as people do.
struct SlotMove<'c> {
    cluster: &'c RedisCluster,
    from: Master,
    to: Master,
}

impl<'c> SlotMove<'c> {
    fn begin(cluster: &'c RedisCluster) -> Self {
        let masters = cluster.masters();
        let (from, others): (Vec<Master>, Vec<Master>) =
            masters.into_iter().partition(|master| has(master, SLOT));
        let slot_move = Self { cluster, from: from[0].clone(), to: others[0].clone() };
        slot_move.ask(
            slot_move.to.port,
            &["CLUSTER", "SETSLOT", "12182", "IMPORTING", &slot_move.from.id],
        );
        slot_move.ask(
            slot_move.from.port,
            &["CLUSTER", "SETSLOT", "12182", "MIGRATING", &slot_move.to.id],
        );
        slot_move
    }

    fn ask(&self, port: u16, words: &[&str]) -> String {
        let answer = self.cluster.ask(port, words);
        assert!(!answer.contains("ERR"), "{words:?}: {answer}");
        answer
    }

    fn keys(&self) -> Vec<String> {
        let keys = self.ask(self.from.port, &["CLUSTER", "GETKEYSINSLOT", "12182", "100"]);
        keys.lines().map(ToOwned::to_owned).filter(|key| !key.is_empty()).collect()
    }

    fn hand_over(&self, key: &str) {
        let port = self.to.port.to_string();
        let answer = self.ask(self.from.port, &["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        assert_eq!(answer.trim(), "OK");
    }

    fn end(&self) {
        for port in [self.to.port, self.from.port] {
            self.ask(port, &["CLUSTER", "SETSLOT", "12182", "NODE", &self.to.id]);
        }
    }
}

/// What the guide says that a user needs in a cluster.
pub(crate) const RIGHTS: &str = "+evalsha +eval +get +set +del +time +info +hello ~tollbar1* +cluster|slots +asking \
     +hget +hset +hdel +hlen +zadd +zrem +zrangebyscore";

/// A store whose user has these rights and no others.
pub(crate) fn with_few_rights(cluster: &RedisCluster) -> RedisStoreBuilder {
    let urls = cluster.urls();
    for url in &urls {
        let port = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let user = ["ACL", "SETUSER", "limiter", "on", ">secret"].into_iter();
        let words: Vec<&str> = user.chain(RIGHTS.split(' ')).collect();
        assert_eq!(cluster.ask(port, &words).trim(), "OK");
    }
    let url = urls[0].replace("redis://", "redis://limiter:secret@");
    RedisStore::cluster_builder(&[&url], KeyNames::Raw).patient().deny_cache(0)
}

#[test]
fn a_counter_is_followed_to_another_master_and_misses_nothing() {
    let cluster = RedisCluster::start();
    let store = connect(with_few_rights(&cluster));
    let policy = Policy::fixed_window("1000/day").unwrap();
    let mut left = 1_000;
    let mut counts_on = || {
        for _ in 0..5 {
            left -= 1;
            assert_eq!(store.check(b"foo", &policy, 1).wait().unwrap().remaining().unwrap(), left);
        }
    };
    counts_on();
    let slot = SlotMove::begin(&cluster);
    // Still where it was.
    counts_on();
    slot.hand_over(&slot.keys()[0]);
    // The old master sends us to the new one, which does not own it yet.
    counts_on();
    slot.end();
    counts_on();
    // Another store learns it from the beginning.
    let other = connect(builder(&cluster));
    assert_eq!(other.check(b"foo", &policy, 0).wait().unwrap().remaining().unwrap(), 980);
}

#[test]
fn a_request_waits_while_its_counters_are_on_their_way() {
    let cluster = RedisCluster::start();
    let store = Arc::new(connect(builder(&cluster)));
    let policies = Arc::new(
        [Policy::fixed_window("10/day"), Policy::fixed_window("10/h")].map(Result::unwrap),
    );
    let check = {
        let (store, policies) = (store.clone(), policies.clone());
        move || {
            let mut entries = policies.each_ref().map(|policy| Entry::new("foo", policy));
            store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
            entries.map(|entry| entry.decision().unwrap().remaining().unwrap())
        }
    };
    assert_eq!(check(), [9, 9]);
    let slot = SlotMove::begin(&cluster);
    let keys = slot.keys();
    assert_eq!(keys.len(), 2);
    slot.hand_over(&keys[0]);
    let is_done = Arc::new(AtomicBool::new(false));
    let waiting = std::thread::spawn({
        let (check, is_done) = (check.clone(), is_done.clone());
        move || {
            let left = check();
            (left, is_done.load(Ordering::SeqCst))
        }
    });
    // Neither master has both; whoever asked must not be answered before one has.
    let tries = |cluster: &RedisCluster| -> u64 {
        let stats = cluster.ask(slot.from.port, &["INFO", "errorstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("errorstat_TRYAGAIN:count="));
        line.map_or(0, |count| count.trim().parse().expect("a count"))
    };
    while tries(&cluster) < 3 {}
    is_done.store(true, Ordering::SeqCst);
    slot.hand_over(&keys[1]);
    slot.end();
    assert_eq!(waiting.join().unwrap(), ([8, 8], true));
    assert_eq!(check(), [7, 7]);
}

/// Each on its own connections: who dies takes no other down. Otherwise all checks would wait while the
/// client learns who has taken over, and miss their deadline.
#[test]
fn keys_of_living_masters_notice_nothing_of_one_that_dies() {
    const DEADLINE: Duration = Duration::from_millis(500);
    let whatever = ["--cluster-require-full-coverage", "no"];
    let mut cluster = RedisCluster::launch(&Launch::default().with(&whatever));
    let store = connect(builder(&cluster).timeout(DEADLINE));
    let policy = Policy::fixed_window("1000000/day").unwrap();
    let dead = cluster.masters().into_iter().find(|master| has(master, SLOT)).unwrap();
    let keys: Vec<String> = (0..200).map(|number| format!("user:{number}")).collect();
    let slot_of = |key: &str| cluster.ask(dead.port, &["CLUSTER", "KEYSLOT", key]);
    let living: Vec<&String> = keys
        .iter()
        .filter(|key| !has(&dead, slot_of(key).trim().parse().expect("a slot")))
        .take(20)
        .collect();
    RUNTIME.block_on(async {
        store.check(b"foo", &policy, 1).await.unwrap();
        cluster.kill_master_of(SLOT);
        let started = Instant::now();
        let (mut rounds, mut failed, mut back) = (0_u64, 0, false);
        // Until it is replaced, and for a while after that.
        let mut rounds_after = 0;
        while rounds_after < 20 {
            rounds += 1;
            for key in &living {
                let decision = store.check(key.as_bytes(), &policy, 1).await;
                let decision = decision.unwrap_or_else(|error| panic!("{key}: {error:?}"));
                assert_eq!(decision.remaining().unwrap(), 1_000_000 - rounds, "{key}");
            }
            let asked = Instant::now();
            match store.check(b"foo", &policy, 1).await {
                Ok(_) => back = true,
                Err(_) => failed += 1,
            }
            assert!(
                asked.elapsed() < DEADLINE + Duration::from_millis(250),
                "{:?}",
                asked.elapsed()
            );
            rounds_after += u64::from(back);
            assert!(started.elapsed() < Duration::from_secs(30), "never came back: {store:?}");
            sleep(Duration::from_millis(5)).await;
        }
        assert!(failed > 0 && rounds > 20, "{failed} of {rounds} failed");
        let health = store.health();
        assert!(health.breaker == BreakerState::Closed && health.opened >= 1, "{health:?}");
    });
}

#[test]
fn a_program_can_start_before_its_cluster_and_is_told_where_there_is_none() {
    let cluster = RedisCluster::start();
    let store = RUNTIME.block_on(async { builder(&cluster).connect_in_background() }).unwrap();
    let policy = Policy::fixed_window("10/day").unwrap();
    RUNTIME.block_on(async {
        let started = Instant::now();
        while store.check(b"foo", &policy, 1).await.is_err() {
            assert!(started.elapsed() < Duration::from_secs(20), "{store:?}");
            sleep(Duration::from_millis(2)).await;
        }
    });
    let alone = RedisProcess::start();
    let builder = RedisStore::cluster_builder(&[&alone.url()], KeyNames::Raw);
    let error = RUNTIME.block_on(builder.connect()).unwrap_err();
    let source = std::error::Error::source(&error).expect("the server said why").to_string();
    assert!(source.contains("cluster support disabled"), "{source}");
    let none = RedisStore::cluster_builder(&[], KeyNames::Raw);
    let error = RUNTIME.block_on(none.connect()).unwrap_err().to_string();
    assert!(error.contains("no address"), "{error}");
}
