//! Usage, from the answers of the real daemon to its database: all of it, once.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::common::postgres::Postgres;
use crate::common::{Daemon, Scratch, serve, status};
use rusqlite::Connection;
use tollbar_admin::database::{PAGE_ROWS_MAX, PageRequest, Repository, UsageFilter};

const RULES: &str = "rules:
- { name: per_client, limit: 20/day }
- { name: tokens, match: { path: /tokens }, limit: 100/day }";

fn daemon(scratch: &Scratch, flags: &[&str]) -> Daemon {
    let (rules, database) = (scratch.file("rules.yaml", RULES), scratch.path("rules.sqlite"));
    let own = ["--rules", &rules, "--database", &database, "--admin", "127.0.0.1:0"];
    Daemon::spawn(serve(&[&own[..], flags].concat()))
}

fn database(scratch: &Scratch) -> Connection {
    Connection::open(scratch.path("rules.sqlite")).unwrap()
}

/// What was admitted and denied, all in all.
fn written(scratch: &Scratch) -> (i64, i64) {
    let sums =
        "SELECT coalesce(sum(admitted_cost), 0), coalesce(sum(denied_cost), 0) FROM usage_daily";
    database(scratch).query_row(sums, (), |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

/// `tenant subject rule +admitted -denied`, in order.
fn rows(scratch: &Scratch) -> Vec<String> {
    let database = database(scratch);
    let all = "SELECT tenant_id, subject, rule, admitted_cost, denied_cost FROM usage_daily ORDER BY 1, 2, 3";
    let mut statement = database.prepare(all).unwrap();
    let rows = statement.query_map((), |row| {
        let text = |at| row.get::<_, String>(at);
        let count = |at| row.get::<_, i64>(at);
        Ok(format!("{} {} {} +{} -{}", text(0)?, text(1)?, text(2)?, count(3)?, count(4)?))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

/// What was admitted all in all, of any database.
fn admitted(url: &str) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let repository = Repository::open(&url.parse().unwrap()).await.unwrap();
        let page = PageRequest::first(PAGE_ROWS_MAX);
        let page = repository.usage(&UsageFilter::default(), &page).await.unwrap();
        assert!(page.next.is_none());
        page.rows.iter().map(|row| row.admitted_cost).sum()
    })
}

/// A server that says yes to everything.
fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut buffer = [0; 4_096];
            while stream.read(&mut buffer).is_ok_and(|count| count > 0) {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            }
        }
    });
    url
}

#[test]
fn whatever_the_wire_usage_is_counted() {
    let scratch = Scratch::new("metering-wires");
    let upstream = upstream();
    let daemon = daemon(&scratch, &["--upstream", &upstream, "--proxy", "127.0.0.1:0"]);
    let ask = |path: &str, body: &str| status(&daemon.post(path, body));
    let user = r#""attributes":{"user":"http","tenant":"acme"}"#;
    assert_eq!(ask("/v1/check", &format!("{{{user},\"cost\":3}}")), 200);
    assert_eq!(ask("/v1/check", &format!("{{{user},\"rule\":\"tokens\"}}")), 200);
    assert_eq!(ask("/v1/check", r#"{"rule":"per_client","subject":"user:small","cost":7}"#), 200);
    assert_eq!(ask("/v1/check", r#"{"rule":"per_client","subject":"user:small","cost":15}"#), 429);
    let batch = r#"{"requests":[{"attributes":{"user":"batch"}},{"attributes":{"user":"batch"}}]}"#;
    assert_eq!(ask("/v1/check/batch", batch), 200);
    assert_eq!(
        ask("/v1/reserve", r#"{"path":"/tokens","attributes":{"user":"held"},"cost":5}"#),
        200
    );
    // Nothing is charged here, and nothing counted.
    assert_eq!(ask("/v1/peek", &format!("{{{user}}}")), 200);
    assert_eq!(ask("/v1/explain", &format!("{{{user}}}")), 200);
    let proxied = daemon.get_with(
        "/v1/forward-auth/nginx",
        "x-real-ip: 10.0.0.1\r\nx-original-method: GET\r\nx-original-uri: /\r\n",
    );
    assert_eq!(status(&proxied), 200, "{proxied}");
    let mut resp = TcpStream::connect(daemon.address("resp")).unwrap();
    resp.write_all(b"TB.CHECK GET / WITH user resp\r\nTB.CHECK GET / WITH user resp\r\nQUIT\r\n")
        .unwrap();
    let mut told = String::new();
    resp.read_to_string(&mut told).unwrap();
    let mut proxy = TcpStream::connect(daemon.address("proxy")).unwrap();
    proxy.write_all(b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut passed = String::new();
    proxy.read_to_string(&mut passed).unwrap();
    assert_eq!(status(&passed), 200);
    assert_eq!(daemon.stop(), 0);
    let expected = [
        " ip:10.0.0.1 per_client +1 -0",
        " ip:127.0.0.1 per_client +1 -0",
        " user:batch per_client +2 -0",
        " user:held per_client +5 -0",
        " user:held tokens +5 -0",
        " user:resp per_client +2 -0",
        " user:small per_client +7 -15",
        "acme user:http per_client +3 -0",
        "acme user:http tokens +1 -0",
    ];
    assert_eq!(rows(&scratch), expected, "{told}");
}

#[test]
fn a_killed_daemon_loses_no_more_than_since_its_last_write_and_the_next_doubles_nothing() {
    let scratch = Scratch::new("metering-killed");
    let flags = ["--usage-flush", "10ms", "--node", "edge-1"];
    let mut asked = 0;
    let mut sure = 0;
    for round in 0..4 {
        let mut daemon = daemon(&scratch, &flags);
        let mut ask = |user: u32| {
            assert_eq!(daemon.check(&format!("{round}-{user}")), 200);
            asked += 1;
        };
        (0..10).for_each(&mut ask);
        // It has been written once it is there; what was asked before an earlier write is in it.
        while written(&scratch).0 < sure + 10 {
            thread::yield_now();
        }
        sure = written(&scratch).0;
        (10..15).for_each(&mut ask);
        daemon.process.kill().unwrap();
        daemon.process.wait().unwrap();
        let left = written(&scratch).0;
        assert!((sure..=sure + 5).contains(&left), "{sure} <= {left} <= {sure} + 5");
        sure = left;
    }
    // And one that ends by itself writes all.
    let last = daemon(&scratch, &flags);
    assert_eq!((0..7).map(|user| last.check(&format!("last-{user}"))).max(), Some(200));
    assert_eq!(last.stop(), 0);
    assert_eq!(written(&scratch).0, sure + 7);
    assert!(sure <= asked);
}

#[test]
fn clients_beyond_the_entries_are_counted_as_other() {
    for (flags, has_other) in [(&["--usage-entries", "16"][..], true), (&[], false)] {
        let scratch = Scratch::new("metering-entries");
        let daemon = daemon(&scratch, flags);
        assert_eq!((0..40).map(|user| daemon.check(&user.to_string())).max(), Some(200));
        assert_eq!(daemon.stop(), 0);
        let rows = rows(&scratch);
        assert_eq!(rows.iter().any(|row| row.contains("(other)")), has_other, "{rows:?}");
        assert_eq!(written(&scratch).0, 40);
    }
}

#[test]
fn while_the_database_is_away_usage_is_kept_and_written_later_once() {
    let scratch = Scratch::new("metering-away");
    let (rules, file) = (scratch.file("rules.yaml", RULES), scratch.path("rules.sqlite"));
    let own = ["--rules", &rules, "--database", &file, "--admin", "127.0.0.1:0"];
    let mut daemon = Daemon::start_logged(&[&own[..], &["--usage-flush", "10ms"]].concat());
    assert_eq!(daemon.check("7"), 200);
    let lock = database(&scratch);
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!([(); 3].map(|()| daemon.check("7")), [200; 3]);
    daemon.logged("cannot write usage: it is kept in memory");
    let health = daemon.get_with("/healthz", "");
    assert!(health.contains(r#"{"status":"degraded""#), "{health}");
    assert!(health.contains(r#""usage":"degraded""#), "{health}");
    assert!(health.contains(r#""clock":"ok""#), "{health}");
    let metrics = daemon.get_with("/metrics", "");
    assert!(metrics.contains("tollbar_part_up{part=\"usage\"} 0\n"), "{metrics}");
    assert!(metrics.contains("\ntollbar_clock_difference_seconds "), "{metrics}");
    assert_eq!([(); 2].map(|()| daemon.check("8")), [200; 2]);
    lock.execute_batch("ROLLBACK").unwrap();
    daemon.logged("usage is written again");
    assert_eq!(daemon.check("9"), 200);
    assert_eq!(daemon.stop(), 0);
    assert_eq!(written(&scratch), (7, 0));
}

#[test]
fn two_nodes_over_one_postgresql_lose_nothing_when_it_crashes_and_comes_back() {
    let scratch = Scratch::new("metering-postgres");
    let mut postgres = Postgres::start();
    let url = postgres.database();
    let rules = scratch.file("rules.yaml", RULES);
    let start = |node: &str| {
        let cache = scratch.path(node);
        let own = ["--rules", &rules, "--database", &url, "--admin", "127.0.0.1:0", "--node", node];
        let more = ["--rules-cache", &cache, "--usage-flush", "10ms"];
        Daemon::start_logged(&[&own[..], &more].concat())
    };
    let mut nodes = [start("edge-1"), start("edge-2")];
    let mut asked = 0;
    let mut ask = |nodes: &[Daemon], user: &str| {
        for node in nodes {
            assert_eq!(node.check(user), 200);
            asked += 1;
        }
    };
    for round in 0..3 {
        // A batch may be on its way at this very moment, or done and not answered.
        (0..5).for_each(|_| ask(&nodes, &format!("{round}-before")));
        postgres.kill();
        (0..5).for_each(|_| ask(&nodes, &format!("{round}-away")));
        for node in &mut nodes {
            node.logged("cannot write usage: it is kept in memory");
        }
        postgres.restart();
        for node in &mut nodes {
            node.logged("usage is written again");
        }
    }
    ask(&nodes, "at the end");
    for mut node in nodes {
        node.signal("TERM");
        // Its log is a pipe, which must not be full.
        node.rest_of_log();
        assert_eq!(node.wait(), 0);
    }
    assert_eq!(admitted(&url), asked);
}

#[test]
fn without_a_database_nothing_is_counted_and_no_file_is_made() {
    let scratch = Scratch::new("metering-off");
    let rules = scratch.file("rules.yaml", RULES);
    let daemon = Daemon::start(&["--rules", &rules]);
    assert_eq!(daemon.check("7"), 200);
    assert_eq!(daemon.stop(), 0);
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1);
}
