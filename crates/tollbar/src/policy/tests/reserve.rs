//! Policies of which a part is reserved for others.

use super::warm_up::OpenDoor;
use super::*;
use crate::{Outcome, Timestamp};

fn table() -> Vec<(Policy, u64)> {
    let queue = || Policy::leaky_queue("999999999/s", 9);
    let permits = || Policy::concurrency(10);
    let table = [
        (Policy::token_bucket("10/s"), 10),
        (Policy::token_bucket("10/s").unwrap().with_burst(50).unwrap().with_overdraft(7), 50),
        (Policy::leaky_bucket("175000/s").unwrap().with_burst(30), 30),
        (queue(), 10),
        (queue().unwrap().with_max_wait(Duration::from_micros(1)), 10),
        (Policy::fixed_window("10/min"), 10),
        (Policy::fixed_window("10/min").unwrap().with_stagger(), 10),
        (Policy::calendar_window(10, Period::Month), 10),
        (Policy::sliding_window("10/min"), 10),
        (Policy::sliding_window_strict("10/min", 4), 10),
        (Policy::sliding_window_log("10/min"), 10),
        (permits(), 10),
        (permits().unwrap().leased(Duration::from_secs(9)), 10),
    ];
    table.map(|(policy, capacity)| (policy.unwrap().with_name("api"), capacity)).into()
}

#[test]
fn a_reserve_lowers_what_can_pass_on_the_same_counter() {
    for (policy, capacity) in table() {
        let lower = policy.reserving(3).unwrap();
        assert_eq!((policy.capacity(), lower.capacity()), (capacity, capacity - 3), "{policy}");
        assert_eq!(lower.identity(), policy.identity());
        assert_eq!(lower.interval(), policy.interval(), "a token takes as long to earn");
        assert_eq!(policy.reserving(0).unwrap(), policy);
        assert_ne!(lower, policy, "another number is another question to a deny cache");
        let too_large = PolicyError::ReserveTooLarge { reserved: capacity, capacity };
        assert_eq!(policy.reserving(capacity).unwrap_err(), too_large);
    }
}

/// A reservation that was made under it is settled by what its receipt says.
#[test]
fn it_is_the_same_when_it_is_read_back() {
    for (policy, _) in table() {
        let lower = policy.reserving(3).unwrap();
        let mut bytes = Vec::new();
        assert!(lower.write_code(&mut bytes));
        let read = Policy::read_code(&mut bytes.as_slice()).unwrap();
        assert_eq!((read.interval(), read.memory()), (lower.interval(), lower.memory()), "{lower}");
        assert_eq!(read, lower);
    }
}

/// Whoever may take the reserve leaves a debt that others wait for. It is no counter ahead of the clock.
#[test]
fn no_denial_asks_to_wait_for_longer_than_a_charge_counts() {
    let now = Timestamp::from_micros(1_700_000_000_000_001);
    for (policy, capacity) in table().into_iter().filter(|(policy, _)| !policy.has_permits()) {
        let lower = policy.reserving(capacity - 1).unwrap();
        let mut words = vec![0; policy.algorithm().words()];
        assert!(policy.algorithm().transition(&mut words, now, capacity).is_allowed());
        let denied = lower.algorithm().transition(&mut words, now, 1);
        let Outcome::Deny { retry_after_us } = denied.outcome() else { panic!("{denied:?}") };
        let memory = lower.memory().unwrap();
        assert!(retry_after_us <= memory.as_micros() as u64, "{lower}: {retry_after_us}");
        let later = now.after(Duration::from_micros(retry_after_us));
        assert!(lower.algorithm().transition(&mut words, later, 1).is_allowed(), "{lower}");
    }
}

#[test]
fn what_warms_up_and_an_algorithm_of_ones_own_reserve_nothing() {
    let warm_up = WarmUp { start: 2, over: Duration::from_mins(1), steps: 4 };
    let warm = Policy::fixed_window("10/min").unwrap().with_warm_up(warm_up).unwrap();
    assert_eq!(
        warm.reserving(1).unwrap_err().to_string(),
        "a limit with a warm-up cannot be reserved in part: leave the reserve out, or the warm-up"
    );
    assert_eq!(
        Policy::custom(OpenDoor).unwrap().reserving(1).unwrap_err().to_string(),
        "an algorithm of your own cannot be reserved in part: leave the reserve out, or use one of this crate"
    );
}
