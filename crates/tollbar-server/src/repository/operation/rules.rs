//! Rules: made, read, changed, deleted and put back, each change with its line in the audit.

use serde_json::{Value as Json, json};
use tollbar::Timestamp;
use tollbar_rules::admin::{RuleForm, Scope};
use tollbar_rules::{Counting, RuleSet};

use super::audit::{self, Entry};
use super::{check_name, check_text};
use crate::repository::sql::{Row, Sql, Value, Where, number, wrong};
use crate::repository::{
    AuditAction, AuditKind, Page, PageOf, RepositoryError, Result, RuleFilter, RuleId, RuleRow,
};
use crate::rfc3339::Instant;

/// The most that a rule may say beside its named fields.
const SPEC_BYTES_MAX: usize = 262_144;

const COLUMNS: &str = "id, rule_uuid, name, scope, tenant_id, http_method, path_pattern, algorithm, \
                       max_requests, window_seconds, burst_capacity, priority, enabled, spec, version, \
                       created_at, updated_at, deleted_at";

/// A row that says no rule: somebody wrote it by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRule {
    pub(crate) row: i64,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) why: String,
}

/// A page of rules. Rows that say none are left out here; who follows the rules tells of them.
pub(crate) async fn page<S: Sql>(
    sql: &S,
    filter: &RuleFilter,
    of: &PageOf,
) -> Result<Page<RuleRow>> {
    let conditions = Where::new("deleted_at IS NULL")
        .and("id > $", of.after_id()?)
        .and("tenant_id = $", filter.tenant.as_ref())
        .and("scope = $", filter.scope.map(Scope::name))
        .and("enabled = $", filter.enabled)
        .and("name = $", filter.name.as_ref());
    let (statement, values) = conditions.statement(&select(), "id", of.rows_max());
    let rows = sql.query(&statement, &values).await?;
    let rows: Vec<_> = rows.into_iter().map(read).collect();
    let page = Page::cut(rows, of, |it| match it {
        Ok(rule) => rule.row.to_string(),
        Err(bad) => bad.row.to_string(),
    });
    Ok(Page {
        rows: page.rows.into_iter().filter_map(std::result::Result::ok).collect(),
        next: page.next,
    })
}

/// Every rule that is enabled, in the order of rows.
pub(crate) async fn enabled<S: Sql>(sql: &S) -> Result<Vec<std::result::Result<RuleRow, BadRule>>> {
    let statement = format!("{} WHERE deleted_at IS NULL AND enabled ORDER BY id", select());
    Ok(sql.query(&statement, &[]).await?.into_iter().map(read).collect())
}

/// The rule of that row, if it is enabled.
pub(crate) async fn enabled_at<S: Sql>(
    sql: &S,
    row: i64,
) -> Result<Option<std::result::Result<RuleRow, BadRule>>> {
    let statement = format!("{} WHERE id = $1 AND deleted_at IS NULL AND enabled", select());
    Ok(sql.query(&statement, &[row.into()]).await?.into_iter().next().map(read))
}

/// The rule, unless it is deleted.
pub(crate) async fn get<S: Sql>(sql: &S, id: RuleId) -> Result<RuleRow> {
    let rule = find(sql, id).await?;
    if rule.deleted_at.is_some() { Err(missing()) } else { Ok(rule) }
}

pub(crate) async fn insert<S: Sql>(sql: &S, form: &RuleForm, actor: &str) -> Result<RuleRow> {
    check(form)?;
    check_name("actor", actor)?;
    check_free(sql, &form.name, None).await?;
    let now = sql.now();
    let mut values = vec![Value::from(RuleId::random().to_string())];
    values.extend(columns_of(form));
    values.push(now.into());
    let statement = format!(
        "INSERT INTO rate_limit_rules (rule_uuid, name, scope, tenant_id, http_method, path_pattern, \
         algorithm, max_requests, window_seconds, burst_capacity, priority, enabled, spec, created_at, \
         updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14) \
         RETURNING {COLUMNS}"
    );
    let rule = one(sql.query(&statement, &values).await?)?;
    write_down(sql, AuditAction::Insert, None, &rule, actor).await?;
    Ok(rule)
}

pub(crate) async fn update<S: Sql>(
    sql: &S,
    id: RuleId,
    expected: u64,
    form: &RuleForm,
    actor: &str,
) -> Result<RuleRow> {
    let before = at_version(get(sql, id).await?, expected)?;
    change(sql, &before, form, None, AuditAction::Update, actor).await
}

pub(crate) async fn delete<S: Sql>(
    sql: &S,
    id: RuleId,
    expected: u64,
    actor: &str,
) -> Result<RuleRow> {
    let before = at_version(get(sql, id).await?, expected)?;
    let form = before.form.clone();
    change(sql, &before, &form, Some(sql.now()), AuditAction::Delete, actor).await
}

pub(crate) async fn enable<S: Sql>(
    sql: &S,
    id: RuleId,
    expected: u64,
    enabled: bool,
    actor: &str,
) -> Result<RuleRow> {
    let before = at_version(get(sql, id).await?, expected)?;
    let mut form = before.form.clone();
    form.enabled = enabled;
    let action = if enabled { AuditAction::Enable } else { AuditAction::Disable };
    change(sql, &before, &form, None, action, actor).await
}

/// Puts a rule back to what a version of it said; one that was deleted is there again.
pub(crate) async fn roll_back<S: Sql>(
    sql: &S,
    id: RuleId,
    expected: u64,
    to_version: u64,
    actor: &str,
) -> Result<RuleRow> {
    let before = at_version(find(sql, id).await?, expected)?;
    let form = said_at(sql, &before, to_version).await?;
    change(sql, &before, &form, None, AuditAction::Update, actor).await
}

/// What a version of a rule said.
pub(crate) async fn at<S: Sql>(sql: &S, id: RuleId, version: u64) -> Result<RuleForm> {
    let rule = find(sql, id).await?;
    said_at(sql, &rule, version).await
}

/// The rule, deleted or not.
pub(crate) async fn find<S: Sql>(sql: &S, id: RuleId) -> Result<RuleRow> {
    let statement = format!("{} WHERE rule_uuid = $1", select());
    let rows = sql.query(&statement, &[id.to_string().into()]).await?;
    if rows.is_empty() { Err(missing()) } else { one(rows) }
}

async fn said_at<S: Sql>(sql: &S, rule: &RuleRow, version: u64) -> Result<RuleForm> {
    let missing = || RepositoryError::NotFound { what: "version" };
    let row = audit::rule_at(sql, rule.row, version).await?.ok_or_else(missing)?;
    let Json::Object(mut fields) = row else {
        return Err(wrong("no object"));
    };
    for name in BESIDE_FORM {
        fields.remove(name);
    }
    Ok(RuleForm::from_json(&Json::Object(fields))?)
}

async fn change<S: Sql>(
    sql: &S,
    before: &RuleRow,
    form: &RuleForm,
    deleted_at: Option<Timestamp>,
    action: AuditAction,
    actor: &str,
) -> Result<RuleRow> {
    check_name("actor", actor)?;
    if deleted_at.is_none() {
        check(form)?;
        check_free(sql, &form.name, Some(before.row)).await?;
    }
    let mut values = vec![before.row.into(), number(before.version)];
    values.extend(columns_of(form));
    values.extend([sql.now().into(), deleted_at.into()]);
    let statement = format!(
        "UPDATE rate_limit_rules SET name = $3, scope = $4, tenant_id = $5, http_method = $6, \
         path_pattern = $7, algorithm = $8, max_requests = $9, window_seconds = $10, \
         burst_capacity = $11, priority = $12, enabled = $13, spec = $14, updated_at = $15, \
         deleted_at = $16, version = version + 1 WHERE id = $1 AND version = $2 RETURNING {COLUMNS}"
    );
    let after = one(sql.query(&statement, &values).await?)?;
    write_down(sql, action, Some(before), &after, actor).await?;
    Ok(after)
}

async fn write_down<S: Sql>(
    sql: &S,
    action: AuditAction,
    before: Option<&RuleRow>,
    after: &RuleRow,
    actor: &str,
) -> Result<()> {
    let entry = Entry {
        kind: AuditKind::Rule,
        rule: Some(after.row),
        action,
        version: Some(after.version),
        old_row: before.map(told),
        new_row: Some(told(after)),
    };
    audit::write(sql, entry, actor).await
}

/// What the audit has of a rule beside its form.
const BESIDE_FORM: [&str; 3] = ["ruleId", "version", "deletedAt"];

fn told(rule: &RuleRow) -> Json {
    let mut json = rule.form.to_json();
    json["ruleId"] = json!(rule.id.to_string());
    json["version"] = json!(rule.version);
    json["deletedAt"] = json!(rule.deleted_at.map(Instant));
    json
}

/// Refuses what the daemon could not enforce, whatever the other rules are.
pub(crate) fn check(form: &RuleForm) -> Result<()> {
    let invalid = |field, message: &str| {
        let message = message.to_owned();
        Err(RepositoryError::Invalid { field, message })
    };
    if form.spec.contains_key("id") {
        return invalid(
            "id",
            "a rule of the database is counted under the id that it gets: leave this out",
        );
    }
    let named = [
        ("tenantId", form.tenant_id.as_ref()),
        ("httpMethod", form.http_method.as_ref()),
        ("pathPattern", form.path_pattern.as_ref()),
    ];
    for (field, text) in named {
        check_text(field, text.map_or("", String::as_str), super::NAME_BYTES_MAX)?;
    }
    if Json::Object(form.spec.clone()).to_string().len() > SPEC_BYTES_MAX {
        return invalid("spec", "this rule says more than 256 KiB: split it into several");
    }
    let mut rule = form.rule()?;
    // Whether those are there is for who puts all rules together.
    rule.replaces.clear();
    match RuleSet::new(vec![rule]) {
        Ok(rules) if rules.rule_with_unleased_permits().is_some() => invalid(
            "lease",
            "the rule limits what is in flight, and a client that dies would hold its permit for \
             good: send a lease such as \"30s\"",
        ),
        Ok(_) => Ok(()),
        Err(error) => match error.errors.into_iter().next() {
            Some(error) => invalid(error.field, &error.problem.to_string()),
            None => Ok(()),
        },
    }
}

/// Refuses a name that another rule has.
async fn check_free<S: Sql>(sql: &S, name: &str, own: Option<i64>) -> Result<()> {
    let conditions =
        Where::new("deleted_at IS NULL").and("name = $", Some(name)).and("id <> $", own);
    let (statement, values) = conditions.statement("SELECT id FROM rate_limit_rules", "id", 0);
    if sql.query(&statement, &values).await?.is_empty() {
        return Ok(());
    }
    Err(RepositoryError::NameTaken { name: name.to_owned() })
}

fn at_version(rule: RuleRow, expected: u64) -> Result<RuleRow> {
    if rule.version == expected {
        return Ok(rule);
    }
    Err(RepositoryError::Conflict { expected, found: rule.version })
}

fn select() -> String {
    format!("SELECT {COLUMNS} FROM rate_limit_rules")
}

fn missing() -> RepositoryError {
    RepositoryError::NotFound { what: "rule" }
}

/// From the name to the rest, in the order of the columns.
fn columns_of(form: &RuleForm) -> [Value; 12] {
    [
        (&form.name).into(),
        form.scope.name().into(),
        form.tenant_id.as_ref().into(),
        form.http_method.as_ref().into(),
        form.path_pattern.as_ref().into(),
        form.algorithm.map(Counting::name).into(),
        form.max_requests.map_or(Value::Null, number),
        form.window_seconds.map_or(Value::Null, number),
        form.burst_capacity.map_or(Value::Null, number),
        i64::from(form.priority).into(),
        form.enabled.into(),
        Value::from(&Json::Object(form.spec.clone())),
    ]
}

fn one(rows: Vec<Row>) -> Result<RuleRow> {
    let row = rows.into_iter().next().ok_or_else(|| wrong("nothing"))?;
    read(row).map_err(|bad| RepositoryError::database(format!("rule {}: {}", bad.id, bad.why)))
}

/// A row as a rule. Whatever is wrong with it is its own matter, and not that of its neighbours.
fn read(mut row: Row) -> std::result::Result<RuleRow, BadRule> {
    let (at, id) = (row.int().unwrap_or_default(), row.text().unwrap_or_default());
    let name = row.text().unwrap_or_default();
    read_rest(at, &id, &name, row).map_err(|why| BadRule { row: at, id, name, why })
}

fn read_rest(at: i64, id: &str, name: &str, mut row: Row) -> std::result::Result<RuleRow, String> {
    let told = |error: RepositoryError| error.to_string();
    // Field by field: thousands are read at each change.
    let mut form = RuleForm::new(name);
    let scope = row.text().map_err(told)?;
    form.scope = Scope::of_name(&scope).ok_or("scope: this is none")?;
    form.tenant_id = row.optional_text().map_err(told)?;
    form.http_method = row.optional_text().map_err(told)?;
    form.path_pattern = row.optional_text().map_err(told)?;
    let algorithm = row.optional_text().map_err(told)?;
    let counting = |it: String| Counting::of_name(&it).ok_or("algorithm: this is none");
    form.algorithm = algorithm.map(counting).transpose()?;
    form.max_requests = row.optional_count().map_err(told)?;
    form.window_seconds = row.optional_count().map_err(told)?;
    form.burst_capacity = row.optional_count().map_err(told)?;
    let priority = row.int().map_err(told)?;
    form.priority = i32::try_from(priority).map_err(|_| "priority: this is too large")?;
    form.enabled = row.bool().map_err(told)?;
    let Ok(Json::Object(spec)) = row.json() else {
        return Err("spec: this is no object of JSON: write {} for nothing more".to_owned());
    };
    form.spec = spec;
    Ok(RuleRow {
        id: id.parse().map_err(|error| format!("rule_uuid: {error}"))?,
        form,
        version: row.count().map_err(told)?,
        created_at: row.time().map_err(told)?,
        updated_at: row.time().map_err(told)?,
        deleted_at: row.optional_time().map_err(told)?,
        row: at,
    })
}
