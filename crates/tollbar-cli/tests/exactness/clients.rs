//! Connections that speak RESP, HTTP and gRPC to the daemon, and a server behind its gateway.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Runtime;
use tollbar_proto::client::Client as GrpcConnection;
use tollbar_proto::v1::CheckRequest;

use crate::common::Daemon;
use crate::limits::Limit;
use crate::load::Client;

/// Pipelines of `CL.THROTTLE` or `TB.CHECK`.
pub(crate) struct Resp(BufReader<TcpStream>);

impl Resp {
    pub(crate) fn connect(daemon: &Daemon) -> Self {
        let stream = TcpStream::connect(daemon.address("resp")).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }
}

impl Client for Resp {
    fn ask(&mut self, limit: &Limit, count: usize) -> usize {
        let (command, allowed, denied) = if let Some((burst, rate)) = limit.throttle {
            let command = format!("CL.THROTTLE {} {burst} {rate} 1\r\n", limit.name);
            (command, "5\r\n:0\r\n", "5\r\n:1\r\n")
        } else {
            let command = format!("TB.CHECK GET /{} WITH user 7\r\n", limit.name);
            (command, "26\r\n$7\r\nallowed\r\n:1\r\n", "26\r\n$7\r\nallowed\r\n:0\r\n")
        };
        // Each reply is an array and has one star, its first byte. Clients must cost less than the daemon, so
        // they only look for stars; the last one is that of the echo.
        let pipeline = command.repeat(count) + "ECHO *\r\n";
        self.0.get_mut().write_all(pipeline.as_bytes()).unwrap();
        let mut reply = Vec::new();
        self.0.read_until(b'*', &mut reply).unwrap();
        let is_allowed = |_: &usize| {
            reply.clear();
            self.0.read_until(b'*', &mut reply).unwrap();
            let is_allowed = reply.starts_with(allowed.as_bytes());
            let is_denied = reply.starts_with(denied.as_bytes());
            assert!(is_allowed || is_denied, "{}", String::from_utf8_lossy(&reply));
            is_allowed
        };
        (0..count).filter(is_allowed).count()
    }
}

/// HTTP/1.1 on a connection that is kept: `POST /v1/check`, or through the gateway.
pub(crate) struct Http {
    stream: BufReader<TcpStream>,
    is_gateway: bool,
}

impl Http {
    pub(crate) fn connect(daemon: &Daemon) -> Self {
        Self::to(daemon.address("http"), false)
    }

    pub(crate) fn connect_to_gateway(daemon: &Daemon) -> Self {
        Self::to(daemon.address("proxy"), true)
    }

    fn to(address: &str, is_gateway: bool) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), is_gateway }
    }

    fn request(&self, limit: &Limit) -> String {
        let path = limit.name;
        if self.is_gateway {
            return format!("GET /{path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        }
        let body = format!(r#"{{"path":"/{path}","attributes":{{"user":"7"}}}}"#);
        let length = body.len();
        format!(
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }
}

impl Client for Http {
    fn ask(&mut self, limit: &Limit, count: usize) -> usize {
        let requests = self.request(limit).repeat(count);
        self.stream.get_mut().write_all(requests.as_bytes()).unwrap();
        let is_allowed = |_: &usize| {
            let mut status = String::new();
            self.stream.read_line(&mut status).unwrap();
            skip_headers_and_body(&mut self.stream).unwrap();
            match status.split(' ').nth(1) {
                Some("200") => true,
                Some("429") => false,
                _ => panic!("{status}"),
            }
        };
        (0..count).filter(is_allowed).count()
    }
}

/// `None` where the connection ends before the headers do.
fn skip_headers_and_body(stream: &mut BufReader<TcpStream>) -> Option<()> {
    let mut length = 0;
    loop {
        let mut header = String::new();
        if stream.read_line(&mut header).ok()? == 0 {
            return None;
        }
        if header == "\r\n" {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.trim_end().parse().unwrap();
        }
    }
    stream.read_exact(&mut vec![0; length]).ok()
}

/// The client of `tollbar-proto`, which asks over one stream.
pub(crate) struct Grpc {
    // Before the runtime, within which it must be dropped.
    connection: GrpcConnection,
    runtime: Runtime,
}

impl Grpc {
    pub(crate) fn connect(daemon: &Daemon) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let uri = format!("http://{}", daemon.address("grpc"));
        let builder = GrpcConnection::builder(uri).deadline(Duration::from_secs(20));
        let connection = runtime.block_on(async { builder.connect().unwrap() });
        Self { connection, runtime }
    }
}

impl Client for Grpc {
    fn ask(&mut self, limit: &Limit, count: usize) -> usize {
        let check = |_| {
            self.connection.check(CheckRequest {
                path: format!("/{}", limit.name),
                attributes: [("user".to_owned(), "7".to_owned())].into(),
                ..CheckRequest::default()
            })
        };
        let replies = self.runtime.block_on(join_all((0..count).map(check)));
        replies.into_iter().filter(|reply| reply.as_ref().unwrap().allowed).count()
    }
}

/// The URL of a server that answers every request with 200.
pub(crate) fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut stream = BufReader::new(stream.unwrap());
                while skip_headers_and_body(&mut stream).is_some() {
                    let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    if stream.get_mut().write_all(reply).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}
