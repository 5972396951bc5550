//! The Redis store passes the suite that every store must pass, vectors and all, on every server that it
//! is said to do with.

use std::time::Duration;

use crate::support::{Patient, RUNTIME, RedisSubject};
use tollbar::{Policy, Store};
use tollbar_redis::{KeyNames, RedisStore};
use tollbar_testkit::redis::launch::{Launch, Program};
use tollbar_testkit::redis::process::RedisProcess;
use tollbar_testkit::suite;

#[test]
fn redis_store_passes_the_whole_suite() {
    suite::run_all(&RedisSubject::boxed);
}

#[test]
fn redis_store_passes_the_whole_suite_on_the_oldest_redis() {
    suite::run_all(&|now| RedisSubject::on(Program::OldestRedis, now));
}

#[test]
fn redis_store_passes_the_whole_suite_on_valkey() {
    suite::run_all(&|now| RedisSubject::on(Program::Valkey, now));
}

/// A script is never undone, so whatever is wrong must be found before it writes: also where a server
/// would run out of memory, and on the clock of the server.
#[test]
fn all_servers_count_by_their_own_clocks_and_refuse_whole_requests() {
    for program in Program::ALL {
        let server = RedisProcess::launch(Launch::new(program));
        let builder = RedisStore::builder(&server.url(), KeyNames::Raw).patient();
        let store = RUNTIME.block_on(builder.connect()).expect("the server is there");
        let policies = [Policy::fixed_window("10/day"), Policy::token_bucket("10/day")];
        for policy in policies.map(Result::unwrap) {
            let decision = store.check(b"key", &policy, 4).wait().unwrap();
            assert_eq!(decision.remaining().unwrap(), 6, "{program:?}");
            let denied = store.check(b"key", &policy, 7).wait().unwrap();
            let wait = denied
                .denied()
                .and_then(|denial| denial.retry_after())
                .expect("it says when to come back");
            assert!(wait <= Duration::from_hours(24), "{program:?}: {wait:?}");
        }
        let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let full = ["CONFIG SET maxmemory-policy noeviction", "CONFIG SET maxmemory 1"];
        for command in full {
            let words: Vec<&str> = command.split(' ').collect();
            redis::cmd(words[0]).arg(&words[1..]).exec(&mut client).unwrap();
        }
        let policy = Policy::fixed_window("10/day").unwrap();
        store.check(b"key", &policy, 1).wait().unwrap_err();
    }
}
