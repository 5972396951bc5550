//! A quick hash for tables that are filled from rules and only looked up by requests.
//!
//! It holds no secret and needs none: whoever sends requests cannot put anything into these tables,
//! and what a lookup finds is compared in full before it counts.

use std::hash::{BuildHasherDefault, Hasher};

/// A map from a hash that is good already.
pub(crate) type HashedMap<V> =
    std::collections::HashMap<u64, V, BuildHasherDefault<IdentityHasher>>;

/// Hashes that are good already.
pub(crate) type HashedSet = std::collections::HashSet<u64, BuildHasherDefault<IdentityHasher>>;

/// What is kept under a text: found by its hash, then compared.
pub(crate) type TextMap<V> = HashedMap<smallvec::SmallVec<[(Box<str>, V); 1]>>;

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The product of both, its halves folded: every bit of either reaches every bit of it.
#[inline]
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ MULTIPLIER) * u128::from(b ^ 0xa076_1d64_78bd_642f);
    (product as u64) ^ (product >> 64) as u64
}

/// The hash of a text, eight bytes at a time.
#[inline]
pub(crate) fn hash_text(text: &str) -> u64 {
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let hash =
        words.iter().fold(text.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash, u64::from_le_bytes(last))
}

/// A hasher of hashes: returns its input.
#[derive(Debug, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0, u64::from(*byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn short_texts_that_differ_hash_apart() {
        let mut seen = HashSet::new();
        for number in 0..100_000 {
            assert!(seen.insert(hash_text(&format!("tenant-{number}"))), "{number}");
        }
        assert_ne!(hash_text("a"), hash_text("a\0"));
        assert_ne!(hash_text("12345678"), hash_text("12345678\0"));
    }
}
