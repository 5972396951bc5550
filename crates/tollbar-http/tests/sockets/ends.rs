//! Tells a test when responses are over, so that it need not look again and again.
//!
//! A layer around ours: what it reports is over has been dropped by ours as well, so that what it
//! held has come back.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tower::{Layer, Service};

/// Longer than anything takes, so that a test that hangs says so.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The layer.
#[derive(Clone)]
pub(crate) struct WatchLayer(UnboundedSender<()>);

/// What it reports.
pub(crate) struct ResponseEnds(UnboundedReceiver<()>);

pub(crate) fn watch() -> (WatchLayer, ResponseEnds) {
    let (sender, receiver) = unbounded_channel();
    (WatchLayer(sender), ResponseEnds(receiver))
}

impl ResponseEnds {
    /// Until so many more requests are over that were let through.
    pub(crate) async fn wait_for(&mut self, count: usize) {
        for _ in 0..count {
            let end = tokio::time::timeout(TIMEOUT, self.0.recv());
            end.await.expect("it never ended").expect("the service is there");
        }
    }
}

impl<S> Layer<S> for WatchLayer {
    type Service = WatchService<S>;

    fn layer(&self, inner: S) -> WatchService<S> {
        WatchService { inner, watch: self.clone() }
    }
}

#[derive(Clone)]
pub(crate) struct WatchService<S> {
    inner: S,
    watch: WatchLayer,
}

impl<S, Q, B> Service<Request<Q>> for WatchService<S>
where
    S: Service<Request<Q>, Response = Response<B>, Future: Send + 'static>,
{
    type Response = Response<WatchedBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let end = EndReport(Some(self.watch.0.clone()));
        let future = self.inner.call(request);
        Box::pin(async move {
            // Declared before the future is awaited, so dropped after it.
            let mut end = end;
            let response = future.await?;
            // Who was turned away holds nothing.
            let is_denied =
                response.status() == 429 || response.headers().contains_key("grpc-status");
            if is_denied {
                end.0 = None;
            }
            Ok(response.map(|body| WatchedBody { body: Box::pin(body), _end: end }))
        })
    }
}

/// Reports when it is dropped.
struct EndReport(Option<UnboundedSender<()>>);

impl Drop for EndReport {
    fn drop(&mut self) {
        if let Some(sender) = &self.0 {
            // A test that is over does not listen.
            let _ = sender.send(());
        }
    }
}

/// Fields are dropped in their order: first the body, then the report.
pub(crate) struct WatchedBody<B> {
    body: Pin<Box<B>>,
    _end: EndReport,
}

impl<B: Body<Data = Bytes>> Body for WatchedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.body.as_mut().poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
