//! Keeps what a request holds for as long as the request lasts, and settles or releases it then, however it ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use http::Response;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tollbar::StoreError;
use tollbar_rules::{Hold, TokenError};

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
        let renewing = hold.lease_ttl().and_then(|ttl| keep_renewed(ttl, &shared, &hold));
        Self { shared, hold, ending, renewing }
    }

    /// There is a response.
    pub(crate) fn responded<B>(&mut self, response: &mut Response<B>) {
        self.ending.status = Some(response.status());
        let settle = self.shared.settle.as_ref();
        if let Some(name) = settle.and_then(|settle| settle.cost_header.as_ref()) {
            let told = response.headers_mut().remove(name);
            self.ending.reported_cost =
                told.and_then(|value| value.to_str().ok()?.trim().parse().ok());
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

/// Renews leases, each time when a third of their time is over, until the request ends.
fn keep_renewed(ttl: Duration, shared: &Arc<LayerState>, hold: &Arc<Hold>) -> Option<AbortHandle> {
    let Ok(runtime) = Handle::try_current() else {
        shared.report(&Err::<(), _>(TokenError::NoRuntime));
        return None;
    };
    let (shared, hold) = (Arc::clone(shared), Arc::clone(hold));
    #[expect(clippy::disallowed_methods, reason = "after a panic the lease ends by itself")]
    let task = runtime.spawn(async move {
        loop {
            tokio::time::sleep(ttl / 3).await;
            if let Err(source) = renew(ttl, &shared, &hold).await {
                // The request goes on: what it has begun is not undone by cutting it off, and a client
                // that is cut off sends it again. But it is counted.
                return shared.report(&Err::<(), _>(TokenError::LeaseEnded { source }));
            }
        }
    });
    Some(task.abort_handle())
}

/// How often a renewal that fails is tried again: every twelfth of the lease, until it has ended.
const RETRIES_MAX: u32 = 8;

/// Renews leases of which two thirds of their time are left. Returns why they have ended, if they have.
async fn renew(ttl: Duration, shared: &LayerState, hold: &Hold) -> Result<(), Option<StoreError>> {
    let mut retries = 0;
    loop {
        match shared.engine.renew(hold).await {
            Ok(Some(_)) => return Ok(()),
            Err(TokenError::Store(_)) if retries < RETRIES_MAX => {
                retries += 1;
                tokio::time::sleep(ttl / 12).await;
            }
            Err(TokenError::Store(error)) => return Err(Some(error)),
            Ok(None) | Err(_) => return Err(None),
        }
    }
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
            #[expect(
                clippy::let_underscore_must_use,
                reason = "the first poll sends it off; nobody waits for the answer"
            )]
            let _ = pin!(end).poll(&mut Context::from_waker(Waker::noop()));
        } else if let Ok(runtime) = Handle::try_current() {
            #[expect(
                clippy::disallowed_methods,
                reason = "after a panic the charge stays and leases end"
            )]
            runtime.spawn(end);
        } else {
            self.shared.report(&Err::<(), _>(TokenError::NoRuntime));
        }
    }
}
