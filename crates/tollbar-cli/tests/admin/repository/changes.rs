//! What is read of a change is what would be read of everything; and where that cannot be told, nothing is.

use std::time::Duration;

use serde_json::json;
use tollbar::Timestamp;
use tollbar_admin::database::{DatabaseContents, KeyEffect, KeyRecord};
use tollbar_rules::admin::{ExemptionForm, SubjectType};

use super::{World, rule};

/// A node, and what it knows.
struct Node {
    loaded: DatabaseContents,
}

impl Node {
    async fn new(world: &World) -> Self {
        Self { loaded: world.repository.load().await.unwrap() }
    }

    /// It reads what has changed, and knows what there is.
    async fn follows(&mut self, world: &World, what: &str) {
        let is_told = world.repository.update(&mut self.loaded).await.unwrap();
        assert!(is_told, "{what} can be told of");
        assert_eq!(self.loaded, world.repository.load().await.unwrap(), "{what}");
    }

    /// It cannot know what has changed, and reads everything.
    async fn is_lost(&mut self, world: &World, what: &str) {
        let before = self.loaded.clone();
        assert!(!world.repository.update(&mut self.loaded).await.unwrap(), "{what}");
        assert_eq!(self.loaded, before, "{what}");
        self.loaded = world.repository.load().await.unwrap();
    }
}

fn ban(subject: &str, expires_at: Option<Timestamp>) -> KeyRecord {
    let (subject, effect) = (subject.to_owned(), KeyEffect::Ban);
    KeyRecord { rule: None, subject, effect, reason: None, expires_at }
}

fn small(name: &str) -> tollbar_rules::Rule {
    rule(&json!({ "name": name, "maxRequests": 1, "windowSeconds": 60 }))
}

pub(crate) async fn what_has_changed_is_read_and_nothing_else_is_missed(world: World) {
    let repository = &world.repository;
    let first = repository.insert_rule(&small("first"), "ada").await.unwrap();
    let mut node = Node::new(&world).await;
    node.follows(&world, "nothing").await;

    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    node.follows(&world, "a new rule").await;
    repository.update_rule(rule.id, 1, &small("b"), "ada").await.unwrap();
    repository.update_rule(rule.id, 2, &small("c"), "ada").await.unwrap();
    repository.update_rule(first.id, 1, &small("a"), "ada").await.unwrap();
    node.follows(&world, "several changes").await;
    let exempt = ExemptionForm::new(SubjectType::User, "7");
    let exemption = repository.add_exemption(rule.id, &exempt, "ada").await.unwrap();
    node.follows(&world, "an exemption").await;
    assert_eq!(node.loaded.exemptions.len(), 1);
    repository.enable_rule(rule.id, 3, false, "ada").await.unwrap();
    node.follows(&world, "a rule that is disabled").await;
    assert_eq!((node.loaded.rules.len(), node.loaded.exemptions.len()), (1, 0));
    repository.enable_rule(rule.id, 4, true, "ada").await.unwrap();
    node.follows(&world, "a rule that is enabled").await;
    repository.delete_rule(rule.id, 5, "ada").await.unwrap();
    node.follows(&world, "a rule that is deleted").await;
    repository.rollback_rule(rule.id, 6, 2, "ada").await.unwrap();
    node.follows(&world, "a rule that is back").await;
    assert_eq!((node.loaded.rules.len(), node.loaded.exemptions.len()), (2, 1));
    repository.delete_exemption(exemption.id, "ada").await.unwrap();
    node.follows(&world, "an exemption that has ended").await;

    let in_a_minute = Timestamp::from_micros(world.clock_now().as_micros() + 60_000_000);
    let short = repository.put_key(&ban("user:1", Some(in_a_minute)), "ada").await.unwrap();
    repository.put_key(&ban("user:2", None), "ada").await.unwrap();
    node.follows(&world, "two bans").await;
    repository.put_key(&ban("user:1", None), "ada").await.unwrap();
    repository.put_key(&ban("user:1", Some(in_a_minute)), "ada").await.unwrap();
    node.follows(&world, "bans in place of others").await;
    assert!(node.loaded.keys.iter().all(|it| it.id != short.id));
    world.clock.advance(Duration::from_mins(2));
    let last = repository.put_key(&ban("user:3", None), "ada").await.unwrap();
    node.follows(&world, "a ban after one that has ended").await;
    repository.delete_key(last.id, "ada").await.unwrap();
    node.follows(&world, "a ban that was lifted").await;
    assert_eq!(node.loaded.keys.len(), 1);
}

pub(crate) async fn what_is_done_by_hand_is_read_too(world: World) {
    let repository = &world.repository;
    let rules = [small("a"), small("b"), small("c")];
    let mut ids = Vec::new();
    for rule in &rules {
        ids.push(repository.insert_rule(rule, "ada").await.unwrap().id);
    }
    let exempt = ExemptionForm::new(SubjectType::User, "7");
    repository.add_exemption(ids[0], &exempt, "ada").await.unwrap();
    let mut node = Node::new(&world).await;
    let nine = world.set("maxRequests", "9");
    world.execute(&format!("UPDATE rate_limit_rules SET {nine} WHERE name <> 'c'"));
    node.follows(&world, "two rules").await;
    world.execute(
        "UPDATE rate_limit_exemptions SET rule_id = (SELECT id FROM rate_limit_rules WHERE name = 'b')",
    );
    node.follows(&world, "an exemption from another rule").await;
    assert_eq!(node.loaded.exemptions.keys().collect::<Vec<_>>(), [&ids[1]]);
    world.execute("DELETE FROM rate_limit_rules WHERE name = 'b'");
    node.follows(&world, "a rule that is gone with its exemption").await;
    assert_eq!((node.loaded.rules.len(), node.loaded.exemptions.len()), (2, 0));
    let named = world.set("name", "\"d\"");
    world.execute(&format!(
        "BEGIN; UPDATE rate_limit_rules SET rule_uuid = '00000000-0000-4000-8000-000000000001' \
         WHERE name = 'a'; UPDATE rate_limit_rules SET {named} WHERE name = 'c'; COMMIT",
    ));
    node.follows(&world, "another id and another name").await;
}

pub(crate) async fn what_cannot_be_told_is_not_guessed(world: World) {
    let repository = &world.repository;
    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    let mut node = Node::new(&world).await;
    assert!(
        !repository.update(&mut DatabaseContents::default()).await.unwrap(),
        "nothing is known"
    );

    // Back to an older state, and by another way to the number that the node knows, and beyond it.
    world.execute("UPDATE rate_limit_revision SET rules = rules - 1");
    node.is_lost(&world, "a smaller number").await;
    world.execute("DELETE FROM rate_limit_changes");
    repository.update_rule(rule.id, 1, &small("b"), "ada").await.unwrap();
    node.is_lost(&world, "a change after what is forgotten").await;
    repository.update_rule(rule.id, 2, &small("c"), "ada").await.unwrap();
    node.follows(&world, "a change after that").await;
    let mut other = Node { loaded: node.loaded.clone() };
    world.execute(&format!(
        "DELETE FROM rate_limit_changes WHERE revision = (SELECT rules FROM rate_limit_revision); \
         UPDATE rate_limit_revision SET rules = rules - 1; \
         UPDATE rate_limit_rules SET {}",
        world.set("maxRequests", "5")
    ));
    repository.update_rule(rule.id, 3, &small("d"), "ada").await.unwrap();
    other.is_lost(&world, "another history").await;
    node.is_lost(&world, "another history").await;

    // More at once than anybody reads one by one.
    for many in [70, 300] {
        world.execute(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many}) \
             INSERT INTO rate_limit_rules (rule_uuid, spec) \
             SELECT {}, {}('name', 'many-{many}-' || i, 'maxRequests', 1, 'windowSeconds', 60) FROM n",
            world.random_uuid(),
            world.json_object()
        ));
        node.is_lost(&world, "many rules").await;
    }
    assert_eq!(node.loaded.rules.len(), 371);
    repository.update_rule(rule.id, 4, &small("e"), "ada").await.unwrap();
    node.follows(&world, "a change after them").await;

    // One row so often that what else changed last is not all within what is looked at.
    let [two, three] = ["2", "3"].map(|it| world.set("maxRequests", it));
    let one = format!("UPDATE rate_limit_rules SET {two} WHERE name = 'e'; ").repeat(505);
    world
        .execute(&format!("{one} UPDATE rate_limit_rules SET {three} WHERE name LIKE 'many-70-_'"));
    node.is_lost(&world, "a row that changed often").await;

    let odd = world.set("odd", "1");
    world.execute(&format!("UPDATE rate_limit_rules SET {odd} WHERE name = 'e'"));
    node.is_lost(&world, "a row that says no rule").await;
    repository.insert_rule(&small("g"), "ada").await.unwrap();
    node.is_lost(&world, "a change beside a row that says no rule").await;
}

pub(crate) async fn a_revision_that_names_no_row_is_not_passed_over(world: World) {
    let repository = &world.repository;
    let rule = repository.insert_rule(&small("a"), "ada").await.unwrap();
    let mut node = Node::new(&world).await;
    repository.insert_rule(&small("b"), "ada").await.unwrap();
    repository.update_rule(rule.id, 1, &small("c"), "ada").await.unwrap();
    // As a statement leaves it that empties a table.
    world.execute(
        "DELETE FROM rate_limit_changes WHERE revision = (SELECT rules - 1 FROM rate_limit_revision)",
    );
    node.is_lost(&world, "a gap").await;
    assert_eq!(node.loaded.rules.len(), 2);
}

pub(crate) async fn a_thousand_revisions_are_remembered(world: World) {
    let repository = &world.repository;
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
    world.execute(&count(5));
    world.execute("UPDATE rate_limit_revision SET rules = rules + 996");
    repository.update_rule(rule.id, 5, &small("a"), "ada").await.unwrap();
    world.execute(&count(4));
}
