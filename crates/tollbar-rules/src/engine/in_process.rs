//! The engine over counters in this process: what it is asked it answers at once.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollbar::Timestamp;

use super::hold::{Hold, RuleSettlement, TokenError};
use super::{Admission, AsyncEngine, EngineBuilder};
use crate::{Diff, Request, RuleSet, Verdict};

/// Checks requests against rules, over counters in this process. No method blocks. Clones are handles of
/// one engine.
///
/// ```
/// use tollbar_rules::{Engine, Request, RuleFile};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = RuleFile::parse("rules.yaml", "rules: [{ name: per_client, limit: 2/min }]")?;
/// let engine = Engine::new(file.rules);
///
/// let request = Request::new("GET", "/v1/users")?.with_attributes(&[("ip", "203.0.113.7")])?;
/// assert!(engine.check(&request).is_allowed() && engine.check(&request).is_allowed());
/// let verdict = engine.check(&request);
/// assert!(!verdict.is_allowed() && verdict.retry_after().is_some());
/// assert_eq!(&*verdict.rule().unwrap().name, "per_client");
/// # Ok(())
/// # }
/// ```
///
/// All rules that match apply, and a request pays all of their limits or none.
///
/// It dereferences to an [`AsyncEngine`], which has the methods that ask no store, such as
/// [`rules`](AsyncEngine::rules), [`token`](AsyncEngine::token) and [`tallies`](AsyncEngine::tallies).
#[derive(Debug, Clone)]
pub struct Engine {
    /// Over a memory store.
    inner: Arc<AsyncEngine>,
}

/// Returns what a future over a memory store comes to.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a memory store answers at once"),
    }
}

impl Engine {
    /// Returns an engine with a memory store of its own, for a million keys.
    #[must_use]
    pub fn new(rules: RuleSet) -> Self {
        Self::builder(rules).build()
    }

    /// Returns a builder, for another clock or a memory store that is shared.
    #[must_use]
    pub fn builder(rules: RuleSet) -> EngineBuilder {
        EngineBuilder::with_store(rules, None)
    }

    /// Wraps an engine over a memory store.
    pub(super) fn over_memory(engine: AsyncEngine) -> Self {
        debug_assert!(engine.answers_at_once(), "an engine in this process has a memory store");
        Self { inner: Arc::new(engine) }
    }

    /// Puts other rules in force, whole. See [`AsyncEngine::replace`]; a memory store counts all rules.
    #[expect(
        clippy::must_use_candidate,
        reason = "the rules are in force whether or not the diff is read"
    )]
    pub fn replace(&self, rules: RuleSet) -> Diff {
        self.inner.put(rules)
    }

    /// Decides whether the request may pass, and charges it if so. See [`AsyncEngine::check`].
    #[must_use]
    pub fn check(&self, request: &Request<'_>) -> Verdict {
        let mut verdict = Verdict::undecided(self.inner.current.load());
        // Permits come back when their leases end.
        let _hold = self.inner.decide_now(request, None, &mut verdict);
        verdict
    }

    /// Decides whether the request may pass, charges it if so, and returns what it holds: permits and,
    /// if it is reserved for a time, its charge, which can be settled within that time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = RuleFile::parse("rules.yaml", "rules: [{ name: tokens, limit: 1000/min }]")?;
    /// let engine = Engine::new(file.rules);
    ///
    /// let request = Request::new("POST", "/v1/chat")?.with_attributes(&[("user", "42")])?;
    /// let admission = engine.admit(&request.clone().with_cost(300), Some(Duration::from_secs(60)));
    /// if let Some(hold) = admission.hold {
    ///     // As text it can be settled elsewhere: `engine.settle(&engine.resume(&text)?, Some(120))`.
    ///     let settlement = engine.settle(&hold, Some(120))?;
    ///     assert_eq!(settlement.limits[0].refunded, 180);
    /// }
    /// let left = engine.check(&request.with_cost(0)).binding().unwrap().decision().remaining();
    /// assert_eq!(left, Some(880));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A reservation that is not settled in time stays charged.
    pub fn admit(&self, request: &Request<'_>, reserve_for: Option<Duration>) -> Admission {
        let verdict = Verdict::undecided(self.inner.current.load());
        let mut admission = Admission { verdict, hold: None };
        admission.hold = self.inner.decide_now(request, reserve_for, &mut admission.verdict);
        admission
    }

    /// Settles a reservation. See [`AsyncEngine::settle`].
    pub fn settle(&self, hold: &Hold, spent: Option<u64>) -> Result<RuleSettlement, TokenError> {
        now(self.inner.settle(hold, spent))
    }

    /// Gives a whole reservation back. See [`AsyncEngine::cancel`].
    pub fn cancel(&self, hold: &Hold) -> Result<RuleSettlement, TokenError> {
        now(self.inner.cancel(hold))
    }

    /// Gives permits back: the request is done. Returns false if they were given back before, or their
    /// leases had ended.
    ///
    /// ```
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = "rules: [{ name: jobs, algorithm: concurrency, limit: 1, lease: 30s }]";
    /// let engine = Engine::new(RuleFile::parse("rules.yaml", text)?.rules);
    /// let request = Request::new("POST", "/jobs")?;
    ///
    /// if let Some(hold) = engine.admit(&request, None).hold {
    ///     assert!(!engine.check(&request).is_allowed());
    ///     assert!(engine.renew(&hold)?.is_some());
    ///     assert!(engine.release(&hold)?);
    /// }
    /// assert!(engine.check(&request).is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn release(&self, hold: &Hold) -> Result<bool, TokenError> {
        now(self.inner.release(hold))
    }

    /// Begins the leases of a hold anew: the request goes on. See [`AsyncEngine::renew`].
    pub fn renew(&self, hold: &Hold) -> Result<Option<Timestamp>, TokenError> {
        now(self.inner.renew(hold))
    }
}

impl Deref for Engine {
    type Target = AsyncEngine;

    fn deref(&self) -> &AsyncEngine {
        &self.inner
    }
}

impl From<Engine> for Arc<AsyncEngine> {
    fn from(engine: Engine) -> Self {
        engine.inner
    }
}

impl From<&Engine> for Arc<AsyncEngine> {
    fn from(engine: &Engine) -> Self {
        Self::clone(&engine.inner)
    }
}
