//! Alternatives: a request may pay by the first of several sets of entries that allows it.
//!
//! The limits of a request are *groups*, and every group must allow. An entry without an [`Alternative`] is a group of
//! its own. Any other group is a run of neighbouring entries with one [`group`](Alternative::group) number and one
//! [role](Role), and is made of alternatives: runs with one [`order`](Alternative::order) number. An alternative allows
//! if all of its entries allow. The first one that allows pays, and the others pay nothing.
//!
//! Knows no state: a store brings the decisions.

use super::{Entry, Role};
use crate::Decision;

/// The place of an entry among the alternatives of its request.
///
/// The entries of a group stand side by side in a batch, and so do those of an alternative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Alternative {
    /// Which group of the request: every group must allow.
    pub group: u8,
    /// Which alternative of the group: they are tried in the order in which they stand in the batch.
    pub order: u8,
}

/// Decides and charges entries one by one, on states that can be put back.
pub(crate) trait EntryDecider<'e> {
    /// The states as they were.
    type Saved;

    fn entries(&mut self) -> &mut [Entry<'e>];

    /// Decides an entry at its cost, and charges the states if it is allowed.
    fn charge(&mut self, at: usize);

    /// Has an entry say what remains now.
    fn peek(&mut self, at: usize);

    fn save(&self) -> Self::Saved;

    fn restore(&mut self, saved: Self::Saved);
}

/// Decides all entries of a request: the enforced ones first, so that a shadow sees what they have charged. Returns
/// false if it is denied; then what was charged is not to be kept.
///
/// The first alternative of a group that allows is charged. Of the others, those before it hold their denials, and
/// whatever would have been allowed says what remains.
pub(crate) fn decide_entries<'e>(decider: &mut impl EntryDecider<'e>) -> bool {
    let mut is_allowed = true;
    let mut has_alternatives = false;
    for role in [Role::Enforce, Role::Shadow] {
        let mut at = 0;
        while at < decider.entries().len() {
            let first = &decider.entries()[at];
            let (its_role, is_plain) = (first.role, first.alternative.is_none());
            let end = if is_plain { at + 1 } else { group_end(decider.entries(), at) };
            if its_role == role {
                let allows = if is_plain {
                    decider.charge(at);
                    allows(&decider.entries()[at])
                } else {
                    has_alternatives = true;
                    decide_group(decider, at, end)
                };
                is_allowed &= allows || role == Role::Shadow;
            }
            at = end;
        }
    }
    if is_allowed && has_alternatives {
        for at in 0..decider.entries().len() {
            let entry = &decider.entries()[at];
            if entry.is_unused && !denies(entry) {
                decider.peek(at);
            }
        }
    }
    is_allowed
}

/// Decides the alternatives of one group in their order, and charges the first that allows.
fn decide_group<'e>(decider: &mut impl EntryDecider<'e>, start: usize, end: usize) -> bool {
    let mut is_paid = false;
    let mut first = start;
    while first < end {
        let after = alternative_end(&decider.entries()[..end], first);
        let mut pays = !is_paid;
        if pays {
            let saved = decider.save();
            // All of them, also after a denial: the longest wait of an alternative is its own.
            for at in first..after {
                decider.charge(at);
                pays &= allows(&decider.entries()[at]);
            }
            if !pays {
                decider.restore(saved);
            }
        }
        for entry in &mut decider.entries()[first..after] {
            entry.is_unused = !pays;
            if is_paid {
                // Not asked: an attempt before this one may have left an answer.
                entry.decision = None;
            }
        }
        is_paid |= pays;
        first = after;
    }
    is_paid
}

/// Marks the entries of alternatives that do not pay, once all entries of a request are decided: the first alternative of a
/// group whose entries all allow pays. For stores that decide elsewhere.
pub fn mark_unused(entries: &mut [Entry<'_>]) {
    for group in entries.chunk_by_mut(is_same_group) {
        let mut is_paid = false;
        for alternative in group.chunk_by_mut(|a, b| a.alternative == b.alternative) {
            let pays = !is_paid && alternative.iter().all(allows);
            for entry in &mut *alternative {
                entry.is_unused = !pays && entry.alternative.is_some();
            }
            is_paid |= pays;
        }
    }
}

/// Returns true if all decided groups that can deny allow the request. A shadow denies nothing, and neither does an entry
/// without a decision.
#[must_use]
pub fn is_allowed(entries: &[Entry<'_>]) -> bool {
    binding_place(entries, |entry| {
        let decision = entry.decision.filter(|_| entry.role == Role::Enforce)?;
        Some((entry.alternative, decision))
    })
    .is_none_or(|at| allows(&entries[at]))
}

/// Returns the place of the decision that binds a request. `view` returns the alternative and the decision of an item,
/// and `None` for what does not bind.
///
/// The hardest group binds: see [`Decision::binds_before`]. A denied group speaks by the alternative that allows soonest,
/// and an allowed one by the alternative that has most left; an alternative speaks by its hardest decision. Ties: the
/// first.
pub fn binding_place<T>(
    items: &[T],
    view: impl Fn(&T) -> Option<(Option<Alternative>, Decision)>,
) -> Option<usize> {
    let mut binding: Option<(usize, Decision)> = None;
    let mut at = 0;
    while at < items.len() {
        let Some((alternative, decision)) = view(&items[at]) else {
            at += 1;
            continue;
        };
        let (mut speaker, mut end) = ((at, decision), at + 1);
        if let Some(Alternative { group, .. }) = alternative {
            let is_member = |item: &T| {
                view(item).is_some_and(|(other, _)| other.is_some_and(|other| other.group == group))
            };
            end += items[end..].iter().take_while(|item| is_member(item)).count();
            speaker = group_speaker(at, &items[at..end], &view).unwrap_or(speaker);
        }
        if binding.is_none_or(|(_, before)| speaker.1.binds_before(&before)) {
            binding = Some(speaker);
        }
        at = end;
    }
    binding.map(|(at, _)| at)
}

fn group_speaker<T>(
    start: usize,
    group: &[T],
    view: &impl Fn(&T) -> Option<(Option<Alternative>, Decision)>,
) -> Option<(usize, Decision)> {
    let mut best: Option<(usize, Decision, u64)> = None;
    let mut at = start;
    for members in
        group.chunk_by(|a, b| view(a).map(|(place, _)| place) == view(b).map(|(place, _)| place))
    {
        let mut hardest: Option<(usize, Decision)> = None;
        let mut remaining = u64::MAX;
        for item in members {
            let (_, decision) = view(item)?;
            remaining = remaining.min(decision.remaining().unwrap_or(0));
            if hardest.is_none_or(|(_, before)| decision.binds_before(&before)) {
                hardest = Some((at, decision));
            }
            at += 1;
        }
        let (place, decision) = hardest?;
        let is_better = best.is_none_or(|(_, before, left)| {
            if decision.is_allowed() && before.is_allowed() {
                remaining > left
            } else {
                before.binds_before(&decision)
            }
        });
        if is_better {
            best = Some((place, decision, remaining));
        }
    }
    best.map(|(place, decision, _)| (place, decision))
}

fn is_same_group(a: &Entry<'_>, b: &Entry<'_>) -> bool {
    let groups = [a, b].map(|entry| entry.alternative.map(|alternative| alternative.group));
    groups[0].is_some() && groups[0] == groups[1] && a.role == b.role
}

/// Returns the end of the group that begins at `start`.
pub(crate) fn group_end(entries: &[Entry<'_>], start: usize) -> usize {
    let same = entries[start..].windows(2).take_while(|pair| is_same_group(&pair[0], &pair[1]));
    start + 1 + same.count()
}

/// Returns the end of the alternative that begins at `start`, within the entries of its group.
fn alternative_end(group: &[Entry<'_>], start: usize) -> usize {
    let is_same = |pair: &&[Entry<'_>]| pair[0].alternative == pair[1].alternative;
    start + 1 + group[start..].windows(2).take_while(is_same).count()
}

fn allows(entry: &Entry<'_>) -> bool {
    entry.decision.is_some_and(|decision| decision.is_allowed())
}

fn denies(entry: &Entry<'_>) -> bool {
    entry.decision.is_some_and(|decision| !decision.is_allowed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Outcome, Policy, Timestamp};

    fn decision(outcome: Outcome, remaining: u64) -> Decision {
        Decision::new(outcome, 10, remaining, Timestamp::ZERO)
    }

    fn deny(retry_after_us: u64) -> Decision {
        decision(Outcome::Deny { retry_after_us }, 0)
    }

    fn allow(remaining: u64) -> Decision {
        decision(Outcome::Allow, remaining)
    }

    /// A group of alternatives, each of which is a list of decisions.
    fn entries<'a>(policy: &'a Policy, groups: &[&[&[Decision]]]) -> Vec<Entry<'a>> {
        let mut entries = Vec::new();
        for (group, alternatives) in (0..).zip(groups) {
            for (order, decisions) in (0..).zip(*alternatives) {
                for decision in *decisions {
                    let place = Alternative { group, order };
                    let mut entry = Entry::new("a", policy).with_alternative(place);
                    entry.decide(*decision);
                    entries.push(entry);
                }
            }
        }
        entries
    }

    fn binding(entries: &[Entry<'_>]) -> Decision {
        let view = |entry: &Entry<'_>| Some((entry.alternative, entry.decision?));
        entries[binding_place(entries, view).unwrap()].decision.unwrap()
    }

    /// The longest wait over groups, of the shortest over alternatives, of the longest within one.
    #[test]
    fn the_wait_of_a_request_is_that_of_its_slowest_group_by_its_quickest_alternative() {
        let policy = Policy::token_bucket("5/s").unwrap();
        let first = [&[deny(5), deny(9)][..], &[deny(7), allow(1)], &[deny(8)]];
        let second = [&[deny(6)][..], &[deny(20)]];
        let both = entries(&policy, &[&first, &second]);
        assert_eq!(binding(&both), deny(7));
        assert_eq!(binding(&entries(&policy, &[&second])), deny(6));
        assert!(!is_allowed(&both));
    }

    #[test]
    fn an_alternative_that_can_never_pass_is_skipped_unless_all_are_like_it() {
        let policy = Policy::token_bucket("5/s").unwrap();
        let never = decision(Outcome::Never, 0);
        let one = [&[never, deny(3)][..], &[deny(90)]];
        assert_eq!(binding(&entries(&policy, &[&one])), deny(90));
        let all = [&[never, deny(3)][..], &[deny(90), never]];
        assert_eq!(binding(&entries(&policy, &[&all])), never);
    }

    #[test]
    fn what_remains_is_the_most_that_one_alternative_has() {
        let policy = Policy::token_bucket("5/s").unwrap();
        let group = [&[deny(4)][..], &[allow(2), allow(8)], &[allow(7), allow(9)], &[allow(3)]];
        let entries = entries(&policy, &[&group]);
        assert_eq!(binding(&entries), allow(7));
        assert!(is_allowed(&entries));
    }

    #[test]
    fn the_first_alternative_that_allows_pays() {
        let policy = Policy::token_bucket("5/s").unwrap();
        let group = [&[allow(4), deny(1)][..], &[allow(2), allow(8)], &[allow(9)]];
        let mut entries = entries(&policy, &[&group, &[&[allow(1)]]]);
        entries.push(Entry::new("b", &policy));
        entries.last_mut().unwrap().decide(allow(1));
        mark_unused(&mut entries);
        let paid: Vec<bool> = entries.iter().map(Entry::is_paid).collect();
        assert_eq!(paid, [false, false, true, true, false, true, true]);
    }
}
