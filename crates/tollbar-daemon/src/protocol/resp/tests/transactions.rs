//! `MULTI`, `EXEC` and `DISCARD`. `tests/wire/resp.rs` of the binary compares them with a real Redis.

use super::super::transaction::{BYTES_MAX, COMMANDS_MAX};
use super::*;

const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

#[tokio::test]
async fn queued_commands_run_at_exec_and_none_before() {
    let told = conversation(
        None,
        &[
            "MULTI",
            "CL.THROTTLE k 1 1 60",
            "TB.CHECK GET /v1/a COST 4 WITH user 1",
            "CL.THROTTLE k",
            "EXEC",
            "TB.PEEK GET /v1/a WITH user 1",
        ],
    )
    .await;
    assert_eq!(told[0], "+OK\r\n");
    assert_eq!(told[1..4], ["+QUEUED\r\n"; 3]);
    let exec = &told[4];
    assert!(exec.starts_with("*3\r\n*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n*26\r\n"), "{exec}");
    assert!(exec.contains("$9\r\nremaining\r\n:6\r\n"), "{exec}");
    assert!(exec.contains("-Cell error: Usage: cl.throttle"), "{exec}");
    assert!(told[5].contains("$9\r\nremaining\r\n:6\r\n"), "{}", told[5]);
}

#[tokio::test]
async fn discarded_and_aborted_transactions_charge_nothing() {
    let peek = "TB.PEEK GET /v1/a WITH user 1";
    let check = "TB.CHECK GET /v1/a WITH user 1";
    for (commands, expected) in [
        (&["MULTI", check, "DISCARD", "EXEC"][..], "-ERR EXEC without MULTI\r\n"),
        (&["MULTI", check, "NOPE", "EXEC"], ABORTED),
        (&["MULTI", "NOPE", check, "EXEC"], ABORTED),
        (&["MULTI", check, "TB.CHECK GET", "EXEC"], ABORTED),
        (&["MULTI", check, "RESET", "EXEC"], "-ERR EXEC without MULTI\r\n"),
    ] {
        let told = conversation(None, &[commands, &[peek]].concat()).await;
        assert_eq!(told[commands.len() - 1], expected, "{commands:?}");
        let left = told.last().unwrap();
        assert!(left.contains("$9\r\nremaining\r\n:10\r\n"), "{commands:?} left {left}");
    }
}

#[tokio::test]
async fn a_transaction_is_bounded_in_commands_and_bytes() {
    let full = format!(
        "-ERR a transaction has at most {COMMANDS_MAX} commands and {BYTES_MAX} bytes: send EXEC sooner\r\n"
    );
    let large = format!("ECHO {}", "x".repeat(60_000));
    for (command, fitting) in [("PING", COMMANDS_MAX), (&large, BYTES_MAX / large.len())] {
        let mut commands = vec!["MULTI"];
        commands.resize(1 + fitting, command);
        let told = conversation(None, &[&commands[..], &["EXEC"]].concat()).await;
        assert!(told.last().unwrap().starts_with(&format!("*{fitting}\r\n")));
        // Commands after the one that did not fit are not kept either.
        let told = conversation(None, &[&commands[..], &[command, "PING", "EXEC"]].concat()).await;
        assert_eq!(told[1 + fitting..], [&full, "+QUEUED\r\n", ABORTED]);
    }
}

/// One `EXEC` can have far more replies than may wait for a client.
#[tokio::test]
async fn the_replies_of_a_transaction_are_written_in_parts() {
    let mut line = line(1_000, None);
    let mut asked = words("MULTI");
    for _ in 0..COMMANDS_MAX {
        asked.extend(words("COMMAND"));
    }
    asked.extend(words("EXEC"));
    asked.extend(words("PING"));
    let of_one = answer("COMMAND").await;
    assert!(of_one.len() * COMMANDS_MAX > 10 * REPLIES_BYTES_MAX);
    let expected = [
        "+OK\r\n",
        &"+QUEUED\r\n".repeat(COMMANDS_MAX),
        &format!("*{COMMANDS_MAX}\r\n"),
        &of_one.repeat(COMMANDS_MAX),
        "+PONG\r\n",
    ]
    .concat();
    let (mut reading, mut writing) = tokio::io::split(line.client);
    let write = async { writing.write_all(&asked).await.unwrap() };
    let mut told = vec![0; expected.len()];
    let read = async { reading.read_exact(&mut told).await.unwrap() };
    tokio::join!(write, read);
    assert_eq!(str::from_utf8(&told).unwrap(), expected);
    assert!(line.writes.load(Ordering::Relaxed) > 10);
    drop(line.stop.take());
}

#[tokio::test]
async fn a_transaction_is_answered_in_the_version_of_the_connection() {
    let commands = ["HELLO 3", "MULTI", "TB.PEEK GET /elsewhere", "EXEC"];
    let told = conversation(None, &commands).await;
    assert!(told[3].starts_with("*1\r\n%13\r\n$7\r\nallowed\r\n#t\r\n"), "{}", told[3]);
}

#[tokio::test]
async fn without_the_token_nothing_is_queued() {
    let told = conversation(Some(TOKEN), &["MULTI", "PING", "EXEC"]).await;
    assert_eq!(told, ["-NOAUTH Authentication required.\r\n"; 3]);
}

/// A web page can make a browser send a request whose body has commands in it.
#[tokio::test]
async fn a_request_of_http_ends_the_connection_without_a_reply() {
    for (first, is_closed) in [
        (&b"POST / HTTP/1.1\r\n"[..], true),
        (b"post\r\n", true),
        (b"Host: 127.0.0.1:6380\r\n", true),
        (b"GET / HTTP/1.1\r\n", true),
        (b"OPTIONS * HTTP/1.1\r\n", true),
        (b"delete /x\r\n", true),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true),
        (b"*1\r\n$4\r\nPOST\r\n", true),
        (b"*1\r\n$5\r\nhost:\r\n", true),
        // A client of Redis that takes the daemon for one.
        (b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n", false),
        (b"SET a b\r\n", false),
    ] {
        for token in [None, Some(TOKEN)] {
            let mut line = line(1 << 16, token);
            let body = b"CL.THROTTLE user:1 0 1 60\r\n";
            line.client.write_all(&[first, body].concat()).await.unwrap();
            line.client.shutdown().await.unwrap();
            let mut told = String::new();
            line.client.read_to_string(&mut told).await.unwrap();
            assert_eq!(told.is_empty(), is_closed, "{} gave {told}", first.escape_ascii());
        }
    }
}
