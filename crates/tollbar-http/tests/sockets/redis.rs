//! The layer over a real Redis: one limit for all instances, and what clients are told without it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::task::JoinSet;
use tollbar_http::TollbarLayer;
use tollbar_redis::{FleetSecret, KeyNames, RedisStore};
use tollbar_rules::{AsyncEngine, RuleFile};
use tollbar_testkit::redis::process::RedisProcess;

use crate::client::{Connection, Response};
use crate::server::serve;

/// Machines that run tests are slow at times.
const DEADLINE: Duration = Duration::from_secs(20);

/// An instance of a service: a store, an engine and a listener of its own.
async fn instance(redis: &RedisProcess, yaml: &str, deadline: Duration) -> SocketAddr {
    let store = RedisStore::builder(&redis.url(), KeyNames::Hashed(FleetSecret::new([7; 32])))
        .timeout(deadline);
    let store = store.connect().await.expect("the server is there");
    let rules = RuleFile::parse("rules.yaml", yaml).unwrap_or_else(|error| panic!("{error}")).rules;
    let engine = AsyncEngine::new(rules, Arc::new(store)).unwrap();
    let hello = || get(async || "hello");
    let app = Router::new()
        .route("/", hello())
        .route("/allow", hello())
        .route("/deny", hello())
        .route("/local", hello());
    serve(app.layer(TollbarLayer::new(engine))).await
}

/// A log admits what it says in any day, also if it is midnight while the test runs.
const HUNDRED: &str = "rules: [{ name: a, limit: 100/day, algorithm: sliding_window_log }]";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_admit_together_what_one_would() {
    let redis = RedisProcess::start();
    let mut requests = JoinSet::new();
    for _ in 0..2 {
        let address = instance(&redis, HUNDRED, DEADLINE).await;
        for _ in 0..30 {
            requests.spawn(async move {
                let mut connection = Connection::open(address).await;
                let mut left = Vec::new();
                for _ in 0..5 {
                    let response = connection.get("/").await;
                    assert_eq!(response.header("x-ratelimit-degraded"), None);
                    assert!([200, 429].contains(&response.status));
                    if response.status == 200 {
                        left.push(response.header("x-ratelimit-remaining").unwrap().to_owned());
                    }
                }
                left
            });
        }
    }
    let left = requests.join_all().await.concat();
    let mut left: Vec<u64> = left.iter().map(|text| text.parse().unwrap()).collect();
    left.sort_unstable();
    // A hundred of the three hundred have passed, and no two were told the same.
    assert_eq!(left, (0..100).collect::<Vec<_>>());
}

const AS_DECLARED: &str = r"
rules:
  - { name: allow, match: { path: /allow }, limit: 2/day, algorithm: sliding_window_log }
  - { name: deny, match: { path: /deny }, limit: 9/day, on_store_failure: deny }
  - { name: local, match: { path: /local }, limit: 3/day, algorithm: sliding_window_log, on_store_failure: local }
";

async fn ask(address: SocketAddr, path: &str) -> (u16, Option<String>, Response) {
    let response = Connection::open(address).await.get(path).await;
    let degraded = response.header("x-ratelimit-degraded").map(str::to_owned);
    (response.status, degraded, response)
}

/// Real time passes here: a server that is gone is noticed when it does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_each_rule_does_as_it_declared_and_the_client_is_told() {
    let mut redis = RedisProcess::start();
    let address = instance(&redis, AS_DECLARED, Duration::from_millis(500)).await;
    for path in ["/allow", "/deny", "/local"] {
        let (status, degraded, response) = ask(address, path).await;
        assert_eq!((status, degraded), (200, None), "{path}");
        assert!(response.header("ratelimit").is_some(), "{path}");
    }
    redis.kill();
    let is = |how: &str| Some(how.to_owned());
    for _ in 0..4 {
        // Beyond its limit, which nobody can count; what is left nobody knows.
        let (status, degraded, response) = ask(address, "/allow").await;
        assert_eq!((status, degraded), (200, is("allowed")));
        assert_eq!(response.header("x-ratelimit-limit"), Some("2"));
        assert_eq!(response.header("x-ratelimit-remaining"), None);
        assert_eq!(response.header("ratelimit"), None);

        let (status, degraded, response) = ask(address, "/deny").await;
        assert_eq!((status, degraded), (429, is("denied")));
        assert_eq!(response.header("retry-after"), Some("1"));
    }
    for left in ["2", "1", "0"] {
        let (status, degraded, response) = ask(address, "/local").await;
        assert_eq!((status, degraded), (200, is("local")));
        assert_eq!(response.header("x-ratelimit-remaining"), Some(left));
    }
    let (status, degraded, _) = ask(address, "/local").await;
    assert_eq!((status, degraded), (429, is("local")));

    redis.restart();
    let back = async {
        // Each request is an attempt: the breaker lets one through now and then.
        while ask(address, "/deny").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, back).await.expect("it never came back");
    assert_eq!(ask(address, "/local").await.1, None);
}
