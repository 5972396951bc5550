//! Where rules live that people change while the daemon serves: rules, exemptions, bans and boosts,
//! tokens, the audit of every change, and what was used. In a file by SQLite, or in PostgreSQL.
//!
//! It keeps what it is given and says what it has. Who may change what is for the admin API to say, and
//! what is enforced for `sync`. A check never asks here.
//!
//! | module | what it has |
//! |---|---|
//! | `queries` | the statements, one module per table |
//! | `row`, `page`, `rule_id` | what they read and write |
//! | `sql`, `sqlite`, `postgres`, `schema` | transactions of either database, and its tables |
//! | [`sync`] | from the database to the engine: following changes, merging rules, the cache file |
//! | `location`, [`flags`], `error` | `--database` and what can go wrong |

mod error;
pub mod flags;
mod location;
mod page;
mod postgres;
mod queries;
mod row;
mod rule_id;
mod schema;
mod sql;
mod sqlite;
pub mod sync;

use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;
use tollbar::store::block_on;
use tollbar::{Clock, SystemClock, Timestamp};
use tollbar_rules::Rule;
use tollbar_rules::admin::ExemptionForm;

use postgres::Postgres;
use queries::{audit, exemptions, keys, nodes, rules, tokens, usage};
use sql::Purpose;
use sqlite::Sqlite;
use sync::contents::{KnownRevision, RowChanges};

pub use error::{RepositoryError, Result};
pub use location::{DatabaseLocation, DatabaseLocationError};
pub use page::{Cursor, PAGE_ROWS_MAX, Page, PageRequest};
pub use row::{
    AuditAction, AuditFilter, AuditKind, AuditRow, AuditState, AuditedRule, BatchOutcome,
    BrokenRule, ExemptionRow, KeyEffect, KeyFilter, KeyRecord, KeyRow, NewToken, NodeRow, Owner,
    Revisions, RuleFilter, RuleRow, TokenRow, UsageFilter, UsageGroup, UsageTotal,
};
pub use rule_id::{RuleId, RuleIdError};
pub use sync::cache::CacheError;
pub use sync::contents::{DatabaseContents, SkippedRow};
pub use sync::live_rules::{DATABASE, LiveRules, LiveStatus, RULES_CACHE};
pub use sync::merge::VoidReplaces;
pub use tollbar_daemon::usage::UsageRow;

/// A database of rules. Clones are the same one.
#[derive(Clone)]
pub struct Repository {
    database: Database,
    clock: Arc<dyn Clock>,
    change_notify: Arc<Notify>,
}

/// Which kind it is.
#[derive(Debug, Clone)]
enum Database {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

/// Does `$work` in a transaction of whichever database it is. `$work` owns what it uses of its surroundings,
/// because a thread of its own may do it.
macro_rules! transact {
    ($self:ident, $purpose:expr, |$sql:ident| $work:expr) => {{
        let (purpose, now) = ($purpose, $self.clock.now());
        let done = match &$self.database {
            Database::Sqlite(sqlite) => sqlite.run(purpose, now, move |$sql| block_on($work)).await,
            Database::Postgres(postgres) => {
                let work = async {
                    let mut client = postgres.client(&*$self.clock).await?;
                    let transaction = postgres::begin(&mut client, purpose, now).await?;
                    let $sql = &transaction;
                    let done = $work.await;
                    transaction.end(done).await
                };
                postgres::with_timeout(work).await
            }
        };
        if purpose == Purpose::Change && done.is_ok() {
            $self.change_notify.notify_one();
        }
        done
    }};
}

impl Repository {
    /// The database at that place, its tables as this version knows them.
    pub async fn open(location: &DatabaseLocation) -> Result<Self> {
        Self::open_with(location, Arc::new(SystemClock::new())).await
    }

    /// The same by another clock.
    pub async fn open_with(location: &DatabaseLocation, clock: Arc<dyn Clock>) -> Result<Self> {
        let repository = Self::open_later(location, clock)?;
        repository.revisions().await?;
        Ok(repository)
    }

    /// The same, of a database that need not be there yet: it is first asked, and its tables are made,
    /// when somebody wants something of it.
    pub fn open_later(location: &DatabaseLocation, clock: Arc<dyn Clock>) -> Result<Self> {
        let database = match location {
            DatabaseLocation::Sqlite(path) => {
                Database::Sqlite(Sqlite::new(path, Arc::clone(&clock))?)
            }
            DatabaseLocation::Postgres(url) => Database::Postgres(Postgres::new(url)?),
        };
        Ok(Self { database, clock, change_notify: Arc::default() })
    }

    /// Is notified after every change that was made by this process or heard of. For the one who
    /// follows; others ask [`LiveRules::revisions`].
    #[must_use]
    pub fn change_notify(&self) -> &Notify {
        &self.change_notify
    }

    /// The time by its clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Declares methods that run one operation each, in a transaction of its own.
macro_rules! operations {
    ($($(#[$doc:meta])* $purpose:ident $name:ident($($arg:ident: $type:ty),*) -> $output:ty
        = |$sql:ident| $work:expr;)*) => {
        impl Repository {
            $($(#[$doc])*
            pub async fn $name(&self, $($arg: $type),*) -> Result<$output> {
                $(let $arg = $arg.to_owned();)*
                transact!(self, Purpose::$purpose, |$sql| $work)
            })*
        }
    };
}

operations! {
    /// Returns a page of the rules that are not deleted, the oldest first.
    Read rules(filter: &RuleFilter, page: &PageRequest) -> Page<RuleRow>
        = |sql| rules::page(sql, &filter, &page);

    /// Returns the rule, unless it is deleted.
    Read rule(id: RuleId) -> RuleRow = |sql| rules::get(sql, id);

    /// Returns the rule as it is, or as it was when it was deleted.
    Read rule_or_deleted(id: RuleId) -> RuleRow = |sql| rules::find(sql, id);

    /// Makes a rule of the operator's.
    Change insert_rule(rule: &Rule, actor: &str) -> RuleRow
        = |sql| rules::insert(sql, &rule, &Owner::Operator, &actor);

    /// Makes a rule that belongs to `owner`.
    Change insert_rule_for(owner: &Owner, rule: &Rule, actor: &str) -> RuleRow
        = |sql| rules::insert(sql, &rule, &owner, &actor);

    /// Makes a rule say something else, if it is at the version that is expected.
    Change update_rule(id: RuleId, expected: u64, rule: &Rule, actor: &str) -> RuleRow
        = |sql| rules::update(sql, id, expected, &rule, &actor);

    /// Deletes a rule. Its history stays, and [`rollback_rule`](Self::rollback_rule) brings it back.
    Change delete_rule(id: RuleId, expected: u64, actor: &str) -> RuleRow
        = |sql| rules::delete(sql, id, expected, &actor);

    /// Enables or disables a rule.
    Change enable_rule(id: RuleId, expected: u64, enabled: bool, actor: &str) -> RuleRow
        = |sql| rules::enable(sql, id, expected, enabled, &actor);

    /// Makes a rule say what it said at a version. One that was deleted is there again.
    Change rollback_rule(id: RuleId, expected: u64, to_version: u64, actor: &str) -> RuleRow
        = |sql| rules::roll_back(sql, id, expected, to_version, &actor);

    /// Returns the row of that id or name that says no rule.
    Read broken_rule(named: &str) -> Option<BrokenRule> = |sql| rules::find_broken(sql, &named);

    /// Puts a rule in the place of what a broken row says.
    Change repair_rule(named: &str, expected: u64, rule: &Rule, actor: &str) -> RuleRow
        = |sql| rules::repair(sql, &named, expected, &rule, &actor);

    /// Deletes a broken row.
    Change discard_rule(named: &str, expected: u64, actor: &str) -> ()
        = |sql| rules::discard(sql, &named, expected, &actor);

    /// Returns what a version of a rule said.
    Read rule_at(id: RuleId, version: u64) -> Rule = |sql| rules::rule_at(sql, id, version);

    /// Returns every change of a rule, the newest first, whether it is deleted or not.
    Read history(id: RuleId, page: &PageRequest) -> Page<AuditRow> = |sql| rules::history(sql, id, &page);

    /// Exempts a subject from a rule.
    Change add_exemption(rule: RuleId, form: &ExemptionForm, actor: &str) -> ExemptionRow
        = |sql| exemptions::add(sql, rule, &form, &actor);

    /// Returns one exemption.
    Read exemption(id: i64) -> ExemptionRow = |sql| exemptions::get(sql, id);

    /// Ends an exemption.
    Change delete_exemption(id: i64, actor: &str) -> ExemptionRow
        = |sql| exemptions::delete(sql, id, &actor);

    /// Returns a page of a rule's exemptions, or of all.
    Read exemptions(rule: Option<RuleId>, page: &PageRequest) -> Page<ExemptionRow>
        = |sql| exemptions::page(sql, rule, &page);

    /// Returns a page of changes, the newest first.
    Read audit(filter: &AuditFilter, page: &PageRequest) -> Page<AuditRow>
        = |sql| audit::page(sql, &filter, &page);

    /// Makes a token.
    Change insert_token(token: &NewToken, actor: &str) -> TokenRow
        = |sql| tokens::insert(sql, &token, &actor);

    /// Makes a token where there has never been one; returns `None` where there has.
    Change insert_first_token(token: &NewToken, actor: &str) -> Option<TokenRow>
        = |sql| tokens::insert_first(sql, &token, &actor);

    /// Returns the token of that hash. Whether it is worth anything, its row says.
    Read token_by_hash(hash: &[u8; 32]) -> Option<TokenRow> = |sql| tokens::find_by_hash(sql, &hash);

    /// Returns one token.
    Read token(id: i64) -> TokenRow = |sql| tokens::get(sql, id);

    /// Returns a page of tokens, revoked ones too.
    Read tokens(page: &PageRequest) -> Page<TokenRow> = |sql| tokens::page(sql, &page);

    /// Makes a token worth nothing.
    Change revoke_token(id: i64, actor: &str) -> TokenRow = |sql| tokens::revoke(sql, id, &actor);

    /// Writes down when tokens were used.
    Write record_token_use(uses: &[(i64, Timestamp)]) -> () = |sql| tokens::record_use(sql, &uses);

    /// Bans or boosts a subject, in place of a record of the same effect.
    Change put_key(record: &KeyRecord, actor: &str) -> KeyRow
        = |sql| keys::put(sql, &record, &actor);

    /// Returns one record.
    Read key(id: i64) -> KeyRow = |sql| keys::get(sql, id);

    /// Ends a ban or a boost.
    Change delete_key(id: i64, actor: &str) -> KeyRow = |sql| keys::delete(sql, id, &actor);

    /// Writes into the audit that counters of a subject are made fresh.
    Write record_reset(rule: &str, subject: &str, actor: &str) -> ()
        = |sql| keys::audit_reset(sql, &rule, &subject, &actor);

    /// Returns a page of bans and boosts.
    Read keys(filter: &KeyFilter, page: &PageRequest) -> Page<KeyRow>
        = |sql| keys::page(sql, &filter, &page);

    /// Adds what a node has counted, once: a batch whose sequence is not above the last one's of that node
    /// was added before.
    Write add_usage(node: &str, sequence: u64, rows: &[UsageRow]) -> BatchOutcome
        = |sql| usage::add(sql, &node, sequence, &rows);

    /// Returns the last batch of a node that was added; 0 where there is none.
    Read usage_sequence(node: &str) -> u64 = |sql| usage::sequence(sql, &node);

    /// Returns a page of what was used.
    Read usage(filter: &UsageFilter, page: &PageRequest) -> Page<UsageRow>
        = |sql| usage::page(sql, &filter, &page);

    /// Returns a page of what was used by each tenant, client, rule or tier, under each rule.
    Read usage_totals(by: UsageGroup, filter: &UsageFilter, page: &PageRequest) -> Page<UsageTotal>
        = |sql| usage::totals(sql, by, &filter, &page);

    /// Writes down which revision a node enforces, and where it counts.
    Write report_node(node: &str, revision: u64, store: &str) -> ()
        = |sql| nodes::report(sql, &node, revision, &store);

    /// Returns the nodes that have reported, by name.
    Read nodes() -> Vec<NodeRow> = |sql| nodes::list(sql);

    /// Forgets nodes that have not reported since then; returns how many.
    Write forget_nodes(seen_before: Timestamp) -> u64 = |sql| nodes::forget(sql, seen_before);

    /// Returns everything that nodes enforce.
    Read load() -> DatabaseContents = |sql| sync::contents::load(sql);

    /// Returns how often anything has changed.
    Read revisions() -> Revisions = |sql| nodes::revisions(sql);
}

/// Changes that other processes make.
impl Repository {
    /// Makes of what was loaded before what would be loaded now, by reading what has changed since. Returns
    /// false where that cannot be told: nothing is done then.
    pub async fn update(&self, contents: &mut DatabaseContents) -> Result<bool> {
        let Some(known_revision) = contents.known_revision() else {
            return Ok(false);
        };
        let Some(changes) = self.changes_since(known_revision).await? else {
            return Ok(false);
        };
        let mark = changes.mark;
        contents.apply(changes);
        contents.mark = Some(mark);
        Ok(true)
    }

    /// Returns what has changed since a revision; `None` where that cannot be told.
    pub(crate) async fn changes_since(
        &self,
        known_revision: KnownRevision,
    ) -> Result<Option<RowChanges>> {
        transact!(self, Purpose::Read, |sql| sync::contents::changes_since(sql, known_revision))
    }

    /// Hears of changes by others, where the database tells of them.
    pub(crate) async fn listen(&self) -> Option<Result<postgres::ChangeNotifications>> {
        match &self.database {
            Database::Sqlite(_) => None,
            Database::Postgres(postgres) => Some(postgres.listen().await),
        }
    }

    /// Returns an error where the database does not answer in 1.5 s. A file of SQLite answers one question
    /// after the other, in this process, and is not asked.
    pub(crate) async fn ping(&self) -> Result<()> {
        match &self.database {
            Database::Sqlite(_) => Ok(()),
            Database::Postgres(postgres) => postgres.ping().await,
        }
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("database", &self.database).finish_non_exhaustive()
    }
}
