//! Any bytes are a snapshot or a clear error, also where their checksum is right. What is restored counts, and can be
//! written and restored again.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tollbar::{ManualClock, MemoryStore, MemoryStoreBuilder, Policy, Timestamp};

static POLICIES: LazyLock<Vec<Policy>> = LazyLock::new(|| {
    let policies = [
        Policy::token_bucket("10/min"),
        Policy::sliding_window("10/min"),
        Policy::sliding_window_strict("10/min", 10),
        Policy::sliding_window_log("10/min"),
        Policy::fixed_window("10/min"),
        Policy::leaky_queue("10/min", 5),
    ];
    policies.into_iter().map(|policy| policy.expect("in order")).collect()
});

/// The sizes of the stores: one as small as the seeds are of, and one that takes snapshots of any size.
const SIZES: [usize; 2] = [4, 600];

fn builder(keys_max: usize) -> MemoryStoreBuilder {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let builder = MemoryStore::builder().max_keys(keys_max).max_wide_keys(64).max_log_stamps(4_096);
    builder.max_leases(512).max_request_ids(64).clock(clock)
}

fuzz_target!(|bytes: &[u8]| {
    let whole = [bytes, &crc32fast::hash(bytes).to_le_bytes()].concat();
    for (bytes, keys_max) in [(bytes, SIZES[0]), (&whole, SIZES[0]), (&whole, SIZES[1])] {
        let store = match builder(keys_max).restore(&mut &*bytes) {
            Ok(store) => store,
            Err(error) => {
                assert!(error.to_string().len() < 400, "{error}");
                continue;
            }
        };
        for policy in &*POLICIES {
            for key in [&b"a"[..], b"user:42", b""] {
                let left = store.check_now(key, policy, 0).remaining().unwrap_or(0);
                assert!(left <= policy.capacity(), "{policy}: {left} left");
                store.check_now(key, policy, 1);
            }
        }
        let mut again = Vec::new();
        store.write_snapshot(&mut again).expect("it is written to memory");
        builder(keys_max).restore(&mut &*again).expect("we wrote it");
    }
});
