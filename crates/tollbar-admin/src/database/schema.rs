//! The tables, in numbered steps. A step that has been released is never changed: what is to be
//! otherwise is a new step.

use super::sql::{Sql, SqlValue, number};
use super::{RepositoryError, Result};

/// Which words a database understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// Step by step from nothing to now: what each says to SQLite and to PostgreSQL.
const STEPS: [(&str, &str); 7] = [
    (include_str!("schema/sqlite_0001.sql"), include_str!("schema/postgres_0001.sql")),
    (include_str!("schema/sqlite_0002.sql"), include_str!("schema/postgres_0002.sql")),
    (include_str!("schema/sqlite_0003.sql"), include_str!("schema/postgres_0003.sql")),
    (include_str!("schema/sqlite_0004.sql"), include_str!("schema/postgres_0004.sql")),
    (include_str!("schema/sqlite_0005.sql"), include_str!("schema/postgres_0005.sql")),
    (include_str!("schema/sqlite_0006.sql"), include_str!("schema/postgres_0006.sql")),
    (include_str!("schema/sqlite_0007.sql"), include_str!("schema/postgres_0007.sql")),
];

/// The table that knows which steps were taken.
const NUMBER: &str =
    "CREATE TABLE IF NOT EXISTS rate_limit_schema (number BIGINT NOT NULL PRIMARY KEY)";

/// The statements of the steps that are missing, each with its number. `sql` is the only one that
/// migrates now.
pub(crate) async fn missing_steps<S: Sql>(
    sql: &S,
    dialect: Dialect,
) -> Result<Vec<(u64, &'static str)>> {
    sql.execute(NUMBER, &[]).await?;
    let mut rows = sql.query("SELECT max(number) FROM rate_limit_schema", &[]).await?;
    let found = rows.first_mut().map(super::sql::SqlRow::optional_count).transpose()?;
    let found = found.flatten().unwrap_or(0);
    let known = STEPS.len() as u64;
    if found > known {
        return Err(RepositoryError::NewerSchema { found, known });
    }
    let steps = (1..).zip(STEPS).skip(usize::try_from(found).unwrap_or(usize::MAX));
    let statements = |(at, (sqlite, postgres))| match dialect {
        Dialect::Sqlite => (at, sqlite),
        Dialect::Postgres => (at, postgres),
    };
    Ok(steps.map(statements).collect())
}

/// Writes down that a step was taken.
pub(crate) async fn record_step<S: Sql>(sql: &S, step: u64) -> Result<()> {
    let values: [SqlValue; 1] = [number(step)];
    sql.execute("INSERT INTO rate_limit_schema (number) VALUES ($1)", &values).await?;
    Ok(())
}
