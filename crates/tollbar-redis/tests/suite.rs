//! The Redis store passes the suite that every store must pass, on a real server.

mod support;

use support::RedisSubject;
use tollbar_testkit::suite;

#[test]
fn redis_store_passes_the_whole_suite() {
    suite::run_all(&RedisSubject::boxed);
}
