//! The settings of a client, and what is wrong with them.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::Handle;
use tollbar_tls::{Connector, Identity, Pem, PemError};
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;

use super::queue::{FaultObserver, RequestQueue};
use super::session::{Bearer, Server, Session};
use super::{CheckError, Client, SessionHandle};

/// A connection on which nothing comes is asked whether somebody is there.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIME_MAX: Duration = Duration::from_secs(5);
const WAITING_MAX: std::ops::RangeInclusive<usize> = 1..=1_000_000;

/// A [`Client`] to be.
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    uri: String,
    token: Option<String>,
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    deadline: Duration,
    connect_timeout: Duration,
    idle_timeout: Duration,
    max_waiting: usize,
    observer: FaultObserver,
}

/// What is wrong with the settings of a client. That nobody answers is not: see
/// [`CheckError`](super::CheckError).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address.
    #[error("`{uri}` is no address: write http://HOST:PORT, https://HOST:PORT or unix:PATH")]
    Uri {
        /// As it was written.
        uri: String,
    },
    /// Somebody has to vouch for the daemon.
    #[error("`{uri}` asks for TLS: give the certificate of its authority by `ca_certificate`")]
    NoAuthority {
        /// As it was written.
        uri: String,
    },
    /// A certificate or a key.
    #[error("the certificate, its authority or the key cannot be used: {reason}")]
    Tls {
        /// Why.
        reason: String,
    },
    /// The token.
    #[error("the token cannot be sent: use visible ASCII characters")]
    Token,
    /// A number.
    #[error("`{setting}` cannot be kept: {instead}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What to write instead.
        instead: &'static str,
    },
    /// There is nothing to run on.
    #[error("there is no runtime: connect within a runtime of tokio that has time and I/O")]
    NoRuntime,
}

impl ClientBuilder {
    pub(super) fn new(uri: String) -> Self {
        Self {
            uri,
            token: None,
            ca: None,
            identity: None,
            deadline: Duration::from_millis(100),
            connect_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(5),
            max_waiting: 4_096,
            observer: FaultObserver::default(),
        }
    }

    /// The token that the daemon asks for.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Who vouches for the daemon: a certificate in PEM. For `https`.
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// What the client shows where the daemon asks for certificates: both in PEM. For `https`.
    pub fn identity(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((certificate_pem.into(), key_pem.into()));
        self
    }

    /// How long a caller waits for an answer: 100 ms unless it is set.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long a connection may take to be made: 2 s unless it is set.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// How long the daemon may leave what was sent unanswered before the client connects anew: 5 s
    /// unless it is set, and up to twice as long.
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.idle_timeout = time;
        self
    }

    /// How many checks may wait at once, to be sent or for their answers: 4,096 unless it is set. More
    /// are turned away as [overload](CheckError::Overloaded).
    pub fn max_waiting(mut self, count: usize) -> Self {
        self.max_waiting = count;
        self
    }

    /// Is called when checks cannot be sent: because the daemon refuses the client or cannot be reached,
    /// once until the reason is another or checks were answered in between; and because more checks wait
    /// than may, once until half of the places are free again. The log has the same, as warnings.
    ///
    /// It is called by the task that sends, or by a caller of `check`, and should be quick.
    pub fn on_fault(mut self, on_fault: impl Fn(&CheckError) + Send + Sync + 'static) -> Self {
        self.observer = FaultObserver(Some(Arc::new(on_fault)));
        self
    }

    /// The client, which connects in the background.
    pub fn connect(self) -> Result<Client, ConnectError> {
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        for (setting, time) in [
            ("deadline", self.deadline),
            ("connect_timeout", self.connect_timeout),
            ("idle_timeout", self.idle_timeout),
        ] {
            if time.is_zero() {
                let instead = "use more than 0";
                return Err(ConnectError::Setting { setting, instead });
            }
        }
        if !WAITING_MAX.contains(&self.max_waiting) {
            let (setting, instead) = ("max_waiting", "use 1 to 1,000,000");
            return Err(ConnectError::Setting { setting, instead });
        }
        let server = self.server()?;
        let queue = Arc::new(RequestQueue::new(self.max_waiting, self.observer.clone()));
        let session = Session {
            server: server.clone(),
            bearer: self.bearer()?,
            queue: Arc::clone(&queue),
            connect_timeout: self.connect_timeout,
            idle_timeout: self.idle_timeout,
        };
        let calls = session.calls(server.connect_lazy());
        #[expect(clippy::disallowed_methods, reason = "a session that panics begins anew")]
        runtime.spawn(session.run());
        Ok(Client { session: Arc::new(SessionHandle { queue, deadline: self.deadline }), calls })
    }

    fn bearer(&self) -> Result<Bearer, ConnectError> {
        let Some(token) = &self.token else {
            return Ok(Bearer(None));
        };
        let is_visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let mut value: MetadataValue<_> = match format!("Bearer {token}").parse() {
            Ok(value) if is_visible => value,
            _ => return Err(ConnectError::Token),
        };
        // Keeps it out of what is printed.
        value.set_sensitive(true);
        Ok(Bearer(Some(value)))
    }

    fn server(&self) -> Result<Server, ConnectError> {
        let wrong = || ConnectError::Uri { uri: self.uri.clone() };
        let has_scheme =
            ["http://", "https://", "unix:"].iter().any(|scheme| self.uri.starts_with(scheme));
        if !has_scheme {
            return Err(wrong());
        }
        // What tonic is not told to be `https`, it leaves to the connector: see there.
        let (address, is_tls) = match self.uri.strip_prefix("https://") {
            Some(rest) => (format!("http://{rest}"), true),
            None => (self.uri.clone(), false),
        };
        let mut endpoint = Endpoint::from_shared(address).map_err(|_| wrong())?;
        if is_tls {
            endpoint = endpoint.origin(self.uri.parse().map_err(|_| wrong())?);
        }
        let endpoint = endpoint
            .connect_timeout(self.connect_timeout)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIME_MAX)
            .keep_alive_while_idle(true);
        let connector = if is_tls { Some(self.connector()?) } else { None };
        Ok(Server { endpoint, connector })
    }

    fn connector(&self) -> Result<Connector, ConnectError> {
        let Some(ca) = &self.ca else {
            return Err(ConnectError::NoAuthority { uri: self.uri.clone() });
        };
        let pem = |error: PemError| ConnectError::Tls { reason: error.to_string() };
        let authorities = Pem::new("the authority", ca).authorities().map_err(pem)?;
        let identity = self.identity.as_ref().map(|(certificate, key)| {
            Identity::new(&Pem::new("the certificate", certificate), &Pem::new("the key", key))
        });
        let identity = identity.transpose().map_err(pem)?;
        let config = tollbar_tls::client_config_as(authorities, identity)
            .map_err(|error| ConnectError::Tls { reason: error.to_string() })?;
        Ok(Connector::new(config))
    }
}

/// Without its secrets.
impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBuilder").field("uri", &self.uri).finish_non_exhaustive()
    }
}
