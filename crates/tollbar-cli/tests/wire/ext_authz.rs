//! Calls of Envoy's filter `ext_authz` to the real daemon. Envoy itself is in the tests of proxies.

use std::collections::{BTreeMap, BTreeSet};

use tollbar_proto::envoy::config::core::v3::address::Address as AddressKind;
use tollbar_proto::envoy::config::core::v3::{Address, SocketAddress};
use tollbar_proto::envoy::service::auth::v3::attribute_context::{HttpRequest, Peer, Request};
use tollbar_proto::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use tollbar_proto::envoy::service::auth::v3::check_response::HttpResponse;
use tollbar_proto::envoy::service::auth::v3::{AttributeContext, CheckRequest, CheckResponse};
use tonic::transport::{Channel, Endpoint};

use crate::common::{Daemon, Scratch};

/// A connection to a daemon.
pub(crate) struct ExtAuthzClient {
    runtime: tokio::runtime::Runtime,
    client: AuthorizationClient<Channel>,
}

impl ExtAuthzClient {
    pub(crate) fn connect(daemon: &Daemon) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let uri = format!("http://{}", daemon.address("grpc"));
        let channel = runtime.block_on(Endpoint::from_shared(uri).unwrap().connect()).unwrap();
        Self { runtime, client: AuthorizationClient::new(channel) }
    }

    pub(crate) fn check(&mut self, request: CheckRequest) -> CheckResponse {
        self.runtime.block_on(self.client.check(request)).unwrap().into_inner()
    }
}

/// A call about a request of the client at `address`.
pub(crate) fn held(
    address: &str,
    method: &str,
    path: &str,
    headers: impl IntoIterator<Item = (String, String)>,
) -> CheckRequest {
    let http = HttpRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        headers: headers.into_iter().collect(),
        ..HttpRequest::default()
    };
    let socket = SocketAddress { address: address.to_owned(), ..SocketAddress::default() };
    let address = Some(Address { address: Some(AddressKind::SocketAddress(socket)) });
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(Peer { address, ..Peer::default() }),
            request: Some(Request { http: Some(http), ..Request::default() }),
            ..AttributeContext::default()
        }),
    }
}

/// The status that Envoy's client gets; 200 where the request passes.
pub(crate) fn status_of(response: &CheckResponse) -> i32 {
    let code = response.status.as_ref().unwrap().code;
    match response.http_response.as_ref().unwrap() {
        HttpResponse::OkResponse(_) if code == 0 => 200,
        HttpResponse::DeniedResponse(denied) if code != 0 => denied.status.as_ref().unwrap().code,
        other => panic!("{code} with {other:?}"),
    }
}

/// The headers that an answer has for Envoy's client.
pub(crate) fn headers_of(response: CheckResponse) -> BTreeMap<String, String> {
    let options = match response.http_response.unwrap() {
        HttpResponse::OkResponse(ok) => ok.response_headers_to_add,
        HttpResponse::DeniedResponse(denied) => denied.headers,
        HttpResponse::ErrorResponse(error) => panic!("{error:?}"),
    };
    let lines = options.into_iter().filter_map(|option| option.header);
    lines.map(|line| (line.key, line.value)).collect()
}

#[test]
fn clients_of_ext_authz_see_the_headers_that_are_chosen_and_come_back_at_different_times() {
    let scratch = Scratch::new("ext-authz-headers");
    let rules = "rules: [{ name: a, limit: 1/day, algorithm: fixed_window }]";
    let rules = scratch.file("rules.yaml", rules);
    for (jitter, has_jitter) in [("1h", true), ("off", false)] {
        let flags = ["--rules", &rules, "--headers", "split", "--retry-jitter", jitter];
        let daemon = Daemon::start(&flags);
        let mut client = ExtAuthzClient::connect(&daemon);
        let mut ask = || headers_of(client.check(held("192.0.2.1", "GET", "/", None)));
        let allowed = ask();
        assert_eq!(allowed["ratelimit-limit"], "1");
        assert!(!allowed.contains_key("x-ratelimit-limit"), "{allowed:?}");
        let waits = (0..30).map(|_| ask()["retry-after"].parse().unwrap());
        let waits: BTreeSet<u64> = waits.collect();
        assert_eq!(waits.len() > 4, has_jitter, "{waits:?}");
        drop(client);
        assert_eq!(daemon.stop(), 0);
    }
}

/// While the store is away each rule says what follows, and no call is answered with an error.
#[test]
fn without_a_store_rules_say_what_ext_authz_is_told() {
    let scratch = Scratch::new("ext-authz-outage");
    let rules = scratch.file(
        "rules.yaml",
        "rules:
           - { name: open, match: { path: /open }, limit: 9/s }
           - { name: shut, match: { path: /shut }, limit: 9/s, on_store_failure: deny }
           - { name: shed, match: { path: /shed }, limit: 9/s, on_store_failure: shed }",
    );
    let store = ["--store", "redis://127.0.0.1:1", "--store-raw-keys", "--rules", &rules];
    let daemon = Daemon::start(&[&store[..], &["--criticality-header", "X-Criticality"]].concat());
    let mut client = ExtAuthzClient::connect(&daemon);
    for (path, criticality, expected) in [
        ("/open", "", 200),
        ("/shut", "", 429),
        ("/shed", "low", 429),
        ("/shed", "critical", 200),
        ("/shed", "urgent", 400),
    ] {
        let header = ("x-criticality".to_owned(), criticality.to_owned());
        let headers = Some(header).filter(|_| !criticality.is_empty());
        let response = client.check(held("192.0.2.1", "GET", path, headers));
        assert_eq!(status_of(&response), expected, "{path} {criticality}");
    }
    let metrics = daemon.get_with("/metrics", "");
    for (outcome, count) in [("degraded_allow", 2), ("degraded_deny", 2), ("rejected", 1)] {
        let series = format!("{{listener=\"ext_authz\",outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&series), "{series} in {metrics}");
    }
    drop(client);
    assert_eq!(daemon.stop(), 0);
}
