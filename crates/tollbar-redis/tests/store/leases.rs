//! Leases in Redis: their names, and when they end.

use std::time::Duration;

use crate::support::RedisSubject;
use tollbar::{Concurrency, Policy, Role, Timestamp};
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::oracle::OracleEntry;
use tollbar_testkit::subject::Subject;

const START: Timestamp = Timestamp::from_micros(1_699_999_987_000_000);

const TTL: Duration = Duration::from_secs(30);

fn ten_leases() -> Policy {
    Concurrency::new(10)
        .and_then(|permits| permits.with_lease(TTL))
        .map(Concurrency::into_policy)
        .expect("it is a policy")
}

fn later(micros: u64) -> Timestamp {
    START.after(Duration::from_micros(micros))
}

/// Takes `permits` as one lease; its name.
fn take(subject: &dyn Subject, now: Timestamp, policy: &Policy, permits: u64) -> u64 {
    let question =
        OracleEntry { key: b"key", policy, cost: permits, role: Role::Enforce, alternative: None };
    let granted = subject.check_marked(now, &[question], None, None);
    let [granted] = granted.expect("it has no id")[..] else { panic!("it was one question") };
    granted.stamp
}

fn free(subject: &dyn Subject, now: Timestamp, policy: &Policy) -> u64 {
    subject.peek(now, b"key", policy).remaining
}

#[test]
fn leases_of_one_microsecond_have_different_names() {
    let subject = RedisSubject::boxed(START);
    let policy = ten_leases();
    let names = [1, 2, 3].map(|permits| take(&*subject, START, &policy, permits));
    assert!(names.is_sorted_by(|one, two| one < two), "{names:?}");
    assert_eq!(subject.release_lease(START, b"key", &policy, names[1], 9), 2);
    assert_eq!(free(&*subject, START, &policy), 6);
}

/// Where names began anew with each counter, a holder that came late would release a stranger's lease.
#[test]
fn a_name_does_not_return_where_the_counter_was_gone_in_between() {
    let subject = RedisSubject::boxed(START);
    let policy = ten_leases();
    let old = take(&*subject, START, &policy, 4);
    subject.reset(later(1), b"key", &policy);
    let new = take(&*subject, later(1), &policy, 4);
    assert!(new > old, "{old} came back as {new}");
    assert_eq!(subject.release_lease(later(2), b"key", &policy, old, 4), 0);
    assert_eq!(subject.renew(later(2), b"key", &policy, old), None);
    assert_eq!(free(&*subject, later(2), &policy), 6);
}

#[test]
fn a_lease_can_be_renewed_and_released_until_it_ends() {
    let policy = ten_leases();
    let ends_us = TTL.as_micros() as u64;
    for (at_us, is_held) in [(ends_us - 1, true), (ends_us, false), (ends_us + 1, false)] {
        let now = later(at_us);
        let subject = RedisSubject::boxed(START);
        let lease = take(&*subject, START, &policy, 4);
        assert_eq!(free(&*subject, now, &policy), if is_held { 6 } else { 10 });
        assert_eq!(subject.renew(now, b"key", &policy, lease), is_held.then(|| now.after(TTL)));
        let subject = RedisSubject::boxed(START);
        let lease = take(&*subject, START, &policy, 4);
        let released = subject.release_lease(now, b"key", &policy, lease, 4);
        assert_eq!(released, if is_held { 4 } else { 0 });
    }
}

/// Renewals and releases strike out what has ended, in Redis as in memory: a clock that goes back does not
/// bring it back.
#[test]
fn an_ended_lease_stays_ended_where_the_clock_goes_back() {
    let policy = ten_leases();
    for subject in [RedisSubject::boxed(START), MemorySubject::boxed(START)] {
        let first = take(&*subject, START, &policy, 1);
        let second = take(&*subject, later(10_000_000), &policy, 2);
        let third = take(&*subject, later(20_000_000), &policy, 4);
        // The renewal comes too late, and of the others none has ended.
        assert_eq!(subject.renew(later(30_000_000), b"key", &policy, first), None);
        assert_eq!(free(&*subject, later(20_000_000), &policy), 4);
        // As does the release.
        assert_eq!(subject.release_lease(later(40_000_000), b"key", &policy, second, 2), 0);
        assert_eq!(free(&*subject, later(20_000_000), &policy), 6);
        // A renewal of the one that is left keeps its permits.
        let ends_at = subject.renew(later(45_000_000), b"key", &policy, third);
        assert_eq!(ends_at, Some(later(75_000_000)));
        assert_eq!(free(&*subject, later(74_999_999), &policy), 6);
        assert_eq!(free(&*subject, later(75_000_000), &policy), 10);
    }
}
