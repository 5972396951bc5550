//! Where rules live that people change while the daemon serves: rules, exemptions, bans and boosts,
//! tokens, the audit of every change, and what was used. In a file by SQLite, or in PostgreSQL.
//!
//! It keeps what it is given and says what it has. Who may change what is for the admin API to say, and
//! what is enforced for `follow`. A check never asks here.

mod cache;
mod compose;
mod error;
pub(crate) mod flags;
pub(crate) mod follow;
mod id;
mod live;
mod load;
mod operation;
mod page;
mod place;
mod postgres;
mod row;
mod schema;
mod sql;
mod sqlite;

use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;
use tollbar::store::block_on;
use tollbar::{Clock, SystemClock, Timestamp};
use tollbar_rules::admin::{ExemptionForm, RuleForm};

use load::{Changes, Since};
use operation::{audit, exemptions, keys, nodes, rules, tokens, usage};
use postgres::Postgres;
use sql::Purpose;
use sqlite::Sqlite;

pub use cache::CacheError;
pub use error::{RepositoryError, Result};
pub use id::{RuleId, RuleIdError};
pub use live::{Live, LiveStatus};
pub use load::{Loaded, Skipped};
pub use page::{Cursor, PAGE_ROWS_MAX, Page, PageOf};
pub use place::{Place, PlaceError};
pub use row::{
    Applied, AuditAction, AuditFilter, AuditKind, AuditRow, ExemptionRow, KeyEffect, KeyFilter,
    KeyRecord, KeyRow, NewToken, NodeRow, Revisions, RuleFilter, RuleRow, TokenRow, UsageFilter,
    UsageRow,
};

/// A database of rules. Clones are the same one.
#[derive(Clone)]
pub struct Repository {
    database: Database,
    clock: Arc<dyn Clock>,
    changed: Arc<Notify>,
}

/// Which kind it is.
#[derive(Debug, Clone)]
enum Database {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

/// Does the same in a transaction of whichever database it is. What `$work` uses of its surroundings,
/// it owns: a thread of its own may do it.
macro_rules! transact {
    ($self:ident, $purpose:expr, |$sql:ident| $work:expr) => {{
        let (purpose, now) = ($purpose, $self.clock.now());
        let done = match &$self.database {
            Database::Sqlite(it) => it.run(purpose, now, move |$sql| block_on($work)).await,
            Database::Postgres(it) => {
                let work = async {
                    let mut client = it.client(&*$self.clock).await?;
                    let transaction = postgres::begin(&mut client, purpose, now).await?;
                    let $sql = &transaction;
                    let done = $work.await;
                    transaction.end(done).await
                };
                postgres::patiently(work).await
            }
        };
        if purpose == Purpose::Change && done.is_ok() {
            $self.changed.notify_one();
        }
        done
    }};
}

impl Repository {
    /// The database at that place, its tables as this version knows them.
    pub async fn open(place: &Place) -> Result<Self> {
        Self::open_with(place, Arc::new(SystemClock::new())).await
    }

    /// The same by another clock.
    pub async fn open_with(place: &Place, clock: Arc<dyn Clock>) -> Result<Self> {
        let repository = Self::open_later(place, clock)?;
        repository.revisions().await?;
        Ok(repository)
    }

    /// The same, of a database that need not be there yet: it is first asked, and its tables are made,
    /// when somebody wants something of it.
    pub fn open_later(place: &Place, clock: Arc<dyn Clock>) -> Result<Self> {
        let database = match place {
            Place::Sqlite(path) => Database::Sqlite(Sqlite::new(path, Arc::clone(&clock))?),
            Place::Postgres(url) => Database::Postgres(Postgres::new(url)?),
        };
        Ok(Self { database, clock, changed: Arc::default() })
    }

    /// Is notified after every change that was made by this process or heard of. For the one who
    /// follows; others ask [`Live::revisions`].
    #[must_use]
    pub fn changed(&self) -> &Notify {
        &self.changed
    }

    /// The time by its clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Rules.
impl Repository {
    /// A page of those that are not deleted, the oldest first.
    pub async fn rules(&self, filter: &RuleFilter, page: &PageOf) -> Result<Page<RuleRow>> {
        let (filter, page) = (filter.clone(), page.clone());
        transact!(self, Purpose::Read, |sql| rules::page(sql, &filter, &page))
    }

    /// The rule, unless it is deleted.
    pub async fn rule(&self, id: RuleId) -> Result<RuleRow> {
        transact!(self, Purpose::Read, |sql| rules::get(sql, id))
    }

    /// Makes a rule.
    pub async fn insert_rule(&self, form: &RuleForm, actor: &str) -> Result<RuleRow> {
        let (form, actor) = (form.clone(), actor.to_owned());
        transact!(self, Purpose::Change, |sql| rules::insert(sql, &form, &actor))
    }

    /// Makes a rule say something else, if it is at the version that is expected.
    pub async fn update_rule(
        &self,
        id: RuleId,
        expected: u64,
        form: &RuleForm,
        actor: &str,
    ) -> Result<RuleRow> {
        let (form, actor) = (form.clone(), actor.to_owned());
        transact!(self, Purpose::Change, |sql| rules::update(sql, id, expected, &form, &actor))
    }

    /// Deletes a rule. Its history stays, and [`rollback_rule`](Self::rollback_rule) brings it back.
    pub async fn delete_rule(&self, id: RuleId, expected: u64, actor: &str) -> Result<RuleRow> {
        let actor = actor.to_owned();
        transact!(self, Purpose::Change, |sql| rules::delete(sql, id, expected, &actor))
    }

    /// Enables or disables a rule.
    pub async fn enable_rule(
        &self,
        id: RuleId,
        expected: u64,
        enabled: bool,
        actor: &str,
    ) -> Result<RuleRow> {
        let actor = actor.to_owned();
        transact!(self, Purpose::Change, |sql| rules::enable(sql, id, expected, enabled, &actor))
    }

    /// Makes a rule say what it said at a version. One that was deleted is there again.
    pub async fn rollback_rule(
        &self,
        id: RuleId,
        expected: u64,
        to_version: u64,
        actor: &str,
    ) -> Result<RuleRow> {
        let actor = actor.to_owned();
        transact!(self, Purpose::Change, |sql| rules::roll_back(
            sql, id, expected, to_version, &actor
        ))
    }

    /// What a version of a rule said.
    pub async fn rule_at(&self, id: RuleId, version: u64) -> Result<RuleForm> {
        transact!(self, Purpose::Read, |sql| rules::at(sql, id, version))
    }

    /// Every change of a rule, the newest first, whether it is deleted or not.
    pub async fn history(&self, id: RuleId, page: &PageOf) -> Result<Page<AuditRow>> {
        let page = page.clone();
        let filter = AuditFilter { rule: Some(id), kind: Some(AuditKind::Rule), tenant: None };
        transact!(self, Purpose::Read, |sql| async {
            rules::find(sql, id).await?;
            audit::page(sql, &filter, &page).await
        })
    }
}

/// Exemptions, and the audit.
impl Repository {
    /// Exempts somebody from a rule.
    pub async fn add_exemption(
        &self,
        rule: RuleId,
        form: &ExemptionForm,
        actor: &str,
    ) -> Result<ExemptionRow> {
        let (form, actor) = (form.clone(), actor.to_owned());
        transact!(self, Purpose::Change, |sql| exemptions::add(sql, rule, &form, &actor))
    }

    /// One exemption.
    pub async fn exemption(&self, id: i64) -> Result<ExemptionRow> {
        transact!(self, Purpose::Read, |sql| exemptions::get(sql, id))
    }

    /// Ends an exemption.
    pub async fn delete_exemption(&self, id: i64, actor: &str) -> Result<ExemptionRow> {
        let actor = actor.to_owned();
        transact!(self, Purpose::Change, |sql| exemptions::delete(sql, id, &actor))
    }

    /// A page of a rule's exemptions, or of all.
    pub async fn exemptions(
        &self,
        rule: Option<RuleId>,
        page: &PageOf,
    ) -> Result<Page<ExemptionRow>> {
        let page = page.clone();
        transact!(self, Purpose::Read, |sql| exemptions::page(sql, rule, &page))
    }

    /// A page of changes, the newest first.
    pub async fn audit(&self, filter: &AuditFilter, page: &PageOf) -> Result<Page<AuditRow>> {
        let (filter, page) = (filter.clone(), page.clone());
        transact!(self, Purpose::Read, |sql| audit::page(sql, &filter, &page))
    }
}

/// Tokens.
impl Repository {
    /// Makes a token.
    pub async fn insert_token(&self, token: &NewToken, actor: &str) -> Result<TokenRow> {
        let (token, actor) = (token.clone(), actor.to_owned());
        transact!(self, Purpose::Change, |sql| tokens::insert(sql, &token, &actor))
    }

    /// Makes a token where there has never been one; `None` where there has.
    pub async fn insert_first_token(
        &self,
        token: &NewToken,
        actor: &str,
    ) -> Result<Option<TokenRow>> {
        let (token, actor) = (token.clone(), actor.to_owned());
        transact!(self, Purpose::Change, |sql| tokens::insert_first(sql, &token, &actor))
    }

    /// The token of that hash. Whether it is worth anything, its row says.
    pub async fn token_by_hash(&self, hash: &[u8; 32]) -> Result<Option<TokenRow>> {
        let hash = *hash;
        transact!(self, Purpose::Read, |sql| tokens::by_hash(sql, &hash))
    }

    /// One token.
    pub async fn token(&self, id: i64) -> Result<TokenRow> {
        transact!(self, Purpose::Read, |sql| tokens::get(sql, id))
    }

    /// A page of tokens, revoked ones too.
    pub async fn tokens(&self, page: &PageOf) -> Result<Page<TokenRow>> {
        let page = page.clone();
        transact!(self, Purpose::Read, |sql| tokens::page(sql, &page))
    }

    /// Makes a token worth nothing.
    pub async fn revoke_token(&self, id: i64, actor: &str) -> Result<TokenRow> {
        let actor = actor.to_owned();
        transact!(self, Purpose::Change, |sql| tokens::revoke(sql, id, &actor))
    }

    /// Writes down when tokens were used.
    pub async fn tokens_used(&self, used: &[(i64, Timestamp)]) -> Result<()> {
        let used = used.to_vec();
        transact!(self, Purpose::Write, |sql| tokens::used(sql, &used))
    }
}

/// Bans and boosts.
impl Repository {
    /// Bans or boosts somebody, in place of what was said of them before.
    pub async fn put_key(&self, record: &KeyRecord, actor: &str) -> Result<KeyRow> {
        let (record, actor) = (record.clone(), actor.to_owned());
        transact!(self, Purpose::Change, |sql| keys::put(sql, &record, &actor))
    }

    /// One record.
    pub async fn key(&self, id: i64) -> Result<KeyRow> {
        transact!(self, Purpose::Read, |sql| keys::get(sql, id))
    }

    /// Ends a ban or a boost.
    pub async fn delete_key(&self, id: i64, actor: &str) -> Result<KeyRow> {
        let actor = actor.to_owned();
        transact!(self, Purpose::Change, |sql| keys::delete(sql, id, &actor))
    }

    /// A page of them.
    pub async fn keys(&self, filter: &KeyFilter, page: &PageOf) -> Result<Page<KeyRow>> {
        let (filter, page) = (filter.clone(), page.clone());
        transact!(self, Purpose::Read, |sql| keys::page(sql, &filter, &page))
    }
}

/// Usage, nodes and revisions.
impl Repository {
    /// Adds what a node has counted, once: a batch whose sequence is not above the last one's of that
    /// node was added before.
    pub async fn add_usage(&self, node: &str, sequence: u64, rows: &[UsageRow]) -> Result<Applied> {
        let (node, rows) = (node.to_owned(), rows.to_vec());
        transact!(self, Purpose::Write, |sql| usage::add(sql, &node, sequence, &rows))
    }

    /// The last batch of a node that was added; 0 where there is none.
    pub async fn usage_sequence(&self, node: &str) -> Result<u64> {
        let node = node.to_owned();
        transact!(self, Purpose::Read, |sql| usage::sequence(sql, &node))
    }

    /// A page of what was used.
    pub async fn usage(&self, filter: &UsageFilter, page: &PageOf) -> Result<Page<UsageRow>> {
        let (filter, page) = (filter.clone(), page.clone());
        transact!(self, Purpose::Read, |sql| usage::page(sql, &filter, &page))
    }

    /// Says which revision a node enforces.
    pub async fn report_node(&self, node: &str, revision: u64) -> Result<()> {
        let node = node.to_owned();
        transact!(self, Purpose::Write, |sql| nodes::report(sql, &node, revision))
    }

    /// The nodes that have said so, by name.
    pub async fn nodes(&self) -> Result<Vec<NodeRow>> {
        transact!(self, Purpose::Read, |sql| nodes::list(sql))
    }

    /// Forgets nodes that have said nothing since then; how many.
    pub async fn forget_nodes(&self, seen_before: Timestamp) -> Result<u64> {
        transact!(self, Purpose::Write, |sql| nodes::forget(sql, seen_before))
    }

    /// Everything that nodes enforce.
    pub async fn load(&self) -> Result<Loaded> {
        transact!(self, Purpose::Read, |sql| load::load(sql))
    }

    /// Makes of what was loaded before what would be loaded now, by reading what has changed since. False
    /// where that cannot be told: nothing is done then.
    pub async fn update(&self, loaded: &mut Loaded) -> Result<bool> {
        let Some(since) = loaded.since() else {
            return Ok(false);
        };
        let Some(changes) = self.changes_since(since).await? else {
            return Ok(false);
        };
        let mark = changes.mark;
        loaded.apply(changes);
        loaded.mark = Some(mark);
        Ok(true)
    }

    /// What has changed since a revision; `None` where that cannot be told.
    pub(crate) async fn changes_since(&self, since: Since) -> Result<Option<Changes>> {
        transact!(self, Purpose::Read, |sql| load::changes_since(sql, since))
    }

    /// Hears of changes by others, where the database tells of them.
    pub(crate) async fn listen(&self) -> Option<Result<postgres::Listening>> {
        match &self.database {
            Database::Sqlite(_) => None,
            Database::Postgres(it) => Some(it.listen().await),
        }
    }

    /// An error where the database does not answer in 1.5 s. A file of SQLite answers one question
    /// after the other, in this process, and is not asked.
    pub(crate) async fn pulse(&self) -> Result<()> {
        match &self.database {
            Database::Sqlite(_) => Ok(()),
            Database::Postgres(it) => it.pulse().await,
        }
    }

    /// How often anything has changed.
    pub async fn revisions(&self) -> Result<Revisions> {
        transact!(self, Purpose::Read, |sql| nodes::revisions(sql))
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("database", &self.database).finish_non_exhaustive()
    }
}
