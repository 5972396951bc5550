//! The repository in PostgreSQL, which a fleet shares: a few connections, none of which waits for
//! ever.

mod address;
mod notifications;
mod value;

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    Client, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime, Transaction,
};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, Statement};
use tollbar::{Clock, Timestamp};

use super::schema::Dialect;
use super::sql::{Purpose, Sql, SqlRow, SqlValue};
use super::{RepositoryError, Result};
use crate::database::schema::{self};
use address::Address;
pub(crate) use notifications::ChangeNotifications;

/// Connections of this node: changes come one after the other anyway.
const CONNECTIONS_MAX: usize = 8;

/// How long somebody waits for a connection, its making and its check included.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long a whole transaction may take. Statements and locks have bounds of their own, in the
/// server: see [`address`].
const TRANSACTION_MAX: Duration = Duration::from_secs(30);

/// How long a question that costs nothing may take: a server that takes longer is not there.
const PING_MAX: Duration = Duration::from_millis(1_500);

/// Longer statements are those of many rows, of which no two are the same: they are not kept prepared.
const KEPT_BYTES_MAX: usize = 2_048;

/// Whoever migrates holds this lock: of those who start at the same time, one does it.
const MIGRATING: &str = "SELECT pg_advisory_xact_lock(8207351092)";

/// A database and the way to it. Connects when it is first asked, and migrates then.
#[derive(Clone)]
pub(crate) struct Postgres {
    address: Arc<Address>,
    pool: Pool,
    is_migrated: Arc<OnceCell<()>>,
}

/// A transaction of PostgreSQL.
pub(crate) struct PostgresSql<'c> {
    transaction: Transaction<'c>,
    now: Timestamp,
}

impl Postgres {
    /// Reads what the URL says, and asks nobody yet.
    pub(crate) fn new(url: &str) -> Result<Self> {
        let address = Address::parse(url)?;
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(address.config.clone(), address.tls.clone(), config);
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS_MAX)
            .wait_timeout(Some(CONNECT_MAX))
            .create_timeout(Some(CONNECT_MAX))
            .recycle_timeout(Some(CONNECT_MAX))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(RepositoryError::unavailable)?;
        Ok(Self { address: Arc::new(address), pool, is_migrated: Arc::default() })
    }

    /// A connection to a database whose tables are as this version knows them.
    pub(crate) async fn client(&self, clock: &dyn Clock) -> Result<Client> {
        let mut client = self.pool.get().await.map_err(pool_error)?;
        self.is_migrated.get_or_try_init(|| migrate(&mut client, clock.now())).await?;
        Ok(client)
    }

    /// Asks for nothing. An error where the server does not answer even that in time.
    pub(crate) async fn ping(&self) -> Result<()> {
        let reply = async {
            let client = self.pool.get().await.map_err(pool_error)?;
            client.batch_execute("").await.map_err(repository_error)
        };
        let silent = |_| RepositoryError::unavailable("it is silent");
        timeout(PING_MAX, reply).await.map_err(silent)?
    }

    /// Hears of changes, by a connection of its own.
    pub(crate) async fn listen(&self) -> Result<ChangeNotifications> {
        ChangeNotifications::begin(&self.address).await
    }
}

/// Runs `work`, with an error if it takes longer than a transaction may.
pub(crate) async fn with_timeout<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| RepositoryError::unavailable("it took too long");
    timeout(TRANSACTION_MAX, work).await.map_err(late)?
}

pub(crate) async fn begin(
    client: &mut Client,
    purpose: Purpose,
    now: Timestamp,
) -> Result<PostgresSql<'_>> {
    let builder = client.build_transaction();
    let transaction = match purpose {
        Purpose::Read => {
            let builder = builder.isolation_level(IsolationLevel::RepeatableRead).read_only(true);
            builder.start().await.map_err(repository_error)?
        }
        Purpose::Write => builder.start().await.map_err(repository_error)?,
        Purpose::Change => {
            let transaction = builder.start().await.map_err(repository_error)?;
            // Whoever changes something holds this row, which every change counts up.
            let lock = "SELECT rules FROM rate_limit_revision WHERE id = 1 FOR UPDATE";
            transaction.execute(lock, &[]).await.map_err(repository_error)?;
            transaction
        }
    };
    Ok(PostgresSql { transaction, now })
}

impl PostgresSql<'_> {
    /// Makes it stand if what was done went well. What is dropped is rolled back.
    pub(crate) async fn end<T>(self, done: Result<T>) -> Result<T> {
        let done = done?;
        self.transaction.commit().await.map_err(repository_error)?;
        Ok(done)
    }

    async fn prepare(&self, statement: &str) -> Result<Statement> {
        if statement.len() <= KEPT_BYTES_MAX {
            self.transaction.prepare_cached(statement).await.map_err(repository_error)
        } else {
            self.transaction.prepare(statement).await.map_err(repository_error)
        }
    }
}

async fn migrate(client: &mut Client, now: Timestamp) -> Result<()> {
    let transaction = client.transaction().await.map_err(repository_error)?;
    transaction.batch_execute(MIGRATING).await.map_err(repository_error)?;
    let sql = PostgresSql { transaction, now };
    for (number, statements) in schema::missing_steps(&sql, Dialect::Postgres).await? {
        sql.transaction.batch_execute(statements).await.map_err(repository_error)?;
        schema::record_step(&sql, number).await?;
    }
    sql.end(Ok(())).await
}

impl Sql for PostgresSql<'_> {
    async fn query(&self, statement: &str, values: &[SqlValue]) -> Result<Vec<SqlRow>> {
        let statement = self.prepare(statement).await?;
        let found = self
            .transaction
            .query(&statement, &parameters(values))
            .await
            .map_err(repository_error)?;
        let read = |row: tokio_postgres::Row| {
            let values = (0..row.len()).map(|at| row.try_get(at).map_err(repository_error));
            Ok(SqlRow::new(values.collect::<Result<_>>()?))
        };
        found.into_iter().map(read).collect()
    }

    async fn execute(&self, statement: &str, values: &[SqlValue]) -> Result<u64> {
        let statement = self.prepare(statement).await?;
        self.transaction.execute(&statement, &parameters(values)).await.map_err(repository_error)
    }

    fn now(&self) -> Timestamp {
        self.now
    }
}

fn parameters(values: &[SqlValue]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as _).collect()
}

fn pool_error(error: PoolError) -> RepositoryError {
    match error {
        PoolError::Backend(error) => repository_error(error),
        PoolError::Timeout(_) => RepositoryError::unavailable("no connection in time"),
        other => RepositoryError::unavailable(other),
    }
}

/// In the server's own words, which hold no passwords.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
pub(crate) fn repository_error(error: tokio_postgres::Error) -> RepositoryError {
    let Some(db_error) = error.as_db_error() else {
        let source = error.source().map_or_else(String::new, |source| format!(": {source}"));
        return RepositoryError::unavailable(format!("{error}{source}"));
    };
    // Classes of the SQL standard: the connection, resources, the operator, somebody else's lock.
    let is_outage = ["08", "53", "57", "58", "40"].contains(&&db_error.code().code()[..2])
        || *db_error.code() == SqlState::LOCK_NOT_AVAILABLE
        || *db_error.code() == SqlState::READ_ONLY_SQL_TRANSACTION;
    let why = format!("{} ({})", db_error.message(), db_error.code().code());
    if is_outage { RepositoryError::unavailable(why) } else { RepositoryError::database(why) }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("pool", &self.pool.status()).finish_non_exhaustive()
    }
}
