//! Why there is no answer from the upstream: what the log is told, and what the client is.

use std::io;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use crate::problem::Problem;
use crate::upstream::body::BodyProgress;

#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("cannot agree on how to speak: {0}")]
    Handshake(hyper::Error),
    #[error("it takes too long to connect")]
    ConnectTimeout,
    #[error("no answer in time")]
    NoAnswer,
    #[error("the client does not send its body")]
    ClientSilent,
    #[error("the connection broke before an answer: {0}")]
    Broken(hyper::Error),
    #[error("changed the protocol unasked")]
    Unasked,
    #[error("too many requests at once")]
    Busy,
    #[error("left alone for {0:?}")]
    LeftAlone(Duration),
}

impl Failure {
    /// True where it says that the upstream is down. What a client can bring about alone does not.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Handshake(_) | Self::ConnectTimeout | Self::NoAnswer => true,
            // What cannot be read is an answer: somebody is there.
            Self::Broken(error) => !error.is_parse(),
            Self::ClientSilent | Self::Unasked | Self::Busy | Self::LeftAlone(_) => false,
        }
    }

    /// The connection broke. If the client has broken off its body, that is why.
    pub(crate) fn broken(error: hyper::Error, progress: Option<&BodyProgress>) -> Self {
        if progress.is_some_and(BodyProgress::is_broken) {
            return Self::ClientSilent;
        }
        Self::Broken(error)
    }

    pub(crate) fn problem(&self) -> Problem {
        match self {
            Self::Connect(_) | Self::Handshake(_) => {
                Problem::new(StatusCode::BAD_GATEWAY, "the upstream cannot be reached")
            }
            Self::Broken(_) | Self::Unasked => {
                Problem::new(StatusCode::BAD_GATEWAY, "the upstream gave no valid answer")
            }
            Self::ConnectTimeout | Self::NoAnswer => {
                Problem::new(StatusCode::GATEWAY_TIMEOUT, "the upstream did not answer in time")
            }
            Self::ClientSilent => {
                Problem::new(StatusCode::REQUEST_TIMEOUT, "the body of the request did not come")
            }
            Self::Busy => Problem {
                retry_after: Some(Duration::from_secs(1)),
                ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the upstream is busy")
            },
            Self::LeftAlone(wait) => Problem {
                retry_after: Some(*wait),
                ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the upstream is down")
            },
        }
    }
}
