//! The examples that serve, as a client sees them: real processes, real sockets.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Ends the server when the test ends, however it ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The example's binary, which cargo builds beside the tests'.
fn start(example: &str) -> (Server, String) {
    let tests = std::env::current_exe().unwrap();
    let binary = tests.parent().unwrap().with_file_name("examples").join(example);
    let mut child = Command::new(&binary)
        .env("PORT", "0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", binary.display()));
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let server = Server(child);
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(';').next()).unwrap();
    (server, address.to_owned())
}

fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn five_requests_pass_and_the_sixth_is_told_when_to_come_back() {
    let (_server, address) = start("web");
    for left in (0..5).rev() {
        let response = get(&address);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.ends_with(&format!("hello, {left} left\n")), "{response}");
    }
    let response = get(&address);
    assert!(response.starts_with("HTTP/1.1 429"), "{response}");
    // One token in two seconds, of which a little has passed: rounded up, 2 (1 on a slow machine).
    let retry_after = response.lines().find_map(|line| line.strip_prefix("retry-after: "));
    assert!(matches!(retry_after, Some("1" | "2")), "{response}");
}

#[test]
fn the_layer_tells_every_client_what_is_left() {
    let (_server, address) = start("layer");
    for left in (0..5).rev() {
        let response = get(&address);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.contains(&format!("x-ratelimit-remaining: {left}\r\n")), "{response}");
        assert!(response.contains("ratelimit-policy: \"per_client\";q=5;w=10"), "{response}");
    }
    let response = get(&address);
    assert!(response.starts_with("HTTP/1.1 429"), "{response}");
    assert!(response.ends_with("\"rule\":\"per_client\"}"), "{response}");
    let retry_after = response.lines().find_map(|line| line.strip_prefix("retry-after: "));
    assert!(matches!(retry_after, Some("1" | "2")), "{response}");
}
