//! What all services made by a layer share: its engine and options, and how many requests wait.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response};
use tollbar::Timestamp;
use tollbar_rules::{AsyncEngine, Criticality, TokenError, Verdict};

use crate::{Denial, HeaderStyle, Identity, QueueWaiters, RetryJitter, Settle};

type CostOf = dyn Fn(&Parts) -> u64 + Send + Sync;
type CriticalityOf = dyn Fn(&Parts) -> Criticality + Send + Sync;
type SkipPredicate = dyn Fn(&Parts) -> bool + Send + Sync;
type OnDecision = dyn Fn(DecisionReport<'_>) + Send + Sync;
type OnInvalidRequest = dyn Fn(&(dyn Error + 'static)) + Send + Sync;
type OnHoldError = dyn Fn(&TokenError) + Send + Sync;
type DenialResponse = dyn Fn(&Denial<'_>, &Parts) -> Response<Bytes> + Send + Sync;

/// A request that passes or is turned away, for [`TollbarLayerBuilder::on_decision`](crate::TollbarLayerBuilder).
#[derive(Debug)]
#[non_exhaustive]
pub struct DecisionReport<'a> {
    /// The request, as the rules see it.
    pub request: &'a tollbar_rules::Request<'a>,
    /// What the rules say.
    pub verdict: &'a Verdict,
    /// When it came, by the engine's clock.
    pub began: Timestamp,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// The headers of the response to a request that is turned away, to be added to.
    pub response_headers: Option<&'a mut HeaderMap>,
}

/// What all services share.
pub(crate) struct LayerState {
    pub(crate) engine: Arc<AsyncEngine>,
    pub(crate) identity: Identity,
    pub(crate) style: HeaderStyle,
    pub(crate) jitter: RetryJitter,
    pub(crate) cost: Option<Box<CostOf>>,
    pub(crate) criticality: Option<Box<CriticalityOf>>,
    pub(crate) skip: Option<Box<SkipPredicate>>,
    pub(crate) denial_response: Option<Box<DenialResponse>>,
    pub(crate) on_decision: Option<Box<OnDecision>>,
    pub(crate) on_invalid_request: Option<Box<OnInvalidRequest>>,
    pub(crate) on_hold_error: Option<Box<OnHoldError>>,
    /// The longest that one request waits; zero where denied requests are turned away.
    pub(crate) max_wait: Duration,
    pub(crate) max_waiters: usize,
    /// The requests that wait in queues.
    pub(crate) queue_waiters: Arc<QueueWaiters>,
    pub(crate) settle: Option<Settle>,
    pub(crate) waiting: AtomicUsize,
}

/// A request's place among those that wait.
pub(crate) struct Waiter<'s>(&'s AtomicUsize);

impl LayerState {
    /// Adds a request to those that wait; `None` if there are too many.
    pub(crate) fn add_waiter(&self) -> Option<Waiter<'_>> {
        // Taken first and looked at then: two who come at once do not both take the last one.
        let waiter = Waiter(&self.waiting);
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        (before < self.max_waiters).then_some(waiter)
    }

    /// Reports why what a request holds was not renewed, settled or given back.
    pub(crate) fn report<T>(&self, result: &Result<T, TokenError>) {
        if let (Some(on_error), Err(error)) = (&self.on_hold_error, result) {
            on_error(error);
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
