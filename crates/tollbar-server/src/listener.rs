//! Connections: accepted up to a bound, each with a time for its headers and its body, and seen to
//! their end when the daemon stops. What is answered is the [`Api`]'s business.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::api::{Answer, Api, Asked, BODY_BYTES_MAX};

/// For a connection to send the next head: also how long an idle one is kept.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
const BODY_TIME_MAX: Duration = Duration::from_secs(10);
/// What the heads of a connection's requests may take of memory.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// For connections to end by themselves when the daemon stops.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);
/// After an error of `accept`, such as too many open files, which repeats at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stopped` has lost its sender, then until all connections have ended or their time
/// is up.
pub(crate) async fn serve(
    socket: TcpListener,
    api: Arc<Api>,
    connections_max: u32,
    mut stopped: watch::Receiver<()>,
) {
    let places = Arc::new(Semaphore::new(connections_max as usize));
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            Some((socket.accept().await, place))
        };
        let (accepted, place) = tokio::select! {
            _ = stopped.changed() => break,
            Some(accepted) = accepted => accepted,
        };
        let Ok((stream, _)) = accepted else {
            let _ = timeout(ACCEPT_PAUSE, std::future::pending::<()>()).await;
            continue;
        };
        let (api, stopped) = (Arc::clone(&api), stopped.clone());
        tokio::spawn(async move {
            connection(stream, api, stopped).await;
            drop(place);
        });
    }
    drop(socket);
    // Whoever has all places is alone.
    let _ = timeout(DRAIN_TIME_MAX, places.acquire_many(connections_max)).await;
}

async fn connection(stream: TcpStream, api: Arc<Api>, mut stopped: watch::Receiver<()>) {
    // Answers are one small write; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let api = Arc::clone(&api);
        async move { Ok::<_, std::convert::Infallible>(respond(&api, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // What a client does to its connection is its own affair: errors end it, and are not told.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn respond(api: &Api, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = match timeout(BODY_TIME_MAX, Limited::new(body, BODY_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return rendered(Answer::too_large());
        }
        Ok(Err(_)) => return rendered(Answer::cut_short()),
        Err(_) => return rendered(Answer::too_slow()),
    };
    let bearer = head.headers.get(AUTHORIZATION).map(hyper::header::HeaderValue::as_bytes);
    let asked = Asked { method: head.method.as_str(), path: head.uri.path(), bearer, body: &body };
    rendered(api.answer(&asked).await)
}

fn rendered(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    let body = Bytes::from(format!("{}\n", answer.body));
    let response = response.header("content-type", "application/json").body(Full::new(body));
    // Headers are made of numbers and printable ASCII, so there is always a response.
    response.unwrap_or_else(|_| {
        let mut empty = Response::new(Full::new(Bytes::new()));
        *empty.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
        empty
    })
}
