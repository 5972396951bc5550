//! Permits in flight: never more than the limit, none lost, none returned twice.

mod elsewhere;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{
    Clock, Entry, Limiter, ManualClock, MemoryStore, Outcome, OwnedPermit, Permit, Policy, Role,
    Store, Timestamp,
};
use tollbar_testkit::strategy::cases;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn permits(limit: u64) -> Policy {
    Policy::concurrency(limit).unwrap()
}

fn store(max_keys: usize) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::builder().max_keys(max_keys).clock(ManualClock::at(START)).build())
}

fn limiter(store: &Arc<MemoryStore>, policy: Policy) -> Limiter {
    Limiter::builder(policy).store(Arc::clone(store) as Arc<dyn Store>).build()
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
                    match limiters[at].acquire_cost(KEYS[key], cost) {
                        Ok(permit) => {
                            prop_assert!(cost == 0 || out + cost <= limit, "{out} + {cost}");
                            prop_assert_eq!(permit.count(), cost);
                            held.push((key, permit));
                        }
                        Err(denied) => {
                            let is_never = cost > limit;
                            let outcome = if is_never { Outcome::Never } else { Outcome::Busy };
                            prop_assert!(cost > remaining, "{out} + {cost}");
                            prop_assert_eq!(denied.outcome(), outcome);
                            prop_assert_eq!((denied.limit(), denied.remaining()), (limit, remaining));
                            prop_assert_eq!((denied.reset_at(), denied.retry_after()), (START, None));
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
                    prop_assert_eq!(limiter.peek(name).remaining(), left);
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
    let (rate, in_flight) = (Policy::token_bucket("10/min").unwrap(), permits(4));
    let limiter = limiter(&store(10), rate.clone());
    let left =
        |policy: &Policy| limiter.store().check(b"key", policy, 0).wait().unwrap().remaining();
    let acquire = || {
        let mut entries =
            [Entry::new("key", &in_flight).with_cost(2), Entry::new("key", &rate).with_cost(3)];
        limiter.acquire_all(&mut entries)
    };
    let first = acquire().unwrap();
    let second = acquire().unwrap();
    assert_eq!((first.count(), left(&rate), left(&in_flight)), (2, 4, 0));
    // Refused by the permits, and the rate has not paid.
    let verdict = acquire().unwrap_err().verdict().unwrap();
    assert_eq!((verdict.outcome(), verdict.binding()), (Outcome::Busy, Some(0)));
    assert_eq!((left(&rate), left(&in_flight)), (4, 0));
    drop(first);
    assert_eq!((left(&rate), left(&in_flight)), (4, 2));
    drop(acquire().unwrap());
    // Refused by the rate: nothing is in flight for it, and nothing of the others comes back.
    assert!(matches!(acquire().unwrap_err().verdict().unwrap().outcome(), Outcome::Deny { .. }));
    assert_eq!((left(&rate), left(&in_flight)), (1, 2));
    drop(second);
    assert_eq!((left(&rate), left(&in_flight)), (1, 4));
}

#[test]
fn several_counters_come_back_together_and_shadows_with_them() {
    let store = store(10);
    let limiter = limiter(&store, permits(9));
    let (few, tenant) = (permits(1).named("few"), permits(9).named("tenant"));
    let acquire = || {
        let mut entries = [
            Entry::new("key", &few).with_role(Role::Shadow),
            Entry::new("key", &tenant).with_cost(2),
            Entry::new("other", &tenant).with_cost(3),
            Entry::new("peeked", &tenant).with_cost(0),
        ];
        let permit = limiter.acquire_all(&mut entries).unwrap();
        (permit, entries[0].decision().unwrap().outcome())
    };
    let left = |key: &str, policy: &Policy| {
        store.check(key.as_bytes(), policy, 0).wait().unwrap().remaining()
    };
    let (first, shadow) = acquire();
    assert_eq!((first.count(), shadow), (6, Outcome::Allow));
    // The shadow would have refused this one, and is not charged for it.
    let (second, shadow) = acquire();
    assert_eq!((second.count(), shadow), (5, Outcome::Busy));
    assert_eq!((left("key", &few), left("key", &tenant), left("other", &tenant)), (0, 5, 3));
    let second = second.into_owned();
    assert_eq!(second.count(), 5);
    drop(second);
    assert_eq!((left("key", &few), left("key", &tenant), left("other", &tenant)), (0, 7, 6));
    drop(first);
    assert_eq!(store.stats().live_keys, 0);
}

#[test]
fn a_permit_of_a_rate_or_of_nothing_gives_nothing_back() {
    let store = store(10);
    let rate = limiter(&store, Policy::token_bucket("3/min").unwrap());
    let permit = rate.acquire("key").unwrap();
    assert_eq!((permit.count(), permit.is_degraded()), (0, false));
    drop(permit);
    assert_eq!(rate.peek("key").remaining(), 2);
    assert!(matches!(rate.acquire_cost("key", 3).unwrap_err().outcome(), Outcome::Deny { .. }));

    let in_flight = limiter(&store, permits(1));
    let permit = in_flight.acquire("key").unwrap();
    let peeked = in_flight.acquire_cost("key", 0).unwrap();
    assert_eq!(peeked.count(), 0);
    drop(peeked);
    assert_eq!(in_flight.peek("key").remaining(), 0);
    drop(permit);
}

#[test]
fn a_permit_goes_along_with_a_thread_and_outlives_its_limiter() {
    fn is_send<T: Send>(_: &T) {}
    let store = store(10);
    let limiter = limiter(&store, permits(1));
    let permit: OwnedPermit = limiter.acquire("key").unwrap().into_owned();
    is_send(&permit);
    is_send(&limiter.acquire("other"));
    assert_eq!(permit.count(), 1);
    assert!(limiter.acquire("key").is_err());
    drop(limiter);
    thread::spawn(move || drop(permit)).join().unwrap();
    assert_eq!(store.stats().live_keys, 0);
}

#[test]
fn a_permit_that_was_reset_away_does_not_come_back() {
    let store = store(10);
    let limiter = limiter(&store, permits(2));
    let permit = limiter.acquire_cost("key", 2).unwrap();
    limiter.reset("key");
    assert_eq!(limiter.peek("key").remaining(), 2);
    drop(permit);
    assert_eq!(limiter.peek("key").remaining(), 2);
}

#[test]
fn permits_end_with_the_process_and_rates_do_not() {
    let store = store(1_000);
    let (in_flight, rate) = (limiter(&store, permits(1)), Policy::fixed_window("5/month").unwrap());
    let _permit = in_flight.acquire("key").unwrap();
    store.check(b"key", &rate, 2).wait().unwrap();
    let mut bytes = Vec::new();
    assert_eq!(store.write_snapshot(&mut bytes).unwrap().counters, 1);
    let builder = MemoryStore::builder().max_keys(1_000).clock(ManualClock::at(START));
    let restored = builder.restore(&mut bytes.as_slice()).unwrap();
    assert_eq!(restored.check_now(b"key", &permits(1), 0).remaining(), 1);
    assert_eq!(restored.check_now(b"key", &rate, 0).remaining(), 3);
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
    let held: Vec<_> = keys.iter().map(|key| in_flight.acquire(key).unwrap()).collect();
    check_rates();
    assert!(keys.iter().all(|key| in_flight.peek(key).remaining() == 8), "a permit was forgotten");
    drop(held);
    assert!(keys.iter().all(|key| in_flight.peek(key).remaining() == 9));
}

#[test]
fn a_permit_whose_counter_was_forgotten_is_returned_to_nobody_else() {
    let store = store(4);
    let limiter = limiter(&store, permits(9));
    let keys: Vec<String> = (0..100).map(|key| key.to_string()).collect();
    let held = keys.iter().map(|key| (key, limiter.acquire(key).unwrap()));
    let held: Vec<_> = held.collect();
    let out = |key: &String| 9 - limiter.peek(key).remaining();
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
                drop(limiter.acquire(key).unwrap());
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
