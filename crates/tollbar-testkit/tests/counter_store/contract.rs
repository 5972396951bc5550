//! What any backend promises, and backends that break it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollbar::counter::{BackendLimits, CounterBackend, CounterKey, Loaded, Swap, Value};
use tollbar::{ManualClock, Reply};
use tollbar_testkit::memory_backend::MemoryBackend;

use crate::{NOW, watch_backend};

/// A key that somebody else uses.
#[derive(Debug)]
pub(crate) struct ForeignBackend;

impl CounterBackend for ForeignBackend {
    fn limits(&self) -> BackendLimits {
        BackendLimits::new(1, 1_000)
    }

    fn load<'a>(&'a self, keys: &'a [CounterKey]) -> Reply<'a, Loaded> {
        let value = Value { words: vec![u64::from_le_bytes(*b"username")], version: 0 };
        Reply::Ready(Ok(Loaded { values: vec![value; keys.len()], now: NOW }))
    }

    fn compare_and_swap<'a>(&'a self, _: &'a [Swap]) -> Reply<'a, bool> {
        Reply::Ready(Ok(true))
    }
}

/// A counter that others change all the time.
#[derive(Debug, Default)]
pub(crate) struct AlwaysChanged(AtomicUsize);

impl AlwaysChanged {
    pub(crate) fn swaps(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl CounterBackend for AlwaysChanged {
    fn limits(&self) -> BackendLimits {
        BackendLimits::new(1, 1_000)
    }

    fn load<'a>(&'a self, keys: &'a [CounterKey]) -> Reply<'a, Loaded> {
        Reply::Ready(Ok(Loaded { values: vec![Value::default(); keys.len()], now: NOW }))
    }

    fn compare_and_swap<'a>(&'a self, _: &'a [Swap]) -> Reply<'a, bool> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Reply::Ready(Ok(false))
    }
}

const NONE: Vec<u64> = Vec::new();

fn values(backend: &dyn CounterBackend, keys: &[CounterKey]) -> Vec<Value> {
    backend.load(keys).wait().unwrap().values
}

fn words(backend: &dyn CounterBackend, keys: &[CounterKey]) -> Vec<Vec<u64>> {
    values(backend, keys).into_iter().map(|value| value.words).collect()
}

fn swap(backend: &dyn CounterBackend, changes: &[(CounterKey, &Value, &[u64])]) -> bool {
    let ttl = Some(Duration::from_mins(1));
    let swap = |&(key, before, after): &(CounterKey, &Value, &[u64])| Swap {
        key,
        before: before.clone(),
        after: after.to_vec(),
        ttl,
    };
    let swaps: Vec<Swap> = changes.iter().map(swap).collect();
    backend.compare_and_swap(&swaps).wait().unwrap()
}

fn keeps_the_contract(backend: &dyn CounterBackend) {
    let [a, b] = [1, 2].map(|byte| CounterKey::from_bytes([byte; 16]));
    let absent = Value::default();
    assert_eq!(words(backend, &[a, b]), [NONE, NONE]);
    assert!(swap(backend, &[(a, &absent, &[1, 0, u64::MAX])]));
    assert_eq!(words(backend, &[b, a]), [NONE, vec![1, 0, u64::MAX]]);
    // What was loaded before is old now: neither key changes.
    assert!(!swap(backend, &[(b, &absent, &[2]), (a, &absent, &[2])]));
    assert!(!swap(backend, &[(a, &absent, &[2]), (b, &absent, &[2])]));
    assert_eq!(words(backend, &[a, b]), [vec![1, 0, u64::MAX], NONE]);
    let [first, second] = values(backend, &[a, b]).try_into().unwrap();
    assert!(swap(backend, &[(a, &first, &[3]), (b, &second, &[4])]));
    assert!(!swap(backend, &[(a, &first, &[5])]));
    let [first, second] = values(backend, &[a, b]).try_into().unwrap();
    assert!(swap(backend, &[(a, &first, &[]), (b, &second, &[6])]));
    assert_eq!(words(backend, &[a, b]), [NONE, vec![6_u64]]);
    assert!(!swap(backend, &[(a, &first, &[7])]));
    // Nor is what was loaded before a deletion, however often the key was written since.
    assert!(swap(backend, &[(a, &absent, &[8])]));
    let [eighth] = values(backend, &[a]).try_into().unwrap();
    assert!(swap(backend, &[(a, &eighth, &[9])]));
    assert!(!swap(backend, &[(a, &first, &[7])]));
    assert_eq!(words(backend, &[a]), [vec![9_u64]]);
}

#[test]
fn backends_swap_all_or_none_and_only_what_was_loaded() {
    keeps_the_contract(&MemoryBackend::new(ManualClock::at(NOW), 2));
    keeps_the_contract(&watch_backend());
}
