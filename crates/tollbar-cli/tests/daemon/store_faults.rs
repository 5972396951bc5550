//! A real Redis that answers and does not do what limits need: somebody notices, whatever is wrong with it.

use std::process::Output;

use crate::common::{Daemon, Scratch, serve, status};
use crate::metrics::scrape::Scrape;
use tollbar_testkit::redis::cluster::RedisCluster;
use tollbar_testkit::redis::process::RedisProcess;

/// Some of the flags for a store whose machine may be slow.
fn store_args(url: &str) -> Vec<String> {
    let args = ["--store", url, "--store-raw-keys", "--store-deadline", "5s"];
    args.map(str::to_owned).to_vec()
}

fn start_logged(args: &[String]) -> Daemon {
    Daemon::start_logged(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn check_config(args: &[String]) -> Output {
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--check-config"]).collect();
    serve(&args).output().unwrap()
}

/// Asks for the health until its status is this word.
fn wait(daemon: &Daemon, word: &str) -> String {
    let wanted = format!(r#""status":"{word}""#);
    let mut healths = (0..100_000).map(|_| daemon.get_with("/healthz", ""));
    healths.find(|health| health.contains(&wanted)).unwrap_or_else(|| panic!("never {wanted}"))
}

fn metric(daemon: &Daemon, series: &str) -> u64 {
    Scrape::fetch(daemon, "").get(series)
}

/// Tells a daemon to stop, which it does.
fn end(daemon: Daemon) {
    assert_eq!(daemon.stop(), 0);
}

/// `maxmemory` was reached, 100 of 100 requests passed a limit of 3, and nothing showed it.
#[test]
fn a_full_redis_is_noticed_without_traffic_and_so_is_its_end() {
    let redis = RedisProcess::start();
    let mut daemon = start_logged(&store_args(&redis.url()));
    wait(&daemon, "ok");
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let health = wait(&daemon, "degraded");
    assert_eq!(status(&health), 200, "{health}");
    assert_eq!(metric(&daemon, "tollbar_store_up"), 0);
    assert_eq!(metric(&daemon, r#"tollbar_store_faults{kind="refused"}"#), 1);
    assert!(metric(&daemon, r#"tollbar_store_refusals_total{reason="out_of_memory"}"#) >= 1);
    let line = daemon.logged("OOM command not allowed");
    assert!(line.contains(" WARN ") && line.contains("raise `maxmemory`"), "{line}");
    let answer = daemon.post("/v1/check", r#"{"attributes":{"user":"7"}}"#);
    assert!(answer.contains(r#""degraded":true"#), "{answer}");
    redis.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    wait(&daemon, "ok");
    assert_eq!(metric(&daemon, "tollbar_store_up"), 1);
    assert_eq!(metric(&daemon, r#"tollbar_store_faults{kind="refused"}"#), 0);
    daemon.logged("the store answers again");
    end(daemon);
}

/// The log has the line that grants what is missing, with the user and the prefix that are in use.
#[test]
fn a_missing_permission_is_logged_with_the_line_that_grants_it() {
    let redis = RedisProcess::start();
    redis.ask(&[
        "ACL",
        "SETUSER",
        "limiter",
        "on",
        ">pw",
        "+evalsha",
        "+eval",
        "+info",
        "~tollbar1:shop:*",
    ]);
    let url = redis.url().replace("redis://", "redis://limiter:pw@");
    let args = [store_args(&url), vec!["--store-namespace".to_owned(), "shop".to_owned()]].concat();
    let output = check_config(&args);
    let told = String::from_utf8(output.stderr).unwrap();
    let line = "ACL SETUSER limiter +evalsha +eval +get +set +del +time +info ~tollbar1:shop:*";
    assert!(told.contains(line) && !told.contains("pw"), "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");

    let mut daemon = start_logged(&args);
    wait(&daemon, "degraded");
    let logged = daemon.logged("can't run this command");
    assert!(logged.contains(" WARN ") && logged.contains(line), "{logged}");
    redis.ask(&line.split(' ').collect::<Vec<_>>());
    wait(&daemon, "ok");
    daemon.logged("the store answers again");
    end(daemon);
    let output = check_config(&args);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_check_of_the_configuration_says_what_a_store_would_do() {
    let check = |url: &str| {
        let output = check_config(&store_args(url));
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let mut redis = RedisProcess::start();
    assert_eq!(check(&redis.url()), (Some(0), String::new()));
    redis.ask(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (code, told) = check(&redis.url());
    assert!(code == Some(0) && told.contains("may evict counters"), "{code:?}: {told}");
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let (code, told) = check(&redis.url());
    assert!(code == Some(1) && told.contains("READONLY"), "{code:?}: {told}");
    redis.kill();
    let (code, told) = check(&redis.url());
    assert!(code == Some(0) && told.contains("cannot be reached"), "{code:?}: {told}");
}

/// With one of three masters gone a third of all users had no limit, and the store was up.
#[test]
fn a_cluster_without_one_of_its_masters_is_degraded() {
    let mut cluster = RedisCluster::start();
    cluster.ask_all(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    cluster.ask_all(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    let hosts = cluster.urls().join(",").replace("redis://", "");
    let mut daemon = start_logged(&store_args(&format!("redis+cluster://{hosts}")));
    wait(&daemon, "ok");
    assert_eq!(metric(&daemon, "tollbar_store_up"), 1);
    let port = cluster.kill_master_of(0);
    wait(&daemon, "degraded");
    assert_eq!(metric(&daemon, "tollbar_store_up"), 0);
    assert_eq!(metric(&daemon, r#"tollbar_store_faults{kind="unreachable"}"#), 1);
    let line = daemon.logged(&format!("127.0.0.1:{port} with slots 0-"));
    assert!(line.contains(" WARN "), "{line}");
    cluster.restart(port);
    wait(&daemon, "ok");
    assert_eq!(metric(&daemon, "tollbar_store_up"), 1);
    daemon.logged("the store answers again");
    end(daemon);
}

/// Rules that count by different keys have their counters in different slots. Such requests were let through as degraded
/// as soon as they had an id, or were reservations.
#[test]
fn a_cluster_counts_ids_and_reservations_under_rules_of_different_keys() {
    const RULES: &str = "
rules:
  - { name: user, match: { path: / }, per: user, limit: 10/day }
  - { name: tenant, match: { path: / }, per: tenant, limit: 20/day }
  - { name: all, match: { path: / }, per: [], limit: 30/day }
";
    let scratch = Scratch::new("redis-cluster-ids");
    let cluster = RedisCluster::start();
    let hosts = cluster.urls().join(",").replace("redis://", "");
    let rules = ["--rules".to_owned(), scratch.file("rules.yaml", RULES)];
    let args = [store_args(&format!("redis+cluster://{hosts}")), rules.to_vec()].concat();
    let daemon = start_logged(&args);
    wait(&daemon, "ok");
    let post = |path: &str, more: &str| {
        let request = r#""path":"/","attributes":{"user":"7","tenant":"acme"}"#;
        let response = daemon.post(path, &format!("{{{request}{more}}}"));
        assert!(!response.contains(r#""degraded":true"#), "{response}");
        response
    };
    let remaining = |response: &str| {
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        body["remaining"].as_u64().unwrap_or_else(|| panic!("{body}"))
    };
    // Sent again, it is charged once.
    for _ in 0..2 {
        let checked = post("/v1/check", r#","cost":3,"requestId":"r1""#);
        assert_eq!((status(&checked), remaining(&checked)), (200, 7), "{checked}");
    }
    assert_eq!(remaining(&post("/v1/check", r#","cost":1"#)), 6);
    let reserved = post("/v1/reserve", r#","cost":5,"requestId":"r2""#);
    assert_eq!((status(&reserved), remaining(&reserved)), (200, 1), "{reserved}");
    let (_, receipt) = reserved.split_once(r#""receipt":""#).unwrap();
    let (receipt, _) = receipt.split_once('"').unwrap();
    let commit = format!(r#"{{"receipt":"{receipt}","cost":2}}"#);
    assert_eq!(status(&daemon.post("/v1/commit", &commit)), 200);
    assert_eq!(status(&daemon.post("/v1/commit", &commit)), 409);
    // 3 + 1 + 2 of 10: what the reservation did not spend came back, in every slot.
    assert_eq!(remaining(&post("/v1/check", r#","cost":1,"requestId":"r3""#)), 3);
    assert_eq!(status(&post("/v1/check", r#","cost":4,"requestId":"r4""#)), 429);
    assert_eq!(metric(&daemon, "tollbar_store_up"), 1);
    wait(&daemon, "ok");
    end(daemon);
}

/// The flood of another program freed 50 of 50 keys that had used up their limits.
#[test]
fn a_redis_that_evicts_is_degraded_and_its_evictions_are_counted() {
    let redis =
        RedisProcess::start_with(&["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"]);
    let mut daemon = start_logged(&store_args(&redis.url()));
    wait(&daemon, "degraded");
    assert_eq!(metric(&daemon, "tollbar_store_up"), 1, "checks are decided");
    assert_eq!(metric(&daemon, r#"tollbar_store_faults{kind="evicts"}"#), 1);
    let line = daemon.logged("maxmemory-policy allkeys-lru");
    assert!(line.contains(" WARN ") && line.contains("maxmemory-policy noeviction"), "{line}");
    let filler = "x".repeat(100_000);
    for number in 0..60 {
        redis.ask(&["SET", &format!("other{number}"), &filler]);
    }
    let mut scrapes = (0..100_000).map(|_| metric(&daemon, "tollbar_store_evicted_keys_total"));
    assert!(scrapes.any(|evicted| evicted > 0), "nothing was evicted");
    drop(scrapes);
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.ask(&["FLUSHALL"]);
    wait(&daemon, "ok");
    end(daemon);
}

#[test]
fn daemons_with_different_secrets_in_one_namespace_are_told() {
    let scratch = Scratch::new("redis-secrets");
    let redis = RedisProcess::start();
    let args = |secret: &str| {
        let file = scratch.file(secret, &secret.repeat(32));
        let args = ["--store", &redis.url(), "--store-secret-file", &file];
        [&args[..], &["--store-deadline", "5s"]].concat().iter().map(ToString::to_string).collect()
    };
    let args: [Vec<String>; 2] = [args("0f"), args("f0")];
    let first = start_logged(&args[0]);
    wait(&first, "ok");
    let mut second = start_logged(&args[1]);
    wait(&second, "degraded");
    let line = second.logged("under another secret");
    assert!(line.contains(" WARN "), "{line}");
    assert_eq!(metric(&second, r#"tollbar_store_faults{kind="other_secret"}"#), 1);
    assert_eq!(metric(&second, "tollbar_store_up"), 1);
    wait(&first, "ok");
    end(second);
    end(first);
}

/// Each namespace admitted the whole limit, and the rules of both came from one database.
#[test]
fn daemons_of_one_database_in_different_namespaces_are_told() {
    let scratch = Scratch::new("redis-namespaces");
    let redis = RedisProcess::start();
    let database = scratch.path("rules.sqlite");
    let start = |node: &str, namespace: &str| {
        let args = ["--database", &database, "--node", node, "--store-namespace", namespace];
        let args = [store_args(&redis.url()), args.map(str::to_owned).to_vec()].concat();
        start_logged(&args)
    };
    let first = start("one", "shop");
    // It reports itself within a second, and the other finds it there.
    let rows = || {
        rusqlite::Connection::open(&database).and_then(|sqlite| {
            sqlite
                .query_row("SELECT count(*) FROM rate_limit_nodes", [], |row| row.get::<_, i64>(0))
        })
    };
    assert!((0..100_000).any(|_| rows() == Ok(1)), "it never reports");
    let mut second = start("two", "bar");
    let line = second.logged("two counts in redis:bar, and one in redis:shop");
    assert!(line.contains(" WARN "), "{line}");
    let health = second.get_with("/healthz", "");
    assert!(health.contains(r#""nodes":"degraded""#), "{health}");
    end(second);
    end(first);
}

/// A rolling upgrade. A node of a version before loans takes the counter of a loaned key for corrupt; it follows the
/// database and reports there, and does not say that it knows loans.
#[test]
fn while_a_node_of_an_older_version_is_there_no_counter_is_lent_from() {
    let (scratch, redis) = (Scratch::new("loans-upgrade"), RedisProcess::start());
    let rules = scratch.file(
        "rules.yaml",
        "rules: [{ name: lent, per: [user], limit: { limit: 200/s, burst: 200000 }, accuracy: conservative }]",
    );
    let database = scratch.path("rules.sqlite");
    let start = |node: &str| {
        let own = ["--rules", &rules, "--database", &database, "--node", node];
        start_logged(&[store_args(&redis.url()), own.map(str::to_owned).to_vec()].concat())
    };
    let sqlite = |statement: &str| {
        // The daemon writes as well.
        (0..1_000)
            .find_map(|_| {
                rusqlite::Connection::open(&database)
                    .and_then(|sqlite| sqlite.execute(statement, []))
                    .ok()
            })
            .expect("the database can be written")
    };
    let is_lent = |daemon: &Daemon, user: &str| {
        let body = format!(r#"{{"attributes":{{"user":"{user}"}}}}"#);
        let response = daemon.post("/v1/check", &body);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        response.contains(r#""source":"loan""#)
    };
    // Names of counters are not text, so the server counts their bytes.
    let state_bytes = || {
        let sizes = "local sizes = {} \
                     for at, key in ipairs(redis.call('KEYS', 'tollbar1{*')) do \
                     sizes[at] = redis.call('STRLEN', key) end return sizes";
        let sizes = redis.ask(&["EVAL", sizes, "0"]);
        sizes.lines().filter_map(|size| size.trim().parse::<u64>().ok()).collect::<Vec<_>>()
    };
    // The first of the new version makes the table what it is. There is an older node that reported just now.
    end(start("new"));
    sqlite("DELETE FROM rate_limit_nodes");
    sqlite(
        "INSERT INTO rate_limit_nodes (node, revision, seen_at) \
         VALUES ('old', 0, CAST(unixepoch('subsec') * 1000000 AS INTEGER))",
    );
    let upgraded = start("new");
    assert!(!(0..2_000).any(|_| is_lent(&upgraded, "hot")), "it lends beside an older version");
    assert_eq!(metric(&upgraded, "tollbar_lending"), 0);
    // What an older version reads: a tag, when the debt is paid, and a part of a microsecond.
    assert_eq!(state_bytes(), [12]);
    // The last node is upgraded.
    sqlite("DELETE FROM rate_limit_nodes WHERE node = 'old'");
    assert!((0..1_000_000).any(|_| is_lent(&upgraded, "hot")), "it never lends");
    assert_eq!(metric(&upgraded, "tollbar_lending"), 1);
    assert_eq!(state_bytes(), [19], "now it has a cut");
    end(upgraded);
}
