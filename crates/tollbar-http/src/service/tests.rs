//! The layer in front of services that are made up, in time that stands still.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

mod holding;
mod waiting;

use std::convert::Infallible;
use std::future::{Ready, ready};

use http_body_util::{BodyExt as _, Full};
use tollbar_rules::{AsyncEngine, Engine};
use tower::{Layer as _, ServiceExt as _};

use super::*;
use crate::testing::{engine, engine_without_store};
use crate::{HeaderStyle, Peer, RetryJitter, TollbarLayer};

type FullResponse = Response<Full<Bytes>>;

/// Answers with the status and the body that the path asks for: `/200/hello`.
#[derive(Debug, Clone, Default)]
struct PathService;

impl Service<Request<()>> for PathService {
    type Response = FullResponse;
    type Error = Infallible;
    type Future = Ready<Result<FullResponse, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let mut parts = request.uri().path().split('/').skip(1);
        let status = parts.next().and_then(|part| part.parse::<u16>().ok()).unwrap_or(200);
        let body = parts.next().unwrap_or_default().to_owned();
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
        for (name, value) in request.headers() {
            if name.as_str().starts_with("x-say-") {
                response.headers_mut().insert(name, value.clone());
            }
        }
        ready(Ok(response))
    }
}

fn request(path: &str) -> Request<()> {
    let mut request = Request::builder().uri(path).body(()).unwrap();
    request.extensions_mut().insert(Peer("203.0.113.7".parse().unwrap()));
    request
}

fn layer(yaml: &str) -> TollbarLayer {
    TollbarLayer::builder(engine(yaml).0).retry_jitter(RetryJitter::Off).build()
}

async fn get(
    service: &TollbarService<PathService>,
    path: &str,
) -> Response<TollbarBody<Full<Bytes>>> {
    service.clone().oneshot(request(path)).await.unwrap()
}

const FIVE: &str = "rules: [{ name: a, limit: 5/100s, algorithm: fixed_window }]";

#[tokio::test]
async fn one_policy_limits_each_client_without_a_rules_file() {
    let policy = tollbar::Policy::fixed_window("1/day").unwrap();
    let service = TollbarLayer::per_client(&policy).unwrap().layer(PathService);
    let response = get(&service, "/200").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
    assert_eq!(get(&service, "/200").await.status(), 429);
    let mut other = request("/200");
    other.extensions_mut().insert(Peer("203.0.113.8".parse().unwrap()));
    assert_eq!(service.clone().oneshot(other).await.unwrap().status(), 200);
}

#[tokio::test]
async fn every_response_says_what_is_left_errors_too() {
    let service = layer(FIVE).layer(PathService);
    for (path, status, left) in [("/200/x", 200, "4"), ("/404", 404, "3"), ("/500", 500, "2")] {
        let response = get(&service, path).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["x-ratelimit-remaining"], left);
        assert!(!response.headers().contains_key("retry-after"));
    }
    let body = get(&service, "/200/hello").await.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "hello");
}

#[tokio::test]
async fn who_is_denied_does_not_reach_the_service() {
    let (mut service, mut handle) =
        tower_test::mock::spawn_with(|mock: tower_test::mock::Mock<_, FullResponse>| {
            layer("rules: [{ name: a, limit: 1/100s, algorithm: fixed_window }]").layer(mock)
        });
    handle.allow(2);
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
    let first = tokio::spawn(service.call(request("/")));
    handle.next_request().await.unwrap().1.send_response(Response::default());
    assert_eq!(first.await.unwrap().unwrap().status(), 200);

    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
    let denied = service.call(request("/")).await.unwrap();
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["retry-after"], "100");
    assert_eq!(denied.headers()["x-ratelimit-remaining"], "0");
    assert_eq!(denied.headers()["ratelimit"], r#""a";r=0;t=100"#);
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, r#"{"error":"rate_limit_exceeded","message":"Too many requests","rule":"a"}"#);
    tokio::select! {
        biased;
        request = handle.next_request() => assert!(request.is_none(), "it has reached the service"),
        () = std::future::ready(()) => {}
    }
}

/// The future holds a request, whose headers may be secret, so `{:?}` prints only its name.
#[tokio::test]
async fn a_response_to_come_prints_its_name_only() {
    let mut service = layer("rules: [{ name: a, limit: 1/h }]").layer(PathService);
    assert_eq!(format!("{:?}", service.call(request("/"))), "ResponseFuture(..)");
}

/// With functions that look at requests and without, which are two ways to the same answer.
#[tokio::test]
async fn a_service_of_a_connection_knows_who_asks() {
    let says_who = |_: &Denial<'_>, parts: &Parts| {
        let peer = parts.extensions.get::<Peer>().map(|peer| peer.0.to_string());
        Response::new(peer.unwrap_or_default().into())
    };
    let rules = "rules: [{ name: a, limit: 1/100s, algorithm: fixed_window }]";
    let plain = || TollbarLayer::builder(engine(rules).0).denial_response(says_who);
    let looking = plain().cost(|parts| u64::from(parts.extensions.get::<Peer>().is_some()));
    for layer in [plain().build(), looking.build()] {
        for peer in ["203.0.113.7", "203.0.113.8"] {
            let service = layer.layer(PathService).with_peer(peer.parse().unwrap());
            let ask = || service.clone().oneshot(Request::new(()));
            let first = ask().await.unwrap();
            assert_eq!(first.headers()["x-ratelimit-remaining"], "0", "{peer}");
            let denied = ask().await.unwrap().into_body().collect().await.unwrap();
            assert_eq!(denied.to_bytes(), peer);
        }
    }
}

#[tokio::test]
async fn readiness_is_that_of_the_service() {
    let (mut service, mut handle) =
        tower_test::mock::spawn_with(|mock: tower_test::mock::Mock<Request<()>, FullResponse>| {
            layer(FIVE).layer(mock)
        });
    handle.allow(0);
    assert!(service.poll_ready().is_pending());
    handle.allow(1);
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
    handle.send_error("down");
    let error = match service.poll_ready() {
        Poll::Ready(Err(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(error, "down");
}

#[tokio::test]
async fn clones_of_a_layer_and_of_its_services_count_together() {
    let layer = layer(FIVE);
    let services = [layer.layer(PathService), layer.clone().layer(PathService)];
    let mut allowed = 0;
    for at in 0..20 {
        let status = get(&services[at % 2].clone(), "/").await.status();
        allowed += usize::from(status == 200);
    }
    assert_eq!(allowed, 5);
}

#[tokio::test]
async fn what_is_skipped_is_neither_counted_nor_told() {
    let layer = TollbarLayer::builder(engine(FIVE).0)
        .skip(|request| request.uri.path() == "/200/health")
        .build();
    let service = layer.layer(PathService);
    for _ in 0..10 {
        let response = get(&service, "/200/health").await;
        assert!(response.status() == 200 && response.headers().is_empty());
    }
    assert_eq!(get(&service, "/").await.headers()["x-ratelimit-remaining"], "4");
}

#[tokio::test]
async fn a_request_costs_what_the_function_says() {
    let layer = TollbarLayer::builder(engine(FIVE).0)
        .cost(|request| request.uri.query().map_or(1, |query| query.len() as u64))
        .build();
    let service = layer.layer(PathService);
    assert_eq!(get(&service, "/?abc").await.headers()["x-ratelimit-remaining"], "2");
    assert_eq!(get(&service, "/?").await.headers()["x-ratelimit-remaining"], "2");
    assert_eq!(get(&service, "/?abc").await.status(), 429);
    let never = get(&service, "/?abcdef").await;
    assert_eq!(never.status(), 422);
    assert!(!never.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn responses_of_ones_own_get_the_headers_too() {
    let (engine, _) = engine(FIVE);
    let layer = TollbarLayer::builder(engine)
        .cost(|_| 5)
        .headers(HeaderStyle::default().without_x())
        .retry_jitter(Duration::from_secs(50))
        .denial_response(|denial, request| {
            assert!(denial.retry_after() >= denial.verdict().retry_after());
            let mut response = Response::new(Bytes::from(format!("not {}", request.uri.path())));
            *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
            response
        })
        .build();
    let service = layer.layer(PathService);
    get(&service, "/").await;
    let denied = get(&service, "/now").await;
    assert_eq!(denied.status(), 503);
    let retry_after_s: u64 = denied.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((100..=150).contains(&retry_after_s), "{retry_after_s}");
    assert!(denied.headers().contains_key("ratelimit"));
    assert!(!denied.headers().contains_key("x-ratelimit-limit"));
    assert_eq!(denied.into_body().collect().await.unwrap().to_bytes(), "not /now");
}

#[tokio::test]
async fn grpc_and_problems_are_answered_in_kind() {
    let service =
        layer("rules: [{ name: a, limit: 1/100s, algorithm: fixed_window }]").layer(PathService);
    get(&service, "/").await;
    let mut grpc = request("/pkg.Service/Method");
    grpc.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let response = service.clone().oneshot(grpc).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["grpc-status"]),
        (200, &"8".parse().unwrap())
    );
    assert!(response.is_end_stream());
    let mut problem = request("/");
    problem.headers_mut().insert("accept", "application/problem+json".parse().unwrap());
    let response = service.clone().oneshot(problem).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/problem+json");
}

#[tokio::test]
async fn a_store_that_is_down_does_as_the_rule_says_and_is_no_500() {
    for (policy, status, how) in [("allow", 200, "allowed"), ("deny", 429, "denied")] {
        let yaml = format!("rules: [{{ name: a, limit: 5/min, on_store_failure: {policy} }}]");
        let service = TollbarLayer::new(engine_without_store(&yaml)).layer(PathService);
        let response = get(&service, "/").await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["x-ratelimit-degraded"], how);
    }
}

#[tokio::test]
async fn bad_requests_are_refused_before_anything_is_counted() {
    let service = layer(FIVE).layer(PathService);
    let long = format!("/{}", "a".repeat(9_000));
    assert_eq!(get(&service, &long).await.status(), 414);
    assert_eq!(get(&service, &"/a".repeat(300)).await.status(), 400);
    let mut odd = request("/");
    for _ in 0..1_000 {
        odd.headers_mut()
            .append("x-forwarded-for", http::HeaderValue::from_bytes(b"\xff,").unwrap());
    }
    *odd.method_mut() = http::Method::from_bytes(&[b'X'; 100]).unwrap();
    assert_eq!(service.clone().oneshot(odd).await.unwrap().status(), 400);
    assert_eq!(get(&service, "/").await.headers()["x-ratelimit-remaining"], "4");
}

/// Requests in the forms that have no path.
#[tokio::test]
async fn any_form_of_a_target_is_counted() {
    let service = layer(FIVE).layer(PathService);
    for (method, target, left) in
        [("OPTIONS", "*", "4"), ("CONNECT", "example.com:443", "3"), ("GET", "http://h/x", "2")]
    {
        let mut asked = request("/");
        *asked.method_mut() = method.parse().unwrap();
        *asked.uri_mut() = target.parse().unwrap();
        let response = service.clone().oneshot(asked).await.unwrap();
        assert_eq!(response.headers()["x-ratelimit-remaining"], left, "{method} {target}");
    }
}

fn engine_by_tokio(yaml: &str) -> Engine {
    let rules = crate::testing::rules(yaml);
    Engine::builder(rules).clock(crate::testing::TokioClock::start()).build()
}
