//! The same store in a cluster: the whole suite, requests across slots, and a master that dies.

use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use crate::support::{Patient, RUNTIME};
use tokio::time::{Instant, sleep};
use tollbar::store::{self, Alternative};
use tollbar::{
    Batch, Decision, Entry, LoanMode, LoanRequest, LoanTerms, ManualClock, Outcome, Policy, Role,
    Store, StoreError, Timestamp,
};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, RedisStoreBuilder};
use tollbar_testkit::redis::cluster::RedisCluster;
use tollbar_testkit::redis::launch::{Launch, Program};
use tollbar_testkit::subject::{Factory, Subject};
use tollbar_testkit::{suite, vector};

/// The tests share a cluster; who is the last to need it ends it.
pub(crate) fn cluster() -> Arc<RedisCluster> {
    static CLUSTER: LazyLock<Mutex<Weak<RedisCluster>>> = LazyLock::new(Mutex::default);
    let mut cluster = CLUSTER.lock().expect("no test panics here");
    cluster.upgrade().unwrap_or_else(|| {
        let new = Arc::new(RedisCluster::start());
        *cluster = Arc::downgrade(&new);
        new
    })
}

pub(crate) fn builder(cluster: &RedisCluster) -> RedisStoreBuilder {
    let urls = cluster.urls();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    RedisStore::cluster_builder(&urls, KeyNames::Hashed(FleetSecret::new([7; 32])))
        .namespace(&crate::support::unique())
        .patient()
        .connect_timeout(crate::support::DEADLINE)
}

/// A store in a namespace of its own, over the connection of others.
pub(crate) struct ClusterSubject {
    pub(crate) store: RedisStore,
    pub(crate) clock: ManualClock,
    cluster: Arc<RedisCluster>,
}

impl Subject for ClusterSubject {
    fn name(&self) -> &'static str {
        "redis cluster"
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_now(&self, now: Timestamp) {
        self.clock.set(now);
    }
}

impl ClusterSubject {
    /// Keys of which `part` is the same are in one slot.
    pub(crate) fn new(part: fn(&[u8]) -> &[u8]) -> Self {
        Self::on(cluster(), part)
    }

    pub(crate) fn on(cluster: Arc<RedisCluster>, part: fn(&[u8]) -> &[u8]) -> Self {
        let clock = ManualClock::at(NOW);
        let grace = Duration::from_hours(1);
        let builder = builder(&cluster).test_clock(clock.clone(), grace).colocate_by(part);
        let store = RUNTIME.block_on(builder.connect()).expect("the cluster is there");
        Self { store, clock, cluster }
    }

    /// An empty one on the same clock, which only one of them may use at a time.
    pub(crate) fn another(&self, now: Timestamp) -> Box<dyn Subject> {
        self.clock.set(now);
        let store = self.store.with_namespace(&crate::support::unique());
        Box::new(Self { store, clock: self.clock.clone(), cluster: self.cluster.clone() })
    }
}

/// One slot for all keys: whatever is promised of one server holds for it.
#[test]
fn a_cluster_passes_the_whole_suite_in_one_slot() {
    let subject = ClusterSubject::new(|_| b"together");
    let factory: &Factory<'_> = &|now| subject.another(now);
    suite::run_all(factory);
}

#[test]
fn a_cluster_of_valkeys_passes_the_whole_suite_in_one_slot() {
    let cluster = Arc::new(RedisCluster::launch(&Launch::new(Program::Valkey)));
    let subject = ClusterSubject::on(cluster, |_| b"together");
    let factory: &Factory<'_> = &|now| subject.another(now);
    suite::run_all(factory);
}

/// Each key in a slot of its own: single checks and batches give the same answers, as long as nobody
/// else asks meanwhile. What is given back to a bucket or a window leaves them as they were.
#[test]
fn a_cluster_answers_the_vectors_of_batches_across_slots() {
    let subject = ClusterSubject::new(|key| key);
    let factory: &Factory<'_> = &|now| subject.another(now);
    for vector in vector::load("batches") {
        suite::run_vector(factory, &vector);
    }
    for (name, case) in suite::behaviours_of_scattered_keys() {
        println!("{name}");
        case(factory);
    }
}

/// No script sees two slots, so none could choose the alternative that pays there.
#[test]
fn alternatives_in_several_slots_are_a_mistake_that_charges_nothing() {
    let subject = ClusterSubject::new(|key| key);
    let policy = Policy::fixed_window("4/min").unwrap();
    let entry =
        |key, order| Entry::new(key, &policy).with_alternative(Alternative { group: 0, order });
    let mut entries = [entry("own", 0), entry("pool", 1)];
    let answer = subject.store.decide(Batch::all_or_none(&mut entries)).wait();
    assert!(matches!(answer, Err(StoreError::CrossSlot { .. })), "{answer:?}");
    for key in [b"own".as_slice(), b"pool"] {
        let left = subject.store.check(key, &policy, 0).wait().unwrap();
        assert_eq!(left.remaining(), Some(4));
    }
}

/// A group in one slot beside a limit in another: the group is charged by its script, and given back whole if the other
/// limit denies.
#[test]
fn a_group_in_one_slot_and_a_limit_in_another_are_charged_together() {
    let subject = ClusterSubject::new(|key| if key.starts_with(b"a:") { b"a" } else { key });
    let policy = Policy::fixed_window("4/min").unwrap();
    let entry = |key: &'static str, order| {
        let entry = Entry::new(key, &policy).with_cost(3);
        entry.with_alternative(Alternative { group: 0, order })
    };
    let left = |key: &str| subject.store.check(key.as_bytes(), &policy, 0).wait().unwrap();
    // The first pays from its share. The second finds it spent, and would pay from the pool, but the other limit has too
    // little left.
    for (root_cost, is_allowed) in [(1, true), (4, false), (3, true)] {
        let mut entries = [
            entry("a:own", 0),
            entry("a:pool", 1),
            Entry::new("root", &policy).with_cost(root_cost),
        ];
        subject.store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
        assert_eq!(store::is_allowed(&entries), is_allowed);
        let remaining = ["a:own", "a:pool", "root"].map(|key| left(key).remaining().unwrap());
        let expected = match root_cost {
            3 => [1, 1, 0],
            _ => [1, 4, 3],
        };
        assert_eq!(remaining, expected);
    }
}

/// A loan is one key, so it works in every slot.
#[test]
fn a_cluster_lends_in_every_slot() {
    let subject = ClusterSubject::new(|key| key);
    let policy = Policy::token_bucket("5/10s").unwrap();
    let terms = LoanTerms::new(&policy, LoanMode::Conservative { share_ppm: 200_000 }).unwrap();
    for number in 0..50 {
        let key = format!("user:{number}");
        let request = LoanRequest { tokens: 9, ..terms.request(1) };
        let loan = subject.store.lend(key.as_bytes(), &policy, request).wait().unwrap();
        assert_eq!((loan.tokens, loan.life), (4, Duration::from_secs(2)));
        let decision = subject.store.check(key.as_bytes(), &policy, 1).wait().unwrap();
        assert_eq!(decision.outcome(), Outcome::Deny { retry_after_us: 2_000_000 });
    }
}

pub(crate) const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

#[test]
fn a_request_across_slots_that_is_denied_leaves_nothing_charged() {
    let subject = ClusterSubject::new(|key| key);
    let policies = [
        Policy::token_bucket("10/min").unwrap(),
        Policy::fixed_window("10/min").unwrap(),
        Policy::sliding_window("10/min").unwrap(),
        Policy::sliding_window_strict("10/min", 5).unwrap(),
        Policy::sliding_window_log("10/min").unwrap(),
    ];
    let keys: Vec<String> = (0..10).map(|number| format!("user:{number}")).collect();
    for policy in &policies {
        subject.store.check(b"user:9", policy, 10).wait().unwrap();
        let mut entries: Vec<Entry<'_>> =
            keys.iter().map(|key| Entry::new(key, policy).with_cost(3)).collect();
        entries[0] = entries[0].clone().with_role(Role::Shadow);
        subject.store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
        for entry in &entries[..9] {
            let decision = entry.decision().unwrap();
            assert_eq!((decision.outcome(), decision.remaining().unwrap()), (Outcome::Allow, 10));
        }
        assert!(!entries[9].decision().unwrap().is_allowed());
        for key in &keys[..9] {
            let peek = subject.store.check(key.as_bytes(), policy, 0).wait().unwrap();
            assert_eq!(peek.remaining().unwrap(), 10, "{key} under {policy:?}");
        }
    }
}

/// A question that is sent to another is redirected, and costs a second journey.
#[test]
fn every_slot_is_asked_of_the_master_that_serves_it() {
    let subject = ClusterSubject::new(|key| key);
    let policy = Policy::token_bucket("10/min").unwrap();
    for number in 0..100 {
        subject.store.check(format!("user:{number}").as_bytes(), &policy, 1).wait().unwrap();
    }
    for master in subject.cluster.masters() {
        let errors = subject.cluster.ask(master.port, &["INFO", "errorstats"]);
        assert!(!errors.contains("errorstat_MOVED"), "{errors}");
    }
}

/// Whatever the order in which parts are charged and given back, no key gets more than its limit.
#[test]
fn requests_across_slots_never_pass_more_than_may() {
    let cluster = cluster();
    let store = RUNTIME.block_on(builder(&cluster).deny_cache(0).connect()).unwrap();
    let store = Arc::new(store);
    let admitted = RUNTIME.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8_usize {
            let store = store.clone();
            tasks.spawn(async move {
                let policy = Policy::fixed_window("100/day").unwrap();
                let keys = ["a", "b", "c", "d"];
                let mut admitted = [0; 4];
                for round in 0..100 {
                    // Each pair of keys is asked for by somebody.
                    let (one, two) = (task % 4, (task + 1 + round % 3) % 4);
                    let mut entries =
                        [Entry::new(keys[one], &policy), Entry::new(keys[two], &policy)];
                    store.decide(Batch::all_or_none(&mut entries)).await.unwrap();
                    if entries.iter().all(|entry| entry.decision().unwrap().is_allowed()) {
                        admitted[one] += 1;
                        admitted[two] += 1;
                    }
                }
                admitted
            });
        }
        let admitted = tasks.join_all().await;
        [0, 1, 2, 3].map(|key| admitted.iter().map(|of_task| of_task[key]).sum::<u64>())
    });
    let policy = Policy::fixed_window("100/day").unwrap();
    for (key, admitted) in ["a", "b", "c", "d"].iter().zip(admitted) {
        let left = store.check(key.as_bytes(), &policy, 0).wait().unwrap().remaining().unwrap();
        assert_eq!(admitted + left, 100, "what was not admitted was given back");
    }
    assert!(admitted.iter().sum::<u64>() >= 200, "{admitted:?}");
}

const FAILOVER_DEADLINE: Duration = Duration::from_millis(100);

/// Asks until there is an answer, and says how often there was none; each time within its deadline.
async fn until_answered(store: &RedisStore, key: &[u8], policy: &Policy) -> (Decision, u32) {
    let started = Instant::now();
    let mut failed = 0;
    loop {
        let asked = Instant::now();
        let answer = store.check(key, policy, 1).await;
        let took = asked.elapsed();
        assert!(took < FAILOVER_DEADLINE + Duration::from_millis(250), "{took:?}");
        match answer {
            Ok(decision) => return (decision, failed),
            Err(_) => failed += 1,
        }
        assert!(started.elapsed() < Duration::from_secs(30), "never came back");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A replica takes over, and knows what it has been told: a moment's charges may be lost with the master.
#[test]
fn a_master_that_dies_is_replaced_and_nothing_waits_longer_than_its_deadline() {
    let mut cluster = RedisCluster::start();
    let urls = cluster.urls();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let builder =
        RedisStore::cluster_builder(&urls, KeyNames::Raw).timeout(FAILOVER_DEADLINE).deny_cache(0);
    let store =
        RUNTIME.block_on(builder.connect_timeout(Duration::from_secs(5)).connect()).unwrap();
    let policy = Policy::fixed_window("1000000/day").unwrap();
    RUNTIME.block_on(async {
        for _ in 0..20 {
            store.check(b"foo", &policy, 1).await.unwrap();
        }
        // The slot of `foo`.
        cluster.kill_master_of(12_182);
        let (decision, failed) = until_answered(&store, b"foo", &policy).await;
        assert!(failed > 0, "the master was not in use");
        let charged = 1_000_000 - decision.remaining().unwrap();
        assert!((1..=21).contains(&charged), "{charged}");
        // All slots come back: a cluster that does not serve all of them serves none.
        for key in 0..50_u8 {
            until_answered(&store, &[key], &policy).await;
        }
    });
}
