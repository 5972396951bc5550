//! Conversations, by a clock that is moved.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

mod transactions;

use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, ready};

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::task::JoinHandle;
use tollbar::{ManualClock, MemoryStore, Timestamp};
use tollbar_rules::{AsyncEngine, RuleFile};

use super::*;
use crate::net::Peer;
use crate::shutdown::ShutdownTrigger;
use crate::store::counters::Counters;
use crate::token::Tokens;

const RULES: &str = "rules:
  - { name: per_user, match: { path: /v1/** }, per: [user], limit: 10/day, burst: 10 }
  - { name: by_id, match: { path: /ids/** }, per: [id], limit: 1/day, burst: 1 }
  - { name: at_once, match: { path: /slow }, per: [user], limit: 1, algorithm: concurrency, lease: 30s }
";
const TOKEN: &str = "0123456789abcdef";
const COMMAND_TIME: Duration = Duration::from_secs(10);

pub(super) fn shared(clock: &ManualClock, token: Option<&str>) -> Arc<RespState> {
    let store = Arc::new(MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build());
    let rules = RuleFile::parse("rules.yaml", RULES).unwrap().rules;
    let engine = AsyncEngine::new(rules, store.clone()).unwrap();
    let tokens = token.and_then(Tokens::parse).map(Arc::new);
    let daemon = Daemon::new(Arc::new(engine), Counters::Memory(store), tokens);
    let store = daemon.counters.store();
    Arc::new(RespState { daemon: Arc::new(daemon), store })
}

pub(super) fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_000_000_000_000_000))
}

/// A frame of these words.
pub(super) fn frame(words: &[&[u8]]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        frame.extend_from_slice(word);
        frame.extend_from_slice(b"\r\n");
    }
    frame
}

/// The same, of words with spaces between them.
pub(super) fn words(text: &str) -> Vec<u8> {
    frame(&text.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// What is answered to commands, one after the other, on one connection.
async fn conversation(token: Option<&str>, commands: &[&str]) -> Vec<String> {
    let mut session = Session::new(shared(&clock(), token), 7, Peer::Unix);
    let mut replies = Replies::default();
    let mut answers = Vec::new();
    for command in commands {
        session.answer(&words(command), &mut replies).await;
        answers.push(String::from_utf8(replies.bytes().to_vec()).unwrap());
        replies.clear(0);
    }
    answers
}

async fn answer(command: &str) -> String {
    conversation(None, &[command]).await.remove(0)
}

/// The reply to a command, in the second version of the protocol.
pub(super) async fn reply(session: &mut Session, command: &str) -> String {
    let mut replies = Replies::default();
    session.answer(&words(command), &mut replies).await;
    String::from_utf8(replies.bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn small_commands_are_answered_as_redis_does() {
    for (command, expected) in [
        ("PING", "+PONG\r\n"),
        ("ping hello", "$5\r\nhello\r\n"),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command\r\n"),
        ("ECHO x", "$1\r\nx\r\n"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR DB index is out of range: there is database 0 alone\r\n"),
        ("QUIT", "+OK\r\n"),
        ("RESET", "+RESET\r\n"),
        ("CLIENT ID", ":7\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK\r\n"),
        ("COMMAND COUNT", ":23\r\n"),
        ("COMMAND INFO nothing", "*1\r\n$-1\r\n"),
        (
            "COMMAND INFO ping",
            "*1\r\n*6\r\n$4\r\nping\r\n:-1\r\n*1\r\n$4\r\nfast\r\n:0\r\n:0\r\n:0\r\n",
        ),
        ("GET a", "-ERR unknown command 'GET': COMMAND LIST tells which there are\r\n"),
        ("HELLO 4", "-NOPROTO unsupported protocol version: ask for 2 or 3\r\n"),
        ("HELLO 3 AUTH a", "-ERR Syntax error in HELLO option 'AUTH'\r\n"),
    ] {
        assert_eq!(answer(command).await, expected, "{command}");
    }
    for (command, beginning) in [
        ("AUTH x", "-ERR Client sent AUTH, but no password is set"),
        ("CLIENT KILL x", "-ERR unknown subcommand or wrong number of arguments for 'KILL'"),
        ("COMMAND GETKEYS x", "-ERR unknown subcommand 'GETKEYS' of COMMAND"),
        ("COMMAND", "*23\r\n*6\r\n$4\r\nauth\r\n"),
        ("COMMAND DOCS ping", "*2\r\n$4\r\nping\r\n*4\r\n$7\r\nsummary\r\n"),
        ("INFO", "$"),
    ] {
        let told = answer(command).await;
        assert!(told.starts_with(beginning), "{command} gave {told}");
    }
}

#[tokio::test]
async fn names_and_versions_last_until_a_reset() {
    let told = conversation(
        None,
        &["HELLO 3 SETNAME me", "CLIENT GETNAME", "RESET", "CLIENT GETNAME", "CLIENT SETNAME a\tb"],
    )
    .await;
    assert!(told[0].starts_with("%7\r\n$6\r\nserver\r\n$7\r\ntollbar\r\n"), "{}", told[0]);
    assert!(told[0].contains("$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:7\r\n"), "{}", told[0]);
    assert_eq!(told[1..4], ["$2\r\nme\r\n", "+RESET\r\n", "$-1\r\n"]);
    assert!(told[4].starts_with("-ERR Client names cannot contain spaces"), "{}", told[4]);
}

#[tokio::test]
async fn without_the_token_nothing_is_decided() {
    let no_auth = "-NOAUTH Authentication required.\r\n";
    let told = conversation(
        Some(TOKEN),
        &[
            "CL.THROTTLE k 1 1 60",
            "TB.CHECK GET /v1/a WITH user 1",
            "PING",
            "HELLO 3",
            "AUTH wrong",
            "AUTH default 0123456789abcdee",
            "CL.THROTTLE k 1 1 60",
            "AUTH 0123456789abcdef",
            "CL.THROTTLE k 1 1 60",
            "RESET",
            "PING",
            "HELLO 2 AUTH default 0123456789abcdef",
            "PING",
            "AUTH wrong",
            "PING",
        ],
    )
    .await;
    assert_eq!(told[..3], [no_auth; 3]);
    assert!(told[3].starts_with("-NOAUTH HELLO must be called"), "{}", told[3]);
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    assert_eq!(told[4..8], [wrong, wrong, no_auth, "+OK\r\n"]);
    assert_eq!(told[8], "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n");
    assert_eq!(told[9..11], ["+RESET\r\n", no_auth]);
    assert!(told[11].starts_with("*14\r\n"), "{}", told[11]);
    assert_eq!(told[12..], ["+PONG\r\n", wrong, "+PONG\r\n"]);
}

#[tokio::test]
async fn rules_are_asked_in_both_versions() {
    let told = conversation(
        None,
        &[
            "TB.CHECK GET /v1/a COST 4 WITH user 1",
            "HELLO 3",
            "tb.check get /v1/a cost 7 with user 1",
            "TB.PEEK GET /v1/a WITH user 1",
            "TB.CHECK GET /elsewhere",
            "TB.SUBJECT per_user 1 COST 6",
            "TB.SUBJECT per_user 1 COST 11",
        ],
    )
    .await;
    let names = ["allowed", "outcome", "reason", "rule", "limit", "remaining"];
    assert!(told[0].starts_with("*26\r\n$7\r\nallowed\r\n:1\r\n$7\r\noutcome\r\n$5\r\nallow\r\n"));
    for name in names {
        assert!(told[0].contains(&format!("\r\n{name}\r\n")), "{name} in {}", told[0]);
    }
    assert!(told[0].contains("$5\r\nlimit\r\n:10\r\n$9\r\nremaining\r\n:6\r\n"), "{}", told[0]);
    assert!(told[0].contains("$14\r\nretry_after_ms\r\n$-1\r\n"), "{}", told[0]);
    assert!(told[2].starts_with("%13\r\n$7\r\nallowed\r\n#f\r\n$7\r\noutcome\r\n$4\r\ndeny\r\n"));
    // One token more is earned in a tenth of a day.
    assert!(told[2].contains("$14\r\nretry_after_ms\r\n:8640000\r\n"), "{}", told[2]);
    assert!(told[2].contains("$8\r\ndegraded\r\n#f\r\n$11\r\ndecision_id\r\n$32\r\n"));
    assert!(told[3].contains("$9\r\nremaining\r\n:6\r\n"), "{}", told[3]);
    assert!(
        told[4].contains("$6\r\nreason\r\n$7\r\nno_rule\r\n$4\r\nrule\r\n_\r\n"),
        "{}",
        told[4]
    );
    assert!(told[5].contains("$7\r\noutcome\r\n$5\r\nallow\r\n"), "{}", told[5]);
    assert!(told[6].contains("$7\r\noutcome\r\n$5\r\nnever\r\n"), "{}", told[6]);
}

#[tokio::test]
async fn an_attribute_may_be_called_as_an_option_is() {
    let told = conversation(
        None,
        &["TB.CHECK GET /ids/a WITH id cost", "TB.PEEK GET /ids/a WITH id cost"],
    )
    .await;
    assert!(told[1].contains("$9\r\nremaining\r\n:0\r\n"), "{}", told[1]);
}

#[tokio::test]
async fn permits_are_held_until_they_are_given_back() {
    let clock = clock();
    let mut session = Session::new(shared(&clock, None), 7, Peer::Unix);
    let mut ask = async |command: &str| reply(&mut session, command).await;
    let check = "TB.CHECK GET /slow WITH user 1";
    let first = ask(check).await;
    let lease = first.split("$5\r\nlease\r\n$").nth(1).unwrap().split("\r\n").nth(1).unwrap();
    assert!(first.ends_with("$16\r\nlease_ends_at_ms\r\n:1000000030000\r\n"), "{first}");
    assert!(ask(check).await.contains("$4\r\nbusy\r\n"));
    clock.advance(std::time::Duration::from_secs(20));
    assert_eq!(ask(&format!("TB.RENEW {lease}")).await, ":1000000050000\r\n");
    clock.advance(std::time::Duration::from_secs(20));
    assert!(ask(check).await.contains("$4\r\nbusy\r\n"), "it was renewed");
    assert_eq!(ask(&format!("TB.RELEASE {lease}")).await, ":1\r\n");
    assert_eq!(ask(&format!("TB.RELEASE {lease}")).await, ":0\r\n");
    assert_eq!(ask(&format!("TB.RENEW {lease}")).await, "$-1\r\n");
    assert!(ask(check).await.contains("$5\r\nallow\r\n"));
    assert!(ask("TB.RELEASE nonsense").await.starts_with("-ERR "));
}

#[tokio::test]
async fn a_cost_with_a_fraction_of_zero_is_a_whole_number() {
    let check = |cost: &str| format!("TB.CHECK GET /v1/a COST {cost} WITH user 1");
    let told = conversation(None, &[&*check("4.0"), &*check("4.5")]).await;
    assert!(told[0].contains("$9\r\nremaining\r\n:6\r\n"), "{}", told[0]);
    assert!(told[1].starts_with("-ERR the cost `4.5` is not a number from 0"), "{}", told[1]);
}

#[tokio::test]
async fn a_reservation_is_committed_at_its_cost_or_cancelled_once() {
    let clock = clock();
    let mut session = Session::new(shared(&clock, None), 7, Peer::Unix);
    let mut ask = async |command: &str| reply(&mut session, command).await;
    let receipt_of = |told: &str| {
        let text = told.split("$7\r\nreceipt\r\n$").nth(1).expect("a receipt");
        text.split("\r\n").nth(1).unwrap().to_owned()
    };
    let remaining = |tokens: u64| format!("$9\r\nremaining\r\n:{tokens}\r\n");
    let settled = |reserved: u64, spent: u64, refunded: u64, overdrawn: u64| {
        format!(
            "*4\r\n$7\r\ncharges\r\n*1\r\n*10\r\n$4\r\nrule\r\n$8\r\nper_user\r\n$8\r\nreserved\r\n:{reserved}\r\n\
             $5\r\nspent\r\n:{spent}\r\n$8\r\nrefunded\r\n:{refunded}\r\n$9\r\noverdrawn\r\n:{overdrawn}\r\n\
             $16\r\npermits_returned\r\n:0\r\n"
        )
    };
    let (reserve, peek) =
        ("TB.RESERVE GET /v1/a COST 4 WITH user 1", "TB.PEEK GET /v1/a WITH user 1");

    let first = ask(reserve).await;
    assert!(first.starts_with("*28\r\n") && first.contains(&remaining(6)), "{first}");
    let receipt = receipt_of(&first);
    assert_eq!(ask(&format!("TB.COMMIT {receipt} COST 1")).await, settled(4, 1, 3, 0));
    assert!(ask(peek).await.contains(&remaining(9)));
    let not_open =
        "-ERR this reservation is not open: it was settled before, or its time is up\r\n";
    assert_eq!(ask(&format!("TB.COMMIT {receipt}")).await, not_open);
    assert_eq!(ask(&format!("TB.CANCEL {receipt}")).await, not_open);

    let receipt = receipt_of(&ask(reserve).await);
    assert_eq!(ask(&format!("TB.CANCEL {receipt}")).await, settled(4, 0, 4, 0));
    assert!(ask(peek).await.contains(&remaining(9)));
    let receipt = receipt_of(&ask(reserve).await);
    assert_eq!(ask(&format!("tb.commit {receipt}")).await, settled(4, 4, 0, 0));

    let receipt = receipt_of(&ask("TB.RESERVE GET /v1/a COST 4 TTL 1000 WITH user 1").await);
    clock.advance(Duration::from_millis(1_001));
    assert_eq!(ask(&format!("TB.COMMIT {receipt}")).await, not_open, "its time is up");

    let denied = ask("TB.RESERVE GET /v1/a COST 9 WITH user 1").await;
    assert!(
        denied.contains("$4\r\ndeny\r\n") && denied.ends_with("$7\r\nreceipt\r\n$-1\r\n"),
        "{denied}"
    );
    assert!(ask("TB.COMMIT nonsense").await.starts_with("-ERR "));
}

#[tokio::test]
async fn a_request_with_an_id_is_charged_once() {
    let told = conversation(
        None,
        &[
            "TB.CHECK GET /v1/a ID x COST 4 WITH user 1",
            "TB.CHECK GET /v1/a ID x COST 4 WITH user 1",
            "TB.CHECK GET /v1/a ID x COST 5 WITH user 1",
            "TB.PEEK GET /v1/a WITH user 1",
        ],
    )
    .await;
    assert!(told[1].contains("$9\r\nremaining\r\n:6\r\n"), "{}", told[1]);
    assert!(told[2].starts_with("-REQUEST_ID_REUSED This request id came"), "{}", told[2]);
    assert!(told[3].contains("$9\r\nremaining\r\n:6\r\n"), "{}", told[3]);
}

#[tokio::test]
async fn what_cannot_be_checked_is_told_with_what_to_write() {
    for (command, expected) in [
        ("TB.CHECK GET", "ERR wrong number of arguments for 'tb.check' command"),
        (
            "TB.CHECK GET / user 1",
            "ERR `user` is not understood: write one of COST, ID, CRITICALITY, WITH",
        ),
        ("TB.PEEK GET / COST 1", "ERR `COST` is not understood: write one of CRITICALITY, WITH"),
        (
            "TB.SUBJECT a b CRITICALITY low",
            "ERR `CRITICALITY` is not understood: write one of COST, ID, WITH",
        ),
        ("TB.CHECK GET / COST", "ERR `COST` needs a value behind it"),
        (
            "TB.CHECK GET / TTL 9",
            "ERR `TTL` is not understood: write one of COST, ID, CRITICALITY, WITH",
        ),
        (
            "TB.RESERVE GET / TTL 0",
            "ERR `TTL` is 0: send 1 to 86400000 milliseconds, which is a day",
        ),
        (
            "TB.RESERVE GET / TTL 86400001",
            "ERR `TTL` is 86400001: send 1 to 86400000 milliseconds, which is a day",
        ),
        (
            "TB.RESERVE GET / TTL 1s",
            "ERR `TTL` is 1s: send 1 to 86400000 milliseconds, which is a day",
        ),
        ("TB.COMMIT x TTL 9", "ERR `TTL` is not understood: write one of COST"),
        ("TB.CHECK GET / COST 1 COST 2", "ERR `COST` is given twice: write it once"),
        (
            "TB.CHECK GET / COST -1",
            "ERR the cost `-1` is not a number from 0 to 18446744073709551615",
        ),
        (
            "TB.CHECK GET / CRITICALITY huge",
            "ERR there is no criticality `huge`: write low, normal, high or critical",
        ),
        (
            "TB.CHECK GET / WITH user",
            "ERR attributes come in pairs, and the last name has no value behind it",
        ),
        (
            "TB.CHECK GET / WITH user 1 user 2",
            "ERR the attribute `user` has two values: send one, or join them",
        ),
        ("TB.SUBJECT nobody 1", "ERR there is no rule `nobody`"),
    ] {
        assert_eq!(answer(command).await, format!("-{expected}\r\n"), "{command}");
    }
    let mut session = Session::new(shared(&clock(), None), 1, Peer::Unix);
    let mut replies = Replies::default();
    session.answer(&frame(&[b"TB.CHECK", b"GET", b"/\xff"]), &mut replies).await;
    assert_eq!(replies.bytes(), "-ERR `/\u{fffd}` is not UTF-8\r\n".as_bytes());
}

/// Counts how often the other side writes.
struct WriteCounter {
    stream: DuplexStream,
    writes: Arc<AtomicU64>,
}

impl AsyncRead for WriteCounter {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for WriteCounter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if written.is_ready() {
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A client, and the daemon's side of its connection.
struct TestConnection {
    client: DuplexStream,
    writes: Arc<AtomicU64>,
    served: JoinHandle<io::Result<()>>,
    stop: Option<ShutdownTrigger>,
}

/// A connection that holds so many bytes on their way.
fn line(bytes: usize, token: Option<&str>) -> TestConnection {
    let (client, stream) = duplex(bytes);
    let writes = Arc::new(AtomicU64::new(0));
    let (stop, stopped) = ShutdownSignal::new();
    let session = Session::new(shared(&clock(), token), 1, Peer::Unix);
    let served = tokio::spawn(converse(
        WriteCounter { stream, writes: Arc::clone(&writes) },
        session,
        COMMAND_TIME,
        stopped,
    ));
    TestConnection { client, writes, served, stop: Some(stop) }
}

#[tokio::test]
async fn a_long_pipeline_is_answered_in_order_and_in_one_write() {
    let mut line = line(1 << 20, None);
    let mut asked = Vec::new();
    let mut expected = String::new();
    for at in 0..1_000 {
        // Two keys in turn.
        asked.extend(words(&format!("CL.THROTTLE key{} 999 1 1", at % 2)));
        let (remaining, reset) = (999 - at / 2, at / 2 + 1);
        let told = format!("*5\r\n:0\r\n:1000\r\n:{remaining}\r\n:-1\r\n:{reset}\r\n");
        expected.push_str(&told);
    }
    assert!(asked.len() > 2 * BUFFER_BYTES);
    line.client.write_all(&asked).await.unwrap();
    let mut told = vec![0; expected.len()];
    line.client.read_exact(&mut told).await.unwrap();
    assert_eq!(String::from_utf8(told).unwrap(), expected);
    assert_eq!(line.writes.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_frame_that_comes_byte_by_byte_is_answered_once_it_is_whole() {
    // A connection that holds one byte at a time.
    let mut line = line(1, None);
    for byte in words("ECHO hello") {
        line.client.write_all(&[byte]).await.unwrap();
    }
    let mut told = [0; 11];
    line.client.read_exact(&mut told).await.unwrap();
    assert_eq!(&told, b"$5\r\nhello\r\n");
}

#[tokio::test]
async fn the_largest_frame_fits_and_is_followed_by_small_ones() {
    let mut line = line(1 << 20, None);
    let text = vec![b'x'; FRAME_BYTES_MAX - 100];
    let mut asked = frame(&[b"ECHO", &text]);
    asked.extend(words("PING"));
    line.client.write_all(&asked).await.unwrap();
    let mut told = vec![0; text.len() + 10 + 7];
    line.client.read_exact(&mut told).await.unwrap();
    assert!(told.ends_with(b"x\r\n+PONG\r\n"));
}

#[tokio::test]
async fn what_cannot_be_read_is_told_behind_the_answers_and_ends_the_connection() {
    let mut line = line(1 << 16, None);
    let mut asked = words("CL.THROTTLE k 0 1 60");
    asked.extend(b"PING\r\n*1\r\n$4294967296\r\nPING\r\n");
    line.client.write_all(&asked).await.unwrap();
    let mut told = String::new();
    line.client.read_to_string(&mut told).await.unwrap();
    assert_eq!(
        told,
        "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n+PONG\r\n-ERR Protocol error: invalid bulk length: \
         send at most 65536 bytes a command\r\n"
    );
}

#[tokio::test]
async fn who_does_not_take_answers_is_not_read_from() {
    // The connection holds 1,000 bytes: the daemon is stuck with its first answers.
    let mut line = line(1_000, None);
    let ping = words("PING");
    let mut sent = 0;
    let bound = BUFFER_BYTES + REPLIES_BYTES_MAX + 10_000;
    while sent < 10 * bound {
        // The daemon's side has its turns in between.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let mut write = pin!(line.client.write(&ping));
        match poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await {
            Poll::Ready(written) => sent += written.unwrap(),
            Poll::Pending => break,
        }
    }
    assert!(sent < bound, "{sent} bytes were taken");
}

#[tokio::test]
async fn when_the_daemon_stops_what_was_asked_is_answered() {
    let mut line = line(1 << 16, None);
    line.client.write_all(&words("PING")).await.unwrap();
    drop(line.stop.take());
    let mut told = String::new();
    line.client.read_to_string(&mut told).await.unwrap();
    assert_eq!(told, "+PONG\r\n");
    line.served.await.unwrap().unwrap();
}

/// What has passed over a connection, in bytes.
#[derive(Debug, Default)]
struct PassedBytes {
    read: AtomicU64,
    written: AtomicU64,
    /// Read after the last reply.
    discarded: AtomicU64,
    is_shut: AtomicBool,
}

/// A client that never pauses: there is always another `PING` to be read.
struct Endless(Arc<PassedBytes>);

impl AsyncRead for Endless {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // As a socket does, so that other tasks have their turn.
        ready!(pin!(tokio::task::coop::consume_budget()).poll(cx));
        let is_shut = self.0.is_shut.load(Ordering::Relaxed);
        let counter = if is_shut { &self.0.discarded } else { &self.0.read };
        let length = buf.remaining() as u64;
        let start = counter.fetch_add(length, Ordering::Relaxed);
        for at in start..start + length {
            buf.put_slice(&[b"PING\r\n"[(at % 6) as usize]]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.written.fetch_add(buf.len() as u64, Ordering::Relaxed);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.is_shut.store(true, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

/// A client that never paused was served until the drain time was over, and its last commands were lost.
#[tokio::test]
async fn when_the_daemon_stops_a_client_that_never_pauses_is_answered_and_ended() {
    let passed = Arc::new(PassedBytes::default());
    let (stop, stopped) = ShutdownSignal::new();
    let session = Session::new(shared(&clock(), None), 1, Peer::Unix);
    let served =
        tokio::spawn(converse(Endless(Arc::clone(&passed)), session, COMMAND_TIME, stopped));
    while passed.written.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    drop(stop);
    let ended = timeout(Duration::from_secs(10), served).await.expect("it ends by itself");
    ended.unwrap().unwrap();
    let [read, written] =
        [&passed.read, &passed.written].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(written, read / 6 * 7, "every whole command that was read is answered");
    // A socket that is closed over unread bytes is reset, and replies on their way are lost.
    assert!(passed.discarded.load(Ordering::Relaxed) > 0);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_show_the_token_is_gone_after_a_while() {
    let start = Instant::now();
    let mut stranger = line(100, Some(TOKEN));
    stranger.client.write_all(&words("PING")).await.unwrap();
    let mut told = Vec::new();
    stranger.client.read_to_end(&mut told).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), ADMISSION_TIME_MAX.as_secs());

    // Who has shown it, and is made as new, has as long again.
    let mut known = line(100, Some(TOKEN));
    known.client.write_all(&words(&format!("AUTH {TOKEN}"))).await.unwrap();
    tokio::time::advance(10 * ADMISSION_TIME_MAX).await;
    known.client.write_all(&words("RESET")).await.unwrap();
    let start = Instant::now();
    known.client.read_to_end(&mut told).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), ADMISSION_TIME_MAX.as_secs());
}

/// A command of one byte each second held its connection for a day, and each byte counted as a sign of life.
#[tokio::test(start_paused = true)]
async fn a_command_that_trickles_ends_its_connection_and_one_that_pauses_behind_it_does_not() {
    let (second, almost) = (Duration::from_secs(1), COMMAND_TIME / 10 * 9);
    let mut line = line(1 << 16, None);
    // Each command has its own time, and between two of them any time may pass.
    for _ in 0..3 {
        let (begun, ended) = (&b"*1\r\n$4\r\nPI"[..], &b"NG\r\n"[..]);
        line.client.write_all(begun).await.unwrap();
        sleep(almost).await;
        // The next command begins with the end of this one.
        line.client.write_all(&[ended, begun].concat()).await.unwrap();
        sleep(almost).await;
        line.client.write_all(ended).await.unwrap();
        sleep(10 * COMMAND_TIME).await;
    }
    let mut replies = [0; 6 * 7];
    line.client.read_exact(&mut replies).await.unwrap();
    assert_eq!(replies[..], *b"+PONG\r\n".repeat(6));
    line.client.write_all(b"*2\r\n$4\r\nECHO\r\n$1000\r\n").await.unwrap();
    let start = Instant::now();
    while line.client.write_all(b"x").await.is_ok() && start.elapsed() < 10 * COMMAND_TIME {
        sleep(second).await;
    }
    assert!(start.elapsed() <= COMMAND_TIME + second, "{:?}", start.elapsed());
}
