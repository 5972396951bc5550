//! When two rules are the same: attributes, tiers and costs are written in some order, which means
//! nothing, and which JSON does not keep.

use crate::{Condition, Conditions, Rule};

/// The rule with all that has no order in one order.
pub(super) fn canonical(mut rule: Rule) -> Rule {
    rule.conditions = sorted(&rule.conditions);
    for exemption in &mut rule.exemptions {
        exemption.conditions = sorted(&exemption.conditions);
    }
    for (conditions, _) in &mut rule.costs.by_condition {
        *conditions = sorted(conditions);
    }
    rule.costs.by_condition.sort_by_cached_key(|cost| format!("{cost:?}"));
    rule.tiers.limits.sort_by(|(one, _), (other, _)| one.cmp(other));
    rule
}

/// By attribute; the tests of one attribute stay in their order.
fn sorted(conditions: &Conditions) -> Conditions {
    let mut all: Vec<Condition> = conditions.all().to_vec();
    all.sort_by(|one, other| one.attribute.cmp(&other.attribute));
    all.into_iter().collect()
}
