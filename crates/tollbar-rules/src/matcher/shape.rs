//! Conditions of one shape: the same attributes tested in the same ways, told apart by values.

use smallvec::SmallVec;

use super::{Facts, ItemId};
use crate::Test;
use crate::cidr::{Family, bits_of, masked};
use crate::hash::{HashedMap, hash_text, mix};

/// An attribute, by number.
pub(super) type AttributeId = u32;

/// The most rows that one item's alternatives may make; beyond it, tests are left to comparing.
const ROWS_MAX: usize = 1 << 17;

/// What of an attribute is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// All of it.
    Whole,
    /// Its first so many bytes.
    Prefix(usize),
    /// The first so many bits of the address it is.
    Block(Family, u32),
    /// That it is there.
    Presence,
}

/// An attribute and what of it is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dimension {
    attribute: AttributeId,
    way: Way,
}

/// One alternative of a test: what is looked up, and the hash it must have.
pub(super) type Key = (Way, u64);

#[derive(Debug)]
pub(super) struct Shape {
    dimensions: Box<[Dimension]>,
    items: HashedMap<SmallVec<[ItemId; 2]>>,
}

impl Dimension {
    pub(super) fn attribute(&self) -> AttributeId {
        self.attribute
    }
}

impl Shape {
    pub(super) fn new(dimensions: &[Dimension]) -> Self {
        Self { dimensions: dimensions.into(), items: HashedMap::default() }
    }

    pub(super) fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    pub(super) fn insert(&mut self, hash: u64, item: ItemId) {
        let items = self.items.entry(hash).or_default();
        if items.last() != Some(&item) {
            items.push(item);
        }
    }

    /// Whoever has the values that the request has.
    #[inline]
    pub(super) fn lookup(&self, facts: &Facts<'_>) -> &[ItemId] {
        let mut hash = 0;
        for dimension in &self.dimensions {
            let Some(fact) = facts.get(dimension.attribute) else {
                return &[];
            };
            let Some(part) = dimension.way.hash(fact.value, fact.hash) else {
                return &[];
            };
            hash = mix(hash, part);
        }
        self.items.get(&hash).map_or(&[], |items| items)
    }
}

impl Way {
    /// The hash of what of `value` is looked up; `whole` is that of all of it.
    #[inline]
    fn hash(self, value: &str, whole: u64) -> Option<u64> {
        match self {
            Self::Whole => Some(whole),
            Self::Presence => Some(0),
            Self::Prefix(bytes) => value.get(..bytes).map(hash_text),
            Self::Block(family, prefix_bits) => {
                let (its_family, bits) = bits_of(value.parse().ok()?);
                (its_family == family).then(|| hash_bits(masked(bits, prefix_bits)))
            }
        }
    }
}

fn hash_bits(bits: u128) -> u64 {
    mix(bits as u64, (bits >> 64) as u64)
}

/// The alternatives of a positive test; `None` for what cannot be looked up.
pub(super) fn keys(test: &Test) -> Option<Vec<Key>> {
    Some(match test {
        Test::OneOf(known) => known.iter().map(|it| (Way::Whole, hash_text(it))).collect(),
        Test::Prefix(prefix) => vec![(Way::Prefix(prefix.len()), hash_text(prefix))],
        Test::Within(blocks) => {
            let key = |block: &crate::Cidr| {
                let (family, prefix_bits) = block.shape();
                (Way::Block(family, prefix_bits), hash_bits(block.network()))
            };
            blocks.iter().map(key).collect()
        }
        Test::Present => vec![(Way::Presence, 0)],
        Test::Path(_) | Test::Not(_) => return None,
    })
}

/// Every combination of alternatives as its dimensions and its hash. Tests are left out, those with
/// the most alternatives first, where the combinations would be too many.
pub(super) fn rows(tests: &[(AttributeId, usize, Vec<Key>)]) -> Vec<(Vec<Dimension>, u64)> {
    let mut used: Vec<&(AttributeId, usize, Vec<Key>)> = tests.iter().collect();
    let count = |used: &[&(AttributeId, usize, Vec<Key>)]| {
        used.iter().fold(1_usize, |count, (_, _, keys)| count.saturating_mul(keys.len()))
    };
    while count(&used) > ROWS_MAX {
        let widest = (0..used.len()).max_by_key(|at| used[*at].2.len());
        used.remove(widest.unwrap_or(0));
    }
    let mut rows = vec![(Vec::new(), 0)];
    for (attribute, _, keys) in used {
        let mut longer = Vec::with_capacity(rows.len() * keys.len());
        for (dimensions, hash) in &rows {
            for (way, part) in keys {
                let mut dimensions: Vec<Dimension> = dimensions.clone();
                dimensions.push(Dimension { attribute: *attribute, way: *way });
                longer.push((dimensions, mix(*hash, *part)));
            }
        }
        rows = longer;
    }
    rows
}
