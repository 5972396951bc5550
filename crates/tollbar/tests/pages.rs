//! The parts with `unsafe` behind them, small enough to run under valgrind: tables of every size,
//! their memory touched from the first line to the last, and prefetched.

use tollbar::{Limiter, ManualClock, MemoryStore, Policy, Timestamp};

#[test]
fn tables_of_every_size_are_touched_to_their_ends() {
    let policy = Policy::token_bucket("2/month").unwrap().with_name("bucket");
    let strict = Policy::sliding_window_strict("2/month", 60).unwrap().with_name("strict");
    // The last is large enough for huge pages.
    for max_keys in [1, 2, 3, 5, 64, 1_000, 140_000] {
        let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
        let store = MemoryStore::builder().max_keys(max_keys).max_wide_keys(8).clock(clock).build();
        let store = std::sync::Arc::new(store);
        let limiter = Limiter::builder(policy.clone()).store(store.clone()).build().unwrap();
        let wide = Limiter::builder(strict.clone()).store(store.clone()).build().unwrap();
        let keys: Vec<String> = (0..max_keys.min(5_000)).map(|key| format!("key:{key}")).collect();
        let mut decisions = Vec::new();
        limiter.check_many(&keys, &mut decisions);
        assert_eq!(decisions.len(), keys.len());
        assert!(decisions.iter().all(tollbar::Decision::is_allowed));
        assert!(keys.iter().take(100).all(|key| wide.check(key).is_allowed()));
        assert!(store.stats().live_keys > 0);
    }
}
