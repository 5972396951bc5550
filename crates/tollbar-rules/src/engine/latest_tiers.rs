//! Remembers the tier of each subject's latest request, for look-ups that name no tier.
//!
//! Tiers of one rule that have the same algorithm and window share their counters, so that a client keeps its
//! count when it changes tier. A counter therefore does not say which limit its subject is under. This table does,
//! for subjects that this process has charged lately. Checks write it; they never decide by it.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::selection::Selection;
use crate::Rule;
use crate::hash::{hash_text, mix};
use crate::rule::Tier;
use crate::snapshot::Snapshot;

/// The number of slots: 512 KiB in all. A subject whose slot another one takes is forgotten.
const SLOTS_LOG2: u32 = 16;

/// The low bits of a slot, which name the tier. The bits above them name the rule and the subject.
const TIER_MASK: u64 = 0xff_ffff;

/// The latest tiers of the subjects of all rules with tiers.
#[derive(Debug)]
pub(crate) struct LatestTiers {
    /// Keyed, so that no client can choose a name that takes the slot of another.
    seed: u64,
    /// Allocated by the first request under a rule with tiers.
    slots: OnceLock<Box<[AtomicU64]>>,
}

impl Default for LatestTiers {
    fn default() -> Self {
        Self { seed: RandomState::new().hash_one(0_u64), slots: OnceLock::new() }
    }
}

impl LatestTiers {
    /// Records the tier of each rule with tiers that a request was selected for.
    #[inline]
    pub(super) fn record_all(&self, snapshot: &Snapshot, selection: &Selection) {
        for &(rule, tier, (start, end)) in &selection.tiers {
            self.record(snapshot.rule(rule), &selection.keys[start..end], tier);
        }
    }

    fn record(&self, rule: &Rule, key: &[u8], tier: Tier) {
        let new_slots = || (0..1 << SLOTS_LOG2).map(|_| AtomicU64::new(0)).collect();
        let slots = self.slots.get_or_init(new_slots);
        let (at, name) = self.place(rule, key);
        let word = name | code_of(rule, tier);
        // Reading first leaves the cache line to all cores for as long as the tier stays.
        if slots[at].load(Ordering::Relaxed) != word {
            slots[at].store(word, Ordering::Relaxed);
        }
    }

    /// Returns the tier of the subject's latest request; `None` if it is forgotten, or the rule no longer has it.
    pub(crate) fn find(&self, rule: &Rule, key: &[u8]) -> Option<Tier> {
        let slots = self.slots.get()?;
        let (at, name) = self.place(rule, key);
        let word = slots[at].load(Ordering::Relaxed);
        rule.all_tiers().find(|tier| word == name | code_of(rule, *tier))
    }

    /// Returns the slot of a subject, and the bits that name it there.
    fn place(&self, rule: &Rule, key: &[u8]) -> (usize, u64) {
        let (words, rest) = key.as_chunks::<8>();
        let start = mix(self.seed, hash_text(rule.identity()) ^ key.len() as u64);
        let step = |hash, word: u64| mix(hash, word ^ self.seed);
        let hash = words.iter().fold(start, |hash, word| step(hash, u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // Once more: one product alone puts names that count up into few slots, for one seed in ten or so.
        let hash = step(step(hash, u64::from_le_bytes(last)), 0);
        ((hash >> (u64::BITS - SLOTS_LOG2)) as usize, hash << TIER_MASK.count_ones())
    }
}

/// Names a tier in a slot. The name of a tier outlives its place among the rule's tiers.
fn code_of(rule: &Rule, tier: Tier) -> u64 {
    match tier {
        // No other has this code, and neither has an empty slot.
        Tier::Rule => 2,
        Tier::At(at) => hash_text(&rule.tiers.limits[at].0) & TIER_MASK | 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleFile;

    fn rule(tiers: &str) -> Rule {
        let text = format!("rules: [{{ name: a, limit: 1/s, tiers: {tiers} }}]");
        (*RuleFile::parse("rules.yaml", &text).unwrap().rules.rules()[0]).clone()
    }

    #[test]
    fn the_latest_tier_is_found_by_its_name_and_forgotten_with_it() {
        let (tiers, rule_before) = (LatestTiers::default(), rule("{ free: 1/s, premium: 9/s }"));
        assert_eq!(tiers.find(&rule_before, b"7"), None);
        tiers.record(&rule_before, b"7", Tier::At(0));
        tiers.record(&rule_before, b"7", Tier::At(1));
        tiers.record(&rule_before, b"8", Tier::Rule);
        assert_eq!(tiers.find(&rule_before, b"7"), Some(Tier::At(1)));
        assert_eq!(tiers.find(&rule_before, b"8"), Some(Tier::Rule));
        assert_eq!(tiers.find(&rule_before, b"70"), None);
        let moved = rule("{ premium: 9/s, free: 1/s, default: free }");
        assert_eq!(tiers.find(&moved, b"7"), Some(Tier::At(0)));
        assert_eq!(tiers.find(&moved, b"8"), None, "every request has a tier now");
        assert_eq!(tiers.find(&rule("{ free: 1/s }"), b"7"), None);
        let mut other = rule("{ free: 1/s, premium: 9/s }");
        other.name = "b".into();
        assert_eq!(tiers.find(&other, b"7"), None);
    }

    #[test]
    fn names_that_count_up_are_spread_whatever_the_seed() {
        let rule = rule("{ free: 1/s, premium: 9/s }");
        for seed in 0..200 {
            let tiers = LatestTiers { seed: mix(seed, seed), slots: OnceLock::new() };
            let slots = (0_u32..10_000).map(|subject| tiers.place(&rule, &subject.to_le_bytes()).0);
            // At random there are 9,300 of 65,536.
            let taken = slots.collect::<std::collections::HashSet<_>>().len();
            assert!(taken > 9_000, "{taken} of seed {seed}");
        }
    }

    #[test]
    fn a_crowd_makes_a_subject_forgotten_and_never_gives_it_another_tier() {
        let (tiers, rule) = (LatestTiers::default(), rule("{ free: 1/s, premium: 9/s }"));
        for subject in 0_u32..200_000 {
            tiers.record(&rule, &subject.to_le_bytes(), Tier::At(1));
            let other = subject.wrapping_sub(1_000).to_le_bytes();
            assert_ne!(tiers.find(&rule, &other), Some(Tier::At(0)));
        }
        let known = (0_u32..200_000)
            .filter(|subject| tiers.find(&rule, &subject.to_le_bytes()) == Some(Tier::At(1)));
        let known = known.count();
        assert!((50_000..=1 << SLOTS_LOG2).contains(&known), "{known}");
    }
}
