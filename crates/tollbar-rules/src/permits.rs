//! Permits that a verdict holds: what is in flight must come back.
//!
//! A limit on concurrency is not spent but held, from the verdict on until somebody says that the
//! request is done. A verdict that is forgotten holds its permits until their lease ends, or for
//! ever where there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollbar::{Entry, Policy};

use crate::usage::blocking;
use crate::{Engine, UsageError, Verdict};

/// The permits of one request. Clones of a verdict share them, and they come back once.
#[derive(Debug)]
pub(crate) struct Permits {
    held: Vec<Held>,
    is_released: AtomicBool,
}

/// The permits of one limit.
#[derive(Debug)]
pub(crate) struct Held {
    policy: Policy,
    key: Box<[u8]>,
    stamp: u64,
    cost: u64,
    /// Counted in this process, because the store could not answer.
    is_local: bool,
}

/// True for what is held and not spent.
pub(crate) fn is_held(policy: &Policy) -> bool {
    // Nothing else has no window.
    policy.window().is_zero()
}

impl Held {
    /// What an entry that was charged holds, if it holds anything.
    pub(crate) fn of(entry: &Entry<'_>, is_local: bool) -> Option<Self> {
        let is_charged = entry.cost() > 0 && entry.decision().is_some_and(|it| it.is_allowed());
        (is_charged && is_held(entry.policy())).then(|| Self {
            policy: entry.policy().clone(),
            key: entry.key().into(),
            stamp: entry.stamp(),
            cost: entry.cost(),
            is_local,
        })
    }
}

impl Permits {
    /// `None` where nothing is held.
    pub(crate) fn of(held: Vec<Held>) -> Option<Arc<Self>> {
        if held.is_empty() {
            return None;
        }
        Some(Arc::new(Self { held, is_released: AtomicBool::new(false) }))
    }

    /// How long the shortest of their leases lasts; `None` where they have none.
    pub(crate) fn lease_ttl(&self) -> Option<Duration> {
        self.held.iter().filter_map(|held| held.policy.lease_ttl()).min()
    }
}

impl Verdict {
    /// True where the request holds permits, which [`Engine::release`] gives back.
    #[must_use]
    pub fn holds_permits(&self) -> bool {
        self.permits.as_ref().is_some_and(|it| !it.is_released.load(Ordering::Acquire))
    }
}

impl Engine {
    /// The request is done: gives back the permits that its verdict holds, once. False where there
    /// were none, or their leases had ended before.
    ///
    /// ```
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = "rules: [{ name: busy, algorithm: concurrency, limit: 1, lease: 30s }]";
    /// let engine = Engine::new(RuleFile::parse("rules.yaml", text)?.rules);
    /// let request = Request::new("GET", "/slow")?;
    ///
    /// let verdict = engine.check(&request);
    /// assert!(verdict.is_allowed() && !engine.check(&request).is_allowed());
    /// assert!(engine.release(&verdict));
    /// assert!(engine.check(&request).is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn release(&self, verdict: &Verdict) -> bool {
        let released: Result<bool, UsageError> =
            blocking(async { Ok(Ok(self.release_async(verdict).await)) });
        released.unwrap_or(false)
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn release_async(&self, verdict: &Verdict) -> bool {
        match &verdict.permits {
            Some(permits) => self.release_permits(permits).await,
            None => false,
        }
    }

    pub(crate) async fn release_permits(&self, permits: &Permits) -> bool {
        if permits.is_released.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut returned = 0;
        for held in &permits.held {
            let store = self.store_of(held.is_local);
            let answer = store.refund(&held.key, &held.policy, held.stamp, held.cost).await;
            // A store that cannot be reached gives them back itself when the lease ends.
            returned += answer.unwrap_or(0);
        }
        returned > 0
    }

    /// The request goes on: its leases begin anew. False where one has ended, or there are none.
    pub fn renew(&self, verdict: &Verdict) -> bool {
        let renewed: Result<bool, UsageError> =
            blocking(async { Ok(Ok(self.renew_async(verdict).await)) });
        renewed.unwrap_or(false)
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn renew_async(&self, verdict: &Verdict) -> bool {
        match &verdict.permits {
            Some(permits) => self.renew_permits(permits).await,
            None => false,
        }
    }

    pub(crate) async fn renew_permits(&self, permits: &Permits) -> bool {
        if permits.is_released.load(Ordering::Acquire) {
            return false;
        }
        let mut is_renewed = true;
        for held in &permits.held {
            let store = self.store_of(held.is_local);
            let answer = store.renew(&held.key, &held.policy, held.stamp).await;
            is_renewed &= matches!(answer, Ok(Some(_)));
        }
        is_renewed
    }
}
