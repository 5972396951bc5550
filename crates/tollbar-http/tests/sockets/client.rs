//! A client that can be as rude as it likes: bytes on a socket.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// Longer than anything takes, so that a test that hangs says so.
const TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) struct Connection {
    stream: TcpStream,
    /// What was received and not read.
    received: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self::open_from(IpAddr::from([127, 0, 0, 1]), address).await
    }

    /// From an address of one's own: all of 127.0.0.0/8 is this machine.
    pub(crate) async fn open_from(own: IpAddr, address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(own, 0)).unwrap();
        let stream = tokio::time::timeout(TIMEOUT, socket.connect(address));
        Self { stream: stream.await.expect("no connection in time").unwrap(), received: Vec::new() }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        // A server that has answered may close before it has read all.
        let _ = self.stream.write_all(bytes).await;
    }

    pub(crate) async fn send(&mut self, path: &str) {
        self.write(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await;
    }

    pub(crate) async fn get(&mut self, path: &str) -> Response {
        self.send(path).await;
        self.response().await
    }

    async fn receive(&mut self) -> usize {
        let read = self.stream.read_buf(&mut self.received);
        tokio::time::timeout(TIMEOUT, read).await.expect("nothing came in time").unwrap_or(0)
    }

    /// The status and the headers.
    pub(crate) async fn head(&mut self) -> Response {
        let end = loop {
            if let Some(at) = self.received.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(self.receive().await > 0, "closed: {:?}", self.received);
        };
        let head: Vec<u8> = self.received.drain(..end).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap().parse().unwrap();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        Response { status, headers: headers.collect(), body: Vec::new() }
    }

    /// The whole response, whose length the server has told.
    pub(crate) async fn response(&mut self) -> Response {
        let mut response = self.head().await;
        let length = response.header("content-length").map_or(0, |text| text.parse().unwrap());
        while self.received.len() < length {
            assert!(self.receive().await > 0, "closed before the end");
        }
        response.body = self.received.drain(..length).collect();
        response
    }

    /// Reads a chunked body to its end, and tells how many bytes it had.
    pub(crate) async fn read_chunked(&mut self) -> usize {
        let mut bytes = 0;
        loop {
            let line = loop {
                if let Some(at) = self.received.windows(2).position(|window| window == b"\r\n") {
                    break at;
                }
                assert!(self.receive().await > 0, "closed before the end");
            };
            let size = String::from_utf8(self.received[..line].to_vec()).unwrap();
            let size = usize::from_str_radix(&size, 16).unwrap();
            while self.received.len() < line + 2 + size + 2 {
                assert!(self.receive().await > 0, "closed before the end");
            }
            self.received.drain(..line + 2 + size + 2);
            if size == 0 {
                return bytes;
            }
            bytes += size;
        }
    }
}
