//! Permits in flight: never more than the limit, none lost, none returned twice.

mod elsewhere;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{
    Charges, Clock, Concurrency, ConcurrencyLimiter, DenyReason, ManualClock, MemoryStore, Permit,
    Policy, Store, Timestamp,
};
use tollbar_testkit::strategy::cases;

use super::limiter_over;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn rate() -> Policy {
    Policy::token_bucket("10/min").unwrap().with_name("rate")
}

fn permits(limit: u64) -> Concurrency {
    Concurrency::new(limit).unwrap().with_name("permits")
}

fn store(max_keys: usize) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::builder().max_keys(max_keys).clock(ManualClock::at(START)).build())
}

fn limiter(store: &Arc<MemoryStore>, permits: Concurrency) -> ConcurrencyLimiter {
    ConcurrencyLimiter::builder(permits).store(Arc::clone(store)).build().unwrap()
}

/// What somebody does to one of three keys.
#[derive(Debug, Clone, Copy)]
enum Act {
    Acquire {
        key: usize,
        cost: u64,
        limit: usize,
    },
    /// Of what is held, taken modulo.
    Drop(usize),
}

const KEYS: [&str; 3] = ["a", "b", "c"];

fn act() -> impl Strategy<Value = Act> {
    let acquire = (0_usize..3, 0_u64..6, 0_usize..3).prop_map(|(key, cost, limit)| Act::Acquire {
        key,
        cost,
        limit,
    });
    prop_oneof![3 => acquire, 2 => any::<usize>().prop_map(Act::Drop)]
}

proptest! {
    #![proptest_config(cases(256))]

    /// The limit changes all the time: three limiters with three limits count together.
    #[test]
    fn as_many_are_in_flight_as_are_held_and_never_more_than_the_limit(
        limits in [1_u64..9, 1_u64..9, 1_u64..9],
        acts in vec(act(), 1..80),
    ) {
        let store = store(100);
        let limiters = limits.map(|limit| limiter(&store, permits(limit)));
        let mut held: Vec<(usize, Permit<'_>)> = Vec::new();
        let of_key = |held: &[(usize, Permit<'_>)], key: usize| -> u64 {
            held.iter().filter(|(of, _)| *of == key).map(|(_, permit)| permit.count()).sum()
        };
        for act in acts {
            match act {
                Act::Acquire { key, cost, limit: at } => {
                    let (limit, out) = (limits[at], of_key(&held, key));
                    let remaining = limit.saturating_sub(out);
                    match limiters[at].try_acquire_n(KEYS[key], cost) {
                        Ok(permit) => {
                            prop_assert!(cost == 0 || out + cost <= limit, "{out} + {cost}");
                            prop_assert_eq!(permit.count(), cost);
                            held.push((key, permit));
                        }
                        Err(denied) => {
                            let is_never = cost > limit;
                            let reason =
                                if is_never { DenyReason::ExceedsCapacity } else { DenyReason::Busy };
                            prop_assert!(cost > remaining, "{out} + {cost}");
                            prop_assert_eq!((denied.reason(), denied.retry_after()), (reason, None));
                            let decision = denied.decision();
                            prop_assert_eq!((decision.limit(), decision.remaining()), (limit, Some(remaining)));
                            prop_assert_eq!(decision.reset_at(), Some(START));
                        }
                    }
                }
                Act::Drop(at) if !held.is_empty() => {
                    drop(held.swap_remove(at % held.len()));
                }
                Act::Drop(_) => {}
            }
            for (key, name) in KEYS.iter().enumerate() {
                for (limit, limiter) in limits.iter().zip(&limiters) {
                    let left = limit.saturating_sub(of_key(&held, key));
                    prop_assert_eq!(limiter.peek(name).remaining().unwrap(), left);
                }
            }
        }
        held.clear();
        prop_assert_eq!(store.stats().live_keys, 0, "a counter is not fresh");
        prop_assert_eq!(store.stats().forced_evictions, 0);
    }
}

#[test]
fn a_rate_is_paid_and_only_the_permits_come_back() {
    let (rate, in_flight) = (rate(), permits(4));
    let store = store(10);
    let limiter = limiter_over(&store, rate.clone());
    let left = |policy: &Policy| store.check_now(b"key", policy, 0).remaining().unwrap();
    let both = || (left(&rate), left(in_flight.as_policy()));
    let admit =
        || limiter.admit(Charges::new().permit("key", &in_flight, 2).charge("key", &rate, 3));
    let first = admit().unwrap();
    let second = admit().unwrap();
    assert_eq!((first.permit_count(), both()), (2, (4, 0)));
    // Refused by the permits, and the rate has not paid.
    let error = admit().unwrap_err();
    assert_eq!(error.to_string(), "all permits are in use");
    assert_eq!(error.decisions().unwrap().binding(), Some(0));
    assert_eq!(both(), (4, 0));
    drop(first);
    assert_eq!(both(), (4, 2));
    drop(admit().unwrap());
    // Refused by the rate: nothing is in flight for it, and nothing of the others comes back.
    let denied = admit().unwrap_err().decisions().unwrap().denied().unwrap();
    assert_eq!(denied.reason(), DenyReason::RateLimited);
    assert_eq!(both(), (1, 2));
    drop(second);
    assert_eq!(both(), (1, 4));
}

#[test]
fn several_counters_come_back_together_and_shadows_with_them() {
    let store = store(10);
    let limiter = limiter_over(&store, rate());
    let few = Concurrency::new(1).unwrap().with_name("few");
    let tenant = Concurrency::new(9).unwrap().with_name("tenant");
    let admit = || {
        let charges = Charges::new().shadow("key", few.as_policy(), 1).permit("key", &tenant, 2);
        let charges = charges.permit("other", &tenant, 3).permit("peeked", &tenant, 0);
        let grant = limiter.admit(charges).unwrap();
        let shadow = grant.decisions().each()[0].is_allowed();
        (grant, shadow)
    };
    let left = |key: &str, permits: &Concurrency| {
        store.check_now(key.as_bytes(), permits.as_policy(), 0).remaining().unwrap()
    };
    let (first, shadow) = admit();
    assert_eq!((first.permit_count(), shadow), (6, true));
    // The shadow would have refused this one, and is not charged for it.
    let (second, shadow) = admit();
    assert_eq!((second.permit_count(), shadow), (5, false));
    assert_eq!((left("key", &few), left("key", &tenant), left("other", &tenant)), (0, 5, 3));
    drop(second);
    assert_eq!((left("key", &few), left("key", &tenant), left("other", &tenant)), (0, 7, 6));
    drop(first);
    assert_eq!(store.stats().live_keys, 0);
}

#[test]
fn a_permit_of_nothing_gives_nothing_back() {
    let store = store(10);
    let in_flight = limiter(&store, permits(1));
    let permit = in_flight.try_acquire("key").unwrap();
    let peeked = in_flight.try_acquire_n("key", 0).unwrap();
    assert_eq!(peeked.count(), 0);
    drop(peeked);
    assert_eq!(in_flight.peek("key").remaining(), Some(0));
    drop(permit);
}

/// A second request with the same id is answered from memory and takes nothing, so it would return
/// the permits of the first.
#[test]
fn a_request_with_an_id_has_leased_permits_or_none() {
    let store = store(10);
    let limiter = limiter_over(&store, rate());
    let unleased = permits(4);
    let error =
        limiter.admit(Charges::new().permit("key", &unleased, 1).request_id("id")).unwrap_err();
    assert!(error.to_string().contains("`Concurrency::with_lease`"), "{error}");
    let leased = permits(4).with_lease(Duration::from_secs(30)).unwrap();
    let admit =
        || limiter.admit(Charges::new().permit("key", &leased, 1).request_id("id")).unwrap();
    let (first, second) = (admit(), admit());
    let left = || store.check_now(b"key", leased.as_policy(), 0).remaining().unwrap();
    assert_eq!(left(), 3);
    drop((first, second));
    assert_eq!(left(), 4, "they are returned once");
}

#[test]
fn a_permit_goes_along_with_a_thread_and_outlives_its_limiter() {
    fn is_send<T: Send>(_: &T) {}
    let store = store(10);
    let limiter = limiter(&store, permits(1));
    let permit: Permit<'static> = limiter.try_acquire("key").unwrap().into_owned();
    is_send(&permit);
    is_send(&limiter.try_acquire("other"));
    assert_eq!(permit.count(), 1);
    assert!(limiter.try_acquire("key").is_err());
    drop(limiter);
    thread::spawn(move || drop(permit)).join().unwrap();
    assert_eq!(store.stats().live_keys, 0);
}

#[test]
fn a_permit_that_was_reset_away_does_not_come_back() {
    let store = store(10);
    let limiter = limiter(&store, permits(2));
    let permit = limiter.try_acquire_n("key", 2).unwrap();
    limiter.reset("key");
    assert_eq!(limiter.peek("key").remaining().unwrap(), 2);
    drop(permit);
    assert_eq!(limiter.peek("key").remaining().unwrap(), 2);
}

#[test]
fn permits_end_with_the_process_and_rates_do_not() {
    let store = store(1_000);
    let (in_flight, rate) = (limiter(&store, permits(1)), Policy::fixed_window("5/month").unwrap());
    let _permit = in_flight.try_acquire("key").unwrap();
    store.check(b"key", &rate, 2).wait().unwrap();
    let mut bytes = Vec::new();
    assert_eq!(store.write_snapshot(&mut bytes).unwrap().counters, 1);
    let builder = MemoryStore::builder().max_keys(1_000).clock(ManualClock::at(START));
    let restored = builder.restore(&mut bytes.as_slice()).unwrap();
    assert_eq!(restored.check_now(b"key", permits(1).as_policy(), 0).remaining().unwrap(), 1);
    assert_eq!(restored.check_now(b"key", &rate, 0).remaining().unwrap(), 3);
}

#[test]
fn a_full_store_forgets_rates_before_permits() {
    let store = store(4);
    let in_flight = limiter(&store, permits(9));
    let rate = Policy::token_bucket("1/10year").unwrap();
    let check_rates = || {
        for key in 0..1_000_u64 {
            store.check_now(&key.to_le_bytes(), &rate, 1);
        }
    };
    check_rates();
    let keys: Vec<String> = (0..store.stats().slots / 2).map(|key| key.to_string()).collect();
    let held: Vec<_> = keys.iter().map(|key| in_flight.try_acquire(key).unwrap()).collect();
    check_rates();
    assert!(
        keys.iter().all(|key| in_flight.peek(key).remaining().unwrap() == 8),
        "a permit was forgotten"
    );
    drop(held);
    assert!(keys.iter().all(|key| in_flight.peek(key).remaining().unwrap() == 9));
}

#[test]
fn a_permit_whose_counter_was_forgotten_is_returned_to_nobody_else() {
    let store = store(4);
    let limiter = limiter(&store, permits(9));
    let keys: Vec<String> = (0..100).map(|key| key.to_string()).collect();
    let held = keys.iter().map(|key| (key, limiter.try_acquire(key).unwrap()));
    let held: Vec<_> = held.collect();
    let out = |key: &String| 9 - limiter.peek(key).remaining().unwrap();
    let (known, forgotten): (Vec<_>, Vec<_>) = held.into_iter().partition(|(key, _)| out(key) == 1);
    assert_eq!(known.len(), store.stats().slots);
    assert_eq!(store.stats().forced_evictions, forgotten.len() as u64);
    drop(forgotten);
    assert!(known.iter().all(|(key, _)| out(key) == 1), "a permit went back to somebody else");
    drop(known);
    assert_eq!(store.stats().live_keys, 0);
}

/// Counts how often it is read.
#[derive(Debug, Clone, Default)]
struct CountingClock {
    readings: Arc<AtomicU64>,
}

impl CountingClock {
    fn readings(&self) -> u64 {
        self.readings.load(Ordering::Relaxed)
    }
}

impl Clock for CountingClock {
    fn now(&self) -> Timestamp {
        // A second goes by at each reading, as if nobody came for long.
        let readings = self.readings.fetch_add(1, Ordering::Relaxed);
        START.after(Duration::from_secs(readings))
    }
}

/// The clock is read where a slot must be found, and nowhere else on the way of a permit. So the
/// readings show that a counter which has come to nothing keeps its slot, though others of its line
/// come and go: five keys in two lines of four.
#[test]
fn a_counter_that_is_often_idle_is_not_inserted_again_and_again() {
    for _ in 0..50 {
        let clock = CountingClock::default();
        let store = Arc::new(MemoryStore::builder().max_keys(4).clock(clock.clone()).build());
        assert_eq!(store.stats().slots, 8);
        let limiter = limiter(&store, permits(2));
        let visit_all = || {
            for key in ["a", "b", "c", "d", "e"] {
                drop(limiter.try_acquire(key).unwrap());
            }
        };
        visit_all();
        let before = clock.readings();
        for _ in 0..10 {
            visit_all();
        }
        assert_eq!(clock.readings() - before, 0, "the clock was read");
    }
}
