//! From a key and a policy to the 64 bits that name a counter.

use std::fmt;

use polymur_hash::PolymurHash;

use crate::Policy;
use crate::algorithm::word::PERMITS_SHIFT;

/// Names one counter: a keyed hash of the key, salted with the policy's identity. Never zero.
///
/// Two counters whose names are the same count together. With ten million counters alive the
/// chance that any two do is 3 in a million; nobody can look for such keys, because the hash is
/// keyed with a secret of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CounterId(u64);

/// `PolymurHash` under a key drawn when the store is made.
pub(crate) struct CounterHash {
    hasher: PolymurHash,
    seeds: [u64; 2],
}

impl CounterHash {
    pub(crate) fn random() -> Self {
        // A model must be the same every time it is run.
        Self::from_seeds(if cfg!(tollbar_loom) { [0; 2] } else { rand::random() })
    }

    /// The hash that gives the same names as the one whose [`seeds`](Self::seeds) these are.
    pub(super) fn from_seeds(seeds: [u64; 2]) -> Self {
        Self { hasher: PolymurHash::from_u64x2_seed(seeds[0], seeds[1]), seeds }
    }

    /// The secret key.
    pub(super) fn seeds(&self) -> [u64; 2] {
        self.seeds
    }

    #[inline]
    pub(crate) fn id(&self, key: &[u8], policy: &Policy) -> CounterId {
        CounterId::new(self.hasher.hash(key) ^ policy.salt)
    }
}

impl CounterHash {
    /// Names something that is no counter.
    pub(super) fn salted(&self, bytes: &[u8], salt: u64) -> CounterId {
        CounterId::new(self.hasher.hash(bytes) ^ salt)
    }
}

impl fmt::Debug for CounterHash {
    /// Without the key, which is a secret and would end up in a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CounterHash").finish_non_exhaustive()
    }
}

/// In a tag word: set where a slot belongs to a counter.
const IN_USE: u64 = 0x80;

/// The tag of a slot whose counter has moved away. Unlike an empty slot it says nothing about
/// whether the line was ever full.
pub(super) const MOVED: u64 = 0x40;

/// More than the shift of any window; with it, a word still has a bit of time.
const SHIFT_MAX: u32 = 52;

impl CounterId {
    pub(super) fn new(hash: u64) -> Self {
        Self(hash.max(1))
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// The tag word: 56 bits of the name, and the shift that says how to read the state's time.
    #[inline]
    pub(super) fn tag(self, shift: u32) -> u64 {
        self.0 << 8 | IN_USE | u64::from(shift)
    }

    /// True where `tag` is this counter's, whatever its shift.
    pub(super) fn is_named_by(self, tag: u64) -> bool {
        self.tag(tag_shift(tag)) == tag
    }

    /// The first line it may live in: the high bits, scaled to `line_count`.
    #[inline]
    pub(super) fn first_line(self, line_count: usize) -> usize {
        scale(self.0, line_count)
    }

    /// The second line: other bits, and another line wherever there is one.
    #[inline]
    pub(super) fn second_line(self, line_count: usize) -> usize {
        let line = self.first_line(line_count) + self.second_step(line_count);
        if line >= line_count { line - line_count } else { line }
    }

    #[inline]
    fn second_step(self, line_count: usize) -> usize {
        1 + scale(self.0.rotate_left(32), line_count - 1)
    }

    /// One of `count`, by bits of their own.
    #[inline]
    pub(super) fn bucket(self, count: usize) -> usize {
        scale(self.0.rotate_left(16), count)
    }

    /// The shard, out of a power of two.
    #[inline]
    pub(crate) fn shard(self, shard_count: usize) -> usize {
        self.0 as usize & (shard_count - 1)
    }
}

/// The counters that a tag in line `line` can stand for.
///
/// A tag keeps 56 bits of the name; the high 8 follow from the line. In `line_count` lines,
/// names that differ in the high bits alone are `line_count` / 256 lines apart, so from 256 lines
/// on there is one name at most whose first line this is, and, the step to a second line hanging
/// on the low bits, one (at a boundary, two) whose second line it is. Mostly only one of them
/// exists: that both do has a chance of 256 in `line_count`.
pub(super) fn names_of_tag(
    tag: u64,
    line: usize,
    line_count: usize,
) -> impl Iterator<Item = CounterId> {
    let low = tag >> 8;
    let name = move |high: u64| CounterId(high << 56 | low);
    let names_in = move |first: usize| {
        // first <= name x count / 2^64 < first + 1, and the high bits are name / 2^56.
        let least = first as u64 * 256 / line_count as u64;
        let most = ((first as u64 + 1) * 256 / line_count as u64).min(255);
        let names = (least..=most).map(name);
        names.filter(move |name| name.0 != 0 && name.first_line(line_count) == first)
    };
    // The high bits come last in what the step is made from: it is the same for all of them, or
    // nearly so.
    let steps = name(0).second_step(line_count)..=name(255).second_step(line_count);
    let firsts = steps.map(move |step| (line + line_count - step) % line_count);
    let seconds = firsts.filter(move |first| *first != line).flat_map(names_in);
    names_in(line).chain(seconds.filter(move |name| name.second_line(line_count) == line))
}

/// True where a counter can have written such a tag: no stranger's shift, which would not fit.
pub(super) fn is_valid_tag(tag: u64) -> bool {
    is_in_use(tag) && tag & MOVED == 0 && tag_shift(tag) <= SHIFT_MAX
}

/// True where the slot belongs to a counter.
pub(super) fn is_in_use(tag: u64) -> bool {
    tag & IN_USE != 0
}

/// True where the slot counts permits in flight.
pub(super) fn counts_permits(tag: u64) -> bool {
    is_in_use(tag) && tag_shift(tag) == PERMITS_SHIFT
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

        #[test]
        fn a_tag_and_a_line_of_either_kind_lead_back_to_the_name(
            hash: u64,
            line_count in prop_oneof![1_usize..1_000, 1_usize..100_000_000, Just(1 << 36)],
        ) {
            let id = CounterId::new(hash);
            for line in [id.first_line(line_count), id.second_line(line_count)] {
                let names: Vec<_> = names_of_tag(id.tag(7), line, line_count).collect();
                prop_assert!(names.contains(&id));
                prop_assert!(line_count < 256 || names.len() <= 3, "{names:?}");
                for (at, name) in names.iter().enumerate() {
                    prop_assert_eq!(name.tag(7), id.tag(7));
                    prop_assert!(!names[..at].contains(name));
                }
            }
        }
    }

    #[test]
    fn in_a_single_line_a_tag_may_be_that_of_any_high_bits() {
        let names: Vec<_> = names_of_tag(CounterId(0x2a).tag(7), 0, 1).collect();
        let expected: Vec<_> = (0..256).map(|high| CounterId(high << 56 | 0x2a)).collect();
        assert_eq!(names, expected);
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
