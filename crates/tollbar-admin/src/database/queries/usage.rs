//! What was admitted and denied, by day. A batch of a node is added once, however often it is sent.

use std::collections::BTreeMap;

use super::check_name;
use crate::database::sql::{Sql, SqlRow, SqlValue, WhereClause, number};
use crate::database::{
    BatchOutcome, Cursor, Page, PageRequest, RepositoryError, Result, UsageFilter,
};
use tollbar_daemon::usage::UsageRow;

/// The most rows of a batch.
const BATCH_ROWS_MAX: usize = 200_000;

/// Rows of one statement: databases take so many values at once, and not many more.
const STATEMENT_ROWS_MAX: usize = 1_000;

const COLUMNS: &str = "day, tenant_id, subject, rule, admitted_cost, denied_cost";

/// Whom, when and under what.
type UsageKey<'r> = (i32, &'r str, &'r str, &'r str);

pub(crate) async fn add<S: Sql>(
    sql: &S,
    node: &str,
    sequence: u64,
    rows: &[UsageRow],
) -> Result<BatchOutcome> {
    check_name("node", node)?;
    if rows.len() > BATCH_ROWS_MAX {
        let message = format!("{} rows are too many: send at most {BATCH_ROWS_MAX}", rows.len());
        return Err(RepositoryError::Invalid { field: "rows", message });
    }
    let is_new = "INSERT INTO usage_flushes (node, sequence, flushed_at) VALUES ($1, $2, $3) \
                  ON CONFLICT (node) DO UPDATE SET sequence = excluded.sequence, \
                  flushed_at = excluded.flushed_at WHERE usage_flushes.sequence < excluded.sequence";
    let values = [node.into(), number(sequence), sql.now().into()];
    if sql.execute(is_new, &values).await? == 0 {
        return Ok(BatchOutcome::AlreadyAdded);
    }
    // In one order, so that two nodes do not wait for each other, and each key once.
    let mut sums: BTreeMap<UsageKey<'_>, (u64, u64)> = BTreeMap::new();
    for row in rows {
        for (field, text) in
            [("tenant", &row.tenant), ("subject", &row.subject), ("rule", &row.rule)]
        {
            super::check_text(field, text, super::NAME_BYTES_MAX)?;
        }
        let sum = sums.entry((row.day, &row.tenant, &row.subject, &row.rule)).or_default();
        sum.0 = sum.0.saturating_add(row.admitted_cost);
        sum.1 = sum.1.saturating_add(row.denied_cost);
    }
    let sums: Vec<_> = sums.into_iter().collect();
    for sums in sums.chunks(STATEMENT_ROWS_MAX) {
        let values: Vec<SqlValue> = sums.iter().flat_map(values_of).collect();
        sql.execute(&upsert(sums.len()), &values).await?;
    }
    Ok(BatchOutcome::Added)
}

fn values_of(
    ((day, tenant, subject, rule), (admitted, denied)): &(UsageKey<'_>, (u64, u64)),
) -> [SqlValue; 6] {
    let day = SqlValue::Int(i64::from(*day));
    let [tenant, subject, rule] = [*tenant, *subject, *rule].map(SqlValue::from);
    [day, tenant, subject, rule, number(*admitted), number(*denied)]
}

fn upsert(rows: usize) -> String {
    let place = |at: usize| {
        let first = at * 6;
        let places: Vec<String> = (1..=6).map(|column| format!("${}", first + column)).collect();
        format!("({})", places.join(", "))
    };
    let places: Vec<String> = (0..rows).map(place).collect();
    // A sum that would not fit stays at the largest that does.
    let sum = |column: &str| {
        format!(
            "{column} = CASE WHEN usage_daily.{column} > {} - excluded.{column} THEN {} \
             ELSE usage_daily.{column} + excluded.{column} END",
            i64::MAX,
            i64::MAX
        )
    };
    format!(
        "INSERT INTO usage_daily ({COLUMNS}) VALUES {} ON CONFLICT (day, tenant_id, subject, rule) \
         DO UPDATE SET {}, {}",
        places.join(", "),
        sum("admitted_cost"),
        sum("denied_cost")
    )
}

/// The last batch of a node that was added.
pub(crate) async fn sequence<S: Sql>(sql: &S, node: &str) -> Result<u64> {
    let statement = "SELECT sequence FROM usage_flushes WHERE node = $1";
    let mut rows = sql.query(statement, &[node.into()]).await?;
    Ok(rows.first_mut().map(SqlRow::count).transpose()?.unwrap_or(0))
}

pub(crate) async fn page<S: Sql>(
    sql: &S,
    filter: &UsageFilter,
    of: &PageRequest,
) -> Result<Page<UsageRow>> {
    let mut conditions = WhereClause::new("1 = 1")
        .and("day >= $", filter.first_day.map(i64::from))
        .and("day <= $", filter.last_day.map(i64::from))
        .and("tenant_id = $", filter.tenant.as_ref())
        .and("subject = $", filter.subject.as_ref())
        .and("rule = $", filter.rule.as_ref());
    if let Some(after) = &of.after {
        let (day, tenant, subject, rule) = parse_cursor(after)?;
        let values = [i64::from(day).into(), tenant.into(), subject.into(), rule.into()];
        conditions = conditions.and_after("(day, tenant_id, subject, rule)", values);
    }
    let beginning = format!("SELECT {COLUMNS} FROM usage_daily");
    let order = "day, tenant_id, subject, rule";
    let (statement, values) = conditions.statement(&beginning, order, of.rows_max());
    let rows = sql.query(&statement, &values).await?;
    let rows = rows.into_iter().map(read).collect::<Result<_>>()?;
    Ok(Page::cut(rows, of, cursor))
}

/// Where a row is in the list, as JSON in hexadecimal digits.
fn cursor(row: &UsageRow) -> String {
    let place = serde_json::json!([row.day, row.tenant, row.subject, row.rule]).to_string();
    hex::encode(place.as_bytes())
}

fn parse_cursor(cursor: &Cursor) -> Result<(i32, String, String, String)> {
    let bytes = hex::decode(cursor.as_text()).ok();
    let place = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    place.ok_or(RepositoryError::Cursor)
}

fn read(mut row: SqlRow) -> Result<UsageRow> {
    Ok(UsageRow {
        day: i32::try_from(row.int()?).map_err(|_| super::super::sql::invalid_row("no day"))?,
        tenant: row.text()?,
        subject: row.text()?,
        rule: row.text()?,
        admitted_cost: row.count()?,
        denied_cost: row.count()?,
    })
}
