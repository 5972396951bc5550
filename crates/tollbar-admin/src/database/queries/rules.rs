//! Rules: made, read, changed, deleted and put back, each change with its line in the audit.

use serde_json::Value as Json;
use tollbar::Timestamp;
use tollbar_rules::admin::{FormError, RuleView, Scope, from_json, to_json};
use tollbar_rules::{Rule, RuleSet};

use super::audit::AuditEntry;
use super::{check_name, check_text};
use crate::database::queries::audit::{self};
use crate::database::sql::{Sql, SqlRow, SqlValue, WhereClause, invalid_row, number};
use crate::database::{
    AuditAction, AuditFilter, AuditKind, AuditRow, AuditState, AuditedRule, BrokenRule, Owner,
    Page, PageRequest, RepositoryError, Result, RuleFilter, RuleId, RuleRow,
};
use tollbar_daemon::rfc3339::Rfc3339;

/// The longest JSON of a rule.
const SPEC_BYTES_MAX: usize = 262_144;

/// The columns that are read. `spec` is the rule; the database reads the others of a rule from it.
const COLUMNS: &str =
    "id, rule_uuid, name, spec, version, owner, created_at, updated_at, deleted_at";

/// A page of rules. Rows that say none are left out here; who follows the rules tells of them.
pub(crate) async fn page<S: Sql>(
    sql: &S,
    filter: &RuleFilter,
    of: &PageRequest,
) -> Result<Page<RuleRow>> {
    let conditions = WhereClause::new("deleted_at IS NULL")
        .and("id > $", of.after_id()?)
        .and("tenant_id = $", filter.tenant.as_ref())
        .and("scope = $", filter.scope.map(Scope::name))
        .and("enabled = $", filter.enabled)
        .and("name = $", filter.name.as_ref());
    let (statement, values) = conditions.statement(&select(), "id", of.rows_max());
    let rows = sql.query(&statement, &values).await?;
    let rows: Vec<_> = rows.into_iter().map(read).collect();
    let page = Page::cut(rows, of, |row| match row {
        Ok(rule) => rule.row.to_string(),
        Err(broken) => broken.row.to_string(),
    });
    Ok(Page {
        rows: page.rows.into_iter().filter_map(std::result::Result::ok).collect(),
        next: page.next,
    })
}

/// Every rule that is enabled, in the order of rows.
pub(crate) async fn list_enabled<S: Sql>(
    sql: &S,
) -> Result<Vec<std::result::Result<RuleRow, BrokenRule>>> {
    let statement = format!("{} WHERE deleted_at IS NULL AND enabled ORDER BY id", select());
    Ok(sql.query(&statement, &[]).await?.into_iter().map(read).collect())
}

/// The rule of that row, if it is enabled.
pub(crate) async fn find_enabled_at<S: Sql>(
    sql: &S,
    row: i64,
) -> Result<Option<std::result::Result<RuleRow, BrokenRule>>> {
    let statement = format!("{} WHERE id = $1 AND deleted_at IS NULL AND enabled", select());
    Ok(sql.query(&statement, &[row.into()]).await?.into_iter().next().map(read))
}

/// The rule, unless it is deleted.
pub(crate) async fn get<S: Sql>(sql: &S, id: RuleId) -> Result<RuleRow> {
    let statement = format!("{} WHERE rule_uuid = $1 AND deleted_at IS NULL", select());
    let rows = sql.query(&statement, &[id.to_string().into()]).await?;
    if rows.is_empty() { Err(not_found()) } else { read_one(rows) }
}

pub(crate) async fn insert<S: Sql>(
    sql: &S,
    rule: &Rule,
    owner: &Owner,
    actor: &str,
) -> Result<RuleRow> {
    let spec = check(rule)?;
    check_name("actor", actor)?;
    check_free(sql, &rule.name, None).await?;
    let values =
        [RuleId::random().to_string().into(), spec, sql.now().into(), owner.to_string().into()];
    let statement = format!(
        "INSERT INTO rate_limit_rules (rule_uuid, spec, created_at, updated_at, owner) \
         VALUES ($1, $2, $3, $3, $4) RETURNING {COLUMNS}"
    );
    let row = read_one(sql.query(&statement, &values).await?)?;
    audit_change(sql, AuditAction::Insert, None, &row, actor).await?;
    Ok(row)
}

pub(crate) async fn update<S: Sql>(
    sql: &S,
    id: RuleId,
    expected: u64,
    rule: &Rule,
    actor: &str,
) -> Result<RuleRow> {
    let before = check_version(get(sql, id).await?, expected)?;
    change(sql, &before, rule, None, AuditAction::Update, actor).await
}

pub(crate) async fn delete<S: Sql>(
    sql: &S,
    id: RuleId,
    expected: u64,
    actor: &str,
) -> Result<RuleRow> {
    let before = check_version(get(sql, id).await?, expected)?;
    change(sql, &before, &before.rule, Some(sql.now()), AuditAction::Delete, actor).await
}

pub(crate) async fn enable<S: Sql>(
    sql: &S,
    id: RuleId,
    expected: u64,
    enabled: bool,
    actor: &str,
) -> Result<RuleRow> {
    let before = check_version(get(sql, id).await?, expected)?;
    let mut rule = before.rule.clone();
    rule.enabled = enabled;
    let action = if enabled { AuditAction::Enable } else { AuditAction::Disable };
    change(sql, &before, &rule, None, action, actor).await
}

/// Puts a rule back to what a version of it said; one that was deleted is there again.
pub(crate) async fn roll_back<S: Sql>(
    sql: &S,
    id: RuleId,
    expected: u64,
    to_version: u64,
    actor: &str,
) -> Result<RuleRow> {
    let before = check_version(find(sql, id).await?, expected)?;
    let rule = rule_at_version(sql, &before, to_version).await?;
    change(sql, &before, &rule, None, AuditAction::Update, actor).await
}

/// Every change of a rule, the newest first, whether it is deleted or not.
pub(crate) async fn history<S: Sql>(
    sql: &S,
    id: RuleId,
    page: &PageRequest,
) -> Result<Page<AuditRow>> {
    find(sql, id).await?;
    let filter = AuditFilter { rule: Some(id), kind: Some(AuditKind::Rule), tenant: None };
    audit::page(sql, &filter, page).await
}

/// What a version of a rule said.
pub(crate) async fn rule_at<S: Sql>(sql: &S, id: RuleId, version: u64) -> Result<Rule> {
    let rule = find(sql, id).await?;
    rule_at_version(sql, &rule, version).await
}

/// The rule, deleted or not.
pub(crate) async fn find<S: Sql>(sql: &S, id: RuleId) -> Result<RuleRow> {
    let statement = format!("{} WHERE rule_uuid = $1", select());
    let rows = sql.query(&statement, &[id.to_string().into()]).await?;
    if rows.is_empty() { Err(not_found()) } else { read_one(rows) }
}

async fn rule_at_version<S: Sql>(sql: &S, rule: &RuleRow, version: u64) -> Result<Rule> {
    match audit::rule_at(sql, rule.row, version).await? {
        Some(AuditState::Rule(audited)) => Ok(audited.rule),
        Some(AuditState::Other(_)) => {
            let message = format!("version {version} was no rule: choose another one");
            Err(RepositoryError::Invalid { field: "version", message })
        }
        None => Err(RepositoryError::NotFound { what: "version" }),
    }
}

/// Returns the row of that id or name that says no rule, unless it is deleted.
pub(crate) async fn find_broken<S: Sql>(sql: &S, named: &str) -> Result<Option<BrokenRule>> {
    if check_name("ruleId", named).is_err() {
        return Ok(None);
    }
    let statement = format!(
        "{} WHERE (CAST(rule_uuid AS TEXT) = $1 OR name = $1) AND deleted_at IS NULL ORDER BY id",
        select()
    );
    let rows = sql.query(&statement, &[named.into()]).await?;
    Ok(rows.into_iter().find_map(|row| read(row).err()))
}

/// Puts a rule in the place of what a broken row says. One whose id is none gets one.
pub(crate) async fn repair<S: Sql>(
    sql: &S,
    named: &str,
    expected: u64,
    rule: &Rule,
    actor: &str,
) -> Result<RuleRow> {
    let broken = find_broken_at(sql, named, expected).await?;
    check_name("actor", actor)?;
    let spec = check(rule)?;
    check_free(sql, &rule.name, Some(broken.row)).await?;
    let id = broken.id.parse().unwrap_or_else(|_| RuleId::random()).to_string();
    let version = number(broken.version.saturating_add(1));
    let values = [broken.row.into(), id.into(), version, spec, sql.now().into()];
    let statement = format!(
        "UPDATE rate_limit_rules SET rule_uuid = $2, version = $3, spec = $4, updated_at = $5 \
         WHERE id = $1 RETURNING {COLUMNS}"
    );
    let row = read_one(sql.query(&statement, &values).await?)?;
    audit_change(sql, AuditAction::Update, Some(&AuditState::Other(broken.spec)), &row, actor)
        .await?;
    Ok(row)
}

/// Deletes a broken row.
pub(crate) async fn discard<S: Sql>(
    sql: &S,
    named: &str,
    expected: u64,
    actor: &str,
) -> Result<()> {
    let broken = find_broken_at(sql, named, expected).await?;
    check_name("actor", actor)?;
    let version = broken.version.saturating_add(1);
    let values = [broken.row.into(), number(version), sql.now().into()];
    let statement = "UPDATE rate_limit_rules SET version = $2, updated_at = $3, deleted_at = $3 \
                     WHERE id = $1";
    sql.execute(statement, &values).await?;
    let entry = AuditEntry {
        kind: AuditKind::Rule,
        rule: Some(broken.row),
        action: AuditAction::Delete,
        version: Some(version),
        before: Some(&broken.spec),
        after: None,
    };
    audit::write(sql, entry, actor).await
}

async fn find_broken_at<S: Sql>(sql: &S, named: &str, expected: u64) -> Result<BrokenRule> {
    let broken = find_broken(sql, named).await?.ok_or_else(not_found)?;
    if broken.version != expected {
        return Err(RepositoryError::Conflict { expected, found: broken.version });
    }
    Ok(broken)
}

async fn change<S: Sql>(
    sql: &S,
    before: &RuleRow,
    rule: &Rule,
    deleted_at: Option<Timestamp>,
    action: AuditAction,
    actor: &str,
) -> Result<RuleRow> {
    check_name("actor", actor)?;
    let spec = if deleted_at.is_some() { spec_of(rule) } else { check(rule)? };
    if deleted_at.is_none() {
        check_free(sql, &rule.name, Some(before.row)).await?;
    }
    let values =
        [before.row.into(), number(before.version), spec, sql.now().into(), deleted_at.into()];
    let statement = format!(
        "UPDATE rate_limit_rules SET spec = $3, updated_at = $4, deleted_at = $5, \
         version = version + 1 WHERE id = $1 AND version = $2 RETURNING {COLUMNS}"
    );
    let after = read_one(sql.query(&statement, &values).await?)?;
    audit_change(sql, action, Some(&audited(before)), &after, actor).await?;
    Ok(after)
}

async fn audit_change<S: Sql>(
    sql: &S,
    action: AuditAction,
    before: Option<&AuditState>,
    after: &RuleRow,
    actor: &str,
) -> Result<()> {
    let entry = AuditEntry {
        kind: AuditKind::Rule,
        rule: Some(after.row),
        action,
        version: Some(after.version),
        before,
        after: Some(&audited(after)),
    };
    audit::write(sql, entry, actor).await
}

/// Returns a rule as the audit keeps it.
fn audited(row: &RuleRow) -> AuditState {
    AuditState::Rule(Box::new(AuditedRule {
        rule_id: row.id,
        version: row.version,
        owner: row.owner.clone(),
        deleted_at: row.deleted_at.map(Rfc3339),
        rule: row.rule.clone(),
    }))
}

/// Refuses what the daemon could not enforce, whatever the other rules are. Returns the column of what it
/// could.
pub(crate) fn check(rule: &Rule) -> Result<SqlValue> {
    let invalid = |field, message: &str| {
        let message = message.to_owned();
        Err(RepositoryError::Invalid { field, message })
    };
    if rule.id.is_some() {
        return invalid(
            "id",
            "a rule of the database is counted under the id that it gets: leave this out",
        );
    }
    let view = RuleView::from_rule(rule);
    let columns = [
        ("tenantId", view.tenant_id),
        ("httpMethod", view.http_method),
        ("pathPattern", view.path_pattern),
    ];
    for (field, text) in columns {
        check_text(field, &text.unwrap_or_default(), super::NAME_BYTES_MAX)?;
    }
    // PostgreSQL has no place for it.
    if let Some((field, _)) = to_json(rule).iter().find(|(_, value)| has_nul(value)) {
        return Err(FormError::new(field, "this has a character of code 0: leave it out").into());
    }
    let spec = spec_of(rule);
    if matches!(&spec, SqlValue::Text(text) if text.len() > SPEC_BYTES_MAX) {
        return invalid("spec", "this rule says more than 256 KiB: split it into several");
    }
    let mut rule = rule.clone();
    // Whether those are there is for who puts all rules together.
    rule.replaces.clear();
    match RuleSet::new(vec![rule]) {
        Ok(rules) if rules.rule_with_unleased_permits().is_some() => invalid(
            "lease",
            "the rule limits what is in flight, and a client that dies would hold its permit for \
             good: send a lease such as \"30s\"",
        ),
        Ok(_) => Ok(spec),
        Err(error) => match error.errors.into_iter().next() {
            Some(error) => invalid(error.field, &error.problem.to_string()),
            None => Ok(spec),
        },
    }
}

/// True where any text of a value has a character of code 0.
fn has_nul(value: &Json) -> bool {
    match value {
        Json::String(text) => text.contains('\0'),
        Json::Array(items) => items.iter().any(has_nul),
        Json::Object(fields) => {
            fields.iter().any(|(name, field)| name.contains('\0') || has_nul(field))
        }
        _ => false,
    }
}

/// Returns the column of a rule.
fn spec_of(rule: &Rule) -> SqlValue {
    SqlValue::from(&Json::Object(to_json(rule)))
}

/// Refuses a name that another rule has.
async fn check_free<S: Sql>(sql: &S, name: &str, own: Option<i64>) -> Result<()> {
    let conditions =
        WhereClause::new("deleted_at IS NULL").and("name = $", Some(name)).and("id <> $", own);
    let (statement, values) = conditions.statement("SELECT id FROM rate_limit_rules", "id", 0);
    if sql.query(&statement, &values).await?.is_empty() {
        return Ok(());
    }
    Err(RepositoryError::NameTaken { name: name.to_owned() })
}

fn check_version(rule: RuleRow, expected: u64) -> Result<RuleRow> {
    if rule.version == expected {
        return Ok(rule);
    }
    Err(RepositoryError::Conflict { expected, found: rule.version })
}

fn select() -> String {
    format!("SELECT {COLUMNS} FROM rate_limit_rules")
}

fn not_found() -> RepositoryError {
    RepositoryError::NotFound { what: "rule" }
}

fn read_one(rows: Vec<SqlRow>) -> Result<RuleRow> {
    let row = rows.into_iter().next().ok_or_else(|| invalid_row("nothing"))?;
    read(row).map_err(|broken| RepositoryError::Broken(Box::new(broken)))
}

/// A row as a rule. Whatever is wrong with it is its own matter, and not that of its neighbours.
fn read(mut row: SqlRow) -> std::result::Result<RuleRow, BrokenRule> {
    let at = row.int().unwrap_or_default();
    let [id, name, spec] = [(); 3].map(|()| row.text().unwrap_or_default());
    let spec = serde_json::from_str(&spec).unwrap_or(Json::String(spec));
    let version = row.count();
    // What somebody has made of it by hand may be below 0.
    let known_version = *version.as_ref().unwrap_or(&0);
    let text = |error: RepositoryError| error.to_string();
    let rule = || {
        Ok(RuleRow {
            id: id.parse().map_err(|error| format!("rule_uuid: {error}"))?,
            rule: from_json(spec.clone()).map_err(|error| error.to_string())?,
            version: version.map_err(text)?,
            owner: row.text().map_err(text)?.into(),
            created_at: row.time().map_err(text)?,
            updated_at: row.time().map_err(text)?,
            deleted_at: row.optional_time().map_err(text)?,
            row: at,
        })
    };
    let rule: std::result::Result<RuleRow, String> = rule();
    rule.map_err(|why| BrokenRule { row: at, id, name, why, version: known_version, spec })
}
