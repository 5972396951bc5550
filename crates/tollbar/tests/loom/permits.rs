//! Permits in flight: two threads take them, give them back and drive counters out.

use std::sync::Arc;
use std::time::Duration;

use tollbar::{Charges, Concurrency, ConcurrencyLimiter, Limiter, MemoryStore, Policy};

use super::{model, race, store};

/// A limiter of permits in flight, over one line of four slots.
fn permits(limit: u64) -> ConcurrencyLimiter {
    over(&Arc::new(store(2)), concurrency(limit))
}

fn concurrency(limit: u64) -> Concurrency {
    Concurrency::new(limit).unwrap().with_name("permits")
}

fn over(store: &Arc<MemoryStore>, permits: Concurrency) -> ConcurrencyLimiter {
    ConcurrencyLimiter::builder(permits).store(Arc::clone(store)).build().unwrap()
}

#[test]
fn the_last_permit_is_in_one_hand_at_a_time_and_comes_back() {
    model(|| {
        let limiter = permits(1);
        let (a, b) = (limiter.clone(), limiter.clone());
        let holders = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let (c, d) = (holders.clone(), holders);
        let visit = |limiter: &ConcurrencyLimiter, holders: &loom::sync::atomic::AtomicUsize| {
            let Ok(permit) = limiter.try_acquire("key") else {
                return false;
            };
            assert_eq!(holders.fetch_add(1, loom::sync::atomic::Ordering::SeqCst), 0);
            holders.fetch_sub(1, loom::sync::atomic::Ordering::SeqCst);
            drop(permit);
            true
        };
        let (left, right) = race(move || visit(&a, &c), move || visit(&b, &d));
        assert!(left || right);
        assert_eq!(limiter.peek("key").remaining().unwrap(), 1);
    });
}

#[test]
fn a_permit_that_comes_back_beside_one_that_is_taken_is_not_lost() {
    model(|| {
        let limiter = permits(3);
        let held = limiter.try_acquire_n("key", 2).unwrap().into_owned();
        let other = limiter.clone();
        let (_, taken) =
            race(move || drop(held), move || other.try_acquire("key").unwrap().into_owned());
        assert_eq!(limiter.peek("key").remaining().unwrap(), 2);
        drop(taken);
        assert_eq!(limiter.peek("key").remaining().unwrap(), 3);
    });
}

#[test]
fn a_permit_that_comes_back_during_an_eviction_goes_back_to_its_own_counter_or_to_none() {
    // Four keys with as many permits fill the line. One gives back while a newcomer takes a slot.
    model(|| {
        let limiter = permits(9);
        let keys = ["a", "b", "c", "d"];
        let mut held = keys.map(|key| Some(limiter.try_acquire(key).unwrap().into_owned()));
        let a = held[0].take();
        let other = limiter.clone();
        let (_, new) =
            race(move || drop(a), move || other.try_acquire("new").unwrap().into_owned());
        let out = |key: &str| 9 - limiter.peek(key).remaining().unwrap();
        assert_eq!(out("a"), 0);
        assert_eq!(out("new"), 1);
        let forgotten = ["b", "c", "d"].iter().filter(|key| out(key) == 0).count();
        assert!(forgotten <= 1, "{forgotten}");
        drop((held, new));
        assert!(keys.iter().chain(&["new"]).all(|key| out(key) == 0));
    });
}

#[test]
fn an_idle_counter_is_taken_over_or_taken_up_again_and_never_both() {
    // `a` has nothing in flight and its slot is the first to go; it is asked for again just then.
    model(|| {
        let limiter = permits(9);
        let _held = ["b", "c", "d"].map(|key| limiter.try_acquire_n(key, 5).unwrap().into_owned());
        drop(limiter.try_acquire("a").unwrap());
        let (left, right) = (limiter.clone(), limiter.clone());
        let (a, new) = race(
            move || left.try_acquire_n("a", 2).unwrap().into_owned(),
            move || right.try_acquire_n("new", 3).unwrap().into_owned(),
        );
        // Five keys and four slots: the one with the fewest permits is forgotten, if any.
        let out = |key: &str| 9 - limiter.peek(key).remaining().unwrap();
        assert!([0, 2].contains(&out("a")) && [0, 3].contains(&out("new")));
        assert_eq!(["b", "c", "d"].map(out), [5; 3]);
        drop(a);
        assert_eq!(out("a"), 0);
        assert!([0, 3].contains(&out("new")));
        drop(new);
        assert_eq!(out("new"), 0);
    });
}

#[test]
fn a_permit_comes_back_whole_beside_a_batch() {
    model(|| {
        let store = Arc::new(store(2));
        let limiter = over(&store, concurrency(2));
        let rate = Policy::token_bucket("5/min").unwrap().with_name("rate");
        let rates = Limiter::builder(rate.clone()).store(Arc::clone(&store)).build().unwrap();
        let held = limiter.try_acquire("key").unwrap().into_owned();
        let paid = rate.clone();
        let (_, batch) = race(
            move || drop(held),
            move || {
                let permits = concurrency(2);
                let charges = Charges::new().charge("key", &paid, 1);
                rates.admit(charges.permit("key", &permits, 2)).ok()
            },
        );
        let left = store.check_now(b"key", &rate, 0).remaining().unwrap();
        assert_eq!(left, if batch.is_some() { 4 } else { 5 });
        assert_eq!(limiter.peek("key").remaining().unwrap(), if batch.is_some() { 0 } else { 2 });
        drop(batch);
        assert_eq!(limiter.peek("key").remaining().unwrap(), 2);
    });
}

/// A limiter of leases for a minute, on a clock that stands still.
fn leases(limit: u64) -> ConcurrencyLimiter {
    let permits = concurrency(limit).with_lease(Duration::from_mins(1)).unwrap();
    over(&Arc::new(store(2)), permits)
}

#[test]
fn of_two_threads_after_the_last_lease_one_gets_it() {
    model(|| {
        let limiter = leases(2);
        let held = limiter.lease("key").unwrap();
        let (a, b) = (limiter.clone(), limiter.clone());
        let (left, right) = race(move || a.lease("key").ok(), move || b.try_acquire("key").is_ok());
        // The permit is dropped at once, and the lease may come after it.
        assert!(left.is_some() || right);
        let out = 1 + u64::from(left.is_some());
        assert_eq!(limiter.peek("key").remaining().unwrap(), 2 - out);
        assert!(limiter.release(&held));
    });
}

#[test]
fn a_lease_is_released_by_one_of_two_threads_and_renewed_before_or_not_at_all() {
    model(|| {
        let limiter = leases(2);
        let (held, other) = (limiter.lease("key").unwrap(), limiter.lease("key").unwrap());
        let (a, b) = (limiter.clone(), limiter.clone());
        let (mut left, right) = (held.clone(), held);
        let ((_, first), second) =
            race(move || (a.renew(&mut left), a.release(&left)), move || b.release(&right));
        assert!(first ^ second, "{first} and {second}");
        assert_eq!(limiter.peek("key").remaining().unwrap(), 1);
        assert!(limiter.release(&other));
    });
}
