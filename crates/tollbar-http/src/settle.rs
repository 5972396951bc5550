//! What a request came to, once it is over, however it ends.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use http::{HeaderName, Response, StatusCode};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tollbar_rules::Hold;

use crate::layer::Shared;

/// For how long requests can be settled, unless it is said otherwise. After that they have cost what
/// was reserved.
const RESERVE_FOR_DEFAULT: Duration = Duration::from_mins(10);

type Spent = dyn Fn(&ResponseEnd) -> u64 + Send + Sync;

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
    spent: Arc<Spent>,
    cost_header: Option<HeaderName>,
    reserve_for: Duration,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseEnd {
    reserved: u64,
    status: Option<StatusCode>,
    reported_cost: Option<u64>,
    body_bytes: u64,
    is_complete: bool,
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

/// What a request holds. It ends when this is dropped: when the response's body has ended, or when the
/// request is given up.
pub(crate) struct Held {
    shared: Arc<Shared>,
    hold: Arc<Hold>,
    ending: ResponseEnd,
    /// Renews leases while the request lasts.
    renewing: Option<AbortHandle>,
}

impl Held {
    /// Of a request whose cost was `reserved`.
    pub(crate) fn new(shared: Arc<Shared>, hold: Hold, reserved: u64) -> Self {
        let ending = ResponseEnd {
            reserved,
            status: None,
            reported_cost: None,
            body_bytes: 0,
            is_complete: false,
        };
        let hold = Arc::new(hold);
        let renewing = hold.lease_ttl().and_then(|ttl| renew_every(ttl / 3, &shared, &hold));
        Self { shared, hold, ending, renewing }
    }

    /// There is a response.
    pub(crate) fn responded<B>(&mut self, response: &mut Response<B>) {
        self.ending.status = Some(response.status());
        let settle = self.shared.settle.as_ref();
        if let Some(name) = settle.and_then(|it| it.cost_header.as_ref()) {
            let told = response.headers_mut().remove(name);
            self.ending.reported_cost = told.and_then(|it| it.to_str().ok()?.trim().parse().ok());
        }
    }

    pub(crate) fn sent(&mut self, bytes: u64) {
        self.ending.body_bytes = self.ending.body_bytes.saturating_add(bytes);
    }

    pub(crate) fn completed(&mut self) {
        self.ending.is_complete = true;
    }

    fn spent(&self) -> u64 {
        let Some(settle) = &self.shared.settle else {
            return self.ending.reserved;
        };
        // We may be here because something panics already; a second panic would end the process.
        catch_unwind(AssertUnwindSafe(|| (settle.spent)(&self.ending)))
            .unwrap_or(self.ending.reserved)
    }
}

/// Renews leases, each time when a third of their time is over: should one attempt fail, there is
/// another. Ends when the request does.
fn renew_every(period: Duration, shared: &Arc<Shared>, hold: &Arc<Hold>) -> Option<AbortHandle> {
    let runtime = Handle::try_current().ok()?;
    let (shared, hold) = (Arc::clone(shared), Arc::clone(hold));
    let task = runtime.spawn(async move {
        loop {
            tokio::time::sleep(period).await;
            // A renewal that fails is tried again next time; without any, the lease ends by itself.
            shared.report(&shared.engine.renew(&hold).await);
        }
    });
    Some(task.abort_handle())
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(renewing) = self.renewing.take() {
            renewing.abort();
        }
        let spent = self.spent();
        let (shared, hold) = (Arc::clone(&self.shared), Arc::clone(&self.hold));
        let answers_at_once = shared.engine.answers_at_once();
        // If the store cannot be reached, what was reserved stays charged, and leases end by
        // themselves: the safe side.
        let end = async move {
            if hold.is_reservation() {
                shared.report(&shared.engine.settle(&hold, Some(spent)).await);
            } else {
                shared.report(&shared.engine.release(&hold).await);
            }
        };
        if answers_at_once {
            let _ = pin!(end).poll(&mut Context::from_waker(Waker::noop()));
        } else if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(end);
        }
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
