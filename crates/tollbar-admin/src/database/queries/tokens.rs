//! Tokens of the admin API, by their hashes. What a token may do is for the API to say.

use serde_json::json;
use tollbar::Timestamp;

use super::audit::AuditEntry;
use super::{TEXT_BYTES_MAX, check_name, check_text};
use crate::database::queries::audit::{self};
use crate::database::sql::{Sql, SqlRow, SqlValue, WhereClause, invalid_row};
use crate::database::{
    AuditAction, AuditKind, NewToken, Page, PageRequest, RepositoryError, Result, TokenRow,
};

const COLUMNS: &str = "id, name, scopes, subject, created_by, created_at, expires_at, last_used_at, \
                       revoked_at";

pub(crate) async fn insert<S: Sql>(sql: &S, token: &NewToken, actor: &str) -> Result<TokenRow> {
    check_name("actor", actor)?;
    check_name("name", &token.name)?;
    check_text("subject", token.subject.as_deref().unwrap_or_default(), super::NAME_BYTES_MAX)?;
    let scopes = json!(token.scopes);
    check_text("scopes", &scopes.to_string(), TEXT_BYTES_MAX)?;
    let values = [
        hex::encode(token.hash).into(),
        (&token.name).into(),
        (&scopes).into(),
        token.subject.as_ref().into(),
        actor.into(),
        sql.now().into(),
        token.expires_at.into(),
    ];
    let statement = format!(
        "INSERT INTO rate_limit_tokens (hash, name, scopes, subject, created_by, created_at, \
         expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING {COLUMNS}"
    );
    let row = sql.query(&statement, &values).await?.into_iter().next();
    let row = row.ok_or_else(|| RepositoryError::Duplicate { what: token.name.clone() })?;
    let row = read(row)?;
    audit_change(sql, AuditAction::Insert, (None, &row), actor).await?;
    Ok(row)
}

/// The same, where there has never been a token.
pub(crate) async fn insert_first<S: Sql>(
    sql: &S,
    token: &NewToken,
    actor: &str,
) -> Result<Option<TokenRow>> {
    if !sql.query("SELECT id FROM rate_limit_tokens LIMIT 1", &[]).await?.is_empty() {
        return Ok(None);
    }
    insert(sql, token, actor).await.map(Some)
}

pub(crate) async fn find_by_hash<S: Sql>(sql: &S, hash: &[u8; 32]) -> Result<Option<TokenRow>> {
    let statement = format!("SELECT {COLUMNS} FROM rate_limit_tokens WHERE hash = $1");
    let rows = sql.query(&statement, &[hex::encode(hash).into()]).await?;
    rows.into_iter().next().map(read).transpose()
}

pub(crate) async fn get<S: Sql>(sql: &S, id: i64) -> Result<TokenRow> {
    let statement = format!("SELECT {COLUMNS} FROM rate_limit_tokens WHERE id = $1");
    let row = sql.query(&statement, &[id.into()]).await?.into_iter().next();
    read(row.ok_or(RepositoryError::NotFound { what: "token" })?)
}

pub(crate) async fn page<S: Sql>(sql: &S, of: &PageRequest) -> Result<Page<TokenRow>> {
    let conditions = WhereClause::new("1 = 1").and("id > $", of.after_id()?);
    let beginning = format!("SELECT {COLUMNS} FROM rate_limit_tokens");
    let (statement, values) = conditions.statement(&beginning, "id", of.rows_max());
    let rows = sql.query(&statement, &values).await?;
    let rows = rows.into_iter().map(read).collect::<Result<_>>()?;
    Ok(Page::cut(rows, of, |row: &TokenRow| row.id.to_string()))
}

/// From now on it is worth nothing; one that was revoked before stays so since then.
pub(crate) async fn revoke<S: Sql>(sql: &S, id: i64, actor: &str) -> Result<TokenRow> {
    check_name("actor", actor)?;
    let before = get(sql, id).await?;
    if before.revoked_at.is_some() {
        return Ok(before);
    }
    let statement = "UPDATE rate_limit_tokens SET revoked_at = $2 WHERE id = $1";
    sql.execute(statement, &[id.into(), sql.now().into()]).await?;
    let after = get(sql, id).await?;
    audit_change(sql, AuditAction::Delete, (Some(&before), &after), actor).await?;
    Ok(after)
}

/// Writes down when tokens were used, where that is later than what is known.
pub(crate) async fn record_use<S: Sql>(sql: &S, used: &[(i64, Timestamp)]) -> Result<()> {
    let statement = "UPDATE rate_limit_tokens SET last_used_at = $2 \
                     WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)";
    let mut used = used.to_vec();
    // In one order, so that two nodes do not wait for each other.
    used.sort_unstable_by_key(|(id, at)| (*id, at.as_micros()));
    for (id, at) in used {
        let values: [SqlValue; 2] = [id.into(), at.into()];
        sql.execute(statement, &values).await?;
    }
    Ok(())
}

async fn audit_change<S: Sql>(
    sql: &S,
    action: AuditAction,
    (before, after): (Option<&TokenRow>, &TokenRow),
    actor: &str,
) -> Result<()> {
    let kind = AuditKind::Token;
    let entry = AuditEntry { kind, rule: None, action, version: None, before, after: Some(after) };
    audit::write(sql, entry, actor).await
}

fn read(mut row: SqlRow) -> Result<TokenRow> {
    Ok(TokenRow {
        id: row.int()?,
        name: row.text()?,
        scopes: serde_json::from_value(row.json()?).map_err(|_| invalid_row("no list of texts"))?,
        subject: row.optional_text()?,
        created_by: row.text()?,
        created_at: row.time()?,
        expires_at: row.optional_time()?,
        last_used_at: row.optional_time()?,
        revoked_at: row.optional_time()?,
    })
}
