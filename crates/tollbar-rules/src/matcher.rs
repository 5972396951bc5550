//! Which conditions hold of a request, without looking at those that do not.
//!
//! Every positive test is an equality in disguise: of a whole value, of its first so many bytes, of
//! the first so many bits of an address. Conditions that test the same attributes in the same ways
//! have one *shape*; path patterns are a trie, and each has a *bucket*. A row of the one table is
//! found by bucket, shape and all values together, and holds the values, so that what is found is
//! compared on the spot. A lookup walks the trie and asks once for each shape of the buckets it
//! finds: what it costs follows from what matches, not from how many rules there are.
//!
//! What cannot be looked up, negated tests above all, is left to be compared afterwards.

mod router;
mod shape;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::num::NonZeroU32;

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use router::{BucketId, Router};
use shape::{AttributeId, LookupKey, Row, Shape, ShapeId};

use crate::hash::{HashedMap, TextMap, hash_text, mix};
use crate::request::ATTRIBUTES_MAX;
use crate::request::path::PathOptions;
use crate::rule::condition::PathReading;
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
    /// What every request has, where any condition tests it.
    method: Option<AttributeId>,
    path: Option<AttributeId>,
    router: Router,
    /// By path pattern; the first is for conditions without one.
    buckets: Vec<Bucket>,
    shapes: Vec<Shape>,
    by_lead: Vec<ByLead>,
    rows: HashedMap<SmallVec<[Row; 1]>>,
    /// By item: whether something is left to be compared.
    has_rest: Vec<bool>,
    /// Nothing has a condition.
    is_trivial: bool,
}

/// The conditions of one path pattern.
#[derive(Debug, Default)]
struct Bucket {
    /// Conditions that test no attribute in a way that can be looked up.
    always: SmallVec<[ItemId; 2]>,
    shapes: SmallVec<[ShapeId; 2]>,
    /// Where there are many shapes: the place in `Matcher::by_lead`, from 1.
    by_lead: Option<NonZeroU32>,
}

/// Shapes by the attribute that the fewest conditions test: who lacks it need not ask.
type ByLead = HashMap<AttributeId, Vec<ShapeId>>;

/// More shapes than this are not asked one by one.
const SHAPES_ASKED_MAX: usize = 8;

/// The attributes of a request that any condition tests.
#[derive(Debug)]
struct RequestAttributes<'r> {
    known: ArrayVec<RequestAttribute<'r>, { ATTRIBUTES_MAX + 2 }>,
}

#[derive(Debug, Clone, Copy)]
struct RequestAttribute<'r> {
    attribute: AttributeId,
    value: &'r str,
    hash: u64,
}

impl Matcher {
    /// Of conditions on paths that are folded by `options`.
    pub(crate) fn new<'c>(
        list: impl Iterator<Item = &'c Conditions> + Clone,
        options: PathOptions,
    ) -> Self {
        let mut matcher = Self { buckets: vec![Bucket::default()], ..Self::default() };
        let popularity = popularity(list.clone());
        let mut known_shapes = HashMap::new();
        for (item, conditions) in list.enumerate() {
            matcher.insert(item as ItemId, conditions, options, &popularity, &mut known_shapes);
        }
        matcher.is_trivial = matcher.buckets[0].always.len() == matcher.has_rest.len()
            && !matcher.has_rest.contains(&true);
        matcher.method = matcher.attribute("method");
        matcher.path = matcher.attribute("path");
        for bucket in &mut matcher.buckets {
            if let Some(by_lead) = bucket.by_lead(&matcher.shapes) {
                matcher.by_lead.push(by_lead);
                bucket.by_lead = NonZeroU32::new(matcher.by_lead.len() as u32);
            }
        }
        matcher
    }

    fn insert(
        &mut self,
        item: ItemId,
        conditions: &Conditions,
        options: PathOptions,
        popularity: &HashMap<&str, usize>,
        known_shapes: &mut HashMap<Shape, ShapeId>,
    ) {
        let mut tests: Vec<(AttributeId, usize, Vec<LookupKey>)> = Vec::new();
        let mut buckets: Option<SmallVec<[BucketId; 4]>> = None;
        let mut has_rest = false;
        for condition in conditions.all() {
            let name = &*condition.attribute;
            match &condition.test {
                // Of several conditions on the path, the first chooses the buckets.
                Test::Path(patterns) if name == "path" && buckets.is_none() => {
                    let ids = patterns.iter().map(|pattern| {
                        self.router.bucket(pattern, options, || {
                            self.buckets.push(Bucket::default());
                            (self.buckets.len() - 1) as BucketId
                        })
                    });
                    buckets = Some(ids.collect());
                }
                test => match shape::keys(test) {
                    Some(keys) => {
                        let attribute = self.intern(name);
                        let popularity = popularity.get(name).copied().unwrap_or(0);
                        tests.push((attribute, popularity, keys));
                    }
                    None => has_rest = true,
                },
            }
        }
        tests.sort_by_key(|(attribute, popularity, _)| (*popularity, *attribute));
        let (combinations, is_complete) = shape::combinations(tests);
        self.has_rest.push(has_rest || !is_complete);
        for bucket in buckets.unwrap_or_else(|| SmallVec::from_slice(&[0])) {
            for combination in &combinations {
                if combination.shape.is_empty() {
                    self.buckets[bucket as usize].always.push(item);
                    continue;
                }
                let next = self.shapes.len() as ShapeId;
                let shape = *known_shapes.entry(combination.shape.clone()).or_insert(next);
                if shape == next {
                    self.shapes.push(combination.shape.clone());
                }
                let shapes = &mut self.buckets[bucket as usize].shapes;
                if !shapes.contains(&shape) {
                    shapes.push(shape);
                }
                let values = combination.values.clone();
                let row = Row { item, bucket, shape, values };
                self.rows.entry(mix(row.place(), combination.hash)).or_default().push(row);
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

    /// The conditions that hold of `request`, whichever way its path is read. `found` is where they are
    /// written down, unless they are known already.
    #[inline]
    pub(crate) fn matching<'f, 'c>(
        &'f self,
        request: &Request<'_>,
        conditions: impl Fn(ItemId) -> &'c Conditions,
        found: &'f mut Items,
    ) -> &'f [ItemId] {
        if self.is_trivial {
            // They are there in the order of their insertion.
            return &self.buckets[0].always;
        }
        found.clear();
        self.read(request, PathReading::Decoded, &conditions, found);
        if request.path_with_slashes_kept().is_some() {
            self.read(request, PathReading::SlashesKept, &conditions, found);
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    /// The conditions that hold in one reading of the path.
    pub(crate) fn matching_as<'f, 'c>(
        &'f self,
        request: &Request<'_>,
        reading: PathReading,
        conditions: impl Fn(ItemId) -> &'c Conditions,
        found: &'f mut Items,
    ) -> &'f [ItemId] {
        if self.is_trivial {
            return &self.buckets[0].always;
        }
        found.clear();
        self.read(request, reading, &conditions, found);
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    #[inline]
    fn read<'c>(
        &self,
        request: &Request<'_>,
        reading: PathReading,
        conditions: &impl Fn(ItemId) -> &'c Conditions,
        found: &mut Items,
    ) {
        let before = found.len();
        self.look_up(request, reading, found);
        let mut kept = before;
        for at in before..found.len() {
            let item = found[at];
            if !self.has_rest[item as usize] || conditions(item).hold_as(request, reading) {
                found[kept] = item;
                kept += 1;
            }
        }
        found.truncate(kept);
    }

    #[inline]
    fn look_up(&self, request: &Request<'_>, reading: PathReading, found: &mut Items) {
        let path = request.path_as(reading);
        let mut attributes = RequestAttributes { known: ArrayVec::new() };
        self.learn(request, path, &mut attributes);
        self.look_into(0, &attributes, found);
        self.router.walk(path, &mut |bucket| self.look_into(bucket, &attributes, found));
    }

    #[inline]
    fn look_into(&self, bucket: BucketId, attributes: &RequestAttributes<'_>, found: &mut Items) {
        let Bucket { always, shapes, by_lead } = &self.buckets[bucket as usize];
        found.extend_from_slice(always);
        let mut ask = |shape: ShapeId| {
            let place = Row::place_of(bucket, shape);
            let dimensions = &self.shapes[shape as usize];
            if let Some(hash) = dimensions.hash(attributes)
                && let Some(rows) = self.rows.get(&mix(place, hash))
            {
                let same = rows.iter().filter(|row| row.place() == place);
                found.extend(
                    same.filter(|row| dimensions.agrees(attributes, row)).map(|row| row.item),
                );
            }
        };
        match by_lead {
            None => shapes.iter().for_each(|shape| ask(*shape)),
            Some(by_lead) => {
                let by_lead = &self.by_lead[by_lead.get() as usize - 1];
                for attribute in &attributes.known {
                    let led = by_lead.get(&attribute.attribute).into_iter().flatten();
                    led.for_each(|shape| ask(*shape));
                }
            }
        }
    }

    /// Filled in place: facts are two kilobytes of which a few words are used.
    #[inline]
    fn learn<'r>(
        &self,
        request: &'r Request<'_>,
        path: &'r str,
        attributes: &mut RequestAttributes<'r>,
    ) {
        if self.attribute_count == 0 {
            return;
        }
        let mut learn = |attribute, value: &'r str| {
            if !value.is_empty() {
                attributes.known.push(RequestAttribute {
                    attribute,
                    value,
                    hash: hash_text(value),
                });
            }
        };
        if let Some(attribute) = self.method {
            learn(attribute, request.method());
        }
        if let Some(attribute) = self.path {
            learn(attribute, path);
        }
        for (name, value) in request.facts() {
            if let Some(attribute) = self.attribute(name) {
                learn(attribute, value);
            }
        }
    }

    #[inline]
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
    /// Its shapes by the attribute that leads them, where they are many.
    fn by_lead(&self, shapes: &[Shape]) -> Option<ByLead> {
        if self.shapes.len() <= SHAPES_ASKED_MAX {
            return None;
        }
        let mut by_lead = ByLead::new();
        for shape in &self.shapes {
            if let Some(lead) = shapes[*shape as usize].lead() {
                by_lead.entry(lead).or_default().push(*shape);
            }
        }
        Some(by_lead)
    }
}

impl<'r> RequestAttributes<'r> {
    #[inline]
    fn get(&self, attribute: AttributeId) -> Option<&RequestAttribute<'r>> {
        self.known.iter().find(|known| known.attribute == attribute)
    }
}
