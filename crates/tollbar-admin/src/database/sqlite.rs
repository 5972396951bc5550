//! The repository in one file, by SQLite: a thread of its own does what is asked, one after the
//! other, so that a disk that is slow makes nobody wait but those who asked.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tollbar::store::block_on;
use tollbar::{Clock, Timestamp};

use super::schema::Dialect;
use super::sql::{Purpose, Sql, SqlRow, SqlValue};
use super::{RepositoryError, Result};
use crate::database::schema::{self};
use tollbar_daemon::background::lower_priority;

/// How many wait for the thread at most; the next wait for a place.
const QUEUE_MAX: usize = 256;

/// How long another process may hold the file.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// How often the switch to write-ahead logging is tried.
const WAL_ATTEMPTS_MAX: u32 = 100;

/// How long somebody waits for an answer.
const TRANSACTION_MAX: Duration = Duration::from_secs(30);

/// Statements that are kept prepared.
const STATEMENTS_MAX: usize = 64;

/// The file, behind its thread. The thread ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Sqlite {
    jobs: mpsc::Sender<Job>,
}

/// Something to be done with the file.
type Job = Box<dyn FnOnce(Result<&mut Connection>) + Send>;

/// A transaction of SQLite. Nothing in it ever waits.
#[derive(Debug)]
pub(crate) struct SqliteSql<'c> {
    transaction: Transaction<'c>,
    now: Timestamp,
}

impl Sqlite {
    /// The file at `path`, which is opened, or made, when somebody first asks for something, and its
    /// tables are brought up to now. Until that has gone well it is tried again by each who asks.
    pub(crate) fn new(path: &Path, clock: Arc<dyn Clock>) -> Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE_MAX);
        let path = path.to_owned();
        let serve = move || {
            lower_priority();
            let mut opened = None;
            while let Some(job) = queue.blocking_recv() {
                let done = catch_unwind(AssertUnwindSafe(|| {
                    job(match &mut opened {
                        Some(connection) => Ok(connection),
                        None => open(&path, &*clock).map(|connection| opened.insert(connection)),
                    });
                }));
                // A job that panics is lost, and so is the connection. Its caller gets an error, and the next job is
                // done as before.
                if done.is_err() {
                    opened = None;
                }
            }
        };
        let thread = thread::Builder::new().name("tollbar-sqlite".to_owned()).spawn(serve);
        thread.map_err(RepositoryError::unavailable)?;
        Ok(Self { jobs })
    }

    /// Does `work` in a transaction, which stands if it succeeds.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        purpose: Purpose,
        now: Timestamp,
        work: impl FnOnce(&SqliteSql<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let done = connection.and_then(|connection| transact(connection, purpose, now, work));
            #[expect(clippy::let_underscore_must_use, reason = "the caller gave up waiting")]
            let _ = sender.send(done);
        });
        let reply = async {
            self.jobs.send(job).await.map_err(|_| thread_gone())?;
            receiver
                .await
                .map_err(|_| RepositoryError::unavailable("its thread panicked, see the log"))?
        };
        let late = |_| RepositoryError::unavailable("the file is busy for too long");
        timeout(TRANSACTION_MAX, reply).await.map_err(late)?
    }
}

fn open(path: &Path, clock: &dyn Clock) -> Result<Connection> {
    let failed = |error: rusqlite::Error| {
        RepositoryError::unavailable(format!("cannot open {}: {error}", path.display()))
    };
    create_private(path);
    let mut connection = Connection::open(path).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.busy_timeout(BUSY_MAX).map_err(failed)?;
    // Readers of other processes are not kept waiting, and what was answered survives a power cut.
    use_write_ahead_log(&connection).map_err(failed)?;
    let pragmas = "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;";
    connection.execute_batch(pragmas).map_err(failed)?;
    migrate(&mut connection, clock)?;
    Ok(connection)
}

/// Creates a new file that only its owner can read. SQLite gives its log the same permissions.
fn create_private(path: &Path) {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    // A file that is there keeps its permissions. SQLite says what else is wrong.
    drop(created);
}

/// Switches the file to write-ahead logging, which it then keeps.
///
/// Two processes that switch a new file at the same time can each hold a lock that the other needs. SQLite then fails
/// at once, without waiting for `busy_timeout`. A write transaction without statements does wait for the other process.
fn use_write_ahead_log(connection: &Connection) -> rusqlite::Result<()> {
    const SWITCH: &str = "PRAGMA journal_mode = WAL";
    for _ in 1..WAL_ATTEMPTS_MAX {
        match connection.execute_batch(SWITCH) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK")?;
            }
            done => return done,
        }
    }
    connection.execute_batch(SWITCH)
}

fn migrate(connection: &mut Connection, clock: &dyn Clock) -> Result<()> {
    let begin = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let sql = SqliteSql { transaction: begin.map_err(repository_error)?, now: clock.now() };
    for (number, statements) in block_on(schema::missing_steps(&sql, Dialect::Sqlite))? {
        sql.transaction.execute_batch(statements).map_err(repository_error)?;
        block_on(schema::record_step(&sql, number))?;
    }
    sql.transaction.commit().map_err(repository_error)
}

fn transact<T>(
    connection: &mut Connection,
    purpose: Purpose,
    now: Timestamp,
    work: impl FnOnce(&SqliteSql<'_>) -> Result<T>,
) -> Result<T> {
    let behavior = match purpose {
        Purpose::Read => TransactionBehavior::Deferred,
        // A transaction that begins to write later may find that it has read what is no longer so.
        Purpose::Write | Purpose::Change => TransactionBehavior::Immediate,
    };
    let transaction = connection.transaction_with_behavior(behavior).map_err(repository_error)?;
    let sql = SqliteSql { transaction, now };
    // What failed is rolled back when it is dropped.
    let done = work(&sql)?;
    sql.transaction.commit().map_err(repository_error)?;
    Ok(done)
}

impl Sql for SqliteSql<'_> {
    async fn query(&self, statement: &str, values: &[SqlValue]) -> Result<Vec<SqlRow>> {
        let mut statement = self
            .transaction
            .prepare_cached(&statement.replace('$', "?"))
            .map_err(repository_error)?;
        let columns = statement.column_count();
        let mut found =
            statement.query(rusqlite::params_from_iter(values)).map_err(repository_error)?;
        let mut rows = Vec::new();
        while let Some(row) = found.next().map_err(repository_error)? {
            let value = |at| row.get_ref(at).map_err(repository_error).and_then(read);
            rows.push(SqlRow::new((0..columns).map(value).collect::<Result<_>>()?));
        }
        Ok(rows)
    }

    async fn execute(&self, statement: &str, values: &[SqlValue]) -> Result<u64> {
        let mut statement = self
            .transaction
            .prepare_cached(&statement.replace('$', "?"))
            .map_err(repository_error)?;
        let changed =
            statement.execute(rusqlite::params_from_iter(values)).map_err(repository_error)?;
        Ok(changed as u64)
    }

    fn now(&self) -> Timestamp {
        self.now
    }
}

impl ToSql for SqlValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(int) => ValueRef::Integer(*int),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

fn read(value: ValueRef<'_>) -> Result<SqlValue> {
    match value {
        ValueRef::Null => Ok(SqlValue::Null),
        ValueRef::Integer(int) => Ok(SqlValue::Int(int)),
        ValueRef::Text(text) => match str::from_utf8(text) {
            Ok(text) => Ok(SqlValue::Text(text.to_owned())),
            Err(_) => Err(super::sql::invalid_row("what is no UTF-8")),
        },
        ValueRef::Real(_) => Err(super::sql::invalid_row("a fraction")),
        ValueRef::Blob(_) => Err(super::sql::invalid_row("bytes")),
    }
}

fn thread_gone() -> RepositoryError {
    RepositoryError::unavailable("its thread has ended")
}

fn repository_error(error: rusqlite::Error) -> RepositoryError {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::DiskFull
            | ErrorCode::CannotOpen
            | ErrorCode::SystemIoFailure
            | ErrorCode::ReadOnly,
        ) => RepositoryError::unavailable(error),
        _ => RepositoryError::database(error),
    }
}
