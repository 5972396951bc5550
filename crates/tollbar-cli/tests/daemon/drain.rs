//! A daemon that is stopped while it is busy: whatever was asked before is answered, and counted here. Real time
//! passes: each wait is for an event, and bounded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Daemon, KEPT, response, serve};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tollbar::{Clock, SystemClock};
use tollbar_proto::client::Client;
use tollbar_proto::v1::check_many_response::Result as Answer;
use tollbar_proto::v1::{CheckManyRequest, CheckRequest};

const PATIENCE: Duration = Duration::from_mins(1);

/// So often: what is lost is lost only now and then.
const ROUNDS: usize = 5;

fn start() -> Daemon {
    let mut command = serve(&[]);
    command.stderr(Stdio::null());
    Daemon::spawn(command)
}

/// Asks over one kept connection after the other, as fast as it can, until the daemon is gone; how many
/// were answered. A client that is told to go elsewhere goes. Whatever it asked before the stop is
/// answered, and so is whatever it asked on a connection that it was not told to leave.
fn hammer(address: &str, is_stopping: &AtomicBool, answered: &AtomicUsize) {
    while let Ok(mut stream) = TcpStream::connect(address) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut must_answer = !is_stopping.load(Ordering::SeqCst);
        loop {
            let was_sent = stream.write_all(KEPT.as_bytes()).is_ok();
            let response = if was_sent { response(&mut stream) } else { None };
            let Some(response) = response else {
                assert!(!must_answer, "a request was not answered");
                // A connection that came after the stop, and was not accepted any more.
                break;
            };
            answered.fetch_add(1, Ordering::SeqCst);
            if response.contains("\r\nconnection: close\r\n") {
                break;
            }
            must_answer = true;
        }
    }
}

#[test]
fn a_stop_under_load_leaves_no_request_without_an_answer() {
    for _ in 0..ROUNDS {
        let mut daemon = start();
        let address = daemon.address("http").to_owned();
        let (is_stopping, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| hammer(&address, &is_stopping, &answered));
            }
            while answered.load(Ordering::SeqCst) < 1_000 {
                thread::yield_now();
            }
            is_stopping.store(true, Ordering::SeqCst);
            daemon.signal("TERM");
        });
        assert_eq!(daemon.wait(), 0);
    }
}

/// Sends commands as fast as they are taken, at most `ahead_max` ahead of their answers, until `is_over` or the
/// connection is closed; how many were sent.
fn flood(
    mut stream: &TcpStream,
    answered: &AtomicU64,
    ahead_max: u64,
    is_over: impl Fn() -> bool,
) -> u64 {
    const AT_ONCE: u64 = 100;
    let mut sent = 0;
    while !is_over() {
        if sent - answered.load(Ordering::SeqCst) > ahead_max {
            thread::yield_now();
            continue;
        }
        let pipeline: String = (sent..sent + AT_ONCE).map(ping).collect();
        if stream.write_all(pipeline.as_bytes()).is_err() {
            break;
        }
        sent += AT_ONCE;
    }
    sent
}

fn ping(number: u64) -> String {
    let number = number.to_string();
    format!("*2\r\n$4\r\nPING\r\n${}\r\n{number}\r\n", number.len())
}

/// How many answers come, each that of its command and none torn, until the connection ends.
fn count_pongs(mut stream: &TcpStream, answered: &AtomicU64) -> u64 {
    let (mut count, mut unread, mut buffer) = (0, Vec::new(), vec![0; 64 * 1_024]);
    loop {
        let length = stream.read(&mut buffer).unwrap_or_default();
        if length == 0 {
            assert!(unread.is_empty(), "half an answer: {}", unread.escape_ascii());
            return count;
        }
        unread.extend_from_slice(&buffer[..length]);
        let mut at = 0;
        loop {
            let number = count.to_string();
            let expected = format!("${}\r\n{number}\r\n", number.len());
            let Some(reply) = unread[at..].get(..expected.len()) else { break };
            assert_eq!(reply, expected.as_bytes(), "{}", reply.escape_ascii());
            at += expected.len();
            count += 1;
        }
        answered.store(count, Ordering::SeqCst);
        unread.drain(..at);
    }
}

/// Connections in the Redis protocol, each with the number of its answers so far.
fn pipelines(daemon: &Daemon) -> Vec<(TcpStream, AtomicU64)> {
    let connect = |_| {
        let stream = TcpStream::connect(daemon.address("resp")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        (stream, AtomicU64::new(0))
    };
    (0..8).map(connect).collect()
}

fn wait_for_answers(pipelines: &[(TcpStream, AtomicU64)], count: u64) {
    let total = || pipelines.iter().map(|(_, answers)| answers.load(Ordering::SeqCst)).sum::<u64>();
    while total() < count {
        thread::yield_now();
    }
}

/// In the Redis protocol nothing tells a client to leave. Whatever it had sent by the stop is answered, in order.
#[test]
fn a_stop_under_load_answers_every_command_of_every_pipeline() {
    /// How many commands a client sends ahead of their answers.
    const AHEAD_MAX: u64 = 1_000;
    for _ in 0..ROUNDS {
        let mut daemon = start();
        let is_stopping = AtomicBool::new(false);
        let pipelines = pipelines(&daemon);
        thread::scope(|scope| {
            let mut clients = Vec::new();
            for (stream, answered) in &pipelines {
                let is_over = || is_stopping.load(Ordering::SeqCst);
                let sent = scope.spawn(move || flood(stream, answered, AHEAD_MAX, is_over));
                clients.push((sent, scope.spawn(|| count_pongs(stream, answered))));
            }
            wait_for_answers(&pipelines, 20_000);
            is_stopping.store(true, Ordering::SeqCst);
            daemon.signal("TERM");
            for (sent, come) in clients {
                let (sent, come) = (sent.join().unwrap(), come.join().unwrap());
                assert!(come >= sent, "{sent} were sent before the stop, {come} were answered");
            }
        });
        assert_eq!(daemon.wait(), 0);
    }
}

/// Sends short commands, many at once, so that the daemon never sees a pause, until the connection is closed.
fn never_pause(mut stream: &TcpStream) {
    let pings = b"PING\r\n".repeat(10_000);
    while stream.write_all(&pings).is_ok() {}
}

/// Reads answers to those until the connection ends. None is torn.
fn read_pongs(mut stream: &TcpStream, answered: &AtomicU64) {
    const PONG: &[u8] = b"+PONG\r\n";
    let (mut come, mut total) = (vec![0; 64 * 1_024], 0);
    while let Ok(length @ 1..) = stream.read(&mut come) {
        let expected = PONG.iter().cycle().skip(total % PONG.len());
        assert!(come[..length].iter().eq(expected.take(length)));
        total += length;
        answered.store((total / PONG.len()) as u64, Ordering::SeqCst);
    }
    assert_eq!(total % PONG.len(), 0, "half an answer");
}

/// Clients that never paused held up the stop for the whole drain time, and were then cut off in the middle of an
/// answer. They are ended after the answers to what was read, whole, in well under a second.
#[test]
fn clients_that_never_pause_do_not_hold_up_a_stop() {
    let clock = SystemClock::new();
    let mut fastest = Duration::MAX;
    for _ in 0..ROUNDS {
        let mut command = serve(&["--drain-timeout", "30s"]);
        command.stderr(Stdio::null());
        let mut daemon = Daemon::spawn(command);
        let pipelines = pipelines(&daemon);
        thread::scope(|scope| {
            for (stream, answered) in &pipelines {
                scope.spawn(|| never_pause(stream));
                scope.spawn(|| read_pongs(stream, answered));
            }
            wait_for_answers(&pipelines, 20_000);
            let start = clock.now();
            daemon.signal("TERM");
            assert_eq!(daemon.wait(), 0);
            let took = clock.now().since(start);
            assert!(took < Duration::from_secs(10), "the stop took {took:?}");
            fastest = fastest.min(took);
        });
    }
    // On a machine that is busy otherwise, some take longer.
    assert!(fastest < Duration::from_secs(1), "the fastest stop took {fastest:?}");
}

/// One call after the other, by many tasks on a few connections, each call by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_answers_calls() {
    for _ in 0..ROUNDS {
        let mut daemon = start();
        let url = format!("http://{}", daemon.address("grpc"));
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (sent, come) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut callers = JoinSet::new();
        for _ in 0..4 {
            let calls = Client::connect(url.clone()).unwrap().calls();
            for _ in 0..16 {
                let (mut calls, is_stopping) = (calls.clone(), Arc::clone(&is_stopping));
                let (sent, come) = (Arc::clone(&sent), Arc::clone(&come));
                callers.spawn(async move {
                    // What is asked before the stop is counted on both sides.
                    while !is_stopping.load(Ordering::SeqCst) {
                        sent.fetch_add(1, Ordering::SeqCst);
                        let asked = timeout(PATIENCE, calls.check(CheckRequest::default()));
                        asked.await.expect("an answer").expect("no call is refused");
                        come.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        }
        while come.load(Ordering::SeqCst) < 1_000 {
            tokio::task::yield_now().await;
        }
        is_stopping.store(true, Ordering::SeqCst);
        daemon.signal("TERM");
        callers.join_all().await;
        assert_eq!(sent.load(Ordering::SeqCst), come.load(Ordering::SeqCst));
        assert_eq!(daemon.wait(), 0);
    }
}

/// On a stream the client is told to send no more. Whatever it had sent by then is answered, in order, and the stream
/// ends well: not one request more or less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_answers_every_request_of_every_stream() {
    /// How many requests a client sends ahead of their answers.
    const AHEAD_MAX: usize = 500;
    for _ in 0..ROUNDS {
        let mut daemon = start();
        let url = format!("http://{}", daemon.address("grpc"));
        let answered = Arc::new(AtomicU64::new(0));
        let mut streams = JoinSet::new();
        for _ in 0..8 {
            let mut calls = Client::connect(url.clone()).unwrap().calls();
            let answered = Arc::clone(&answered);
            streams.spawn(async move {
                let (sent, ahead) =
                    (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(AHEAD_MAX)));
                let asking = (Arc::clone(&sent), Arc::clone(&ahead));
                let asked = futures_util::stream::unfold(asking, |(sent, ahead)| async move {
                    ahead.acquire().await.ok()?.forget();
                    let id = sent.fetch_add(1, Ordering::SeqCst);
                    let request = Some(CheckRequest::default());
                    Some((CheckManyRequest { id, request }, (sent, ahead)))
                });
                let mut answers = calls.check_many(asked).await.unwrap().into_inner();
                let mut come = 0;
                while let Some(answer) = timeout(PATIENCE, answers.message())
                    .await
                    .expect("an answer")
                    .expect("the stream ends well")
                {
                    match answer.result.unwrap() {
                        Answer::Closing(_) => ahead.close(),
                        Answer::Answer(_) => {
                            assert_eq!(answer.id, come);
                            come += 1;
                            ahead.add_permits(1);
                            answered.fetch_add(1, Ordering::SeqCst);
                        }
                        Answer::Error(error) => panic!("{error:?}"),
                    }
                }
                assert!(ahead.is_closed(), "it was told");
                assert_eq!(sent.load(Ordering::SeqCst), come);
            });
        }
        while answered.load(Ordering::SeqCst) < 5_000 {
            tokio::task::yield_now().await;
        }
        daemon.signal("TERM");
        streams.join_all().await;
        assert_eq!(daemon.wait(), 0);
    }
}

/// The client that batches its callers, which hears of the stop by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_answers_callers_of_a_batching_client() {
    let mut daemon = start();
    let client = Client::builder(format!("http://{}", daemon.address("grpc"))).deadline(PATIENCE);
    let client = client.connect().unwrap();
    let (is_stopping, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let client = client.clone();
        let (is_stopping, answered) = (Arc::clone(&is_stopping), Arc::clone(&answered));
        callers.spawn(async move {
            loop {
                let must_answer = !is_stopping.load(Ordering::SeqCst);
                if let Err(error) = client.check(CheckRequest::default()).await {
                    assert!(!must_answer, "a call was not answered: {error}");
                    return;
                }
                answered.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    while answered.load(Ordering::SeqCst) < 1_000 {
        tokio::task::yield_now().await;
    }
    is_stopping.store(true, Ordering::SeqCst);
    daemon.signal("TERM");
    callers.join_all().await;
    assert_eq!(daemon.wait(), 0);
}
