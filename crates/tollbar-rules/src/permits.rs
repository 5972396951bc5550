//! Permits that a verdict holds: what is in flight must come back.
//!
//! A limit on concurrency is not spent but held, from the verdict on until somebody says that the
//! request is done. A verdict that is forgotten holds its permits until their lease ends, or for
//! ever where there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollbar::store::block_on;
use tollbar::{Entry, Policy, Timestamp};

use crate::{Engine, Verdict};

/// The permits of one request. Clones of a verdict share them, and they come back once.
#[derive(Debug)]
pub(crate) struct Permits {
    pub(crate) held: Vec<Held>,
    is_released: AtomicBool,
}

/// The permits of one limit.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) policy: Policy,
    pub(crate) key: Box<[u8]>,
    pub(crate) stamp: u64,
    pub(crate) cost: u64,
    /// When it was granted, by the store's clock.
    pub(crate) granted_at: Timestamp,
    /// Counted in this process, because the store could not answer.
    pub(crate) is_local: bool,
}

/// True for what is held and not spent.
pub(crate) fn is_held(policy: &Policy) -> bool {
    // Nothing else has no window.
    policy.window().is_zero()
}

/// True for permits that nobody takes back from whoever has forgotten them.
pub(crate) fn is_unleased(policy: &Policy) -> bool {
    is_held(policy) && policy.lease_ttl().is_none()
}

impl Held {
    /// What an entry that was charged holds, if it holds anything.
    pub(crate) fn of(entry: &Entry<'_>, is_local: bool) -> Option<Self> {
        let decision = entry.decision().filter(|it| entry.cost() > 0 && it.is_allowed())?;
        is_held(entry.policy()).then(|| Self {
            policy: entry.policy().clone(),
            key: entry.key().into(),
            stamp: entry.stamp(),
            cost: entry.cost(),
            // A decision about permits resets at the present.
            granted_at: decision.reset_at(),
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
        block_on(self.release_async(verdict))
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
        block_on(self.renew_async(verdict))
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
