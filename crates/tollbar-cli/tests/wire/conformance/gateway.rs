//! The table, asked of the real daemon as a gateway over HTTP/1.1. Attributes, costs and the client's address are
//! headers that a trusted proxy sets.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::step::Step;
use super::{Answer, COUNTED, WITHOUT_STORE, forward_auth, go_through, limit_headers};
use crate::common::{Daemon, Scratch};

#[test]
fn the_gateway_answers_as_the_tables_say() {
    for table in [&COUNTED, &WITHOUT_STORE] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let scratch = Scratch::new("conformance-gateway");
        let upstream = runtime.block_on(upstream());
        let proxy = ["--proxy", "127.0.0.1:0", "--upstream", &upstream];
        let trusted = ["--trusted-proxies", "127.0.0.0/8"];
        let daemon = forward_auth::serve(table, &scratch, &[&proxy[..], &trusted].concat());
        let mut bodies = Vec::new();
        go_through(table, |step| runtime.block_on(ask(&daemon, step, &mut bodies)));
        // Ends the connections that are in flight.
        drop((bodies, runtime));
        assert_eq!(daemon.stop(), 0);
    }
}

async fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(begin_response(stream));
        }
    });
    url
}

/// The upstream: answers one request with a body that never ends.
async fn begin_response(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n").await.unwrap();
    std::future::pending::<()>().await;
}

async fn ask(daemon: &Daemon, step: &Step, bodies: &mut Vec<Incoming>) -> Answer {
    let stream = TcpStream::connect(daemon.address("proxy")).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().method(step.method).uri(step.path).header("host", "a");
    request = request.header("x-forwarded-for", forward_auth::client_address(step));
    for (name, value) in forward_auth::headers(step) {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    limit_headers::answer(step, response, bodies).await
}
