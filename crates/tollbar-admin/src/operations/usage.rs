//! What is left to somebody now, what was used day by day, and who is denied most. Charges nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use tollbar_rules::{Per, Rule, Usage, UsageError};

use super::keys::find_in_force;
use super::{Admin, sub_limit};
use crate::database::{Page, PageRequest, UsageFilter, UsageGroup, UsageTotal};
use crate::operations::auth::access::{Actor, Permission, Reach};
use crate::operations::text_fields;
use crate::usage::format::{NamedUsageRow, name_rules};
use tollbar_daemon::problem::Problem;
use tollbar_daemon::protocol::http::IncompleteUsage;
use tollbar_daemon::rfc3339::Rfc3339;
use tollbar_daemon::usage::UsageRow;

/// Rules of which one answer tells.
const RULES_MAX: usize = 1_000;

/// The subject whose usage a request is about, and the rule.
#[derive(Debug, Clone)]
pub(crate) struct UsageSubject<'a> {
    /// An attribute, or `ip_cidr` for `ip`.
    pub(crate) subject_type: &'a str,
    pub(crate) subject_id: &'a str,
    /// All rules that count such a subject where there is none.
    pub(crate) rule: Option<&'a str>,
    /// What else is known of it, such as its tier, or the path where a rule counts by user and path.
    pub(crate) attributes: BTreeMap<&'a str, &'a str>,
}

/// What is left to somebody: of the limit that is nearest to its end, and of all.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Usages {
    #[serde(flatten)]
    pub(crate) tightest: LimitUsage,
    /// Every limit, the tightest first. Limits of other tiers than the one in force come last.
    pub(crate) limits: Vec<LimitUsage>,
    /// Rules under which the subject has several counters, and what to send to see one of them.
    pub(crate) incomplete: Vec<IncompleteUsage>,
}

/// What is left of one limit.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "UsageOfLimit")]
pub(crate) struct LimitUsage {
    pub(crate) rule_id: String,
    pub(crate) rule: String,
    /// The tier whose limit it is, if the rule has tiers. If the question names no tier, it is the tier of the subject's
    /// latest request on this node.
    pub(crate) tier: Option<String>,
    /// False if the subject's latest request was under another tier. It has used this limit all the same.
    #[serde(skip)]
    pub(crate) is_current: bool,
    /// The limit as it was written.
    pub(crate) limit_text: String,
    /// Tokens a window.
    pub(crate) limit: u64,
    /// The largest cost that would pass now.
    pub(crate) remaining: u64,
    /// The window's end; for a bucket, when it is full again.
    pub(crate) reset_at: Rfc3339,
    /// The window, rounded up; 0 for permits, which have none.
    pub(crate) window_seconds: u64,
    /// Which alternative of its rule the limit belongs to, counted from 1. Absent for a limit that holds by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alternative: Option<u32>,
}

/// Somebody who is denied often.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Limited")]
pub(crate) struct DeniedSubject {
    pub(crate) rule_id: String,
    pub(crate) rule: String,
    pub(crate) subject: String,
    /// How often it was denied by this node since it started, at most.
    pub(crate) count: u64,
    /// By how much the count may be too high.
    pub(crate) error: u64,
}

/// Those who are denied most, the first first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Top")]
pub(crate) struct TopDenied {
    pub(crate) items: Vec<DeniedSubject>,
}

/// What is left to a subject.
pub(crate) async fn get_of_subject(
    admin: &Admin,
    actor: &Actor,
    subject: UsageSubject<'_>,
) -> Result<Usages, Problem> {
    let reach = actor.reach(Permission::See)?;
    read_usage(admin, reach, subject).await
}

/// What is left to the token's own subject, under every rule that counts it. The attributes are none that say who
/// somebody is.
pub(crate) async fn get_own(
    admin: &Admin,
    actor: &Actor,
    attributes: BTreeMap<&str, &str>,
) -> Result<Usages, Problem> {
    actor.reach(Permission::SeeOwnUsage)?;
    let subject = actor.subject.as_deref().unwrap_or_default();
    let (subject_type, subject_id) = subject.split_once(':').unwrap_or(("client", subject));
    let subject_type = if subject_type == "api" { "api_key" } else { subject_type };
    let subject = UsageSubject { subject_type, subject_id, rule: None, attributes };
    read_usage(admin, Reach::All, subject).await
}

async fn read_usage(
    admin: &Admin,
    reach: Reach<'_>,
    subject: UsageSubject<'_>,
) -> Result<Usages, Problem> {
    let UsageSubject { subject_type, subject_id, rule, attributes } = subject;
    text_fields::check_subject("subjectType", subject_type)?;
    text_fields::check_subject("subjectId", subject_id)?;
    let attribute = if subject_type == "ip_cidr" { "ip" } else { subject_type };
    let own = std::iter::once((attribute, subject_id));
    let attributes: Vec<_> = own.chain(attributes).collect();
    let rules = if let Some(rule) = rule {
        vec![find_in_force(admin, reach, rule)?]
    } else {
        let all = admin.daemon.engine.rules();
        let is_counted_by =
            |rule: &&Arc<Rule>| is_counted_by(rule, attribute) && is_visible(rule, reach);
        all.rules().iter().filter(is_counted_by).take(RULES_MAX).cloned().collect()
    };
    let (mut limits, mut incomplete, mut problem) = (Vec::new(), Vec::new(), None);
    for rule in &rules {
        let handle = admin.daemon.engine.rule(&rule.name).map_err(UsageError::from)?;
        match handle.look_up(&attributes) {
            Ok(request) => {
                let usages = handle.usage(&request.request()?).await?;
                limits.extend(usages.into_iter().map(|usage| LimitUsage::new(rule, usage)));
            }
            Err(error) => {
                let Some(lacking) = IncompleteUsage::new(rule, &error) else {
                    return Err(error.into());
                };
                incomplete.push(lacking);
                problem.get_or_insert(error);
            }
        }
    }
    match Usages::from_limits(limits) {
        Some(usages) => Ok(Usages { incomplete, ..usages }),
        None => Err(problem.map_or_else(
            || Problem::not_found("limit: no rule counts such a subject"),
            Problem::from,
        )),
    }
}

/// Returns true if a rule counts by this attribute, alone or with others.
fn is_counted_by(rule: &Rule, attribute: &str) -> bool {
    let is_by = |per: &Per| match per {
        Per::Client => ["api_key", "user", "ip", "client"].contains(&attribute),
        Per::Attribute(name) => **name == *attribute,
        _ => false,
    };
    rule.enabled && rule.per.iter().any(is_by)
}

fn is_visible(rule: &Rule, reach: Reach<'_>) -> bool {
    match reach {
        Reach::All => true,
        Reach::Tenant(tenant) => sub_limit::is_visible_in_force(rule, tenant),
    }
}

/// Who is denied most, under one rule or under all.
pub(crate) fn list_top_denied(
    admin: &Admin,
    actor: &Actor,
    rule: Option<&str>,
    count: usize,
) -> Result<TopDenied, Problem> {
    let reach = actor.reach(Permission::See)?;
    let rules = if let Some(rule) = rule {
        vec![find_in_force(admin, reach, rule)?]
    } else {
        let all = admin.daemon.engine.rules();
        all.rules().iter().filter(|rule| is_visible(rule, reach)).cloned().collect()
    };
    let mut items = Vec::new();
    for rule in &rules {
        // One that is gone by now denies nobody.
        let handle = admin.daemon.engine.rule(&rule.name).ok();
        let limited = handle.map_or_else(Vec::new, |handle| handle.top_denied(count));
        items.extend(limited.into_iter().map(|key| DeniedSubject {
            rule_id: rule.identity().to_string(),
            rule: rule.name.to_string(),
            subject: key.subject,
            count: key.count,
            error: key.error,
        }));
        // Kept small on the way: there may be many rules.
        items.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.subject.cmp(&b.subject)));
        items.truncate(count);
    }
    Ok(TopDenied { items })
}

/// A page of what was used, with the names of its rules.
pub(crate) async fn list_daily(
    admin: &Admin,
    actor: &Actor,
    filter: UsageFilter,
    page: &PageRequest,
) -> Result<Page<NamedUsageRow>, Problem> {
    let Page { rows, next } = list_rows(admin, actor, filter, page).await?;
    Ok(Page { rows: name_rules(rows, &admin.daemon.engine.rules()), next })
}

/// A page of rows, for those that add them up.
pub(crate) async fn list_rows(
    admin: &Admin,
    actor: &Actor,
    filter: UsageFilter,
    page: &PageRequest,
) -> Result<Page<UsageRow>, Problem> {
    Ok(admin.repository.usage(&within_reach(actor, filter)?, page).await?)
}

/// A page of what was used by each tenant, client, rule or tier, under each rule.
pub(crate) async fn list_totals(
    admin: &Admin,
    actor: &Actor,
    by: UsageGroup,
    filter: UsageFilter,
    page: &PageRequest,
) -> Result<Page<UsageTotal>, Problem> {
    Ok(admin.repository.usage_totals(by, &within_reach(actor, filter)?, page).await?)
}

/// Narrows a filter to what a token may see.
fn within_reach(actor: &Actor, mut filter: UsageFilter) -> Result<UsageFilter, Problem> {
    if let Reach::Tenant(tenant) = actor.reach(Permission::See)? {
        if filter.tenant.as_deref().is_some_and(|wanted| wanted != tenant) {
            return Err(Problem::forbidden(format!("this token is of tenant `{tenant}` only")));
        }
        filter.tenant = Some(tenant.to_owned());
    }
    Ok(filter)
}

impl Usages {
    /// `None` where there is no limit. The tightest has the least of its limit remaining, among those in force.
    pub(crate) fn from_limits(mut limits: Vec<LimitUsage>) -> Option<Self> {
        limits.sort_by(|a, b| {
            let share = |one: &LimitUsage, other: &LimitUsage| {
                u128::from(one.remaining) * u128::from(other.limit)
            };
            b.is_current.cmp(&a.is_current).then_with(|| share(a, b).cmp(&share(b, a)))
        });
        Some(Self { tightest: limits.first()?.clone(), limits, incomplete: Vec::new() })
    }
}

impl LimitUsage {
    pub(crate) fn new(rule: &Rule, usage: Usage) -> Self {
        Self {
            rule_id: rule.identity().to_string(),
            rule: rule.name.to_string(),
            tier: usage.tier,
            is_current: usage.is_current,
            limit_text: usage.text,
            limit: usage.limit,
            remaining: usage.remaining,
            reset_at: Rfc3339(usage.reset_at),
            window_seconds: usage.window.as_millis().div_ceil(1_000) as u64,
            alternative: usage.alternative,
        }
    }
}
