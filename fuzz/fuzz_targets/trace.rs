//! The memory store and the oracle agree on any trace under any policy.

#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tollbar::{Policy, Rate, Timestamp, WarmUp};
use tollbar_testkit::duel::Duel;
use tollbar_testkit::memory_subject::MemorySubject;

#[derive(Debug, Arbitrary)]
struct Input {
    algorithm: u8,
    limit: u32,
    window_us: u32,
    burst: Option<u16>,
    subwindows: u8,
    /// Its start, how long it takes and in how many steps.
    warm_up: Option<(u32, u32, u8)>,
    start_us: u32,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
struct Step {
    advance_us: u32,
    /// How far the step goes: so that steps of a few microseconds are as likely as long ones.
    advance_shift: u8,
    key: bool,
    cost: u8,
}

/// The oracle looks at the whole log for every answer.
const STEPS_MAX: usize = 48;

fn policy(input: &Input) -> Option<Policy> {
    let rate = Rate::new(u64::from(input.limit), Duration::from_micros(input.window_us.into()));
    let policy = match input.algorithm % 6 {
        0 => Policy::token_bucket(rate),
        1 => Policy::leaky_bucket(rate),
        2 => Policy::fixed_window(rate),
        3 => Policy::sliding_window(rate),
        4 => Policy::sliding_window_strict(rate, u32::from(input.subwindows)),
        _ => Policy::sliding_window_log(rate),
    };
    let policy = match input.burst {
        Some(burst) if input.algorithm % 6 < 2 => policy.ok()?.with_burst(burst.into()).ok()?,
        _ => policy.ok()?,
    };
    let Some((start, over_us, steps)) = input.warm_up else {
        return Some(policy);
    };
    let (start, steps) = (start.into(), steps.into());
    policy.with_warm_up(WarmUp { start, over: Duration::from_micros(over_us.into()), steps }).ok()
}

fuzz_target!(|input: Input| {
    let Some(policy) = policy(&input) else { return };
    let mut now = Timestamp::from_micros(u64::from(input.start_us));
    let mut duel = Duel::new(Box::new(MemorySubject::at(now)));
    for step in input.steps.iter().take(STEPS_MAX) {
        let advance_us = step.advance_us >> (step.advance_shift % 32);
        now = now.after(Duration::from_micros(advance_us.into()));
        let key: &[u8] = if step.key { b"a" } else { b"b" };
        let answer = duel.check(now, key, &policy, step.cost.into());
        assert!(answer.is_ok(), "{}", answer.unwrap_err());
    }
});
