//! What a database must be able to do so that counters can live in it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::store::Reply;
use crate::{Clock, Timestamp};

/// A database that keeps a few words under a key and can compare and swap them.
///
/// It knows nothing of policies: a [`CounterStore`](super::CounterStore) over it counts by every
/// algorithm. Two methods are required beside its [limits](Self::limits); see the
/// [module](crate::counter) for what hangs on each.
pub trait CounterBackend: fmt::Debug + Send + Sync + 'static {
    /// How much one swap can change. The answer never changes.
    fn limits(&self) -> BackendLimits;

    /// Reads the values of `keys`, in their order, and the backend's time.
    ///
    /// The time must be read after the values, or at the same instant: a value that has expired must
    /// be over by that time. The values need not be of one instant, because
    /// [`compare_and_swap`](Self::compare_and_swap) finds what has changed since.
    fn load<'a>(&'a self, keys: &'a [CounterKey]) -> Reply<'a, Loaded>;

    /// Makes all of `swaps` at one instant and answers true, if every key still has the value it was
    /// loaded with. Otherwise changes nothing and answers false.
    ///
    /// There are at most [`keys_per_swap_max`](BackendLimits::keys_per_swap_max) of them, of different
    /// keys. Where it is unknown whether they were made, the answer is an error, never false.
    fn compare_and_swap<'a>(&'a self, swaps: &'a [Swap]) -> Reply<'a, bool>;

    /// The clock that [`load`](Self::load) reads, if this process can read it too.
    fn clock(&self) -> Option<&dyn Clock> {
        None
    }
}

impl<B: CounterBackend + ?Sized> CounterBackend for Arc<B> {
    fn limits(&self) -> BackendLimits {
        (**self).limits()
    }

    fn load<'a>(&'a self, keys: &'a [CounterKey]) -> Reply<'a, Loaded> {
        (**self).load(keys)
    }

    fn compare_and_swap<'a>(&'a self, swaps: &'a [Swap]) -> Reply<'a, bool> {
        (**self).compare_and_swap(swaps)
    }

    fn clock(&self) -> Option<&dyn Clock> {
        (**self).clock()
    }
}

/// How much one swap of a [`CounterBackend`] can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendLimits {
    /// The most keys of one swap. With 1, requests under several limits, request ids and reservations
    /// are not supported, because they change several keys at one instant.
    pub keys_per_swap_max: usize,
    /// The most words of one value. Logs and leases need up to a few words per token of their limit.
    pub words_per_value_max: usize,
}

impl BackendLimits {
    /// Up to so many keys in one swap, and so many words in one value.
    #[must_use]
    pub fn new(keys_per_swap_max: usize, words_per_value_max: usize) -> Self {
        Self { keys_per_swap_max: keys_per_swap_max.max(1), words_per_value_max }
    }
}

/// Where a value is kept: 128 bits of a keyed hash, so that a database shows nobody's name.
///
/// Its text is 22 letters, digits, `-` and `_`, which every database accepts as a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey([u8; 16]);

impl CounterKey {
    /// The key of these bits, for tests of a backend.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bits themselves.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for CounterKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use base64::Engine;
        use base64::engine::general_purpose::URL_SAFE_NO_PAD;
        formatter.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

/// What a key holds. No words at all: the key is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Value {
    /// The words.
    pub words: Vec<u64>,
    /// The backend's own token for this version of the value, such as Memcached's CAS number; 0 for
    /// backends that compare the words. A token must not come back for other words, also not after the
    /// key was deleted.
    pub version: u64,
}

impl Value {
    /// The value whose [bytes](Self::to_bytes) these are, at version 0; `None` if they are no words.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks();
        let words = words.iter().copied().map(u64::from_le_bytes).collect();
        rest.is_empty().then_some(Self { words, version: 0 })
    }

    /// The words as bytes, eight each, least significant first.
    #[must_use]
    pub fn to_bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// What [`CounterBackend::load`] has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// One for each key, in their order.
    pub values: Vec<Value>,
    /// The backend's time, read after the values.
    pub now: Timestamp,
}

/// One change of a [`CounterBackend::compare_and_swap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// Where.
    pub key: CounterKey,
    /// What was loaded, and must still be there.
    pub before: Value,
    /// What comes in its place. No words: the key is deleted.
    pub after: Vec<u64>,
    /// When the key may be forgotten, counted from now: never earlier, and soon after. `None` keeps it
    /// until it is deleted.
    pub ttl: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_same_after_a_way_through_bytes() {
        let words = vec![0, 1, u64::MAX, 0x0102_0304_0506_0708];
        let bytes = Value::to_bytes(&words);
        assert_eq!(bytes[24..], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(Value::from_bytes(&bytes), Some(Value { words, version: 0 }));
        assert_eq!(Value::from_bytes(&bytes[1..]), None);
    }

    #[test]
    fn a_key_is_text_that_every_database_accepts() {
        let text = CounterKey([0xff; 16]).to_string();
        assert_eq!(text.len(), 22);
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    }
}
