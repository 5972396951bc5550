//! Bounds the requests that wait for their turn in a queue: how long each waits, and how many wait at once under one rule
//! for one tenant.
//!
//! A request is first checked without a wait. If it is denied because it would have to wait, it enters here and is
//! checked again. So a request that finds no place has charged nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollbar::Outcome;
use tollbar_rules::{Enforcement, Request, Verdict};

/// A rule and the tenant of a request, which may be empty.
type RuleAndTenant = (Box<str>, Box<str>);

/// The requests that wait in queues. Listeners of one process share it.
pub struct QueueWaiters {
    max_wait: Duration,
    count_max: usize,
    /// How many wait, by rule and tenant. A pair that nobody waits under has no entry, so there are no more entries
    /// than requests that wait.
    counts: Mutex<HashMap<RuleAndTenant, usize>>,
    refusals: AtomicU64,
}

/// The place of one request that waits. It is free again when this is dropped, also because the client hung up.
#[must_use = "the place is free again when this is dropped"]
pub struct QueuePlace {
    waiters: Arc<QueueWaiters>,
    key: RuleAndTenant,
}

impl QueueWaiters {
    /// How long a request waits by default.
    pub const MAX_WAIT_DEFAULT: Duration = Duration::from_secs(10);

    /// How many requests wait by default, under one rule for one tenant.
    pub const COUNT_MAX_DEFAULT: usize = 256;

    /// Lets each request wait for at most `max_wait`, and `count_max` of them at once under one rule for one tenant.
    #[must_use]
    pub fn new(max_wait: Duration, count_max: usize) -> Self {
        Self { max_wait, count_max, counts: Mutex::default(), refusals: AtomicU64::new(0) }
    }

    /// The longest that a request waits.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        self.max_wait
    }

    /// Gives a place to a request that was denied because it may not wait. `None` if that is not why, or if too many
    /// wait already.
    pub fn enter(self: &Arc<Self>, verdict: &Verdict, request: &Request<'_>) -> Option<QueuePlace> {
        if verdict.is_allowed() {
            return None;
        }
        let mut decisions = verdict.decisions();
        let queue = decisions.find(|limit| {
            limit.enforcement() == Enforcement::Live
                && limit.denies()
                && matches!(limit.decision().outcome(), Outcome::Deny { .. })
                && limit.limit().policy().queue_length().is_some()
        })?;
        let tenant = request.attribute("tenant").unwrap_or_default();
        let key = (Box::from(&*queue.rule().name), Box::from(tenant));
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(&key).copied().unwrap_or_default();
        if count >= self.count_max {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        counts.insert(key.clone(), count + 1);
        Some(QueuePlace { waiters: Arc::clone(self), key })
    }

    /// How many requests wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    /// How many requests were denied because too many others waited.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }
}

impl Default for QueueWaiters {
    fn default() -> Self {
        Self::new(Self::MAX_WAIT_DEFAULT, Self::COUNT_MAX_DEFAULT)
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut counts = self.waiters.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(&self.key) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.key)),
        }
    }
}

impl fmt::Debug for QueueWaiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueWaiters").field("count", &self.count()).finish_non_exhaustive()
    }
}

impl fmt::Debug for QueuePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePlace").field("key", &self.key).finish_non_exhaustive()
    }
}
