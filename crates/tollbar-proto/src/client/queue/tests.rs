//! Who waits, who is told, and who has gone away.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::future::poll_fn;

use super::*;

fn queue(max_waiting: usize) -> Arc<RequestQueue> {
    Arc::new(RequestQueue::new(max_waiting, FaultObserver::default()))
}

fn open(queue: &Arc<RequestQueue>) -> (Outbound, Arc<InFlight>) {
    let session = queue.begin();
    queue.open();
    session
}

fn request(path: &str) -> CheckRequest {
    CheckRequest { path: path.to_owned(), ..CheckRequest::default() }
}

fn ready(outbound: &mut Outbound) -> Option<CheckManyRequest> {
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(outbound).poll_next(&mut cx) {
        Poll::Ready(in_flight) => in_flight,
        Poll::Pending => None,
    }
}

fn paths(outbound: &mut Outbound) -> Vec<String> {
    std::iter::from_fn(|| ready(outbound)).map(|message| message.request.unwrap().path).collect()
}

#[test]
fn what_has_queued_goes_out_together_and_in_order() {
    let queue = queue(8);
    let (mut outbound, in_flight) = open(&queue);
    let mut waiting: Vec<_> = ["a", "b", "c"].map(|path| queue.join(request(path)).unwrap()).into();
    assert_eq!(paths(&mut outbound), ["a", "b", "c"]);
    assert_eq!(in_flight.next(), Some(1));
    assert!(
        !in_flight.answer(2, Ok(CheckResponse::default())),
        "the first is to be answered first"
    );
    for (id, limit) in [(1, 10), (2, 20), (3, 30)] {
        assert!(
            in_flight.answer(id, Ok(CheckResponse { limit: Some(limit), ..Default::default() }))
        );
    }
    let limits =
        waiting.iter_mut().map(|answer| answer.try_recv().unwrap().unwrap().limit.unwrap());
    assert_eq!(limits.collect::<Vec<_>>(), [10, 20, 30]);
}

#[test]
fn more_than_the_bound_are_turned_away_until_one_is_answered() {
    let queue = queue(2);
    let (mut outbound, in_flight) = open(&queue);
    let (_a, _b) = (queue.join(request("a")).unwrap(), queue.join(request("b")).unwrap());
    assert!(matches!(queue.join(request("c")), Err(CheckError::Overloaded { max_waiting: 2 })));
    assert_eq!(paths(&mut outbound), ["a", "b"]);
    assert!(
        matches!(queue.join(request("c")), Err(CheckError::Overloaded { .. })),
        "sent ones count"
    );
    assert!(in_flight.answer(1, Ok(CheckResponse::default())));
    assert!(queue.join(request("c")).is_ok());
}

#[test]
fn callers_that_went_away_are_not_sent_and_leave_their_places() {
    let queue = queue(2);
    for _ in 0..1_000 {
        drop(queue.join(request("gone")).unwrap());
    }
    assert!(lock(&queue.state).queued.len() <= 2);
    let _here = queue.join(request("here")).unwrap();
    drop(queue.join(request("gone as well")).unwrap());
    let (mut outbound, _sent) = open(&queue);
    assert_eq!(paths(&mut outbound), ["here"]);
    assert_eq!(queue.places.available_permits(), 1);
}

#[test]
fn an_older_session_sends_nothing_more() {
    let queue = queue(8);
    let (mut old, _) = open(&queue);
    let (mut new, _) = open(&queue);
    let _waiting = queue.join(request("a")).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(Pin::new(&mut old).poll_next(&mut cx), Poll::Ready(None)));
    assert_eq!(paths(&mut new), ["a"]);
}

#[test]
fn when_nothing_can_be_sent_everybody_is_told_at_once() {
    let queue = queue(8);
    let (mut outbound, in_flight) = open(&queue);
    let mut first = queue.join(request("sent")).unwrap();
    assert_eq!(paths(&mut outbound), ["sent"]);
    let mut second = queue.join(request("queued")).unwrap();
    queue.fail(&Fault::Outage("no route".to_owned()));
    in_flight.lose("reset");
    assert!(matches!(first.try_recv().unwrap(), Err(CheckError::Lost { .. })));
    let told = second.try_recv().unwrap().unwrap_err().to_string();
    assert_eq!(told, "the daemon cannot be reached: no route");
    assert!(matches!(queue.join(request("late")), Err(CheckError::Unavailable { .. })));
    let _ = queue.begin();
    assert!(queue.join(request("again")).is_ok());
    assert_eq!(queue.places.available_permits(), 7);
}

#[test]
fn nothing_is_sent_before_the_stream_was_taken() {
    let queue = queue(8);
    let (mut outbound, in_flight) = queue.begin();
    let _waiting = queue.join(request("a")).unwrap();
    assert!(ready(&mut outbound).is_none());
    assert_eq!(in_flight.next(), None);
    queue.open();
    assert_eq!(paths(&mut outbound), ["a"]);
}

#[tokio::test]
async fn a_writer_that_waits_is_woken() {
    let queue = queue(8);
    let (mut outbound, _sent) = open(&queue);
    let writing = tokio::spawn(async move {
        poll_fn(|cx| Pin::new(&mut outbound).poll_next(cx)).await.unwrap().request.unwrap().path
    });
    tokio::task::yield_now().await;
    let _waiting = queue.join(request("a")).unwrap();
    assert_eq!(writing.await.unwrap(), "a");
}

#[tokio::test]
async fn a_writer_ends_when_the_last_client_is_gone() {
    let queue = queue(8);
    let (mut outbound, _sent) = open(&queue);
    let writing =
        tokio::spawn(async move { poll_fn(|cx| Pin::new(&mut outbound).poll_next(cx)).await });
    tokio::task::yield_now().await;
    queue.close();
    queue.closed().await;
    assert!(writing.await.unwrap().is_none());
}

/// A wrong token was told as an outage, which failure policies allow.
#[test]
fn a_client_that_is_refused_is_told_so_and_not_of_an_outage() {
    let queue = queue(8);
    let _session = open(&queue);
    let mut queued = queue.join(request("queued")).unwrap();
    let (code, message) = (tonic::Code::Unauthenticated, "the token is wrong".to_owned());
    queue.fail(&Fault::Refusal { code, message });
    for error in [queued.try_recv().unwrap().unwrap_err(), queue.join(request("late")).unwrap_err()]
    {
        assert_eq!(error.to_string(), "refused, Unauthenticated: the token is wrong");
        assert!(!error.is_outage());
    }
}

#[test]
fn overload_is_reported_once_until_half_of_the_places_are_free() {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&reports);
    let on_fault = move |error: &CheckError| lock(&seen).push(error.to_string());
    let observer = FaultObserver(Some(Arc::new(on_fault)));
    let queue = Arc::new(RequestQueue::new(4, observer));
    let (mut outbound, in_flight) = open(&queue);
    let mut next_id = 1;
    for episode in 1..=2 {
        let _waiting: Vec<_> = (0..4).map(|_| queue.join(request("a")).unwrap()).collect();
        for _ in 0..100 {
            assert!(queue.join(request("b")).is_err());
        }
        assert_eq!(lock(&reports).len(), episode);
        assert_eq!(paths(&mut outbound).len(), 4);
        for _ in 0..4 {
            assert!(in_flight.answer(next_id, Ok(CheckResponse::default())));
            next_id += 1;
        }
    }
    assert!(lock(&reports)[0].starts_with("4 checks are waiting already"));
}
