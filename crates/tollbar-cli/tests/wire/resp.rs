//! The Redis protocol of the real daemon, spoken by redis-cli, by redis-py, by ioredis and by hand.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;

use tollbar_testkit::redis::process::RedisProcess;

use crate::common::{Daemon, Scratch};

const RULES: &str = "rules: [{ name: per_client, limit: 10/day, burst: 10 }]";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn port(daemon: &Daemon) -> &str {
    daemon.address("resp").rsplit_once(':').unwrap().1
}

/// What redis-cli prints; from Debian's `redis-tools`.
fn redis_cli(daemon: &Daemon, words: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-p", port(daemon)]).args(words).output();
    let output = output.expect("redis-cli is needed: install redis-tools");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// All that is answered to `input`, up to the end of the connection.
fn exchange(daemon: &Daemon, input: &[u8]) -> String {
    exchange_with(daemon.address("resp"), input)
}

fn exchange_with(address: &str, input: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(input).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn redis_cli_is_answered() {
    let scratch = Scratch::new("resp-cli");
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", RULES)]);
    assert_eq!(redis_cli(&daemon, &["PING"]), "PONG");
    let throttle = ["CL.THROTTLE", "user:42", "1", "1", "3600"];
    assert_eq!(redis_cli(&daemon, &throttle), "0\n2\n1\n-1\n3600");
    assert_eq!(redis_cli(&daemon, &throttle), "0\n2\n0\n-1\n7200");
    let denied = redis_cli(&daemon, &throttle);
    assert!(denied.starts_with("1\n2\n0\n3"), "{denied}");
    assert_eq!(redis_cli(&daemon, &["-3", "TB.PEEK", "GET", "/"]).lines().count(), 13);
    let told = redis_cli(&daemon, &["-3", "TB.CHECK", "GET", "/", "WITH", "user", "42"]);
    assert!(told.contains("true") && told.contains("remaining 9"), "{told}");
    let told = redis_cli(&daemon, &["COMMAND", "DOCS", "CL.THROTTLE"]);
    assert!(told.starts_with("cl.throttle\nsummary\n"), "{told}");
    assert!(redis_cli(&daemon, &["GET", "a"]).starts_with("ERR unknown command 'GET'"));
    assert_eq!(daemon.stop(), 0);
}

/// The five numbers have no place for a decision id: the log has it.
#[test]
fn redis_cli_is_told_why_a_command_was_denied() {
    let mut daemon = Daemon::start_logged(&["--log-denials", "9"]);
    let throttle = ["CL.THROTTLE", "user:42", "0", "1", "3600"];
    assert!(redis_cli(&daemon, &throttle).starts_with("0\n1\n0\n-1\n"));
    assert!(redis_cli(&daemon, &throttle).starts_with("1\n1\n0\n3"));
    let line = daemon.logged("denied");
    assert!(line.contains("listener=\"resp\"") && line.contains("CL.THROTTLE"), "{line}");
    let id = line.split("decision_id=").nth(1).unwrap().split_whitespace().next().unwrap();
    let told = redis_cli(&daemon, &["TB.EXPLAIN", id]);
    assert!(told.contains("`CL.THROTTLE` allows 1/3600s, 1 at once"), "{told}");
    assert!(told.contains(r#""subject":"user:42""#), "{told}");
    assert_eq!(redis_cli(&daemon, &["TB.EXPLAIN", &"0".repeat(32)]), "");
}

#[test]
fn redis_cli_shows_the_token() {
    let scratch = Scratch::new("resp-token");
    let daemon = Daemon::start(&["--token-file", &scratch.file("token", TOKEN)]);
    assert_eq!(redis_cli(&daemon, &["PING"]), "NOAUTH Authentication required.");
    assert!(redis_cli(&daemon, &["-a", TOKEN, "PING"]).ends_with("PONG"));
    assert!(redis_cli(&daemon, &["-a", TOKEN, "-3", "PING"]).ends_with("PONG"));
    assert_eq!(daemon.stop(), 0);
}

/// Runs a client's script against daemons without and with a token: its arguments are the port and the token.
fn run_client(name: &str, command: impl Fn() -> Command) {
    let scratch = Scratch::new(name);
    let rules = scratch.file("rules.yaml", RULES);
    let token = scratch.file("token", TOKEN);
    for (flags, shown) in [(&[][..], &[][..]), (&["--token-file", &token], &[TOKEN])] {
        let daemon = Daemon::start(&[&["--rules", &rules], flags].concat());
        let run = command().arg(port(&daemon)).args(shown).output().unwrap();
        let told = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{told}");
        assert_eq!(daemon.stop(), 0);
    }
}

#[test]
fn redis_py_is_answered() {
    let Ok(python) = std::env::var("TOLLBAR_PYTHON") else {
        panic!("run cargo xtask test, which sets TOLLBAR_PYTHON: a Python with the package redis");
    };
    run_client("resp-py", || {
        let mut command = Command::new(&python);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/resp.py"));
        command
    });
}

#[test]
fn ioredis_is_answered() {
    let Ok(npm) = std::env::var("TOLLBAR_NPM") else {
        panic!("run cargo xtask test, which sets TOLLBAR_NPM: where npm has installed packages");
    };
    if npm.is_empty() {
        eprintln!("skipped: npm is not installed");
        return;
    }
    run_client("resp-node", || {
        let mut command = Command::new("node");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/resp.cjs"));
        command.env("TOLLBAR_NPM", &npm);
        command
    });
}

/// A Redis says what is right. Both get the same lines and must give the same replies.
#[test]
fn transactions_are_answered_as_redis_does() {
    let redis = RedisProcess::start();
    let daemon = Daemon::start(&[]);
    for lines in [
        &["MULTI", "PING", "ECHO a", "EXEC", "PING"][..],
        &["MULTI", "EXEC"],
        &["multi", "ping", "exec"],
        &["EXEC"],
        &["DISCARD"],
        &["MULTI", "PING", "DISCARD", "EXEC"],
        &["MULTI", "MULTI", "PING", "EXEC"],
        &["MULTI", "WATCH a", "PING", "EXEC"],
        &["MULTI", "ECHO", "PING", "EXEC", "EXEC"],
        &["MULTI", "PING a b", "PING", "EXEC"],
        &["MULTI x", "EXEC"],
        &["MULTI", "MULTI x", "PING", "EXEC"],
        &["MULTI", "DISCARD x", "EXEC"],
        &["MULTI", "PING", "EXEC x", "EXEC"],
        &["EXEC x"],
        &["MULTI", "PING", "RESET", "EXEC"],
        &["MULTI", "PING", "QUIT", "PING"],
        &["MULTI", "ECHO \"a b\"", "", "EXEC"],
        &["HELLO 9", "MULTI", "PING", "EXEC"],
        &["POST / HTTP/1.1", "PING"],
        &["Host: x", "PING"],
        &["MULTI", "post", "EXEC"],
    ] {
        let input = format!("{}\r\n", lines.join("\r\n"));
        let expected = exchange_with(&format!("127.0.0.1:{}", redis.port()), input.as_bytes());
        // Some of our errors say more.
        let expected =
            expected.replace("protocol version\r\n", "protocol version: ask for 2 or 3\r\n");
        let told = exchange(&daemon, input.as_bytes());
        // Redis drops the replies to earlier commands where a request of HTTP follows; ours are sent.
        let is_http = lines.iter().any(|line| line.starts_with("post"));
        assert_eq!(if is_http { "" } else { &told }, expected, "{lines:?}");
    }
    // The text of this error is our own.
    let told = exchange(&daemon, b"MULTI\r\nNOPE\r\nPING\r\nEXEC\r\n");
    assert!(told.starts_with("+OK\r\n-ERR unknown command 'NOPE'"), "{told}");
    assert!(
        told.ends_with(
            "+QUEUED\r\n-EXECABORT Transaction discarded because of previous errors.\r\n"
        )
    );
    let told = exchange(&daemon, b"WATCH a\r\n");
    assert!(told.starts_with("-ERR WATCH is not served, because there are no keys"), "{told}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn what_is_no_frame_is_told_and_ends_the_connection_and_no_other() {
    let daemon = Daemon::start(&[]);
    let mut witness = TcpStream::connect(daemon.address("resp")).unwrap();
    for (input, expected) in [
        (&b"*1\r\n$4294967295\r\n"[..], "invalid bulk length: send at most 65536 bytes a command"),
        (b"*1000000\r\n", "invalid multibulk length: send at most 128 arguments"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"\"\r\n", "unbalanced quotes in request"),
        (&[b'x'; 5_000], "too big inline request: send at most 4096 bytes a line"),
    ] {
        let told = exchange(&daemon, input);
        assert_eq!(told, format!("-ERR Protocol error: {expected}\r\n"));
    }
    // A frame that ends with its connection is nobody's.
    assert_eq!(exchange(&daemon, b"PING\r\n*1\r\n$4\r\nPI"), "+PONG\r\n");
    witness.write_all(b"PING\r\n").unwrap();
    let mut told = [0; 7];
    witness.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"+PONG\r\n");
    drop(witness);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn counters_of_commands_last_over_a_restart() {
    let scratch = Scratch::new("resp-snapshot");
    let snapshot = scratch.file("counters", "");
    std::fs::remove_file(&snapshot).unwrap();
    let throttle = b"CL.THROTTLE k 0 1 86400\r\n";
    for expected in ["*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n", "*5\r\n:1\r\n:1\r\n:0\r\n:"] {
        let daemon = Daemon::start(&["--snapshot", &snapshot]);
        let told = exchange(&daemon, throttle);
        assert!(told.starts_with(expected), "{told}");
        assert_eq!(daemon.stop(), 0);
    }
}

#[test]
fn it_can_be_switched_off_or_listen_on_a_path() {
    let daemon = Daemon::start(&["--resp", "off"]);
    assert!(!daemon.addresses().contains_key("resp"));
    assert_eq!(daemon.stop(), 0);
    let scratch = Scratch::new("resp-path");
    let path = scratch.file("socket", "");
    std::fs::remove_file(&path).unwrap();
    let daemon = Daemon::start(&["--resp", &format!("unix:{path}")]);
    let output = Command::new("redis-cli").args(["-s", &path, "PING"]).output().unwrap();
    assert_eq!(output.stdout, b"PONG\n");
    assert_eq!(daemon.stop(), 0);
}
