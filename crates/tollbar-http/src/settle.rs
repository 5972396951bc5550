//! How requests are settled: what a request has spent, by how its response ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};

/// For how long requests can be settled, unless it is said otherwise. After that they have cost what
/// was reserved.
const RESERVE_FOR_DEFAULT: Duration = Duration::from_mins(10);

type SpentOf = dyn Fn(&ResponseEnd) -> u64 + Send + Sync;

/// How requests are settled: what they have spent, by how they ended. Charged before they are served
/// is what the layer's cost function says.
///
/// ```
/// use tollbar_http::Settle;
/// // What the server got wrong costs nothing.
/// let settle = Settle::by(|ending| match ending.status() {
///     Some(status) if status.is_server_error() => 0,
///     _ => ending.reserved(),
/// });
/// # let _ = settle;
/// ```
#[derive(Clone)]
pub struct Settle {
    pub(crate) spent: Arc<SpentOf>,
    pub(crate) cost_header: Option<HeaderName>,
    pub(crate) reserve_for: Duration,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseEnd {
    pub(crate) reserved: u64,
    pub(crate) status: Option<StatusCode>,
    pub(crate) reported_cost: Option<u64>,
    pub(crate) body_bytes: u64,
    pub(crate) is_complete: bool,
}

impl Settle {
    /// By what `spent` makes of the ending, in the layer's own costs, before rules multiply them.
    ///
    /// Think of clients that disconnect as soon as the work is done: what costs nothing without
    /// a [status](ResponseEnd::status), or without a [complete](ResponseEnd::is_complete) body, is free for
    /// them.
    #[must_use]
    pub fn by(spent: impl Fn(&ResponseEnd) -> u64 + Send + Sync + 'static) -> Self {
        Self { spent: Arc::new(spent), cost_header: None, reserve_for: RESERVE_FOR_DEFAULT }
    }

    /// Responses with a status of which `is_free` is true cost nothing, all others, and those that
    /// nobody waited for, what was reserved.
    #[must_use]
    pub fn free_by_status(is_free: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        Self::by(move |ending| match ending.status {
            Some(status) if is_free(status) => 0,
            _ => ending.reserved,
        })
    }

    /// By a header that the service sets, a whole number; it is taken out of the response. Without
    /// it: what was reserved.
    #[must_use]
    pub fn by_header(name: HeaderName) -> Self {
        let settle = Self::by(|ending| ending.reported_cost.unwrap_or(ending.reserved));
        Self { cost_header: Some(name), ..settle }
    }

    /// By the bytes of the response's body that were sent: one for every `bytes`, rounded up, and at
    /// least one. Before there is a response: what was reserved.
    #[must_use]
    pub fn by_body_bytes(bytes: u64) -> Self {
        Self::by(move |ending| match ending.status {
            Some(_) => ending.body_bytes.div_ceil(bytes.max(1)).max(1),
            None => ending.reserved,
        })
    }

    /// For how long a request can be settled: ten minutes, unless this says otherwise. After that it
    /// has cost what was reserved.
    #[must_use]
    pub fn within(self, reserve_for: Duration) -> Self {
        Self { reserve_for, ..self }
    }

    pub(crate) fn reserve_for(&self) -> Duration {
        self.reserve_for
    }
}

impl ResponseEnd {
    /// What was charged in advance.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The response's status. `None` where there was none: the client has disconnected before, or
    /// the service has failed.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// What the service has said that it costs, in the header of [`Settle::by_header`].
    #[must_use]
    pub fn reported_cost(&self) -> Option<u64> {
        self.reported_cost
    }

    /// How much of the response's body was handed to the server.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// True where that was all of it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settle")
            .field("cost_header", &self.cost_header)
            .field("reserve_for", &self.reserve_for)
            .finish_non_exhaustive()
    }
}
