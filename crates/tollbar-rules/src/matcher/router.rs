//! A trie of path patterns.
//!
//! Each node is reached by one way only, so a walk visits no node twice: it costs as many steps as
//! there are nodes that the path agrees with.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::hash::{HashedMap, hash_text};
use crate::request::path::PathOptions;
use crate::rule::pattern::{PathPattern, Segment};

/// What is kept for one pattern, by number.
pub(super) type BucketId = u32;

type NodeId = u32;

/// Short ones lie beside their node: one place less to go to.
type Literal = SmallVec<[u8; 24]>;

#[derive(Debug)]
pub(super) struct Router {
    /// The first is the root.
    nodes: Vec<RouterNode>,
}

#[derive(Debug, Default)]
struct RouterNode {
    literals: HashedMap<SmallVec<[(Literal, NodeId); 1]>>,
    any: Option<NonZeroU32>,
    /// Of the pattern that ends here. Numbers from 1, so that a node is small: with ten thousand
    /// patterns, what a walk costs is the memory it touches.
    exact: Option<NonZeroU32>,
    /// Of the pattern that ends here with `**`.
    open: Option<NonZeroU32>,
}

impl Default for Router {
    fn default() -> Self {
        Self { nodes: vec![RouterNode::default()] }
    }
}

impl Router {
    /// The bucket of a pattern, made by `new` where there is none yet.
    pub(super) fn bucket(
        &mut self,
        pattern: &PathPattern,
        options: PathOptions,
        new: impl FnOnce() -> BucketId,
    ) -> BucketId {
        let mut at: NodeId = 0;
        for segment in pattern.segments() {
            let next = self.nodes.len() as NodeId;
            let node = &mut self.nodes[at as usize];
            at = match segment {
                // The root is nobody's child, so a child's number is not 0.
                Segment::Any => {
                    node.any = node.any.or(NonZeroU32::new(next));
                    node.any.map_or(next, NonZeroU32::get)
                }
                Segment::Literal(literal) => {
                    let literal = options.fold(literal);
                    let same = node.literals.entry(hash_text(&literal)).or_default();
                    let known = same.iter().find(|(known, _)| **known == *literal.as_bytes());
                    let known = known.map(|(_, child)| *child);
                    known.unwrap_or_else(|| {
                        same.push((Literal::from_slice(literal.as_bytes()), next));
                        next
                    })
                }
            };
            if at == next {
                self.nodes.push(RouterNode::default());
            }
        }
        let node = &mut self.nodes[at as usize];
        let place = if pattern.is_open() { &mut node.open } else { &mut node.exact };
        // The first bucket is for conditions without a path, so a pattern's number is not 0.
        if let Some(bucket) = place {
            return bucket.get();
        }
        let bucket = new();
        *place = NonZeroU32::new(bucket);
        bucket
    }

    /// Calls `found` for the bucket of every pattern that stands for `path`, which is normal.
    #[inline]
    pub(super) fn walk(&self, path: &str, found: &mut impl FnMut(BucketId)) {
        if self.nodes.len() > 1 || self.nodes[0].exact.is_some() || self.nodes[0].open.is_some() {
            self.walk_from(0, path.get(1..).unwrap_or_default(), found);
        }
    }

    /// Goes on at a node with what is left of the path. As deep as the deepest pattern, which is
    /// bounded.
    fn walk_from(&self, at: NodeId, rest: &str, found: &mut impl FnMut(BucketId)) {
        let node = &self.nodes[at as usize];
        if let Some(bucket) = node.open {
            found(bucket.get());
        }
        let end = rest.bytes().position(|byte| byte == b'/').unwrap_or(rest.len());
        let (segment, rest) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
        if segment.is_empty() {
            if let Some(bucket) = node.exact {
                found(bucket.get());
            }
            return;
        }
        if !node.literals.is_empty()
            && let Some(same) = node.literals.get(&hash_text(segment))
            && let Some((_, child)) = same.iter().find(|(known, _)| **known == *segment.as_bytes())
        {
            self.walk_from(*child, rest, found);
        }
        if let Some(child) = node.any {
            self.walk_from(child.get(), rest, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::request::path;

    fn router(patterns: &[PathPattern]) -> Router {
        let mut router = Router::default();
        let mut next = 0;
        for pattern in patterns {
            router.bucket(pattern, PathOptions::default(), || {
                next += 1;
                next
            });
        }
        router
    }

    proptest! {
        #[test]
        fn the_trie_finds_the_patterns_that_match(
            texts in prop::collection::vec("(/([ab]|\\*)){0,4}(/\\*\\*)?", 1..12),
            path in "(/[abc]){0,5}",
        ) {
            let mut patterns: Vec<PathPattern> =
                texts.iter().map(|text| format!("/{}", text.trim_start_matches('/')).parse().unwrap()).collect();
            patterns.sort();
            patterns.dedup();
            let path = if path.is_empty() { "/".to_owned() } else { path };
            let mut found = Vec::new();
            router(&patterns).walk(&path, &mut |bucket| found.push(bucket));
            found.sort_unstable();
            let matching = (0..patterns.len()).filter(|at| patterns[*at].matches(&path));
            let expected: Vec<BucketId> = matching.map(|at| at as BucketId + 1).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_deepest_paths_and_patterns_are_walked() {
        let deep: PathPattern = "/*".repeat(64).parse().unwrap();
        let mut found = 0;
        router(&[deep]).walk(&"/a".repeat(64), &mut |_| found += 1);
        assert_eq!(found, 1);
        assert_eq!(path::segments(&"/a".repeat(64)).count(), 64);
    }
}
