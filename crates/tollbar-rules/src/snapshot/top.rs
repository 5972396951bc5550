//! Who is limited most: a sketch of bounded size for each rule.
//!
//! Space-Saving: so many counters, and a newcomer takes over the smallest together with its count.
//! A count is at most too high by what it took over, and whoever was denied more often than every
//! sixty-fourth denial of its shard is in the list. Sharded by key, so that denials of different
//! clients seldom wait for each other and no key is in two shards.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::hash::mix;

const SHARDS: usize = 4;

/// Counters of one shard.
const COUNTERS_MAX: usize = 64;

/// Longer keys are cut: a list for people needs no more.
const KEY_BYTES_MAX: usize = 256;

/// Counts denials by key, in at most `SHARDS x COUNTERS_MAX x KEY_BYTES_MAX` bytes: 64 KiB for a
/// rule that denies, nothing for one that does not.
#[derive(Debug, Default)]
pub(crate) struct TopDenials {
    /// How many denials were by counters that are ahead of the clock.
    pub(crate) ahead_of_clock: AtomicU64,
    /// How many requests of new keys shared the counter of their network.
    pub(crate) new_keys_limited: AtomicU64,
    shards: OnceLock<Box<[Mutex<Sketch>; SHARDS]>>,
}

#[derive(Debug, Default)]
struct Sketch {
    counters: Vec<Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Counter {
    hash: u64,
    key: Box<[u8]>,
    count: u64,
    error: u64,
}

/// A key that was limited, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopKey {
    /// The subject, for people.
    pub subject: String,
    /// How often it was denied, at most: `count - error` times at least.
    pub count: u64,
    /// By how much the count may be too high.
    pub error: u64,
}

impl TopDenials {
    pub(crate) fn record(&self, key: &[u8]) {
        let key = &key[..key.len().min(KEY_BYTES_MAX)];
        let (words, rest) = key.as_chunks::<8>();
        let hash =
            words.iter().fold(key.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
        let hash = rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)));
        let shards = self.shards.get_or_init(Box::default);
        // A sketch is never left half changed; after a panic elsewhere it is as good as before.
        let shard = &shards[(hash >> 32) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner).record(hash, key);
    }

    /// The `count` keys that were denied most often, those first.
    pub(crate) fn list(&self, count: usize) -> Vec<TopKey> {
        let Some(shards) = self.shards.get() else {
            return Vec::new();
        };
        let mut counters: Vec<Counter> = Vec::new();
        for shard in &**shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            counters.extend_from_slice(&shard.counters);
        }
        counters.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        let limited = |counter: Counter| TopKey {
            subject: crate::readable(&counter.key),
            count: counter.count,
            error: counter.error,
        };
        counters.into_iter().take(count).map(limited).collect()
    }
}

impl Sketch {
    fn record(&mut self, hash: u64, key: &[u8]) {
        let is_of_key = |counter: &&mut Counter| counter.hash == hash && *counter.key == *key;
        if let Some(counter) = self.counters.iter_mut().find(is_of_key) {
            counter.count = counter.count.saturating_add(1);
            return;
        }
        if self.counters.len() < COUNTERS_MAX {
            self.counters.push(Counter { hash, key: key.into(), count: 1, error: 0 });
        } else if let Some(least) = self.counters.iter_mut().min_by_key(|counter| counter.count) {
            let count = least.count;
            *least =
                Counter { hash, key: key.into(), count: count.saturating_add(1), error: count };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_is_limited_most_is_found_in_a_crowd() {
        let top = TopDenials::default();
        assert_eq!(top.list(10), []);
        for round in 0_u32..20_000 {
            top.record(format!("passer-by {round}").as_bytes());
            if round % 10 == 0 {
                top.record(b"abuser");
            }
        }
        let first = top
            .shards
            .get()
            .unwrap()
            .iter()
            .flat_map(|shard| shard.lock().unwrap().counters.clone());
        let most = first.max_by_key(|counter| counter.count).unwrap();
        assert_eq!(&*most.key, b"abuser");
        assert!(most.count >= 2_000 && most.count - most.error <= 2_000, "{most:?}");
        assert_eq!(top.list(1_000).len(), SHARDS * COUNTERS_MAX);
        assert_eq!(top.list(3).len(), 3);
    }

    #[test]
    fn a_key_takes_bounded_room() {
        let top = TopDenials::default();
        top.record(&vec![b'x'; 65_536]);
        let shards = top.shards.get().unwrap();
        let longest = shards
            .iter()
            .flat_map(|shard| shard.lock().unwrap().counters.clone())
            .map(|counter| counter.key.len())
            .max();
        assert_eq!(longest, Some(KEY_BYTES_MAX));
    }

    proptest! {
        #[test]
        fn counts_are_never_too_low_and_too_high_by_their_error_at_most(
            keys in prop::collection::vec(0_u16..200, 0..2_000)
        ) {
            let top = TopDenials::default();
            let mut exact: HashMap<String, u64> = HashMap::new();
            for key in keys {
                let mut buffer = vec![b'=', 4, 0];
                buffer.extend_from_slice(format!("{key:04}").as_bytes());
                top.record(&buffer);
                *exact.entry(format!("{key:04}")).or_default() += 1;
            }
            for limited in top.list(1_000) {
                let exact = exact[&limited.subject];
                prop_assert!(limited.count >= exact && limited.count - limited.error <= exact);
            }
        }
    }
}
