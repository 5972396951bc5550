//! A backend for `CounterStore` in a map, with a clock by hand and a place to step in between.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollbar::counter::{
    BackendLimits, CounterBackend, CounterKey, CounterStore, Loaded, Swap, Value,
};
use tollbar::{Clock, ManualClock, Reply, Store, Timestamp};

use crate::subject::Subject;

/// Runs between a load and its swap.
type InterruptHook = Box<dyn FnOnce() + Send>;

/// Keeps values until their time is up, by the same clock that it tells.
pub struct MemoryBackend {
    values: Mutex<HashMap<CounterKey, StoredValue>>,
    clock: ManualClock,
    limits: BackendLimits,
    between: Mutex<Option<InterruptHook>>,
    forgets: bool,
    /// No version is used twice, also not of a key that was deleted meanwhile.
    last_version: AtomicU64,
}

/// A value, and when it is forgotten.
#[derive(Debug, Clone)]
struct StoredValue {
    value: Value,
    until: Option<Timestamp>,
}

/// Enough for every test here.
const WORDS_MAX: usize = 1 << 16;

impl MemoryBackend {
    /// An empty one that tells the time of `clock` and swaps up to `keys_per_swap_max` keys at once.
    #[must_use]
    pub fn new(clock: ManualClock, keys_per_swap_max: usize) -> Self {
        Self::with_limits(clock, BackendLimits::new(keys_per_swap_max, WORDS_MAX))
    }

    /// An empty one with other limits.
    #[must_use]
    pub fn with_limits(clock: ManualClock, limits: BackendLimits) -> Self {
        Self {
            values: Mutex::default(),
            clock,
            limits,
            between: Mutex::default(),
            forgets: true,
            last_version: AtomicU64::new(0),
        }
    }

    /// Keeps every value for good, whatever its time.
    ///
    /// For judges whose clock goes back by minutes. A `CounterStore` keeps a fresh counter for some seconds,
    /// and the oracle forgets nothing: once the clock is back where the counter was not fresh, they differ.
    #[must_use]
    pub fn forgetting_nothing(self) -> Self {
        Self { forgets: false, ..self }
    }

    /// Runs `step` once, right before the next swap.
    pub fn before_next_swap(&self, step: impl FnOnce() + Send + 'static) {
        *lock(&self.between) = Some(Box::new(step));
    }

    /// How many keys are kept.
    #[must_use]
    pub fn key_count(&self) -> usize {
        let now = self.clock.now();
        lock(&self.values).values().filter(|stored| stored.is_kept(now)).count()
    }
}

impl StoredValue {
    fn is_kept(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

impl CounterBackend for MemoryBackend {
    fn limits(&self) -> BackendLimits {
        self.limits
    }

    fn load<'a>(&'a self, keys: &'a [CounterKey]) -> Reply<'a, Loaded> {
        let map = lock(&self.values);
        let now = self.clock.now();
        let kept = |key| map.get(key).filter(|stored| stored.is_kept(now));
        let value = |key| kept(key).map(|stored| stored.value.clone()).unwrap_or_default();
        Reply::Ready(Ok(Loaded { values: keys.iter().map(value).collect(), now }))
    }

    fn compare_and_swap<'a>(&'a self, swaps: &'a [Swap]) -> Reply<'a, bool> {
        let between = mem::take(&mut *lock(&self.between));
        if let Some(step) = between {
            step();
        }
        assert!(swaps.len() <= self.limits.keys_per_swap_max, "more keys than declared");
        let mut map = lock(&self.values);
        let now = self.clock.now();
        map.retain(|_, stored| stored.is_kept(now));
        let version = |key| map.get(key).map_or(0, |stored: &StoredValue| stored.value.version);
        if swaps.iter().any(|swap| version(&swap.key) != swap.before.version) {
            return Reply::Ready(Ok(false));
        }
        for Swap { key, after, ttl, .. } in swaps {
            assert!(after.len() <= self.limits.words_per_value_max, "more words than declared");
            if after.is_empty() {
                map.remove(key);
                continue;
            }
            let version = 1 + self.last_version.fetch_add(1, Ordering::Relaxed);
            let value = Value { words: after.clone(), version };
            let until = ttl.filter(|_| self.forgets).map(|ttl| now.after(ttl));
            map.insert(*key, StoredValue { value, until });
        }
        Reply::Ready(Ok(true))
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MemoryBackend")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A [`CounterStore`] over a backend whose clock the judge may move.
#[derive(Debug)]
pub struct CounterSubject<B> {
    name: &'static str,
    store: CounterStore<B>,
    clock: ManualClock,
}

impl<B: CounterBackend> CounterSubject<B> {
    /// Counts in `backend`, which tells the time of `clock`.
    #[must_use]
    pub fn new(name: &'static str, backend: B, clock: ManualClock) -> Self {
        Self { name, store: CounterStore::new(backend, [7; 32]), clock }
    }
}

impl CounterSubject<Arc<MemoryBackend>> {
    /// In memory, over a backend that swaps any number of keys.
    #[must_use]
    pub fn boxed(now: Timestamp) -> Box<dyn Subject> {
        let clock = ManualClock::at(now);
        let backend = MemoryBackend::new(clock.clone(), usize::MAX);
        Box::new(Self::new("counter store in memory", Arc::new(backend), clock))
    }

    /// In memory, over a backend that [forgets nothing](MemoryBackend::forgetting_nothing).
    #[must_use]
    pub fn boxed_forgetting_nothing(now: Timestamp) -> Box<dyn Subject> {
        let clock = ManualClock::at(now);
        let backend = MemoryBackend::new(clock.clone(), usize::MAX).forgetting_nothing();
        Box::new(Self::new("counter store that forgets nothing", Arc::new(backend), clock))
    }
}

impl<B: CounterBackend> Subject for CounterSubject<B> {
    fn name(&self) -> &str {
        self.name
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_now(&self, now: Timestamp) {
        self.clock.set(now);
    }
}
