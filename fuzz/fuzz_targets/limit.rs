//! Any text and options are a limit or a clear error; its share is a policy too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollbar_rules::{Limit, LimitOptions};

fuzz_target!(|input: (&str, Option<u64>, bool, Option<i32>, Option<u32>, u64)| {
    let (text, burst, staggered, utc_offset_minutes, subwindows, node_count) = input;
    let mut options = LimitOptions::default();
    options.burst = burst;
    options.staggered = staggered;
    options.utc_offset_minutes = utc_offset_minutes;
    options.subwindows = subwindows;
    match Limit::new(text, options) {
        Ok(limit) => {
            let share = limit.policy().share(node_count);
            assert!(share.capacity() >= 1 && share.capacity() <= limit.policy().capacity());
            assert_eq!(share.algorithm().name(), limit.policy().algorithm().name());
        }
        Err(error) => assert!(error.to_string().len() < 400, "{error}"),
    }
});
