//! Requests that wait: for their turn, or for a store.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use super::*;
use crate::QueueWaiters;
use crate::testing::{later_by, rules};

const ONE_A_SECOND: &str = "rules: [{ name: a, limit: 1/s, burst: 1 }]";

fn waiting(yaml: &str, max_wait: Duration, max_waiters: usize) -> TollbarService<PathService> {
    let layer = TollbarLayer::builder(engine_by_tokio(yaml)).wait(max_wait, max_waiters).build();
    layer.layer(PathService)
}

#[tokio::test(start_paused = true)]
async fn a_denied_request_waits_until_it_passes() {
    let service = waiting(ONE_A_SECOND, Duration::from_secs(5), 10);
    let start = Instant::now();
    for second in 0..4 {
        assert_eq!(get(&service, "/").await.status(), 200);
        let waited = start.elapsed();
        assert!(waited >= Duration::from_secs(second), "{waited:?}");
        assert!(waited < Duration::from_secs(second) + Duration::from_millis(10), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_bound() {
    let service = waiting(ONE_A_SECOND, Duration::from_millis(900), 10);
    get(&service, "/").await;
    let start = Instant::now();
    let denied = get(&service, "/").await;
    // It would have to wait a second, so it does not wait at all.
    assert_eq!((denied.status().as_u16(), start.elapsed()), (429, Duration::ZERO));
    assert_eq!(denied.headers()["retry-after"], "1");

    // Many at once: what one second gives is given, and the last has waited no more than the bound.
    let service = waiting(ONE_A_SECOND, Duration::from_millis(3_500), 100);
    let start = Instant::now();
    let requests: Vec<_> = (0..20)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move { get(&service, "/").await.status() })
        })
        .collect();
    let mut allowed = 0;
    for request in requests {
        allowed += usize::from(request.await.unwrap() == 200);
    }
    assert_eq!(allowed, 4);
    assert!(start.elapsed() <= Duration::from_millis(3_510), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may_and_places_come_back() {
    let service = waiting(ONE_A_SECOND, Duration::from_mins(1), 2);
    for _ in 0..2 {
        let requests: Vec<_> = (0..10)
            .map(|_| {
                let service = service.clone();
                tokio::spawn(async move { get(&service, "/").await.status() })
            })
            .collect();
        let mut allowed = 0;
        for request in requests {
            allowed += usize::from(request.await.unwrap() == 200);
        }
        // One at once, two after they have waited, and the rest is turned away.
        assert_eq!(allowed, 3);
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    // Places of those who give up come back too.
    get(&service, "/").await;
    for _ in 0..10 {
        let given_up = tokio::time::timeout(Duration::from_millis(10), get(&service, "/")).await;
        assert!(given_up.is_err(), "it was not given up");
    }
    assert_eq!(get(&service, "/").await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn whoever_observes_is_told_once_of_each_request_however_long_it_waits() {
    for (max_waiters, expected) in [(10, [true, true, true]), (1, [true, false, true])] {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let by = Arc::clone(&told);
        let service = TollbarLayer::builder(engine_by_tokio(ONE_A_SECOND))
            .wait(Duration::from_secs(5), max_waiters)
            .on_decision(move |DecisionReport { request, verdict, .. }| {
                assert_eq!(request.path(), "/x");
                by.lock().unwrap().push(verdict.is_allowed());
            })
            .build()
            .layer(PathService);
        get(&service, "/x").await;
        tokio::join!(get(&service, "/x"), get(&service, "/x"));
        assert_eq!(*told.lock().unwrap(), expected);
    }
}

/// When each of so many requests at once was answered, and how.
async fn burst(
    service: &TollbarService<PathService>,
    count: usize,
) -> Vec<(u16, Duration, Option<String>)> {
    let start = Instant::now();
    let requests: Vec<_> = (0..count)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move {
                let response = get(&service, "/").await;
                let retry_after = response.headers().get("retry-after");
                let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
                (response.status().as_u16(), start.elapsed(), retry_after)
            })
        })
        .collect();
    let mut answers = Vec::new();
    for request in requests {
        answers.push(request.await.unwrap());
    }
    answers.sort_unstable();
    answers
}

#[tokio::test(start_paused = true)]
async fn requests_leave_a_queue_one_at_a_time_and_no_more_wait_than_it_holds() {
    let yaml = "rules: [{ name: a, limit: 2/s, queue: 3 }]";
    let memory = TollbarLayer::new(engine_by_tokio(yaml)).layer(PathService);
    let elsewhere = TollbarLayer::new(over_later(yaml, Duration::ZERO)).layer(PathService);
    for service in [memory, elsewhere] {
        for _ in 0..2 {
            let answers = burst(&service, 10).await;
            let (left, denied) = answers.split_at(4);
            let turns_ms: Vec<u128> = left.iter().map(|answer| answer.1.as_millis()).collect();
            assert_eq!(turns_ms, [0, 500, 1_000, 1_500]);
            assert!(left.iter().all(|answer| answer.0 == 200 && answer.2.is_none()), "{left:?}");
            // The queue is full: who does not fit in is told so at once, and when to come back.
            let full = (429, Duration::ZERO, Some("1".to_owned()));
            assert!(denied.iter().all(|answer| *answer == full), "{denied:?}");
            tokio::time::advance(Duration::from_millis(500)).await;
        }
    }
}

/// A queue held requests for as long as its rule said, and any number of them.
#[tokio::test(start_paused = true)]
async fn nobody_waits_in_a_queue_beyond_the_cap_or_without_a_place() {
    let yaml = "rules: [{ name: a, limit: 1/h, queue: 30, max_wait: 24h }]";
    // With a wait of a minute, the turn of the second request is 59 minutes away.
    for (max_wait, count_max, retry_after) in
        [(Duration::from_mins(1), 10, "3540"), (Duration::from_hours(24), 0, "3600")]
    {
        let waiters = Arc::new(QueueWaiters::new(max_wait, count_max));
        let layer = TollbarLayer::builder(engine_by_tokio(yaml)).queue_waiters(waiters.clone());
        let service = layer.build().layer(PathService);
        let start = Instant::now();
        assert_eq!(get(&service, "/").await.status(), 200);
        for _ in 0..3 {
            let denied = get(&service, "/").await;
            assert_eq!((denied.status().as_u16(), start.elapsed()), (429, Duration::ZERO));
            assert_eq!(denied.headers()["retry-after"], retry_after, "nothing was charged");
        }
        assert_eq!((waiters.count(), waiters.refusals() > 0), (0, count_max == 0));
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_in_a_queue_longer_than_its_rule_says() {
    let yaml = "rules: [{ name: a, limit: 2/s, queue: 30, max_wait: 600ms }]";
    let service = TollbarLayer::new(engine_by_tokio(yaml)).layer(PathService);
    let answers = burst(&service, 10).await;
    let allowed: Vec<_> =
        answers.iter().filter(|answer| answer.0 == 200).map(|answer| answer.1).collect();
    assert_eq!(allowed, [Duration::ZERO, Duration::from_millis(500)]);
    assert!(answers.iter().all(|answer| answer.1 <= Duration::from_millis(500)));
}

/// Panics if it is called without having been ready, as tower allows it to.
#[derive(Debug, Default)]
struct StrictService {
    is_ready: bool,
}

impl Clone for StrictService {
    /// Readiness is not cloned.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<()>> for StrictService {
    type Response = FullResponse;
    type Error = Infallible;
    type Future = Ready<Result<FullResponse, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being ready");
        ready(Ok(Response::default()))
    }
}

fn over_later(yaml: &str, delay: Duration) -> AsyncEngine {
    AsyncEngine::new(rules(yaml), Arc::new(later_by(delay))).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let engine = over_later("rules: [{ name: a, limit: 5/min }]", Duration::from_millis(3));
    let mut service = TollbarLayer::new(engine).layer(StrictService::default());
    for at in 0..8 {
        std::future::poll_fn(|context| service.poll_ready(context)).await.unwrap();
        let status = service.call(request("/")).await.unwrap().status();
        assert_eq!(status == 200, at < 5, "request {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_elsewhere_is_asked_without_blocking() {
    let engine = over_later("rules: [{ name: a, limit: 5/min }]", Duration::from_millis(20));
    let service = TollbarLayer::new(engine).layer(PathService);
    let start = Instant::now();
    let requests: Vec<_> = (0..50)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move { get(&service, "/").await.status() })
        })
        .collect();
    let mut allowed = 0;
    for request in requests {
        allowed += usize::from(request.await.unwrap() == 200);
    }
    assert_eq!(allowed, 5);
    // All fifty waited at the same time.
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
}

/// A request that is not `Sync`, such as one with axum's body, still has a future that is `Send`.
#[test]
fn futures_are_send() {
    fn is_send<T: Send>(_: &T) -> bool {
        true
    }
    struct NotSync(#[expect(dead_code, reason = "only its type matters")] std::cell::Cell<u8>);
    #[derive(Clone)]
    struct FlagService(Arc<AtomicBool>);
    impl Service<Request<NotSync>> for FlagService {
        type Response = FullResponse;
        type Error = Infallible;
        type Future = Ready<Result<FullResponse, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<NotSync>) -> Self::Future {
            self.0.store(true, Ordering::Relaxed);
            ready(Ok(Response::default()))
        }
    }
    let called = Arc::new(AtomicBool::new(false));
    let mut service = layer(FIVE).layer(FlagService(Arc::clone(&called)));
    let future = service.call(request("/").map(|()| NotSync(std::cell::Cell::new(0))));
    assert!(is_send(&future) && called.load(Ordering::Relaxed));
}
