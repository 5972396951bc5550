//! `CheckMany`: requests as they come, many in flight, answers in their order. A mistake is the answer to
//! one request, and the stream goes on; when the daemon stops, the client is told to send no more, and
//! everything that it had sent is answered.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use tokio::time::Sleep;
use tollbar_proto::v1;
use tollbar_proto::v1::check_many_response::Result as Answer;
use tonic::{Status, Streaming};

use super::limiter::{decide, reject};
use crate::daemon::Daemon;
use crate::finish::Finish;
use crate::shutdown::ShutdownSignal;

/// Requests of one stream that are decided at once: a store across a network answers them together.
const IN_FLIGHT_MAX: usize = 256;
/// For a client to send no more after it was told.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(5);

/// What is sent back.
pub(super) type Responses = Pin<Box<dyn Stream<Item = StreamItem> + Send>>;
type StreamItem = Result<v1::CheckManyResponse, Status>;

/// A stream that is being answered.
struct ResponseStream<S> {
    responses: S,
    stopped: ShutdownSignal,
    /// Set once the client was told to send no more.
    end: Option<Pin<Box<Sleep>>>,
    is_over: bool,
}

pub(super) fn responses(
    messages: Streaming<v1::CheckManyRequest>,
    daemon: Arc<Daemon>,
    stopped: ShutdownSignal,
) -> Responses {
    let responses = messages
        .map(move |message| {
            let daemon = Arc::clone(&daemon);
            async move {
                let message = message?;
                if daemon.finishes_checks() {
                    return Ok(Finish::new(Box::pin(
                        async move { answer(&daemon, message).await },
                    ))
                    .await);
                }
                Ok(answer(&daemon, message).await)
            }
        })
        .buffered(IN_FLIGHT_MAX);
    let stream_state = ResponseStream { responses, stopped, end: None, is_over: false };
    Box::pin(stream::unfold(stream_state, |mut stream_state| async move {
        let item = stream_state.next().await?;
        Some((item, stream_state))
    }))
}

async fn answer(daemon: &Daemon, message: v1::CheckManyRequest) -> v1::CheckManyResponse {
    let v1::CheckManyRequest { id, request } = message;
    let response = if let Some(request) = &request {
        decide(daemon, request, request.cost.unwrap_or(1)).await
    } else {
        let status = Status::invalid_argument("there is nothing to check: send `request`");
        Err(reject(daemon, status))
    };
    let result = response.map_or_else(
        |status| {
            let (code, message) = (status.code().into(), status.message().to_owned());
            Answer::Error(v1::Error { code, message })
        },
        Answer::Answer,
    );
    v1::CheckManyResponse { id, result: Some(result) }
}

impl<S: Stream<Item = StreamItem> + Unpin> ResponseStream<S> {
    async fn next(&mut self) -> Option<StreamItem> {
        if self.is_over {
            return None;
        }
        let Some(end) = &mut self.end else {
            // Before anything else: who always has something to ask would never be told.
            if self.stopped.is_stopping() {
                return Some(Ok(self.close()));
            }
            return tokio::select! {
                biased;
                item = self.responses.next() => item,
                () = self.stopped.wait() => Some(Ok(self.close())),
            };
        };
        tokio::select! {
            biased;
            () = end => {
                self.is_over = true;
                Some(Err(Status::unavailable("the daemon has stopped: connect again")))
            }
            item = self.responses.next() => item,
        }
    }

    /// Tells the client to send no more.
    fn close(&mut self) -> v1::CheckManyResponse {
        self.end = Some(Box::pin(tokio::time::sleep(CLOSING_TIME_MAX)));
        v1::CheckManyResponse { id: 0, result: Some(Answer::Closing(v1::Closing {})) }
    }
}
