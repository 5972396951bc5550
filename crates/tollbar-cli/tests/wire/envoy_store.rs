//! Envoy's protocol over a real Redis that is lost: rules answer as they have declared, and limits of the
//! reference's files as the reference does.

use crate::common::{Daemon, Scratch};
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_response::Code as Overall;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollbar_testkit::redis::process::RedisProcess;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const RULES: &str = "
rules:
  - { name: open, match: { domain: open }, limit: 2/day }
  - { name: shut, match: { domain: shut }, limit: 2/day, on_store_failure: deny }
  - { name: both, match: { domain: files, user: strict }, limit: 2/day, on_store_failure: deny }
  - { name: local, match: { domain: local }, limit: 2/day, on_store_failure: local }
";

const FILE: &str = "
domain: files
descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 2 } }]
";

/// A call with a descriptor for each user.
fn call(domain: &str, users: &[&str]) -> RateLimitRequest {
    let descriptor = |user: &&str| {
        let entries = vec![Entry { key: "user".to_owned(), value: (*user).to_owned() }];
        RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
    };
    let descriptors = users.iter().map(descriptor).collect();
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 1 }
}

struct Caller(RateLimitServiceClient<Channel>);

impl Caller {
    async fn connect(daemon: &Daemon) -> Self {
        let uri = format!("http://{}", daemon.address("grpc"));
        let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
        Self(RateLimitServiceClient::new(channel))
    }

    async fn ask(&mut self, domain: &str, users: &[&str]) -> Result<Overall, Status> {
        let answer = self.0.should_rate_limit(call(domain, users)).await?;
        Ok(answer.into_inner().overall_code())
    }

    /// What a call comes to, in a word.
    async fn says(&mut self, domain: &str, users: &[&str]) -> String {
        match self.ask(domain, users).await {
            Ok(code) => format!("{code:?}"),
            Err(status) => format!("{:?}", status.code()),
        }
    }
}

/// Asks until what is answered for `domain` is that. Each asks as a user of its own, so that nobody is
/// denied for having asked often.
async fn until(caller: &mut Caller, domain: &str, expected: &str) {
    let mut last = String::new();
    for at in 0..100_000 {
        last = caller.says(domain, &[&format!("waits-{at}")]).await;
        if last == expected {
            return;
        }
    }
    panic!("{domain} is never {expected}: {last}");
}

/// Checks that Envoy lets pass because the store is lost.
fn degraded(daemon: &Daemon) -> u64 {
    let metrics = daemon.get_with("/metrics", "");
    let series = "tollbar_checks_total{listener=\"envoy\",outcome=\"degraded_allow\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(series)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_lost_store_is_answered_by_the_rules_and_unavailable_for_the_files() {
    let scratch = Scratch::new("envoy-redis");
    let rules = scratch.file("rules.yaml", RULES);
    let file = scratch.file("limits.yaml", FILE);
    let mut redis = RedisProcess::start();
    let url = redis.url();
    // A machine under load must not look like a lost store.
    let args = ["--rules", &rules, "--envoy-config", &file, "--store", &url, "--store-raw-keys"];
    for charge in ["independent", "all-or-none"] {
        let more = ["--store-deadline", "5s", "--envoy-charge", charge];
        let daemon = Daemon::start(&[&args[..], &more].concat());
        let mut caller = Caller::connect(&daemon).await;
        until(&mut caller, "files", "Ok").await;
        for domain in ["open", "shut", "local", "files"] {
            let user = &[charge][..];
            assert_eq!(caller.says(domain, user).await, "Ok", "{charge} {domain}");
            assert_eq!(caller.says(domain, user).await, "Ok", "{charge} {domain}");
            assert_eq!(caller.says(domain, user).await, "OverLimit", "{charge} {domain}");
        }

        redis.kill();
        until(&mut caller, "files", "Unavailable").await;
        let before = degraded(&daemon);
        caller.ask("files", &["x", "y"]).await.unwrap_err();
        assert_eq!(degraded(&daemon) - before, 2, "{charge}: each limit that was not counted");
        // Of other users: a denial is remembered for up to a second.
        for users in [&["a"][..], &["b", "c"]] {
            for _ in 0..3 {
                assert_eq!(caller.says("open", users).await, "Ok", "{charge} {users:?}");
                assert_eq!(caller.says("shut", users).await, "OverLimit", "{charge} {users:?}");
                let status = caller.ask("files", users).await.unwrap_err();
                assert_eq!(status.code(), Code::Unavailable, "{charge} {users:?}");
            }
            // Envoy would let pass what is unavailable: what a rule denies stays denied.
            assert_eq!(caller.says("files", &["strict"]).await, "OverLimit", "{charge}");
            assert_eq!(caller.says("files", &["strict", "b"]).await, "OverLimit", "{charge}");
            // Its share of the limit is all of it: there is one node.
            let local = [caller.says("local", users).await, caller.says("local", users).await];
            assert_eq!(local, ["Ok", "Ok"], "{charge} {users:?}");
            assert_eq!(caller.says("local", users).await, "OverLimit", "{charge} {users:?}");
        }

        redis.restart();
        until(&mut caller, "files", "Ok").await;
        // By the store again, which has lost its counters.
        assert_eq!(caller.says("files", &["d"]).await, "Ok");
        assert_eq!(caller.says("shut", &["d"]).await, "Ok");
        drop(caller);
        assert_eq!(daemon.stop(), 0);
    }
}
