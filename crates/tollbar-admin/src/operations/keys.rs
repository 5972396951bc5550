//! What is done to one key by hand: looked at, made fresh, banned, boosted. Bans and boosts are records in
//! the database, and reach every node as rules do.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollbar_rules::{CanonicalSubject, Per, Rule, UsageError, canonical_subject};

use super::usage::{LimitUsage, Usages};
use super::{Admin, instant, rules, sub_limit};
use crate::database::{KeyEffect, KeyFilter, KeyRecord, KeyRow, Page, PageRequest, RuleId};
use crate::operations::auth::access::{Actor, Permission, Reach};
use crate::operations::text_fields;
use tollbar_daemon::problem::Problem;

/// A key: whom one rule counts.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("anyOf" = [{ "required": ["subject"] }, { "required": ["attributes"] }]))]
pub(crate) struct Key {
    #[schemars(length(min = 1))]
    pub(crate) rule_id: String,
    /// Whom the rule counts: `user:42`, or `42 | /v1/a` if it counts by user and path.
    #[schemars(length(min = 1, max = 1_024))]
    pub(crate) subject: Option<String>,
    /// The attributes of a request of theirs, `method` and `path` among them. Beside a subject, what it does not say,
    /// such as `tier`.
    pub(crate) attributes: Option<BTreeMap<String, String>>,
}

/// Somebody to be banned.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct BanForm {
    /// Under which rule; under all where it is left out.
    #[schemars(length(min = 1))]
    pub(crate) rule_id: Option<String>,
    /// Whom: `user:42`, `api:abc`, `ip:203.0.113.7`.
    #[schemars(length(min = 1, max = 1_024))]
    pub(crate) subject: String,
    /// Why, for people.
    #[schemars(length(max = 1_024))]
    pub(crate) reason: Option<String>,
    /// Until when; for good where it is left out.
    #[schemars(extend("format" = "date-time"))]
    pub(crate) expires_at: Option<String>,
}

/// Somebody whose limits are to be multiplied.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct BoostForm {
    /// Under which rule; under all where it is left out.
    #[schemars(length(min = 1))]
    pub(crate) rule_id: Option<String>,
    /// Whom: `user:42`, `api:abc`, `ip:203.0.113.7`.
    #[schemars(length(min = 1, max = 1_024))]
    pub(crate) subject: String,
    /// By how much: 150 is one and a half times.
    #[schemars(range(min = 1, max = 100_000))]
    pub(crate) factor_percent: u32,
    /// Why, for people.
    #[schemars(length(max = 1_024))]
    pub(crate) reason: Option<String>,
    /// Until when; for good where it is left out.
    #[schemars(extend("format" = "date-time"))]
    pub(crate) expires_at: Option<String>,
}

/// Counters that were made fresh.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ResetKey")]
pub(crate) struct KeyReset {
    pub(crate) rule_id: String,
    /// Always true.
    pub(crate) reset: bool,
}

/// What is left to a key.
pub(crate) async fn peek(admin: &Admin, actor: &Actor, key: &Key) -> Result<Usages, Problem> {
    let rule = find_in_force(admin, actor.reach(Permission::See)?, &key.rule_id)?;
    let handle = admin.daemon.engine.rule(&rule.name).map_err(UsageError::from)?;
    let usages = match key.selector()? {
        KeySelector::Subject(subject, pairs) => {
            // How many values it has is said first.
            handle.subject(subject, &pairs)?;
            let subject = check_counter(admin, &rule, subject).await?;
            handle.usage(&handle.readable_subject(&subject, &pairs)?.request()?).await?
        }
        KeySelector::Attributes(pairs) => handle.usage(&handle.look_up(&pairs)?.request()?).await?,
    };
    Usages::from_limits(usages.into_iter().map(|usage| LimitUsage::new(&rule, usage)).collect())
        .ok_or_else(|| Problem::not_found("limit: the rule, or the tier, is unlimited"))
}

/// Makes the counters of a key fresh.
pub(crate) async fn reset(admin: &Admin, actor: &Actor, key: &Key) -> Result<KeyReset, Problem> {
    let reach = admin.authorize_change(actor)?;
    let rule = find_in_force(admin, reach, &key.rule_id)?;
    if reach != Reach::All {
        rules::find_changeable(admin, reach, &key.rule_id).await?;
    }
    let handle = admin.daemon.engine.rule(&rule.name).map_err(UsageError::from)?;
    match key.selector()? {
        KeySelector::Subject(subject, pairs) => {
            handle.subject(subject, &pairs)?;
            let subject = check_counter(admin, &rule, subject).await?;
            let request = handle.readable_subject(&subject, &pairs)?;
            let request = request.request()?;
            record_reset(admin, actor, &rule, &subject).await?;
            handle.reset(&request).await?;
        }
        KeySelector::Attributes(pairs) => {
            let request = handle.look_up(&pairs)?;
            let request = request.request()?;
            let named: Vec<_> =
                pairs.iter().map(|(name, value)| format!("{name}:{value}")).collect();
            record_reset(admin, actor, &rule, &named.join(" | ")).await?;
            handle.reset(&request).await?;
        }
    }
    tracing::info!(actor = actor.audit_name(), rule = %rule.name, "counters were made fresh");
    Ok(KeyReset { rule_id: key.rule_id.clone(), reset: true })
}

/// Writes a reset into the audit. It comes first: what is not written down is not done.
async fn record_reset(
    admin: &Admin,
    actor: &Actor,
    rule: &Rule,
    subject: &str,
) -> Result<(), Problem> {
    let actor = actor.audit_name();
    Ok(admin.repository.record_reset(rule.identity(), subject, &actor).await?)
}

/// Denies somebody until the ban ends.
pub(crate) async fn ban(admin: &Admin, actor: &Actor, form: &BanForm) -> Result<KeyRow, Problem> {
    let reach = admin.authorize_change(actor)?;
    if let (Reach::Tenant(_), None) = (reach, &form.rule_id) {
        let detail = "a tenant bans under its own sub-limits: send the id of one";
        return Err(Problem::forbidden_field("ruleId", detail));
    }
    let rule = find_rule_id(admin, reach, form.rule_id.as_deref()).await?;
    let record = KeyRecord {
        subject: check_key(admin, rule.as_deref(), &form.subject).await?,
        rule,
        effect: KeyEffect::Ban,
        reason: text_fields::check_reason("reason", form.reason.as_deref())?,
        expires_at: instant::parse_future("expiresAt", form.expires_at.as_deref(), admin.now())?,
    };
    save(admin, actor, &record).await
}

/// Multiplies somebody's limits until the boost ends. Only the operator gives more than rules do.
pub(crate) async fn boost(
    admin: &Admin,
    actor: &Actor,
    form: &BoostForm,
) -> Result<KeyRow, Problem> {
    let reach = actor.reach(Permission::ChangeAll)?;
    if !(1..=100_000).contains(&form.factor_percent) {
        let detail = "send 1 to 100000, in percent: 150 is one and a half times";
        return Err(Problem::invalid_field("factorPercent", detail));
    }
    let rule = find_rule_id(admin, reach, form.rule_id.as_deref()).await?;
    let record = KeyRecord {
        subject: check_key(admin, rule.as_deref(), &form.subject).await?,
        rule,
        effect: KeyEffect::Boost { factor_percent: form.factor_percent },
        reason: text_fields::check_reason("reason", form.reason.as_deref())?,
        expires_at: instant::parse_future("expiresAt", form.expires_at.as_deref(), admin.now())?,
    };
    save(admin, actor, &record).await
}

/// A page of bans and boosts that have not ended.
pub(crate) async fn list(
    admin: &Admin,
    actor: &Actor,
    filter: &KeyFilter,
    page: &PageRequest,
) -> Result<Page<KeyRow>, Problem> {
    actor.reach(Permission::SeeAll)?;
    let mut filter = filter.clone();
    if let Some(subject) = &mut filter.subject {
        let rules = admin.daemon.engine.rules();
        let rule = filter.rule.as_deref().and_then(|id| {
            rules.rules().iter().find(|known| **known.identity() == *id).map(|rule| &**rule)
        });
        // Without a rule, a value of any rule is meant.
        if let Ok(canonical) = canonical_subject(rule, subject) {
            *subject = canonical.text;
        }
    }
    Ok(admin.repository.keys(&filter, page).await?)
}

/// Ends a ban or a boost.
pub(crate) async fn lift(admin: &Admin, actor: &Actor, id: &str) -> Result<(), Problem> {
    let reach = admin.authorize_change(actor)?;
    let id = id.parse().map_err(|_| Problem::not_found("key record"))?;
    if let Reach::Tenant(_) = reach {
        let row = admin.repository.key(id).await?;
        // A boost is the operator's gift, and not the tenant's to end.
        let is_ban = row.record.effect == KeyEffect::Ban;
        let rule = row.record.rule.filter(|_| is_ban);
        let rule = rule.ok_or_else(|| Problem::not_found("key record"))?;
        rules::find_changeable(admin, reach, &rule)
            .await
            .map_err(|problem| problem.or_not_found("key record"))?;
    }
    admin.repository.delete_key(id, &actor.audit_name()).await?;
    admin.wait_until_enforced().await;
    Ok(())
}

async fn save(admin: &Admin, actor: &Actor, record: &KeyRecord) -> Result<KeyRow, Problem> {
    let row = admin.repository.put_key(record, &actor.audit_name()).await?;
    admin.wait_until_enforced().await;
    Ok(row)
}

/// Returns the id by which records name the rule, if it exists and `reach` allows bans and boosts under it.
async fn find_rule_id(
    admin: &Admin,
    reach: Reach<'_>,
    rule: Option<&str>,
) -> Result<Option<String>, Problem> {
    let Some(rule) = rule else {
        return Ok(None);
    };
    if reach != Reach::All {
        return Ok(Some(rules::find_changeable(admin, reach, rule).await?.id.to_string()));
    }
    match rules::find(admin, reach, rule).await? {
        rules::RuleRecord::Database(row) => Ok(Some(row.id.to_string())),
        rules::RuleRecord::File(_) => Ok(Some(rule.to_owned())),
    }
}

/// The rule in force, if it may be seen: one that is disabled counts nobody.
pub(crate) fn find_in_force(
    admin: &Admin,
    reach: Reach<'_>,
    id: &str,
) -> Result<Arc<Rule>, Problem> {
    let rules = admin.daemon.engine.rules();
    // The id of a rule of the database may come in capital letters.
    let id = id.parse::<RuleId>().map_or_else(|_| id.to_owned(), |id| id.to_string());
    let rule = rules.rules().iter().find(|rule| **rule.identity() == *id);
    let is_visible = |rule: &&Arc<Rule>| match reach {
        Reach::All => true,
        Reach::Tenant(tenant) => sub_limit::is_visible_in_force(rule, tenant),
    };
    rule.filter(is_visible).cloned().ok_or_else(|| Problem::not_found("rule in force"))
}

/// Returns the subject of a ban, a boost or a look-up as counters name it. One that no request can have is refused
/// with what to send instead.
async fn canonical(
    admin: &Admin,
    rule: Option<&Rule>,
    text: &str,
) -> Result<CanonicalSubject, Problem> {
    let text = text_fields::check_subject("subject", text)?;
    let (mut advice, rule) = match (canonical_subject(rule, &text), rule) {
        (Ok(subject), _) => return Ok(subject),
        (Err(advice), None) => return Err(Problem::invalid_field("subject", advice)),
        (Err(advice), Some(rule)) => (advice, rule),
    };
    // A check by rule and subject may call its client anything.
    if is_counted(admin, rule, &text).await {
        return Ok(CanonicalSubject::verbatim(text));
    }
    if rule.per == [Per::Client] {
        for kind in ["user", "api"] {
            let meant = format!("{kind}:{text}");
            if is_counted(admin, rule, &meant).await {
                advice = format!("nothing is counted under `{text}`: did you mean `{meant}`?");
            }
        }
    }
    Err(Problem::invalid_field("subject", advice))
}

/// Returns the subject of a ban or a boost as counters name it.
async fn check_key(admin: &Admin, rule: Option<&str>, subject: &str) -> Result<String, Problem> {
    let rules = admin.daemon.engine.rules();
    if let Some(rule) = rule {
        let rule = rules.rules().iter().find(|known| **known.identity() == *rule);
        return match rule {
            Some(rule) => Ok(canonical(admin, Some(rule), subject).await?.text),
            // It is not in force, and what it counts by may change before it is.
            None => text_fields::check_subject("subject", subject),
        };
    }
    let subject = canonical(admin, None, subject).await?.text;
    let (attribute, value) = subject.split_once(':').unwrap_or_default();
    let usual = ["user", "api", "ip", "tenant", "tier"];
    let is_counted = rules.rules().iter().any(|rule| rule.tests_or_counts(attribute));
    if !usual.contains(&attribute)
        && !is_counted
        && let Some(meant) = tollbar_rules::yaml::nearest(attribute, usual)
    {
        let value: String = value.chars().take(64).collect();
        let detail = format!(
            "no rule in force looks at an attribute `{attribute}`: did you mean `{meant}:{value}`?"
        );
        return Err(Problem::invalid_field("subject", detail));
    }
    Ok(subject)
}

/// Returns the subject whose counters are looked at or made fresh.
async fn check_counter(admin: &Admin, rule: &Rule, subject: &str) -> Result<String, Problem> {
    let subject = canonical(admin, Some(rule), subject).await?;
    if subject.is_network {
        let detail = "a network has no counter of its own: send one of its addresses";
        return Err(Problem::invalid_field("subject", detail));
    }
    Ok(subject.text)
}

/// True where a subject has used some of a rule's limits.
async fn is_counted(admin: &Admin, rule: &Rule, subject: &str) -> bool {
    let Ok(handle) = admin.daemon.engine.rule(&rule.name) else {
        return false;
    };
    let Ok(request) = handle.subject(subject, &[]) else {
        return false;
    };
    let Ok(request) = request.request() else {
        return false;
    };
    let usages = handle.usage(&request).await.unwrap_or_default();
    usages.iter().any(|usage| usage.remaining < usage.limit && !usage.has_own_per)
}

/// How a request names a key.
enum KeySelector<'k> {
    /// By whom the rule counts, and what else is known.
    Subject(&'k str, Vec<(&'k str, &'k str)>),
    Attributes(Vec<(&'k str, &'k str)>),
}

impl Key {
    fn selector(&self) -> Result<KeySelector<'_>, Problem> {
        let pairs = self
            .attributes
            .as_ref()
            .map(|attributes| attributes.iter().map(|(name, value)| (&**name, &**value)).collect());
        match (&self.subject, pairs) {
            (Some(subject), pairs) => {
                text_fields::check_subject("subject", subject)?;
                Ok(KeySelector::Subject(subject, pairs.unwrap_or_default()))
            }
            (None, Some(pairs)) => Ok(KeySelector::Attributes(pairs)),
            (None, None) => {
                Err(Problem::invalid_field("subject", "send this, or `attributes`, or both"))
            }
        }
    }
}
