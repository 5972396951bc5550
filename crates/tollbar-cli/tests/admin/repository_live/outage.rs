//! PostgreSQL goes and comes back; a daemon starts without it.

use std::fs;
use std::time::Duration;

use serde_json::json;
use tollbar::{Clock, SystemClock};

use super::{daily, health, limit, open, passed, readiness, run, serve, until};
use crate::common::postgres::Postgres;
use crate::common::{Scratch, serve as command};

#[test]
fn checks_go_on_without_the_database_and_changes_come_when_it_is_back() {
    let scratch = Scratch::new("live-outage");
    let mut postgres = Postgres::start();
    let database = postgres.database();
    let id =
        run(async { open(&database).await.insert_rule(&daily("a", 5), "ada").await.unwrap().id });
    let mut daemon = serve(&scratch, "n", &database, &[]);
    assert_eq!((limit(&daemon, "7"), passed(&daemon, "7", 3)), (Some(5), 3));
    assert_eq!(readiness(&daemon)["status"], "ok");
    assert_eq!(readiness(&daemon)["parts"]["database"], "ok");

    postgres.kill();
    daemon.logged("the database does not answer: the rules stay as they are");
    // The worst part is the status of all. It was the store's, and a lost database looked well.
    assert_eq!(readiness(&daemon)["status"], "degraded");
    let parts = readiness(&daemon)["parts"].clone();
    assert_eq!((&parts["database"], &parts["store"]), (&json!("degraded"), &json!("ok")));
    assert_eq!(passed(&daemon, "7", 9), 2, "and none of it is forgotten");

    postgres.restart();
    daemon.logged("the database answers again");
    assert_eq!(readiness(&daemon)["parts"]["database"], "ok");
    run(async { open(&database).await.update_rule(id, 1, &daily("a", 6), "ada").await.unwrap() });
    until("the change", || limit(&daemon, "7") == Some(6));
    assert_eq!(passed(&daemon, "7", 9), 1);
}

/// A PostgreSQL that was frozen accepted questions and answered none, and for half a minute `/healthz` said that all
/// was well.
#[test]
fn a_frozen_database_is_found_away_within_five_seconds_and_well_when_it_goes_on() {
    let scratch = Scratch::new("live-frozen");
    let postgres = Postgres::start();
    let database = postgres.database();
    run(async { open(&database).await.insert_rule(&daily("a", 5), "ada").await.unwrap() });
    let daemon = serve(&scratch, "n", &database, &["--usage-flush", "1s"]);
    assert_eq!(health(&daemon)["parts"]["database"], "ok");
    for _ in 0..2 {
        postgres.freeze();
        let took = until("found away", || health(&daemon)["parts"]["database"] == "degraded");
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(limit(&daemon, "7"), Some(5), "checks go on");
        postgres.thaw();
        until("found well", || health(&daemon)["parts"]["database"] == "ok");
    }
    // Nor does it hold up a stop, although usage is being written.
    postgres.freeze();
    assert_eq!(passed(&daemon, "7", 1), 1);
    until("found away", || health(&daemon)["parts"]["database"] == "degraded");
    let clock = SystemClock::new();
    let start = clock.now();
    assert_eq!(daemon.stop(), 0);
    let took = clock.now().since(start);
    assert!(took < Duration::from_secs(15), "{took:?}");
}

#[test]
fn a_daemon_starts_without_its_database_by_the_rules_that_it_said_last() {
    let scratch = Scratch::new("live-start");
    let mut postgres = Postgres::start();
    let database = postgres.database();
    let id =
        run(async { open(&database).await.insert_rule(&daily("a", 5), "ada").await.unwrap().id });
    let daemon = serve(&scratch, "n", &database, &[]);
    assert_eq!(limit(&daemon, "7"), Some(5));
    assert_eq!(daemon.stop(), 0);

    postgres.kill();
    let mut daemon = serve(&scratch, "n", &database, &[]);
    assert_eq!((limit(&daemon, "7"), passed(&daemon, "7", 9)), (Some(5), 5));
    daemon.logged("starting with the rules that it said last");
    assert_eq!(readiness(&daemon)["parts"]["database"], "degraded");

    // What cannot be trusted is not used: torn, newer, of another database, or not there at all.
    let cache = scratch.path("n.cache");
    let whole = fs::read_to_string(&cache).unwrap();
    let other = scratch.path("other.cache");
    let refused = |content: Option<&str>, expected: &str| {
        match content {
            Some(content) => fs::write(&other, content).unwrap(),
            None => drop(fs::remove_file(&other)),
        }
        let args = ["--database", &database, "--rules-cache", &other];
        let output = command(&args).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("no rules from before") && told.contains(expected), "{told}");
    };
    refused(Some(&whole[..whole.len() / 2]), "is torn or was changed");
    refused(Some(&whole.replace("\"a\"", "\"b\"")), "is torn or was changed");
    refused(Some(&whole.replacen(" 1 ", " 9 ", 1)), "has form 9");
    refused(Some("something else\n"), "is no cache of rules");
    refused(None, "nothing was kept");

    postgres.restart();
    daemon.logged("the database answers again");
    run(async { open(&database).await.update_rule(id, 1, &daily("a", 6), "ada").await.unwrap() });
    until("the change", || limit(&daemon, "7") == Some(6));
}

#[test]
fn a_database_that_cannot_be_meant_is_told_without_its_password() {
    let scratch = Scratch::new("live-wrong");
    let missing = scratch.path("nowhere/rules.sqlite");
    let table: [(&str, i32, &str); 4] = [
        ("mysql://u:hunter2@db/x", 2, "this is no database: write"),
        ("postgres://u:hunter2@127.0.0.1:1/x?sslmode=maybe", 1, "sslmode"),
        ("postgres://u:hunter2@127.0.0.1:1/x", 1, "the database does not answer"),
        (&missing, 1, "cannot open"),
    ];
    for (database, code, expected) in table {
        let output = command(&["--database", database, "--rules-cache", "off"]).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.contains(expected), "{told}");
        assert!(!told.contains("hunter2") && !said.contains("hunter2"), "{told}{said}");
    }
}
