//! Tasks of the real daemon that panic or hang: each is started again, and seen.

use std::process::Stdio;

use crate::common::{Daemon, Scratch, serve, status};
use crate::metrics::scrape::Scrape;

/// Every long-lived task of a daemon with a database, a snapshot and an upstream.
const TASKS: [&str; 16] = [
    "listen_http",
    "listen_grpc",
    "listen_resp",
    "listen_admin",
    "listen_proxy",
    "listen_health",
    "grpc_health",
    "dashboard",
    "database_rules",
    "database_notifications",
    "usage",
    "snapshot",
    "store_probe",
    "metrics_history",
    "health_log",
    "reload",
];

/// Starts a daemon in which every task fails once.
fn start_with(fault: &str, scratch: &Scratch) -> Daemon {
    let rules = scratch.file("rules.yaml", "rules: [{ name: a, limit: 1000/min }]");
    let (database, counters) = (scratch.path("rules.sqlite"), scratch.path("counters"));
    let mut command = serve(&["--rules", &rules, "--database", &database, "--usage-flush", "1s"]);
    command.args(["--snapshot", &counters, "--snapshot-every", "1s"]);
    command.args(["--upstream", "http://127.0.0.1:1", "--proxy", "127.0.0.1:0"]);
    command.args(["--health", "127.0.0.1:0"]);
    let faults: Vec<String> = TASKS.iter().map(|task| format!("{fault}:{task}")).collect();
    command.env("TOLLBAR_TEST_TASK_FAULTS", faults.join(",")).stderr(Stdio::piped());
    Daemon::spawn(command)
}

fn restarts(scrape: &Scrape, task: &str) -> u64 {
    scrape.get(&format!("tollbar_task_restarts_total{{task=\"{task}\"}}"))
}

/// Waits until every task was started again and has succeeded since.
fn wait_until_restarted(daemon: &Daemon) -> Scrape {
    let mut scrapes = (0..200_000).map(|_| Scrape::fetch(daemon, ""));
    let is_back = |scrape: &Scrape| {
        TASKS.iter().all(|task| {
            let age = scrape.get(&format!("tollbar_task_age_seconds{{task=\"{task}\"}}"));
            restarts(scrape, task) >= 1 && age <= 2
        })
    };
    scrapes.find(is_back).expect("a task was not started again")
}

/// What the tasks are for still works.
fn check_that_all_works(daemon: &mut Daemon, scratch: &Scratch) {
    let health = daemon.get_with("/healthz", "");
    assert_eq!(status(&health), 200);
    assert!(health.contains(r#"{"status":"degraded""#), "a restart is seen for a minute: {health}");
    assert!(health.contains(r#""tasks":"degraded""#), "{health}");
    assert_eq!(daemon.check("7"), 200);
    scratch.file("rules.yaml", "rules: [{ name: a, limit: 1/day }]");
    assert!((0..100_000).any(|_| daemon.check("9") == 429), "changed rules are put in force");
    std::fs::remove_file(scratch.path("counters")).unwrap();
    while !std::fs::exists(scratch.path("counters")).unwrap() {
        assert_eq!(status(&daemon.get_with("/healthz", "")), 200);
    }
    daemon.logged("a task of the daemon fails, hangs or had to be started again");
}

#[test]
fn every_task_that_panics_is_started_again_counted_and_seen() {
    let scratch = Scratch::new("task-panics");
    let mut daemon = start_with("panic", &scratch);
    let line = daemon.logged("panic: a fault on purpose");
    assert!(line.contains(" ERROR ") && line.contains("origin=\"task\""), "{line}");
    let scrape = wait_until_restarted(&daemon);
    let all = TASKS.len() as u64;
    assert_eq!(scrape.get("tollbar_panics_total{origin=\"task\"}"), all);
    assert_eq!(scrape.get("tollbar_part_up{part=\"tasks\"}"), 0);
    let served: Vec<&String> = scrape
        .samples
        .keys()
        .filter(|series| series.starts_with("tollbar_task_restarts_total{"))
        .collect();
    assert_eq!(served.len(), TASKS.len(), "a new task belongs into this test: {served:?}");
    check_that_all_works(&mut daemon, &scratch);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn every_task_that_hangs_is_started_again_and_seen() {
    let scratch = Scratch::new("task-stalls");
    let mut daemon = start_with("stall", &scratch);
    daemon.logged("took too long and is started again");
    wait_until_restarted(&daemon);
    check_that_all_works(&mut daemon, &scratch);
    assert_eq!(daemon.stop(), 0);
}
