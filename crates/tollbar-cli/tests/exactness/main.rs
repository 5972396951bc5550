//! The bounds of every limit, on the running daemon: several connections, both worker threads, one key for each
//! limit. Whatever all connections were granted together is judged over every interval.
//!
//! Two threads on one bucket once admitted up to 4.5 times its limit: a check whose clock reading was behind
//! another's charge stored less debt than there was. It takes real threads and a limit that refills to see that, so
//! real time passes here: half a second for each limit.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod limits;
mod load;

use std::time::Duration;

use clients::{Grpc, Http, Resp, upstream};
use common::{Daemon, Scratch};
use limits::{Limit, buckets, large_and_small_burst, others, throttled_buckets};
use load::{Load, judge, judge_reloads};
use tollbar_testkit::client_log::ClientClock;

/// For each limit: long enough for hundreds of refills.
const SHORT: Duration = Duration::from_millis(400);

/// For `cargo xtask test --long`.
const LONG: Duration = Duration::from_secs(6);

fn all_limits() -> Vec<Limit> {
    buckets().into_iter().chain(others()).collect()
}

fn over_resp(limits: &[Limit], duration: Duration) {
    let load = Load { duration, connections: 4, pipeline: 128 };
    let saturated = judge("resp", &[], limits, load, Resp::connect);
    assert!(saturated[0] > duration / 8, "the lower bound could hardly be checked: {saturated:?}");
}

fn over_http(duration: Duration) {
    let load = Load { duration, connections: 6, pipeline: 4 };
    judge("http", &[], &all_limits(), load, Http::connect);
}

fn over_grpc(duration: Duration) {
    let load = Load { duration, connections: 4, pipeline: 16 };
    judge("grpc", &[], &buckets(), load, Grpc::connect);
}

fn over_the_gateway(duration: Duration) {
    let load = Load { duration, connections: 6, pipeline: 1 };
    let upstream = upstream();
    let flags = ["--proxy", "127.0.0.1:0", "--upstream", &upstream];
    judge("gateway", &flags, &buckets(), load, Http::connect_to_gateway);
}

#[test]
fn pipelines_of_cl_throttle_stay_within_every_bound() {
    over_resp(&throttled_buckets(), SHORT);
}

#[test]
fn pipelines_of_tb_check_stay_within_every_bound() {
    over_resp(&all_limits(), SHORT);
}

#[test]
fn checks_over_http_stay_within_every_bound() {
    over_http(SHORT);
}

#[test]
fn checks_over_grpc_stay_within_every_bound() {
    over_grpc(SHORT);
}

#[test]
fn requests_through_the_gateway_stay_within_every_bound() {
    over_the_gateway(SHORT);
}

/// A change to a smaller burst once forgave what was owed beyond it, each time.
#[test]
fn reloads_that_change_the_burst_forgive_nothing() {
    let [large, small] = large_and_small_burst();
    judge_reloads(&large, &small, Resp::connect);
}

#[test]
#[ignore = "long: six seconds for each of a dozen limits"]
fn longer_pipelines_stay_within_every_bound() {
    over_resp(&throttled_buckets(), LONG);
    over_resp(&all_limits(), LONG);
}

#[test]
#[ignore = "long: six seconds for each of eight limits"]
fn longer_checks_over_http_stay_within_every_bound() {
    over_http(LONG);
}

#[test]
#[ignore = "long: six seconds for each of six limits"]
fn longer_checks_over_grpc_and_the_gateway_stay_within_every_bound() {
    over_grpc(LONG);
    over_the_gateway(LONG);
}

/// The daemon's clock once began late by as long as the processor's counter took to be calibrated: up to 200 ms,
/// on a busy machine.
#[test]
fn windows_begin_by_the_wall_clock() {
    let scratch = Scratch::new("exactness-wall");
    let rules = "rules: [{ name: a, limit: 1/day, algorithm: fixed_window }]";
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", rules)]);
    let clock = ClientClock::start();
    assert_eq!(daemon.check("1"), 200);
    let sent_us = clock.now_us();
    let reply = daemon.post("/v1/check", r#"{"attributes":{"user":"1"}}"#);
    let received_us = clock.now_us();
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    let reply: serde_json::Value = serde_json::from_str(body).unwrap();
    // A day ends a whole number of days after 1970, so what is left of it tells the daemon's time.
    let left_us = reply["retryAfterMs"].as_u64().unwrap() * 1_000;
    let time_us = sent_us.next_multiple_of(86_400_000_000) - left_us;
    let is_close = (sent_us - 5_000..received_us + 5_000).contains(&time_us);
    assert!(is_close, "it is {time_us} us for the daemon, and {sent_us}..{received_us} us really");
    assert_eq!(daemon.stop(), 0);
}
