//! Tokens that are lent: tables worked out by hand, for stores that lend.

use std::time::Duration;

use tollbar::store::{Loan, LoanRequest};
use tollbar::{Outcome, Policy, Timestamp};

use super::{Case, minute_start};
use crate::subject::{Factory, Subject};

pub(super) const CASES: &[Case] = &[
    ("lent_tokens_cut_the_tolerance_of_a_bucket", lent_tokens_cut_the_tolerance_of_a_bucket),
    ("the_largest_cut_counts", the_largest_cut_counts),
    ("a_loan_of_nothing_changes_nothing", a_loan_of_nothing_changes_nothing),
    ("a_loan_ends_with_its_window", a_loan_ends_with_its_window),
    ("a_reset_leaves_no_cut_behind", a_reset_leaves_no_cut_behind),
    ("what_is_always_exact_is_not_lent", what_is_always_exact_is_not_lent),
];

const KEY: &[u8] = b"user:42";

/// A token takes 2 s, and five fit.
fn bucket() -> Policy {
    Policy::token_bucket("5/10s").expect("it is a policy")
}

fn at_ms(ms: u64) -> Timestamp {
    minute_start().after(Duration::from_millis(ms))
}

fn request(tokens: u64, term_ms: u64) -> LoanRequest {
    let term = Duration::from_millis(term_ms);
    LoanRequest { tokens, term, cut: term }
}

/// A store that lends, empty; `None` for one that does not.
fn lender(factory: &Factory<'_>) -> Option<Box<dyn Subject>> {
    let lends = |subject: &dyn Subject| {
        subject.lend(minute_start(), b"probe", &bucket(), request(1, 2_000)).decision.is_some()
    };
    Some(factory(minute_start())).filter(|subject| lends(&**subject))
}

/// Tokens, and for how many ms they live; then what remains, and in how many ms one more can be lent.
fn numbers(loan: Loan) -> (u64, u128, u64, Option<u64>) {
    let decision = loan.decision.expect("it lends");
    let retry_ms = match decision.outcome() {
        Outcome::Deny { retry_after_us } => Some(retry_after_us / 1_000),
        _ => None,
    };
    let remaining = decision.remaining().expect("the store has counted");
    (loan.tokens, loan.life.as_millis(), remaining, retry_ms)
}

fn denied_for_ms(subject: &dyn Subject, now: Timestamp, cost: u64) -> u64 {
    let answer = subject.check(now, KEY, &bucket(), cost);
    let Outcome::Deny { retry_after_us } = answer.outcome else { panic!("{answer:?}") };
    retry_after_us / 1_000
}

fn lent_tokens_cut_the_tolerance_of_a_bucket(factory: &Factory<'_>) {
    let Some(subject) = lender(factory) else { return };
    let policy = bucket();
    // Of 10 s, 2 s are cut: four tokens are left to lend.
    let loan = subject.lend(at_ms(0), KEY, &policy, request(9, 2_000));
    assert_eq!(numbers(loan), (4, 2_000, 0, Some(2_000)));
    assert_eq!(subject.peek(at_ms(0), KEY, &policy).reset_at, at_ms(10_000));
    assert_eq!(denied_for_ms(&*subject, at_ms(0), 1), 2_000);
    assert_eq!(denied_for_ms(&*subject, at_ms(0), 5), 10_000);
    assert_eq!(subject.check(at_ms(0), KEY, &policy, 6).outcome, Outcome::Never);
    // Paid at 8 s. The cut is gone at 10 s.
    for (ms, remaining) in [(8_000, 4), (9_999, 4), (10_000, 5)] {
        assert_eq!(subject.peek(at_ms(ms), KEY, &policy).remaining, remaining, "at {ms} ms");
    }
    assert_eq!(denied_for_ms(&*subject, at_ms(9_000), 5), 1_000);
    // A charge when 1 s of the cut is left stops it from shrinking until the charge is paid, at 11 s.
    assert_eq!(subject.check(at_ms(9_000), KEY, &policy, 1).outcome, Outcome::Allow);
    assert_eq!(denied_for_ms(&*subject, at_ms(9_000), 5), 3_000);
    assert_eq!(subject.check(at_ms(12_000), KEY, &policy, 5).outcome, Outcome::Allow);
}

fn the_largest_cut_counts(factory: &Factory<'_>) {
    let Some(subject) = lender(factory) else { return };
    let policy = bucket();
    assert_eq!(numbers(subject.lend(at_ms(0), KEY, &policy, request(1, 4_000))).0, 1);
    // A shorter term leaves the cut at 4 s: 2 s are owed, so two tokens are left.
    let loan = subject.lend(at_ms(0), KEY, &policy, request(1, 1_000));
    assert_eq!(numbers(loan), (1, 1_000, 1, None));
    // A longer one raises it to 6 s, and nothing is left under it: 4 s are owed.
    let loan = subject.lend(at_ms(0), KEY, &policy, request(1, 6_000));
    assert_eq!(numbers(loan), (0, 0, 1, Some(2_000)));
    let loan = subject.lend(at_ms(2_000), KEY, &policy, request(1, 6_000));
    assert_eq!(numbers(loan), (1, 6_000, 0, None));
}

fn a_loan_of_nothing_changes_nothing(factory: &Factory<'_>) {
    let Some(subject) = lender(factory) else { return };
    let policy = bucket();
    subject.check(at_ms(0), KEY, &policy, 4);
    // 8 s are owed: a check has 2 s left, and a loan under a cut of 2 s has nothing.
    let loan = subject.lend(at_ms(0), KEY, &policy, request(3, 2_000));
    assert_eq!(numbers(loan), (0, 0, 1, Some(2_000)));
    assert_eq!(numbers(subject.lend(at_ms(0), KEY, &policy, request(0, 2_000))), (0, 0, 1, None));
    assert_eq!(subject.check(at_ms(0), KEY, &policy, 1).outcome, Outcome::Allow);
    assert_eq!(denied_for_ms(&*subject, at_ms(0), 5), 10_000);
}

fn a_loan_ends_with_its_window(factory: &Factory<'_>) {
    let Some(subject) = lender(factory) else { return };
    let sliding = Policy::sliding_window("10/s").expect("it is a policy");
    for policy in [Policy::fixed_window("10/s").expect("it is a policy"), sliding] {
        subject.check(at_ms(0), KEY, &policy, 3);
        let loan =
            |ms, tokens| numbers(subject.lend(at_ms(ms), KEY, &policy, request(tokens, 400)));
        assert_eq!(loan(0, 2), (2, 400, 5, None));
        assert_eq!(loan(900, 2), (2, 100, 3, None));
        let (tokens, life_ms, remaining, retry_ms) = loan(950, 9);
        assert_eq!((tokens, life_ms, remaining), (3, 50, 0));
        // A sliding window has to let go of a tenth of it as well.
        let is_fixed = policy.algorithm().name() == "fixed_window";
        assert_eq!(retry_ms, Some(if is_fixed { 50 } else { 150 }));
        assert_eq!(loan(960, 1).0, 0);
    }
    let staggered = Policy::fixed_window("10/s").and_then(Policy::with_stagger);
    let staggered = staggered.expect("it is a policy");
    let begins_us = staggered.stagger_us(KEY).expect("it is staggered");
    let now = at_ms(1_970).after(Duration::from_micros(begins_us));
    assert_eq!(numbers(subject.lend(now, KEY, &staggered, request(2, 400))), (2, 30, 8, None));
}

fn a_reset_leaves_no_cut_behind(factory: &Factory<'_>) {
    let Some(subject) = lender(factory) else { return };
    let policy = bucket();
    subject.lend(at_ms(0), KEY, &policy, request(1, 2_000));
    subject.reset(at_ms(0), KEY, &policy);
    assert_eq!(subject.check(at_ms(1), KEY, &policy, 5).outcome, Outcome::Allow);
}

fn what_is_always_exact_is_not_lent(factory: &Factory<'_>) {
    let Some(subject) = lender(factory) else { return };
    for policy in [
        Policy::sliding_window_strict("10/s", 2),
        Policy::sliding_window_log("10/s"),
        Policy::leaky_queue("10/s", 2),
    ] {
        let policy = policy.expect("it is a policy");
        assert_eq!(subject.lend(at_ms(0), KEY, &policy, request(1, 400)), Loan::NONE);
        assert_eq!(subject.check(at_ms(0), KEY, &policy, 1).outcome, Outcome::Allow);
    }
}
