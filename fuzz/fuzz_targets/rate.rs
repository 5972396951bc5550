//! Any text is a rate or a clear error, and any rate a policy or a clear error. No panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollbar::{Policy, Rate, Timestamp};

fuzz_target!(|input: (&str, u64, u32)| {
    let (text, burst, subwindows) = input;
    let rate = match text.parse::<Rate>() {
        Ok(rate) => rate,
        Err(error) => {
            assert!(error.to_string().len() < 400, "{error}");
            return;
        }
    };
    let policies = [
        Policy::token_bucket(rate),
        Policy::token_bucket(rate).and_then(|policy| policy.with_burst(burst)),
        Policy::leaky_bucket(rate),
        Policy::fixed_window(rate),
        Policy::sliding_window(rate),
        Policy::sliding_window_strict(rate, subwindows),
    ];
    for policy in policies.into_iter().flatten() {
        let mut state = vec![0; policy.algorithm().words()];
        for now in [Timestamp::ZERO, Timestamp::from_micros(burst), Timestamp::MAX] {
            for cost in [0, 1, policy.capacity(), burst, u64::MAX] {
                policy.algorithm().transition(&mut state, now, cost);
            }
        }
    }
});
