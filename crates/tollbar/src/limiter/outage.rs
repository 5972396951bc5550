//! What to answer while the store cannot.

use std::sync::Arc;

use crate::charge::Marks;
use crate::store::alternative::mark_unused;
use crate::store::{Batch, Entry, Store, StoreError};
use crate::{Decision, Degraded, MemoryStore, Outcome, Policy};

/// What happens to requests during an [outage](crate::StoreError::is_outage) of the store.
///
/// The answer is marked [`degraded`](Decision::degraded). A cost above the policy's
/// [capacity](Policy::capacity) never passes, whatever this says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OutagePolicy {
    /// Lets everything through: limiting is worth less than serving.
    #[default]
    Allow,
    /// Denies everything for a second: passing is worth less than limiting.
    Deny,
    /// Counts in this process, against one node's share of each limit.
    Local {
        /// How many nodes share the limits.
        nodes: u64,
    },
    /// Returns the store's error.
    Error,
}

/// How long a client that was denied unseen is told to wait.
const RETRY_AFTER_US: u64 = 1_000_000;

/// Keys that the store in this process has room for while the real one cannot answer.
const LOCAL_KEYS_MAX: usize = 100_000;

/// An outage policy, and the counters it needs.
#[derive(Debug)]
pub(crate) struct Outage {
    policy: OutagePolicy,
    local: Option<Arc<MemoryStore>>,
}

/// A store, and what answers while it cannot: how limiters of every kind ask.
#[derive(Clone, Copy)]
pub(crate) struct StoreRef<'a> {
    pub(crate) store: &'a dyn Store,
    /// `None` for a store in this process, which has no outages.
    pub(crate) outage: Option<&'a Outage>,
}

impl<'a> StoreRef<'a> {
    /// Decides one request under several limits, all or none.
    pub(crate) async fn decide(
        self,
        marks: Marks<'_>,
        entries: &mut [Entry<'_>],
    ) -> Result<(), StoreError> {
        match (self.store.decide(marks.batch(entries)).await, self.outage) {
            (Err(error), Some(outage)) => outage.decide(error, entries),
            (answer, _) => answer,
        }
    }

    /// Decides one request under one limit, and leaves the decision in an entry.
    pub(crate) async fn ask(
        self,
        key: &'a [u8],
        policy: &'a Policy,
        cost: u64,
    ) -> Result<Entry<'a>, StoreError> {
        let mut entries = [Entry::new(key, policy).with_cost(cost)];
        self.decide(Marks::default(), &mut entries).await?;
        let [entry] = entries;
        Ok(entry)
    }
}

impl Outage {
    pub(crate) fn new(policy: OutagePolicy) -> Self {
        let is_local = matches!(policy, OutagePolicy::Local { .. });
        let local =
            is_local.then(|| Arc::new(MemoryStore::builder().max_keys(LOCAL_KEYS_MAX).build()));
        Self { policy, local }
    }

    /// The counters of this process, where the policy has any.
    pub(crate) fn local(&self) -> Option<Arc<dyn Store>> {
        self.local.clone().map(|local| local as Arc<dyn Store>)
    }

    /// Answers one request that the store did not answer because of `error`.
    #[cold]
    pub(crate) fn decide_one(
        &self,
        error: StoreError,
        key: &[u8],
        policy: &Policy,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let mut entries = [Entry::new(key, policy).with_cost(cost)];
        self.decide(error, &mut entries)?;
        Ok(entries[0].decision.unwrap_or(Decision::UNDECIDED))
    }

    /// Answers one request under several limits, all or none. A mistake stays an error.
    #[cold]
    pub(crate) fn decide(
        &self,
        error: StoreError,
        entries: &mut [Entry<'_>],
    ) -> Result<(), StoreError> {
        if !error.is_outage() || self.policy == OutagePolicy::Error {
            return Err(error);
        }
        // An alternative that can never pass leaves the others.
        let never_passes = |entry: &Entry<'_>| is_too_much(entry) && entry.alternative.is_none();
        if let (OutagePolicy::Local { nodes }, Some(local)) = (self.policy, &self.local)
            && !entries.iter().any(never_passes)
        {
            return decide_locally(local, nodes, entries);
        }
        for entry in &mut *entries {
            let (outcome, how) = match self.policy {
                _ if is_too_much(entry) => (Outcome::Never, Degraded::Denied),
                OutagePolicy::Allow => (Outcome::Allow, Degraded::Allowed),
                OutagePolicy::Deny | OutagePolicy::Local { .. } | OutagePolicy::Error => {
                    (Outcome::Deny { retry_after_us: RETRY_AFTER_US }, Degraded::Denied)
                }
            };
            entry.decision = Some(Decision::uncounted(outcome, entry.policy.limit(), how));
        }
        mark_unused(entries);
        Ok(())
    }
}

fn is_too_much(entry: &Entry<'_>) -> bool {
    entry.cost > entry.policy.capacity()
}

/// Counts each entry against its node's share.
fn decide_locally(
    local: &MemoryStore,
    nodes: u64,
    entries: &mut [Entry<'_>],
) -> Result<(), StoreError> {
    let shares: Vec<Policy> = entries.iter().map(|entry| entry.policy.share(nodes)).collect();
    let mut local_entries: Vec<Entry<'_>> = Vec::with_capacity(entries.len());
    for (entry, share) in entries.iter().zip(&shares) {
        // A cost that fits the whole limit fits a fresh share. Permits are counted one by one, so that
        // as many come back as were taken.
        let is_cut = !share.has_permits() && !is_too_much(entry);
        let cost = if is_cut { entry.cost.min(share.capacity()) } else { entry.cost };
        local_entries.push(Entry { policy: share, cost, decision: None, ..entry.clone() });
    }
    local.decide(Batch::all_or_none(&mut local_entries)).wait()?;
    for (entry, counted) in entries.iter_mut().zip(&local_entries) {
        (entry.stamp, entry.is_unused) = (counted.stamp, counted.is_unused);
        entry.decision =
            counted.decision.map(|decision| decision.into_degraded(Degraded::Fallback));
    }
    Ok(())
}
