//! Permits in flight, and leases, worked out by hand.

use std::time::Duration;

use tollbar::Concurrency;

use super::Expected::{Allow, Busy, Never};
use super::{SECOND_US, at, passing, table};
use crate::subject::Factory;

pub(super) fn two_permits_are_busy_until_one_comes_back(factory: &Factory<'_>) {
    let year_us = 365 * 86_400 * SECOND_US;
    table(
        factory,
        Concurrency::new(2).map(Concurrency::into_policy),
        &[
            (0, 0, Allow(2)),
            (0, 1, Allow(1)),
            (SECOND_US, 1, Allow(0)),
            (SECOND_US, 1, Busy),
            (SECOND_US, 3, Never(0)),
            (year_us, 1, Busy),
        ],
    );
    let policy = Concurrency::new(2).expect("two in flight is a policy").into_policy();
    let subject = factory(at(0));
    assert_eq!(passing(&*subject, &policy, 0, 5), 2);
    assert_eq!(subject.release(at(1), b"key", &policy, 1), 1);
    assert_eq!(passing(&*subject, &policy, 1, 5), 1);
    assert_eq!(subject.release(at(2), b"key", &policy, 2), 2);
    assert_eq!(subject.release(at(2), b"key", &policy, 1), 0);
    assert_eq!(passing(&*subject, &policy, 2, 5), 2);
    let peeked = subject.peek(at(7), b"key", &policy);
    assert_eq!((peeked.limit, peeked.remaining, peeked.reset_at), (2, 0, at(7)));
}

pub(super) fn a_lowered_limit_refuses(factory: &Factory<'_>) {
    let limit =
        |limit| Concurrency::new(limit).expect("a few in flight are a policy").into_policy();
    let subject = factory(at(0));
    assert_eq!(passing(&*subject, &limit(5), 0, 9), 5);
    // Five are out where three may be: three must come back before one may go.
    assert_eq!(passing(&*subject, &limit(3), 0, 1), 0);
    for returned in 1..=2 {
        assert_eq!(subject.release(at(0), b"key", &limit(3), 1), 1);
        assert_eq!(passing(&*subject, &limit(3), 0, 1), 0, "{returned} came back");
    }
    assert_eq!(subject.release(at(0), b"key", &limit(3), 1), 1);
    assert_eq!(passing(&*subject, &limit(3), 0, 9), 1);
    // Three are out; nothing was given away on the way.
    assert_eq!(passing(&*subject, &limit(5), 0, 9), 2);
}

pub(super) fn leases_of_10_s_end_one_by_one(factory: &Factory<'_>) {
    let ttl = Duration::from_secs(10);
    let rows = [
        (0, 1, Allow(2)),
        (4 * SECOND_US, 2, Allow(0)),
        (4 * SECOND_US, 1, Busy),
        (10 * SECOND_US - 1, 1, Busy),
        // The first has ended, and makes room for one.
        (10 * SECOND_US, 2, Busy),
        (10 * SECOND_US, 1, Allow(0)),
        (14 * SECOND_US - 1, 0, Allow(0)),
        (14 * SECOND_US, 0, Allow(2)),
        (20 * SECOND_US - 1, 3, Busy),
        (20 * SECOND_US, 4, Never(3)),
        (20 * SECOND_US, 3, Allow(0)),
    ];
    table(
        factory,
        Concurrency::new(3)
            .and_then(|permits| permits.with_lease(ttl))
            .map(Concurrency::into_policy),
        &rows,
    );
}
