//! Spans of the real daemon, as a collector gets them: one that speaks OTLP over gRPC, in this process.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::common::{Daemon, Scratch, status};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_response::Code as OverallCode;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollbar_proto::v1;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// A daemon that sends nothing is a failure, not a reason to wait for ever.
const PATIENCE: Duration = Duration::from_mins(1);

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

struct SpanReceiver(Sender<Span>);

#[tonic::async_trait]
impl TraceService for SpanReceiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let of_resources = request.into_inner().resource_spans.into_iter();
        for scope in of_resources.flat_map(|resource| resource.scope_spans) {
            for span in scope.spans {
                let _ = self.0.send(span);
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector, until it is dropped.
struct Collector {
    runtime: Runtime,
    url: String,
    spans: Receiver<Span>,
}

impl Collector {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let (sender, spans) = channel();
        let url = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let service = TraceServiceServer::new(SpanReceiver(sender));
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
            url
        });
        Self { runtime, url, spans }
    }

    fn span(&self) -> Span {
        self.spans.recv_timeout(PATIENCE).expect("the daemon sends a span")
    }
}

fn attributes(span: &Span) -> BTreeMap<&str, &str> {
    let pairs = span.attributes.iter().filter_map(|attribute| {
        match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(Value::StringValue(text)) => Some((&*attribute.key, &**text)),
            _ => None,
        }
    });
    pairs.collect()
}

fn hex(id: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap();
    id.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

/// A check over HTTP with this header; its whole answer.
fn check(daemon: &Daemon, user: &str, header: &str) -> String {
    daemon.send("POST", "/v1/check", header, &format!(r#"{{"attributes":{{"user":"{user}"}}}}"#))
}

#[test]
fn a_check_continues_the_trace_of_its_caller_over_http_and_grpc() {
    let scratch = Scratch::new("traces");
    let rules = scratch.file("rules.yaml", "rules: [{ name: per_client, limit: 1/day }]");
    let collector = Collector::start();
    // By itself it would trace nothing.
    let daemon =
        Daemon::start(&["--rules", &rules, "--otlp", &collector.url, "--trace-sample", "0"]);
    let sampled = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n");
    assert_eq!(status(&check(&daemon, "7", "")), 200);
    let unsampled = format!("traceparent: 00-{TRACE}-{PARENT}-00\r\n");
    assert_eq!(status(&check(&daemon, "8", &unsampled)), 200);
    assert_eq!(status(&check(&daemon, "8", "traceparent: 00-nonsense\r\n")), 429);
    let denied = check(&daemon, "7", &sampled);
    assert_eq!(status(&denied), 429);

    let span = collector.span();
    assert_eq!(hex(&span.trace_id), TRACE);
    assert_eq!(hex(&span.parent_span_id), PARENT);
    assert_eq!(span.name, "tollbar.check");
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    let told = attributes(&span);
    assert_eq!(told["tollbar.rule"], "per_client");
    assert_eq!(told["tollbar.outcome"], "deny");
    assert_eq!(told["tollbar.listener"], "http");
    assert!(denied.contains(told["tollbar.decision_id"]), "{denied}");
    assert_eq!(told.len(), 4, "no client, no key, no address: {told:?}");

    let address = format!("http://{}", daemon.address("grpc"));
    collector.runtime.block_on(async {
        let channel = tonic::transport::Endpoint::from_shared(address).unwrap().connect().await;
        let mut client = v1::limiter_client::LimiterClient::new(channel.unwrap());
        let attributes = [("user".to_owned(), "9".to_owned())].into();
        let mut request = Request::new(v1::CheckRequest { attributes, ..Default::default() });
        let parent = format!("00-{TRACE}-{PARENT}-01");
        request.metadata_mut().insert("traceparent", parent.parse().unwrap());
        assert!(client.check(request).await.unwrap().into_inner().allowed);
    });
    let span = collector.span();
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
    let told = attributes(&span);
    assert_eq!((told["tollbar.listener"], told["tollbar.outcome"]), ("grpc", "allow"));

    // The exemplar of how long it took is that trace.
    let metrics = daemon.get_with("/metrics", "accept: application/openmetrics-text\r\n");
    assert!(metrics.contains(&format!("# {{trace_id=\"{TRACE}\"}}")), "{metrics}");
    assert_eq!(daemon.stop(), 0);
    assert!(collector.spans.try_recv().is_err(), "nothing else was sampled");
}

/// Limits that stand in no rule, and the gateway, made no spans and no lines in the log.
#[test]
fn every_protocol_traces_and_logs_its_denials() {
    let scratch = Scratch::new("traces-everywhere");
    let rules = scratch.file("rules.yaml", "rules: [{ name: per_client, limit: 1/day }]");
    let limits = "{ domain: d, descriptors: [{ key: k, rate_limit: { unit: year, requests_per_unit: 0 } }] }";
    let limits = scratch.file("limits.yaml", limits);
    let collector = Collector::start();
    let mut daemon = Daemon::start_logged(
        &[
            &["--rules", &rules, "--envoy-config", &limits, "--otlp", &collector.url][..],
            &["--trace-sample", "0", "--log-denials", "99", "--log-format", "json"],
            // Nobody is behind it: what was decided before that counts.
            &["--upstream", "http://127.0.0.1:1", "--proxy", "127.0.0.1:0"],
        ]
        .concat(),
    );
    let seen = |daemon: &mut Daemon, listener: &str, rule: &str| {
        let line = daemon.logged("\"message\":\"denied\"");
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&told["listener"], &told["rule"]), (&listener.into(), &rule.into()), "{line}");
        let id = told["decision_id"].as_str().unwrap().to_owned();
        let found = daemon.get_with(&format!("/v1/decisions/{id}"), "");
        assert!(found.contains(&format!("\"why\":\"`{rule}` allows ")), "{found}");
        id
    };
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let span_of = |id: &str, listener: &str, rule: &str| {
        let span = collector.span();
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
        let told = attributes(&span);
        assert_eq!((told["tollbar.listener"], told["tollbar.rule"]), (listener, rule));
        assert_eq!((told["tollbar.outcome"], told["tollbar.decision_id"]), ("deny", id));
    };

    let get = |daemon: &Daemon, lines: &str| {
        let stream = std::net::TcpStream::connect(daemon.address("proxy")).unwrap();
        let head = format!("GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}\r\n");
        crate::common::http::exchange(stream, head)
    };
    assert_eq!(status(&get(&daemon, "")), 502);
    let denied = get(&daemon, &format!("traceparent: {parent}\r\n"));
    assert_eq!(status(&denied), 429);
    let id = seen(&mut daemon, "proxy", "per_client");
    assert!(denied.contains(&format!("x-tollbar-decision-id: {id}")), "{denied}");
    span_of(&id, "proxy", "per_client");

    let address = format!("http://{}", daemon.address("grpc"));
    let response = collector.runtime.block_on(async {
        let channel = tonic::transport::Endpoint::from_shared(address).unwrap().connect().await;
        let mut client = RateLimitServiceClient::new(channel.unwrap());
        let entries = vec![Entry { key: "k".to_owned(), value: "v".to_owned() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let domain = "d".to_owned();
        let mut request = Request::new(RateLimitRequest { domain, descriptors, hits_addend: 1 });
        request.metadata_mut().insert("traceparent", parent.parse().unwrap());
        client.should_rate_limit(request).await.unwrap().into_inner()
    });
    assert_eq!(response.overall_code(), OverallCode::OverLimit);
    let id = seen(&mut daemon, "envoy", "envoy:d:k");
    let header = response.response_headers_to_add.last().unwrap();
    assert_eq!((&*header.key, &*header.value), ("x-tollbar-decision-id", &*id));
    // The rule is asked as well, and lets it pass.
    let (first, second) = (collector.span(), collector.span());
    let told = [attributes(&first), attributes(&second)]
        .map(|told| (told["tollbar.rule"].to_owned(), told["tollbar.outcome"].to_owned()));
    assert!(told.contains(&("per_client".to_owned(), "allow".to_owned())), "{told:?}");
    assert!(told.contains(&("envoy:d:k".to_owned(), "deny".to_owned())), "{told:?}");

    let command =
        "*6\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n0\r\n$1\r\n1\r\n$5\r\n86400\r\n$1\r\n2\r\n";
    let mut stream = std::net::TcpStream::connect(daemon.address("resp")).unwrap();
    std::io::Write::write_all(&mut stream, command.as_bytes()).unwrap();
    seen(&mut daemon, "resp", "CL.THROTTLE");
    drop(stream);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_share_of_checks_begins_traces_which_are_sent_before_the_end() {
    let collector = Collector::start();
    let daemon = Daemon::start(&["--otlp", &collector.url, "--trace-sample", "1"]);
    for user in 0..50 {
        daemon.check(&user.to_string());
    }
    assert_eq!(daemon.stop(), 0);
    let spans: Vec<Span> = std::iter::from_fn(|| collector.spans.try_recv().ok()).collect();
    assert_eq!(spans.len(), 50);
    let traces: std::collections::BTreeSet<_> = spans.iter().map(|span| &span.trace_id).collect();
    assert_eq!(traces.len(), 50, "each is a trace of its own");
}

#[test]
fn a_collector_that_is_not_there_holds_nobody_up() {
    // Bound, and never answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let daemon = Daemon::start(&["--otlp", &url, "--trace-sample", "1"]);
    for user in 0..3_000 {
        assert_eq!(daemon.check(&user.to_string()), 200);
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn denials_are_told_with_their_ids_and_not_all_of_them() {
    let scratch = Scratch::new("denials");
    let rules = scratch.file("rules.yaml", "rules: [{ name: per_client, limit: 1/day }]");
    let mut daemon = Daemon::start_logged(&["--rules", &rules, "--log-format", "json"]);
    let denied: Vec<String> = (0..200).map(|_| check(&daemon, "secret-client", "")).collect();
    let line = daemon.logged("\"message\":\"denied\"");
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let id = told["decision_id"].as_str().unwrap();
    assert!(denied[1].contains(id), "the first denial is told: {line}");
    assert_eq!(told["rule"], "per_client");
    assert_eq!((&told["outcome"], &told["listener"]), (&"deny".into(), &"http".into()));
    daemon.signal("TERM");
    assert_eq!(daemon.wait(), 0);
    let rest = daemon.rest_of_log();
    let lines = rest.lines().filter(|line| line.contains("denied")).count();
    // One a second; how many seconds that were is the machine's business.
    assert!(lines < 100, "{lines}");
    assert!(!line.contains("secret-client") && !rest.contains("secret-client"));
}
