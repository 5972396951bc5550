//! Permits and leases from threads that take them as fast as they can: never more are out than the
//! limit, at any instant.
//!
//! A permit is certainly out from when it had been taken until it began to be returned; a lease at
//! most until it ends by itself.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tollbar::{Charges, Concurrency, ConcurrencyLimiter, Limiter, MemoryStore, Policy, Store};
use tollbar_testkit::bounds::in_flight_at_most;
use tollbar_testkit::xorshift::Xorshift;

use super::THREADS;
use super::recorder::{CLOCK_BEHIND_US, JudgeClock};

const LIMIT: u64 = 3;
const TTL: Duration = Duration::from_micros(300);

/// Has every thread take and return permits of one key until the time is over. `visit` takes one, and
/// says from when to when it was certainly out.
fn take_turns(
    permits: &Concurrency,
    threads: usize,
    duration: Duration,
    visit: impl Fn(&Fixture, &JudgeClock, &mut Xorshift) -> Option<(u64, u64)> + Sync,
) {
    let store = Arc::new(MemoryStore::builder().max_keys(1_000).build());
    let clock = JudgeClock::beside(store.clock().unwrap());
    let generous = Policy::fixed_window("50000000/s").unwrap().with_name("generous");
    let limiter = ConcurrencyLimiter::builder(permits.clone()).store(Arc::clone(&store));
    let limiter = Fixture {
        permits: limiter.build().unwrap(),
        limiter: Limiter::builder(generous.clone()).store(store).build().unwrap(),
        generous,
    };
    let barrier = Barrier::new(threads);
    let take_turns = |thread: usize| {
        let mut random = Xorshift::named(&format!("thread {thread}"));
        let mut held = Vec::new();
        barrier.wait();
        let end_us = clock.now_us() + duration.as_micros() as u64;
        while clock.now_us() < end_us {
            held.extend(visit(&limiter, &clock, &mut random));
        }
        held
    };
    let held: Vec<(u64, u64)> = thread::scope(|scope| {
        let take_turns = &take_turns;
        let threads: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || take_turns(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(!held.is_empty());
    in_flight_at_most(LIMIT, &held)
        .unwrap_or_else(|story| panic!("{permits} for {threads} threads: {story}"));
}

/// Both kinds of limiter, over one store.
struct Fixture {
    permits: ConcurrencyLimiter,
    limiter: Limiter,
    /// Never reached.
    generous: Policy,
}

/// Does something for a moment, or lets the other threads run.
fn work(random: &mut Xorshift) {
    match random.below(4) {
        0 => thread::yield_now(),
        rounds => (0..rounds * 20).for_each(|_| std::hint::spin_loop()),
    }
}

fn judge_permits(duration: Duration) {
    let permits = Concurrency::new(LIMIT).unwrap().with_name("permits");
    for threads in THREADS {
        take_turns(&permits, threads, duration, |fixture, clock, random| {
            let (mut permit, mut grant) = (None, None);
            if random.below(2) == 0 {
                permit = Some(fixture.permits.try_acquire("key").ok()?);
            } else {
                let charges = Charges::new().permit("key", &permits, 1);
                grant =
                    Some(fixture.limiter.admit(charges.charge("all", &fixture.generous, 1)).ok()?);
            }
            let taken_us = clock.now_us();
            work(random);
            let returned_us = clock.now_us();
            drop((permit, grant));
            Some((taken_us, returned_us))
        });
    }
}

fn judge_leases(duration: Duration) {
    let leases = Concurrency::new(LIMIT).unwrap().with_lease(TTL).unwrap().with_name("leases");
    let ttl_us = TTL.as_micros() as u64;
    for threads in THREADS {
        take_turns(&leases, threads, duration, |fixture, clock, random| {
            let asked_us = clock.now_us();
            let lease = fixture.permits.lease("key").ok()?;
            let taken_us = clock.now_us();
            let ends_us = asked_us - CLOCK_BEHIND_US + ttl_us;
            work(random);
            if random.below(4) == 0 {
                // Its holder vanishes.
                return Some((taken_us, ends_us));
            }
            let returned_us = clock.now_us();
            fixture.permits.release(&lease);
            Some((taken_us, returned_us.min(ends_us)))
        });
    }
}

#[test]
fn threads_never_have_more_permits_out_than_the_limit_at_any_instant() {
    judge_permits(Duration::from_millis(100));
}

#[test]
fn threads_never_have_more_leases_out_than_the_limit_at_any_instant() {
    judge_leases(Duration::from_millis(100));
}

#[test]
#[ignore = "long: a minute of threads that take permits and leases as fast as they can"]
fn threads_never_have_more_out_than_the_limit_at_any_instant_for_long() {
    judge_permits(Duration::from_secs(10));
    judge_leases(Duration::from_secs(10));
}
