//! How a node keeps up: by what has changed, and by everything now and then.

use std::path::PathBuf;

use serde_json::json;
use tollbar::ManualClock;
use tollbar_daemon::health::Health;
use tollbar_rules::admin::from_json;
use tollbar_rules::{AsyncEngine, Engine, Rule, RuleSet};

use super::*;

/// A node over a file of its own.
struct TestNode {
    directory: PathBuf,
    clock: ManualClock,
    repository: Repository,
    engine: Arc<AsyncEngine>,
    live: Arc<LiveRules>,
    follow: Follower,
}

impl TestNode {
    async fn new(name: &str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("tollbar-follow-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let place = directory.join("rules.sqlite").display().to_string().parse().unwrap();
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        let repository = Repository::open_with(&place, Arc::new(clock.clone())).await.unwrap();
        repository.insert_rule(&rule("a", 1), "ada").await.unwrap();
        let engine = Arc::from(Engine::new(RuleSet::empty()));
        let live = Arc::new(LiveRules::new(Arc::clone(&engine)));
        let node = NodeStore { name: "n".to_owned(), store: "redis:shop".to_owned() };
        let follow = Follower::start(Arc::clone(&live), repository.clone(), None, node);
        let follow = follow.await.unwrap();
        Self { directory, clock, repository, engine, live, follow }
    }

    /// What somebody does by hand.
    fn execute(&self, statement: &str) {
        let path = self.directory.join("rules.sqlite");
        rusqlite::Connection::open(path).unwrap().execute_batch(statement).unwrap();
    }

    /// Rules that are enforced, and their limits.
    async fn enforced(&mut self) -> Vec<(String, u64)> {
        self.follow.poll().await.unwrap();
        let rules = self.engine.rules();
        let told = |rule: &Arc<tollbar_rules::Rule>| {
            (rule.name.to_string(), rule.limits[0].policy().limit())
        };
        rules.rules().iter().map(told).collect()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn rule(name: &str, max_requests: u64) -> Rule {
    let rule = json!({ "name": name, "maxRequests": max_requests, "windowSeconds": 60 });
    from_json(rule).unwrap()
}

fn is(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect()
}

#[tokio::test]
async fn changes_are_read_one_by_one_and_rules_that_do_not_fit_make_it_read_all() {
    let mut node = TestNode::new("one-by-one").await;
    assert_eq!(node.enforced().await, is(&[("a", 1)]));
    let b = node.repository.insert_rule(&rule("b", 2), "ada").await.unwrap();
    assert_eq!(node.enforced().await, is(&[("a", 1), ("b", 2)]));
    assert!(node.live.known_revision().is_some());
    // A row that cannot be enforced is told of, and the others are as the database says.
    node.execute(
        "UPDATE rate_limit_rules SET spec = json_remove(spec, '$.maxRequests', '$.windowSeconds') \
         WHERE name = 'b'",
    );
    assert_eq!(node.enforced().await, is(&[("a", 1)]));
    assert_eq!(node.live.status().skipped.len(), 1);
    assert_eq!(node.live.known_revision(), None);
    node.execute(
        "UPDATE rate_limit_rules SET spec = json_set(spec, '$.maxRequests', 5) WHERE name = 'a'",
    );
    assert_eq!(node.enforced().await, is(&[("a", 5)]));
    node.execute(
        "UPDATE rate_limit_rules SET spec = json_set(spec, '$.maxRequests', 7, '$.windowSeconds', 60) \
         WHERE name = 'b'",
    );
    assert_eq!(node.enforced().await, is(&[("a", 5), ("b", 7)]));
    assert_eq!(node.live.status().skipped.len(), 0);
    assert!(node.live.known_revision().is_some());
    node.repository.delete_rule(b.id, 1, "ada").await.unwrap();
    assert_eq!(node.enforced().await, is(&[("a", 5)]));
}

#[tokio::test]
async fn what_went_past_the_list_of_changes_is_found_in_time() {
    let mut node = TestNode::new("in-time").await;
    // As SQLite does where one row takes the place of another by REPLACE: no trigger hears of it.
    node.execute(
        "DROP TRIGGER rate_limit_rules_updated; \
         UPDATE rate_limit_rules SET spec = json_set(spec, '$.maxRequests', 9)",
    );
    assert_eq!(node.enforced().await, is(&[("a", 1)]));
    node.clock.advance(Duration::from_micros(READ_EVERY_US));
    assert_eq!(node.enforced().await, is(&[("a", 9)]));
}

#[tokio::test]
async fn a_database_that_was_restored_is_read_whole() {
    let mut node = TestNode::new("restored").await;
    let backup = node.directory.join("backup").display().to_string();
    node.execute(&format!("VACUUM INTO '{backup}'"));
    node.repository.insert_rule(&rule("b", 2), "ada").await.unwrap();
    assert_eq!(node.enforced().await, is(&[("a", 1), ("b", 2)]));
    // The same as a restore: an older state, from which other changes lead to a later number.
    node.execute(&format!(
        "ATTACH '{backup}' AS old; BEGIN; DELETE FROM rate_limit_rules; DELETE FROM rate_limit_changes; \
         INSERT INTO rate_limit_rules (id, rule_uuid, spec, version, deleted_at, created_at, updated_at) \
         SELECT id, rule_uuid, spec, version, deleted_at, created_at, updated_at \
         FROM old.rate_limit_rules; \
         DELETE FROM rate_limit_changes; INSERT INTO rate_limit_changes SELECT * FROM old.rate_limit_changes; \
         UPDATE rate_limit_revision SET rules = (SELECT rules FROM old.rate_limit_revision); COMMIT"
    ));
    for name in ["c", "d", "e"] {
        node.repository.insert_rule(&rule(name, 3), "ada").await.unwrap();
    }
    assert_eq!(node.enforced().await, is(&[("a", 1), ("c", 3), ("d", 3), ("e", 3)]));
}

/// Two fleets of one database, each with a namespace of its own: each admitted the whole limit.
#[tokio::test]
async fn a_node_that_counts_elsewhere_is_found_within_a_report() {
    let mut node = TestNode::new("apart").await;
    let apart = node.follow.nodes_apart();
    node.enforced().await;
    assert_eq!(apart.health(), Health::Ok);
    node.repository.report_node("other", 1, "redis:bar").await.unwrap();
    node.clock.advance(Duration::from_secs(10));
    node.enforced().await;
    assert_eq!(node.engine.rules().node_count(), 2, "both share the limits");
    let Health::Degraded { why } = apart.health() else { panic!("it is not found") };
    assert!(why.contains("n counts in redis:shop, and other in redis:bar"), "{why}");
    node.repository.report_node("other", 1, "redis:shop").await.unwrap();
    node.clock.advance(Duration::from_secs(10));
    node.enforced().await;
    assert_eq!(apart.health(), Health::Ok);
}
