//! From the first connection to the last: opens the stream, hands out answers, and begins anew after a
//! pause when it breaks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{interval, timeout};
use tollbar_tls::Connector;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use super::backoff::Backoff;
use super::line::{Line, Outbound, Sent};
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
    pub(super) line: Arc<Line>,
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
enum Ended {
    /// The daemon asked for it, and the rest of the answers is to come.
    Closing(Box<Streaming<CheckManyResponse>>),
    /// For this reason.
    Broken(String),
}

/// What one message meant.
enum Told {
    Answered,
    Closing,
    Nonsense(String),
}

impl Session {
    pub(super) fn calls(&self, channel: Channel) -> Calls {
        LimiterClient::with_interceptor(channel, self.bearer.clone())
    }

    /// Goes on until the last client is gone.
    pub(super) async fn run(self) {
        tokio::select! {
            () = self.go_on() => {}
            // What was sent and has not been answered has no one who waits for it.
            () = self.line.closed() => {}
        }
        self.line.fail("the client is closed");
    }

    async fn go_on(&self) {
        let mut backoff = Backoff::new();
        let (mut outbound, mut sent) = self.line.begin();
        loop {
            match self.converse(outbound, &sent, &mut backoff).await {
                Ended::Closing(answers) => {
                    // The old stream sends no more; who comes now waits for the next.
                    let (next, its_sent) = self.line.begin();
                    tokio::spawn(drain(*answers, std::mem::replace(&mut sent, its_sent)));
                    outbound = next;
                    tokio::time::sleep(backoff.pause()).await;
                }
                Ended::Broken(reason) => {
                    self.line.fail(&reason);
                    sent.lose(&reason);
                    tokio::time::sleep(backoff.pause()).await;
                    (outbound, sent) = self.line.begin();
                }
            }
        }
    }

    /// Opens a stream, and goes on until it ends.
    async fn converse(&self, outbound: Outbound, sent: &Sent, backoff: &mut Backoff) -> Ended {
        let opened = async {
            let channel = self.server.connect().await.map_err(|error| told(&error))?;
            let opened = self.calls(channel).check_many(outbound).await;
            opened.map(tonic::Response::into_inner).map_err(|status| of_status(&status))
        };
        let mut answers = match timeout(self.connect_timeout, opened).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(reason)) => return Ended::Broken(reason),
            Err(_) => {
                return Ended::Broken(format!("no connection within {:?}", self.connect_timeout));
            }
        };
        self.line.open();
        match self.hand_out(&mut answers, sent, backoff).await {
            None => Ended::Closing(Box::new(answers)),
            Some(reason) => Ended::Broken(reason),
        }
    }

    /// Hands answers out until there are no more, and says why; `None` where the daemon asks for an end.
    async fn hand_out(
        &self,
        answers: &mut Streaming<CheckManyResponse>,
        sent: &Sent,
        backoff: &mut Backoff,
    ) -> Option<String> {
        let mut looks = interval(self.idle_timeout);
        looks.tick().await;
        // Who was the next to be answered at the last look.
        let mut awaited = None;
        loop {
            let message = tokio::select! {
                message = answers.message() => message,
                _ = looks.tick() => {
                    let next = sent.next();
                    if next.is_some() && next == awaited {
                        return Some(format!("no answer within {:?}", self.idle_timeout));
                    }
                    awaited = next;
                    continue;
                }
            };
            match message {
                Ok(Some(told)) => match hand_over(told, sent) {
                    // It works: the next time it breaks is a first time.
                    Told::Answered => *backoff = Backoff::new(),
                    Told::Closing => return None,
                    Told::Nonsense(reason) => return Some(reason),
                },
                Ok(None) => return Some("the daemon has ended the stream".to_owned()),
                Err(status) => return Some(of_status(&status)),
            }
        }
    }
}

/// Hands one answer over.
fn hand_over(told: CheckManyResponse, sent: &Sent) -> Told {
    let CheckManyResponse { id, result } = told;
    let answer = match result {
        Some(Answer::Answer(answer)) => Ok(answer),
        Some(Answer::Error(error)) => Err(match Code::from(error.code) {
            Code::Unavailable => CheckError::Unavailable { reason: error.message },
            code => CheckError::Refused { code, message: error.message },
        }),
        Some(Answer::Closing(_)) => return Told::Closing,
        None => return Told::Nonsense("an answer cannot be read: is the daemon newer?".to_owned()),
    };
    if sent.answer(id, answer) {
        Told::Answered
    } else {
        Told::Nonsense(format!("answer {id} is out of order"))
    }
}

/// Takes the answers that are still to come.
async fn drain(mut answers: Streaming<CheckManyResponse>, sent: Arc<Sent>) {
    let rest = async {
        while let Ok(Some(told)) = answers.message().await {
            if let Told::Nonsense(_) = hand_over(told, &sent) {
                break;
            }
        }
    };
    let _ = timeout(CLOSING_TIME_MAX, rest).await;
    sent.lose("the daemon has stopped");
}

fn of_status(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// An error of the transport says little without its sources.
fn told(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        told = format!("{told}: {error}");
        source = error.source();
    }
    told
}
