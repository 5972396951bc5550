//! What tenants may do by themselves: sub-limits, which add to the operator's rules and take nothing from them.
//!
//! A sub-limit is a rule of the database for one tenant whose name begins with that tenant's and a `/`. The tenant sees
//! it, and changes it if it [owns](crate::database::Owner) it. Every rule that applies limits, so one more can only deny
//! more, unless it has one of the few words that keep others from applying; those are rejected here.

use std::collections::BTreeSet;
use std::sync::Arc;

use tollbar_rules::{Limit, Mode, Rule, Test, TierLimits};

use crate::database::{Owner, RuleId, RuleRow};
use tollbar_daemon::problem::Problem;

/// The most sub-limits of a tenant: rules are bounded together, and nobody takes the room of all.
pub(crate) const SUB_LIMITS_MAX: usize = 100;

/// True if this tenant sees a rule of the database.
pub(crate) fn is_visible(rule: &Rule, tenant: &str) -> bool {
    is_named_after(&rule.name, tenant) && tenant_of(rule) == Some(tenant)
}

/// True if this tenant sees a rule in force.
pub(crate) fn is_visible_in_force(rule: &Rule, tenant: &str) -> bool {
    is_of_database(rule) && is_visible(rule, tenant)
}

/// True if this tenant has made the rule, and still sees it.
pub(crate) fn is_own(row: &RuleRow, tenant: &str) -> bool {
    let is_owner = matches!(&row.owner, Owner::Tenant(owner) if owner == tenant);
    is_owner && is_visible(&row.rule, tenant)
}

/// Rejects what is no sub-limit of this tenant, or more than the operator's rules allow. `in_force` are all rules, and
/// `own` are the ids of those that the tenant has made.
pub(crate) fn check(
    tenant: &str,
    rule: &Rule,
    in_force: &[Arc<Rule>],
    own: &BTreeSet<RuleId>,
) -> Result<(), Problem> {
    if tenant_of(rule) != Some(tenant) {
        let detail = format!("a sub-limit is its tenant's: send \"{tenant}\"");
        return Err(Problem::forbidden_field("tenantId", detail));
    }
    if !is_named_after(&rule.name, tenant) {
        let rest: String = rule.name.chars().take(64).collect();
        let detail = format!("a sub-limit is named after its tenant: send \"{tenant}/{rest}\"");
        return Err(Problem::forbidden_field("name", detail));
    }
    let loosening = [
        ("unlimited", rule.unlimited),
        ("stop", rule.stop),
        ("replaces", !rule.replaces.is_empty()),
        ("criticality", rule.criticality.is_some()),
        ("tiers", rule.tiers.limits.iter().any(|(_, tier)| *tier == TierLimits::Unlimited)),
    ];
    if let Some((field, _)) = loosening.into_iter().find(|(_, is_there)| *is_there) {
        let detail = "a sub-limit cannot lift a limit, keep the operator's rules from applying or say how critical \
                      requests are: leave it out";
        return Err(Problem::forbidden_field(field, detail));
    }
    if rule.has_alternatives() {
        let detail = "a sub-limit has no alternatives, because they add up to more than one of them: send a limit, or a \
                      list of limits that must all allow";
        return Err(Problem::forbidden_field("limit", detail));
    }
    if rule.all_limits().any(|limit| limit.policy().queue_length().is_some()) {
        let detail = "a sub-limit cannot let requests wait, because the operator's listeners would hold them: leave \
                      queue and maxWait out, and send an algorithm other than leaky_queue";
        return Err(Problem::forbidden_field("queue", detail));
    }
    let is_own = |rule: &Rule| {
        let id = rule.id.as_ref().and_then(|id| id.parse::<RuleId>().ok());
        id.is_some_and(|id| own.contains(&id))
    };
    for parent in in_force.iter().filter(|parent| !is_own(parent) && is_parent(parent, rule)) {
        check_below(rule, parent).map_err(|(field, detail)| {
            if is_visible_in_force(parent, tenant) {
                let name = &parent.name;
                return Problem::forbidden_field(field, format!("{detail} (rule `{name}`)"));
            }
            Problem::forbidden_field(field, detail)
        })?;
    }
    Ok(())
}

/// Rejects a sub-limit that allows more than the parent does, or that would be looked at before it. Returns the field
/// and the bound, without the parent's name: a tenant does not learn which rules the operator has.
fn check_below(rule: &Rule, parent: &Rule) -> Result<(), (&'static str, String)> {
    if parent.fallback && !rule.fallback {
        let detail = "the operator has a fallback limit for some of these requests, and this rule would keep it \
                      from applying: send true";
        return Err(("fallback", detail.to_owned()));
    }
    if rule.priority > parent.priority {
        let most = parent.priority;
        let detail = format!(
            "some of these requests are under an operator's limit of priority {most}: send {most} or less"
        );
        return Err(("priority", detail));
    }
    if let (Some(own), Some(allowed)) =
        (SustainedRate::for_rule(rule), SustainedRate::for_rule(parent))
        && own.is_above(allowed)
    {
        let most = allowed.text();
        let detail =
            format!("the operator allows {most} for some of these requests: send that or less");
        return Err(("maxRequests", detail));
    }
    if let (Some(own), Some(allowed)) = (permits(rule), permits(parent))
        && own > allowed
    {
        let detail = format!(
            "the operator allows {allowed} in flight for some of these requests: send that or less"
        );
        return Err(("maxRequests", detail));
    }
    Ok(())
}

/// True if `rule` denies, and some request may be under it and under `sub_limit`.
fn is_parent(rule: &Rule, sub_limit: &Rule) -> bool {
    let is_enforced = rule.enabled && !rule.unlimited && rule.mode == Mode::Enforce;
    is_enforced && !rule.conditions.is_disjoint_from(&sub_limit.conditions)
}

fn is_of_database(rule: &Rule) -> bool {
    rule.id.as_ref().is_some_and(|id| id.parse::<RuleId>().is_ok())
}

/// The one tenant that a rule is for.
fn tenant_of(rule: &Rule) -> Option<&str> {
    rule.conditions.all().iter().find_map(|condition| match &condition.test {
        Test::OneOf(values) if &*condition.attribute == "tenant" => match &**values {
            [one] => Some(&**one),
            _ => None,
        },
        _ => None,
    })
}

fn is_named_after(name: &str, tenant: &str) -> bool {
    let rest = name.strip_prefix(tenant).and_then(|rest| rest.strip_prefix('/'));
    rest.is_some_and(|rest| !rest.is_empty())
}

/// The rate at which requests pass in the long run.
#[derive(Debug, Clone, Copy)]
struct SustainedRate<'r> {
    limit: u64,
    window_us: u128,
    by: &'r Limit,
}

impl<'r> SustainedRate<'r> {
    /// Of a rule: of its limits together the lowest rate, of its tiers the highest, since nobody here
    /// knows which tier a tenant's requests have. `None` where nothing bounds it, and for alternatives, which add up.
    fn for_rule(rule: &'r Rule) -> Option<Self> {
        if rule.has_alternatives() {
            return None;
        }
        let own =
            (rule.tiers.default.is_none() && !rule.limits.is_empty()).then_some(&*rule.limits);
        let tiers = rule.tiers.limits.iter().map(|(_, tier)| tier.limits());
        let groups: Vec<Option<Self>> = own.into_iter().chain(tiers).map(Self::lowest).collect();
        let groups: Option<Vec<Self>> = groups.into_iter().collect();
        groups?.into_iter().reduce(|most, rate| if rate.is_above(most) { rate } else { most })
    }

    fn lowest(limits: &'r [Limit]) -> Option<Self> {
        let rates = limits.iter().filter(|limit| !limit.policy().has_permits()).map(|by| {
            let window_us = by.policy().limit_window().as_micros().max(1);
            Self { limit: by.policy().limit(), window_us, by }
        });
        rates.reduce(|least, rate| if least.is_above(rate) { rate } else { least })
    }

    /// 3/min is above 2/min: 3 x 60 s > 2 x 60 s.
    fn is_above(self, other: Self) -> bool {
        u128::from(self.limit) * other.window_us > u128::from(other.limit) * self.window_us
    }

    fn text(self) -> &'r str {
        self.by.text()
    }
}

/// The most that may be in flight; `None` where nothing bounds it.
fn permits(rule: &Rule) -> Option<u64> {
    let tiers = rule.tiers.limits.iter().flat_map(|(_, tier)| tier.limits());
    let all = rule.limits.iter().chain(tiers).map(Limit::policy);
    all.filter(|policy| policy.has_permits()).map(tollbar::Policy::limit).max()
}
