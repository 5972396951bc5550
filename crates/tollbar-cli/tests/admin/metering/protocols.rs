//! Usage of reservations, retries and calls of Envoy, over every protocol that has them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use tollbar_proto::envoy::config::core::v3::address::Address as AddressKind;
use tollbar_proto::envoy::config::core::v3::{Address, SocketAddress};
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::auth::v3 as ext_authz;
use tollbar_proto::envoy::service::auth::v3::AttributeContext;
use tollbar_proto::envoy::service::auth::v3::attribute_context::{HttpRequest, Peer, Request};
use tollbar_proto::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollbar_proto::v1;
use tonic::transport::{Channel, Endpoint};

use super::{daemon, database};
use crate::common::{Daemon, Scratch};

/// A call of Envoy's rate limit filter, and one of its filter `ext_authz`.
async fn ask_as_envoy(channel: Channel) {
    let entries = vec![Entry { key: "user".to_owned(), value: "envoy".to_owned() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let request = RateLimitRequest { domain: "any".to_owned(), descriptors, hits_addend: 3 };
    RateLimitServiceClient::new(channel.clone()).should_rate_limit(request).await.unwrap();

    let http = HttpRequest { method: "GET".into(), path: "/".into(), ..HttpRequest::default() };
    let socket = SocketAddress { address: "192.0.2.9".to_owned(), ..SocketAddress::default() };
    let address = Some(Address { address: Some(AddressKind::SocketAddress(socket)) });
    let attributes = Some(AttributeContext {
        source: Some(Peer { address, ..Peer::default() }),
        request: Some(Request { http: Some(http), ..Request::default() }),
        ..AttributeContext::default()
    });
    let held = ext_authz::CheckRequest { attributes };
    AuthorizationClient::new(channel).check(held).await.unwrap();
}

/// Reserves 4 for three users, of whom one commits 1, one commits 6 and one cancels; and checks once and once again by its id.
async fn ask_over_grpc(channel: Channel) {
    let mut client = v1::limiter_client::LimiterClient::new(channel);
    let request = |user: &str| v1::CheckRequest {
        path: "/tokens".to_owned(),
        attributes: [("user".to_owned(), user.to_owned())].into(),
        cost: Some(4),
        ..v1::CheckRequest::default()
    };
    for (user, spent) in
        [("grpc-committed", Some(1)), ("grpc-over", Some(6)), ("grpc-cancelled", None)]
    {
        let reserve = v1::ReserveRequest { request: Some(request(user)), ttl: None };
        let receipt = client.reserve(reserve).await.unwrap().into_inner().receipt;
        match spent {
            Some(cost) => {
                let commit = v1::CommitRequest { receipt, cost: Some(cost) };
                client.commit(commit).await.unwrap();
            }
            None => {
                client.cancel(v1::CancelRequest { receipt }).await.unwrap();
            }
        }
    }
    for _ in 0..2 {
        let request_id = "grpc-1".to_owned();
        let again = v1::CheckRequest { request_id, ..request("grpc-retried") };
        assert!(client.check(again).await.unwrap().into_inner().allowed);
    }
    client.peek(v1::CheckRequest { cost: None, ..request("grpc-peeked") }).await.unwrap();
}

/// One command of the Redis protocol that answers with a map, and the text behind a name in it.
fn ask_over_resp(daemon: &Daemon, line: &str, name: &str) -> String {
    let mut stream = TcpStream::connect(daemon.address("resp")).unwrap();
    stream.write_all(format!("{line}\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    let lines: Vec<&str> = told.split("\r\n").collect();
    let at = lines.iter().position(|line| *line == name);
    at.map_or_else(|| panic!("no `{name}` in {told}"), |at| lines[at + 2].to_owned())
}

/// Tokens by client and rule, and the requests of each client under the empty name.
fn usage_by_client(scratch: &Scratch) -> BTreeMap<String, i64> {
    let database = database(scratch);
    let sums = "SELECT client, rule, sum(admitted_cost), sum(admitted_requests) FROM usage_daily GROUP BY 1, 2";
    let mut statement = database.prepare(sums).unwrap();
    let mut usage = BTreeMap::new();
    let mut rows = statement.query(()).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (client, rule): (String, String) = (row.get(0).unwrap(), row.get(1).unwrap());
        *usage.entry(format!("{client} {rule}")).or_default() += row.get::<_, i64>(2).unwrap();
        *usage.entry(format!("{client} requests")).or_default() += row.get::<_, i64>(3).unwrap();
    }
    usage.retain(|_, amount| *amount != 0);
    usage
}

/// Over HTTP, they are in `whatever_the_wire_usage_is_counted`.
#[test]
fn reservations_retries_and_calls_of_envoy_are_metered_alike_over_grpc_and_the_redis_protocol() {
    let scratch = Scratch::new("metering-settled-wires");
    let daemon = daemon(&scratch, &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let uri = format!("http://{}", daemon.address("grpc"));
        let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
        ask_over_grpc(channel.clone()).await;
        ask_as_envoy(channel).await;
    });
    for (user, settlement) in [
        ("resp-committed", "TB.COMMIT {receipt} COST 1"),
        ("resp-over", "TB.COMMIT {receipt} COST 6"),
        ("resp-cancelled", "TB.CANCEL {receipt}"),
    ] {
        let reserve = format!("TB.RESERVE GET /tokens COST 4 WITH user {user}");
        let receipt = ask_over_resp(&daemon, &reserve, "receipt");
        ask_over_resp(&daemon, &settlement.replace("{receipt}", &receipt), "charges");
    }
    let again = "TB.CHECK GET /tokens COST 4 ID resp-1 WITH user resp-retried";
    for _ in 0..2 {
        ask_over_resp(&daemon, again, "allowed");
    }
    assert_eq!(daemon.stop(), 0);
    let mut expected = BTreeMap::new();
    for protocol in ["grpc", "resp"] {
        for (user, tokens) in [("committed", 1), ("over", 6), ("retried", 4)] {
            let client = format!("user:{protocol}-{user}");
            expected.insert(format!("{client} per_client"), tokens);
            expected.insert(format!("{client} tokens"), tokens);
            expected.insert(format!("{client} requests"), 1);
        }
    }
    for (client, tokens) in [("user:envoy", 3), ("ip:192.0.2.9", 1)] {
        expected.insert(format!("{client} per_client"), tokens);
        expected.insert(format!("{client} requests"), 1);
    }
    assert_eq!(usage_by_client(&scratch), expected);
}
