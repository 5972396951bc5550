//! What requests hold, and that it always comes back.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use http_body::Frame;
use tollbar_rules::{Request as Asked, TokenError};

use super::*;
use crate::testing::{later_by, rules};
use crate::{ResponseEnd, Settle};

const HUNDRED: &str = "rules: [{ name: a, limit: 100/100s, algorithm: fixed_window }]";
const TWO_IN_FLIGHT: &str = "rules: [{ name: a, limit: 2, algorithm: concurrency }]";

fn settling(yaml: &str, settle: Settle) -> (TollbarService<PathService>, Engine) {
    let engine = engine(yaml).0;
    let layer = TollbarLayer::builder(&engine).cost(|_| 10).settle(settle).build();
    (layer.layer(PathService), engine)
}

/// What is left, without taking any of it.
fn left(engine: &Engine) -> u64 {
    let attributes = [("ip", "203.0.113.7")];
    let request = Asked::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    engine.check(&request.with_cost(0)).binding().unwrap().decision().remaining().unwrap()
}

#[tokio::test]
async fn requests_are_charged_in_advance_and_settled_by_their_status() {
    let settle = Settle::free_by_status(|status| status.is_server_error());
    let (service, engine) = settling(HUNDRED, settle);
    let response = get(&service, "/500/sorry").await;
    assert_eq!(response.headers()["x-ratelimit-remaining"], "90");
    assert_eq!(left(&engine), 90);
    response.into_body().collect().await.unwrap();
    assert_eq!(left(&engine), 100);
    get(&service, "/200/fine").await.into_body().collect().await.unwrap();
    assert_eq!(left(&engine), 90);
    // A response without a body is over at once.
    let empty = get(&service, "/500").await;
    assert_eq!(left(&engine), 90);
    drop(empty);
}

#[tokio::test]
async fn a_header_of_the_service_says_what_it_cost_and_stays_inside() {
    let settle = Settle::by_header(http::HeaderName::from_static("x-say-cost"));
    let (service, engine) = settling(HUNDRED, settle);
    for (told, expected) in [("3", 97), ("25", 72), ("none", 62), ("-1", 52)] {
        let mut asked = request("/200/x");
        asked.headers_mut().insert("x-say-cost", told.parse().unwrap());
        let response = service.clone().oneshot(asked).await.unwrap();
        assert!(!response.headers().contains_key("x-say-cost"));
        response.into_body().collect().await.unwrap();
        assert_eq!(left(&engine), expected, "{told}");
    }
}

#[tokio::test]
async fn bytes_that_were_sent_are_what_is_paid() {
    let (service, engine) = settling(HUNDRED, Settle::by_body_bytes(3));
    get(&service, "/200/1234567").await.into_body().collect().await.unwrap();
    assert_eq!(left(&engine), 97);
    // The client goes before it has read anything.
    drop(get(&service, "/200/1234567").await);
    assert_eq!(left(&engine), 96);
}

#[tokio::test]
async fn rules_multiply_what_was_spent() {
    let yaml = r#"rules:
  - { name: a, limit: 100/100s, algorithm: fixed_window, cost: { "GET /200/**": 2 } }
  - { name: b, limit: 1000/100s, algorithm: fixed_window, per: [] }"#;
    let (service, engine) = settling(yaml, Settle::by(|_| 7));
    let response = get(&service, "/200/x").await;
    assert_eq!(response.headers()["x-ratelimit-remaining"], "80");
    response.into_body().collect().await.unwrap();
    let attributes = [("ip", "203.0.113.7")];
    let request = Asked::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    let verdict = engine.check(&request.with_cost(0));
    let left: Vec<u64> =
        verdict.decisions().map(|decision| decision.decision().remaining().unwrap()).collect();
    assert_eq!(left, [86, 993]);
}

/// How the last request ended.
type SeenEnds = Arc<std::sync::Mutex<Vec<ResponseEnd>>>;

fn watching(spent: impl Fn(&ResponseEnd) -> u64 + Send + Sync + 'static) -> (Settle, SeenEnds) {
    let seen = SeenEnds::default();
    let watched = Arc::clone(&seen);
    let settle = Settle::by(move |ending| {
        watched.lock().unwrap().push(ending.clone());
        spent(ending)
    });
    (settle, seen)
}

#[tokio::test]
async fn a_client_that_goes_away_before_the_response_is_settled_too() {
    let (settle, seen) = watching(|ending| if ending.status().is_none() { 4 } else { 0 });
    let engine = engine(HUNDRED).0;
    let layer = TollbarLayer::builder(&engine).cost(|_| 10).settle(settle).build();
    let (mut service, mut handle) =
        tower_test::mock::spawn_with(|mock: tower_test::mock::Mock<_, FullResponse>| {
            layer.layer(mock)
        });
    handle.allow(2);
    assert!(service.poll_ready().is_ready());
    let future = service.call(request("/"));
    assert_eq!(left(&engine), 90);
    drop(future);
    assert_eq!(left(&engine), 96);
    let ending = seen.lock().unwrap().pop().unwrap();
    assert_eq!((ending.status(), ending.reserved(), ending.is_complete()), (None, 10, false));

    // The service fails.
    assert!(service.poll_ready().is_ready());
    let future = tokio::spawn(service.call(request("/")));
    // The first request was called, and nobody waits for its answer.
    handle.next_request().await.unwrap();
    handle.next_request().await.unwrap().1.send_error("broken");
    assert!(future.await.unwrap().is_err());
    assert_eq!(left(&engine), 92);
}

#[tokio::test]
async fn a_settlement_that_panics_costs_what_was_reserved() {
    let (service, engine) = settling(HUNDRED, Settle::by(|_| panic!("a bug of the user's")));
    get(&service, "/200/x").await.into_body().collect().await.unwrap();
    assert_eq!(left(&engine), 90);
}

/// A body of frames that come when they are polled, and an error at the end if it says so.
#[derive(Debug)]
struct Frames(Vec<Result<&'static str, &'static str>>);

impl Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(self.0.remove(0).map(|text| Frame::data(Bytes::from(text)))))
    }
}

fn streaming(
    layer: &TollbarLayer,
    frames: &[Result<&'static str, &'static str>],
) -> TollbarBody<Frames> {
    let frames = frames.to_vec();
    let inner = tower::service_fn(move |_: Request<()>| {
        ready(Ok::<_, Infallible>(Response::new(Frames(frames.clone()))))
    });
    let mut service = layer.layer(inner);
    let response = service.call(request("/"));
    let response = futures_now(response).unwrap();
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// The outcome of a future that is ready.
fn futures_now<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("not ready"),
    }
}

#[test]
fn endings_tell_how_much_was_sent_and_whether_that_was_all() {
    let (settle, seen) = watching(ResponseEnd::reserved);
    let layer = TollbarLayer::builder(engine(HUNDRED).0).settle(settle).build();
    let last = || {
        let ending = seen.lock().unwrap().pop().unwrap();
        (ending.body_bytes(), ending.is_complete())
    };

    let mut body = streaming(&layer, &[Ok("abc"), Ok("de")]);
    for _ in 0..2 {
        futures_now(body.frame());
        assert!(seen.lock().unwrap().is_empty());
    }
    assert!(futures_now(body.frame()).is_none());
    assert_eq!(last(), (5, true));
    drop(body);
    assert!(seen.lock().unwrap().is_empty(), "settled twice");

    let mut body = streaming(&layer, &[Ok("abc"), Ok("de")]);
    futures_now(body.frame());
    drop(body);
    assert_eq!(last(), (3, false));

    let mut body = streaming(&layer, &[Ok("abc"), Err("broke off")]);
    futures_now(body.frame());
    assert!(futures_now(body.frame()).unwrap().is_err());
    assert_eq!(last(), (3, false));
}

#[test]
fn permits_are_held_until_the_body_ends_or_is_dropped() {
    let engine = engine(TWO_IN_FLIGHT).0;
    let layer = TollbarLayer::new(&engine);
    let first = streaming(&layer, &[Ok("abc")]);
    assert_eq!(left(&engine), 1);
    let mut second = streaming(&layer, &[Ok("abc")]);
    assert_eq!(left(&engine), 0);
    let mut busy = layer.layer(PathService);
    let response = futures_now(busy.call(request("/"))).unwrap();
    assert_eq!(response.status(), 429);
    // Nobody can know when a permit comes back.
    assert!(!response.headers().contains_key("retry-after"));

    drop(first);
    assert_eq!(left(&engine), 1);
    futures_now(second.frame());
    assert_eq!(left(&engine), 1);
    assert!(futures_now(second.frame()).is_none());
    assert_eq!(left(&engine), 2);
    drop(second);
    assert_eq!(left(&engine), 2);
}

#[test]
fn permits_come_back_where_the_service_panics() {
    let engine = engine(TWO_IN_FLIGHT).0;
    let inner = tower::service_fn(|_: Request<()>| async {
        std::future::ready(()).await;
        assert!(std::hint::black_box(false), "a bug of the handler's");
        Ok::<_, Infallible>(FullResponse::default())
    });
    let mut service = TollbarLayer::new(&engine).layer(inner);
    for _ in 0..5 {
        let future = std::panic::AssertUnwindSafe(service.call(request("/")));
        let ended = std::panic::catch_unwind(|| futures_now({ future }.0));
        assert!(ended.is_err());
        assert_eq!(left(&engine), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_elsewhere_is_settled_with_in_the_background() {
    let store = Arc::new(later_by(Duration::from_millis(5)));
    let engine = AsyncEngine::new(rules(HUNDRED), store).unwrap();
    let layer = TollbarLayer::builder(engine).cost(|_| 10).settle(Settle::by(|_| 1)).build();
    let service = layer.layer(PathService);
    for expected in ["90", "89", "88"] {
        let response = get(&service, "/200/x").await;
        assert_eq!(response.headers()["x-ratelimit-remaining"], expected);
        drop(response);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A lease is shorter than the response takes.
#[tokio::test(start_paused = true)]
async fn leases_are_renewed_while_a_response_lasts() {
    let yaml = "rules: [{ name: a, limit: 1, algorithm: concurrency, lease: 30s }]";
    let engine = engine_by_tokio(yaml);
    let layer = TollbarLayer::new(&engine);
    let body = streaming(&layer, &[Ok("abc")]);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert_eq!(left(&engine), 0);
    }
    drop(body);
    assert_eq!(left(&engine), 1);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(left(&engine), 1);
}

/// Such errors were dropped: nobody could see that a store had not taken a charge back.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_settled_renewed_or_given_back_is_reported() {
    let leases = "rules: [{ name: a, limit: 1, algorithm: concurrency, lease: 30s }]";
    for (yaml, settle) in [(HUNDRED, Some(Settle::by(|_| 1))), (leases, None)] {
        let store = Arc::new(later_by(Duration::from_millis(5)));
        let engine = AsyncEngine::new(rules(yaml), Arc::clone(&store) as Arc<_>).unwrap();
        let (sender, mut errors) = tokio::sync::mpsc::unbounded_channel();
        let report = move |error: &TokenError| sender.send(error.to_string()).unwrap();
        let layer = TollbarLayer::builder(engine).on_hold_error(report);
        let is_leased = settle.is_none();
        let layer = match settle {
            Some(settle) => layer.settle(settle),
            None => layer,
        };
        let service = layer.build().layer(PathService);
        let response = get(&service, "/200/x").await;
        assert_eq!(response.status(), 200);
        store.set_down(true);
        if is_leased {
            // All renewals until the lease ends.
            let error = next(&mut errors).await;
            assert!(error.starts_with("a lease has ended and its request goes on"), "{error}");
        }
        assert!(errors.try_recv().is_err());
        drop(response);
        next(&mut errors).await;
        assert!(errors.try_recv().is_err());
    }
}

/// There were three attempts in the time of a lease, and no more.
#[tokio::test(start_paused = true)]
async fn a_renewal_is_tried_again_while_the_lease_lasts() {
    let yaml = "rules: [{ name: a, limit: 1, algorithm: concurrency, lease: 30s }]";
    let store = Arc::new(later_by(Duration::from_millis(5)));
    let engine = AsyncEngine::new(rules(yaml), Arc::clone(&store) as Arc<_>).unwrap();
    let (sender, mut errors) = tokio::sync::mpsc::unbounded_channel();
    let report = move |error: &TokenError| sender.send(error.to_string()).unwrap();
    let service = TollbarLayer::builder(engine).on_hold_error(report).build().layer(PathService);
    let response = get(&service, "/200/x").await;
    for _ in 0..5 {
        // Of three attempts in the time of a lease, two would fail.
        store.set_down(true);
        tokio::time::sleep(Duration::from_secs(21)).await;
        store.set_down(false);
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(get(&service, "/200/y").await.status(), 429, "the permit is held");
    }
    assert!(errors.try_recv().is_err(), "what has healed is not reported");
    drop(response);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(get(&service, "/200/y").await.status(), 200);
}

/// The next error that is reported, within the minute in which a lease ends twice.
async fn next(errors: &mut tokio::sync::mpsc::UnboundedReceiver<String>) -> String {
    let next = tokio::time::timeout(Duration::from_mins(1), errors.recv()).await;
    next.expect("an error is reported").expect("the layer is there")
}
