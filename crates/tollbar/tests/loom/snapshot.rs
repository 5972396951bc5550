//! A snapshot that is taken while checks go on: every counter is in it, once, as it was before or
//! after the check.

use loom::sync::Arc;
use tollbar::{ManualClock, MemoryStore, Policy, Timestamp};

use super::{model, passes, race, remaining, store};

fn snapshot(store: &MemoryStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.write_snapshot(&mut bytes).unwrap();
    bytes
}

fn restored(bytes: &[u8]) -> MemoryStore {
    let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
    let builder = MemoryStore::builder().max_keys(2).max_wide_keys(1).clock(clock);
    builder.restore(&mut &bytes[..]).unwrap()
}

#[test]
fn a_counter_that_is_charged_meanwhile_is_in_the_snapshot() {
    model(|| {
        let store = Arc::new(store(2));
        let policy = Policy::token_bucket("5/min").unwrap();
        assert!(passes(&store, "key", &policy));
        let (a, b, p) = (store.clone(), store.clone(), policy.clone());
        let (bytes, passed) = race(move || snapshot(&a), move || passes(&b, "key", &p));
        assert!(passed);
        let left = remaining(&restored(&bytes), "key", &policy);
        assert!(left == 4 || left == 3, "{left}");
    });
}

#[test]
fn a_counter_that_moves_out_of_the_table_meanwhile_is_in_the_snapshot() {
    model(|| {
        let store = Arc::new(store(2));
        let small = Policy::sliding_window("10/s").unwrap();
        let large = Policy::sliding_window("100000/s").unwrap();
        assert!(passes(&store, "key", &small));
        let (a, b, p) = (store.clone(), store.clone(), large.clone());
        let (bytes, passed) = race(move || snapshot(&a), move || passes(&b, "key", &p));
        assert!(passed);
        let left = remaining(&restored(&bytes), "key", &large);
        assert!(left == 99_999 || left == 99_998, "{left}");
    });
}

#[test]
fn a_counter_that_would_move_into_the_table_meanwhile_is_in_the_snapshot() {
    model(|| {
        let store = Arc::new(store(2));
        let small = Policy::sliding_window("10/s").unwrap();
        let large = Policy::sliding_window("100000/s").unwrap();
        assert!(passes(&store, "key", &large));
        let (a, b, p) = (store.clone(), store.clone(), small.clone());
        let (bytes, passed) = race(move || snapshot(&a), move || passes(&b, "key", &p));
        assert!(passed);
        let left = remaining(&restored(&bytes), "key", &small);
        assert!(left == 9 || left == 8, "{left}");
    });
}
