//! A cluster of which a part is missing, full or not assigned: one fault, whatever the others answer.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Patient;
use tokio::time::{Instant, sleep};
use tollbar::{Policy, Store};
use tollbar_redis::{
    BreakerState, FaultKind, FleetSecret, KeyNames, RedisStore, RefusalReason, StoreFault,
};
use tollbar_testkit::redis::cluster::{Master, RedisCluster};
use tollbar_testkit::redis::launch::{Launch, Program};

const PATIENCE: Duration = Duration::from_secs(30);

/// A slot, and so the master that the tests take away.
const SLOT: u16 = 12_182;

async fn connect(cluster: &RedisCluster) -> RedisStore {
    let urls = cluster.urls();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let names = KeyNames::Hashed(FleetSecret::new([7; 32]));
    let builder = RedisStore::cluster_builder(&urls, names).patient().deny_cache(0);
    builder.connect().await.expect("the cluster is there")
}

/// No replica takes over, and the others go on with their slots.
fn keep_going(cluster: &RedisCluster) {
    cluster.ask_all(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    cluster.ask_all(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    // A busy machine must not look like a cluster that has fallen apart.
    cluster.ask_all(&["CONFIG", "SET", "cluster-node-timeout", "20000"]);
}

/// Probes, as a daemon does every second, until it is so.
async fn until(
    store: &RedisStore,
    what: &str,
    is_so: impl Fn(&[StoreFault]) -> bool,
) -> Vec<StoreFault> {
    let started = Instant::now();
    loop {
        store.probe().await.ok();
        let faults = store.faults();
        if is_so(&faults) {
            return faults;
        }
        assert!(started.elapsed() < PATIENCE, "never {what}: {faults:?}, {store:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn has(faults: &[StoreFault], kind: FaultKind) -> bool {
    faults.iter().any(|fault| fault.kind == kind)
}

/// Of 60 users, how many are not counted.
async fn uncounted_users(store: &RedisStore) -> usize {
    let policy = Policy::fixed_window("1000000/day").unwrap();
    let mut uncounted = 0;
    for user in 0..60 {
        let answer = store.check(format!("user:{user}").as_bytes(), &policy, 1).await;
        if let Err(error) = answer {
            println!("{user}: {error:?}");
            uncounted += 1;
        }
    }
    uncounted
}

/// With one of three masters gone, 21 of 60 users were not limited, and the cluster was said to be well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_gone_is_a_fault_with_its_slots_until_it_is_back() {
    for program in [Program::Redis, Program::Valkey] {
        let mut cluster = RedisCluster::launch(&Launch::new(program));
        keep_going(&cluster);
        let store = connect(&cluster).await;
        until(&store, "well", <[StoreFault]>::is_empty).await;
        assert_eq!(store.health().breaker, BreakerState::Closed);
        assert_eq!(uncounted_users(&store).await, 0);

        let owner = cluster.master_of(SLOT);
        let port = cluster.kill_master_of(SLOT);
        let faults =
            until(&store, "unreachable", |faults| has(faults, FaultKind::Unreachable)).await;
        let fault = faults.iter().find(|fault| fault.kind == FaultKind::Unreachable).unwrap();
        assert_eq!(fault.nodes, [Arc::from(format!("127.0.0.1:{port}"))]);
        let slots = &owner.slots[0];
        let slots = format!("127.0.0.1:{port} with slots {}-{}", slots.start(), slots.end());
        assert!(fault.detail.contains(&slots), "{fault}");
        let health = store.health();
        assert_eq!(health.breaker, BreakerState::Partial);
        assert!(health.last_error.unwrap().contains(&slots));
        let uncounted = uncounted_users(&store).await;
        assert!((1..60).contains(&uncounted), "{uncounted}");

        cluster.restart(port);
        until(&store, "well again", <[StoreFault]>::is_empty).await;
        assert_eq!(store.health().breaker, BreakerState::Closed);
        assert_eq!(uncounted_users(&store).await, 0);
    }
}

/// Where the cluster demands all of its slots, the others refuse as well, and say why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_demands_full_coverage_refuses_as_a_whole() {
    let mut cluster = RedisCluster::start();
    cluster.ask_all(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    let store = connect(&cluster).await;
    cluster.kill_master_of(SLOT);
    let down = FaultKind::Refused(RefusalReason::ClusterDown);
    let faults =
        until(&store, "down", |faults| has(faults, down) && has(faults, FaultKind::Unreachable))
            .await;
    let fault = faults.iter().find(|fault| fault.kind == down).unwrap();
    assert!(fault.detail.contains("CLUSTERDOWN"), "{fault}");
    assert!(fault.advice.contains("cluster-require-full-coverage no"), "{fault}");
}

/// No check asks for the slot, and no node complains: the map says it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_no_master_serves_is_a_fault() {
    let cluster = RedisCluster::start();
    keep_going(&cluster);
    let store = connect(&cluster).await;
    until(&store, "well", <[StoreFault]>::is_empty).await;
    cluster.ask_all(&["CLUSTER", "DELSLOTS", &SLOT.to_string()]);
    let faults = until(&store, "unserved", |faults| has(faults, FaultKind::Unserved)).await;
    assert!(faults[0].detail.contains(&format!("serves slots {SLOT}")), "{faults:?}");
    assert_eq!(store.health().breaker, BreakerState::Partial);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_master_that_is_full_or_evicts_is_named_and_the_others_are_not() {
    let cluster = RedisCluster::start();
    let store = connect(&cluster).await;
    let Master { port, .. } = cluster.master_of(SLOT);
    println!("{}", cluster.ask(port, &["CONFIG", "SET", "maxmemory", "1"]));
    let full = FaultKind::Refused(RefusalReason::OutOfMemory);
    let faults = until(&store, "full", |faults| has(faults, full)).await;
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].nodes, [Arc::from(format!("127.0.0.1:{port}"))]);
    // The others count on.
    assert_eq!(store.health().breaker, BreakerState::Closed);
    println!("{}", cluster.ask(port, &["CONFIG", "SET", "maxmemory", "100mb"]));
    println!("{}", cluster.ask(port, &["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]));
    let evicts = until(&store, "evicting", |faults| !has(faults, full)).await;
    assert!(evicts.len() == 1 && evicts[0].kind == FaultKind::Evicts, "{evicts:?}");
    assert_eq!(evicts[0].nodes, [Arc::from(format!("127.0.0.1:{port}"))]);
}

/// What dead processes had charged did not come back, and nothing said so: the errors of the task that looks after it
/// were dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_that_does_not_work_is_a_fault_until_it_does() {
    let cluster = RedisCluster::start();
    let store = connect(&cluster).await;
    until(&store, "well", <[StoreFault]>::is_empty).await;
    // Only requests across slots need it.
    cluster.ask_all(&["ACL", "SETUSER", "default", "-zrangebyscore"]);
    let faults = until(&store, "late", |faults| has(faults, FaultKind::Unrecovered)).await;
    let fault = faults.iter().find(|fault| fault.kind == FaultKind::Unrecovered).unwrap();
    assert!(fault.detail.contains("not been looked after for 1"), "{fault}");
    assert!(fault.detail.contains("can't run this command"), "{fault}");
    assert!(!fault.kind.is_outage());
    assert_eq!(uncounted_users(&store).await, 0);
    cluster.ask_all(&["ACL", "SETUSER", "default", "+zrangebyscore"]);
    until(&store, "well again", <[StoreFault]>::is_empty).await;
}
