//! Which rows the last revisions changed. The database writes it down itself, whoever changes them.

use crate::database::Result;
use crate::database::sql::{Sql, SqlRow, invalid_row, number};
use crate::database::sync::contents::KnownRevision;

/// More are not read one by one.
const CHANGES_MAX: usize = 64;

/// Nor are more looked at: one row may have changed often.
const ROWS_MAX: usize = 512;

/// The table of a changed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChangedRowKind {
    /// A rule, or an exemption from it.
    Rule,
    Key,
}

/// The rows that have changed since a revision.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChangedRows {
    /// Of the last revision.
    pub(crate) mark: i64,
    /// By their numbers, each once.
    pub(crate) rows: Vec<(ChangedRowKind, i64)>,
}

/// What tells a revision from another of the same number, which a database that was restored may come to.
pub(crate) async fn read_mark<S: Sql>(sql: &S, revision: u64) -> Result<Option<i64>> {
    let statement = "SELECT mark FROM rate_limit_changes WHERE revision = $1 LIMIT 1";
    let mut rows = sql.query(statement, &[number(revision)]).await?;
    rows.first_mut().map(SqlRow::int).transpose()
}

/// The rows that were changed since then up to revision `now`; `None` where they are not known, or many.
pub(crate) async fn changed_since<S: Sql>(
    sql: &S,
    since: KnownRevision,
    now: u64,
) -> Result<Option<ChangedRows>> {
    let statement = "SELECT revision, mark, kind, row_id FROM rate_limit_changes \
                     WHERE revision >= $1 ORDER BY revision LIMIT $2";
    let values = [number(since.revision), number(ROWS_MAX as u64)];
    let rows = sql.query(statement, &values).await?;
    if rows.len() == ROWS_MAX {
        return Ok(None);
    }
    let (mut at, mut mark) = (since.revision, None);
    let mut changed = Vec::new();
    for mut row in rows {
        let (revision, its_mark) = (row.count()?, row.int()?);
        if revision == since.revision {
            // The same number, and another history.
            if its_mark != since.mark {
                return Ok(None);
            }
        } else {
            // A statement that changed everything, or nothing, names no row; and what is old is forgotten.
            if revision > at + 1 || mark.is_none() {
                return Ok(None);
            }
            let kind = match row.text()?.as_str() {
                "rule" => ChangedRowKind::Rule,
                "key" => ChangedRowKind::Key,
                _ => return Err(invalid_row("an unknown kind")),
            };
            changed.push((kind, row.int()?));
        }
        (at, mark) = (revision, Some(its_mark));
    }
    changed.sort_unstable();
    changed.dedup();
    let is_whole = at == now && changed.len() <= CHANGES_MAX;
    Ok(mark.filter(|_| is_whole).map(|mark| ChangedRows { mark, rows: changed }))
}
