//! WebSocket through a gateway, and what is held meanwhile.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::net::SocketAddr;

use crate::common::{PATIENCE, builder, engine, listen, raw};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{accept_async, client_async};

/// Sends back what it is sent, until the other side closes.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut socket = accept_async(stream).await?;
                while let Some(message) = socket.next().await {
                    match message? {
                        Message::Close(_) => break,
                        message => socket.send(message).await?,
                    }
                }
                Ok::<_, Error>(())
            });
        }
    });
    address
}

#[tokio::test]
async fn web_sockets_echo_and_hold_their_permit_until_they_close() {
    let rules = "rules: [{ name: one, algorithm: concurrency, limit: 1 }]";
    let gateway = listen(builder(echo().await).build(engine(rules)).unwrap()).await;
    for round in 0..3 {
        // The last one's permit returns when its tunnel has ended, which the client does not see.
        let opened = async {
            loop {
                let stream = TcpStream::connect(gateway).await.unwrap();
                match client_async(format!("ws://{gateway}/chat"), stream).await {
                    Ok((socket, response)) => return (socket, response),
                    Err(Error::Http(response)) => assert_eq!(response.status(), 429),
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let (mut socket, response) = timeout(PATIENCE, opened).await.unwrap();
        assert_eq!(response.status(), 101);
        for size in [0_usize, 5, 70_000, 1_000_000] {
            let sent = Message::binary(vec![round; size]);
            socket.send(sent.clone()).await.unwrap();
            let echoed = timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
            assert!(echoed == sent, "{size} bytes came back otherwise");
        }
        let denied = raw(gateway, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
        socket.close(None).await.unwrap();
        while let Some(Ok(_)) = timeout(PATIENCE, socket.next()).await.unwrap() {}
    }
}

/// Each direction has its own end: what is still under way the other way arrives.
#[tokio::test]
async fn one_end_may_close_before_the_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        // The first bytes of the new protocol come with the head.
        let head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: Raw/1\r\n\r\nfirst ";
        stream.write_all(head).await.unwrap();
        let mut sent = String::new();
        stream.read_to_string(&mut sent).await.unwrap();
        stream.write_all(format!("heard {sent}").as_bytes()).await.unwrap();
    });
    let gateway = listen(crate::common::open(builder(upstream))).await;
    let mut client = TcpStream::connect(gateway).await.unwrap();
    let head = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: raw/1\r\n\r\n";
    client.write_all(head).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(client.read_u8().await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    client.write_all(b"hello").await.unwrap();
    client.shutdown().await.unwrap();
    let mut rest = String::new();
    timeout(PATIENCE, client.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert_eq!(rest, "first heard hello");
}
