//! What every store does when the numbers of a rule change to and fro under a client that takes all it gets.

use tollbar::{Outcome, Policy, Timestamp};

use super::{Case, minute_start};
use crate::subject::Factory;

pub(super) const CASES: &[Case] = &[
    ("a_toggled_burst_forgives_nothing", a_toggled_burst_forgives_nothing),
    ("a_toggled_rate_forgives_half_a_burst_at_most", a_toggled_rate_forgives_half_a_burst_at_most),
    ("a_toggled_window_counts_on", a_toggled_window_counts_on),
];

const TICK_US: u64 = 10_000;
const CHANGE_EVERY_US: u64 = 500_000;
const DURATION_US: u64 = 8_000_000;

/// What passes in 8 s of a client that asks every 10 ms until it is denied, while the rule changes from the first
/// of `policies` to the second and back every half a second.
fn admitted(factory: &Factory<'_>, policies: &[Policy; 2]) -> u64 {
    let subject = factory(minute_start());
    let mut admitted = 0;
    for after_us in (0..DURATION_US).step_by(TICK_US as usize) {
        let policy = &policies[(after_us / CHANGE_EVERY_US % 2) as usize];
        let now = Timestamp::from_micros(minute_start().as_micros() + after_us);
        while subject.check(now, b"user:42", policy, 1).outcome == Outcome::Allow {
            admitted += 1;
            assert!(admitted <= 1_000, "store `{}` denies nothing", subject.name());
        }
    }
    admitted
}

fn bucket(rate: &str, burst: u64) -> Policy {
    Policy::token_bucket(rate).and_then(|policy| policy.with_burst(burst)).expect("it is a policy")
}

/// Each change to the smaller burst once forgave what was owed beyond it: 888 passed.
fn a_toggled_burst_forgives_nothing(factory: &Factory<'_>) {
    let admitted = admitted(factory, &[bucket("20/s", 100), bucket("20/s", 10)]);
    // The larger burst, and 20 in each of 8 seconds. The last half a second is under the smaller burst, beyond which
    // more is owed.
    assert!((249..=260).contains(&admitted), "{admitted}");
}

/// A bucket owes time, so a change of the rate keeps the time that is owed. At 40/s a full debt of 20 tokens is
/// 500 ms. At 20/s that is 10 tokens, so the change forgives 10: `1 - 20/40` of a burst. Back at 40/s the debt of 20
/// tokens, 1 s, is 40 tokens: nothing is forgiven, and the client waits until half of it is paid.
///
/// So in each half a second at 20/s the client gets the 10 that were forgiven and the 10 that it earns, and at 40/s
/// nothing, once the first burst is spent. When each change cut the debt, 321 and 332 passed.
fn a_toggled_rate_forgives_half_a_burst_at_most(factory: &Factory<'_>) {
    let [slow, fast] = [bucket("20/s", 20), bucket("40/s", 20)];
    assert_eq!(admitted(factory, &[slow.clone(), fast.clone()]), 170);
    assert_eq!(admitted(factory, &[fast, slow]), 199);
}

/// A window keeps its count: the larger limit holds for each window, whenever the smaller one came between.
fn a_toggled_window_counts_on(factory: &Factory<'_>) {
    let windows = [Policy::fixed_window("100/s"), Policy::fixed_window("10/s")];
    let admitted = admitted(factory, &windows.map(|window| window.expect("it is a policy")));
    assert_eq!(admitted, 100 * 8);
}
