//! Conditions of one shape: the same attributes tested in the same ways, told apart by values.

use smallvec::SmallVec;

use super::{ItemId, RequestAttributes};
use crate::Test;
use crate::hash::{hash_text, mix};
use crate::rule::cidr::{Family, bits_of, masked};

/// An attribute, by number.
pub(super) type AttributeId = u32;

/// A shape, by number.
pub(super) type ShapeId = u32;

/// The most rows that one item's alternatives may make; beyond it, tests are left to comparing.
const ROWS_MAX: usize = 1 << 17;

/// The part of an attribute that is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LookupPart {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Dimension {
    attribute: AttributeId,
    part: LookupPart,
}

/// The attributes that are looked up, the one that the fewest conditions test first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Shape {
    dimensions: SmallVec<[Dimension; 4]>,
}

/// The values of a row, one after the other: a text as its length and its bytes, a block as its
/// network.
pub(super) type Values = SmallVec<[u8; 32]>;

/// An item under one combination of its alternatives.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) item: ItemId,
    pub(super) bucket: u32,
    pub(super) shape: ShapeId,
    pub(super) values: Values,
}

/// One alternative of a test: what is looked up, the hash it must have, and its value.
#[derive(Debug)]
pub(super) struct LookupKey {
    part: LookupPart,
    hash: u64,
    value: Values,
}

/// One alternative of each test.
#[derive(Debug, Clone, Default)]
pub(super) struct Combination {
    pub(super) shape: Shape,
    pub(super) hash: u64,
    pub(super) values: Values,
}

impl Shape {
    pub(super) fn is_empty(&self) -> bool {
        self.dimensions.is_empty()
    }

    pub(super) fn lead(&self) -> Option<AttributeId> {
        self.dimensions.first().map(|dimension| dimension.attribute)
    }

    /// The hash of what of a request is looked up; `None` where it lacks something.
    #[inline]
    pub(super) fn hash(&self, attributes: &RequestAttributes<'_>) -> Option<u64> {
        let mut hash = 0;
        for Dimension { attribute, part } in &self.dimensions {
            let attribute = attributes.get(*attribute)?;
            hash = mix(hash, part.hash(attribute.value, attribute.hash)?);
        }
        Some(hash)
    }

    /// True where the request has the row's very values.
    #[inline]
    pub(super) fn agrees(&self, attributes: &RequestAttributes<'_>, row: &Row) -> bool {
        let mut rest = row.values.as_slice();
        self.dimensions.iter().all(|Dimension { attribute, part }| {
            attributes
                .get(*attribute)
                .is_some_and(|attribute| part.agrees(attribute.value, &mut rest))
        })
    }
}

impl Row {
    /// Where it belongs, as one number.
    #[inline]
    pub(super) fn place(&self) -> u64 {
        Self::place_of(self.bucket, self.shape)
    }

    #[inline]
    pub(super) fn place_of(bucket: u32, shape: ShapeId) -> u64 {
        u64::from(bucket) << 32 | u64::from(shape)
    }
}

/// Lengths are written in so many bytes; no value is as long as that.
const LENGTH_BYTES: usize = 4;

impl LookupPart {
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

    /// Compares what of `value` is looked up with the next of a row's values, and goes on to the
    /// one after it.
    #[inline]
    fn agrees(self, value: &str, rest: &mut &[u8]) -> bool {
        let text = match self {
            Self::Presence => return true,
            Self::Block(_, prefix_bits) => {
                let Some((network, after)) = rest.split_first_chunk::<16>() else {
                    return false;
                };
                *rest = after;
                let bits = value.parse().map(|address| bits_of(address).1);
                return bits.is_ok_and(|bits| masked(bits, prefix_bits).to_le_bytes() == *network);
            }
            Self::Whole => value,
            Self::Prefix(bytes) => match value.get(..bytes) {
                Some(prefix) => prefix,
                None => return false,
            },
        };
        let Some((length, after)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return false;
        };
        let length = u32::from_le_bytes(*length) as usize;
        match after.split_at_checked(length) {
            Some((known, after)) => {
                *rest = after;
                known == text.as_bytes()
            }
            None => false,
        }
    }
}

fn hash_bits(bits: u128) -> u64 {
    mix(bits as u64, (bits >> 64) as u64)
}

/// The alternatives of a positive test; `None` for what cannot be looked up.
pub(super) fn keys(test: &Test) -> Option<Vec<LookupKey>> {
    let of_text = |part: LookupPart, text: &str| {
        let mut value = Values::from_slice(&(text.len() as u32).to_le_bytes());
        value.extend_from_slice(text.as_bytes());
        LookupKey { part, hash: hash_text(text), value }
    };
    Some(match test {
        Test::OneOf(known) => known.iter().map(|value| of_text(LookupPart::Whole, value)).collect(),
        Test::Prefix(prefix) => vec![of_text(LookupPart::Prefix(prefix.len()), prefix)],
        Test::Within(blocks) => {
            let key = |block: &crate::Cidr| {
                let (family, prefix_bits) = block.shape();
                let value = Values::from_slice(&block.network().to_le_bytes());
                LookupKey {
                    part: LookupPart::Block(family, prefix_bits),
                    hash: hash_bits(block.network()),
                    value,
                }
            };
            blocks.iter().map(key).collect()
        }
        Test::Present => {
            vec![LookupKey { part: LookupPart::Presence, hash: 0, value: Values::new() }]
        }
        Test::Path(_) | Test::Not(_) => return None,
    })
}

/// Every combination of alternatives, and whether they are of all tests: those with the most
/// alternatives are left out where the combinations would be too many.
pub(super) fn combinations(
    mut tests: Vec<(AttributeId, usize, Vec<LookupKey>)>,
) -> (Vec<Combination>, bool) {
    let count = |tests: &[(AttributeId, usize, Vec<LookupKey>)]| {
        tests.iter().fold(1_usize, |count, (_, _, keys)| count.saturating_mul(keys.len()))
    };
    let mut is_complete = true;
    while count(&tests) > ROWS_MAX {
        let widest = (0..tests.len()).max_by_key(|at| tests[*at].2.len());
        tests.remove(widest.unwrap_or(0));
        is_complete = false;
    }
    let mut combinations = vec![Combination::default()];
    for (attribute, _, keys) in tests {
        let mut longer = Vec::with_capacity(combinations.len() * keys.len());
        for before in &combinations {
            for LookupKey { part, hash, value } in &keys {
                let mut combination = before.clone();
                combination.shape.dimensions.push(Dimension { attribute, part: *part });
                combination.hash = mix(combination.hash, *hash);
                combination.values.extend_from_slice(value);
                longer.push(combination);
            }
        }
        combinations = longer;
    }
    (combinations, is_complete)
}

#[cfg(test)]
mod tests {
    use arrayvec::ArrayVec;

    use super::super::RequestAttribute;
    use super::*;

    /// The hash has no secret: whoever makes two values collide must not pass for the other.
    #[test]
    fn a_row_of_the_same_hash_and_other_values_does_not_agree() {
        let test = Test::OneOf(["acme".into()].into());
        let block = Test::Within(["10.0.0.0/8".parse().unwrap()].into());
        let prefix = Test::Prefix("ac".into());
        for (test, same, other) in [
            (&test, "acme", "acmf"),
            (&test, "acme", "acme2"),
            (&prefix, "acorn", "bacon"),
            (&prefix, "ac", "a"),
            (&block, "10.9.9.9", "11.0.0.0"),
            (&block, "::ffff:10.0.0.1", "nonsense"),
        ] {
            let keys = keys(test).unwrap();
            let (mut all, _) = combinations(vec![(0, 1, keys)]);
            let Combination { shape, values, .. } = all.remove(0);
            let row = Row { item: 0, bucket: 0, shape: 0, values };
            let attributes = |value| {
                let mut known = ArrayVec::new();
                known.push(RequestAttribute { attribute: 0, value, hash: 7 });
                RequestAttributes { known }
            };
            assert!(shape.agrees(&attributes(same), &row), "{same}");
            assert!(!shape.agrees(&attributes(other), &row), "{other}");
        }
    }

    /// Blocks are looked up by their hash: were it that of one half, a long list would be compared.
    #[test]
    fn blocks_that_differ_in_either_half_have_different_hashes() {
        let blocks = ["2001:db8:1::/128", "2001:db8:2::/128", "2001:db8:1::1/128"];
        let test = Test::Within(blocks.map(|text| text.parse().unwrap()).into());
        let keys = keys(&test).unwrap();
        let hashes: std::collections::BTreeSet<u64> = keys.iter().map(|key| key.hash).collect();
        assert_eq!(hashes.len(), blocks.len());
    }
}
