//! Leases: never more in flight than the limit, each ends at its very instant, none is returned twice.

use std::sync::Arc;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::algorithm::leased::LEASE_LIMIT_MAX;
use tollbar::{
    Batch, Charges, Clock, Concurrency, ConcurrencyLimiter, Decisions, DenyReason, Entry, Lease,
    LeaseError, ManualClock, MemoryStore, Outcome, Policy, PolicyError, Role, Store, Timestamp,
};
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::oracle::{Oracle, OracleEntry};
use tollbar_testkit::strategy::cases;
use tollbar_testkit::subject::Subject;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const TTL: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_micros(1);

fn leases(limit: u64, ttl: Duration) -> Concurrency {
    Concurrency::new(limit).unwrap().with_lease(ttl).unwrap().with_name("leases")
}

fn leased(limit: u64, ttl: Duration) -> Policy {
    leases(limit, ttl).into_policy()
}

fn over(store: &Arc<MemoryStore>, permits: Concurrency) -> ConcurrencyLimiter {
    ConcurrencyLimiter::builder(permits).store(Arc::clone(store)).build().unwrap()
}

fn fixture(limit: u64) -> (ManualClock, Arc<MemoryStore>, ConcurrencyLimiter) {
    let clock = ManualClock::at(START);
    let store = Arc::new(MemoryStore::builder().max_keys(100).clock(clock.clone()).build());
    let limiter = over(&store, leases(limit, TTL));
    (clock, store, limiter)
}

#[test]
fn a_lease_ends_at_its_very_instant_and_not_before() {
    let (clock, store, limiter) = fixture(1);
    let lease = limiter.lease("key").unwrap();
    assert_eq!((lease.count, lease.ends_at), (1, START.after(TTL)));
    assert!(!lease.is_degraded());
    clock.advance(TTL.checked_sub(TICK).unwrap());
    let LeaseError::Denied(busy) = limiter.lease("key").unwrap_err() else { panic!("it is busy") };
    assert_eq!((busy.reason(), busy.retry_after()), (DenyReason::Busy, None));
    let decision = busy.decision();
    assert_eq!((decision.remaining(), decision.reset_at()), (Some(0), Some(clock.now())));
    clock.advance(TICK);
    assert_eq!(store.stats().live_keys, 0);
    assert_eq!(limiter.peek("key").remaining().unwrap(), 1);
    assert!(limiter.lease("key").is_ok());
}

/// However few keys a store is made for, the longest list of leases has room in any shard.
#[test]
fn a_store_for_one_key_keeps_as_many_leases_as_a_policy_may_lend() {
    let clock = ManualClock::at(START);
    let store = Arc::new(MemoryStore::builder().max_keys(1).clock(clock.clone()).build());
    let limiter = over(&store, leases(LEASE_LIMIT_MAX, TTL));
    for _ in 0..LEASE_LIMIT_MAX {
        assert!(limiter.lease("key").is_ok());
    }
    let LeaseError::Denied(busy) = limiter.lease("key").unwrap_err() else { panic!("it is busy") };
    assert_eq!(busy.reason(), DenyReason::Busy);
    assert_eq!(store.stats().forced_evictions, 0);
}

#[test]
fn a_lease_that_is_renewed_lasts_as_long_again() {
    let (clock, _, limiter) = fixture(1);
    let mut lease = limiter.lease("key").unwrap();
    for _ in 0..5 {
        clock.advance(TTL.checked_sub(TICK).unwrap());
        assert!(limiter.renew(&mut lease));
        assert_eq!(lease.ends_at, clock.now().after(TTL));
        assert!(limiter.lease("key").is_err());
    }
    clock.advance(TTL);
    assert!(!limiter.renew(&mut lease), "it has ended");
    assert!(!limiter.release(&lease), "it has ended");
    assert_eq!(limiter.peek("key").remaining().unwrap(), 1);
}

#[test]
fn a_lease_is_released_once_and_by_its_own_id() {
    let (_, store, limiter) = fixture(5);
    let first = limiter.lease_n("key", 2).unwrap();
    let second = limiter.lease_n("key", 3).unwrap();
    assert_ne!(first.id, second.id);
    let left = || limiter.peek("key").remaining().unwrap();
    assert!(limiter.release(&Lease::from_id("key", first.id)));
    assert_eq!(left(), 2);
    for gone in [&first, &Lease::from_id("key", 0), &Lease::from_id("other", second.id)] {
        assert!(!limiter.release(gone));
        assert!(!limiter.renew(&mut gone.clone()));
        assert_eq!(left(), 2);
    }
    // What a permit takes, it does not take from somebody's lease.
    assert_eq!(store.refund_now(b"key", &leased(5, TTL), second.id, 1), 1);
    assert_eq!(left(), 3);
    assert!(limiter.release(&second));
    assert_eq!((left(), store.stats().live_keys), (5, 0));
}

#[test]
fn a_changed_rule_keeps_the_leases_and_their_ends() {
    let (clock, store, limiter) = fixture(4);
    let lease = limiter.lease_n("key", 4).unwrap();
    let other = leased(2, TTL * 10);
    let count = |policy: &Policy| store.check_now(b"key", policy, 0).remaining().unwrap();
    assert_eq!((count(&other), count(&leased(9, TTL))), (0, 5));
    // Permits without an end are another counter.
    assert_eq!(count(Concurrency::new(9).unwrap().with_name("leases").as_policy()), 9);
    clock.advance(TTL.checked_sub(TICK).unwrap());
    assert_eq!(store.renew_now(b"key", &other, lease.id), Some(clock.now().after(TTL * 10)));
    clock.advance(TTL * 9);
    assert_eq!(count(&other), 0);
    clock.advance(TTL + TICK);
    assert_eq!(count(&other), 2);
}

#[test]
fn the_leases_of_a_batch_have_names_of_their_own_and_a_denied_one_has_none() {
    let (_, store, limiter) = fixture(5);
    let (policy, rate) = (leased(5, TTL), Policy::token_bucket("2/min").unwrap());
    let batch = |costs: [u64; 2]| {
        let mut entries = [
            Entry::new("key", &policy).with_cost(costs[0]),
            Entry::new("key", &rate),
            Entry::new("key", &policy).with_cost(costs[1]),
        ];
        store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
        (Decisions::from_entries(&entries), entries[0].stamp(), entries[2].stamp())
    };
    let (verdict, first, second) = batch([1, 3]);
    assert!(verdict.is_allowed() && first != second);
    assert_eq!(limiter.peek("key").remaining().unwrap(), 1);
    assert_eq!(batch([1, 1]).0.outcome(), Outcome::Busy);
    assert_eq!(limiter.peek("key").remaining().unwrap(), 1);
    assert_eq!(store.check_now(b"key", &rate, 0).remaining().unwrap(), 1);
    assert!(limiter.release(&Lease::from_id("key", second)));
    assert_eq!(limiter.peek("key").remaining().unwrap(), 4);
    assert!(limiter.release(&Lease::from_id("key", first)));
    assert_eq!(limiter.peek("key").remaining().unwrap(), 5);
}

#[test]
fn a_shadow_takes_a_lease_only_where_it_would_have_allowed() {
    let (_, store, _) = fixture(9);
    let limiter =
        super::limiter_over(&store, Policy::token_bucket("9/s").unwrap().with_name("rate"));
    let (leases, few) = (leases(9, TTL), leased(1, TTL).with_name("few"));
    let in_flight =
        || 9 - store.check_now(b"key", &leased(9, TTL).with_name("few"), 0).remaining().unwrap();
    let admit =
        || limiter.admit(Charges::new().shadow("key", &few, 1).permit("key", &leases, 1)).unwrap();
    let first = admit();
    let second = admit();
    assert_eq!((first.permit_count(), second.permit_count(), in_flight()), (2, 1, 1));
    drop(second);
    assert_eq!(in_flight(), 1);
    drop(first);
    assert_eq!((in_flight(), store.stats().live_keys), (0, 0));
}

#[test]
fn a_permit_may_hold_a_lease() {
    let (clock, store, limiter) = fixture(2);
    let permit = limiter.try_acquire_n("key", 2).unwrap();
    assert_eq!(permit.count(), 2);
    assert!(limiter.try_acquire("key").is_err());
    drop(permit);
    assert_eq!(store.stats().live_keys, 0);
    let permit = limiter.try_acquire("key").unwrap().into_owned();
    clock.advance(TTL);
    // It has ended, and what somebody else holds by now is not given back.
    let lease = limiter.lease_n("key", 2).unwrap();
    drop(permit);
    assert_eq!(limiter.peek("key").remaining(), Some(0));
    assert!(limiter.release(&lease));
}

/// A lease of permits without one held them for good.
#[test]
fn permits_without_a_lease_cannot_be_leased_or_released() {
    let (_, store, _) = fixture(1);
    let limiter = over(&store, Concurrency::new(2).unwrap().with_name("permits"));
    assert!(matches!(limiter.lease("key"), Err(LeaseError::NoLease)));
    let _permit = limiter.try_acquire("key").unwrap();
    let mut lease = Lease::from_id("key", 1);
    assert!(!limiter.release(&lease) && !limiter.renew(&mut lease));
    assert_eq!(limiter.peek("key").remaining(), Some(1));
}

#[test]
fn leases_survive_a_restart() {
    let (clock, store, limiter) = fixture(3_000);
    let mut lease = limiter.lease_n("key", 2_500).unwrap();
    let ended = limiter.lease("other").unwrap();
    clock.advance(TICK);
    assert!(limiter.renew(&mut lease));
    let mut bytes = Vec::new();
    assert_eq!(store.write_snapshot(&mut bytes).unwrap().counters, 2);
    clock.advance(TTL.checked_sub(TICK).unwrap());
    let builder = MemoryStore::builder().max_keys(100).clock(clock.clone());
    let restored = Arc::new(builder.restore(&mut bytes.as_slice()).unwrap());
    let limiter = over(&restored, leases(3_000, TTL));
    assert_eq!(limiter.peek("key").remaining().unwrap(), 500);
    assert!(!limiter.release(&ended));
    assert!(limiter.release(&lease));
    assert_eq!(limiter.peek("key").remaining().unwrap(), 3_000);
}

#[test]
fn numbers_that_are_no_lease_are_refused() {
    let lease = |limit, ttl| Concurrency::new(limit).unwrap().with_lease(ttl).unwrap_err();
    assert_eq!(lease(10_001, TTL), PolicyError::TooManyLeases { limit: 10_001 });
    for ttl in [Duration::ZERO, Duration::from_nanos(999), Duration::MAX] {
        assert_eq!(lease(1, ttl), PolicyError::LeaseTime { ttl });
    }
    assert_eq!(leased(10_000, TICK).lease_ttl(), Some(TICK));
}

/// One step of a trace.
#[derive(Debug, Clone)]
enum Act {
    Advance(u64),
    Back(u64),
    Grant {
        cost: u64,
        policy: usize,
    },
    /// Of those granted so far, taken modulo.
    Renew(usize, usize),
    Release(usize, u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0_u64..8).prop_map(Act::Advance),
        1 => (0_u64..8).prop_map(Act::Back),
        4 => (0_u64..5, 0_usize..3).prop_map(|(cost, policy)| Act::Grant { cost, policy }),
        2 => (any::<usize>(), 0_usize..3).prop_map(|(lease, policy)| Act::Renew(lease, policy)),
        2 => (any::<usize>(), prop_oneof![Just(u64::MAX), 0_u64..3])
            .prop_map(|(lease, amount)| Act::Release(lease, amount)),
    ]
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn store_and_oracle_agree_on_leases_and_no_more_are_in_flight_than_the_limit(
        policies in [(1_u64..9, 1_u64..20), (1_u64..9, 1_u64..20), (1_u64..9, 1_u64..20)],
        acts in vec(act(), 1..80),
    ) {
        let limit_max = policies.iter().map(|(limit, _)| *limit).max().unwrap();
        let policies = policies.map(|(limit, ttl_us)| leased(limit, Duration::from_micros(ttl_us)));
        let subject = MemorySubject::at(START);
        let subject: &dyn Subject = &subject;
        let mut oracle = Oracle::new();
        let mut now = START;
        // The stamps on both sides, when it ends, and what it holds.
        let mut held: Vec<(u64, u64, Timestamp, u64)> = Vec::new();
        for act in acts {
            match act {
                Act::Advance(us) => now = now.after(Duration::from_micros(us)),
                Act::Back(us) => now = Timestamp::from_micros(now.as_micros() - us),
                Act::Grant { cost, policy } => {
                    let policy = &policies[policy];
                    let asked = [OracleEntry { key: b"key", policy, cost, role: Role::Enforce, alternative: None }];
                    let theirs = oracle.check_marked(now, &asked, None, None).unwrap()[0];
                    let ours = subject.check_marked(now, &asked, None, None).unwrap()[0];
                    prop_assert_eq!(theirs.answer, ours.answer);
                    if cost > 0 && ours.answer.outcome == Outcome::Allow {
                        let ends_at = now.after(policy.lease_ttl().unwrap());
                        held.push((theirs.stamp, ours.stamp, ends_at, cost));
                    }
                }
                Act::Renew(lease, policy) if !held.is_empty() => {
                    let at = lease % held.len();
                    let (theirs, ours, ..) = held[at];
                    let theirs = oracle.renew(now, b"key", &policies[policy], theirs);
                    subject.set_now(now);
                    let ours = subject.store().renew(b"key", &policies[policy], ours).wait().unwrap();
                    prop_assert_eq!(theirs, ours);
                    held[at].2 = ours.unwrap_or(held[at].2);
                }
                Act::Release(lease, amount) if !held.is_empty() => {
                    let at = lease % held.len();
                    let (theirs, ours, ends_at, permits) = held[at];
                    let policy = &policies[0];
                    let theirs = oracle.refund(now, b"key", policy, theirs, amount);
                    subject.set_now(now);
                    let ours = subject.store().refund(b"key", policy, ours, amount).wait().unwrap();
                    prop_assert_eq!(theirs, ours);
                    prop_assert!(ours <= permits && (ours == 0 || now < ends_at));
                    held[at].3 -= ours;
                }
                _ => {}
            }
            let out = held.iter().filter(|(_, _, end, _)| *end > now);
            let out: u64 = out.map(|(.., permits)| permits).sum();
            // With a clock that goes back, what has ended may not be held any more.
            prop_assert!(subject.peek(now, b"key", &policies[0]).remaining
                >= policies[0].limit().saturating_sub(out));
            let ended = now.after(Duration::from_secs(1));
            let held_now = limit_max - subject.peek(now, b"key", &leased(limit_max, TTL)).remaining;
            prop_assert!(held_now <= limit_max);
            prop_assert_eq!(subject.peek(ended, b"key", &policies[0]).remaining, policies[0].limit());
        }
    }
}

#[test]
fn eight_threads_never_hold_more_leases_than_the_limit() {
    let (_, store, limiter) = fixture(3);
    let held = std::sync::atomic::AtomicU64::new(0);
    let barrier = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                for round in 0..5_000 {
                    let Ok(mut lease) = limiter.lease("key") else { continue };
                    let before = held.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert!(before < 3, "{before} were held already");
                    if round % 3 == 0 {
                        assert!(limiter.renew(&mut lease));
                    }
                    held.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    assert!(limiter.release(&lease), "nobody else releases it");
                }
            });
        }
    });
    assert_eq!(limiter.peek("key").remaining().unwrap(), 3);
    assert_eq!((store.stats().live_keys, store.stats().forced_evictions), (0, 0));
}
