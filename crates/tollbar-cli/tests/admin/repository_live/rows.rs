//! Rules, bans and boosts that somebody writes to the database of a running daemon.

use std::fs;

use tollbar::Timestamp;
use tollbar_admin::database::{KeyEffect, KeyRecord};
use tollbar_rules::admin::{ExemptionForm, SubjectType};

use super::{daily, limit, open, passed, run, serve, until};
use crate::common::{Scratch, status};

#[test]
fn rules_of_the_file_and_of_the_database_hold_together_and_the_file_goes_first() {
    let scratch = Scratch::new("live-both");
    let database = scratch.path("rules.sqlite");
    let file = "rules: [{ name: a, match: { user: a }, limit: 2/day }]";
    let rules = scratch.file("rules.yaml", file);
    let mut daemon = serve(&scratch, "n", &database, &["--rules", &rules]);
    assert_eq!((limit(&daemon, "a"), limit(&daemon, "b")), (Some(2), None));
    run(async {
        let repository = open(&database).await;
        repository.insert_rule(&daily("a", 77), "ada").await.unwrap();
        repository.insert_rule(&daily("b", 3), "ada").await.unwrap();
    });
    let told = daemon.logged("a row of the database is not enforced");
    assert!(told.contains("name=a") && told.contains("the file has a rule of that name"), "{told}");
    until("the database's rule", || limit(&daemon, "b") == Some(3));
    assert_eq!(limit(&daemon, "a"), Some(2));
    // Whichever of the two changes, the other stays.
    fs::rename(scratch.file("new.yaml", &file.replace("2/day", "1/day")), &rules).unwrap();
    until("the file's new rule", || limit(&daemon, "a") == Some(1));
    assert_eq!(limit(&daemon, "b"), Some(3));
    fs::rename(scratch.file("new.yaml", "rules: []"), &rules).unwrap();
    until("the row that was hidden by the file", || limit(&daemon, "a") == Some(77));
}

#[test]
fn a_new_name_keeps_the_counters() {
    let scratch = Scratch::new("live-rename");
    let database = scratch.path("rules.sqlite");
    let daemon = serve(&scratch, "n", &database, &[]);
    run(async {
        let repository = open(&database).await;
        let rule = repository.insert_rule(&daily("before", 5), "ada").await.unwrap();
        until("the rule", || limit(&daemon, "7") == Some(5));
        assert_eq!(passed(&daemon, "7", 3), 3);
        repository.update_rule(rule.id, 1, &daily("after", 6), "ada").await.unwrap();
        until("its new name and limit", || limit(&daemon, "7") == Some(6));
        assert_eq!(passed(&daemon, "7", 9), 3);
        repository.enable_rule(rule.id, 2, false, "ada").await.unwrap();
        until("nothing", || limit(&daemon, "7").is_none());
        repository.enable_rule(rule.id, 3, true, "ada").await.unwrap();
        until("the rule again", || limit(&daemon, "7") == Some(6));
        assert_eq!(passed(&daemon, "7", 3), 0);
    });
}

#[test]
fn rows_written_by_hand_are_enforced_if_they_can_be_and_told_of_if_not() {
    let scratch = Scratch::new("live-by-hand");
    let database = scratch.path("rules.sqlite");
    let mut daemon = serve(&scratch, "n", &database, &[]);
    let by_hand = |statement: &str| {
        rusqlite::Connection::open(&database).unwrap().execute_batch(statement).unwrap();
    };
    by_hand(
        "INSERT INTO rate_limit_rules (rule_uuid, spec) VALUES \
         ('00000000-0000-4000-8000-000000000001', \
          '{\"name\":\"good\",\"maxRequests\":4,\"windowSeconds\":86400}'), \
         ('00000000-0000-4000-8000-000000000002', '{\"name\":\"no limit at all\"}'), \
         ('nonsense', '{\"name\":\"no_id\",\"maxRequests\":1,\"windowSeconds\":1}'); \
         INSERT INTO rate_limit_rules (rule_uuid, spec, version) VALUES \
         ('00000000-0000-4000-8000-000000000003', '{\"name\":\"odd\",\"limit\":\"1/s\",\"spec\":[]}', -7);",
    );
    let told: Vec<String> =
        (0..3).map(|_| daemon.logged("a row of the database is not enforced")).collect();
    for part in ["limit", "rule_uuid", "spec"] {
        assert!(told.iter().any(|line| line.contains(part)), "{part}: {told:?}");
    }
    until("the good row", || limit(&daemon, "7") == Some(4));
    by_hand(
        "UPDATE rate_limit_rules SET spec = json_set(spec, '$.maxRequests', 9) WHERE name = 'good'",
    );
    until("the changed row", || limit(&daemon, "7") == Some(9));
    by_hand("DELETE FROM rate_limit_rules WHERE name = 'good'");
    until("the deleted row", || limit(&daemon, "7").is_none());
}

#[test]
fn a_ban_denies_a_boost_multiplies_and_an_exemption_lets_pass() {
    let scratch = Scratch::new("live-keys");
    let database = scratch.path("rules.sqlite");
    let daemon = serve(&scratch, "n", &database, &[]);
    run(async {
        let repository = open(&database).await;
        let rule = repository.insert_rule(&daily("a", 4), "ada").await.unwrap();
        let record = |subject: &str, effect, rule: Option<String>| KeyRecord {
            rule,
            subject: subject.to_owned(),
            effect,
            reason: Some("because".to_owned()),
            expires_at: Some(Timestamp::from_micros(4_000_000_000_000_000)),
        };
        let boost = KeyEffect::Boost { factor_percent: 250 };
        let bans = [
            repository.put_key(&record("user:bad", KeyEffect::Ban, None), "ada").await.unwrap(),
            repository
                .put_key(&record("user:worse", KeyEffect::Ban, Some(rule.id.to_string())), "ada")
                .await
                .unwrap(),
        ];
        repository.put_key(&record("user:good", boost, None), "ada").await.unwrap();
        let exempt = ExemptionForm::new(SubjectType::User, "free");
        repository.add_exemption(rule.id, &exempt, "ada").await.unwrap();
        until("the rule", || limit(&daemon, "7") == Some(4));
        until("the boost", || limit(&daemon, "good") == Some(10));
        until("the exemption", || limit(&daemon, "free").is_none());
        for user in ["bad", "worse"] {
            until("the ban", || daemon.check(user) == 429);
            let body = format!(r#"{{"attributes":{{"user":"{user}"}}}}"#);
            let response = daemon.post("/v1/check", &body);
            assert!(response.contains(r#""error":"banned""#), "{response}");
            assert!(response.to_lowercase().contains("\r\nretry-after: "), "{response}");
            assert!(!response.contains("because"), "why is not for who is banned: {response}");
            let explained = daemon.post("/v1/explain", &body);
            assert!(
                explained.contains("is banned") && explained.contains("because"),
                "{explained}"
            );
        }
        assert_eq!((passed(&daemon, "good", 12), passed(&daemon, "free", 9)), (10, 9));
        for ban in bans {
            repository.delete_key(ban.id, "ada").await.unwrap();
        }
        until("the end of the ban", || daemon.check("bad") == 200);
        assert_eq!(status(&daemon.post("/v1/check", r#"{"attributes":{"user":"worse"}}"#)), 200);
    });
}

#[test]
fn ten_thousand_rules_are_in_force_at_the_start_and_after_a_change() {
    let scratch = Scratch::new("live-many");
    let database = scratch.path("rules.sqlite");
    run(async { open(&database).await });
    let by_hand = |statement: &str| {
        rusqlite::Connection::open(&database).unwrap().execute_batch(statement).unwrap();
    };
    by_hand(
        "WITH RECURSIVE n(at) AS (SELECT 1 UNION ALL SELECT at + 1 FROM n WHERE at < 10000) \
         INSERT INTO rate_limit_rules (rule_uuid, spec) \
         SELECT printf('00000000-0000-4000-8000-%012d', at), json_object('name', 'rule' || at, \
         'tenantId', 't' || at, 'maxRequests', at, 'windowSeconds', 60) FROM n",
    );
    let daemon = serve(&scratch, "n", &database, &[]);
    let limit = |at: u64| {
        let body = format!(r#"{{"attributes":{{"user":"7","tenant":"t{at}"}}}}"#);
        let response = daemon.post("/v1/peek", &body);
        let body = response.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str::<serde_json::Value>(body).unwrap()["limit"].as_u64()
    };
    assert_eq!([1, 5_000, 10_000].map(limit), [Some(1), Some(5_000), Some(10_000)]);
    by_hand(
        "UPDATE rate_limit_rules SET spec = json_set(spec, '$.maxRequests', 77) WHERE name = 'rule5000'",
    );
    let took = until("the change among many", || limit(5_000) == Some(77));
    println!("a change among 10,000 rules is in force after {took:?}");
    assert_eq!([1, 10_000].map(limit), [Some(1), Some(10_000)]);
}
