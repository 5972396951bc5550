//! Keeps what a request holds for as long as the request lasts, and settles or releases it then, however it ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use http::Response;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tollbar_rules::Hold;

use crate::ResponseEnd;
use crate::layer_state::LayerState;

/// What a request holds. It ends when this is dropped: when the response's body has ended, or when the
/// request is given up.
pub(crate) struct HoldGuard {
    shared: Arc<LayerState>,
    hold: Arc<Hold>,
    ending: ResponseEnd,
    /// Renews leases while the request lasts.
    renewing: Option<AbortHandle>,
}

impl HoldGuard {
    /// Of a request whose cost was `reserved`.
    pub(crate) fn new(shared: Arc<LayerState>, hold: Hold, reserved: u64) -> Self {
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
fn renew_every(
    period: Duration,
    shared: &Arc<LayerState>,
    hold: &Arc<Hold>,
) -> Option<AbortHandle> {
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

impl Drop for HoldGuard {
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
