//! Models of the memory store: every interleaving of a few threads on a few slots.
//!
//! Run by `cargo xtask test`, with `--cfg tollbar_loom`; without it there is nothing here. Two threads
//! each, and no bound on their switches. Not three: two that wait for the third to leave a slot can
//! yield to each other for ever as far as loom knows. Those are in `threads.rs`, on real threads.

#![cfg(tollbar_loom)]

mod alternatives;
mod permits;
mod snapshot;
mod stale;
#[cfg(feature = "until-ready")]
mod waiting;

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;
use tollbar::store::{Adjustment, Hold, Once, ReservationId, Spending};
use tollbar::{Clock, Decisions, Entry, ManualClock, MemoryStore, Policy, Store, Timestamp};

/// One line of four slots, so that every key meets every other.
fn store(max_keys: usize) -> MemoryStore {
    let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
    assert_eq!(clock.now().as_micros(), 1_000_000);
    MemoryStore::builder().max_keys(max_keys).max_wide_keys(1).clock(clock).build()
}

fn passes(store: &MemoryStore, key: &str, policy: &Policy) -> bool {
    store.check(key.as_bytes(), policy, 1).wait().unwrap().is_allowed()
}

fn remaining(store: &MemoryStore, key: &str, policy: &Policy) -> u64 {
    store.check(key.as_bytes(), policy, 0).wait().unwrap().remaining().unwrap()
}

fn all_or_none(store: &MemoryStore, keys: [(&str, &Policy); 2]) -> bool {
    let mut entries = keys.map(|(key, policy)| Entry::new(key, policy));
    store.decide(tollbar::Batch::all_or_none(&mut entries)).wait().unwrap();
    Decisions::from_entries(&entries).is_allowed()
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.check(f);
}

/// Runs `left` and `right` side by side and returns what each came to.
fn race<L: 'static, R: 'static>(
    left: impl FnOnce() -> L + 'static,
    right: impl FnOnce() -> R + 'static,
) -> (L, R) {
    let left = thread::spawn(left);
    let right = thread::spawn(right);
    (left.join().unwrap(), right.join().unwrap())
}

#[test]
fn of_two_threads_after_the_last_token_one_gets_it() {
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("2/min").unwrap();
        assert!(passes(&store, "key", &policy));
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (left, right) = race(move || passes(&a, "key", &p), move || passes(&b, "key", &q));
        assert!(left ^ right, "{left} and {right}");
    });
}

#[test]
fn a_lower_class_never_takes_what_is_reserved() {
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("3/min").unwrap();
        let lower = policy.reserving(1).unwrap();
        assert!(passes(&store, "key", &lower));
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), lower.clone());
        let (whole, _) = race(move || passes(&a, "key", &p), move || passes(&b, "key", &q));
        assert!(whole, "two of three are left, and one of them to the lower class at most");
        assert!(!passes(&store, "key", &lower));
    });
}

#[test]
fn a_cold_key_is_not_inserted_twice() {
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("3/min").unwrap();
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (left, right) = race(move || passes(&a, "key", &p), move || passes(&b, "key", &q));
        assert!(left && right);
        assert_eq!(remaining(&store, "key", &policy), 1);
        assert_eq!(store.stats().live_keys, 1);
    });
}

#[test]
fn a_cold_key_is_not_inserted_twice_into_two_lines() {
    // Two lines, the table full of live keys, so that the newcomer may go to either.
    model(|| {
        let store = Arc::new(store(4));
        let policy = Policy::token_bucket("3/min").unwrap();
        for key in 0..8 {
            passes(&store, &key.to_string(), &policy);
        }
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (left, right) = race(move || passes(&a, "new", &p), move || passes(&b, "new", &q));
        assert!(left && right);
        assert_eq!(remaining(&store, "new", &policy), 1);
    });
}

#[test]
fn an_eviction_never_charges_the_wrong_key() {
    // Four keys fill the line, all with the same debt, so that a stale compare-and-swap would find
    // the number it expects. One is checked while another key takes its slot.
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("9/min").unwrap();
        for key in ["a", "b", "c", "d"] {
            passes(&store, key, &policy);
        }
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        race(move || passes(&a, "a", &p), move || passes(&b, "new", &q));
        // Each key was charged as often as it was checked, or has been forgotten since, and never
        // for another. `a` may have been driven out by `new` and have driven it out in turn.
        let evictions = store.stats().forced_evictions;
        assert!([1, 2].contains(&evictions), "{evictions}");
        let forgotten = ["a", "b", "c", "d", "new"].map(|key| {
            let left = remaining(&store, key, &policy);
            let checks = if key == "a" { [2, 1] } else { [1, 1] };
            assert!(left == 9 || checks.contains(&(9 - left)), "{key}: {left} left");
            u64::from(left == 9)
        });
        assert_eq!(forgotten.iter().sum::<u64>(), 1, "five keys, four slots");
    });
}

#[test]
fn a_denial_never_speaks_of_another_keys_counter() {
    // `a` owes least of four, so that `new` takes its slot while `a` is being denied.
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("9/min").unwrap();
        for (key, cost) in [("a", 8), ("b", 9), ("c", 9), ("d", 9)] {
            store.check(key.as_bytes(), &policy, cost).wait().unwrap();
        }
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (decision, _) =
            race(move || a.check(b"a", &p, 2).wait().unwrap(), move || passes(&b, "new", &q));
        // Denied with one left, or forgotten and allowed.
        let seen = (decision.is_allowed(), decision.remaining().unwrap());
        assert!([(false, 1), (true, 7)].contains(&seen), "{seen:?}");
    });
}

#[test]
fn a_check_that_meets_an_insertion_sees_none_of_the_last_owners_counter() {
    // The table is full; `a` takes a slot over in one thread while the other already finds its tag.
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::fixed_window("9/min").unwrap();
        for key in ["b", "c", "d", "e"] {
            store.check(key.as_bytes(), &policy, 5).wait().unwrap();
        }
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let check = |store: &MemoryStore, policy: &Policy, cost| {
            let decision = store.check(b"a", policy, cost).wait().unwrap();
            (decision.is_allowed(), decision.remaining().unwrap())
        };
        let seen = race(move || check(&a, &p, 2), move || check(&b, &q, 8));
        let (two_first, eight_first) = (((true, 7), (false, 7)), ((false, 1), (true, 1)));
        assert!([two_first, eight_first].contains(&seen), "{seen:?}");
    });
}

#[test]
fn a_batch_is_all_or_nothing_beside_a_single_check() {
    model(|| {
        let store = Arc::new(store(2));
        let (one, many) =
            (Policy::token_bucket("1/min").unwrap(), Policy::token_bucket("5/min").unwrap());
        let (a, b) = (store.clone(), store.clone());
        let (p, q, r) = (one.clone(), many.clone(), one.clone());
        let (batch, single) = race(
            move || all_or_none(&a, [("many", &q), ("one", &p)]),
            move || passes(&b, "one", &r),
        );
        assert!(batch ^ single, "{batch} and {single}");
        assert_eq!(remaining(&store, "many", &many), if batch { 4 } else { 5 });
    });
}

#[test]
fn two_batches_in_opposite_order_end_and_one_passes() {
    model(|| {
        let store = Arc::new(store(2));
        let (one, many) =
            (Policy::token_bucket("1/min").unwrap(), Policy::token_bucket("5/min").unwrap());
        // In the table already, so that the batches lock slots without their shards.
        passes(&store, "many", &many);
        store.check(b"one", &one, 1).wait().unwrap();
        store.reset(b"one", &one).wait().unwrap();
        let (a, b) = (store.clone(), store.clone());
        let (p, q, r, s) = (one.clone(), many.clone(), one.clone(), many.clone());
        let (left, right) = race(
            move || all_or_none(&a, [("many", &q), ("one", &p)]),
            move || all_or_none(&b, [("one", &r), ("many", &s)]),
        );
        assert!(left ^ right, "{left} and {right}");
        assert_eq!(remaining(&store, "many", &many), 3);
    });
}

#[test]
fn a_denied_batch_takes_nothing_that_another_request_needed() {
    // `one` is spent, so the batch must be denied, and must not even for a moment take the only
    // token of `other` from the request beside it.
    model(|| {
        let store = Arc::new(store(2));
        let one = Policy::token_bucket("1/min").unwrap();
        passes(&store, "one", &one);
        let (a, b) = (store.clone(), store.clone());
        let (p, q, r) = (one.clone(), one.clone(), one.clone());
        let (batch, single) = race(
            move || all_or_none(&a, [("other", &p), ("one", &q)]),
            move || passes(&b, "other", &r),
        );
        assert!(!batch && single);
    });
}

#[test]
fn a_counter_that_outgrows_its_word_is_moved_once() {
    // The limit is raised above what a word holds while another thread still checks under the old.
    model(|| {
        let store = Arc::new(store(2));
        let small = Policy::sliding_window("10/s").unwrap();
        let large = Policy::sliding_window("100000/s").unwrap();
        assert!(passes(&store, "key", &small));
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (small.clone(), large.clone());
        let (left, right) = race(move || passes(&a, "key", &p), move || passes(&b, "key", &q));
        assert!(left && right);
        assert_eq!(remaining(&store, "key", &large), 100_000 - 3);
    });
}

/// Reserves `cost` of the key, and returns the charge's stamp.
fn reserve(store: &MemoryStore, policy: &Policy, id: u128, cost: u64) -> u64 {
    let mut entries = [Entry::new("key", policy).with_cost(cost)];
    let hold = Hold { id: ReservationId(id), ttl: Duration::from_secs(60) };
    store.decide(tollbar::Batch::all_or_none(&mut entries).held(hold)).wait().unwrap();
    assert!(Decisions::from_entries(&entries).is_allowed());
    entries[0].stamp()
}

/// Settles a reservation of `reserved` tokens that came to nothing.
fn cancel(store: &MemoryStore, policy: &Policy, id: u128, stamp: u64, reserved: u64) -> bool {
    let spending = Spending { reserved, spent: 0 };
    let mut adjustments = [Adjustment::new(b"key", policy, stamp, spending)];
    store.settle(ReservationId(id).into(), &mut adjustments).wait().unwrap()
}

fn once(store: &MemoryStore, policy: &Policy) -> u64 {
    let mut entries = [Entry::new("key", policy)];
    let once = Once::new(b"id", Duration::from_secs(60));
    store.decide(tollbar::Batch::all_or_none(&mut entries).once(once)).wait().unwrap();
    entries[0].decision().unwrap().remaining().unwrap()
}

#[test]
fn of_two_threads_that_settle_a_reservation_one_does() {
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("5/min").unwrap();
        let stamp = reserve(&store, &policy, 1, 3);
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (left, right) =
            race(move || cancel(&a, &p, 1, stamp, 3), move || cancel(&b, &q, 1, stamp, 3));
        assert!(left ^ right, "{left} and {right}");
        assert_eq!(remaining(&store, "key", &policy), 5);
    });
}

#[test]
fn a_refund_beside_a_check_loses_neither() {
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("5/min").unwrap();
        let stamp = reserve(&store, &policy, 1, 3);
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (settled, passed) =
            race(move || cancel(&a, &p, 1, stamp, 3), move || passes(&b, "key", &q));
        assert!(settled && passed);
        assert_eq!(remaining(&store, "key", &policy), 4);
    });
}

#[test]
fn a_refund_beside_a_reservation_loses_neither() {
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("5/min").unwrap();
        let stamp = reserve(&store, &policy, 1, 2);
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (settled, other) =
            race(move || cancel(&a, &p, 1, stamp, 2), move || reserve(&b, &q, 2, 2));
        assert!(settled);
        assert_eq!(remaining(&store, "key", &policy), 3);
        assert!(cancel(&store, &policy, 2, other, 2));
        assert_eq!(remaining(&store, "key", &policy), 5);
    });
}

#[test]
fn a_request_that_two_threads_bring_pays_once() {
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("5/min").unwrap();
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (left, right) = race(move || once(&a, &p), move || once(&b, &q));
        assert_eq!((left, right), (4, 4));
        assert_eq!(remaining(&store, "key", &policy), 4);
    });
}

#[test]
fn of_two_threads_after_the_last_token_of_a_log_one_gets_it() {
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::sliding_window_log("2/min").unwrap();
        assert!(passes(&store, "key", &policy));
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let (left, right) = race(move || passes(&a, "key", &p), move || passes(&b, "key", &q));
        assert!(left ^ right, "{left} and {right}");
    });
}

#[test]
fn of_two_logs_that_need_the_only_block_the_later_has_it_and_the_other_is_forgotten() {
    // 5,000 tokens are two stamps, one of which needs a block; these two keys have the same shard.
    model(|| {
        let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
        let builder = MemoryStore::builder().max_keys(2).max_wide_keys(1).max_log_stamps(1);
        let store = Arc::new(builder.clock(clock).build());
        let policy = Policy::sliding_window_log("10000/min").unwrap();
        let (a, b) = (store.clone(), store.clone());
        let (p, q) = (policy.clone(), policy.clone());
        let charge = |store: &MemoryStore, key: &str, policy: &Policy| {
            store.check(key.as_bytes(), policy, 5_000).wait().unwrap().is_allowed()
        };
        let charged = race(move || charge(&a, "a", &p), move || charge(&b, "c", &q));
        assert_eq!(charged, (true, true));
        let mut left = ["a", "c"].map(|key| remaining(&store, key, &policy));
        left.sort_unstable();
        assert_eq!(left, [5_000, 10_000]);
        let stats = store.stats();
        assert_eq!((stats.forced_evictions, stats.log_blocks), (1, 1));
    });
}

#[test]
fn a_batch_with_a_log_is_all_or_nothing_beside_a_single_check() {
    model(|| {
        let store = Arc::new(store(2));
        let (one, many) =
            (Policy::sliding_window_log("1/min").unwrap(), Policy::token_bucket("5/min").unwrap());
        let (a, b) = (store.clone(), store.clone());
        let (p, q, r) = (one.clone(), many.clone(), one.clone());
        let (batch, single) = race(
            move || all_or_none(&a, [("many", &q), ("one", &p)]),
            move || passes(&b, "one", &r),
        );
        assert!(batch ^ single, "{batch} and {single}");
        assert_eq!(remaining(&store, "many", &many), if batch { 4 } else { 5 });
    });
}
