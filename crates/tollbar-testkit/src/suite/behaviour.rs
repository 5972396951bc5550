//! What every store does on a good day.

use std::time::Duration;

use tollbar::store::{Adjustment, Hold, ReservationId, Spending};
use tollbar::{Charge, Concurrency, Outcome, Period, Policy, Role, Timestamp};

use super::{Case, four_a_minute, is_denial, minute_start};
use crate::oracle::OracleEntry;
use crate::spec::{Kind, PolicySpec};
use crate::subject::{Factory, Subject};

pub(super) const CASES: &[Case] = &[
    ("peek_charges_nothing", peek_charges_nothing),
    ("denied_request_charges_nothing", denied_request_charges_nothing),
    ("retry_after_is_honest", retry_after_is_honest),
    ("reset_makes_one_counter_fresh", reset_makes_one_counter_fresh),
    ("a_reset_ends_what_was_reserved_before_it", a_reset_ends_what_was_reserved_before_it),
    ("cost_above_capacity_is_never", cost_above_capacity_is_never),
    ("denied_batch_charges_nothing", denied_batch_charges_nothing),
    ("allowed_batch_charges_every_entry", allowed_batch_charges_every_entry),
    ("independent_entries_are_charged_by_themselves", independent_entries_charge_by_themselves),
    ("shadow_never_denies", shadow_never_denies),
    ("shadow_is_charged_only_with_the_batch", shadow_is_charged_only_with_the_batch),
    ("same_counter_twice_counts_twice", same_counter_twice_counts_twice),
    ("an_empty_batch_is_answered", an_empty_batch_is_answered),
    ("algorithms_and_windows_do_not_share_counters", algorithms_and_windows_do_not_share),
    ("a_changed_limit_keeps_its_counter", a_changed_limit_keeps_its_counter),
    ("permits_are_in_flight_until_they_come_back", permits_are_in_flight_until_they_come_back),
    ("no_more_permits_come_back_than_are_out", no_more_permits_come_back_than_are_out),
    ("a_rate_beside_permits_stays_paid", a_rate_beside_permits_stays_paid),
];

const KEY: &[u8] = b"user:42";

fn enforce<'a>(key: &'a [u8], policy: &'a Policy, cost: u64) -> OracleEntry<'a> {
    OracleEntry { key, policy, cost, role: Role::Enforce, alternative: None }
}

fn shadow<'a>(key: &'a [u8], policy: &'a Policy, cost: u64) -> OracleEntry<'a> {
    OracleEntry { role: Role::Shadow, ..enforce(key, policy, cost) }
}

#[track_caller]
fn assert_allowed(subject: &dyn Subject, now: Timestamp, policy: &Policy, cost: u64) {
    let answer = subject.check(now, KEY, policy, cost);
    assert!(
        answer.outcome == Outcome::Allow,
        "store `{}` must allow {cost} of {policy:?}, and says {answer:?}",
        subject.name(),
    );
}

/// For each algorithm: an empty store, four tokens a minute.
fn each(factory: &Factory<'_>, case: impl Fn(&dyn Subject, Timestamp, &Policy)) {
    for policy in &four_a_minute() {
        case(&*factory(minute_start()), minute_start(), policy);
    }
}

fn peek_charges_nothing(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        for _ in 0..3 {
            let answer = subject.peek(now, KEY, policy);
            assert_eq!(
                (answer.outcome, answer.remaining),
                (Outcome::Allow, 4),
                "{}",
                subject.name()
            );
        }
        assert_allowed(subject, now, policy, 4);
        let answer = subject.peek(now, KEY, policy);
        assert_eq!((answer.outcome, answer.remaining), (Outcome::Allow, 0), "{}", subject.name());
    });
}

fn denied_request_charges_nothing(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        assert_allowed(subject, now, policy, 3);
        let before = subject.peek(now, KEY, policy);
        for _ in 0..3 {
            let denied = subject.check(now, KEY, policy, 2);
            assert!(
                is_denial(denied.outcome) && denied.remaining == 1,
                "store `{}` must deny 2 of 1 and say that 1 is left: {denied:?}",
                subject.name(),
            );
        }
        assert_eq!(subject.peek(now, KEY, policy), before, "{}", subject.name());
        assert_allowed(subject, now, policy, 1);
    });
}

fn retry_after_is_honest(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        assert_allowed(subject, now, policy, 4);
        let answer = subject.check(now, KEY, policy, 3);
        // Nothing is promised there, so there is nothing to keep.
        let permits = ["concurrency", "leased_concurrency"];
        if answer.outcome == Outcome::Busy && permits.contains(&policy.algorithm().name()) {
            return;
        }
        let Outcome::Deny { retry_after_us } = answer.outcome else {
            panic!("store `{}` must deny 3 of 0: {answer:?}", subject.name());
        };
        let after = |wait_us| Timestamp::from_micros(now.as_micros() + wait_us);
        let early = subject.check(after(retry_after_us - 1), KEY, policy, 3);
        assert_eq!(
            early.outcome,
            Outcome::Deny { retry_after_us: 1 },
            "store `{}`, {policy:?}, a tick too early",
            subject.name(),
        );
        assert_allowed(subject, after(retry_after_us), policy, 3);
    });
}

fn reset_makes_one_counter_fresh(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        subject.reset(now, b"nobody", policy);
        let fresh = subject.peek(now, KEY, policy);
        assert_allowed(subject, now, policy, 4);
        subject.check(now, b"other", policy, 3);
        let other = subject.peek(now, b"other", policy);
        subject.reset(now, KEY, policy);
        assert_eq!(subject.peek(now, KEY, policy), fresh, "{}", subject.name());
        assert_eq!(subject.peek(now, b"other", policy), other, "{}", subject.name());
        assert_allowed(subject, now, policy, 4);
    });
}

fn a_reset_ends_what_was_reserved_before_it(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        // A permit is like any other, whenever it was taken.
        if policy.algorithm().name() == "concurrency" {
            return;
        }
        let name = subject.name();
        let reserve = |now: Timestamp, number: u128| {
            let hold = Hold { id: ReservationId(number), ttl: Duration::from_mins(1) };
            let charged = subject.check_marked(now, &[enforce(KEY, policy, 2)], None, Some(hold));
            charged.expect("it has no request id")[0].stamp
        };
        let cancel = |now: Timestamp, number: u128, stamp: u64| {
            let spending = Spending { reserved: 2, spent: 0 };
            let mut adjustments = [Adjustment::new(KEY, policy, stamp, spending)];
            subject.settle(now, ReservationId(number), &mut adjustments);
            adjustments[0].adjusted()
        };
        let [before, other_before] = [reserve(now, 1), reserve(now, 2)];
        subject.reset(now, KEY, policy);
        let later = Timestamp::from_micros(now.as_micros() + 1);
        assert_allowed(subject, later, policy, 1);
        let returned = cancel(later, 1, before);
        assert_eq!(returned, 0, "store `{name}`, {policy:?}: it was charged before the reset");
        let since = reserve(later, 3);
        let returned = cancel(later, 2, other_before);
        assert_eq!(returned, 0, "store `{name}`, {policy:?}: it was charged before the reset");
        assert_eq!(subject.peek(later, KEY, policy).remaining, 1, "{name}, {policy:?}");
        // Places in a queue are given back from the end alone, and this one is at the end.
        assert_eq!(cancel(later, 3, since), 2, "store `{name}`, {policy:?}: charged since");
        assert_eq!(subject.peek(later, KEY, policy).remaining, 3, "{name}, {policy:?}");
    });
}

fn cost_above_capacity_is_never(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        for cost in [5, u64::MAX - 1, u64::MAX] {
            let answer = subject.check(now, KEY, policy, cost);
            assert_eq!(
                (answer.outcome, answer.remaining),
                (Outcome::Never, 4),
                "store `{}`, cost {cost}",
                subject.name()
            );
        }
        assert_allowed(subject, now, policy, 4);
        assert_eq!(subject.check(now, KEY, policy, 5).outcome, Outcome::Never);
    });
}

fn denied_batch_charges_nothing(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        subject.check(now, b"full", policy, 4);
        let first = subject.check(now, b"first", policy, 1);
        for denied in [enforce(b"full", policy, 1), enforce(b"full", policy, 5)] {
            let batch = [enforce(b"first", policy, 2), denied, enforce(b"last", policy, 1)];
            let answers = subject.check_all(now, Charge::AllOrNone, &batch);
            assert_eq!(answers[0], first, "store `{}`: allowed, not charged", subject.name());
            assert_ne!(answers[1].outcome, Outcome::Allow, "{}", subject.name());
            let (outcome, left) = (answers[2].outcome, answers[2].remaining);
            assert_eq!((outcome, left), (Outcome::Allow, 4), "{}", subject.name());
        }
        assert_eq!(subject.peek(now, b"first", policy), first, "{}", subject.name());
        assert_eq!(subject.peek(now, b"last", policy).remaining, 4, "{}", subject.name());
    });
}

fn allowed_batch_charges_every_entry(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        let batch = [
            enforce(b"first", policy, 1),
            shadow(b"second", policy, 2),
            enforce(b"third", policy, 4),
        ];
        let answers = subject.check_all(now, Charge::AllOrNone, &batch);
        for ((asked, answer), left) in batch.iter().zip(answers).zip([3, 2, 0]) {
            assert_eq!((answer.outcome, answer.remaining), (Outcome::Allow, left));
            let peeked = subject.peek(now, asked.key, policy);
            assert_eq!((peeked.outcome, peeked.remaining), (Outcome::Allow, left));
            // A larger cost may pass later than a cost of 1.
            assert!(peeked.reset_at <= answer.reset_at, "{}", subject.name());
        }
    });
}

fn independent_entries_charge_by_themselves(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        subject.check(now, b"full", policy, 4);
        let batch = [
            enforce(b"full", policy, 1),
            enforce(b"first", policy, 1),
            enforce(b"first", policy, 9),
            enforce(b"first", policy, 1),
        ];
        let answers = subject.check_all(now, Charge::Independent, &batch);
        let left: Vec<u64> = answers.iter().map(|answer| answer.remaining).collect();
        assert_eq!(left, [0, 3, 3, 2], "{}", subject.name());
        assert!(is_denial(answers[0].outcome), "{}", subject.name());
        assert_eq!(answers[2].outcome, Outcome::Never, "{}", subject.name());
        assert_eq!(subject.peek(now, b"first", policy).remaining, 2, "{}", subject.name());
    });
}

fn shadow_never_denies(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        subject.check(now, b"full", policy, 4);
        let batch = [shadow(b"full", policy, 1), enforce(b"first", policy, 1)];
        let answers = subject.check_all(now, Charge::AllOrNone, &batch);
        assert!(is_denial(answers[0].outcome), "{}", subject.name());
        assert_eq!(answers[1].outcome, Outcome::Allow, "{}", subject.name());
        assert_eq!(subject.peek(now, b"first", policy).remaining, 3, "{}", subject.name());
    });
}

fn shadow_is_charged_only_with_the_batch(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        subject.check(now, b"full", policy, 4);
        let batch = [shadow(b"watched", policy, 1), enforce(b"full", policy, 1)];
        subject.check_all(now, Charge::AllOrNone, &batch);
        assert_eq!(subject.peek(now, b"watched", policy).remaining, 4, "{}", subject.name());
        let batch = [shadow(b"watched", policy, 1), enforce(b"first", policy, 1)];
        subject.check_all(now, Charge::AllOrNone, &batch);
        assert_eq!(subject.peek(now, b"watched", policy).remaining, 3, "{}", subject.name());
    });
}

fn same_counter_twice_counts_twice(factory: &Factory<'_>) {
    each(factory, |subject, now, policy| {
        let batch = [enforce(KEY, policy, 3), enforce(KEY, policy, 2)];
        let answers = subject.check_all(now, Charge::AllOrNone, &batch);
        assert_eq!(answers[0].outcome, Outcome::Allow, "{}", subject.name());
        assert!(is_denial(answers[1].outcome), "{}", subject.name());
        assert_eq!(subject.peek(now, KEY, policy).remaining, 4, "{}", subject.name());

        let batch = [enforce(KEY, policy, 2), enforce(KEY, policy, 2)];
        let answers = subject.check_all(now, Charge::AllOrNone, &batch);
        assert_eq!(answers[1].outcome, Outcome::Allow, "{}", subject.name());
        assert_eq!(subject.peek(now, KEY, policy).remaining, 0, "{}", subject.name());
    });
}

fn an_empty_batch_is_answered(factory: &Factory<'_>) {
    let subject = factory(minute_start());
    for charge in [Charge::AllOrNone, Charge::Independent] {
        assert!(subject.check_all(minute_start(), charge, &[]).is_empty());
    }
}

fn algorithms_and_windows_do_not_share(factory: &Factory<'_>) {
    let subject = factory(minute_start());
    let rates = ["4/min", "4/h"];
    let policies = rates.iter().flat_map(|rate| {
        [
            Policy::token_bucket(*rate),
            Policy::leaky_bucket(*rate),
            Policy::leaky_queue(*rate, 3),
            Policy::fixed_window(*rate),
            Policy::fixed_window(*rate).and_then(Policy::with_stagger),
            Policy::sliding_window(*rate),
            Policy::sliding_window_strict(*rate, 10),
            Policy::sliding_window_strict(*rate, 9),
        ]
    });
    let leased = Concurrency::new(4)
        .and_then(|permits| permits.with_lease(Duration::from_secs(1)))
        .map(Concurrency::into_policy);
    let policies = policies.chain([Concurrency::new(4).map(Concurrency::into_policy), leased]);
    let calendars = [Period::Day, Period::Week, Period::Month].into_iter().flat_map(|period| {
        let policy = |minutes| {
            Policy::calendar_window(4, period).and_then(|policy| policy.with_utc_offset(minutes))
        };
        [policy(0), policy(1), policy(-1)]
    });
    for policy in policies.chain(calendars) {
        let policy = policy.expect("four in a window is a policy");
        assert_allowed(&*subject, minute_start(), &policy, 4);
    }
}

fn a_changed_limit_keeps_its_counter(factory: &Factory<'_>) {
    for kind in Kind::ALL {
        let subject = factory(minute_start());
        let limit = |limit| {
            PolicySpec::new(kind, limit, 60_000_000).build().expect("a few a minute is a policy")
        };
        assert_allowed(&*subject, minute_start(), &limit(4), 3);
        let left_of = |policy| subject.peek(minute_start(), KEY, &policy).remaining;
        // Three of four a minute are 45 s of debt, which is six of eight a minute.
        let left_of_8 = if kind.is_bucket() { 2 } else { 5 };
        assert_eq!(left_of(limit(8)), left_of_8, "{}, {kind:?}", subject.name());
        // 45 s of 60 are one and a half of two a minute, and windows are over their limit.
        assert_eq!(left_of(limit(2)), 0, "{}, {kind:?}", subject.name());
        assert_eq!(left_of(limit(4)), 1, "{}, {kind:?}", subject.name());
    }
}

fn four_in_flight() -> Policy {
    Concurrency::new(4).expect("four in flight is a policy").into_policy()
}

fn permits_are_in_flight_until_they_come_back(factory: &Factory<'_>) {
    let (subject, policy) = (factory(minute_start()), four_in_flight());
    assert_allowed(&*subject, minute_start(), &policy, 4);
    // Time alone brings nothing back.
    let later = minute_start().after(Duration::from_hours(100_000));
    let busy = subject.check(later, KEY, &policy, 1);
    assert_eq!((busy.outcome, busy.remaining), (Outcome::Busy, 0), "{}", subject.name());
    assert_eq!(subject.release(later, KEY, &policy, 3), 3, "{}", subject.name());
    assert_eq!(subject.peek(later, KEY, &policy).remaining, 3, "{}", subject.name());
    assert_allowed(&*subject, later, &policy, 3);
    assert_eq!(subject.check(later, KEY, &policy, 1).outcome, Outcome::Busy);
    assert_eq!(subject.check(later, KEY, &policy, 5).outcome, Outcome::Never);
}

fn no_more_permits_come_back_than_are_out(factory: &Factory<'_>) {
    let (subject, policy) = (factory(minute_start()), four_in_flight());
    assert_eq!(subject.release(minute_start(), KEY, &policy, 1), 0, "{}", subject.name());
    assert_allowed(&*subject, minute_start(), &policy, 2);
    assert_eq!(subject.release(minute_start(), KEY, &policy, 0), 0, "{}", subject.name());
    assert_eq!(subject.release(minute_start(), KEY, &policy, u64::MAX), 2, "{}", subject.name());
    assert_eq!(subject.release(minute_start(), KEY, &policy, 1), 0, "{}", subject.name());
    assert_eq!(subject.peek(minute_start(), KEY, &policy).remaining, 4, "{}", subject.name());
}

fn a_rate_beside_permits_stays_paid(factory: &Factory<'_>) {
    let (subject, permits, now) = (factory(minute_start()), four_in_flight(), minute_start());
    let rate = Policy::token_bucket("4/min").expect("four a minute is a policy");
    let batch = [enforce(KEY, &rate, 1), enforce(KEY, &permits, 4)];
    let answers = subject.check_all(now, Charge::AllOrNone, &batch);
    assert!(answers.iter().all(|answer| answer.outcome == Outcome::Allow), "{}", subject.name());
    let answers = subject.check_all(now, Charge::AllOrNone, &batch);
    assert_eq!(answers[1].outcome, Outcome::Busy, "{}", subject.name());
    assert_eq!(subject.release(now, KEY, &permits, 4), 4, "{}", subject.name());
    assert_eq!(subject.peek(now, KEY, &rate).remaining, 3, "{}", subject.name());
    assert_eq!(subject.peek(now, KEY, &permits).remaining, 4, "{}", subject.name());
}
