//! A service to be asked, and bodies that end late or never.

#![expect(clippy::disallowed_methods, reason = "a test that panics is seen")]

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use http_body::{Body, Frame};
use tokio::net::TcpListener;
use tollbar::{ManualClock, Timestamp};
use tollbar_rules::{Engine, Request, RuleFile};

pub(crate) fn engine(yaml: &str) -> (Engine, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let rules = RuleFile::parse("rules.yaml", yaml).unwrap_or_else(|error| panic!("{error}")).rules;
    (Engine::builder(rules).clock(clock.clone()).build(), clock)
}

/// Serves on a port of its own, until the test ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// What clients at 127.0.0.1 have left.
pub(crate) fn left(engine: &Engine) -> u64 {
    let attributes = [("ip", "127.0.0.1")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    engine.check(&request.with_cost(0)).binding().unwrap().decision().remaining().unwrap()
}

/// Waits for what nobody reports, such as that another process listens.
#[allow(dead_code, reason = "only one file of tests needs it")]
pub(crate) async fn eventually(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it never came to pass");
}

/// A body that never ends. It is taken only as fast as the client reads.
pub(crate) struct EndlessBody;

impl Body for EndlessBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 4_096])))))
    }
}

/// A body of many pieces.
pub(crate) struct PiecesBody {
    piece: Bytes,
    left: usize,
}

impl PiecesBody {
    pub(crate) fn new(piece: Bytes, bytes: usize) -> Self {
        Self { left: bytes / piece.len(), piece }
    }
}

impl Body for PiecesBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(self.piece.clone()))))
    }
}
