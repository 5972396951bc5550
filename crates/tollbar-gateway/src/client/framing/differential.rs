//! The framing beside hyper's parser, for fuzzers: both must see the same requests in the same bytes.

use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::ControlFlow;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::{Framing, FramingEnd, FramingState};
use crate::HeadBounds;

/// A request as one of the two readers sees it.
#[derive(Debug, Default)]
struct Message {
    /// The method as it is written.
    method: Vec<u8>,
    body: Vec<u8>,
    /// False while more of the body is to come.
    is_whole: bool,
    /// True where the gateway refuses it by its number, whatever the parser makes of it.
    is_refused: bool,
}

/// The bytes that the framing lets pass, and the requests that it sees in them.
#[derive(Debug, Default)]
struct FramingTrace {
    handed_on: Vec<u8>,
    messages: Vec<Message>,
}

/// Compares the requests that hyper sees with those that the framing sees, in what the framing hands on of `bytes`.
/// Returns how many requests hyper saw, or what differs.
pub async fn compare_framing(bytes: &[u8]) -> Result<usize, String> {
    let FramingTrace { handed_on, messages } = FramingTrace::of(bytes);
    let parsed = parse(&handed_on).await;
    if parsed.len() > messages.len() {
        return Err(format!("hyper sees {} requests of {}", parsed.len(), messages.len()));
    }
    let both = parsed.iter().zip(&messages).enumerate();
    for (at, (theirs, ours)) in both.filter(|(_, (_, ours))| !ours.is_refused) {
        if theirs.method != ours.method {
            let [theirs, ours] = [theirs, ours].map(|message| message.method.escape_ascii());
            return Err(format!("request {at} is `{theirs}` to hyper and `{ours}` here"));
        }
        let is_same = if theirs.is_whole && ours.is_whole {
            theirs.body == ours.body
        } else {
            // hyper has given up earlier.
            !theirs.is_whole && ours.body.starts_with(&theirs.body)
        };
        if !is_same {
            let [theirs, ours] =
                [theirs, ours].map(|message| (message.body.len(), message.is_whole));
            return Err(format!(
                "the body of request {at} is {theirs:?} to hyper and {ours:?} here"
            ));
        }
    }
    Ok(parsed.len())
}

impl FramingTrace {
    fn of(bytes: &[u8]) -> Self {
        let mut framing = Framing::new(HeadBounds::default());
        let mut trace = Self::default();
        let mut message_start = 0;
        for (at, byte) in bytes.iter().enumerate() {
            let (before, head_count) = (framing.place, framing.head_count);
            let read = framing.read(&bytes[at..=at]);
            if matches!(before, FramingState::Body { .. } | FramingState::Chunk { .. })
                && let Some(message) = trace.messages.last_mut()
            {
                message.body.push(*byte);
            }
            let is_whole = framing.place == FramingState::Start || framing.is_undecided();
            if framing.head_count > head_count {
                let method = method_in(&bytes[message_start..=at]);
                trace.messages.push(Message { method, is_whole, ..Message::default() });
            }
            if framing.place == FramingState::Start && before != FramingState::Start {
                message_start = at + 1;
                if let Some(message) = trace.messages.last_mut() {
                    message.is_whole = true;
                }
            }
            match read {
                ControlFlow::Continue(()) => trace.handed_on.push(*byte),
                ControlFlow::Break(FramingEnd::Refused { taken, rest, .. }) => {
                    trace.handed_on.extend_from_slice(&bytes[at..at + taken]);
                    trace.handed_on.extend_from_slice(rest);
                    trace.messages.last_mut().into_iter().for_each(|last| last.is_refused = true);
                    break;
                }
                ControlFlow::Break(FramingEnd::Broken) => break,
            }
            // What follows need not be HTTP/1.1.
            if framing.is_undecided() || framing.place == FramingState::Other {
                break;
            }
        }
        trace
    }
}

/// Returns the method of a head, before which there may be empty lines.
fn method_in(head: &[u8]) -> Vec<u8> {
    let start = head.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    head[start..].split(|byte| *byte == b' ').next().unwrap_or_default().to_vec()
}

/// Returns the requests that hyper sees.
async fn parse(bytes: &[u8]) -> Vec<Message> {
    let messages = RefCell::new(Vec::new());
    let service = service_fn(async |request: Request<Incoming>| {
        let method = request.method().as_str().as_bytes().to_vec();
        let at = messages.borrow().len();
        messages.borrow_mut().push(Message { method, ..Message::default() });
        let mut body = request.into_body();
        let is_whole = loop {
            match body.frame().await {
                None => break true,
                Some(Err(_)) => break false,
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        messages.borrow_mut()[at].body.extend_from_slice(data);
                    }
                }
            }
        };
        messages.borrow_mut()[at].is_whole = is_whole;
        let mut response = Response::new(Empty::<Bytes>::new());
        *response.status_mut() = StatusCode::NOT_FOUND;
        Ok::<_, Infallible>(response)
    });
    let io = TokioIo::new(tokio::io::join(bytes, tokio::io::sink()));
    // All of it is there at once, with the end of the connection behind it: requests before the end are answered.
    let mut server = http1::Builder::new();
    // A connection that ends early is as good as one that ends well.
    let _end = server.half_close(true).serve_connection(io, service).await;
    messages.into_inner()
}
