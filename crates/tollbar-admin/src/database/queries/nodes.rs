//! Nodes and what they enforce, and the numbers that tell them of changes.

use tollbar::Timestamp;

use super::check_name;
use crate::database::sql::{Sql, SqlRow, invalid_row, number};
use crate::database::{NodeRow, Result, Revisions};

/// The most nodes that a list has.
const NODES_MAX: usize = 10_000;

pub(crate) async fn report<S: Sql>(sql: &S, node: &str, revision: u64, store: &str) -> Result<()> {
    check_name("node", node)?;
    let statement = "INSERT INTO rate_limit_nodes (node, revision, seen_at, store, knows_loans) \
         VALUES ($1, $2, $3, $4, 1) \
         ON CONFLICT (node) DO UPDATE SET revision = excluded.revision, \
         seen_at = excluded.seen_at, store = excluded.store, knows_loans = 1";
    let values = [node.into(), number(revision), sql.now().into(), store.into()];
    sql.execute(statement, &values).await?;
    Ok(())
}

pub(crate) async fn list<S: Sql>(sql: &S) -> Result<Vec<NodeRow>> {
    let statement = format!(
        "SELECT node, revision, seen_at, store, knows_loans FROM rate_limit_nodes \
         ORDER BY node LIMIT {NODES_MAX}"
    );
    let read = |mut row: SqlRow| {
        Ok(NodeRow {
            node: row.text()?,
            revision: row.count()?,
            seen_at: row.time()?,
            store: row.optional_text()?,
            knows_loans: row.optional_count()? == Some(1),
        })
    };
    sql.query(&statement, &[]).await?.into_iter().map(read).collect()
}

pub(crate) async fn forget<S: Sql>(sql: &S, seen_before: Timestamp) -> Result<u64> {
    sql.execute("DELETE FROM rate_limit_nodes WHERE seen_at < $1", &[seen_before.into()]).await
}

pub(crate) async fn revisions<S: Sql>(sql: &S) -> Result<Revisions> {
    let rows = sql.query("SELECT rules, tokens FROM rate_limit_revision WHERE id = 1", &[]).await?;
    let mut row = rows.into_iter().next().ok_or_else(|| invalid_row("no revision"))?;
    Ok(Revisions { rules: row.count()?, tokens: row.count()? })
}
