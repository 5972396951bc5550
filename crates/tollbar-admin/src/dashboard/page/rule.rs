//! One rule: what it says, what it does, whom it limits, who is exempt, and what it said before.

use askama::Template;
use hyper::StatusCode;
use tollbar_rules::admin::to_yaml;
use tollbar_rules::{Rule, RuleWarning};

use super::super::rule_text::{FieldDiff, changes};
use super::exemptions::{ExemptForm, ExemptionListRow, KINDS};
use super::rules::badges;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::panel::overview::{KeysPanel, render, rule_href};
use crate::dashboard::panel::traffic::{TimeRange, TrafficPanel};
use crate::dashboard::response;
use crate::dashboard::view::formatting::DateTime;
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::{UntrustedText, escape_invisible};
use crate::database::{AuditAction, AuditRow, AuditState, Owner, PageRequest};
use crate::operations::auth::access::Permission;
use crate::operations::exemptions;
use crate::operations::rule_json::{RuleJson, Source};
use crate::operations::rules;
use tollbar_daemon::problem::Problem;

/// Keys, exemptions and changes of a page.
const KEYS_MAX: usize = 10;
const EXEMPTIONS_MAX: u32 = 100;
const CHANGES_MAX: u32 = 20;

const OF_FILE: &str =
    "This rule is in the file of rules: change it there, and the daemon reads it again.";
const OF_OPERATOR: &str =
    "This rule belongs to the operator: ask the operator to change it, or make a rule of your own.";

#[derive(Debug, Template)]
#[template(path = "rule.html")]
struct RulePage {
    layout: Layout,
    title: String,
    id: String,
    href: String,
    name: UntrustedText,
    badges: Vec<&'static str>,
    is_file: bool,
    is_gone: bool,
    may_change: bool,
    /// Why somebody who may change rules cannot change this one.
    read_only: Option<&'static str>,
    owner: UntrustedText,
    version: Option<u64>,
    not_in_force: Option<UntrustedText>,
    warnings: Vec<UntrustedText>,
    yaml: String,
    traffic: Option<String>,
    keys: String,
    exemptions: Vec<ExemptionListRow>,
    exempt_form: ExemptForm,
    kinds: [(&'static str, &'static str); 4],
    history: Vec<HistoryRow>,
    history_next: Option<String>,
}

#[derive(Debug)]
struct HistoryRow {
    version: String,
    at: DateTime,
    action: &'static str,
    fields: Vec<FieldDiff>,
    by: UntrustedText,
    is_current: bool,
    can_return: bool,
}

/// A rule that exists, or did before it was deleted.
pub(crate) struct ViewedRule {
    pub(crate) rule: Rule,
    pub(crate) version: Option<u64>,
    owner: Owner,
    /// Why this node does not enforce it, although it is enabled.
    not_in_force: Option<String>,
    warnings: Vec<RuleWarning>,
    pub(crate) is_file: bool,
    pub(crate) is_gone: bool,
}

impl ViewedRule {
    /// The rule, if it may be seen.
    pub(crate) async fn find(context: &PageContext<'_>, id: &str) -> Result<Self, Problem> {
        let gone = match rules::get(context.admin, context.actor(), id).await {
            Ok(found) => {
                let RuleJson { rule, source, version, owner, not_in_force, warnings, .. } = *found;
                let (is_file, is_gone) = (source == Source::File, false);
                return Ok(Self { rule, version, owner, not_in_force, warnings, is_file, is_gone });
            }
            Err(problem) if problem.status == StatusCode::NOT_FOUND => problem,
            Err(problem) => return Err(problem),
        };
        // It may have been deleted, and can come back.
        let page_request = PageRequest::first(1);
        let history = rules::history(context.admin, context.actor(), id, &page_request).await;
        let last = history.ok().and_then(|page| page.rows.into_iter().next());
        let version = last.as_ref().and_then(|change| change.version);
        match last.and_then(|change| change.after.or(change.before)) {
            Some(AuditState::Rule(audited)) => {
                let (not_in_force, warnings) = (None, Vec::new());
                let (rule, owner, is_file, is_gone) = (audited.rule, audited.owner, false, true);
                Ok(Self { rule, version, owner, not_in_force, warnings, is_file, is_gone })
            }
            _ => Err(gone),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.rule.name
    }

    /// True if the actor may change rules, and somebody else made this one.
    pub(crate) fn is_of_others(&self, context: &PageContext<'_>) -> bool {
        let reach = context.actor().reach(Permission::Change);
        reach.is_ok_and(|reach| !reach.may_change(&self.owner))
    }
}

pub(crate) async fn show(context: &PageContext<'_>, id: &str) -> PageResult {
    show_with(context, id, ExemptForm::default(), None).await
}

/// The page of a rule, with a form that was filled in, and what was wrong with it.
pub(crate) async fn show_with(
    context: &PageContext<'_>,
    id: &str,
    exempt_form: ExemptForm,
    problem: Option<&Problem>,
) -> PageResult {
    let (admin, actor) = (context.admin, context.actor());
    let viewed = ViewedRule::find(context, id).await?;
    let name = viewed.name();
    let traffic =
        TrafficPanel::new(&admin.daemon.metrics.history(), Some(name), TimeRange::Minutes);
    let keys = render(&KeysPanel::new(admin, Some(name), KEYS_MAX));
    let (mut exempt, mut history, mut history_next) = (Vec::new(), Vec::new(), None);
    if !viewed.is_file {
        if !viewed.is_gone {
            let page_request = PageRequest::first(EXEMPTIONS_MAX);
            let paged = exemptions::list_of_rule(admin, actor, id, &page_request).await?;
            exempt =
                paged.rows.iter().map(|exemption| ExemptionListRow::new(exemption, name)).collect();
        }
        let paged = rules::history(admin, actor, id, &context.page_request(CHANGES_MAX)).await?;
        history =
            paged.rows.into_iter().map(|change| HistoryRow::new(change, viewed.version)).collect();
        let next = PageContext::next_href(&rule_href(id), paged.next);
        history_next = next.map(|href| format!("{href}#history"));
    }
    let mut badges = badges(&viewed.rule, viewed.is_file, viewed.not_in_force.is_some());
    if viewed.is_gone {
        badges = vec!["deleted"];
    }
    let read_only = match &viewed {
        ViewedRule { is_file: true, .. } => Some(OF_FILE),
        viewed => viewed.is_of_others(context).then_some(OF_OPERATOR),
    };
    let page = RulePage {
        layout: context.layout_with(NavItem::Rules, problem),
        title: escape_invisible(name),
        id: id.to_owned(),
        href: rule_href(id),
        name: UntrustedText::new(name),
        badges,
        is_file: viewed.is_file,
        is_gone: viewed.is_gone,
        may_change: context.permissions().change && read_only.is_none(),
        read_only,
        owner: UntrustedText::new(viewed.owner.to_string()),
        version: viewed.version,
        not_in_force: viewed.not_in_force.as_deref().map(UntrustedText::new),
        warnings: warning_lines(&viewed.warnings),
        yaml: escape_lines(&to_yaml(&viewed.rule)),
        traffic: (!traffic.chart.columns.is_empty()).then(|| render(&traffic)),
        keys,
        exemptions: exempt,
        exempt_form,
        kinds: KINDS,
        history,
        history_next,
    };
    Ok(response::render_page(problem.map_or(StatusCode::OK, |problem| problem.status), &page))
}

/// Warnings, a line each.
pub(crate) fn warning_lines(warnings: &[RuleWarning]) -> Vec<UntrustedText> {
    let line = |warning: &RuleWarning| {
        UntrustedText::new(format!("{}: {}", warning.field, warning.message))
    };
    warnings.iter().map(line).collect()
}

/// Line ends stay; everything else that cannot be seen is spelled out.
fn escape_lines(text: &str) -> String {
    text.lines().map(escape_invisible).collect::<Vec<_>>().join("\n")
}

impl HistoryRow {
    fn new(change: AuditRow, current: Option<u64>) -> Self {
        let [before, after] = [&change.before, &change.after].map(|state| match state {
            Some(AuditState::Rule(audited)) => Some(&audited.rule),
            _ => None,
        });
        let is_deletion = change.action == AuditAction::Delete;
        let is_current = change.version == current;
        Self {
            version: change.version.map_or_else(|| "–".to_owned(), |version| version.to_string()),
            at: DateTime(change.created_at),
            action: match change.action {
                AuditAction::Insert => "created",
                AuditAction::Update => "changed",
                AuditAction::Delete => "deleted",
                AuditAction::Enable => "enabled",
                AuditAction::Disable => "disabled",
            },
            fields: if is_deletion { Vec::new() } else { changes(before, after) },
            by: UntrustedText::new(change.actor),
            can_return: change.version.is_some() && !is_current && !is_deletion,
            is_current,
        }
    }
}
