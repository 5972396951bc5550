//! A client that many tasks ask at once.
//!
//! ```no_run
//! use tollbar_proto::client::{Client, FailurePolicy};
//! use tollbar_proto::v1::CheckRequest;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("http://127.0.0.1:8081")?;
//! let request = CheckRequest {
//!     path: "/v1/users".to_owned(),
//!     attributes: [("user".to_owned(), "42".to_owned())].into(),
//!     ..CheckRequest::default()
//! };
//! let answer = client.check_or(request, FailurePolicy::Allow).await?;
//! if !answer.allowed {
//!     // 429, and `answer.retry_after` says when to come back.
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Checks of concurrent callers go over one stream, in batches that nobody waits for: what comes in while
//! a write is under way goes out with the next. Callers are bounded, and each waits for a bounded time.
//! When the daemon cannot be reached, callers are told at once; what to do with a request then is the
//! [`FailurePolicy`]'s business, or the caller's. A daemon that refuses the client is an error and no outage:
//! see [`ClientBuilder::on_fault`].
//!
//! It is no limiter: it keeps no counters and no answers.

mod backoff;
mod builder;
mod error;
mod queue;
mod session;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::v1::limiter_client::LimiterClient;
use crate::v1::{CheckRequest, CheckResponse};
use queue::RequestQueue;

pub use builder::{ClientBuilder, ConnectError};
pub use error::{CheckError, FailurePolicy};
pub use session::Bearer;

/// The calls of `tollbar.v1` one by one, as they are in the `.proto`.
pub type Calls = LimiterClient<InterceptedService<Channel, Bearer>>;

/// Asks a daemon whether requests may pass. Clones share one connection.
#[derive(Debug, Clone)]
pub struct Client {
    session: Arc<SessionHandle>,
    calls: Calls,
}

/// Shared by all clones; the last of them ends the session.
#[derive(Debug)]
struct SessionHandle {
    queue: Arc<RequestQueue>,
    deadline: Duration,
}

impl Client {
    /// A client of the daemon at `uri`, such as `http://127.0.0.1:8081` or `unix:/run/tollbar.sock`. It
    /// connects in the background, so the daemon need not be there yet. To be called within a runtime
    /// of tokio.
    pub fn connect(uri: impl Into<String>) -> Result<Self, ConnectError> {
        Self::builder(uri).connect()
    }

    /// A client with other settings.
    pub fn builder(uri: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(uri.into())
    }

    /// May the request pass? Charged if so.
    ///
    /// Whoever drops the future before it was sent has charged nothing; after that, the charge stands.
    pub async fn check(&self, request: CheckRequest) -> Result<CheckResponse, CheckError> {
        let answer = self.session.queue.join(request)?;
        match timeout(self.session.deadline, answer).await {
            Ok(Ok(answer)) => answer,
            // Whoever hands answers out has ended: with the runtime.
            Ok(Err(_)) => Err(CheckError::Lost { reason: "the client has ended".to_owned() }),
            Err(_) => Err(CheckError::Deadline { deadline: self.session.deadline }),
        }
    }

    /// Checks as [`check`](Self::check) does, and lets `policy` answer where the daemon gives no answer. What
    /// is no [outage](CheckError::is_outage) stays an error: a mistake in the request, a wrong token, and too
    /// many checks at once. None of them may be a way past the limits.
    pub async fn check_or(
        &self,
        request: CheckRequest,
        policy: FailurePolicy,
    ) -> Result<CheckResponse, CheckError> {
        match self.check(request).await {
            Ok(answer) => Ok(answer),
            Err(error) => error.decide(policy),
        }
    }

    /// The other calls, over a connection of their own, made when it is first used.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.calls.clone()
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.queue.close();
    }
}
