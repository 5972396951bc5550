//! Rules: seen, made, changed, deleted, put back. Those of the file are seen here and changed there.

use std::collections::BTreeSet;

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use tollbar_rules::Rule;
use tollbar_rules::admin::RuleView;

use super::precondition::IfMatch;
use super::proposal::{DryRun, Proposal, ProposedChange};
use super::rule_json::{RuleForm, RuleJson};
use super::{Admin, sub_limit};
use crate::database::{
    AuditRow, BrokenRule, Cursor, Owner, PAGE_ROWS_MAX, Page, PageRequest, RepositoryError,
    RuleFilter, RuleId, RuleRow,
};
use crate::operations::auth::access::{Actor, Permission, Reach};
use tollbar_daemon::background;
use tollbar_daemon::problem::Problem;

/// A version to be put back.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rollback {
    /// Which, as its history has it.
    #[schemars(range(min = 1))]
    pub(crate) version: u64,
}

/// A rule where it is kept.
#[derive(Debug)]
pub(crate) enum RuleRecord {
    Database(Box<RuleRow>),
    File(Box<RuleJson>),
}

impl RuleRecord {
    /// The rule as the API sends it.
    pub(crate) fn json(self, admin: &Admin) -> Box<RuleJson> {
        match self {
            Self::Database(row) => Box::new(RuleJson::of_row(&row, &admin.live.status())),
            Self::File(json) => json,
        }
    }
}

/// The result of a change, or of a dry run.
#[derive(Debug)]
pub(crate) enum ChangeResult {
    Done(Box<RuleJson>),
    DryRun(Box<DryRun>),
}

/// A row that is to be changed: a rule, or one written by hand that is none.
enum RuleTarget {
    Rule(Box<RuleRow>),
    Broken(Box<BrokenRule>),
}

/// The position in a list of rules: in the file's after so many, or in the database's.
enum ListPosition {
    File(usize),
    Database(Option<Cursor>),
}

/// A page of rules, those of the file first. A tenant sees its own, and a page of those may be short.
pub(crate) async fn list(
    admin: &Admin,
    actor: &Actor,
    filter: &RuleFilter,
    page: &PageRequest,
) -> Result<Page<RuleJson>, Problem> {
    let reach = actor.reach(Permission::See)?;
    let mut filter = filter.clone();
    let cursor = page.after.as_ref().map(Cursor::as_text);
    let position = match reach {
        Reach::All => ListPosition::parse(cursor)?,
        // The file's rules are the operator's.
        Reach::Tenant(_) => match ListPosition::parse(cursor)? {
            ListPosition::File(_) => ListPosition::Database(None),
            position @ ListPosition::Database(_) => position,
        },
    };
    if let Reach::Tenant(tenant) = reach {
        if filter.tenant.as_deref().is_some_and(|wanted| wanted != tenant) {
            return Err(Problem::forbidden(format!("this token is of tenant `{tenant}` only")));
        }
        filter.tenant = Some(tenant.to_owned());
    }
    let limit = page.rows_max as usize;
    let mut items = Vec::new();
    let after = match position {
        ListPosition::Database(after) => after,
        ListPosition::File(skipped) => {
            let rules = admin.file_rules();
            let all = rules.rules().iter().filter(|rule| is_match(&filter, rule));
            let mut some = all.skip(skipped).map(|rule| RuleJson::of_file(rule));
            items.extend(some.by_ref().take(limit));
            if items.len() == limit {
                let next = Some(ListPosition::File(skipped + items.len()).cursor());
                return Ok(Page { rows: items, next });
            }
            None
        }
    };
    let rows_max = (limit - items.len()) as u32;
    let of = PageRequest { after, rows_max };
    let page = admin.repository.rules(&filter, &of).await?;
    let is_visible = |row: &&RuleRow| match reach {
        Reach::All => true,
        Reach::Tenant(tenant) => sub_limit::is_visible(&row.rule, tenant),
    };
    let status = admin.live.status();
    let rows = page.rows.iter().filter(is_visible);
    items.extend(rows.map(|row| RuleJson::of_row(row, &status)));
    Ok(Page {
        rows: items,
        next: page.next.map(|cursor| ListPosition::Database(Some(cursor)).cursor()),
    })
}

/// One rule.
pub(crate) async fn get(admin: &Admin, actor: &Actor, id: &str) -> Result<Box<RuleJson>, Problem> {
    Ok(find(admin, actor.reach(Permission::See)?, id).await?.json(admin))
}

/// Makes a rule.
pub(crate) async fn create(
    admin: &Admin,
    actor: &Actor,
    sent: &RuleForm,
    is_dry_run: bool,
) -> Result<ChangeResult, Problem> {
    let reach = admin.authorize_change(actor)?;
    let rule = sent.rule()?;
    let change = ProposedChange::Put { id: None, before: None, rule: rule.clone().into() };
    let proposal = propose(admin, reach, change).await?;
    let owner = reach.owner();
    if is_dry_run {
        return preview(admin, reach, proposal, &rule, owner).await;
    }
    drop(proposal);
    let row = admin.repository.insert_rule_for(&owner, &rule, &actor.audit_name()).await?;
    admin.wait_until_enforced().await;
    Ok(ChangeResult::Done(RuleRecord::Database(Box::new(row)).json(admin)))
}

/// Makes a rule say something else.
pub(crate) async fn replace(
    admin: &Admin,
    actor: &Actor,
    id: &str,
    if_match: &IfMatch,
    sent: &RuleForm,
    is_dry_run: bool,
) -> Result<ChangeResult, Problem> {
    let reach = admin.authorize_change(actor)?;
    let target = find_target(admin, reach, id).await?;
    let expected = if_match.check_version(target.version())?;
    let rule = sent.rule()?;
    let (row_id, before) = target.before();
    let change = ProposedChange::Put { id: row_id, before, rule: rule.clone().into() };
    let proposal = propose(admin, reach, change).await?;
    if is_dry_run {
        return preview(admin, reach, proposal, &rule, target.owner()).await;
    }
    drop(proposal);
    let by = actor.audit_name();
    let row = match target {
        RuleTarget::Rule(row) => admin.repository.update_rule(row.id, expected, &rule, &by).await?,
        RuleTarget::Broken(_) => admin.repository.repair_rule(id, expected, &rule, &by).await?,
    };
    admin.wait_until_enforced().await;
    Ok(ChangeResult::Done(RuleRecord::Database(Box::new(row)).json(admin)))
}

/// Deletes a rule. What it said stays in its history.
pub(crate) async fn delete(
    admin: &Admin,
    actor: &Actor,
    id: &str,
    if_match: &IfMatch,
    is_dry_run: bool,
) -> Result<Option<Box<DryRun>>, Problem> {
    let reach = admin.authorize_change(actor)?;
    let target = find_target(admin, reach, id).await?;
    let expected = if_match.check_version(target.version())?;
    let change = ProposedChange::Remove { id: target.before().0 };
    let proposal = propose(admin, reach, change).await?;
    if is_dry_run {
        return Ok(Some(Box::new(proposal.dry_run(admin, reach, None).await)));
    }
    drop(proposal);
    let by = actor.audit_name();
    match target {
        RuleTarget::Rule(row) => {
            admin.repository.delete_rule(row.id, expected, &by).await?;
        }
        RuleTarget::Broken(_) => admin.repository.discard_rule(id, expected, &by).await?,
    }
    admin.wait_until_enforced().await;
    Ok(None)
}

/// Makes a rule say what it said at a version, also one that was deleted.
pub(crate) async fn roll_back(
    admin: &Admin,
    actor: &Actor,
    id: &str,
    if_match: &IfMatch,
    rollback: &Rollback,
    is_dry_run: bool,
) -> Result<ChangeResult, Problem> {
    let reach = admin.authorize_change(actor)?;
    let RuleRow { id, version, rule: before, owner, .. } =
        check_owner(reach, find_with_history(admin, reach, id).await?)?;
    let expected = if_match.check_version(version)?;
    let rule = admin.repository.rule_at(id, rollback.version).await?;
    let change = ProposedChange::Put {
        id: Some(id),
        before: Some(before.into()),
        rule: rule.clone().into(),
    };
    let proposal = propose(admin, reach, change).await?;
    if is_dry_run {
        return preview(admin, reach, proposal, &rule, owner).await;
    }
    drop(proposal);
    let by = actor.audit_name();
    let row = admin.repository.rollback_rule(id, expected, rollback.version, &by).await?;
    admin.wait_until_enforced().await;
    Ok(ChangeResult::Done(RuleRecord::Database(Box::new(row)).json(admin)))
}

/// Every change of a rule, the newest first, also of one that was deleted.
pub(crate) async fn history(
    admin: &Admin,
    actor: &Actor,
    id: &str,
    page: &PageRequest,
) -> Result<Page<AuditRow>, Problem> {
    let row = find_with_history(admin, actor.reach(Permission::See)?, id).await?;
    Ok(admin.repository.history(row.id, page).await?)
}

/// The rule, if it may be seen.
pub(crate) async fn find(admin: &Admin, reach: Reach<'_>, id: &str) -> Result<RuleRecord, Problem> {
    let row = match id.parse() {
        Ok(id) => match admin.repository.rule(id).await {
            Err(RepositoryError::NotFound { .. }) => None,
            // What is no rule is no tenant's.
            Err(RepositoryError::Broken(_)) if reach != Reach::All => None,
            row => Some(row?),
        },
        Err(_) => None,
    };
    match (row, reach) {
        (Some(row), Reach::All) => Ok(RuleRecord::Database(Box::new(row))),
        (Some(row), Reach::Tenant(tenant)) if sub_limit::is_visible(&row.rule, tenant) => {
            Ok(RuleRecord::Database(Box::new(row)))
        }
        // What is not a tenant's own is not there for it.
        (_, Reach::Tenant(_)) => Err(Problem::not_found("rule")),
        (None, Reach::All) => {
            let rules = admin.file_rules();
            let rule = rules.rules().iter().find(|rule| **rule.identity() == *id);
            rule.map(|rule| RuleRecord::File(Box::new(RuleJson::of_file(rule))))
                .ok_or(Problem::not_found("rule"))
        }
    }
}

/// The rule, if it may be changed here.
pub(crate) async fn find_changeable(
    admin: &Admin,
    reach: Reach<'_>,
    id: &str,
) -> Result<RuleRow, Problem> {
    match find(admin, reach, id).await? {
        RuleRecord::Database(row) => check_owner(reach, *row),
        RuleRecord::File(_) => Err(Problem::read_only(id)),
    }
}

/// Returns the rule, unless somebody else made it and `reach` is a tenant's.
fn check_owner(reach: Reach<'_>, row: RuleRow) -> Result<RuleRow, Problem> {
    if reach.may_change(&row.owner) { Ok(row) } else { Err(operators_rule(&row.rule.name)) }
}

/// Returns why a tenant cannot change a rule that it sees.
pub(crate) fn operators_rule(name: &str) -> Problem {
    Problem::forbidden(format!(
        "rule `{name}` belongs to the operator: ask the operator to change it, or make a rule of your own"
    ))
}

/// The rule, if it may be changed here, or the broken row of that id or name. A broken row is no tenant's.
async fn find_target(admin: &Admin, reach: Reach<'_>, id: &str) -> Result<RuleTarget, Problem> {
    let problem = match find_changeable(admin, reach, id).await {
        Ok(row) => return Ok(RuleTarget::Rule(Box::new(row))),
        Err(problem) => problem,
    };
    let is_absent = matches!(problem.status, StatusCode::NOT_FOUND | StatusCode::CONFLICT);
    if reach != Reach::All || !is_absent {
        return Err(problem);
    }
    let broken = admin.repository.broken_rule(id).await?;
    broken.map(|broken| RuleTarget::Broken(Box::new(broken))).ok_or(problem)
}

/// Returns a rule of the database as it is, or as it was when it was deleted.
async fn find_with_history(admin: &Admin, reach: Reach<'_>, id: &str) -> Result<RuleRow, Problem> {
    let gone = match find(admin, reach, id).await {
        Ok(RuleRecord::Database(row)) => return Ok(*row),
        Ok(RuleRecord::File(_)) => return Err(Problem::read_only(id)),
        Err(problem) => problem,
    };
    let Ok(id) = id.parse::<RuleId>() else {
        return Err(gone);
    };
    let row = match admin.repository.rule_or_deleted(id).await {
        Err(RepositoryError::NotFound { .. }) => return Err(gone),
        Err(RepositoryError::Broken(_)) if reach != Reach::All => return Err(gone),
        row => row?,
    };
    match reach {
        Reach::Tenant(tenant) if !sub_limit::is_visible(&row.rule, tenant) => Err(gone),
        _ => Ok(row),
    }
}

/// Returns what a change would do.
async fn preview(
    admin: &Admin,
    reach: Reach<'_>,
    proposal: Proposal,
    rule: &Rule,
    owner: Owner,
) -> Result<ChangeResult, Problem> {
    let mut dry_run = proposal.dry_run(admin, reach, Some(rule)).await;
    if let Some(json) = &mut dry_run.rule {
        json.owner = owner;
    }
    Ok(ChangeResult::DryRun(Box::new(dry_run)))
}

/// Checks a change: whether `reach` allows it, and the rules fit together with it.
async fn propose(
    admin: &Admin,
    reach: Reach<'_>,
    change: ProposedChange,
) -> Result<Proposal, Problem> {
    let in_force = admin.daemon.engine.rules();
    if let ProposedChange::Put { id, rule, .. } = &change {
        // First, so that no other refusal tells a tenant which rules there are.
        if let Reach::Tenant(tenant) = reach {
            let own = find_own(admin, tenant).await?;
            sub_limit::check(tenant, rule, in_force.rules(), &own)?;
            let most = sub_limit::SUB_LIMITS_MAX;
            if id.is_none_or(|id| !own.contains(&id)) && own.len() >= most {
                return Err(Problem::forbidden(format!(
                    "a tenant has at most {most} sub-limits: delete one first"
                )));
            }
        }
        let is_taken = admin.file_rules().get(&rule.name).is_some();
        let filter = RuleFilter { name: Some(rule.name.to_string()), ..RuleFilter::default() };
        let same = admin.repository.rules(&filter, &PageRequest::first(1)).await?;
        if is_taken || same.rows.iter().any(|other| Some(other.id) != *id) {
            let name: String = rule.name.chars().take(64).collect();
            return Err(Problem::exists(format!(
                "another rule has the name `{name}`: choose another one"
            )));
        }
    }
    let store = admin.daemon.counters.store();
    let proposal = background::run(move || Proposal::new(in_force, &change, &*store)).await;
    let busy = "there is no thread to look at this with: send it again in a moment";
    proposal.unwrap_or_else(|| Err(Problem::unavailable(busy)))
}

/// Returns the ids of the sub-limits that a tenant has made.
async fn find_own(admin: &Admin, tenant: &str) -> Result<BTreeSet<RuleId>, Problem> {
    let filter = RuleFilter { tenant: Some(tenant.to_owned()), ..RuleFilter::default() };
    let mut own = BTreeSet::new();
    let mut of = PageRequest::first(PAGE_ROWS_MAX);
    loop {
        let page = admin.repository.rules(&filter, &of).await?;
        let rows = page.rows.iter().filter(|row| sub_limit::is_own(row, tenant));
        own.extend(rows.map(|row| row.id));
        match page.next {
            Some(next) => of = PageRequest::after(next, PAGE_ROWS_MAX),
            None => return Ok(own),
        }
    }
}

impl RuleTarget {
    fn version(&self) -> u64 {
        match self {
            Self::Rule(row) => row.version,
            Self::Broken(broken) => broken.version,
        }
    }

    /// Who made it. A broken row is no tenant's.
    fn owner(&self) -> Owner {
        match self {
            Self::Rule(row) => row.owner.clone(),
            Self::Broken(_) => Owner::Operator,
        }
    }

    /// Its id, where it is one, and what it said.
    fn before(&self) -> (Option<RuleId>, Option<Box<Rule>>) {
        match self {
            Self::Rule(row) => (Some(row.id), Some(row.rule.clone().into())),
            Self::Broken(broken) => (broken.id.parse().ok(), None),
        }
    }
}

fn is_match(filter: &RuleFilter, rule: &Rule) -> bool {
    let view = RuleView::from_rule(rule);
    filter.tenant.as_ref().is_none_or(|tenant| view.tenant_id.as_ref() == Some(tenant))
        && filter.scope.is_none_or(|scope| view.scope == scope)
        && filter.enabled.is_none_or(|enabled| rule.enabled == enabled)
        && filter.name.as_ref().is_none_or(|name| *rule.name == **name)
}

impl ListPosition {
    fn parse(cursor: Option<&str>) -> Result<Self, Problem> {
        let Some(cursor) = cursor else {
            return Ok(Self::File(0));
        };
        if let Some(cursor) = cursor.strip_prefix('d') {
            return Ok(Self::Database((!cursor.is_empty()).then(|| Cursor::of_text(cursor))));
        }
        let skipped = cursor.strip_prefix('f').and_then(|digits| digits.parse().ok());
        let no_cursor = || RepositoryError::Cursor.into();
        skipped.map(Self::File).ok_or_else(no_cursor)
    }

    fn cursor(&self) -> Cursor {
        Cursor::of_text(&match self {
            Self::File(skipped) => format!("f{skipped}"),
            Self::Database(cursor) => {
                format!("d{}", cursor.as_ref().map_or("", |cursor| cursor.as_text()))
            }
        })
    }
}
