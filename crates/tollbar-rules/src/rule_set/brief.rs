//! What a change of other rules has to know of a rule. All of them lie side by side: of ten thousand rules
//! that stay as they are, none has to be fetched.

use crate::Rule;
use crate::hash::hash_text;

/// A rule in a few numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Brief {
    /// The hash of its name. Others may have the same.
    pub(super) name: u64,
    /// That of its identity.
    pub(super) identity: u64,
    /// How many limits it has on every request.
    pub(super) on_every_request: u32,
    /// Whether it replaces others.
    pub(super) replaces: bool,
}

impl Brief {
    pub(super) fn of(rule: &Rule) -> Self {
        Self {
            name: hash_text(&rule.name),
            identity: hash_text(rule.identity()),
            on_every_request: on_every_request(rule) as u32,
            replaces: !rule.replaces.is_empty(),
        }
    }
}

/// What applies to every request can be counted; what some requests meet, only when they come.
fn on_every_request(rule: &Rule) -> usize {
    if !rule.enabled || rule.fallback || !rule.conditions.all().is_empty() {
        return 0;
    }
    let of_tiers = rule.tiers.limits.iter().map(|(_, it)| it.limits().len()).max();
    rule.limits.len().max(of_tiers.unwrap_or(0)) + rule.candidate.len()
}
