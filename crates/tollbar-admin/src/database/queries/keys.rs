//! Bans and boosts: what becomes of one subject, under one rule or all.

use serde_json::json;

use super::audit::AuditEntry;
use super::{TEXT_BYTES_MAX, check_name, check_text};
use crate::database::queries::audit::{self};
use crate::database::row::EffectFields;
use crate::database::sql::{Sql, SqlRow, SqlValue, WhereClause, invalid_row};
use crate::database::{
    AuditAction, AuditKind, KeyEffect, KeyFilter, KeyRecord, KeyRow, Page, PageRequest,
    RepositoryError, Result,
};

/// The largest factor of a boost: a thousand times.
const FACTOR_PERCENT_MAX: u32 = 100_000;

const COLUMNS: &str = "id, rule, subject, effect, factor_percent, reason, expires_at, created_by, \
                       created_at";

/// Takes the place of the record of the same rule, subject and effect.
pub(crate) async fn put<S: Sql>(sql: &S, record: &KeyRecord, actor: &str) -> Result<KeyRow> {
    check_name("actor", actor)?;
    check_name("subject", &record.subject)?;
    check_text("reason", record.reason.as_deref().unwrap_or_default(), TEXT_BYTES_MAX)?;
    if let Some(rule) = &record.rule {
        check_name("rule", rule)?;
    }
    let EffectFields { kind, factor_percent: factor } = record.effect.into();
    if factor.is_some_and(|percent| !(1..=FACTOR_PERCENT_MAX).contains(&percent)) {
        let message =
            format!("a factor is 1 to {FACTOR_PERCENT_MAX} percent: send one such as 200");
        return Err(RepositoryError::Invalid { field: "factorPercent", message });
    }
    let rule = record.rule.as_deref().unwrap_or_default();
    let same: [SqlValue; 3] = [rule.into(), (&record.subject).into(), kind.name().into()];
    let before = one_of(sql, "WHERE rule = $1 AND subject = $2 AND effect = $3", &same).await?;
    if let Some(before) = &before {
        sql.execute("DELETE FROM rate_limit_keys WHERE id = $1", &[before.id.into()]).await?;
    }
    let [rule, subject, effect] = same;
    let values = [
        rule,
        subject,
        effect,
        factor.map(i64::from).into(),
        record.reason.as_ref().into(),
        record.expires_at.into(),
        actor.into(),
        sql.now().into(),
    ];
    let statement = format!(
        "INSERT INTO rate_limit_keys (rule, subject, effect, factor_percent, reason, expires_at, \
         created_by, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING {COLUMNS}"
    );
    let row = sql.query(&statement, &values).await?.into_iter().next();
    let row = read(row.ok_or_else(|| invalid_row("nothing"))?)?;
    audit_change(sql, (before.as_ref(), Some(&row)), actor).await?;
    Ok(row)
}

pub(crate) async fn get<S: Sql>(sql: &S, id: i64) -> Result<KeyRow> {
    let found = one_of(sql, "WHERE id = $1", &[id.into()]).await?;
    found.ok_or(RepositoryError::NotFound { what: "key record" })
}

pub(crate) async fn delete<S: Sql>(sql: &S, id: i64, actor: &str) -> Result<KeyRow> {
    check_name("actor", actor)?;
    let deleted = get(sql, id).await?;
    sql.execute("DELETE FROM rate_limit_keys WHERE id = $1", &[id.into()]).await?;
    audit_change(sql, (Some(&deleted), None), actor).await?;
    Ok(deleted)
}

pub(crate) async fn page<S: Sql>(
    sql: &S,
    filter: &KeyFilter,
    of: &PageRequest,
) -> Result<Page<KeyRow>> {
    let conditions = WhereClause::new("1 = 1")
        .and("id > $", of.after_id()?)
        .and("rule = $", filter.rule.as_ref())
        .and("subject = $", filter.subject.as_ref())
        .and("(expires_at IS NULL OR expires_at > $)", (!filter.with_expired).then(|| sql.now()));
    let (statement, values) = conditions.statement(&select(), "id", of.rows_max());
    let rows = sql.query(&statement, &values).await?;
    let rows = rows.into_iter().map(read).collect::<Result<_>>()?;
    Ok(Page::cut(rows, of, |row: &KeyRow| row.id.to_string()))
}

/// Every record that has not ended, each as far as it can be read.
pub(crate) async fn list_in_force<S: Sql>(sql: &S) -> Result<Vec<Result<KeyRow>>> {
    let statement = format!("{} WHERE expires_at IS NULL OR expires_at > $1 ORDER BY id", select());
    Ok(sql.query(&statement, &[sql.now().into()]).await?.into_iter().map(read).collect())
}

/// The record of that row, if it has not ended.
pub(crate) async fn find_in_force_at<S: Sql>(sql: &S, id: i64) -> Result<Option<Result<KeyRow>>> {
    let condition = "WHERE id = $1 AND (expires_at IS NULL OR expires_at > $2)";
    let statement = format!("{} {condition}", select());
    let rows = sql.query(&statement, &[id.into(), sql.now().into()]).await?;
    Ok(rows.into_iter().next().map(read))
}

async fn one_of<S: Sql>(sql: &S, condition: &str, values: &[SqlValue]) -> Result<Option<KeyRow>> {
    let rows = sql.query(&format!("{} {condition}", select()), values).await?;
    rows.into_iter().next().map(read).transpose()
}

async fn audit_change<S: Sql>(
    sql: &S,
    (before, after): (Option<&KeyRow>, Option<&KeyRow>),
    actor: &str,
) -> Result<()> {
    let action = match (before, after) {
        (None, _) => AuditAction::Insert,
        (Some(_), Some(_)) => AuditAction::Update,
        (Some(_), None) => AuditAction::Delete,
    };
    let entry =
        AuditEntry { kind: AuditKind::Key, rule: None, action, version: None, before, after };
    audit::write(sql, entry, actor).await
}

/// Writes a reset into the audit, as an update of a key: the table knows no action of its own for it.
pub(crate) async fn audit_reset<S: Sql>(
    sql: &S,
    rule: &str,
    subject: &str,
    actor: &str,
) -> Result<()> {
    check_name("actor", actor)?;
    let reset = json!({ "ruleId": rule, "subject": subject, "reset": true });
    let (kind, action, after) = (AuditKind::Key, AuditAction::Update, Some(&reset));
    let entry = AuditEntry { kind, rule: None, action, version: None, before: None, after };
    audit::write(sql, entry, actor).await
}

fn select() -> String {
    format!("SELECT {COLUMNS} FROM rate_limit_keys")
}

fn read(mut row: SqlRow) -> Result<KeyRow> {
    let (id, rule, subject) = (row.int()?, row.text()?, row.text()?);
    let effect = match (row.text()?.as_str(), row.optional_int()?) {
        ("ban", None) => KeyEffect::Ban,
        ("boost", Some(factor)) => match u32::try_from(factor) {
            Ok(factor_percent) => KeyEffect::Boost { factor_percent },
            Err(_) => return Err(invalid_row("a factor that is none")),
        },
        _ => return Err(invalid_row("an unknown effect")),
    };
    let record = KeyRecord {
        rule: Some(rule).filter(|rule| !rule.is_empty()),
        subject,
        effect,
        reason: row.optional_text()?,
        expires_at: row.optional_time()?,
    };
    Ok(KeyRow { id, record, created_by: row.text()?, created_at: row.time()? })
}
