//! From a key and a policy to the 64 bits that name a counter.

#[cfg(not(tollbar_loom))]
use std::hash::{BuildHasher, Hasher, RandomState};

use polymur_hash::PolymurHash;

use crate::Policy;

/// Names one counter: a keyed hash of the key, salted with the policy's identity. Never zero.
///
/// Two counters whose names are the same count together. With ten million counters alive the
/// chance that any two do is 3 in a million; nobody can look for such keys, because the hash is
/// keyed with a secret of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CounterId(u64);

/// `PolymurHash` under a key drawn when the store is made.
#[derive(Debug)]
pub(super) struct CounterHash {
    hasher: PolymurHash,
}

impl CounterHash {
    pub(super) fn random() -> Self {
        // The standard library's way to random bits: its own hash keys, seeded by the system.
        #[cfg(not(tollbar_loom))]
        let random = || RandomState::new().build_hasher().finish();
        // A model must be the same every time it is run.
        #[cfg(tollbar_loom)]
        let random = || 0;
        Self { hasher: PolymurHash::from_u64x2_seed(random(), random()) }
    }

    #[inline]
    pub(super) fn id(&self, key: &[u8], policy: &Policy) -> CounterId {
        CounterId::new(self.hasher.hash(key) ^ policy.salt)
    }
}

/// In a tag word: set where a slot belongs to a counter.
const IN_USE: u64 = 0x80;

/// The tag of a slot whose counter has moved away. Unlike an empty slot it says nothing about
/// whether the line was ever full.
pub(super) const MOVED: u64 = 0x40;

impl CounterId {
    pub(super) fn new(hash: u64) -> Self {
        Self(hash.max(1))
    }

    pub(super) fn get(self) -> u64 {
        self.0
    }

    /// The tag word: 56 bits of the name, and the shift that says how to read the state's time.
    #[inline]
    pub(super) fn tag(self, shift: u32) -> u64 {
        self.0 << 8 | IN_USE | u64::from(shift)
    }

    /// The first line it may live in: the high bits, scaled to `line_count`.
    #[inline]
    pub(super) fn first_line(self, line_count: usize) -> usize {
        scale(self.0, line_count)
    }

    /// The second line: other bits, and another line wherever there is one.
    #[inline]
    pub(super) fn second_line(self, line_count: usize) -> usize {
        let step = 1 + scale(self.0.rotate_left(32), line_count - 1);
        let line = self.first_line(line_count) + step;
        if line >= line_count { line - line_count } else { line }
    }

    /// One of `count`, by bits of their own.
    #[inline]
    pub(super) fn bucket(self, count: usize) -> usize {
        scale(self.0.rotate_left(16), count)
    }

    /// The shard, out of a power of two.
    #[inline]
    pub(super) fn shard(self, shard_count: usize) -> usize {
        self.0 as usize & (shard_count - 1)
    }
}

/// How to read the time of the state beside this tag.
#[inline]
pub(super) fn tag_shift(tag: u64) -> u32 {
    (tag & 0x3f) as u32
}

/// Maps 64 bits evenly onto `0..count`, without a division.
#[inline]
fn scale(bits: u64, count: usize) -> usize {
    ((u128::from(bits) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_two_lines_are_in_range_and_differ_where_they_can(
            hash: u64,
            line_count in 1_usize..10_000,
        ) {
            let id = CounterId::new(hash);
            let (first, second) = (id.first_line(line_count), id.second_line(line_count));
            prop_assert!(first < line_count && second < line_count);
            prop_assert!(first != second || line_count == 1);
        }
    }

    #[test]
    fn the_hash_of_a_key_depends_on_the_store_and_the_policy() {
        let policy = |rate: &str| Policy::token_bucket(rate).unwrap();
        let hash = CounterHash::random();
        let id = hash.id(b"user:42", &policy("10/s"));
        assert_eq!(id, hash.id(b"user:42", &policy("20/s")));
        assert_ne!(id, hash.id(b"user:42", &policy("10/min")));
        assert_ne!(id, hash.id(b"user:43", &policy("10/s")));
        assert_ne!(id, CounterHash::random().id(b"user:42", &policy("10/s")));
    }
}
