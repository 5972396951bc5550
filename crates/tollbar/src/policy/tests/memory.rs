//! How long a charge can count, and that no denial asks to wait for longer.

use super::warm_up::OpenDoor;
use super::*;
use crate::{Outcome, Timestamp};

const CLIMB: WarmUp = WarmUp { start: 2, over: Duration::from_mins(1), steps: 4 };

/// Every kind of policy that time pays, with how long a charge can count, in microseconds.
fn table() -> Vec<(Policy, u64)> {
    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 86_400 * SECOND;
    let warm = |policy: Result<Policy, PolicyError>| policy.unwrap().with_warm_up(CLIMB);
    let bucket = || Policy::token_bucket("10/s").unwrap().with_burst(50).unwrap();
    let table = [
        (Policy::token_bucket("10/s"), SECOND),
        (Ok(bucket()), 5 * SECOND),
        (bucket().with_overdraft(20), 7 * SECOND),
        // An interval of 40/7 us: three of them are 17.14 us, rounded up.
        (Policy::token_bucket("175000/s").unwrap().with_burst(3), 18),
        (Policy::leaky_bucket("10/s"), SECOND),
        // Four wait and one is on its way out.
        (Policy::leaky_queue("2/s", 4), 5 * SECOND / 2),
        (Policy::leaky_queue("2/s", 4).unwrap().with_max_wait(Duration::ZERO), 5 * SECOND / 2),
        (Policy::fixed_window("10/min"), 60 * SECOND),
        (Policy::fixed_window("10/min").unwrap().with_stagger(), 60 * SECOND),
        (Policy::calendar_window(10, Period::Day), DAY),
        (Policy::calendar_window(10, Period::Week), 7 * DAY),
        (Policy::calendar_window(10, Period::Month), 31 * DAY),
        (Policy::sliding_window("10/min"), 120 * SECOND),
        // Ten sub-windows of six seconds and the one that is going on.
        (Policy::sliding_window_strict("10/min", 10), 66 * SECOND),
        // Sub-windows of 142,858 us, rounded up.
        (Policy::sliding_window_strict("10/s", 7), 8 * 142_858),
        (Policy::sliding_window_log("10/min"), 60 * SECOND),
        // Fifty tokens at 2/s, and the minute of the climb.
        (warm(Ok(bucket())), 85 * SECOND),
        (warm(Policy::fixed_window("10/min")), 120 * SECOND),
        (warm(Policy::calendar_window(10, Period::Month)), 31 * DAY + 60 * SECOND),
        (warm(Policy::sliding_window("10/min")), 180 * SECOND),
        (warm(Policy::sliding_window_strict("10/min", 10)), 126 * SECOND),
        (warm(Policy::sliding_window_log("10/min")), 120 * SECOND),
    ];
    table.map(|(policy, memory_us)| (policy.unwrap(), memory_us)).into()
}

#[test]
fn a_charge_counts_for_as_long_as_its_algorithm_remembers() {
    for (policy, memory_us) in table() {
        assert_eq!(policy.memory(), Some(Duration::from_micros(memory_us)), "{policy:?}");
    }
}

#[test]
fn permits_count_until_they_are_given_back() {
    let permits = Policy::concurrency(3).unwrap();
    assert_eq!(permits.clone().leased(Duration::from_secs(9)).unwrap().memory(), None);
    assert_eq!(permits.memory(), None);
    assert_eq!(Policy::custom(OpenDoor).unwrap().memory(), None);
}

proptest! {
    #[test]
    fn no_denial_asks_to_wait_for_longer_than_a_charge_can_count(
        requests in prop::collection::vec((0_u64..8_000_000, 1_u64..12), 1..60),
    ) {
        for (policy, memory_us) in table() {
            let algorithm = policy.algorithm();
            let mut state = vec![0; algorithm.words()];
            let mut now_us = 1_700_000_000_000_000;
            for (step_us, cost) in &requests {
                now_us += step_us;
                let decision =
                    algorithm.transition(&mut state, Timestamp::from_micros(now_us), *cost);
                if let Outcome::Deny { retry_after_us } = decision.outcome() {
                    prop_assert!(retry_after_us <= memory_us, "{policy:?} {decision:?}");
                }
            }
        }
    }
}
