//! The engine: a request in, a verdict out.
//!
//! [`AsyncEngine`] works over any store. [`Engine`](in_process::Engine) works over counters in this process, has the
//! verbs of the other, and is a thin form of it.

pub(crate) mod ahead_of_clock;
mod decide;
mod fast_path;
pub(crate) mod global_overrides;
pub(crate) mod hold;
pub(crate) mod in_process;
mod latest_tiers;
pub(crate) mod new_keys;
mod outage;
mod replacement;
mod request_id;
pub(crate) mod rule_handle;
pub(crate) mod selection;
pub(crate) mod tallies;
pub(crate) mod usage;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tollbar::charge::ChargeIds;
use tollbar::store::Once;
use tollbar::{Clock, MemoryStore, ReceiptKey, Store, SystemClock, Timestamp};

use ahead_of_clock::AheadTracker;
use hold::{Hold, TokenKeys};
use in_process::Engine;
use latest_tiers::LatestTiers;
use selection::{NoObserver, Selection};

use crate::rule_set::diff::Diff;
use crate::snapshot::Snapshot;
use crate::verdict::Verdict;
use crate::{Request, RuleSet, RuleSetError};

/// Checks requests against rules, over any store. Share one in an `Arc`.
///
/// Over a [`MemoryStore`] every method answers without suspending. [`Engine`] is the form for counters
/// in this process, with the same methods and without `async`.
///
/// ```
/// use std::sync::Arc;
/// use tollbar::MemoryStore;
/// use tollbar_rules::{AsyncEngine, Request, RuleFile};
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// let file = RuleFile::parse("rules.yaml", "rules: [{ name: per_client, limit: 2/min }]")?;
/// // Any `Store` will do, such as that of `tollbar-redis`.
/// let engine = AsyncEngine::new(file.rules, Arc::new(MemoryStore::builder().build()))?;
///
/// let request = Request::new("GET", "/v1/users")?.with_attributes(&[("ip", "203.0.113.7")])?;
/// assert!(engine.check(&request).await.is_allowed());
/// # Ok(())
/// # }
/// ```
///
/// All rules that match apply, and a request pays all of their limits or none.
pub struct AsyncEngine {
    current: ArcSwap<Snapshot>,
    /// Held while the rules change, so that two changes do not overtake each other.
    changing: Mutex<()>,
    store: Arc<dyn Store>,
    /// `store` again, if it is in memory and answers at once.
    memory: Option<Arc<MemoryStore>>,
    /// Counts this node's share while `store` cannot answer, once it could not.
    local: OnceLock<MemoryStore>,
    /// For exemptions that end; counters go by the store's.
    clock: Arc<dyn Clock>,
    /// Names of requests that pay once, and of reservations.
    charge_ids: ChargeIds,
    /// The keys under which holds are written as text.
    token_keys: TokenKeys,
    /// Counters that owe more than their policy can.
    ahead: AheadTracker,
    /// The tiers of subjects that were charged lately.
    latest_tiers: LatestTiers,
    /// The keys that were seen under rules with `new_keys`, once there is such a rule.
    seen: OnceLock<MemoryStore>,
}

/// Whether a request may pass, and what it holds until it is over.
#[derive(Debug)]
#[must_use = "what a request holds has to be settled or released"]
pub struct Admission {
    /// What the rules say.
    pub verdict: Verdict,
    /// What the request holds. `None` if it was denied, if it holds nothing, and, for a reservation, if
    /// the store could not answer: then nothing was charged.
    pub hold: Option<Hold>,
}

/// Builds an engine: an [`Engine`] over counters in this process, or, where a store is named, an
/// [`AsyncEngine`].
#[derive(Debug)]
pub struct EngineBuilder<S = Option<Arc<MemoryStore>>> {
    rules: RuleSet,
    store: S,
    clock: Option<Arc<dyn Clock>>,
    receipt_key: Option<ReceiptKey>,
    request_id_ttl: Duration,
    request_id_replays: u8,
}

impl AsyncEngine {
    /// Returns an engine that counts in `store`; an error if `store` cannot count some of the rules.
    pub fn new(rules: RuleSet, store: Arc<dyn Store>) -> Result<Self, RuleSetError> {
        Self::builder(rules, store).build()
    }

    /// Returns a builder for an engine that counts in `store`.
    #[must_use]
    pub fn builder(rules: RuleSet, store: Arc<dyn Store>) -> EngineBuilder<Arc<dyn Store>> {
        EngineBuilder::with_store(rules, store)
    }

    /// Decides whether the request may pass, and charges it if so.
    ///
    /// With a [request id](Request::with_request_id) it is charged once: sent again within
    /// [`request_id_ttl`](EngineBuilder::request_id_ttl), an allowed request gets the same answer and
    /// pays nothing, [a few times](EngineBuilder::request_id_replays); a denied one is decided anew. An id
    /// that comes back with another method, path or attribute that the rules look at is denied.
    ///
    /// Permits that the request takes come back when their lease ends. [`admit`](Self::admit) hands them
    /// out, so that they can be given back sooner; permits without a lease should be taken by it only.
    pub async fn check(&self, request: &Request<'_>) -> Verdict {
        self.admit(request, None).await.verdict
    }

    /// Decides whether the request may pass, charges it if so, and returns what it holds: permits and,
    /// if it is reserved for a time, its charge, which can be settled within that time.
    pub async fn admit(&self, request: &Request<'_>, reserve_for: Option<Duration>) -> Admission {
        if let Some(admission) = self.try_admit(request, reserve_for) {
            return admission;
        }
        let verdict = Verdict::undecided(self.snapshot());
        let mut admission = Admission { verdict, hold: None };
        let verdict = &mut admission.verdict;
        let mut selection = Selection::default();
        let is_reservation = reserve_for.is_some();
        self.select(&verdict.snapshot, request, is_reservation, &mut NoObserver, &mut selection);
        admission.hold = self.decide(request, reserve_for, &mut selection, verdict).await;
        admission
    }

    /// Admits a request at once. Returns `None`, having done nothing, unless the store
    /// [answers at once](Self::answers_at_once).
    pub fn try_admit(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
    ) -> Option<Admission> {
        if !self.answers_at_once() {
            return None;
        }
        let verdict = Verdict::undecided(self.current.load());
        let mut admission = Admission { verdict, hold: None };
        admission.hold = self.decide_now(request, reserve_for, &mut admission.verdict);
        Some(admission)
    }

    /// Admits a request at once, as [`try_admit`](Self::try_admit) does, for callers that only look at
    /// the verdict: it is most of a kilobyte, and is not moved from where it was made.
    #[inline]
    pub fn try_admit_then<T>(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        then: impl FnOnce(&Verdict, Option<Hold>) -> T,
    ) -> Option<T> {
        if !self.answers_at_once() {
            return None;
        }
        let mut verdict = Verdict::undecided(self.current.load());
        let hold = self.decide_now(request, reserve_for, &mut verdict);
        Some(then(&verdict, hold))
    }

    /// Returns true if the store is in this process, so that every method answers without suspending.
    #[must_use]
    pub fn answers_at_once(&self) -> bool {
        self.memory.is_some()
    }

    /// The time by the engine's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        self.current.load().rules.clone()
    }

    /// Puts other rules in force, whole: no check sees half of two versions. Counters go by the
    /// rules' names: those whose algorithm and window stay go on counting.
    ///
    /// Rules that the store [cannot count](RuleSet::check_support) are an error, and those before them
    /// stay in force.
    pub fn replace(&self, rules: RuleSet) -> Result<Diff, RuleSetError> {
        // A memory store counts everything.
        if self.memory.is_none() {
            rules.check_support(self.store())?;
        }
        Ok(self.put(rules))
    }

    /// Puts rules in force that the store can count.
    fn put(&self, rules: RuleSet) -> Diff {
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
}

impl<S> EngineBuilder<S> {
    fn with_store(rules: RuleSet, store: S) -> Self {
        let request_id_ttl = ChargeIds::REQUEST_ID_TTL_DEFAULT;
        let request_id_replays = Once::REPLAYS_MAX_DEFAULT;
        Self { rules, store, clock: None, receipt_key: None, request_id_ttl, request_id_replays }
    }

    /// Sets another clock than the system's: for exemptions that end, and for the engine's own stores.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// Sets the secret under which holds are written as text, such as the output of `openssl rand 32`.
    /// Engines over one store that are to accept each other's tokens have the same one, and so has one
    /// that is to accept its own after a restart. Random by default.
    #[must_use]
    pub fn receipt_secret(self, secret: [u8; 32]) -> Self {
        Self { receipt_key: Some(ReceiptKey::new(secret)), ..self }
    }

    /// Sets for how long an allowed request is remembered by its id: 10 minutes by default.
    #[must_use]
    pub fn request_id_ttl(self, ttl: Duration) -> Self {
        Self { request_id_ttl: ttl, ..self }
    }

    /// Sets how often an allowed request is answered again by its id for one charge: 8 times by default. After
    /// that it is charged again.
    #[must_use]
    pub fn request_id_replays(self, replays_max: u8) -> Self {
        Self { request_id_replays: replays_max, ..self }
    }

    /// Returns a store in this process that goes by the builder's clock.
    fn memory(&self) -> Arc<MemoryStore> {
        let mut builder = MemoryStore::builder();
        if let Some(clock) = &self.clock {
            builder = builder.clock(Arc::clone(clock));
        }
        Arc::new(builder.build())
    }
}

impl EngineBuilder {
    /// Counts in `store`, which others may share. By default the engine has a store of its own, for
    /// a million keys.
    #[must_use]
    pub fn store(self, store: Arc<MemoryStore>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Returns the engine.
    #[must_use]
    pub fn build(self) -> Engine {
        let store: Arc<dyn Store> = match &self.store {
            Some(store) => store.clone(),
            None => self.memory(),
        };
        let Self { rules, store: _, clock, receipt_key, request_id_ttl, request_id_replays } = self;
        let builder =
            EngineBuilder { rules, store, clock, receipt_key, request_id_ttl, request_id_replays };
        // A memory store counts everything.
        Engine::over_memory(builder.build_unchecked())
    }
}

impl EngineBuilder<Arc<dyn Store>> {
    /// Returns the engine; an error if its store [cannot count](RuleSet::check_support) some of the
    /// rules.
    pub fn build(self) -> Result<AsyncEngine, RuleSetError> {
        self.rules.check_support(&*self.store)?;
        Ok(self.build_unchecked())
    }

    fn build_unchecked(self) -> AsyncEngine {
        let any: Arc<dyn Any + Send + Sync> = self.store.clone();
        let receipt_key = self.receipt_key.unwrap_or_else(ReceiptKey::random);
        let memory: Option<Arc<MemoryStore>> = any.downcast().ok();
        AsyncEngine {
            current: ArcSwap::from_pointee(Snapshot::first(self.rules, memory.is_some())),
            memory,
            changing: Mutex::new(()),
            store: self.store,
            local: OnceLock::new(),
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::new())),
            token_keys: TokenKeys::new(&receipt_key),
            charge_ids: ChargeIds::new(receipt_key, self.request_id_ttl)
                .with_replays_max(self.request_id_replays),
            ahead: AheadTracker::default(),
            latest_tiers: LatestTiers::default(),
            seen: OnceLock::new(),
        }
    }
}

impl fmt::Debug for AsyncEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.current.load();
        f.debug_struct("AsyncEngine")
            .field("rules", &snapshot.rules.len())
            .field("version", &snapshot.version)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
