//! One suite of the repository, over every database it can be in. Each test has a database of its own.

mod changes;
mod migration;
mod races;
mod rows;
mod rules;
mod tls;

use std::future::Future;
use std::sync::Arc;

use crate::common::Scratch;
use serde_json::{Value, json};
use tollbar::{ManualClock, Timestamp};
use tollbar_admin::database::{DatabaseLocation, PageRequest, Repository, RuleFilter};
use tollbar_rules::Rule;
use tollbar_rules::admin::from_json;

/// When tests begin.
const START_US: u64 = 1_800_000_000_000_000;

/// A repository, its clock, and where it is.
struct TestDatabase {
    repository: Repository,
    clock: ManualClock,
    location: DatabaseLocation,
    _scratch: Scratch,
}

impl TestDatabase {
    async fn sqlite(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let location: DatabaseLocation = scratch.path("rules.sqlite").parse().unwrap();
        Self::open(location, scratch).await
    }

    async fn postgres(name: &str) -> Self {
        let location = crate::common::postgres::shared_database().parse().unwrap();
        Self::open(location, Scratch::new(name)).await
    }

    async fn open(location: DatabaseLocation, scratch: Scratch) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(START_US));
        let repository = Repository::open_with(&location, Arc::new(clock.clone())).await.unwrap();
        Self { repository, clock, location, _scratch: scratch }
    }

    /// The same database, as another process would have it.
    async fn again(&self) -> Repository {
        Repository::open_with(&self.location, Arc::new(self.clock.clone())).await.unwrap()
    }
}

impl TestDatabase {
    fn clock_now(&self) -> Timestamp {
        self.repository.now()
    }

    /// The names of the rules of a list.
    async fn names(&self, filter: &RuleFilter) -> Vec<String> {
        let page = self.repository.rules(filter, &PageRequest::first(1_000)).await.unwrap();
        page.rows.into_iter().map(|row| row.rule.name.to_string()).collect()
    }

    /// What somebody does by hand.
    fn execute(&self, statement: &str) {
        self.try_execute(statement).unwrap_or_else(|error| panic!("{error}"));
    }

    /// What somebody tries by hand, or what the database has against it.
    fn try_execute(&self, statement: &str) -> Result<(), String> {
        match &self.location {
            DatabaseLocation::Sqlite(path) => {
                let done = rusqlite::Connection::open(path).unwrap().execute_batch(statement);
                done.map_err(|error| error.to_string())
            }
            DatabaseLocation::Postgres(url) => {
                crate::common::postgres::try_execute(url, statement).map(|_| ())
            }
        }
    }

    /// The texts of one column.
    fn column(&self, statement: &str) -> Vec<String> {
        match &self.location {
            DatabaseLocation::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path).unwrap();
                let mut statement = connection.prepare(statement).unwrap();
                let rows = statement.query_map([], |row| row.get(0)).unwrap();
                rows.map(Result::unwrap).collect()
            }
            DatabaseLocation::Postgres(url) => {
                let rows = crate::common::postgres::try_execute(url, statement).unwrap();
                rows.lines().map(str::to_owned).collect()
            }
        }
    }

    /// An expression of SQL.
    fn random_uuid(&self) -> &'static str {
        match &self.location {
            DatabaseLocation::Sqlite(_) => {
                "'00000000-0000-4000-8000-' || substr(hex(randomblob(8)), 1, 12)"
            }
            DatabaseLocation::Postgres(_) => "gen_random_uuid()",
        }
    }

    /// The part of an `UPDATE` that sets a field of rules to a value in JSON.
    fn set(&self, field: &str, json: &str) -> String {
        match &self.location {
            DatabaseLocation::Sqlite(_) => {
                format!("spec = json_set(spec, '$.{field}', json('{json}'))")
            }
            DatabaseLocation::Postgres(_) => {
                format!("spec = jsonb_set(spec::jsonb, '{{{field}}}', '{json}')::json")
            }
        }
    }

    /// What makes an object of names and values.
    fn json_object(&self) -> &'static str {
        match &self.location {
            DatabaseLocation::Sqlite(_) => "json_object",
            DatabaseLocation::Postgres(_) => "json_build_object",
        }
    }

    /// As if nobody had ever been there.
    fn empty(&self) {
        match &self.location {
            DatabaseLocation::Sqlite(path) => {
                for end in ["", "-wal", "-shm"] {
                    let _ = std::fs::remove_file(format!("{}{end}", path.display()));
                }
            }
            DatabaseLocation::Postgres(url) => {
                let anew = "DROP SCHEMA public CASCADE; CREATE SCHEMA public";
                crate::common::postgres::execute(url, anew);
            }
        }
    }
}

/// Runs a test on a runtime as the daemon has it.
fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test);
}

/// Every test of the suite, over each database.
macro_rules! suite {
    ($($file:ident::$name:ident,)*) => {
        mod sqlite {
            $(#[test]
            fn $name() {
                super::run(async { super::$file::$name(super::TestDatabase::sqlite(stringify!($name)).await).await });
            })*
        }
        mod postgres {
            $(#[test]
            fn $name() {
                super::run(async { super::$file::$name(super::TestDatabase::postgres(stringify!($name)).await).await });
            })*
        }
    };
}

suite! {
    rules::a_rule_is_read_as_it_was_written,
    rules::a_change_needs_the_version_it_was_made_for,
    rules::every_change_is_in_the_audit_with_who_and_what_it_was,
    rules::a_deleted_rule_is_gone_and_can_be_brought_back,
    rules::any_version_can_be_put_back,
    rules::names_are_taken_once_among_the_living,
    rules::what_cannot_be_enforced_is_not_kept,
    rules::lists_are_filtered_and_paged,
    rules::texts_are_kept_and_never_obeyed,
    rules::the_revision_grows_with_what_nodes_enforce_and_nothing_else,
    rows::exemptions_are_added_once_and_deleted,
    rows::tokens_are_found_by_their_hash_until_they_are_revoked,
    rows::the_first_token_is_made_once,
    rows::bans_and_boosts_replace_their_like_and_end,
    rows::usage_is_added_once_for_each_node_and_sequence,
    rows::usage_is_listed_in_pages_by_day,
    rows::sums_of_usage_stop_at_the_largest_number,
    rows::a_correction_takes_back_what_another_node_has_added,
    rows::usage_is_added_up_by_tenant_client_rule_and_tier,
    rows::totals_of_the_largest_numbers_are_the_largest_number,
    rows::nodes_are_known_by_what_they_enforce_until_they_are_silent,
    rows::a_newer_schema_is_refused,
    changes::what_has_changed_is_read_and_nothing_else_is_missed,
    changes::what_is_done_by_hand_is_read_too,
    changes::what_cannot_be_told_is_not_guessed,
    changes::a_revision_that_names_no_row_is_not_passed_over,
    changes::a_thousand_revisions_are_remembered,
    migration::a_database_of_version_2_is_migrated,
    migration::rules_of_version_4_get_their_owners_from_the_audit,
    migration::usage_of_version_5_is_kept_and_goes_on,
    rules::columns_say_what_the_rule_says_and_cannot_be_written,
    races::of_two_who_change_one_version_one_succeeds,
    races::a_batch_of_usage_sent_by_many_is_added_once,
    races::two_who_open_an_empty_database_both_find_it_made,
}

fn rule(json: &Value) -> Rule {
    from_json(json.clone()).unwrap()
}

/// A small rule of that name.
fn small(name: &str) -> Rule {
    rule(&json!({ "name": name, "maxRequests": 10, "windowSeconds": 60 }))
}
