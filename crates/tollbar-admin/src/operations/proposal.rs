//! A change that is only talked about: whether the rules would still fit together, what would be
//! different, and who would be denied that is not denied now. Nothing is changed and nothing charged.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::Serialize;
use tollbar::Store;
use tollbar_rules::admin::changed_fields;
use tollbar_rules::{AsyncEngine, Diff, Rule, RuleSet, Usage};

use super::rule_json::RuleJson;
use super::{Admin, instant, sub_limit};
use crate::database::{PageRequest, RuleId, UsageFilter};
use crate::operations::auth::access::Reach;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::rfc3339::Rfc3339;

/// Keys of each source that are looked at.
const KEYS_MAX: usize = 500;

/// Questions to a store across a network that wait at the same time.
const AT_ONCE: usize = 64;

/// A change of one rule.
#[derive(Debug, Clone)]
pub(crate) enum ProposedChange {
    /// It says this from now on, and said that before; a new one where there is no id.
    Put { id: Option<RuleId>, before: Option<Box<Rule>>, rule: Box<Rule> },
    /// It is gone; nothing changes where what has no id goes.
    Remove { id: Option<RuleId> },
}

/// The rules as they are, and as they would be.
#[derive(Debug)]
pub(crate) struct Proposal {
    before: RuleSet,
    diff: Diff,
    /// The rule as it is in force, and as it would be.
    old: Option<Arc<Rule>>,
    new: Option<Arc<Rule>>,
}

/// What a change would do.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "clients know it by this name")]
pub(crate) struct DryRun {
    /// Always true: nothing was changed.
    dry_run: bool,
    /// The rule as it would be; null where it would be gone.
    pub(crate) rule: Option<RuleJson>,
    pub(crate) diff: RuleSetDiff,
    /// Of the keys that were denied or counted lately, those that would be denied now and are not.
    pub(crate) newly_denied: Vec<NewDenial>,
    /// How many keys were looked at.
    pub(crate) examined_keys: usize,
}

/// What would be different.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Diff")]
pub(crate) struct RuleSetDiff {
    /// Names of rules that are not there now.
    added: Vec<String>,
    /// Names of rules that would be gone.
    removed: Vec<String>,
    pub(crate) changed: Vec<RuleDiff>,
    /// How many would say what they say.
    pub(crate) unchanged: usize,
}

/// A rule that would say something else.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ChangedRule")]
pub(crate) struct RuleDiff {
    rule: String,
    /// Which of its fields.
    fields: Vec<String>,
    /// Limits whose counters would start fresh.
    pub(crate) starts_fresh: Vec<String>,
}

/// Somebody who would be denied and is not.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "NewlyDenied")]
pub(crate) struct NewDenial {
    rule_id: Option<String>,
    rule: String,
    pub(crate) subject: String,
    /// The limit that would deny.
    pub(crate) limit_text: String,
    limit: u64,
    remaining: u64,
    pub(crate) reset_at: Rfc3339,
}

impl Proposal {
    /// The change, if the rules fit together with it and `store` can count them.
    pub(crate) fn new(
        before: RuleSet,
        change: &ProposedChange,
        store: &dyn Store,
    ) -> Result<Self, Problem> {
        let (ProposedChange::Put { id, .. } | ProposedChange::Remove { id }) = change;
        let id = *id;
        let id_text = id.map(|id| id.to_string());
        let is_it = |rule: &&Arc<Rule>| id_text.as_deref() == Some(&**rule.identity());
        let old = before.rules().iter().find(is_it).cloned();
        let new = match change {
            ProposedChange::Remove { .. } => None,
            ProposedChange::Put { before, rule, .. } => {
                Some(Arc::new(rule_in_force(rule, id, before.as_deref(), old.as_deref())))
            }
        };
        let without = id_text.as_deref();
        let after = before.changed(without.as_slice(), new.iter().cloned().collect())?;
        if let Some(rule) = new.as_ref().filter(|rule| rule.has_unleased_permits()) {
            let detail = format!(
                "rule `{}` limits what is in flight, and a client that dies would hold its permit for \
                 good: send one such as \"30s\"",
                rule.name
            );
            return Err(Problem::invalid_field("lease", detail));
        }
        if let Some(rule) = &new {
            let mut alone = (**rule).clone();
            // What it replaces is there, as it was checked above.
            alone.replaces.clear();
            RuleSet::new(vec![alone])?.check_support(store)?;
        }
        let diff = Diff::between(&before, &after);
        Ok(Self { before, diff, old, new })
    }

    /// Returns what the change would do.
    pub(crate) async fn dry_run(
        self,
        admin: &Admin,
        reach: Reach<'_>,
        rule: Option<&Rule>,
    ) -> DryRun {
        let id = self.old.as_ref().map(|old| old.identity().to_string());
        let (newly_denied, examined_keys) = self.newly_denied(admin, id.as_deref()).await;
        DryRun {
            dry_run: true,
            rule: rule.map(|rule| RuleJson::of_rule(rule, id)),
            diff: self.rule_set_diff(reach),
            newly_denied,
            examined_keys,
        }
    }

    fn rule_set_diff(&self, reach: Reach<'_>) -> RuleSetDiff {
        let names = |all: &[Arc<str>]| all.iter().map(ToString::to_string).collect();
        // Only the one rule that is changed can be among them.
        let rules = self.old.as_ref().zip(self.new.as_ref());
        let changed = self.diff.changed.iter().zip(rules).map(|(change, (old, new))| RuleDiff {
            rule: change.rule.to_string(),
            fields: changed_fields(old, new).into_iter().map(|field| field.field).collect(),
            starts_fresh: change.starts_fresh.clone(),
        });
        RuleSetDiff {
            added: names(&self.diff.added),
            removed: names(&self.diff.removed),
            changed: changed.collect(),
            unchanged: self.unchanged(reach),
        }
    }

    /// How many would say what they say, of those that may be seen.
    fn unchanged(&self, reach: Reach<'_>) -> usize {
        let Reach::Tenant(tenant) = reach else {
            return self.diff.unchanged;
        };
        let own =
            self.before.rules().iter().filter(|rule| sub_limit::is_visible_in_force(rule, tenant));
        let is_changed =
            |rule: &&Arc<Rule>| self.old.as_ref() == Some(*rule) && self.old != self.new;
        own.filter(|rule| !is_changed(rule)).count()
    }

    /// Only a rule that is there has counters that tell.
    async fn newly_denied(&self, admin: &Admin, id: Option<&str>) -> (Vec<NewDenial>, usize) {
        let (Some(old), Some(new)) = (&self.old, &self.new) else {
            return (Vec::new(), 0);
        };
        let Some(engine_with_only) = self.engine_with_only(new, admin) else {
            return (Vec::new(), 0);
        };
        let recent_subjects = recent_subjects(admin, old).await;
        let mut denied = Vec::new();
        for some in recent_subjects.iter().collect::<Vec<_>>().chunks(AT_ONCE) {
            let checks = some.iter().map(|subject| async {
                let now = usage(&admin.daemon.engine, old, subject, None).await?;
                let current = || now.iter().filter(|usage| usage.is_current);
                let mut tiers: Vec<_> = current().map(|usage| usage.tier.as_deref()).collect();
                tiers.dedup();
                for tier in tiers {
                    let mut then = usage(&engine_with_only, new, subject, tier).await?;
                    if tier.is_none() {
                        // Its requests named no tier, as far as the old rule could tell.
                        then.retain(|usage| usage.tier.as_deref() == new.tiers.default.as_deref());
                    }
                    let first = then.into_iter().find(|usage| usage.remaining == 0);
                    let mut own = current().filter(|usage| usage.tier.as_deref() == tier);
                    if let Some(first) = first.filter(|_| !own.any(|usage| usage.remaining == 0)) {
                        return Some((*subject, first));
                    }
                }
                None
            });
            denied.extend(join_all(checks).await.into_iter().flatten().map(|(subject, usage)| {
                NewDenial {
                    rule_id: id.map(str::to_owned),
                    rule: new.name.to_string(),
                    subject: subject.clone(),
                    limit_text: usage.text,
                    limit: usage.limit,
                    remaining: usage.remaining,
                    reset_at: Rfc3339(usage.reset_at),
                }
            }));
        }
        (denied, recent_subjects.len())
    }

    /// An engine of this rule alone over the daemon's counters: what is left under one rule does not
    /// depend on others. Boosts count as they do now.
    fn engine_with_only(&self, rule: &Rule, admin: &Admin) -> Option<AsyncEngine> {
        let mut rule = rule.clone();
        rule.replaces.clear();
        let rules = RuleSet::new(vec![rule]).ok()?;
        let rules = rules.with_overrides(self.before.overrides().to_vec());
        AsyncEngine::new(rules, admin.daemon.counters.store()).ok()
    }
}

/// Returns what `subject` has left of a rule's limits, or of those of a tier; `None` if that cannot be said.
async fn usage(
    engine: &AsyncEngine,
    rule: &Rule,
    subject: &str,
    tier: Option<&str>,
) -> Option<Vec<Usage>> {
    let handle = engine.rule(&rule.name).ok()?;
    let attributes: Vec<_> = tier.into_iter().map(|tier| ("tier", tier)).collect();
    let subject = handle.readable_subject(subject, &attributes).ok()?;
    handle.usage(&subject.request().ok()?).await.ok()
}

/// Returns the rule as it would be in force, with the exemptions that the database has beside it: those
/// of the rule in force that the one before does not say itself.
fn rule_in_force(
    rule: &Rule,
    id: Option<RuleId>,
    before: Option<&Rule>,
    old: Option<&Rule>,
) -> Rule {
    let mut rule = rule.clone();
    if let (Some(old), Some(before)) = (old, before) {
        let beside =
            old.exemptions.iter().filter(|exemption| !before.exemptions.contains(exemption));
        rule.exemptions.extend(beside.cloned());
    }
    rule.id = Some(id.unwrap_or_else(RuleId::random).to_string().into());
    rule
}

/// Who was denied by the rule on this node since it started, and who was counted today.
async fn recent_subjects(admin: &Admin, rule: &Rule) -> BTreeSet<String> {
    let handle = admin.daemon.engine.rule(&rule.name).ok();
    let denied = handle.map_or_else(Vec::new, |handle| handle.top_denied(KEYS_MAX));
    let mut recent_subjects: BTreeSet<String> = denied.into_iter().map(|key| key.subject).collect();
    let today = instant::day_of(admin.now()).0;
    let filter = UsageFilter {
        first_day: Some(today),
        last_day: Some(today),
        rule: Some(rule.identity().to_string()),
        ..UsageFilter::default()
    };
    // Without it fewer are looked at, and their number is told.
    if let Ok(page) = admin.repository.usage(&filter, &PageRequest::first(KEYS_MAX as u32)).await {
        recent_subjects.extend(page.rows.into_iter().map(|row| row.subject));
    }
    recent_subjects
}
