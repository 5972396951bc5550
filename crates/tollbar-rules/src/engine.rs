//! The engine: a request in, a verdict out, over any store.

pub(crate) mod ahead;
mod alone;
mod failing;
pub(crate) mod holding;
pub(crate) mod leasing;
mod once;
pub(crate) mod one_rule;
pub(crate) mod reserving;
pub(crate) mod selection;
pub(crate) mod texts;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use tollbar::store::ReservationIds;
use tollbar::{
    Batch, Clock, Entry, MemoryStore, Outcome, Policy, ReceiptKey, Reply, Role, Store, StoreError,
    SystemClock,
};

use ahead::Ahead;
use once::REQUEST_ID_TTL_DEFAULT;
use selection::{Ask, Nobody, Observer, Selecting, Selection};
use texts::Texts;

use crate::diff::Diff;
use crate::matcher::ItemId;
use crate::permits::{Held, Permits};
use crate::rule_set::POLICIES_PER_REQUEST_MAX;
use crate::snapshot::{Snapshot, Tier};
use crate::tally;
use crate::verdict::{Capacity, Decisions, Made, Verdict, Why};
use crate::{Request, RuleSet};

/// Keys that the store in this process has room for while the real one cannot answer.
const LOCAL_KEYS_MAX: usize = 100_000;

/// Checks requests against rules. Share one by reference or in an `Arc`.
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
pub struct Engine {
    current: ArcSwap<Snapshot>,
    /// Held while the rules change, so that two changes do not overtake each other.
    changing: Mutex<()>,
    store: Arc<dyn Store>,
    /// The same store, where it is in memory and answers at once.
    memory: Option<Arc<MemoryStore>>,
    /// Counts this node's share while `store` cannot answer.
    local: Arc<dyn Store>,
    /// For exemptions that end; counters go by the store's.
    clock: Arc<dyn Clock>,
    /// Names for what is to be settled.
    reservations: ReservationIds,
    /// Under which receipts and leases are given out as text.
    texts: Texts,
    /// For how long a request id is remembered.
    request_id_ttl: Duration,
    /// Counters that owe more than their policy can.
    ahead: Ahead,
}

/// An [`Engine`] in the making.
#[derive(Debug)]
pub struct EngineBuilder {
    rules: RuleSet,
    store: Option<Arc<dyn Store>>,
    clock: Option<Arc<dyn Clock>>,
    receipt_key: Option<ReceiptKey>,
    request_id_ttl: Duration,
}

/// A check that the store has answered.
#[derive(Clone, Copy)]
struct Asked<'a> {
    snapshot: &'a Snapshot,
    request: &'a Request<'a>,
    selection: &'a Selection,
    entries: &'a Entries<'a>,
}

/// What came of it, besides the decisions.
struct Concluded {
    permits: Option<Arc<Permits>>,
    failure: Option<StoreError>,
    /// True where a counter is to be made fresh because it is ahead of the clock.
    clears: bool,
}

/// The questions of one check.
type Entries<'e> = ArrayVec<Entry<'e>, POLICIES_PER_REQUEST_MAX>;

impl Engine {
    /// Over a memory store of its own, for a million keys.
    #[must_use]
    pub fn new(rules: RuleSet) -> Self {
        Self::builder(rules).build()
    }

    /// Over another store, or by another clock.
    #[must_use]
    pub fn builder(rules: RuleSet) -> EngineBuilder {
        EngineBuilder {
            rules,
            store: None,
            clock: None,
            receipt_key: None,
            request_id_ttl: REQUEST_ID_TTL_DEFAULT,
        }
    }

    /// May the request pass? Charges it if so. Over a store across a network this blocks the
    /// thread; see [`check_async`](Self::check_async).
    ///
    /// With a [request id](Request::with_request_id) it is charged once: sent again within
    /// [`request_id_ttl`](EngineBuilder::request_id_ttl), an allowed request gets the same answer and
    /// pays nothing; a denied one is decided anew.
    #[must_use]
    pub fn check(&self, request: &Request<'_>) -> Verdict {
        let mut verdict = Verdict::unmade(self.current.load());
        // What it holds is in the verdict as well.
        let _holding = self.decide(request, None, &mut verdict);
        verdict
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn check_async(&self, request: &Request<'_>) -> Verdict {
        let mut verdict = Verdict::unmade(self.snapshot());
        let _holding = self.decide_async(request, None, &mut verdict).await;
        verdict
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        self.current.load().rules.clone()
    }

    /// Puts other rules in force, whole: no check sees half of two versions. Counters go by the
    /// rules' names: those whose algorithm and window stay go on counting.
    pub fn replace(&self, rules: RuleSet) -> Diff {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.load_full();
        let diff = Diff::between(&before.rules, &rules);
        let version = before.version + 1;
        self.current.store(Arc::new(Snapshot::new(rules, version, Some(&before))));
        diff
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The store that counted, by whether it was the one in this process.
    pub(crate) fn store_of(&self, is_local: bool) -> &dyn Store {
        if is_local { &*self.local } else { &*self.store }
    }

    #[inline]
    pub(crate) fn select(
        &self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        observer: &mut impl Observer,
        selection: &mut Selection,
    ) {
        let now = || self.clock.now();
        Selecting { snapshot, request, now, observer }.select(selection);
    }

    /// The same, where it is known which rules match, and nobody listens.
    #[inline]
    fn select_of(
        &self,
        matching: &[ItemId],
        snapshot: &Snapshot,
        request: &Request<'_>,
        selection: &mut Selection,
    ) {
        let now = || self.clock.now();
        Selecting { snapshot, request, now, observer: &mut Nobody }.select_of(matching, selection);
    }

    /// Asks the store for all entries at once; `None` where it has answered already.
    #[inline]
    fn ask<'a, 'e: 'a>(
        &'a self,
        entries: &'a mut Entries<'e>,
        has_permits: bool,
    ) -> Option<Reply<'a, ()>> {
        // One question by itself is answered sooner than a batch of one, but charges without a name,
        // by which permits come back.
        if let (Some(memory), [entry]) = (&self.memory, entries.as_mut_slice())
            && entry.role() == Role::Enforce
            && !has_permits
            && let Ok(decision) = memory.check(entry.key(), entry.policy(), entry.cost()).wait()
        {
            entry.decide(decision);
            return None;
        }
        Some(self.store.decide(Batch::all_or_none(entries)))
    }

    /// Writes the decisions of a check, or, where the store could not answer, those of the failure
    /// policies.
    #[inline]
    fn conclude(
        &self,
        asked: &Asked<'_>,
        answer: Result<(), StoreError>,
        made: &mut Decisions,
    ) -> Concluded {
        let &Asked { snapshot, request, selection, entries } = asked;
        if let Err(failure) = answer {
            let held = failing::decide(snapshot, request, selection, &*self.local, made);
            tally::count(snapshot, made);
            let permits = Permits::of(held);
            return Concluded { permits, failure: Some(failure), clears: false };
        }
        let (mut is_denied, mut clears) = (false, false);
        for (ask, entry) in selection.asks.iter().zip(entries) {
            let Some(decision) = entry.decision() else {
                continue;
            };
            if ask.capacity == Capacity::Live && !decision.is_allowed() {
                let top = &snapshot.plan(ask.rule).top;
                top.record(entry.key());
                is_denied = true;
                if let Some(by) = ahead::beyond(entry.policy(), &decision) {
                    let rule = &snapshot.rule(ask.rule).name;
                    clears |= self.found_ahead(rule, &top.ahead_of_clock, by);
                }
            }
            made.push(ask.made(decision));
        }
        tally::count(snapshot, made);
        let permits = if is_denied || !selection.has_permits {
            None
        } else {
            Permits::of(entries.iter().filter_map(|entry| Held::of(entry, false)).collect())
        };
        Concluded { permits, failure: None, clears }
    }
}

impl Verdict {
    /// Denies for a reason that no wait helps, and no other cost: what is missing or wrong has to be
    /// sent otherwise.
    fn refuse(&mut self, why: Why) {
        (self.outcome, self.reason) = (Outcome::Busy, why);
    }

    /// True where no store is needed.
    #[inline]
    fn settle(&mut self, selection: &Selection) -> bool {
        (self.outcome, self.reason) = match selection.denial {
            Some(denial) => {
                if let Some(rule) = denial.denying_rule() {
                    self.snapshot.tally(rule, Tier::Rule).refused();
                }
                (denial.outcome(), denial)
            }
            None => (Outcome::Allow, selection.leave.unwrap_or(Why::NoRule)),
        };
        selection.denial.is_some() || selection.asks.is_empty()
    }

    /// The one decision that was made, of a live rule, is what it says.
    #[inline]
    fn bind_only_one(&mut self) {
        (self.reason, self.binding) = (Why::Limits, Some(0));
        if let [made] = &*self.made {
            self.outcome = made.decision.outcome();
        }
    }

    /// Says which decision binds, now that all are made. They are in the order of the rules, so of
    /// equals the first binds.
    #[inline]
    fn finish(&mut self, Concluded { permits, failure, .. }: Concluded) {
        (self.permits, self.failure) = (permits, failure);
        let mut binding: Option<(usize, &Made)> = None;
        for (at, it) in self.made.iter().enumerate() {
            let binds = |(_, before): (_, &Made)| it.decision.binds_before(&before.decision);
            if it.capacity == Capacity::Live && binding.is_none_or(binds) {
                binding = Some((at, it));
            }
        }
        if let Some((at, it)) = binding {
            (self.outcome, self.reason) = (it.decision.outcome(), Why::Limits);
            self.binding = Some(at);
        }
    }
}

/// The verdict where no store is needed.
fn settled(snapshot: &Arc<Snapshot>, selection: &Selection) -> Option<Verdict> {
    let mut verdict = Verdict::unmade(Arc::clone(snapshot));
    verdict.settle(selection).then_some(verdict)
}

/// The verdict on what has to be sent otherwise.
fn denied(snapshot: &Arc<Snapshot>, reason: Why) -> Verdict {
    let mut verdict = Verdict::unmade(Arc::clone(snapshot));
    verdict.refuse(reason);
    verdict
}

/// Filled in place: they are kilobytes of which a few words are used, and should not be moved.
#[inline]
fn fill<'e>(entries: &mut Entries<'e>, snapshot: &'e Snapshot, selection: &'e Selection) {
    for ask in selection.asks.iter().take(POLICIES_PER_REQUEST_MAX) {
        entries.push(ask.entry(snapshot, selection));
    }
}

impl Ask {
    /// What is asked of a store.
    #[inline]
    pub(crate) fn entry<'e>(&self, snapshot: &'e Snapshot, selection: &'e Selection) -> Entry<'e> {
        let key = &selection.keys[self.key.0..self.key.1];
        let role = match self.capacity {
            Capacity::Live => Role::Enforce,
            Capacity::Shadow | Capacity::Candidate => Role::Shadow,
        };
        Entry::new(key, self.policy(snapshot)).with_cost(self.cost).with_role(role)
    }

    #[inline]
    pub(crate) fn policy<'s>(&self, snapshot: &'s Snapshot) -> &'s Policy {
        match (self.capacity, snapshot.policies(self.rule, self.tier, self.boost)) {
            (Capacity::Live | Capacity::Shadow, Some(policies)) => &policies[self.limit],
            _ => &snapshot.plan(self.rule).candidate().whole[self.limit],
        }
    }

    #[inline]
    pub(crate) fn made(&self, decision: tollbar::Decision) -> Made {
        let tier = match self.tier {
            Tier::Rule => u32::MAX,
            Tier::At(at) => at as u32,
        };
        let Self { rule, limit, capacity, cost, .. } = *self;
        Made { rule, tier, limit: limit as u32, capacity, cost, decision, degraded: None }
    }
}

impl EngineBuilder {
    /// Counts in `store`, which others may share.
    #[must_use]
    pub fn store(self, store: Arc<dyn Store>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Another clock than the system's: for exemptions that end, and for the engine's own stores.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// The secret under which receipts and leases are given out as text, such as the output of
    /// `openssl rand 32`. Engines over one store that are to accept each other's have the same one, and
    /// so has one that is to accept its own after a restart. Random by default.
    #[must_use]
    pub fn receipt_secret(self, secret: [u8; 32]) -> Self {
        Self { receipt_key: Some(ReceiptKey::new(secret)), ..self }
    }

    /// For how long an allowed request is remembered by its id: 10 minutes by default.
    #[must_use]
    pub fn request_id_ttl(self, ttl: Duration) -> Self {
        Self { request_id_ttl: ttl, ..self }
    }

    /// The engine.
    #[must_use]
    pub fn build(self) -> Engine {
        let memory = |keys_max: Option<usize>| -> Arc<dyn Store> {
            let builder = MemoryStore::builder();
            let builder = match &self.clock {
                Some(clock) => builder.clock(Arc::clone(clock)),
                None => builder,
            };
            Arc::new(match keys_max {
                Some(keys_max) => builder.max_keys(keys_max).build(),
                None => builder.build(),
            })
        };
        let local = memory(Some(LOCAL_KEYS_MAX));
        let store = self.store.unwrap_or_else(|| memory(None));
        let any: Arc<dyn Any + Send + Sync> = store.clone();
        Engine {
            memory: any.downcast().ok(),
            current: ArcSwap::from_pointee(Snapshot::new(self.rules, 1, None)),
            changing: Mutex::new(()),
            store,
            local,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::new())),
            reservations: ReservationIds::new(),
            texts: Texts::new(self.receipt_key.unwrap_or_else(ReceiptKey::random)),
            request_id_ttl: self.request_id_ttl,
            ahead: Ahead::default(),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.current.load();
        f.debug_struct("Engine")
            .field("rules", &snapshot.rules.len())
            .field("version", &snapshot.version)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
