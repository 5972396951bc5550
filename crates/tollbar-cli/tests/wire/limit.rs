//! `--limit` in place of a file of rules, as every protocol meets it.

use std::io::{Read, Write};
use std::net::TcpStream;

use tollbar_proto::client::Client;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollbar_proto::v1::CheckRequest;

use crate::common::{Daemon, status};
use crate::ext_authz::{ExtAuthzClient, held, status_of};

/// Each protocol has a client of its own, of which the first request passes and the second does not.
#[test]
fn one_limit_holds_on_every_protocol() {
    let daemon = Daemon::start(&["--limit", "1/hour"]);
    assert_eq!([daemon.check("http"), daemon.check("http")], [200, 429]);

    let lines = "x-real-ip: 192.0.2.1\r\nx-original-method: GET\r\nx-original-uri: /\r\n";
    let proxied = [(); 2].map(|()| status(&daemon.get_with("/v1/forward-auth/haproxy", lines)));
    assert_eq!(proxied, [200, 429]);

    let mut resp = TcpStream::connect(daemon.address("resp")).unwrap();
    let check = "TB.CHECK GET / WITH user resp\r\n";
    resp.write_all(format!("{check}{check}QUIT\r\n").as_bytes()).unwrap();
    let mut told = String::new();
    resp.read_to_string(&mut told).unwrap();
    let outcomes = told.split("outcome\r\n").skip(1).map(|rest| rest.lines().nth(1).unwrap());
    assert_eq!(outcomes.collect::<Vec<_>>(), ["allow", "deny"], "{told}");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("http://{}", daemon.address("grpc"));
    runtime.block_on(async {
        let client = Client::connect(url.clone()).unwrap();
        let attributes = [("user".to_owned(), "grpc".to_owned())].into();
        let request = CheckRequest { attributes, ..CheckRequest::default() };
        for is_allowed in [true, false] {
            let response = client.calls().check(request.clone()).await.unwrap().into_inner();
            assert_eq!(response.allowed, is_allowed, "{response:?}");
        }
        let endpoint = tonic::transport::Endpoint::from_shared(url).unwrap();
        let mut envoy = RateLimitServiceClient::new(endpoint.connect().await.unwrap());
        let entry = Entry { key: "user".to_owned(), value: "envoy".to_owned() };
        let descriptor =
            RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        let request = RateLimitRequest {
            domain: "any".to_owned(),
            descriptors: vec![descriptor],
            hits_addend: 0,
        };
        for code in [Code::Ok, Code::OverLimit] {
            let response = envoy.should_rate_limit(request.clone()).await.unwrap().into_inner();
            assert_eq!(response.overall_code(), code, "{response:?}");
        }
    });
    let mut ext_authz = ExtAuthzClient::connect(&daemon);
    let mut check = || status_of(&ext_authz.check(held("192.0.2.2", "GET", "/", None)));
    assert_eq!([check(), check()], [200, 429]);
}
