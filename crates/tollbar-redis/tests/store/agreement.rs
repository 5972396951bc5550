//! The Redis store and the oracle give the same answers, to the last number.

use crate::support::RedisSubject;

tollbar_testkit::agreement!(RedisSubject::boxed, 96);

tollbar_testkit::agreement!(
    RedisSubject::boxed,
    96,
    agrees_on_loans,
    agrees_on_loans_when_the_clock_goes_back,
    agrees_on_loans_when_rules_change,
);
