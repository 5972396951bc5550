//! What every store does when its clock steps back and later forward again, while true time goes on.
//!
//! A clock that has only been behind earns nothing: since the beginning, no more has passed than the limit allows
//! in the true time since then. That is checked for clients that leave no counter fresh. A counter that is fresh is
//! forgotten, so whatever its key got before a step back cannot count after it.

use std::time::Duration;

use tollbar::store::{Adjustment, Hold, ReservationId, Spending};
use tollbar::{Charge, Outcome, Policy, Role, Timestamp};

use super::{Case, is_denial, minute_start};
use crate::oracle::OracleEntry;
use crate::spec::{Kind, PolicySpec};
use crate::subject::{Factory, Subject};
use crate::xorshift::Xorshift;

pub(super) const CASES: &[Case] = &[
    ("a_spent_bucket_stays_spent_over_a_step_back", a_spent_bucket_stays_spent),
    ("a_bucket_of_three_a_microsecond_owes_over_a_step_back", a_bucket_of_three_a_microsecond),
    ("a_clock_that_falls_behind_mints_nothing", a_clock_that_falls_behind_mints_nothing),
    ("a_charge_after_a_step_back_frees_no_other", a_charge_after_a_step_back_frees_no_other),
    ("a_refund_while_the_clock_is_behind_mints_nothing", a_refund_while_behind_mints_nothing),
];

const KEY: &[u8] = b"user:42";
const SECOND_US: u64 = 1_000_000;
const LIMIT: u64 = 10;
const WINDOW_US: u64 = 10 * SECOND_US;

/// The ways to ask for one token, each of which is a path of its own through a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestPath {
    Single,
    /// With a limit that has room, all or none.
    AllOrNone,
    /// With a limit that has room, each by itself.
    Independent,
    /// As a reservation.
    Reservation,
}

const REQUEST_PATHS: [RequestPath; 4] = [
    RequestPath::Single,
    RequestPath::AllOrNone,
    RequestPath::Independent,
    RequestPath::Reservation,
];

/// A store whose clock may be behind the true time.
struct LaggingClock<'a> {
    subject: &'a dyn Subject,
    policy: &'a Policy,
    roomy: Policy,
    /// True time since the beginning.
    true_us: u64,
    lag_us: u64,
    reservations: u128,
}

impl<'a> LaggingClock<'a> {
    fn new(subject: &'a dyn Subject, policy: &'a Policy) -> Self {
        let roomy = Policy::fixed_window("1000000/day").expect("it is a policy");
        Self { subject, policy, roomy, true_us: 0, lag_us: 0, reservations: 0 }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(minute_start().as_micros() + self.true_us - self.lag_us)
    }

    /// Asks for `cost` tokens; true where they were charged.
    fn ask(&mut self, path: RequestPath, cost: u64) -> bool {
        let question = |policy, cost| OracleEntry {
            key: KEY,
            policy,
            cost,
            role: Role::Enforce,
            alternative: None,
        };
        let questions = [question(self.policy, cost), question(&self.roomy, 1)];
        let outcome = match path {
            RequestPath::Single => self.subject.check(self.now(), KEY, self.policy, cost).outcome,
            RequestPath::AllOrNone => {
                self.subject.check_all(self.now(), Charge::AllOrNone, &questions)[0].outcome
            }
            RequestPath::Independent => {
                self.subject.check_all(self.now(), Charge::Independent, &questions)[0].outcome
            }
            RequestPath::Reservation => self.hold(cost).0,
        };
        outcome == Outcome::Allow
    }

    /// Reserves `cost` tokens: the answer, the reservation and what the store calls the charge.
    fn hold(&mut self, cost: u64) -> (Outcome, ReservationId, u64) {
        self.reservations += 1;
        let id = ReservationId(self.reservations);
        let hold = Hold { id, ttl: Duration::from_hours(1) };
        let question = OracleEntry {
            key: KEY,
            policy: self.policy,
            cost,
            role: Role::Enforce,
            alternative: None,
        };
        let charged = self.subject.check_marked(self.now(), &[question], None, Some(hold));
        let charged = charged.expect("what has no id cannot be sent twice")[0];
        (charged.answer.outcome, id, charged.stamp)
    }
}

/// Ten of `10/10s` were spent and the clock stepped back by 5 s. One check, which was denied, once stored the debt
/// cut to what can be owed at that time, and when the clock was right again 5 more passed.
fn a_spent_bucket_stays_spent(factory: &Factory<'_>) {
    for kind in [Kind::TokenBucket, Kind::LeakyBucket, Kind::LeakyQueue] {
        let policy = ten_in_ten_seconds(kind);
        for path in REQUEST_PATHS {
            let subject = factory(minute_start());
            let name = subject.name().to_owned();
            let mut behind = LaggingClock::new(&*subject, &policy);
            for number in 0..LIMIT {
                assert!(behind.ask(path, 1), "store `{name}`, {policy:?} {path:?}: {number}");
            }
            behind.lag_us = 5 * SECOND_US;
            assert!(
                !behind.ask(path, 1),
                "store `{name}`, {policy:?} {path:?}: the clock is behind"
            );
            behind.lag_us = 0;
            assert!(!behind.ask(path, 1), "store `{name}`, {policy:?} {path:?} minted a token");
            behind.true_us = SECOND_US - 1;
            assert!(
                !behind.ask(path, 1),
                "store `{name}`, {policy:?} {path:?}: a token came early"
            );
            behind.true_us = SECOND_US;
            assert!(behind.ask(path, 1), "store `{name}`, {policy:?} {path:?}: a token came late");
        }
    }
}

/// At three tokens a microsecond a full debt of four is no whole number of microseconds, and what is owed beyond the
/// whole ones must count even where the rest leaves room for a token.
fn a_bucket_of_three_a_microsecond(factory: &Factory<'_>) {
    for kind in [Kind::TokenBucket, Kind::LeakyBucket, Kind::LeakyQueue] {
        let spec = PolicySpec { burst: Some(4), ..PolicySpec::new(kind, 3, 1) };
        let policy = spec.build().expect("three a microsecond is a policy");
        let subject = factory(minute_start());
        let mut behind = LaggingClock::new(&*subject, &policy);
        assert!(behind.ask(RequestPath::Single, 3));
        behind.lag_us = 5;
        assert!(
            !behind.ask(RequestPath::Single, 1),
            "store `{}`, {policy:?} minted",
            subject.name()
        );
    }
}

/// The clock falls behind by up to 8 s now and then, and is right again at other times. Some clients take all they
/// get. Others ask for one token every 450 ms, so that the clock also steps back while there is room.
fn a_clock_that_falls_behind_mints_nothing(factory: &Factory<'_>) {
    let has_bound = |kind: &Kind| {
        !matches!(kind, Kind::Concurrency | Kind::LeasedConcurrency | Kind::CalendarWindow)
    };
    for kind in Kind::ALL.into_iter().filter(has_bound) {
        let policy = ten_in_ten_seconds(kind);
        for (path, is_greedy) in REQUEST_PATHS.into_iter().zip([true, false].into_iter().cycle()) {
            let subject = factory(minute_start());
            let mut behind = LaggingClock::new(&*subject, &policy);
            let mut random = Xorshift::named(kind.name());
            let mut admitted = 0;
            for tick in 0..200 {
                behind.true_us = tick * 150_000;
                if tick > 0 && random.below(8) == 0 {
                    behind.lag_us = random.below(2) * random.below(8 * SECOND_US);
                }
                let most = most_since_the_beginning(kind, behind.true_us);
                while (is_greedy || tick % 3 == 0) && behind.ask(path, 1) {
                    admitted += 1;
                    assert!(
                        admitted <= most,
                        "store `{}`, {policy:?} {path:?}: {admitted} were admitted by {} us and {most} \
                         at most may be; the clock is {} us behind",
                        subject.name(),
                        behind.true_us,
                        behind.lag_us,
                    );
                    if !is_greedy {
                        break;
                    }
                }
            }
        }
    }
}

/// Nine tokens were charged at 5 s, and the tenth when the clock had stepped back to 0. All ten are in the window
/// until 15 s of true time: the oldest stamp must not be the last one of a list.
fn a_charge_after_a_step_back_frees_no_other(factory: &Factory<'_>) {
    for kind in [Kind::SlidingWindowLog, Kind::SlidingWindowStrict] {
        let policy = ten_in_ten_seconds(kind);
        for path in REQUEST_PATHS {
            let subject = factory(minute_start());
            let mut behind = LaggingClock::new(&*subject, &policy);
            behind.true_us = 5 * SECOND_US;
            assert!(behind.ask(path, 9));
            behind.lag_us = 5 * SECOND_US;
            assert!(behind.ask(path, 1));
            behind.lag_us = 0;
            for true_us in [5 * SECOND_US, 10 * SECOND_US, 10_500_000, 15 * SECOND_US - 1] {
                behind.true_us = true_us;
                let is_allowed = behind.ask(path, 1);
                assert!(!is_allowed, "store `{}`, {policy:?} {path:?}: {true_us}", subject.name());
            }
        }
    }
}

/// Ten tokens were reserved and are given back while the clock is 5 s behind: ten others may pass, and no more.
fn a_refund_while_behind_mints_nothing(factory: &Factory<'_>) {
    for kind in [Kind::TokenBucket, Kind::LeakyBucket] {
        let policy = ten_in_ten_seconds(kind);
        for lag_us in [1, SECOND_US, 5 * SECOND_US, 20 * SECOND_US] {
            let subject = factory(minute_start());
            let mut behind = LaggingClock::new(&*subject, &policy);
            let (outcome, id, stamp) = behind.hold(LIMIT);
            assert_eq!(outcome, Outcome::Allow);
            behind.lag_us = lag_us;
            assert!(is_denial(subject.check(behind.now(), KEY, &policy, 1).outcome));
            let spending = Spending { reserved: LIMIT, spent: 0 };
            let adjustment = Adjustment::new(KEY, &policy, stamp, spending);
            assert!(subject.settle(behind.now(), id, &mut [adjustment]));
            let mut admitted = 0;
            for lag_us in [lag_us, lag_us / 2, 0] {
                behind.lag_us = lag_us;
                while admitted <= LIMIT && behind.ask(RequestPath::Single, 1) {
                    admitted += 1;
                }
            }
            assert_eq!(admitted, LIMIT, "store `{}`, {policy:?}, {lag_us} us", subject.name());
        }
    }
}

fn ten_in_ten_seconds(kind: Kind) -> Policy {
    PolicySpec::new(kind, LIMIT, WINDOW_US).build().expect("ten in ten seconds is a policy")
}

/// What may have been admitted `true_us` after a time at which a minute begins, with a fresh counter at first.
fn most_since_the_beginning(kind: Kind, true_us: u64) -> u64 {
    match kind {
        Kind::TokenBucket | Kind::LeakyBucket | Kind::LeakyQueue => {
            LIMIT + true_us * LIMIT / WINDOW_US
        }
        // One window more than the others, because it may begin in between.
        Kind::StaggeredWindow => LIMIT * (true_us / WINDOW_US + 2),
        _ => LIMIT * (true_us / WINDOW_US + 1),
    }
}
