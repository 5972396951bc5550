//! Strict windows of any length: a client that always asks gets n / (n + 1) of the limit.
//!
//! Strict windows of a few microseconds once gave less: 15 us in 10 parts were 10 parts of 2 us, so
//! a client got 69 tokens where 91 were promised.

use std::time::Duration;

use proptest::prelude::*;
use tollbar::algorithm::sliding_strict::SUBWINDOWS_MAX;
use tollbar::{Outcome, Policy, PolicyError, Rate, Timestamp};
use tollbar_testkit::strategy::cases;

const LIMIT: u64 = 3;

fn strict(window_us: u64, subwindows: u32) -> Result<Policy, PolicyError> {
    Policy::sliding_window_strict(Rate::new(LIMIT, Duration::from_micros(window_us)), subwindows)
}

/// Asks for one token at every instant at which it could pass, and checks the bound over the time
/// from the first request until just before each later one. A thousandth less is what the documents
/// allow where the window is not a multiple of its parts.
fn assert_greedy_client_gets_its_share(policy: &Policy, start_us: u64) {
    let parts = u128::from(policy.algorithm().variant());
    let window_us = policy.window().as_micros();
    let mut state = vec![0; policy.algorithm().words()];
    let (mut now_us, mut admitted) = (start_us, 0_u128);
    while admitted < 5 * u128::from(LIMIT) {
        let now = Timestamp::from_micros(now_us);
        match policy.algorithm().transition(&mut state, now, 1).outcome() {
            Outcome::Allow => admitted += 1,
            Outcome::Deny { retry_after_us } => now_us += retry_after_us,
            outcome => panic!("one token always fits: {outcome:?}"),
        }
        let asked_us = u128::from(now_us - start_us);
        let promised = u128::from(LIMIT) * asked_us * parts * 1_000;
        let got = admitted * window_us * (parts + 1) * 1_001;
        assert!(got >= promised, "{admitted} in {asked_us} us under {policy:?}");
    }
}

/// Of a refused policy, how many parts it could have, and which longer window. `None` where it is
/// accepted.
fn suggested(window_us: u64, subwindows: u32) -> Option<(u32, u64)> {
    match strict(window_us, subwindows) {
        Ok(_) => None,
        Err(PolicyError::UnevenSubwindows { fewer, longer_us, .. }) => Some((fewer, longer_us)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_short_window_gives_a_greedy_client_its_share_or_is_refused() {
    let start_us = 1_700_000_000_000_000;
    for subwindows in 1..=SUBWINDOWS_MAX {
        for window_us in 1..=1_500 {
            match strict(window_us, subwindows) {
                Ok(policy) => {
                    assert_greedy_client_gets_its_share(&policy, start_us + window_us / 3);
                }
                Err(_) => assert!(!window_us.is_multiple_of(u64::from(subwindows))),
            }
        }
    }
}

#[test]
fn numbers_that_a_refusal_suggests_are_accepted_and_nearest() {
    for subwindows in 1..=SUBWINDOWS_MAX {
        for window_us in 1..=300 {
            let Some((fewer, longer_us)) = suggested(window_us, subwindows) else { continue };
            assert!(fewer < subwindows && longer_us > window_us);
            assert!(strict(window_us, fewer).is_ok() && strict(longer_us, subwindows).is_ok());
            assert!((fewer + 1..subwindows).all(|parts| strict(window_us, parts).is_err()));
            assert_eq!(longer_us, window_us.next_multiple_of(subwindows.into()));
        }
    }
    assert_eq!(suggested(15, 10), Some((5, 20)));
}

#[test]
fn parts_may_exceed_their_window_by_a_thousandth_and_no_more() {
    // 7 parts of 143 us are 1,001 us, 7 parts of 142 us are 994 us.
    assert_eq!(suggested(1_000, 7), None);
    assert_eq!(suggested(993, 7), Some((3, 994)));
    // 62 parts exceed a window by 61 us at most.
    assert!((61_000..61_062).all(|window_us| suggested(window_us, 62).is_none()));
    assert_eq!(suggested(60_947, 62), Some((61, 61_008)));
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn every_long_window_gives_a_greedy_client_its_share(
        window_us in prop_oneof![1_500_u64..61_000, 61_000_u64..100_000_000_000],
        subwindows in 1..=SUBWINDOWS_MAX,
        start_us in 1_600_000_000_000_000_u64..1_700_000_000_000_000,
    ) {
        match strict(window_us, subwindows) {
            Ok(policy) => assert_greedy_client_gets_its_share(&policy, start_us),
            Err(_) => prop_assert!(window_us < 61_000),
        }
    }
}
