//! What every store does with strange keys, enormous numbers and a broken clock.

use tollbar::{Outcome, Policy, Timestamp};

use super::{Case, four_a_minute, is_denial, minute_start};
use crate::duel::Duel;
use crate::subject::{Factory, Subject};

pub(super) const CASES: &[Case] = &[
    ("the_empty_key_is_a_key", the_empty_key_is_a_key),
    ("keys_are_bytes", keys_are_bytes),
    ("keys_of_64_kib_differ_by_their_last_byte", keys_of_64_kib_differ_by_their_last_byte),
    ("cost_of_u64_max_charges_nothing", cost_of_u64_max_charges_nothing),
    ("limits_hold_at_the_beginning_of_time", limits_hold_at_the_beginning_of_time),
    ("limits_hold_at_the_end_of_time", limits_hold_at_the_end_of_time),
    ("a_clock_that_goes_back_mints_nothing", a_clock_that_goes_back_mints_nothing),
    ("a_clock_that_goes_back_agrees_with_the_oracle", a_clock_back_agrees_with_the_oracle),
];

/// Four pass, the fifth does not.
#[track_caller]
fn assert_four_pass(subject: &dyn Subject, now: Timestamp, key: &[u8], policy: &Policy) {
    for left in (0..4).rev() {
        let answer = subject.check(now, key, policy, 1);
        assert!(
            (answer.outcome, answer.remaining) == (Outcome::Allow, left),
            "store `{}` must allow with {left} left of {policy:?}: {answer:?}",
            subject.name(),
        );
    }
    for _ in 0..3 {
        let answer = subject.check(now, key, policy, 1);
        assert!(
            is_denial(answer.outcome),
            "store `{}` must deny the fifth of {policy:?}: {answer:?}",
            subject.name(),
        );
    }
}

fn the_empty_key_is_a_key(factory: &Factory<'_>) {
    let subject = factory(minute_start());
    for policy in &four_a_minute() {
        assert_four_pass(&*subject, minute_start(), b"", policy);
        assert_four_pass(&*subject, minute_start(), b"\0", policy);
    }
}

fn keys_are_bytes(factory: &Factory<'_>) {
    let subject = factory(minute_start());
    let keys: [&[u8]; 6] = [b"a", b"a\0", b"\xff\xfe", b"\xff", b"a\r\nDEL b", b"{a}:*"];
    for policy in &four_a_minute() {
        for key in keys {
            assert_four_pass(&*subject, minute_start(), key, policy);
        }
    }
}

fn keys_of_64_kib_differ_by_their_last_byte(factory: &Factory<'_>) {
    let subject = factory(minute_start());
    let mut key = vec![b'k'; 64 * 1024];
    for policy in &four_a_minute() {
        for last in [0, 1] {
            *key.last_mut().expect("the key is not empty") = last;
            assert_four_pass(&*subject, minute_start(), &key, policy);
        }
    }
}

fn cost_of_u64_max_charges_nothing(factory: &Factory<'_>) {
    let subject = factory(minute_start());
    for policy in &four_a_minute() {
        let answer = subject.check(minute_start(), b"", policy, u64::MAX);
        assert_eq!(answer.outcome, Outcome::Never, "store `{}`, {policy:?}", subject.name());
        assert_four_pass(&*subject, minute_start(), b"", policy);
    }
}

fn limits_hold_at_the_beginning_of_time(factory: &Factory<'_>) {
    let subject = factory(Timestamp::ZERO);
    for policy in &four_a_minute() {
        assert_four_pass(&*subject, Timestamp::ZERO, b"", policy);
        assert_four_pass(&*subject, Timestamp::from_micros(1), b"another", policy);
    }
}

fn limits_hold_at_the_end_of_time(factory: &Factory<'_>) {
    let subject = factory(Timestamp::MAX);
    for policy in &four_a_minute() {
        assert_four_pass(&*subject, Timestamp::MAX, b"", policy);
    }
}

fn a_clock_that_goes_back_mints_nothing(factory: &Factory<'_>) {
    for policy in &four_a_minute() {
        let subject = factory(minute_start());
        let start_us = minute_start().as_micros();
        assert_four_pass(&*subject, minute_start(), b"", policy);
        for back_us in [1, 15_000_000, 60_000_000, 600_000_000, start_us] {
            let answer = subject.check(Timestamp::from_micros(start_us - back_us), b"", policy, 1);
            assert!(
                is_denial(answer.outcome),
                "store `{}` minted a token for {policy:?} when the clock went back {back_us} us: \
                 {answer:?}",
                subject.name(),
            );
        }
    }
}

fn a_clock_back_agrees_with_the_oracle(factory: &Factory<'_>) {
    let times_s: [u64; 12] = [600, 601, 590, 540, 605, 480, 600, 660, 659, 30, 61, 700];
    for policy in &four_a_minute() {
        let start_us = minute_start().as_micros();
        let mut duel = Duel::new(factory(minute_start()));
        for time_s in times_s {
            let now = Timestamp::from_micros(start_us + time_s * 1_000_000);
            for cost in [0, 1, 2, 5, 1] {
                duel.check(now, b"", policy, cost).unwrap_or_else(|story| panic!("{story}"));
            }
        }
    }
}
