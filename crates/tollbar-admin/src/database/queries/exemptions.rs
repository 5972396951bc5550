//! Exemptions of the database's rules.

use serde_json::{Value as Json, json};
use tollbar_rules::admin::{ExemptionForm, SubjectType};

use super::audit::AuditEntry;
use super::{TEXT_BYTES_MAX, check_name, check_text, rules};
use crate::database::queries::audit::{self};
use crate::database::sql::{Sql, SqlRow, WhereClause, invalid_row};
use crate::database::{
    AuditAction, AuditKind, ExemptionRow, Page, PageRequest, RepositoryError, Result, RuleId,
};

const SELECT: &str = "SELECT e.id, r.rule_uuid, e.subject_type, e.subject_value, e.reason, e.expires_at, \
                      e.created_by, e.created_at \
                      FROM rate_limit_exemptions e JOIN rate_limit_rules r ON r.id = e.rule_id";

pub(crate) async fn add<S: Sql>(
    sql: &S,
    rule: RuleId,
    form: &ExemptionForm,
    actor: &str,
) -> Result<ExemptionRow> {
    check_name("actor", actor)?;
    check_name("subjectValue", &form.subject_value)?;
    check_text("reason", form.reason.as_deref().unwrap_or_default(), TEXT_BYTES_MAX)?;
    form.exemption()?;
    let rule = rules::get(sql, rule).await?;
    let values = [
        rule.row.into(),
        form.subject_type.name().into(),
        (&form.subject_value).into(),
        form.reason.as_ref().into(),
        form.expires_at.into(),
        actor.into(),
        sql.now().into(),
    ];
    let statement = "INSERT INTO rate_limit_exemptions (rule_id, subject_type, subject_value, reason, \
                     expires_at, created_by, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7) \
                     ON CONFLICT DO NOTHING RETURNING id";
    let mut rows = sql.query(statement, &values).await?;
    let Some(row) = rows.first_mut() else {
        return Err(RepositoryError::Duplicate { what: form.subject_value.clone() });
    };
    let (id, created_by, created_at) = (row.int()?, actor.to_owned(), sql.now());
    let added = ExemptionRow { id, rule: rule.id, form: form.clone(), created_by, created_at };
    audit_change(sql, rule.row, (None, Some(&added)), actor).await?;
    Ok(added)
}

pub(crate) async fn get<S: Sql>(sql: &S, id: i64) -> Result<ExemptionRow> {
    let statement = format!("{SELECT} WHERE e.id = $1 AND r.deleted_at IS NULL");
    let row = sql.query(&statement, &[id.into()]).await?.into_iter().next();
    read(row.ok_or(RepositoryError::NotFound { what: "exemption" })?)
}

pub(crate) async fn delete<S: Sql>(sql: &S, id: i64, actor: &str) -> Result<ExemptionRow> {
    check_name("actor", actor)?;
    let deleted = get(sql, id).await?;
    let rule = rules::get(sql, deleted.rule).await?;
    sql.execute("DELETE FROM rate_limit_exemptions WHERE id = $1", &[id.into()]).await?;
    audit_change(sql, rule.row, (Some(&deleted), None), actor).await?;
    Ok(deleted)
}

pub(crate) async fn page<S: Sql>(
    sql: &S,
    rule: Option<RuleId>,
    of: &PageRequest,
) -> Result<Page<ExemptionRow>> {
    // By the number of the rule, which is indexed together with the order.
    let rule = match rule {
        Some(id) => Some(rules::get(sql, id).await?.row),
        None => None,
    };
    let conditions = WhereClause::new("r.deleted_at IS NULL")
        .and("e.id > $", of.after_id()?)
        .and("e.rule_id = $", rule);
    let (statement, values) = conditions.statement(SELECT, "e.id", of.rows_max());
    let rows = sql.query(&statement, &values).await?;
    let rows = rows.into_iter().map(read).collect::<Result<_>>()?;
    Ok(Page::cut(rows, of, |row: &ExemptionRow| row.id.to_string()))
}

/// Every exemption from a rule that is enabled, each as far as it can be read.
pub(crate) async fn list_in_force<S: Sql>(sql: &S) -> Result<Vec<Result<ExemptionRow>>> {
    let statement = format!("{SELECT} WHERE r.deleted_at IS NULL AND r.enabled ORDER BY e.id");
    Ok(sql.query(&statement, &[]).await?.into_iter().map(read).collect())
}

/// Every exemption from the rule of that row, each as far as it can be read.
pub(crate) async fn list_in_force_of<S: Sql>(
    sql: &S,
    rule: i64,
) -> Result<Vec<Result<ExemptionRow>>> {
    let statement = format!("{SELECT} WHERE e.rule_id = $1 ORDER BY e.id");
    Ok(sql.query(&statement, &[rule.into()]).await?.into_iter().map(read).collect())
}

async fn audit_change<S: Sql>(
    sql: &S,
    rule: i64,
    (before, after): (Option<&ExemptionRow>, Option<&ExemptionRow>),
    actor: &str,
) -> Result<()> {
    let action = if after.is_some() { AuditAction::Insert } else { AuditAction::Delete };
    let [before, after] = [before, after].map(|row| row.map(to_audit_json));
    let entry = AuditEntry {
        kind: AuditKind::Exemption,
        rule: Some(rule),
        action,
        version: None,
        before: before.as_ref(),
        after: after.as_ref(),
    };
    audit::write(sql, entry, actor).await
}

fn to_audit_json(row: &ExemptionRow) -> Json {
    let mut json = json!(row.form);
    json["exemptionId"] = json!(row.id);
    json["ruleId"] = json!(row.rule.to_string());
    json
}

fn read(mut row: SqlRow) -> Result<ExemptionRow> {
    let id = row.int()?;
    let rule = row.text()?.parse().map_err(|_| invalid_row("what is no UUID"))?;
    let subject_type =
        SubjectType::of_name(&row.text()?).ok_or_else(|| invalid_row("an unknown type"))?;
    let mut form = ExemptionForm::new(subject_type, &row.text()?);
    form.reason = row.optional_text()?;
    form.expires_at = row.optional_time()?;
    Ok(ExemptionRow { id, rule, form, created_by: row.text()?, created_at: row.time()? })
}
