//! Why this store did not decide. Limiters see an outage as the source of the [`StoreError`] that it
//! becomes, and a mistake as the error itself.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use thiserror::Error;
use tollbar::StoreError;
use tollbar::remote::{Failure, FailureKind, RemoteError};

/// What to do about a server that does not speak TLS.
const PLAIN_ADVICE: &str =
    "it does not speak TLS at this port: write `redis://`, or the port where it does";

/// What went wrong between this process and the counters.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum RedisStoreError {
    /// No connection, or none that answers: the circuit breaker is open.
    #[error("there is no connection to {node} at the moment ({cause})")]
    Disconnected {
        /// The server.
        node: Arc<str>,
        /// What became of the last attempt.
        cause: Arc<str>,
    },
    /// No answer in time. The charge may have been made all the same.
    #[error("no answer within {deadline:?}")]
    DeadlineMissed {
        /// How long was waited.
        deadline: Duration,
    },
    /// As many checks are under way as may be; this one was not sent.
    #[error("{max_in_flight} checks are under way already: `max_in_flight` allows no more")]
    Overloaded {
        /// How many may be.
        max_in_flight: usize,
    },
    /// The connection failed, or the server refused.
    #[error("the server could not be asked")]
    Server {
        /// What the client reported.
        #[source]
        source: Arc<RedisError>,
    },
    /// The server is there, and the connection to it could not be secured.
    #[error("the connection to the server is not secure: {advice}")]
    Insecure {
        /// What to do about it.
        advice: &'static str,
        /// What the client reported.
        #[source]
        source: Arc<RedisError>,
    },
    /// A server that was asked for TLS, and kept silent.
    #[error("no answer within {deadline:?}: perhaps {}", PLAIN_ADVICE)]
    NoHandshake {
        /// How long was waited.
        deadline: Duration,
    },
    /// A certificate, a key or a URL that cannot be used for TLS.
    #[error("{detail}")]
    Certificate {
        /// What is wrong with it, and what to write instead.
        detail: String,
    },
    /// A store that is told nowhere to go.
    #[error("there is no address: give that of one server at least")]
    NoAddress,
    /// Sentinels answer, and know no such master.
    #[error("the sentinels know no master `{master}`: is that its name?")]
    UnknownMaster {
        /// The name that was asked for.
        master: Arc<str>,
    },
    /// What sentinels call the master is a replica: they have not agreed on another one yet.
    #[error("the master `{master}` is none at the moment")]
    NoMaster {
        /// The name that was asked for.
        master: Arc<str>,
    },
    /// Something that is no counter has the counter's name.
    #[error(
        "a key of tollbar's holds something else ({detail}): give tollbar a namespace of its own"
    )]
    WrongType {
        /// What the server said.
        detail: String,
    },
    /// The counter holds what no check has written.
    #[error("a counter cannot be read ({detail}): delete it, and find out who writes there")]
    CorruptState {
        /// What the script said.
        detail: String,
    },
    /// An algorithm that has no twin in Lua.
    #[error(
        "`{algorithm}` cannot be counted in Redis: use a memory store, or a built-in algorithm"
    )]
    Unsupported {
        /// Its name.
        algorithm: &'static str,
    },
    /// Too many requests with keys in several slots could not be ended, because slots cannot be asked.
    #[error(
        "too many requests across slots wait for slots that cannot be asked: look at the masters of the \
         cluster"
    )]
    Backlog,
    /// A server that is too old.
    #[error("{node} runs version {version}: tollbar needs Redis 6.2, or Valkey")]
    TooOld {
        /// The server.
        node: Arc<str>,
        /// What it calls its version.
        version: String,
    },
    /// A server that takes no writes because it follows another one.
    #[error("{node} is a replica (READONLY): counters are written at its master")]
    Replica {
        /// The server.
        node: Arc<str>,
    },
    /// A server that is starting.
    #[error("{node} is loading its data (LOADING)")]
    Loading {
        /// The server.
        node: Arc<str>,
    },
    /// A server that takes writes and does not do what they say.
    #[error("{node} has accepted a write, and {detail}: is it Redis?")]
    LostWrite {
        /// The server.
        node: Arc<str>,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// An answer that no script of ours gives.
    #[error("the server answered something that is no answer: is it Redis?")]
    Garbled,
}

impl From<RemoteError> for RedisStoreError {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Disconnected { node, cause } => Self::Disconnected { node, cause },
            RemoteError::DeadlineMissed { deadline } => Self::DeadlineMissed { deadline },
            RemoteError::Overloaded { in_flight_max: max_in_flight } => {
                Self::Overloaded { max_in_flight }
            }
        }
    }
}

impl Failure for RedisStoreError {
    fn kind(&self) -> FailureKind {
        match self {
            Self::Disconnected { .. } => FailureKind::Disconnected,
            Self::DeadlineMissed { .. } => FailureKind::DeadlineMissed,
            Self::Overloaded { .. } | Self::Backlog => FailureKind::Overloaded,
            Self::Insecure { .. } => FailureKind::Broken,
            Self::Server { source } if source.is_unrecoverable_error() || is_of_node(source) => {
                FailureKind::Broken
            }
            _ => FailureKind::Refused,
        }
    }
}

impl RedisStoreError {
    /// True where the server has not seen the script, or has forgotten it.
    pub(crate) fn is_unknown_script(&self) -> bool {
        let Self::Server { source } = self else {
            return false;
        };
        source.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
    }
}

/// True where the server is there, and cannot be asked: another one should be. Redis 6.2 reports a
/// command that is refused within a script as an error of the script.
fn is_of_node(error: &RedisError) -> bool {
    let is_replica = || error.detail().is_some_and(|detail| detail.contains("-READONLY "));
    match error.kind() {
        ErrorKind::Server(
            ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading,
        ) => true,
        ErrorKind::Server(ServerErrorKind::ResponseError) => is_replica(),
        _ => false,
    }
}

impl From<RedisError> for RedisStoreError {
    fn from(error: RedisError) -> Self {
        let detail = || error.detail().unwrap_or_default().to_owned();
        let text = error.to_string();
        if text.contains("WRONGTYPE") {
            Self::WrongType { detail: detail() }
        } else if text.contains("TOLLBARSTATE") {
            Self::CorruptState { detail: detail() }
        } else if let Some(advice) = tls_advice(&error) {
            Self::Insecure { advice, source: Arc::new(error) }
        } else {
            Self::Server { source: Arc::new(error) }
        }
    }
}

/// What to do about a connection that could not be secured; `None` where it failed otherwise.
fn tls_advice(error: &RedisError) -> Option<&'static str> {
    const AUTHORITY: &str =
        "nobody who is trusted here signed its certificate: give its authority by `Tls::ca_file`";
    const NAME: &str = "its certificate is for another name: write that in the URL, or add this one to the certificate";
    const ADVICE: [(&str, &str); 8] = [
        ("UnknownIssuer", AUTHORITY),
        // Of an authority that is called like one that is trusted.
        ("BadSignature", AUTHORITY),
        ("not valid for name", NAME),
        ("NotValidForName", NAME),
        ("certificate expired", "its certificate has expired"),
        ("InvalidContentType", PLAIN_ADVICE),
        (
            "CertificateRequired",
            "it asks for a certificate of ours: give one by `Tls::client_files`",
        ),
        (
            "UnknownCA",
            "it does not trust our certificate: give one of its authority by `Tls::client_files`",
        ),
    ];
    let text = error.to_string();
    ADVICE.iter().find(|(said, _)| text.contains(said)).map(|(_, advice)| *advice)
}

/// True where the server has understood the command, and refuses it: it is out of memory, the user
/// lacks a permission, a script fails. To ask again, or somebody else, does not help.
fn is_refusal(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Extension => true,
        ErrorKind::Server(kind) => !matches!(
            kind,
            // These pass by themselves.
            ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
        ),
        _ => false,
    }
}

impl From<RedisStoreError> for StoreError {
    fn from(error: RedisStoreError) -> Self {
        match error {
            RedisStoreError::Unsupported { .. } => Self::unsupported(error.to_string()),
            RedisStoreError::DeadlineMissed { .. } => Self::Timeout { source: Arc::new(error) },
            RedisStoreError::Overloaded { .. } | RedisStoreError::Backlog => {
                Self::Overloaded { source: Arc::new(error) }
            }
            RedisStoreError::WrongType { .. }
            | RedisStoreError::CorruptState { .. }
            | RedisStoreError::Replica { .. }
            | RedisStoreError::LostWrite { .. } => Self::Refused { source: Arc::new(error) },
            RedisStoreError::Server { ref source } if is_refusal(source) => {
                Self::Refused { source: Arc::new(error) }
            }
            RedisStoreError::Disconnected { .. }
            | RedisStoreError::Server { .. }
            | RedisStoreError::Insecure { .. }
            | RedisStoreError::NoHandshake { .. }
            | RedisStoreError::Certificate { .. }
            | RedisStoreError::NoAddress
            | RedisStoreError::UnknownMaster { .. }
            | RedisStoreError::NoMaster { .. }
            | RedisStoreError::TooOld { .. }
            | RedisStoreError::Loading { .. }
            | RedisStoreError::Garbled => Self::Unavailable { source: Arc::new(error) },
        }
    }
}
