//! Which rules are replaced, where rules that replace others may be replaced themselves.
//!
//! A rule is replaced if a rule that is not replaced names it. So if `a` replaces `b`, and `b` replaces `c`,
//! then `a` and `c` are in force: `b` has no effect at all. Of rules that replace each other in a circle,
//! the one that is looked at first stays.

use smallvec::SmallVec;

use crate::matcher::ItemId;

/// What the rules that apply replace.
#[derive(Debug, Clone, Default)]
pub(super) struct Replacements {
    /// A rule, and the rule that names it.
    pairs: SmallVec<[(ItemId, ItemId); 4]>,
}

/// Rules that are replaced, each with one that replaces it, in their order.
#[derive(Debug, Default)]
pub(super) struct Replaced(SmallVec<[(ItemId, ItemId); 4]>);

/// What is known of a rule that others replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unknown,
    InForce,
    ReplacedBy(ItemId),
}

impl Replacements {
    /// `by` applies, and replaces these.
    pub(super) fn add(&mut self, by: ItemId, replaced: &[ItemId]) {
        self.pairs.extend(replaced.iter().map(|at| (*at, by)));
    }

    /// Finds out which rules are replaced. Rules are numbered in the order in which they are looked at.
    #[inline]
    pub(super) fn resolve(&self) -> Replaced {
        if self.pairs.is_empty() { Replaced::default() } else { self.resolve_all() }
    }

    #[cold]
    fn resolve_all(&self) -> Replaced {
        let mut pairs = self.pairs.clone();
        pairs.sort_unstable();
        pairs.dedup();
        let mut states: Vec<(ItemId, State)> =
            pairs.iter().map(|(at, _)| (*at, State::Unknown)).collect();
        states.dedup();
        let state_of = |states: &[(ItemId, State)], at: ItemId| {
            let place = states.binary_search_by_key(&at, |(known, _)| *known);
            place.map_or(State::InForce, |place| states[place].1)
        };
        loop {
            let (mut has_changed, mut first_unknown) = (false, None);
            for place in 0..states.len() {
                let (at, state) = states[place];
                if state != State::Unknown {
                    continue;
                }
                let from = pairs.partition_point(|(replaced, _)| *replaced < at);
                let by = pairs[from..].iter().take_while(|(replaced, _)| *replaced == at);
                let mut known = State::InForce;
                for (_, by) in by {
                    match state_of(&states, *by) {
                        State::InForce => {
                            known = State::ReplacedBy(*by);
                            break;
                        }
                        State::Unknown => known = State::Unknown,
                        State::ReplacedBy(_) => {}
                    }
                }
                if known == State::Unknown {
                    first_unknown = first_unknown.or(Some(place));
                } else {
                    states[place].1 = known;
                    has_changed = true;
                }
            }
            match first_unknown {
                None => break,
                // A circle.
                Some(place) if !has_changed => states[place].1 = State::InForce,
                Some(_) => {}
            }
        }
        let replaced = states.into_iter().filter_map(|(at, state)| match state {
            State::ReplacedBy(by) => Some((at, by)),
            State::Unknown | State::InForce => None,
        });
        Replaced(replaced.collect())
    }
}

impl Replaced {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rule that replaces `at`, if one does.
    #[inline]
    pub(super) fn by(&self, at: ItemId) -> Option<ItemId> {
        if self.0.is_empty() {
            return None;
        }
        let place = self.0.binary_search_by_key(&at, |(replaced, _)| *replaced).ok()?;
        Some(self.0[place].1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ItemId, ItemId)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(pairs: &[(ItemId, &[ItemId])]) -> Vec<(ItemId, ItemId)> {
        let mut replacements = Replacements::default();
        for (by, replaced) in pairs {
            replacements.add(*by, replaced);
        }
        replacements.resolve().iter().collect()
    }

    #[test]
    fn a_rule_that_is_replaced_replaces_none() {
        assert_eq!(replaced(&[]), []);
        assert_eq!(replaced(&[(1, &[2])]), [(2, 1)]);
        // Chains, from the first rule down and from the last one up.
        assert_eq!(replaced(&[(1, &[2]), (2, &[3])]), [(2, 1)]);
        assert_eq!(replaced(&[(3, &[2]), (2, &[1])]), [(2, 3)]);
        assert_eq!(replaced(&[(1, &[2]), (2, &[3]), (3, &[4])]), [(2, 1), (4, 3)]);
        // Two replace one; the one that is replaced itself does not count.
        assert_eq!(replaced(&[(1, &[3]), (2, &[3])]), [(3, 1)]);
        assert_eq!(replaced(&[(0, &[1]), (1, &[3]), (2, &[3])]), [(1, 0), (3, 2)]);
    }

    #[test]
    fn of_a_circle_the_first_stays() {
        assert_eq!(replaced(&[(1, &[2]), (2, &[1])]), [(2, 1)]);
        assert_eq!(replaced(&[(1, &[3]), (2, &[1]), (3, &[2])]), [(3, 1)]);
        // What is replaced from outside a circle breaks it.
        assert_eq!(replaced(&[(1, &[2]), (2, &[1]), (3, &[1])]), [(1, 3)]);
    }
}
