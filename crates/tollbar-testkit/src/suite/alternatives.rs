//! Requests that may pay in one of several ways: what every store does.

use std::time::Duration;

use tollbar::store::{Adjustment, Alternative, Hold, Once, ReservationId, Spending};
use tollbar::{Batch, Charge, Entry, Outcome, Policy, Role, Timestamp};

use super::{Case, minute_start};
use crate::answer::Answer;
use crate::oracle::OracleEntry;
use crate::subject::{Factory, Subject};

pub(super) const CASES: &[Case] = &[
    ("the_first_alternative_that_allows_pays", the_first_alternative_that_allows_pays),
    ("an_alternative_pays_in_whole_or_not_at_all", an_alternative_pays_in_whole_or_not_at_all),
    ("a_request_denied_by_one_group_pays_no_other", a_denial_by_one_group_pays_no_other),
    ("a_counter_may_be_in_several_alternatives", a_counter_may_be_in_several_alternatives),
    ("a_shadow_group_never_denies", a_shadow_group_never_denies),
    ("what_another_alternative_paid_comes_back", what_another_alternative_paid_comes_back),
    ("a_repeated_request_names_the_alternative_that_paid", a_repeat_names_what_paid),
];

const OWN: &[u8] = b"own";
const POOL: &[u8] = b"pool";
const CAP: &[u8] = b"cap";
const ROOT: &[u8] = b"root";

/// Four tokens a minute.
fn four() -> Policy {
    Policy::fixed_window("4/min").expect("a rate")
}

fn plain<'a>(key: &'a [u8], policy: &'a Policy, cost: u64) -> OracleEntry<'a> {
    OracleEntry { key, policy, cost, role: Role::Enforce, alternative: None }
}

fn placed<'a>(order: u8, key: &'a [u8], policy: &'a Policy, cost: u64) -> OracleEntry<'a> {
    OracleEntry { alternative: Some(Alternative { group: 0, order }), ..plain(key, policy, cost) }
}

fn ask(subject: &dyn Subject, now: Timestamp, batch: &[OracleEntry<'_>]) -> Vec<Answer> {
    subject.check_all(now, Charge::AllOrNone, batch)
}

fn outcomes(answers: &[Answer]) -> Vec<bool> {
    answers.iter().map(|answer| answer.outcome == Outcome::Allow).collect()
}

#[track_caller]
fn assert_left(subject: &dyn Subject, now: Timestamp, policy: &Policy, left: &[(&[u8], u64)]) {
    for (key, expected) in left {
        let answer = subject.peek(now, key, policy);
        let name = String::from_utf8_lossy(key);
        assert_eq!(answer.remaining, *expected, "store `{}`, key {name}", subject.name());
    }
}

fn the_first_alternative_that_allows_pays(factory: &Factory<'_>) {
    let (subject, now, policy) = (&*factory(minute_start()), minute_start(), &four());
    let batch = [placed(0, OWN, policy, 3), placed(1, POOL, policy, 3)];
    assert_eq!(outcomes(&ask(subject, now, &batch)), [true, true]);
    assert_left(subject, now, policy, &[(OWN, 1), (POOL, 4)]);
    let second = ask(subject, now, &batch);
    assert_eq!(outcomes(&second), [false, true]);
    assert_eq!(second[1].remaining, 1);
    assert_left(subject, now, policy, &[(OWN, 1), (POOL, 1)]);
    assert_eq!(outcomes(&ask(subject, now, &batch)), [false, false]);
    assert_left(subject, now, policy, &[(OWN, 1), (POOL, 1)]);
}

fn an_alternative_pays_in_whole_or_not_at_all(factory: &Factory<'_>) {
    let policy = &four();
    // Counters that a store knows, and counters that it does not: the memory store decides these in different ways.
    for is_known in [false, true] {
        let (subject, now) = (&*factory(minute_start()), minute_start());
        let used = u64::from(is_known);
        subject.check(now, CAP, policy, 3);
        subject.check(now, POOL, policy, used);
        subject.check(now, OWN, policy, used);
        let batch =
            [placed(0, POOL, policy, 2), placed(0, CAP, policy, 2), placed(1, OWN, policy, 2)];
        let answers = ask(subject, now, &batch);
        assert_eq!(outcomes(&answers), [true, false, true]);
        assert_eq!(answers[0].remaining, 4 - used, "what was not taken remains");
        assert_left(subject, now, policy, &[(POOL, 4 - used), (CAP, 1), (OWN, 2 - used)]);
    }
}

fn a_denial_by_one_group_pays_no_other(factory: &Factory<'_>) {
    let (subject, now, policy) = (&*factory(minute_start()), minute_start(), &four());
    subject.check(now, ROOT, policy, 4);
    let batch = [placed(0, OWN, policy, 1), placed(1, POOL, policy, 1), plain(ROOT, policy, 1)];
    assert_eq!(outcomes(&ask(subject, now, &batch)), [true, true, false]);
    assert_left(subject, now, policy, &[(OWN, 4), (POOL, 4)]);
}

/// As a tree of shares needs it: the cap of a child is charged by every pool above it.
fn a_counter_may_be_in_several_alternatives(factory: &Factory<'_>) {
    let (subject, now, policy) = (&*factory(minute_start()), minute_start(), &four());
    subject.check(now, OWN, policy, 4);
    let batch = [
        placed(0, OWN, policy, 2),
        placed(1, POOL, policy, 2),
        placed(1, CAP, policy, 2),
        placed(2, ROOT, policy, 2),
        placed(2, CAP, policy, 2),
    ];
    for (left_in_pool, left_under_cap) in [(2, 2), (0, 0), (0, 0)] {
        ask(subject, now, &batch);
        assert_left(
            subject,
            now,
            policy,
            &[(POOL, left_in_pool), (CAP, left_under_cap), (ROOT, 4)],
        );
    }
    subject.store().reset(POOL, policy).wait().expect("a store resets");
    subject.check(now, POOL, policy, 4);
    subject.store().reset(CAP, policy).wait().expect("a store resets");
    assert_eq!(outcomes(&ask(subject, now, &batch)), [false, false, true, true, true]);
    assert_left(subject, now, policy, &[(CAP, 2), (ROOT, 2)]);
}

fn a_shadow_group_never_denies(factory: &Factory<'_>) {
    let (subject, now, policy) = (&*factory(minute_start()), minute_start(), &four());
    let shadow = |entry| OracleEntry { role: Role::Shadow, ..entry };
    let batch = [
        plain(ROOT, policy, 1),
        shadow(placed(0, OWN, policy, 4)),
        shadow(placed(1, POOL, policy, 4)),
    ];
    for (expected, left) in
        [([true; 3], (0, 4)), ([true, false, true], (0, 0)), ([true, false, false], (0, 0))]
    {
        assert_eq!(outcomes(&ask(subject, now, &batch)), expected);
        assert_left(subject, now, policy, &[(OWN, left.0), (POOL, left.1)]);
    }
    assert_left(subject, now, policy, &[(ROOT, 1)]);
}

fn entries(policy: &Policy, cost: u64) -> [Entry<'_>; 2] {
    [(OWN, 0), (POOL, 1)].map(|(key, order)| {
        let alternative = Alternative { group: 0, order };
        Entry::new(key, policy).with_cost(cost).with_alternative(alternative)
    })
}

fn what_another_alternative_paid_comes_back(factory: &Factory<'_>) {
    let (subject, now, policy) = (&*factory(minute_start()), minute_start(), &four());
    subject.check(now, OWN, policy, 2);
    let ttl = Duration::from_secs(30);
    let hold = Hold { id: ReservationId(7), ttl };
    let mut entries = entries(policy, 3);
    let batch = Batch::all_or_none(&mut entries).held(hold);
    subject.store().decide(batch).wait().expect("a store reserves");
    let paid: Vec<bool> = entries.iter().map(Entry::is_paid).collect();
    assert_eq!(paid, [false, true], "store `{}`", subject.name());
    assert_left(subject, now, policy, &[(OWN, 2), (POOL, 1)]);
    let spending = Spending { reserved: 3, spent: 1 };
    let paid = entries.iter().filter(|entry| entry.is_paid());
    let mut adjustments: Vec<Adjustment<'_>> = paid
        .map(|entry| Adjustment::new(entry.key(), entry.policy(), entry.stamp(), spending))
        .collect();
    let settled = subject.store().settle(hold.id.into(), &mut adjustments).wait();
    assert!(settled.expect("a store settles"), "store `{}`", subject.name());
    assert_left(subject, now, policy, &[(OWN, 2), (POOL, 3)]);
}

fn a_repeat_names_what_paid(factory: &Factory<'_>) {
    let (subject, now, policy) = (&*factory(minute_start()), minute_start(), &four());
    subject.check(now, OWN, policy, 2);
    for _ in 0..2 {
        let mut entries = entries(policy, 3);
        let once = Once::new(b"request", Duration::from_secs(30));
        let batch = Batch::all_or_none(&mut entries).once(once);
        subject.store().decide(batch).wait().expect("a store remembers requests");
        let paid: Vec<bool> = entries.iter().map(Entry::is_paid).collect();
        assert_eq!(paid, [false, true], "store `{}`", subject.name());
    }
    assert_left(subject, now, policy, &[(OWN, 2), (POOL, 1)]);
}
