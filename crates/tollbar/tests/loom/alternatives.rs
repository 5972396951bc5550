//! Requests that pay by the first alternative that allows, in two threads at once.

use std::sync::atomic::{AtomicBool, Ordering};

use loom::sync::Arc;
use tollbar::store::Alternative;
use tollbar::{Batch, Decisions, Entry, MemoryStore, Policy, Store};

use super::{model, passes, race, remaining, store};

/// Pays by `own` or, if that denies, by `pool`. Returns whether each has paid.
fn own_or_pool(store: &MemoryStore, policies: &[Policy; 2]) -> [bool; 2] {
    let [own, pool] = policies;
    let entry = |key, policy, order| {
        Entry::new(key, policy).with_alternative(Alternative { group: 0, order })
    };
    let mut entries = [entry("own", own, 0), entry("pool", pool, 1)];
    store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
    let is_allowed = Decisions::from_entries(&entries).is_allowed();
    let paid = [0, 1].map(|at| is_allowed && entries[at].is_paid());
    assert_eq!(is_allowed, paid[0] ^ paid[1], "{paid:?}");
    paid
}

fn policies() -> [Policy; 2] {
    ["1/min", "5/min"].map(|rate| Policy::token_bucket(rate).unwrap())
}

/// Puts both counters into the table, so that batches lock slots without their shards.
fn insert(store: &MemoryStore, [own, pool]: &[Policy; 2]) {
    store.check(b"own", own, 1).wait().unwrap();
    store.reset(b"own", own).wait().unwrap();
    passes(store, "pool", pool);
    passes(store, "pool", pool);
}

#[test]
fn of_two_requests_one_pays_the_share_and_the_other_the_pool() {
    model(|| {
        let store = Arc::new(store(2));
        insert(&store, &policies());
        let (a, b) = (store.clone(), store.clone());
        let (left, right) =
            race(move || own_or_pool(&a, &policies()), move || own_or_pool(&b, &policies()));
        assert_eq!([left[0] ^ right[0], left[1] ^ right[1]], [true, true], "{left:?} {right:?}");
        let [own, pool] = &policies();
        assert_eq!([remaining(&store, "own", own), remaining(&store, "pool", pool)], [0, 2]);
    });
}

#[test]
fn a_request_never_pays_twice_beside_a_check_of_its_share() {
    // Both counters are absent, so the batch also inserts them.
    static HAS_PAID_POOL: AtomicBool = AtomicBool::new(false);
    static HAS_PAID_OWN: AtomicBool = AtomicBool::new(false);
    model(|| {
        let store = Arc::new(store(2));
        let (a, b) = (store.clone(), store.clone());
        let (paid, single) =
            race(move || own_or_pool(&a, &policies()), move || passes(&b, "own", &policies()[0]));
        assert_eq!(single, paid[1], "the share has one token");
        let [own, pool] = &policies();
        let left = [remaining(&store, "own", own), remaining(&store, "pool", pool)];
        assert_eq!(left, [0, if paid[1] { 4 } else { 5 }]);
        HAS_PAID_POOL.fetch_or(paid[1], Ordering::Relaxed);
        HAS_PAID_OWN.fetch_or(paid[0], Ordering::Relaxed);
    });
    assert!(HAS_PAID_POOL.load(Ordering::Relaxed) && HAS_PAID_OWN.load(Ordering::Relaxed));
}
