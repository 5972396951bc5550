//! The Redis store and the oracle give the same answers, to the last number.

use crate::support::RedisSubject;

tollbar_testkit::agreement!(RedisSubject::boxed, 96);
