//! What is read of a change is what would be read of everything; and where that cannot be told, nothing is.

use std::time::Duration;

use serde_json::json;
use tollbar::Timestamp;
use tollbar_admin::database::{DatabaseContents, KeyEffect, KeyRecord};
use tollbar_rules::admin::{ExemptionForm, SubjectType};

use super::{TestDatabase, rule};

/// A node, and what it knows.
struct Node {
    loaded: DatabaseContents,
}

impl Node {
    async fn new(database: &TestDatabase) -> Self {
        Self { loaded: database.repository.load().await.unwrap() }
    }

    /// It reads what has changed, and knows what there is.
    async fn follows(&mut self, database: &TestDatabase, what: &str) {
        let is_told = database.repository.update(&mut self.loaded).await.unwrap();
        assert!(is_told, "{what} can be told of");
        assert_eq!(self.loaded, database.repository.load().await.unwrap(), "{what}");
    }

    /// It cannot know what has changed, and reads everything.
    async fn is_lost(&mut self, database: &TestDatabase, what: &str) {
        let before = self.loaded.clone();
        assert!(!database.repository.update(&mut self.loaded).await.unwrap(), "{what}");
        assert_eq!(self.loaded, before, "{what}");
        self.loaded = database.repository.load().await.unwrap();
    }
}

fn ban(subject: &str, expires_at: Option<Timestamp>) -> KeyRecord {
    let (subject, effect) = (subject.to_owned(), KeyEffect::Ban);
    KeyRecord { rule: None, subject, effect, reason: None, expires_at }
}

fn small(name: &str) -> tollbar_rules::Rule {
    rule(&json!({ "name": name, "maxRequests": 1, "windowSeconds": 60 }))
}

pub(crate) async fn what_has_changed_is_read_and_nothing_else_is_missed(database: TestDatabase) {
    let repository = &database.repository;
    let first = repository.insert_rule(&small("first"), "ada").await.unwrap();
    let mut node = Node::new(&database).await;
    node.follows(&database, "nothing").await;

    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    node.follows(&database, "a new rule").await;
    repository.update_rule(rule.id, 1, &small("b"), "ada").await.unwrap();
    repository.update_rule(rule.id, 2, &small("c"), "ada").await.unwrap();
    repository.update_rule(first.id, 1, &small("a"), "ada").await.unwrap();
    node.follows(&database, "several changes").await;
    let exempt = ExemptionForm::new(SubjectType::User, "7");
    let exemption = repository.add_exemption(rule.id, &exempt, "ada").await.unwrap();
    node.follows(&database, "an exemption").await;
    assert_eq!(node.loaded.exemptions.len(), 1);
    repository.enable_rule(rule.id, 3, false, "ada").await.unwrap();
    node.follows(&database, "a rule that is disabled").await;
    assert_eq!((node.loaded.rules.len(), node.loaded.exemptions.len()), (1, 0));
    repository.enable_rule(rule.id, 4, true, "ada").await.unwrap();
    node.follows(&database, "a rule that is enabled").await;
    repository.delete_rule(rule.id, 5, "ada").await.unwrap();
    node.follows(&database, "a rule that is deleted").await;
    repository.rollback_rule(rule.id, 6, 2, "ada").await.unwrap();
    node.follows(&database, "a rule that is back").await;
    assert_eq!((node.loaded.rules.len(), node.loaded.exemptions.len()), (2, 1));
    repository.delete_exemption(exemption.id, "ada").await.unwrap();
    node.follows(&database, "an exemption that has ended").await;

    let in_a_minute = Timestamp::from_micros(database.clock_now().as_micros() + 60_000_000);
    let short = repository.put_key(&ban("user:1", Some(in_a_minute)), "ada").await.unwrap();
    repository.put_key(&ban("user:2", None), "ada").await.unwrap();
    node.follows(&database, "two bans").await;
    repository.put_key(&ban("user:1", None), "ada").await.unwrap();
    repository.put_key(&ban("user:1", Some(in_a_minute)), "ada").await.unwrap();
    node.follows(&database, "bans in place of others").await;
    assert!(node.loaded.keys.iter().all(|key| key.id != short.id));
    database.clock.advance(Duration::from_mins(2));
    let last = repository.put_key(&ban("user:3", None), "ada").await.unwrap();
    node.follows(&database, "a ban after one that has ended").await;
    repository.delete_key(last.id, "ada").await.unwrap();
    node.follows(&database, "a ban that was lifted").await;
    assert_eq!(node.loaded.keys.len(), 1);
}

pub(crate) async fn what_is_done_by_hand_is_read_too(database: TestDatabase) {
    let repository = &database.repository;
    let rules = [small("a"), small("b"), small("c")];
    let mut ids = Vec::new();
    for rule in &rules {
        ids.push(repository.insert_rule(rule, "ada").await.unwrap().id);
    }
    let exempt = ExemptionForm::new(SubjectType::User, "7");
    repository.add_exemption(ids[0], &exempt, "ada").await.unwrap();
    let mut node = Node::new(&database).await;
    let nine = database.set("maxRequests", "9");
    database.execute(&format!("UPDATE rate_limit_rules SET {nine} WHERE name <> 'c'"));
    node.follows(&database, "two rules").await;
    database.execute(
        "UPDATE rate_limit_exemptions SET rule_id = (SELECT id FROM rate_limit_rules WHERE name = 'b')",
    );
    node.follows(&database, "an exemption from another rule").await;
    assert_eq!(node.loaded.exemptions.keys().collect::<Vec<_>>(), [&ids[1]]);
    database.execute("DELETE FROM rate_limit_rules WHERE name = 'b'");
    node.follows(&database, "a rule that is gone with its exemption").await;
    assert_eq!((node.loaded.rules.len(), node.loaded.exemptions.len()), (2, 0));
    let named = database.set("name", "\"d\"");
    database.execute(&format!(
        "BEGIN; UPDATE rate_limit_rules SET rule_uuid = '00000000-0000-4000-8000-000000000001' \
         WHERE name = 'a'; UPDATE rate_limit_rules SET {named} WHERE name = 'c'; COMMIT",
    ));
    node.follows(&database, "another id and another name").await;
}

pub(crate) async fn what_cannot_be_told_is_not_guessed(database: TestDatabase) {
    let repository = &database.repository;
    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    let mut node = Node::new(&database).await;
    assert!(
        !repository.update(&mut DatabaseContents::default()).await.unwrap(),
        "nothing is known"
    );

    // Back to an older state, and by another way to the number that the node knows, and beyond it.
    database.execute("UPDATE rate_limit_revision SET rules = rules - 1");
    node.is_lost(&database, "a smaller number").await;
    database.execute("DELETE FROM rate_limit_changes");
    repository.update_rule(rule.id, 1, &small("b"), "ada").await.unwrap();
    node.is_lost(&database, "a change after what is forgotten").await;
    repository.update_rule(rule.id, 2, &small("c"), "ada").await.unwrap();
    node.follows(&database, "a change after that").await;
    let mut other = Node { loaded: node.loaded.clone() };
    database.execute(&format!(
        "DELETE FROM rate_limit_changes WHERE revision = (SELECT rules FROM rate_limit_revision); \
         UPDATE rate_limit_revision SET rules = rules - 1; \
         UPDATE rate_limit_rules SET {}",
        database.set("maxRequests", "5")
    ));
    repository.update_rule(rule.id, 3, &small("d"), "ada").await.unwrap();
    other.is_lost(&database, "another history").await;
    node.is_lost(&database, "another history").await;

    // More at once than anybody reads one by one.
    for many in [70, 300] {
        database.execute(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many}) \
             INSERT INTO rate_limit_rules (rule_uuid, spec) \
             SELECT {}, {}('name', 'many-{many}-' || i, 'maxRequests', 1, 'windowSeconds', 60) FROM n",
            database.random_uuid(),
            database.json_object()
        ));
        node.is_lost(&database, "many rules").await;
    }
    assert_eq!(node.loaded.rules.len(), 371);
    repository.update_rule(rule.id, 4, &small("e"), "ada").await.unwrap();
    node.follows(&database, "a change after them").await;

    // One row so often that what else changed last is not all within what is looked at.
    let [two, three] = ["2", "3"].map(|value| database.set("maxRequests", value));
    let one = format!("UPDATE rate_limit_rules SET {two} WHERE name = 'e'; ").repeat(505);
    database
        .execute(&format!("{one} UPDATE rate_limit_rules SET {three} WHERE name LIKE 'many-70-_'"));
    node.is_lost(&database, "a row that changed often").await;

    let odd = database.set("odd", "1");
    database.execute(&format!("UPDATE rate_limit_rules SET {odd} WHERE name = 'e'"));
    node.is_lost(&database, "a row that says no rule").await;
    repository.insert_rule(&small("g"), "ada").await.unwrap();
    node.is_lost(&database, "a change beside a row that says no rule").await;
}

pub(crate) async fn a_revision_that_names_no_row_is_not_passed_over(database: TestDatabase) {
    let repository = &database.repository;
    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    let mut node = Node::new(&database).await;
    repository.insert_rule(&small("b"), "ada").await.unwrap();
    repository.update_rule(rule.id, 1, &small("c"), "ada").await.unwrap();
    // As a statement leaves it that empties a table.
    database.execute(
        "DELETE FROM rate_limit_changes WHERE revision = (SELECT rules - 1 FROM rate_limit_revision)",
    );
    node.is_lost(&database, "a gap").await;
    assert_eq!(node.loaded.rules.len(), 2);
}

pub(crate) async fn a_thousand_revisions_are_remembered(database: TestDatabase) {
    let repository = &database.repository;
    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    for version in 1..5 {
        repository.update_rule(rule.id, version, &small("a"), "ada").await.unwrap();
    }
    let count = |most: u32| {
        format!(
            "CREATE TEMPORARY TABLE few (count BIGINT CHECK (count = {most})); \
             INSERT INTO few SELECT count(*) FROM rate_limit_changes"
        )
    };
    database.execute(&count(5));
    database.execute("UPDATE rate_limit_revision SET rules = rules + 996");
    repository.update_rule(rule.id, 5, &small("a"), "ada").await.unwrap();
    database.execute(&count(4));
}
