//! Refunds, reservations and request ids at the instants at which they stop to count, judged by the oracle.

use std::time::Duration;

use crate::support::{Patient, RUNTIME, RedisSubject, server};
use tollbar::store::{Hold, Once, ReservationId};
use tollbar::{Concurrency, Period, Policy, Rate, Role, Store, Timestamp, WarmUp};
use tollbar_testkit::duel::Duel;
use tollbar_testkit::oracle::OracleEntry;
use tollbar_testkit::spec::{Kind, PolicySpec};

/// 7 s past a full minute.
const START: Timestamp = Timestamp::from_micros(1_699_999_987_000_000);

const ID: ReservationId = ReservationId(1);

/// Longer than the window of any policy here.
const MONTHS: Duration = Duration::from_hours(100 * 24);

fn asked(policy: &Policy, cost: u64) -> OracleEntry<'_> {
    OracleEntry { key: b"key", policy, cost, role: Role::Enforce, alternative: None }
}

/// Four a minute of every algorithm, with and without a warm-up and an overdraft.
fn policies() -> Vec<Policy> {
    let mut policies = Vec::new();
    for kind in Kind::ALL {
        let policy = PolicySpec::new(kind, 4, 60_000_000).build().expect("it is a policy");
        let warm_up = WarmUp { start: 3, over: Duration::from_secs(90), steps: 2 };
        policies.extend(policy.clone().with_overdraft(3));
        policies.extend(policy.clone().with_warm_up(warm_up));
        policies.push(policy);
    }
    policies
}

/// One microsecond before `instant`, at it and after it.
fn around(instant: Timestamp) -> [Timestamp; 3] {
    let at_us = instant.as_micros();
    [at_us - 1, at_us, at_us + 1].map(Timestamp::from_micros)
}

#[test]
fn what_is_given_back_or_charged_after_the_fact_stops_to_count_when_the_oracle_says() {
    for policy in policies() {
        let mut duel = Duel::new(RedisSubject::boxed(START));
        let reset_at = duel.check(START, b"first", &policy, 3).unwrap().reset_at;
        let ends = [reset_at, START.after(policy.window())]
            .into_iter()
            .flat_map(|end| [end, end.after(policy.window())])
            .chain(policy.warm_up().map(|warm_up| START.after(warm_up.over)))
            .chain(policy.lease_ttl().map(|ttl| START.after(ttl)));
        let instants = ends.flat_map(around).filter(|now| *now >= START);
        let cases = instants.flat_map(|now| [0, 1, 4, 9, 30_000].map(|spent| (now, spent)));
        for (number, (now, spent)) in cases.enumerate() {
            let key = number.to_le_bytes();
            let hold = Hold { id: ReservationId(number as u128), ttl: MONTHS };
            let question = OracleEntry { key: &key, ..asked(&policy, 3) };
            let reserved = duel.check_marked(START, &[question], None, Some(hold));
            let reserved = reserved.unwrap().expect("three of four are allowed");
            assert!(duel.settle(now, hold.id, &reserved, |_, _| spent).unwrap());
            for cost in [0, 1] {
                duel.check(now, &key, &policy, cost).unwrap();
            }
            duel.check(now.after(policy.window()), &key, &policy, 0).unwrap();
        }
    }
}

#[test]
fn a_reservation_can_be_settled_until_its_time_is_up() {
    let policy = Policy::fixed_window("10/day").unwrap();
    let hold = Hold { id: ID, ttl: Duration::from_secs(20) };
    for (now, is_open) in around(START.after(hold.ttl)).into_iter().zip([true, false, false]) {
        let mut duel = Duel::new(RedisSubject::boxed(START));
        let reserved = duel.check_marked(START, &[asked(&policy, 3)], None, Some(hold));
        let reserved = reserved.unwrap().expect("three of ten are allowed");
        assert_eq!(duel.settle(now, ID, &reserved, |_, _| 0), Ok(is_open));
        // Whether or not, it cannot be settled again.
        assert_eq!(duel.settle(now, ID, &reserved, |_, _| 0), Ok(false));
        let remaining = duel.check(now, b"key", &policy, 0).unwrap().remaining;
        assert_eq!(remaining, if is_open { 10 } else { 7 });
    }
}

#[test]
fn a_request_id_is_remembered_until_its_time_is_up() {
    let policy = Policy::fixed_window("10/day").unwrap();
    let once = Some(Once::new(b"id", Duration::from_secs(20)));
    let ends = START.after(Duration::from_secs(20));
    for (now, remaining) in around(ends).into_iter().zip([7, 4, 4]) {
        let mut duel = Duel::new(RedisSubject::boxed(START));
        for now in [START, now] {
            duel.check_marked(now, &[asked(&policy, 3)], once, None).unwrap();
        }
        assert_eq!(duel.check(now, b"key", &policy, 0).unwrap().remaining, remaining);
        // Another question with this id is refused by both while it is remembered.
        duel.check_marked(now, &[asked(&policy, 2)], once, None).unwrap();
    }
}

/// A reservation that is sent again gets the same answer and the same stamps, so that it can be settled by
/// either, and once.
#[test]
fn a_reservation_with_an_id_can_be_sent_again_and_settled_once() {
    for policy in policies() {
        let mut duel = Duel::new(RedisSubject::boxed(START));
        let once = Some(Once::new(b"id", MONTHS));
        let hold = Some(Hold { id: ID, ttl: MONTHS });
        duel.check_marked(START, &[asked(&policy, 2)], once, hold).unwrap();
        let now = START.after(Duration::from_millis(1));
        let again = duel.check_marked(now, &[asked(&policy, 2)], once, hold);
        let again = again.unwrap().expect("it was allowed the first time");
        assert_eq!(duel.settle(now, ID, &again, |_, _| 1), Ok(true));
        assert_eq!(duel.settle(now, ID, &again, |_, _| 1), Ok(false));
        duel.check(now, b"key", &policy, 0).unwrap();
        // The id is remembered beyond that.
        duel.check_marked(now, &[asked(&policy, 2)], once, None).unwrap();
        duel.check(now, b"key", &policy, 0).unwrap();
    }
}

/// A token of 7/3 us is given back: those behind it are paid 3 us sooner, not 2, because a client must not be
/// given what time has paid.
#[test]
fn parts_of_a_microsecond_that_were_given_back_count_against_later_refunds() {
    let policy = Policy::token_bucket("3/7us").and_then(|policy| policy.with_burst(1_000)).unwrap();
    let mut duel = Duel::new(RedisSubject::boxed(START));
    let mut ids = (0..).map(ReservationId);
    for (cancelled, wait_us) in [(0, 0), (1, 0), (3, 0), (3, 500), (3, 1_150), (3, 1_166)] {
        let key = [cancelled, (wait_us % 251) as u8];
        let mut reserve = |duel: &mut Duel, cost: u64| {
            let hold = Hold { id: ids.next().expect("there are many"), ttl: MONTHS };
            let question = OracleEntry { key: &key, ..asked(&policy, cost) };
            let reserved = duel.check_marked(START, &[question], None, Some(hold)).unwrap();
            (hold.id, reserved.expect("there is room"))
        };
        // Paid 1,166 2/3 us later, if nothing is given back.
        let (first_id, first) = reserve(&mut duel, 500);
        for _ in 0..cancelled {
            let (id, reserved) = reserve(&mut duel, 1);
            assert!(duel.settle(START, id, &reserved, |_, _| 0).unwrap());
        }
        let now = START.after(Duration::from_micros(wait_us));
        assert!(duel.settle(now, first_id, &first, |_, _| 0).unwrap());
        duel.check(now, &key, &policy, 0).unwrap();
    }
}

/// A place has a name only if its part of a microsecond fits 10 bits, so 1,024 parts are the most.
#[test]
fn the_last_places_of_a_queue_come_back_where_a_microsecond_has_1024_parts() {
    let rate = Rate::new(1_024, Duration::from_micros(1_000_001));
    let policy = Policy::leaky_queue(rate, 9).unwrap();
    assert_eq!(policy.interval().unwrap().denominator, 1_024);
    let mut duel = Duel::new(RedisSubject::boxed(START));
    for number in 1..=9 {
        let hold = Hold { id: ReservationId(number), ttl: MONTHS };
        let reserved = duel.check_marked(START, &[asked(&policy, 2)], None, Some(hold));
        let reserved = reserved.unwrap().expect("there is a place, because one came back");
        assert!(duel.settle(START, hold.id, &reserved, |_, cost| cost - 1).unwrap());
        let remaining = duel.check(START, b"key", &policy, 0).unwrap().remaining;
        assert_eq!(u128::from(remaining), 10 - number);
    }
}

/// A waiter that leaves a queue gives its place back by the stamp of a plain check.
#[test]
fn a_place_that_was_not_reserved_comes_back_by_its_stamp() {
    let rate = Rate::new(1_024, Duration::from_micros(1_000_001));
    let policy = Policy::leaky_queue(rate, 9).unwrap();
    let subject = RedisSubject::boxed(START);
    for _ in 0..5 {
        let charged = subject.check_marked(START, &[asked(&policy, 1)], None, None);
        charged.expect("it has no id");
    }
    let charged = subject.check_marked(START, &[asked(&policy, 1)], None, None);
    let stamp = charged.expect("it has no id")[0].stamp;
    assert_eq!(subject.release_lease(START, b"key", &policy, stamp, 1), 1);
    assert_eq!(subject.peek(START, b"key", &policy).remaining, 5);
}

/// From 1970 to 2112, with 29 days in February 2000 and 28 in 2100.
#[test]
fn every_month_and_week_ends_when_the_oracle_says() {
    let mut duel = Duel::new(RedisSubject::boxed(Timestamp::ZERO));
    for (period, step_days) in [(Period::Month, 20), (Period::Week, 100), (Period::Day, 500)] {
        let policy = Policy::calendar_window(10, period).unwrap();
        let step = Duration::from_hours(24 * step_days);
        let mut now = Timestamp::ZERO;
        while now < Timestamp::MAX {
            duel.check(now, b"key", &policy, 1).unwrap();
            now = now.after(step);
        }
    }
}

/// A state has more bytes where a count needs them. One that did not fit would begin at zero again.
#[test]
fn counts_are_kept_whole_at_every_width_of_a_state() {
    let policies = [
        Policy::fixed_window("2000000000000/h"),
        Policy::calendar_window(2_000_000_000_000, Period::Day),
        Policy::sliding_window("2000000000000/h"),
        Policy::sliding_window_strict("2000000000000/h", 3),
        Concurrency::new(1 << 32).map(Concurrency::into_policy),
    ];
    for policy in policies.map(Result::unwrap) {
        let mut duel = Duel::new(RedisSubject::boxed(START));
        let widths = [8, 16, 24, 32, 40].map(|bits| 1_u64 << bits);
        for cost in widths.into_iter().flat_map(|width| [width - 1, width, width + 1]) {
            let key = cost.to_le_bytes();
            // In the next window a sliding one counts it as the previous.
            for now in [START, START.after(policy.window())] {
                for cost in [cost, 1, 0] {
                    duel.check(now, &key, &policy, cost).unwrap();
                }
            }
        }
    }
}

/// The count of a window times its length passes 2^53 after a large overdraft. It weighs more than the limit
/// until so little of it is left that the product fits.
#[test]
fn a_window_that_was_overdrawn_a_thousandfold_weighs_what_the_oracle_says() {
    let policy = Policy::sliding_window("1000000000/h").unwrap();
    let hour_us = 3_600_000_000;
    let ends_us = START.as_micros() / hour_us * hour_us + hour_us;
    let mut duel = Duel::new(RedisSubject::boxed(START));
    let hold = Hold { id: ID, ttl: MONTHS };
    let reserved = duel.check_marked(START, &[asked(&policy, 1)], None, Some(hold));
    let reserved = reserved.unwrap().expect("the first is allowed");
    assert!(duel.settle(START, ID, &reserved, |_, _| 1_000_000_000_000).unwrap());
    // A thousandth of the next hour is 3.6 s: then what is left of the count is the limit.
    let free_us = ends_us + hour_us - 3_600_000;
    let ticks_us = [-2_000, -1_000, 0, 1_000, 2_000, 1_000_000, 3_599_000];
    let instants = ticks_us.map(|after_us| free_us.saturating_add_signed(after_us));
    for now_us in [START.as_micros(), ends_us, ends_us + 1].into_iter().chain(instants) {
        for cost in [0, 1, 1_000, 1_000_000_000] {
            duel.check(Timestamp::from_micros(now_us), b"key", &policy, cost).unwrap();
        }
    }
}

/// A denial that is remembered for a lower class is no answer to a higher one, and the reserve is there for that.
#[test]
fn a_remembered_denial_of_a_lower_class_says_nothing_of_a_higher_one() {
    let server = server();
    let builder = crate::support::builder(&server).deny_cache(16).patient();
    let store = RUNTIME.block_on(builder.connect()).unwrap();
    for policy in [Policy::token_bucket("10/h"), Policy::fixed_window("10/month")] {
        let policy = policy.unwrap();
        let lower = policy.reserving(1).unwrap();
        let check = |policy| store.check(b"reserved", policy, 1).wait().unwrap().is_allowed();
        assert_eq!((0..12).filter(|_| check(&lower)).count(), 9);
        let hits = store.stats().deny_cache_hits;
        assert!(!check(&lower));
        assert_eq!(store.stats().deny_cache_hits, hits + 1, "the denial is remembered");
        assert!(check(&policy), "and there is one left for the higher class");
        assert!(!check(&policy) && !check(&lower));
    }
}
