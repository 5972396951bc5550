//! Requests with an id, and reservations, whose counters are in several slots of a cluster: charged once, given
//! back when their process dies, settled once. On every kind of cluster.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::cluster::{ClusterSubject, NOW, builder, cluster};
use crate::support::authority::Authority;
use crate::support::{Patient, RUNTIME};
use tokio::time::{Instant, sleep};
use tollbar::charge::HeldPermits;
use tollbar::store::{Adjustment, Hold, Once, ReservationId, ReservationRef, Spending};
use tollbar::{Batch, Concurrency, Decision, Entry, Outcome, Policy, Role, Store, StoreError};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, Tls};
use tollbar_testkit::agreement;
use tollbar_testkit::redis::cluster::RedisCluster;
use tollbar_testkit::redis::launch::{Launch, Program};
use tollbar_testkit::subject::Factory;
use tollbar_testkit::{suite, vector};

const TTL: Duration = Duration::from_mins(1);

/// In different slots, all of them.
const KEYS: [&str; 4] = ["user:1", "tenant:7", "ip:203.0.113.9", "all"];

fn once(request_id: &[u8]) -> Once<'_> {
    Once::new(request_id, TTL)
}

fn window() -> Policy {
    Policy::fixed_window("10/day").unwrap()
}

/// One request under the keys; its decisions.
async fn decide(
    store: &RedisStore,
    entries: &mut [Entry<'_>],
    once: Option<Once<'_>>,
    hold: Option<Hold>,
) -> Result<Vec<Decision>, StoreError> {
    let mut batch = Batch::all_or_none(entries);
    if let Some(once) = once {
        batch = batch.once(once);
    }
    if let Some(hold) = hold {
        batch = batch.held(hold);
    }
    store.decide(batch).await?;
    Ok(entries.iter().filter_map(Entry::decision).collect())
}

fn entries(policy: &Policy, cost: u64) -> Vec<Entry<'_>> {
    KEYS.iter().map(|key| Entry::new(*key, policy).with_cost(cost)).collect()
}

async fn left(store: &RedisStore, policy: &Policy) -> Vec<u64> {
    let mut left = Vec::new();
    for key in KEYS {
        left.push(store.check(key.as_bytes(), policy, 0).await.unwrap().remaining().unwrap());
    }
    left
}

fn refund_all<'e>(entries: &[Entry<'e>], spent: u64) -> Vec<Adjustment<'e>> {
    let paid = entries.iter().filter(|entry| entry.is_paid());
    paid.map(|entry| {
        let spending = Spending { reserved: entry.cost(), spent };
        Adjustment::new(entry.key(), entry.policy(), entry.stamp(), spending)
    })
    .collect()
}

/// All that is promised of such requests, in the order of a client's day.
async fn keeps_every_promise(store: &RedisStore) {
    let policy = window();
    // Charged once, and answered alike.
    let mut first = entries(&policy, 3);
    let decisions = decide(store, &mut first, Some(once(b"r1")), None).await.unwrap();
    assert!(decisions.iter().all(|decision| decision.remaining() == Some(7)), "{decisions:?}");
    for _ in 0..3 {
        let mut again = entries(&policy, 3);
        assert_eq!(decide(store, &mut again, Some(once(b"r1")), None).await.unwrap(), decisions);
        let stamps = |entries: &[Entry<'_>]| entries.iter().map(Entry::stamp).collect::<Vec<_>>();
        assert_eq!(stamps(&again), stamps(&first));
    }
    assert_eq!(left(store, &policy).await, [7; 4]);
    // Another request under the same id.
    let reused = decide(store, &mut entries(&policy, 2), Some(once(b"r1")), None).await;
    assert!(matches!(reused, Err(StoreError::RequestIdReused)), "{reused:?}");
    // A denial charges nothing, says what remains, and is decided anew.
    store.check(b"all", &policy, 7).await.unwrap();
    for _ in 0..2 {
        let mut denied = entries(&policy, 1);
        let decisions = decide(store, &mut denied, Some(once(b"r2")), None).await.unwrap();
        let outcomes: Vec<bool> = decisions.iter().map(Decision::is_allowed).collect();
        assert_eq!(outcomes, [true, true, true, false]);
        assert!(decisions[..3].iter().all(|decision| decision.remaining() == Some(7)));
    }
    assert_eq!(left(store, &policy).await, [7, 7, 7, 0]);
    store.reset(b"all", &policy).await.unwrap();
    decide(store, &mut entries(&policy, 1), Some(once(b"r2")), None).await.unwrap();
    assert_eq!(left(store, &policy).await, [6, 6, 6, 9]);
    // A reservation: settled once, in all slots; then its id has to pay again.
    let hold = Hold { id: ReservationId(9), ttl: TTL };
    let reservation = ReservationRef { id: hold.id, request_id: Some(b"r3") };
    let mut reserved = entries(&policy, 4);
    decide(store, &mut reserved, Some(once(b"r3")), Some(hold)).await.unwrap();
    assert_eq!(left(store, &policy).await, [2, 2, 2, 5]);
    let mut adjustments = refund_all(&reserved, 1);
    assert!(store.settle(reservation, &mut adjustments).await.unwrap());
    assert!(adjustments.iter().all(|adjustment| adjustment.adjusted() == 3), "{adjustments:?}");
    assert_eq!(left(store, &policy).await, [5, 5, 5, 8]);
    for spent in [1, 0] {
        let mut again = refund_all(&reserved, spent);
        assert!(!store.settle(reservation, &mut again).await.unwrap());
    }
    assert_eq!(left(store, &policy).await, [5, 5, 5, 8]);
    decide(store, &mut entries(&policy, 4), Some(once(b"r3")), Some(hold)).await.unwrap();
    assert_eq!(left(store, &policy).await, [1, 1, 1, 4]);
    // Without an id.
    let hold = Hold { id: ReservationId(10), ttl: TTL };
    let mut reserved = entries(&policy, 1);
    decide(store, &mut reserved, None, Some(hold)).await.unwrap();
    assert_eq!(left(store, &policy).await, [0, 0, 0, 3]);
    assert!(store.settle(hold.id.into(), &mut refund_all(&reserved, 0)).await.unwrap());
    assert!(!store.settle(hold.id.into(), &mut refund_all(&reserved, 0)).await.unwrap());
    assert_eq!(left(store, &policy).await, [1, 1, 1, 4]);
}

#[test]
fn ids_and_reservations_across_slots_keep_every_promise() {
    let cluster = cluster();
    let store = RUNTIME.block_on(builder(&cluster).connect()).unwrap();
    RUNTIME.block_on(keeps_every_promise(&store));
}

#[test]
fn ids_and_reservations_across_slots_keep_every_promise_on_every_server_and_over_tls() {
    // Without TLS: the programs that pip has of these two were built without it (`Missing implement of connection type
    // tls`, and no directive `tls-port`).
    for program in [Program::OldestRedis, Program::Valkey] {
        let cluster = RedisCluster::launch(&Launch::new(program));
        let store = RUNTIME.block_on(builder(&cluster).connect()).unwrap();
        RUNTIME.block_on(keeps_every_promise(&store));
    }
    let authority = Authority::new();
    let files = authority.files(&authority.identity("127.0.0.1", 2_100), true);
    let cluster = RedisCluster::launch(&Launch::secured(files));
    let client = authority.identity("client", 2_100);
    let tls = Tls::new().ca_file(authority.ca()).unwrap();
    let tls = tls.client_files(&client.certificate, &client.key).unwrap();
    let store = RUNTIME.block_on(builder(&cluster).tls(tls).connect()).unwrap();
    RUNTIME.block_on(keeps_every_promise(&store));
}

#[test]
fn the_rights_of_the_guide_are_enough_across_slots() {
    let cluster = RedisCluster::start();
    let store = RUNTIME.block_on(crate::reshard::with_few_rights(&cluster).connect()).unwrap();
    RUNTIME.block_on(keeps_every_promise(&store));
}

/// Each key in a slot of its own: what one server answers, a cluster does, as long as nobody else asks
/// meanwhile. Without the vectors of settlements, whose ids are of all keys: a cluster remembers an id beside its
/// keys.
#[test]
fn a_cluster_answers_the_vectors_and_tables_across_slots() {
    let subject = ClusterSubject::new(|key| key);
    let factory: &Factory<'_> = &|now| subject.another(now);
    for file in suite::VECTOR_FILES.into_iter().filter(|file| *file != suite::ALTERNATIVES_FILE) {
        for vector in vector::load(file) {
            suite::run_vector(factory, &vector);
        }
    }
    for (name, case) in suite::by_hand::CASES {
        println!("{name}");
        case(factory);
    }
}

#[test]
fn requests_across_slots_agree_with_the_oracle() {
    let subject = ClusterSubject::new(|key| key);
    let factory: &Factory<'_> = &|now| subject.another(now);
    agreement::agrees_on_reservations_of_windows(factory, 96);
}

/// A shadow that denies has paid nothing and is not on the receipt: what is left may be of one slot.
#[test]
fn a_reservation_is_settled_though_only_one_slot_was_charged() {
    let subject = ClusterSubject::new(|key| key);
    let store = &subject.store;
    let policy = window();
    RUNTIME.block_on(async {
        store.check(b"all", &policy, 10).await.unwrap();
        let hold = Hold { id: ReservationId(3), ttl: TTL };
        let mut entries = [
            Entry::new("user:1", &policy).with_cost(4),
            Entry::new("all", &policy).with_role(Role::Shadow),
        ];
        decide(store, &mut entries, None, Some(hold)).await.unwrap();
        let mut adjustments = refund_all(&entries, 1);
        assert_eq!(adjustments.len(), 1);
        assert!(store.settle(hold.id.into(), &mut adjustments).await.unwrap());
        assert_eq!(adjustments[0].adjusted(), 3);
        assert!(!store.settle(hold.id.into(), &mut adjustments).await.unwrap());
        let user = store.check(b"user:1", &policy, 0).await.unwrap();
        assert_eq!(user.remaining(), Some(9));
    });
}

/// A concurrency limit of 2 admitted 100 of 100: each released its permit, and came back with the same id.
#[test]
fn a_lease_that_came_back_is_taken_again_by_the_same_id() {
    let subject = ClusterSubject::new(|key| key);
    let store = &subject.store;
    let lease = Duration::from_secs(30);
    let permits = Concurrency::new(2).unwrap().with_lease(lease).unwrap().into_policy();
    let policy = window();
    let acquire = async || {
        let mut entries = [Entry::new("all", &permits), Entry::new("user:1", &policy)];
        decide(store, &mut entries, Some(once(b"r1")), None).await.unwrap();
        let allowed = entries.iter().all(Entry::is_paid);
        let held = HeldPermits::from_entry(&entries[0]);
        (allowed, held.map(|held| held.with_request_id(Some(b"r1"))))
    };
    RUNTIME.block_on(async {
        let in_flight =
            async || 2 - store.check(b"all", &permits, 0).await.unwrap().remaining().unwrap();
        let (_, held) = acquire().await;
        acquire().await;
        assert_eq!(in_flight().await, 1, "the same request holds one");
        assert_eq!(held.unwrap().release(store).await.unwrap(), 1);
        assert_eq!(in_flight().await, 0);
        assert!(acquire().await.0);
        assert_eq!(in_flight().await, 1, "sent again, it takes another");
        subject.clock.set(NOW.after(lease));
        assert_eq!(in_flight().await, 0, "the lease has ended");
        assert!(acquire().await.0);
        assert_eq!(in_flight().await, 1, "and so has the id");
    });
}

/// By default a store waits for 25 ms; here the machine may be slow.
const TIMEOUT: Duration = Duration::from_millis(500);

/// What `store/recovery.rs` promises: the deadline and a second, a second until the next look, and two calls.
const RECOVERY_MAX: Duration = Duration::from_secs(4);

/// Waits until `is_so`, for no longer than recovery may take.
async fn until_recovered(mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        let waited = started.elapsed();
        assert!(waited < RECOVERY_MAX + 2 * TIMEOUT, "not given back after {waited:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A process that dies between any two calls, as a future that is dropped after so many polls.
#[test]
fn what_a_dead_process_has_charged_comes_back_at_whatever_point_it_died() {
    let cluster = cluster();
    let connect = || RUNTIME.block_on(builder(&cluster).timeout(TIMEOUT).connect()).unwrap();
    // Of the same namespace, which a dead process has not.
    let fleet = connect();
    let hold = Hold { id: ReservationId(1), ttl: TTL };
    let mut points = 0;
    for with_hold in [false, true] {
        let hold = with_hold.then_some(hold);
        for polls in 1.. {
            let namespace = format!("dies-{with_hold}-{polls}");
            let (dying, living) =
                (fleet.with_namespace(&namespace), fleet.with_namespace(&namespace));
            let policy = window();
            let is_over = RUNTIME.block_on(async {
                let mut entries = entries(&policy, 4);
                let mut decided = Box::pin(decide(&dying, &mut entries, Some(once(b"r")), hold));
                let mut polled = 0;
                poll_fn(|context| {
                    polled += 1;
                    match decided.as_mut().poll(context) {
                        Poll::Ready(_) => Poll::Ready(true),
                        Poll::Pending if polled == polls => Poll::Ready(false),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await
            });
            drop(dying);
            RUNTIME.block_on(async {
                // All of it or nothing, and the same in all slots.
                let mut seen = Vec::new();
                until_recovered(async || {
                    seen = left(&living, &policy).await;
                    let is_committed = seen == [6; 4];
                    seen == [10; 4] || is_committed
                })
                .await;
                assert!(!is_over || seen == [6; 4], "it passed: {seen:?}");
                // Sent again, it pays what it has not paid yet. Until the first attempt is over it is denied.
                until_recovered(async || {
                    let mut again = entries(&policy, 4);
                    let decisions = decide(&living, &mut again, Some(once(b"r")), hold).await;
                    let decisions = decisions.unwrap();
                    let is_busy = decisions.iter().any(|each| each.outcome() == Outcome::Busy);
                    assert!(is_busy || decisions.iter().all(Decision::is_allowed), "{decisions:?}");
                    !is_busy
                })
                .await;
                assert_eq!(left(&living, &policy).await, [6; 4], "after {polls} polls");
            });
            points += 1;
            if is_over {
                break;
            }
        }
    }
    println!("died at {points} points");
    assert!(points >= 6, "only {points} points");
}

/// A process that stands still for so long that others have ended its request, and then goes on: what it sends then
/// must neither charge nor pass.
#[test]
fn a_process_that_goes_on_too_late_neither_charges_nor_passes() {
    const POINTS: usize = 12;
    let cluster = cluster();
    let fleet = RUNTIME.block_on(builder(&cluster).timeout(TIMEOUT).connect()).unwrap();
    let policy = window();
    let at_point = async |polls: usize| {
        let namespace = format!("sleeps-{polls}");
        let (slow, living) = (fleet.with_namespace(&namespace), fleet.with_namespace(&namespace));
        let mut entries = entries(&policy, 4);
        let mut decided = Box::pin(decide(&slow, &mut entries, Some(once(b"r")), None));
        let mut polled = 0;
        let early = poll_fn(|context| {
            polled += 1;
            match decided.as_mut().poll(context) {
                Poll::Ready(decided) => Poll::Ready(Some(decided)),
                Poll::Pending if polled == polls => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        sleep(RECOVERY_MAX).await;
        let is_early = early.is_some();
        let decided = match early {
            Some(decided) => decided,
            None => decided.await,
        };
        let passed = decided.is_ok_and(|decisions| decisions.iter().all(Decision::is_allowed));
        // What was sent late arrives.
        sleep(TIMEOUT).await;
        let charged = left(&living, &policy).await;
        assert!(charged == [10; 4] || charged == [6; 4], "at {polls}: {charged:?}");
        assert!(!passed || charged == [6; 4], "at {polls}: it passed for nothing");
        // If even its intent was sent late, for want of a script that had to be loaded first, the request is
        // denied as busy until that is recovered.
        until_recovered(async || {
            let mut entries = self::entries(&policy, 4);
            let again = decide(&living, &mut entries, Some(once(b"r")), None).await;
            again.unwrap().iter().all(Decision::is_allowed)
        })
        .await;
        assert_eq!(
            left(&living, &policy).await,
            [6; 4],
            "at {polls}: sent again, it has paid once"
        );
        is_early
    };
    let points = (1..=POINTS).map(at_point);
    let early = RUNTIME.block_on(futures_util::future::join_all(points));
    assert!(!early[0] && early.iter().filter(|is_early| !**is_early).count() >= 3, "{early:?}");
}

/// A settlement that a dead process has begun is finished by others, once.
#[test]
fn a_settlement_that_was_begun_is_finished_by_others() {
    let cluster = cluster();
    let fleet = RUNTIME.block_on(builder(&cluster).timeout(TIMEOUT).connect()).unwrap();
    let policy = window();
    for polls in 1.. {
        let namespace = format!("settles-{polls}");
        let (dying, living) = (fleet.with_namespace(&namespace), fleet.with_namespace(&namespace));
        let hold = Hold { id: ReservationId(1), ttl: TTL };
        let (is_over, reserved) = RUNTIME.block_on(async {
            let mut reserved = entries(&policy, 4);
            decide(&dying, &mut reserved, None, Some(hold)).await.unwrap();
            let mut adjustments = refund_all(&reserved, 1);
            let mut settled =
                Box::pin(async { dying.settle(hold.id.into(), &mut adjustments).await.unwrap() });
            let mut polled = 0;
            let is_over = poll_fn(|context| {
                polled += 1;
                match settled.as_mut().poll(context) {
                    Poll::Ready(is_settled) => {
                        assert!(is_settled);
                        Poll::Ready(true)
                    }
                    Poll::Pending if polled == polls => Poll::Ready(false),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await;
            drop(settled);
            (is_over, reserved)
        });
        drop(dying);
        RUNTIME.block_on(async {
            // Once it is begun another cannot take its place: the first call may not have come through.
            let mut other = refund_all(&reserved, 4);
            let mut expected = vec![9; 4];
            until_recovered(async || {
                let left = left(&living, &policy).await;
                if left == [6; 4] && living.settle(hold.id.into(), &mut other).await.unwrap() {
                    expected = vec![6; 4];
                }
                left == expected
            })
            .await;
            assert!(!living.settle(hold.id.into(), &mut refund_all(&reserved, 0)).await.unwrap());
            assert_eq!(left(&living, &policy).await, expected);
        });
        if is_over {
            break;
        }
    }
}

/// A client that is over one limit must not pass because the server of another limit is down.
#[test]
fn a_denial_stands_while_another_slot_cannot_be_asked() {
    let whatever = ["--cluster-require-full-coverage", "no"];
    let mut cluster = RedisCluster::launch(&Launch::default().with(&whatever));
    let builder = builder(&cluster).timeout(TIMEOUT).deny_cache(0);
    let store = RUNTIME.block_on(builder.connect()).unwrap();
    let policy = Policy::fixed_window("1/day").unwrap();
    let names: Vec<String> = (0..200).map(|number| format!("user:{number}")).collect();
    RUNTIME.block_on(async {
        for name in &names {
            assert!(store.check(name.as_bytes(), &policy, 1).await.unwrap().is_allowed());
        }
        cluster.kill_master_of(0);
        // Of the masters that are left, all deny.
        let (mut dead, mut living) = (None, None);
        for name in &names {
            match store.check(name.as_bytes(), &policy, 1).await {
                Ok(decision) if !decision.is_allowed() => living = Some(name),
                Ok(decision) => panic!("{decision:?}"),
                Err(_) => dead = Some(name),
            }
            if let (Some(dead), Some(living)) = (dead, living) {
                // Of the coordinators, some are on the dead one.
                let ids: Vec<String> = (0..64).map(|number| number.to_string()).collect();
                let with_id = ids.iter().map(|id| Some(id.as_bytes()));
                let mut denied = 0;
                for request_id in [None].into_iter().chain(with_id) {
                    let mut entries = [Entry::new(dead, &policy), Entry::new(living, &policy)];
                    let decided = decide(&store, &mut entries, request_id.map(once), None).await;
                    let is_denied = entries[1].decision().is_some_and(|each| !each.is_allowed());
                    assert_eq!(decided.is_ok(), is_denied, "{request_id:?}: {decided:?}");
                    assert!(is_denied || request_id.is_some(), "{decided:?}");
                    denied += u64::from(is_denied);
                }
                assert!(denied > 1, "no request with an id was denied");
                return;
            }
        }
        panic!("no key of the dead master, or none of a living one: {dead:?} {living:?}");
    });
}

#[test]
fn too_many_entries_are_refused_before_anything_is_charged() {
    let subject = ClusterSubject::new(|key| key);
    let policy = window();
    let keys: Vec<String> = (0..129).map(|number| number.to_string()).collect();
    let mut entries: Vec<Entry<'_>> = keys.iter().map(|key| Entry::new(key, &policy)).collect();
    let refused = RUNTIME.block_on(decide(&subject.store, &mut entries, Some(once(b"r")), None));
    let is_refused =
        matches!(refused, Err(StoreError::BatchTooLarge { entries: 129, entries_max: 128 }));
    assert!(is_refused, "{refused:?}");
}

/// Eight tasks in two stores send the same ids at the same time, as clients do that hear nothing: each id is charged
/// once in each slot, and every task is let through in the end.
#[test]
fn an_id_that_many_send_at_once_is_charged_once() {
    const IDS: u64 = 40;
    let cluster = cluster();
    let store = RUNTIME.block_on(builder(&cluster).connect()).unwrap();
    let name = crate::support::unique();
    let stores = [store.with_namespace(&name), store.with_namespace(&name)].map(Arc::new);
    RUNTIME.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let store = stores[task % 2].clone();
            tasks.spawn(async move {
                let policy = Policy::fixed_window("1000/day").unwrap();
                for number in 0..IDS {
                    let request_id = number.to_le_bytes();
                    let mut entries = entries(&policy, 1);
                    let decided = decide(&store, &mut entries, Some(once(&request_id)), None).await;
                    let decisions = decided.unwrap();
                    assert!(decisions.iter().all(Decision::is_allowed), "{decisions:?}");
                }
            });
        }
        tasks.join_all().await;
        let policy = Policy::fixed_window("1000/day").unwrap();
        assert_eq!(left(&stores[0], &policy).await, [1_000 - IDS; 4]);
    });
}

/// Names in Redis, so that an upgrade finds what is under way.
#[test]
fn nothing_is_left_under_way_when_all_is_done() {
    let cluster = RedisCluster::start();
    let urls = cluster.urls();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let names = KeyNames::Hashed(FleetSecret::new([7; 32]));
    let store = RedisStore::cluster_builder(&urls, names).patient();
    let store = RUNTIME.block_on(store.connect()).unwrap();
    RUNTIME.block_on(keeps_every_promise(&store));
    for master in cluster.masters() {
        let keys = cluster.ask(master.port, &["KEYS", "*"]);
        let under_way = |key: &&str| key.ends_with("intents") || key.ends_with("deadlines");
        assert_eq!(keys.lines().find(under_way), None);
        for key in keys.lines().filter(|key| !key.is_empty()) {
            let ttl: i64 = cluster.ask(master.port, &["PTTL", key]).trim().parse().unwrap();
            assert!(ttl > 0, "{key} is kept for ever");
        }
    }
}
