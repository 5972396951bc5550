//! A daemon that is stopped while it is busy: whatever was asked before is answered, and counted here. Real time
//! passes: each wait is for an event, and bounded.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{Daemon, KEPT, response, serve};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
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

/// Sends commands as fast as they are taken, whether the answers have come or not, until the daemon is told to
/// stop; how many were sent before that.
fn flood(mut stream: &TcpStream, is_stopping: &AtomicBool) -> u64 {
    const AT_ONCE: u64 = 100;
    let mut sent = 0;
    loop {
        let pipeline: String = (sent..sent + AT_ONCE).map(ping).collect();
        if stream.write_all(pipeline.as_bytes()).is_err() {
            assert!(is_stopping.load(Ordering::SeqCst), "closed before the stop");
            return sent;
        }
        if is_stopping.load(Ordering::SeqCst) {
            return sent;
        }
        sent += AT_ONCE;
    }
}

fn ping(number: u64) -> String {
    let number = number.to_string();
    format!("*2\r\n$4\r\nPING\r\n${}\r\n{number}\r\n", number.len())
}

/// How many answers come, each that of its command, until the connection ends.
fn count_pongs(mut stream: &TcpStream, answered: &AtomicU64) -> u64 {
    let (mut count, mut unread, mut buffer) = (0, Vec::new(), vec![0; 64 * 1_024]);
    loop {
        let length = stream.read(&mut buffer).unwrap_or_default();
        if length == 0 {
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
            answered.fetch_add(1, Ordering::Relaxed);
        }
        unread.drain(..at);
    }
}

/// In the Redis protocol nothing tells a client to leave. Whatever it had sent by the stop is answered, in order,
/// also what had not been read by then: commands are sent far ahead of their answers here.
#[test]
fn a_stop_under_load_answers_every_command_of_every_pipeline() {
    for _ in 0..ROUNDS {
        let mut daemon = start();
        let (is_stopping, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let streams: Vec<TcpStream> =
            (0..8).map(|_| TcpStream::connect(daemon.address("resp")).unwrap()).collect();
        thread::scope(|scope| {
            let mut clients = Vec::new();
            for stream in &streams {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let is_stopping = &is_stopping;
                let sent = scope.spawn(|| flood(stream, is_stopping));
                clients.push((sent, scope.spawn(|| count_pongs(stream, &answered))));
            }
            while answered.load(Ordering::Relaxed) < 20_000 {
                thread::yield_now();
            }
            is_stopping.store(true, Ordering::SeqCst);
            daemon.signal("TERM");
            let mut total = 0;
            for (sent, come) in clients {
                let (sent, come) = (sent.join().unwrap(), come.join().unwrap());
                assert!(come >= sent, "{sent} were sent before the stop, {come} were answered");
                total += sent;
            }
            assert!(total >= 20_000, "{total}: hardly any load");
        });
        for stream in streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        assert_eq!(daemon.wait(), 0);
    }
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
