//! The layer and its options.

mod per_client;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tollbar_rules::{AsyncEngine, Criticality, TokenError};
use tower_layer::Layer;

use crate::layer_state::{DecisionReport, LayerState};
use crate::{Denial, HeaderStyle, Identity, QueueWaiters, RetryJitter, Settle, TollbarService};

pub use per_client::PerClientError;

/// Puts rules in front of a service.
///
/// ```
/// use tollbar_http::TollbarLayer;
/// use tollbar_rules::{Engine, RuleFile};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = RuleFile::parse("rules.yaml", "rules: [{ name: per_client, limit: 10/s }]")?.rules;
/// let layer = TollbarLayer::new(Engine::new(rules));
/// # let _ = layer;
/// # Ok(())
/// # }
/// ```
///
/// All clones of a layer, and all services made by them, count together.
#[derive(Clone)]
pub struct TollbarLayer {
    shared: Arc<LayerState>,
}

/// A [`TollbarLayer`] in the making.
pub struct TollbarLayerBuilder {
    shared: LayerState,
}

impl TollbarLayer {
    /// Clients by their address, or by what layers in front know; [headers](HeaderStyle::default) of both kinds; JSON
    /// for those who are turned away.
    #[must_use]
    pub fn new(engine: impl Into<Arc<AsyncEngine>>) -> Self {
        Self::builder(engine).build()
    }

    /// With other options.
    #[must_use]
    pub fn builder(engine: impl Into<Arc<AsyncEngine>>) -> TollbarLayerBuilder {
        TollbarLayerBuilder {
            shared: LayerState {
                engine: engine.into(),
                identity: Identity::new(),
                style: HeaderStyle::default(),
                jitter: RetryJitter::default(),
                cost: None,
                criticality: None,
                skip: None,
                denial_response: None,
                on_decision: None,
                on_invalid_request: None,
                on_hold_error: None,
                max_wait: Duration::ZERO,
                max_waiters: 0,
                queue_waiters: Arc::default(),
                settle: None,
                waiting: AtomicUsize::new(0),
            },
        }
    }

    /// The engine, whose rules can be [replaced](AsyncEngine::replace) at any time.
    #[must_use]
    pub fn engine(&self) -> &Arc<AsyncEngine> {
        &self.shared.engine
    }
}

impl<S> Layer<S> for TollbarLayer {
    type Service = TollbarService<S>;

    fn layer(&self, inner: S) -> TollbarService<S> {
        TollbarService::new(inner, Arc::clone(&self.shared))
    }
}

impl TollbarLayerBuilder {
    /// Who asks.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.shared.identity = identity;
        self
    }

    /// Which headers responses have.
    #[must_use]
    pub fn headers(mut self, style: HeaderStyle) -> Self {
        self.shared.style = style;
        self
    }

    /// Lengthens what clients are told to wait, each by another amount, so that not all come back at once. By default
    /// only those are that wait for a [window that ends for all at once](RetryJitter::Aligned); a `Duration` is the
    /// most that is added to any wait.
    #[must_use]
    pub fn retry_jitter(mut self, jitter: impl Into<RetryJitter>) -> Self {
        self.shared.jitter = jitter.into();
        self
    }

    /// What a request costs before rules multiply it: 1, unless this says otherwise. 0 is let through
    /// and told what remains.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.shared.cost = Some(Box::new(cost));
        self
    }

    /// How critical a request is, whatever the rules say: for reserves, and for rules that shed while their store is
    /// down.
    #[must_use]
    pub fn criticality(
        mut self,
        criticality: impl Fn(&Parts) -> Criticality + Send + Sync + 'static,
    ) -> Self {
        self.shared.criticality = Some(Box::new(criticality));
        self
    }

    /// Requests that are not looked at.
    #[must_use]
    pub fn skip(mut self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.shared.skip = Some(Box::new(skip));
        self
    }

    /// What a request that does not pass is answered with. Headers about limits are added.
    ///
    /// ```
    /// # use tollbar_http::TollbarLayer;
    /// # use tollbar_rules::{Engine, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rules = RuleFile::parse("rules.yaml", "rules: [{ name: a, limit: 10/s }]")?.rules;
    /// let layer = TollbarLayer::builder(Engine::new(rules)).denial_response(|denial, _request| {
    ///     let mut response = http::Response::new("<h1>Slow down</h1>".into());
    ///     *response.status_mut() = denial.status();
    ///     response
    /// });
    /// # let _ = layer.build();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn denial_response(
        mut self,
        denial_response: impl Fn(&Denial<'_>, &Parts) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.shared.denial_response = Some(Box::new(denial_response));
        self
    }

    /// Reports every request that passes or is turned away to `on_decision`, once, before that happens: to keep
    /// accounts, for example with [`Verdict::meter`](tollbar_rules::Verdict::meter). It is on the way of requests,
    /// and should be quick.
    #[must_use]
    pub fn on_decision(
        mut self,
        on_decision: impl Fn(DecisionReport<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.shared.on_decision = Some(Box::new(on_decision));
        self
    }

    /// Is called with the error if the rules cannot look at a request: its path is too long, for example. The client is
    /// answered 400 or 414, and nothing is charged.
    #[must_use]
    pub fn on_invalid_request(
        mut self,
        on_error: impl Fn(&(dyn Error + 'static)) + Send + Sync + 'static,
    ) -> Self {
        self.shared.on_invalid_request = Some(Box::new(on_error));
        self
    }

    /// Lets denied requests wait until they pass, each for at most `max_wait` all in all and at most
    /// `max_waiters` of them at once. All others are turned away, as every denied request is without this.
    /// Waiting needs tokio's timer.
    #[must_use]
    pub fn wait(mut self, max_wait: Duration, max_waiters: usize) -> Self {
        (self.shared.max_wait, self.shared.max_waiters) = (max_wait, max_waiters);
        self
    }

    /// Bounds the requests that wait for their turn in a queue. By default each waits for at most 10 seconds, and 256
    /// at once under one rule for one tenant; all others are denied and charge nothing.
    #[must_use]
    pub fn queue_waiters(mut self, queue_waiters: Arc<QueueWaiters>) -> Self {
        self.shared.queue_waiters = queue_waiters;
        self
    }

    /// Is called with the error if permits or a reservation could not be renewed, settled or given back. The
    /// client is not affected: a reservation stays charged as a whole, and permits come back when their
    /// leases end.
    ///
    /// A renewal that fails is tried again until the lease ends. If none gets through, the request goes on
    /// without its permit, and this is called once with [`TokenError::LeaseEnded`]: more than the limit may be
    /// in flight.
    ///
    /// ```
    /// # use tollbar_http::TollbarLayer;
    /// # use tollbar_rules::{Engine, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rules = RuleFile::parse("rules.yaml", "rules: [{ name: a, limit: 10/s }]")?.rules;
    /// let layer = TollbarLayer::builder(Engine::new(rules))
    ///     .on_hold_error(|error| eprintln!("not settled: {error}"));
    /// # let _ = layer.build();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_hold_error(mut self, on_error: impl Fn(&TokenError) + Send + Sync + 'static) -> Self {
        self.shared.on_hold_error = Some(Box::new(on_error));
        self
    }

    /// Charges requests in advance and settles them when they are over.
    #[must_use]
    pub fn settle(mut self, settle: Settle) -> Self {
        self.shared.settle = Some(settle);
        self
    }

    /// The layer.
    #[must_use]
    pub fn build(self) -> TollbarLayer {
        TollbarLayer { shared: Arc::new(self.shared) }
    }
}

impl fmt::Debug for TollbarLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TollbarLayer")
            .field("engine", &self.shared.engine)
            .field("identity", &self.shared.identity)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TollbarLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TollbarLayerBuilder(..)")
    }
}
