//! Which conditions hold of a request, without looking at those that do not.
//!
//! Every positive test is an equality in disguise: of a whole value, of its first so many bytes, of
//! the first so many bits of an address. Conditions that test the same attributes in the same ways
//! have one *shape* and share one hash table, keyed by all their values together; path patterns are
//! a trie. A lookup walks the trie and asks each table once, so what it costs follows from what
//! matches and from how many shapes there are, not from how many rules. What is found is then
//! compared in full, negated tests and all: the index may propose too much, never too little.

mod router;
mod shape;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use router::{BucketId, Router};
use shape::{AttributeId, Dimension, Key, Shape};

use crate::condition::Reading;
use crate::hash::{TextMap, hash_text};
use crate::request::ATTRIBUTES_MAX;
use crate::{Conditions, Request, Test};

/// A place in the list that a matcher was made from.
pub(crate) type ItemId = u32;

/// What was found, in ascending order.
pub(crate) type Items = SmallVec<[ItemId; 32]>;

/// Finds those of a list of conditions that hold.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    attributes: TextMap<AttributeId>,
    attribute_count: AttributeId,
    router: Router,
    /// By path pattern; the first is for conditions without one.
    buckets: Vec<Bucket>,
}

/// The conditions of one path pattern.
#[derive(Debug, Default)]
struct Bucket {
    /// Conditions that test no attribute in a way that can be looked up.
    always: Vec<ItemId>,
    /// By the attribute that the fewest conditions test: who lacks it need not ask.
    shapes: BTreeMap<AttributeId, Vec<Shape>>,
}

/// The attributes of a request that any condition tests.
#[derive(Debug)]
pub(crate) struct Facts<'r> {
    known: ArrayVec<Fact<'r>, { ATTRIBUTES_MAX + 2 }>,
}

#[derive(Debug, Clone, Copy)]
struct Fact<'r> {
    attribute: AttributeId,
    value: &'r str,
    hash: u64,
}

impl Matcher {
    pub(crate) fn new<'c>(list: impl Iterator<Item = &'c Conditions> + Clone) -> Self {
        let mut matcher = Self { buckets: vec![Bucket::default()], ..Self::default() };
        let popularity = popularity(list.clone());
        for (item, conditions) in list.enumerate() {
            matcher.insert(item as ItemId, conditions, &popularity);
        }
        matcher
    }

    fn insert(&mut self, item: ItemId, conditions: &Conditions, popularity: &HashMap<&str, usize>) {
        let mut tests: Vec<(AttributeId, usize, Vec<Key>)> = Vec::new();
        let mut buckets: Option<Vec<BucketId>> = None;
        for condition in conditions.all() {
            let name = &*condition.attribute;
            match &condition.test {
                // Several conditions on the path: the first chooses the bucket, comparing does the rest.
                Test::Path(patterns) if name == "path" && buckets.is_none() => {
                    let ids = patterns.iter().map(|pattern| {
                        self.router.bucket(pattern, || {
                            self.buckets.push(Bucket::default());
                            self.buckets.len() - 1
                        })
                    });
                    buckets = Some(ids.collect());
                }
                test => {
                    if let Some(keys) = shape::keys(test) {
                        let attribute = self.intern(name);
                        let popularity = popularity.get(name).copied().unwrap_or(0);
                        tests.push((attribute, popularity, keys));
                    }
                }
            }
        }
        tests.sort_by_key(|(attribute, popularity, _)| (*popularity, *attribute));
        let rows = shape::rows(&tests);
        for bucket in buckets.unwrap_or_else(|| vec![0]) {
            for (dimensions, hash) in &rows {
                self.buckets[bucket].insert(item, dimensions, *hash);
            }
        }
    }

    /// The number of an attribute; the same for the same name.
    fn intern(&mut self, name: &str) -> AttributeId {
        if let Some(attribute) = self.attribute(name) {
            return attribute;
        }
        let attribute = self.attribute_count;
        self.attribute_count += 1;
        self.attributes.entry(hash_text(name)).or_default().push((name.into(), attribute));
        attribute
    }

    /// The conditions that hold of `request`, whichever way its path is read.
    pub(crate) fn matching<'c>(
        &self,
        request: &Request<'_>,
        conditions: impl Fn(ItemId) -> &'c Conditions,
        found: &mut Items,
    ) {
        found.clear();
        self.propose(request, Reading::Decoded, found);
        if request.path_with_slashes_kept().is_some() {
            self.propose(request, Reading::SlashesKept, found);
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|item| conditions(*item).hold(request));
    }

    fn propose(&self, request: &Request<'_>, reading: Reading, found: &mut Items) {
        let facts = self.facts(request, reading);
        self.buckets[0].propose(&facts, found);
        self.router.walk(request.path_as(reading), &mut |bucket| {
            self.buckets[bucket].propose(&facts, found);
        });
    }

    fn facts<'r>(&self, request: &'r Request<'_>, reading: Reading) -> Facts<'r> {
        let mut facts = Facts { known: ArrayVec::new() };
        if self.attributes.is_empty() {
            return facts;
        }
        let own = [("method", request.method()), ("path", request.path_as(reading))];
        for (name, value) in own.into_iter().chain(request.attributes().iter().copied()) {
            if let (Some(attribute), false) = (self.attribute(name), value.is_empty()) {
                facts.known.push(Fact { attribute, value, hash: hash_text(value) });
            }
        }
        facts
    }

    fn attribute(&self, name: &str) -> Option<AttributeId> {
        let named = self.attributes.get(&hash_text(name))?;
        named.iter().find(|(known, _)| **known == *name).map(|(_, attribute)| *attribute)
    }
}

/// How many conditions test each attribute.
fn popularity<'c>(list: impl Iterator<Item = &'c Conditions>) -> HashMap<&'c str, usize> {
    let mut popularity = HashMap::new();
    for condition in list.flat_map(Conditions::all) {
        *popularity.entry(&*condition.attribute).or_insert(0) += 1;
    }
    popularity
}

impl Bucket {
    fn insert(&mut self, item: ItemId, dimensions: &[Dimension], hash: u64) {
        let Some(lead) = dimensions.first() else {
            if self.always.last() != Some(&item) {
                self.always.push(item);
            }
            return;
        };
        let shapes = self.shapes.entry(lead.attribute()).or_default();
        if let Some(shape) = shapes.iter_mut().find(|shape| shape.dimensions() == dimensions) {
            return shape.insert(hash, item);
        }
        let mut shape = Shape::new(dimensions);
        shape.insert(hash, item);
        shapes.push(shape);
    }

    #[inline]
    fn propose(&self, facts: &Facts<'_>, found: &mut Items) {
        found.extend_from_slice(&self.always);
        if self.shapes.is_empty() {
            return;
        }
        for fact in &facts.known {
            for shape in self.shapes.get(&fact.attribute).into_iter().flatten() {
                found.extend_from_slice(shape.lookup(facts));
            }
        }
    }
}

impl<'r> Facts<'r> {
    #[inline]
    fn get(&self, attribute: AttributeId) -> Option<&Fact<'r>> {
        self.known.iter().find(|fact| fact.attribute == attribute)
    }
}
