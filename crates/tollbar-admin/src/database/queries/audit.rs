//! The audit: who changed what, when, and what it was before. Written with the change or not at all.

use serde::Serialize;
use serde_json::json;

use crate::database::row::AuditState;
use crate::database::sql::{Sql, SqlRow, SqlValue, WhereClause, invalid_row, number};
use crate::database::{
    AuditAction, AuditFilter, AuditKind, AuditRow, Page, PageRequest, Result, RuleId,
};

/// A change, without who and when.
#[derive(Debug)]
pub(crate) struct AuditEntry<'r, T> {
    pub(crate) kind: AuditKind,
    pub(crate) rule: Option<i64>,
    pub(crate) action: AuditAction,
    pub(crate) version: Option<u64>,
    pub(crate) before: Option<&'r T>,
    pub(crate) after: Option<&'r T>,
}

pub(crate) async fn write<S: Sql, T: Serialize>(
    sql: &S,
    entry: AuditEntry<'_, T>,
    actor: &str,
) -> Result<()> {
    let [before, after] = [entry.before, entry.after].map(|state| state.map(|value| json!(value)));
    let values = [
        entry.rule.into(),
        entry.kind.name().into(),
        entry.action.name().into(),
        entry.version.map_or(SqlValue::Null, number),
        before.as_ref().into(),
        after.as_ref().into(),
        actor.into(),
        sql.now().into(),
    ];
    let statement = "INSERT INTO rate_limit_rule_audit (rule_id, kind, action, version, old_row, \
                     new_row, actor, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    sql.execute(statement, &values).await?;
    Ok(())
}

/// The newest changes first.
pub(crate) async fn page<S: Sql>(
    sql: &S,
    filter: &AuditFilter,
    of: &PageRequest,
) -> Result<Page<AuditRow>> {
    let conditions = WhereClause::new("1 = 1")
        .and("a.id < $", of.after_id()?)
        .and("r.rule_uuid = $", filter.rule.map(|id| id.to_string()))
        .and("r.tenant_id = $", filter.tenant.as_ref())
        .and("a.kind = $", filter.kind.map(AuditKind::name));
    let beginning = "SELECT a.id, a.kind, r.rule_uuid, a.action, a.version, a.old_row, a.new_row, \
                     a.actor, a.created_at FROM rate_limit_rule_audit a \
                     LEFT JOIN rate_limit_rules r ON r.id = a.rule_id";
    let (statement, values) = conditions.statement(beginning, "a.id DESC", of.rows_max());
    let rows = sql.query(&statement, &values).await?;
    let rows = rows.into_iter().map(read).collect::<Result<_>>()?;
    Ok(Page::cut(rows, of, |row: &AuditRow| row.id.to_string()))
}

/// What a rule was at a version.
pub(crate) async fn rule_at<S: Sql>(
    sql: &S,
    rule: i64,
    version: u64,
) -> Result<Option<AuditState>> {
    let statement = "SELECT new_row FROM rate_limit_rule_audit \
                     WHERE rule_id = $1 AND kind = 'rule' AND version = $2 ORDER BY id DESC LIMIT 1";
    let mut rows = sql.query(statement, &[rule.into(), number(version)]).await?;
    Ok(rows.first_mut().map(audited).transpose()?.flatten())
}

fn audited(row: &mut SqlRow) -> Result<Option<AuditState>> {
    // Whatever is no rule is what it is: reading it cannot fail.
    let json = row.optional_json()?;
    json.map(serde_json::from_value).transpose().map_err(|_| invalid_row("what is no JSON"))
}

fn read(mut row: SqlRow) -> Result<AuditRow> {
    Ok(AuditRow {
        id: row.int()?,
        kind: AuditKind::of_name(&row.text()?).ok_or_else(|| invalid_row("an unknown kind"))?,
        rule: row.optional_text()?.and_then(|text| text.parse::<RuleId>().ok()),
        action: AuditAction::of_name(&row.text()?)
            .ok_or_else(|| invalid_row("an unknown action"))?,
        version: row.optional_count()?,
        before: audited(&mut row)?,
        after: audited(&mut row)?,
        actor: row.text()?,
        created_at: row.time()?,
    })
}

impl AuditKind {
    const NAMED: [(&'static str, Self); 4] = [
        ("rule", Self::Rule),
        ("exemption", Self::Exemption),
        ("token", Self::Token),
        ("key", Self::Key),
    ];

    /// Its name in JSON and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].0
    }

    /// The one of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

impl AuditAction {
    const NAMED: [(&'static str, Self); 5] = [
        ("insert", Self::Insert),
        ("update", Self::Update),
        ("delete", Self::Delete),
        ("enable", Self::Enable),
        ("disable", Self::Disable),
    ];

    /// Its name in JSON and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].0
    }

    /// The one of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, action)| *action)
    }
}
