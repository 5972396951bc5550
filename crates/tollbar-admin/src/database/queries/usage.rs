//! What was admitted and denied, by day. A batch of a node is added once, however often it is sent.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::check_name;
use crate::database::sql::{Sql, SqlRow, SqlValue, WhereClause, number};
use crate::database::{
    BatchOutcome, Cursor, Page, PageRequest, RepositoryError, Result, UsageFilter, UsageGroup,
    UsageTotal,
};
use tollbar_daemon::usage::UsageRow;
use tollbar_rules::UsageAmounts;

/// The most rows of a batch.
const BATCH_ROWS_MAX: usize = 200_000;

/// Rows of one statement: databases take so many values at once, and not many more.
const STATEMENT_ROWS_MAX: usize = 1_000;

/// What tells one account from another, in the order of lists.
const KEY: &str = "day, tenant_id, subject, rule, client, tier";

const AMOUNTS: [&str; 4] = ["admitted_cost", "denied_cost", "admitted_requests", "denied_requests"];

/// How many columns there are, of the key and of the amounts.
const COLUMN_COUNT: usize = 10;

/// Whom, when and under what.
type UsageKey<'r> = (i32, &'r str, &'r str, &'r str, &'r str, &'r str);

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
    let mut sums: BTreeMap<UsageKey<'_>, UsageAmounts> = BTreeMap::new();
    for row in rows {
        let UsageRow { day, tenant, subject, rule, client, tier, .. } = row;
        let texts = [("tenant", tenant), ("subject", subject), ("rule", rule)];
        for (field, text) in texts.into_iter().chain([("client", client), ("tier", tier)]) {
            super::check_text(field, text, super::NAME_BYTES_MAX)?;
        }
        let key = (*day, &**tenant, &**subject, &**rule, &**client, &**tier);
        sums.entry(key).or_default().add(row.amounts());
    }
    let sums: Vec<_> = sums.into_iter().collect();
    for sums in sums.chunks(STATEMENT_ROWS_MAX) {
        let values: Vec<SqlValue> = sums.iter().flat_map(values_of).collect();
        sql.execute(&upsert(sums.len()), &values).await?;
    }
    Ok(BatchOutcome::Added)
}

fn values_of(
    ((day, tenant, subject, rule, client, tier), amounts): &(UsageKey<'_>, UsageAmounts),
) -> [SqlValue; COLUMN_COUNT] {
    let [tenant, subject, rule, client, tier] =
        [*tenant, *subject, *rule, *client, *tier].map(SqlValue::from);
    let UsageAmounts { admitted, denied, admitted_requests, denied_requests } = *amounts;
    let [admitted, denied, admitted_requests, denied_requests] =
        [admitted, denied, admitted_requests, denied_requests].map(SqlValue::Int);
    let day = SqlValue::Int(i64::from(*day));
    [day, tenant, subject, rule, client, tier, admitted, denied, admitted_requests, denied_requests]
}

fn upsert(rows: usize) -> String {
    let place = |at: usize| {
        let first = at * COLUMN_COUNT;
        let places = (1..=COLUMN_COUNT).map(|column| format!("${}", first + column));
        format!("({})", places.collect::<Vec<_>>().join(", "))
    };
    let places: Vec<String> = (0..rows).map(place).collect();
    // A sum that would not fit stays at the largest that does. Corrections are below zero.
    let sum = |column: &str| {
        format!(
            "{column} = CASE WHEN excluded.{column} <= 0 THEN usage_daily.{column} + excluded.{column} \
             WHEN usage_daily.{column} > {} - excluded.{column} THEN {} \
             ELSE usage_daily.{column} + excluded.{column} END",
            i64::MAX,
            i64::MAX
        )
    };
    format!(
        "INSERT INTO usage_daily ({KEY}, {}) VALUES {} ON CONFLICT ({KEY}) DO UPDATE SET {}",
        AMOUNTS.join(", "),
        places.join(", "),
        AMOUNTS.map(sum).join(", ")
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
    let mut conditions = conditions(filter);
    if let Some(after) = &of.after {
        let (day, texts) = parse_cursor::<(i32, [String; 5])>(after)?;
        let [tenant, subject, rule, client, tier] = texts.map(SqlValue::from);
        let values = [i64::from(day).into(), tenant, subject, rule, client, tier];
        conditions = conditions.and_after(&format!("({KEY})"), values);
    }
    let beginning = format!("SELECT {KEY}, {} FROM usage_daily", AMOUNTS.join(", "));
    let (statement, values) = conditions.statement(&beginning, KEY, of.rows_max());
    let rows = sql.query(&statement, &values).await?;
    let rows = rows.into_iter().map(read).collect::<Result<_>>()?;
    Ok(Page::cut(rows, of, |row| {
        cursor(&(row.day, [&row.tenant, &row.subject, &row.rule, &row.client, &row.tier]))
    }))
}

/// What was used by each tenant, client, rule or tier, rule by rule.
pub(crate) async fn totals<S: Sql>(
    sql: &S,
    by: UsageGroup,
    filter: &UsageFilter,
    of: &PageRequest,
) -> Result<Page<UsageTotal>> {
    let column = match by {
        UsageGroup::Tenant => "tenant_id",
        UsageGroup::Client => "client",
        UsageGroup::Rule => "rule",
        UsageGroup::Tier => "tier",
    };
    let key = format!("{column}, rule");
    let mut conditions = conditions(filter);
    if let Some(after) = &of.after {
        let values = parse_cursor::<[String; 2]>(after)?.map(SqlValue::from);
        conditions = conditions.and_after(&format!("({key})"), values);
    }
    // Each half is added up by itself: however large the numbers are, no sum of a database overflows.
    let halves = |column: &str| {
        format!(
            "CAST(sum({column} >> {HALF_BITS}) AS bigint), \
             CAST(sum({column} & {LOW_HALF}) AS bigint)"
        )
    };
    let beginning = format!("SELECT {key}, {} FROM usage_daily", AMOUNTS.map(halves).join(", "));
    let (statement, values) = conditions.group_by(&key).statement(&beginning, &key, of.rows_max());
    let rows = sql.query(&statement, &values).await?;
    let rows = rows.into_iter().map(read_total).collect::<Result<_>>()?;
    Ok(Page::cut(rows, of, |row| cursor(&[&row.group, &row.rule])))
}

const HALF_BITS: u32 = 32;
const LOW_HALF: i64 = (1 << HALF_BITS) - 1;

fn conditions(filter: &UsageFilter) -> WhereClause {
    WhereClause::new("1 = 1")
        .and("day >= $", filter.first_day.map(i64::from))
        .and("day <= $", filter.last_day.map(i64::from))
        .and("tenant_id = $", filter.tenant.as_ref())
        .and("subject = $", filter.subject.as_ref())
        .and("rule = $", filter.rule.as_ref())
}

/// Where a row is in the list, as JSON in hexadecimal digits.
fn cursor(place: &impl Serialize) -> String {
    hex::encode(serde_json::to_vec(place).unwrap_or_default())
}

fn parse_cursor<T: DeserializeOwned>(cursor: &Cursor) -> Result<T> {
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
        client: row.text()?,
        tier: row.text()?,
        admitted_cost: row.int()?,
        denied_cost: row.int()?,
        admitted_requests: row.int()?,
        denied_requests: row.int()?,
    })
}

fn read_total(mut row: SqlRow) -> Result<UsageTotal> {
    let (group, rule) = (row.text()?, row.text()?);
    let mut sum = || -> Result<i64> {
        let [high, low] = [row.int()?, row.int()?].map(i128::from);
        let sum = (high << HALF_BITS) + low;
        Ok(i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX }))
    };
    let amounts = UsageAmounts {
        admitted: sum()?,
        denied: sum()?,
        admitted_requests: sum()?,
        denied_requests: sum()?,
    };
    Ok(UsageTotal { group, rule, amounts })
}
