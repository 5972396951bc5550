//! From the first connection to the last: opens the stream, hands out answers, and begins anew after a
//! pause when it breaks.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{interval, timeout};
use tollbar_tls::Connector;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use super::backoff::Backoff;
use super::error::Fault;
use super::queue::{InFlight, Outbound, RequestQueue};
use super::{Calls, CheckError};
use crate::v1::CheckManyResponse;
use crate::v1::check_many_response::Result as Answer;
use crate::v1::limiter_client::LimiterClient;

/// For the answers of a stream that the daemon wants to be rid of.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(10);

/// Shows the token with every call, where there is one.
#[derive(Debug, Clone)]
pub struct Bearer(pub(super) Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// What it takes to connect, again and again.
pub(super) struct Session {
    pub(super) server: Server,
    pub(super) bearer: Bearer,
    pub(super) queue: Arc<RequestQueue>,
    pub(super) connect_timeout: Duration,
    pub(super) idle_timeout: Duration,
}

/// Where the daemon is, and how it is reached.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) endpoint: Endpoint,
    /// Of a daemon that speaks TLS.
    pub(super) connector: Option<Connector>,
}

impl Server {
    async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        match &self.connector {
            None => self.endpoint.connect().await,
            Some(connector) => self.endpoint.connect_with_connector(connector.clone()).await,
        }
    }

    /// Connects when the channel is first used.
    pub(super) fn connect_lazy(&self) -> Channel {
        match &self.connector {
            None => self.endpoint.connect_lazy(),
            Some(connector) => self.endpoint.connect_with_connector_lazy(connector.clone()),
        }
    }
}

/// How a stream ended.
enum StreamEnd {
    /// The daemon asked for it, and the rest of the answers is to come.
    Closing(Box<Streaming<CheckManyResponse>>),
    /// For this reason.
    Broken(Fault),
}

/// What delivering one message came to.
enum Delivery {
    Answered,
    Closing,
    Nonsense(String),
}

impl Session {
    pub(super) fn calls(&self, channel: Channel) -> Calls {
        LimiterClient::with_interceptor(channel, self.bearer.clone())
    }

    /// Runs until the last client is gone.
    pub(super) async fn run(self) {
        let sessions = async {
            // A session that panics has lost its stream, as one that breaks has. Without a new one every check would
            // be answered by the caller's outage policy, for ever.
            let mut backoff = Backoff::new();
            while !survives(self.run_sessions()).await {
                self.queue.fail(&Fault::Outage("the session of the client panicked".to_owned()));
                tokio::time::sleep(backoff.pause()).await;
            }
        };
        tokio::select! {
            () = sessions => {}
            // What was sent and has not been answered has no one who waits for it.
            () = self.queue.closed() => {}
        }
        self.queue.fail(&Fault::Outage("the client is closed".to_owned()));
    }

    async fn run_sessions(&self) {
        let mut backoff = Backoff::new();
        let mut reported = None;
        let (mut outbound, mut in_flight) = self.queue.begin();
        loop {
            match self.run_stream(outbound, &in_flight, &mut backoff).await {
                StreamEnd::Closing(answers) => {
                    // The old stream sends no more; who comes now waits for the next.
                    let (next, its_in_flight) = self.queue.begin();
                    let drained = drain(*answers, std::mem::replace(&mut in_flight, its_in_flight));
                    #[expect(clippy::disallowed_methods, reason = "callers of a panic get `Lost`")]
                    tokio::spawn(drained);
                    outbound = next;
                    tokio::time::sleep(backoff.pause()).await;
                }
                StreamEnd::Broken(fault) => {
                    self.queue.fail(&fault);
                    in_flight.lose(&fault.reason());
                    // A fault that stays is reported once, and again when it becomes another one.
                    if backoff.is_first() || reported.as_ref() != Some(&fault) {
                        self.queue.report(&fault);
                        reported = Some(fault);
                    }
                    tokio::time::sleep(backoff.pause()).await;
                    (outbound, in_flight) = self.queue.begin();
                }
            }
        }
    }

    /// Opens a stream, and goes on until it ends.
    async fn run_stream(
        &self,
        outbound: Outbound,
        in_flight: &InFlight,
        backoff: &mut Backoff,
    ) -> StreamEnd {
        let opened = async {
            let channel = self.server.connect().await;
            let channel = channel.map_err(|error| Fault::Outage(describe_error(&error)))?;
            let opened = self.calls(channel).check_many(outbound).await;
            opened.map(tonic::Response::into_inner).map_err(|status| Fault::from_status(&status))
        };
        let mut answers = match timeout(self.connect_timeout, opened).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(fault)) => return StreamEnd::Broken(fault),
            Err(_) => {
                let reason = format!("no connection within {:?}", self.connect_timeout);
                return StreamEnd::Broken(Fault::Outage(reason));
            }
        };
        self.queue.open();
        match self.deliver_all(&mut answers, in_flight, backoff).await {
            None => StreamEnd::Closing(Box::new(answers)),
            Some(fault) => StreamEnd::Broken(fault),
        }
    }

    /// Delivers answers until there are no more, and returns why; `None` if the daemon asks for an end.
    async fn deliver_all(
        &self,
        answers: &mut Streaming<CheckManyResponse>,
        in_flight: &InFlight,
        backoff: &mut Backoff,
    ) -> Option<Fault> {
        let mut looks = interval(self.idle_timeout);
        looks.tick().await;
        // Who was the next to be answered at the last look.
        let mut awaited = None;
        loop {
            let message = tokio::select! {
                message = answers.message() => message,
                _ = looks.tick() => {
                    let next = in_flight.next();
                    if next.is_some() && next == awaited {
                        let reason = format!("no answer within {:?}", self.idle_timeout);
                        return Some(Fault::Outage(reason));
                    }
                    awaited = next;
                    continue;
                }
            };
            match message {
                Ok(Some(response)) => match deliver(response, in_flight) {
                    // It works: the next time it breaks is a first time.
                    Delivery::Answered => *backoff = Backoff::new(),
                    Delivery::Closing => return None,
                    Delivery::Nonsense(reason) => return Some(Fault::Outage(reason)),
                },
                Ok(None) => {
                    let reason = "the daemon has ended the stream".to_owned();
                    return Some(Fault::Outage(reason));
                }
                Err(status) => return Some(Fault::from_status(&status)),
            }
        }
    }
}

/// Delivers one answer to its caller.
fn deliver(response: CheckManyResponse, in_flight: &InFlight) -> Delivery {
    let CheckManyResponse { id, result } = response;
    let answer = match result {
        Some(Answer::Answer(answer)) => Ok(answer),
        Some(Answer::Error(error)) => Err(match Code::from(error.code) {
            Code::Unavailable => CheckError::Unavailable { reason: error.message },
            code => CheckError::Refused { code, message: error.message },
        }),
        Some(Answer::Closing(_)) => return Delivery::Closing,
        None => {
            return Delivery::Nonsense("an answer cannot be read: is the daemon newer?".to_owned());
        }
    };
    if in_flight.answer(id, answer) {
        Delivery::Answered
    } else {
        Delivery::Nonsense(format!("answer {id} is out of order"))
    }
}

/// Runs `future` to its end. Returns false if it panicked.
async fn survives(future: impl Future<Output = ()>) -> bool {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        polled.map_or(Poll::Ready(false), |poll| poll.map(|()| true))
    })
    .await
}

/// Takes the answers that are still to come.
async fn drain(mut answers: Streaming<CheckManyResponse>, in_flight: Arc<InFlight>) {
    let rest = async {
        while let Ok(Some(response)) = answers.message().await {
            if let Delivery::Nonsense(_) = deliver(response, &in_flight) {
                break;
            }
        }
    };
    #[expect(clippy::let_underscore_must_use, reason = "what does not end in time is dropped")]
    let _ = timeout(CLOSING_TIME_MAX, rest).await;
    in_flight.lose("the daemon has stopped");
}

/// Describes an error of the transport with its sources, without which it says little.
fn describe_error(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
