//! Who waits, who is told, and who has gone away.

use std::future::poll_fn;

use super::*;

fn line(max_waiting: usize) -> Arc<Line> {
    Arc::new(Line::new(max_waiting))
}

fn open(line: &Arc<Line>) -> (Outbound, Arc<Sent>) {
    let session = line.begin();
    line.open();
    session
}

fn request(path: &str) -> CheckRequest {
    CheckRequest { path: path.to_owned(), ..CheckRequest::default() }
}

fn ready(outbound: &mut Outbound) -> Option<CheckManyRequest> {
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(outbound).poll_next(&mut cx) {
        Poll::Ready(sent) => sent,
        Poll::Pending => None,
    }
}

fn paths(outbound: &mut Outbound) -> Vec<String> {
    std::iter::from_fn(|| ready(outbound)).map(|it| it.request.unwrap().path).collect()
}

#[test]
fn what_has_queued_goes_out_together_and_in_order() {
    let line = line(8);
    let (mut outbound, sent) = open(&line);
    let mut waiting: Vec<_> = ["a", "b", "c"].map(|it| line.join(request(it)).unwrap()).into();
    assert_eq!(paths(&mut outbound), ["a", "b", "c"]);
    assert_eq!(sent.next(), Some(1));
    assert!(!sent.answer(2, Ok(CheckResponse::default())), "the first is to be answered first");
    for (id, limit) in [(1, 10), (2, 20), (3, 30)] {
        assert!(sent.answer(id, Ok(CheckResponse { limit: Some(limit), ..Default::default() })));
    }
    let limits = waiting.iter_mut().map(|it| it.try_recv().unwrap().unwrap().limit.unwrap());
    assert_eq!(limits.collect::<Vec<_>>(), [10, 20, 30]);
}

#[test]
fn more_than_the_bound_are_turned_away_until_one_is_answered() {
    let line = line(2);
    let (mut outbound, sent) = open(&line);
    let (_a, _b) = (line.join(request("a")).unwrap(), line.join(request("b")).unwrap());
    assert!(matches!(line.join(request("c")), Err(CheckError::Full { max_waiting: 2 })));
    assert_eq!(paths(&mut outbound), ["a", "b"]);
    assert!(matches!(line.join(request("c")), Err(CheckError::Full { .. })), "sent ones count");
    assert!(sent.answer(1, Ok(CheckResponse::default())));
    assert!(line.join(request("c")).is_ok());
}

#[test]
fn callers_that_went_away_are_not_sent_and_leave_their_places() {
    let line = line(2);
    for _ in 0..1_000 {
        drop(line.join(request("gone")).unwrap());
    }
    assert!(lock(&line.state).queued.len() <= 2);
    let _here = line.join(request("here")).unwrap();
    drop(line.join(request("gone as well")).unwrap());
    let (mut outbound, _sent) = open(&line);
    assert_eq!(paths(&mut outbound), ["here"]);
    assert_eq!(line.places.available_permits(), 1);
}

#[test]
fn an_older_session_sends_nothing_more() {
    let line = line(8);
    let (mut old, _) = open(&line);
    let (mut new, _) = open(&line);
    let _waiting = line.join(request("a")).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(Pin::new(&mut old).poll_next(&mut cx), Poll::Ready(None)));
    assert_eq!(paths(&mut new), ["a"]);
}

#[test]
fn when_nothing_can_be_sent_everybody_is_told_at_once() {
    let line = line(8);
    let (mut outbound, sent) = open(&line);
    let mut first = line.join(request("sent")).unwrap();
    assert_eq!(paths(&mut outbound), ["sent"]);
    let mut second = line.join(request("queued")).unwrap();
    line.fail("no route");
    sent.lose("reset");
    assert!(matches!(first.try_recv().unwrap(), Err(CheckError::Lost { .. })));
    let told = second.try_recv().unwrap().unwrap_err().to_string();
    assert_eq!(told, "the daemon cannot be reached: no route");
    assert!(matches!(line.join(request("late")), Err(CheckError::Unavailable { .. })));
    let _ = line.begin();
    assert!(line.join(request("again")).is_ok());
    assert_eq!(line.places.available_permits(), 7);
}

#[test]
fn nothing_is_sent_before_the_stream_was_taken() {
    let line = line(8);
    let (mut outbound, sent) = line.begin();
    let _waiting = line.join(request("a")).unwrap();
    assert!(ready(&mut outbound).is_none());
    assert_eq!(sent.next(), None);
    line.open();
    assert_eq!(paths(&mut outbound), ["a"]);
}

#[tokio::test]
async fn a_writer_that_waits_is_woken() {
    let line = line(8);
    let (mut outbound, _sent) = open(&line);
    let writing = tokio::spawn(async move {
        poll_fn(|cx| Pin::new(&mut outbound).poll_next(cx)).await.unwrap().request.unwrap().path
    });
    tokio::task::yield_now().await;
    let _waiting = line.join(request("a")).unwrap();
    assert_eq!(writing.await.unwrap(), "a");
}

#[tokio::test]
async fn a_writer_ends_when_the_last_client_is_gone() {
    let line = line(8);
    let (mut outbound, _sent) = open(&line);
    let writing =
        tokio::spawn(async move { poll_fn(|cx| Pin::new(&mut outbound).poll_next(cx)).await });
    tokio::task::yield_now().await;
    line.close();
    line.closed().await;
    assert!(writing.await.unwrap().is_none());
}
