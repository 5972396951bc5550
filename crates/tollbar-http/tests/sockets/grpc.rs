//! The layer in front of a tonic service, asked by a tonic client.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::net::TcpListener;
use tollbar::{ManualClock, Timestamp};
use tollbar_http::{RetryJitter, TollbarLayer};
use tollbar_rules::{Engine, RuleFile};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

use crate::ends::{ResponseEnds, watch};

/// A client of the health service, behind these rules.
async fn client(yaml: &str) -> (HealthClient<Channel>, ManualClock, ResponseEnds) {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let rules = RuleFile::parse("rules.yaml", yaml).unwrap_or_else(|error| panic!("{error}")).rules;
    let engine = Engine::builder(rules).clock(clock.clone()).build();
    let (_, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (watch, ends) = watch();
    let layer = TollbarLayer::builder(engine).retry_jitter(RetryJitter::Off).build();
    let server = Server::builder().layer(watch).layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    (HealthClient::new(channel.connect().await.unwrap()), clock, ends)
}

async fn check(client: &mut HealthClient<Channel>) -> Result<tonic::Response<()>, Status> {
    let answer = client.check(HealthCheckRequest { service: String::new() }).await;
    answer.map(|response| response.map(|_| ()))
}

#[tokio::test]
async fn a_denied_call_is_a_status_with_when_to_retry() {
    let yaml =
        "rules: [{ name: a, limit: 2/100s, algorithm: fixed_window, per: [ip], missing: deny }]";
    let (mut client, clock, _) = client(yaml).await;
    clock.advance(Duration::from_millis(1_500));
    for left in ["1", "0"] {
        let response = check(&mut client).await.unwrap();
        assert_eq!(response.metadata().get("x-ratelimit-remaining").unwrap(), left);
    }
    let status = check(&mut client).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Too many requests"));
    let retry_info = status.get_details_retry_info().expect("it has a RetryInfo");
    assert_eq!(retry_info.retry_delay, Some(Duration::from_millis(98_500)));
    assert_eq!(status.metadata().get("retry-after").unwrap(), "99");
    // The connection goes on.
    clock.advance(Duration::from_secs(99));
    assert!(check(&mut client).await.is_ok());
}

#[tokio::test]
async fn calls_hold_permits_until_their_trailers() {
    let yaml = "rules: [{ name: a, limit: 1, algorithm: concurrency }]";
    let (mut client, _, mut ends) = client(yaml).await;
    for _ in 0..20 {
        check(&mut client).await.unwrap();
        ends.wait_for(1).await;
    }
    // A stream that does not end holds its permit.
    let watch = client.watch(HealthCheckRequest { service: String::new() }).await.unwrap();
    let busy = check(&mut client).await.unwrap_err();
    assert_eq!(busy.code(), Code::ResourceExhausted);
    assert!(busy.get_details_retry_info().is_none());
    drop(watch);
    ends.wait_for(1).await;
    check(&mut client).await.unwrap();
}
