//! What is in `deploy/`, checked by Prometheus' own tools, and the daemon scraped by a real Prometheus.

mod prometheus;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;

use crate::common::{Daemon, Scratch};
use crate::metrics::scrape::{OPEN_METRICS, Scrape};
use prometheus::{Prometheus, plain_only, promtool};
use serde_json::Value;
use tollbar_testkit::redis::process::RedisProcess;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");

fn deployed(name: &str) -> String {
    fs::read_to_string(format!("{DEPLOY}/{name}")).unwrap()
}

/// Everything that a panel, an annotation or a variable of the dashboard asks.
fn expressions(of: &Value, found: &mut Vec<String>) {
    match of {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expr" => found.push(text.clone()),
                    value => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

/// The metrics that a text names. What rules record has a colon in its name, and is not ours.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !is_part(c));
    words.filter(|word| word.starts_with("tollbar_")).map(ToOwned::to_owned).collect()
}

#[test]
fn alerts_fire_where_they_should_and_nowhere_else() {
    promtool(&["check", "rules", &format!("{DEPLOY}/prometheus/alerts.yaml")], "");
    promtool(&["check", "config", &format!("{DEPLOY}/prometheus/prometheus.yaml")], "");
    promtool(&["test", "rules", &format!("{DEPLOY}/prometheus/alerts_test.yaml")], "");
    // Each alert fires in some test.
    let (alerts, tests) =
        (deployed("prometheus/alerts.yaml"), deployed("prometheus/alerts_test.yaml"));
    let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let fires = |name: &str| {
        let line = format!("alertname: {name}\n");
        let at = tests.match_indices(&*line);
        let mut at = at.into_iter();
        at.any(|(at, found)| tests[at + found.len()..].trim_start().starts_with("exp_alerts"))
    };
    let silent: Vec<&str> = names.filter(|name| !fires(name)).collect();
    assert!(silent.is_empty(), "no test has these fire: {silent:?}");
}

#[test]
fn every_panel_asks_what_prometheus_understands() {
    let scratch = Scratch::new("panels");
    let dashboard: Value = serde_json::from_str(&deployed("grafana/tollbar.json")).unwrap();
    let mut asked = Vec::new();
    expressions(&dashboard, &mut asked);
    assert!(asked.len() > 20, "{}", asked.len());
    let mut rules = "groups:\n  - name: panels\n    rules:\n".to_owned();
    for (at, expression) in asked.iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "5m").replace("$job", "tollbar");
        let _ = writeln!(rules, "      - {{ record: 'panel:{at}', expr: {expression:?} }}");
    }
    let said = promtool(&["check", "rules", &scratch.file("panels.yaml", &rules)], "");
    assert!(said.contains(&format!("{} rules found", asked.len())), "{said}");
}

#[test]
fn everything_that_is_deployed_asks_for_what_the_daemon_counts() {
    let in_memory = Daemon::start(&[]);
    // Some metrics are of shared stores only.
    let scratch = Scratch::new("deployed-metrics");
    let rules = "rules: [{ name: lent, limit: 100/s, burst: 1000, accuracy: conservative }]";
    let (rules, redis) = (scratch.file("rules.yaml", rules), RedisProcess::start());
    let url = redis.url();
    let store = ["--store", &url, "--store-raw-keys", "--store-deadline", "5s"];
    let in_redis = Daemon::start(&[&store[..], &["--rules", &rules]].concat());
    let scrapes = [&in_memory, &in_redis].map(|daemon| {
        daemon.check("7");
        Scrape::fetch(daemon, "")
    });
    let served: BTreeSet<&str> = scrapes.iter().flat_map(Scrape::names).collect();
    for file in ["prometheus/alerts.yaml", "prometheus/alerts_test.yaml", "grafana/tollbar.json"] {
        let asked = named(&deployed(file));
        assert!(asked.len() > 5, "{file}: {asked:?}");
        let unknown: Vec<&String> =
            asked.iter().filter(|name| !served.contains(&***name)).collect();
        assert!(unknown.is_empty(), "{file} asks for {unknown:?}");
    }
    assert_eq!([in_memory, in_redis].map(Daemon::stop), [0, 0]);
}

#[test]
fn the_checker_of_prometheus_has_no_complaint() {
    let redis = RedisProcess::start();
    let url = redis.url();
    for args in [&[][..], &["--store", &url, "--store-raw-keys", "--store-deadline", "5s"]] {
        let daemon = Daemon::start(args);
        for _ in 0..9 {
            daemon.check("7");
        }
        let said = promtool(&["check", "metrics"], &Scrape::fetch(&daemon, "").text);
        assert_eq!(said, "", "{said}");
        assert_eq!(daemon.stop(), 0);
    }
}

#[test]
fn a_real_prometheus_scrapes_both_formats() {
    let scratch = Scratch::new("prometheus");
    let rules = scratch.file("rules.yaml", "rules: [{ name: per_client, limit: 5/day }]");
    let daemon = Daemon::start(&["--rules", &rules]);
    for _ in 0..9 {
        daemon.check("7");
    }
    let address = daemon.address("http");
    let plain = plain_only(address);
    let mut prometheus = Prometheus::start(&scratch, &[address, &plain]);
    let targets = prometheus.until("targets", |answer| {
        let targets = answer["activeTargets"].as_array();
        targets.is_some_and(|targets| {
            targets.len() == 2 && targets.iter().all(|target| target["health"] == "up")
        })
    });
    assert!(
        targets["activeTargets"].as_array().unwrap().iter().all(|target| target["lastError"] == "")
    );
    for (query, count) in [
        ("tollbar_decisions_total%7Boutcome=%22allow%22%7D", "5"),
        ("tollbar_decisions_total%7Boutcome=%22deny%22%7D", "4"),
        ("tollbar_check_duration_seconds_bucket%7Ble=%22%2BInf%22%7D%20%3E=%200", ""),
    ] {
        let answer = prometheus.until(&format!("query?query={query}"), |answer| {
            answer["result"].as_array().is_some_and(|samples| samples.len() == 2)
        });
        for sample in answer["result"].as_array().unwrap() {
            assert!(count.is_empty() || sample["value"][1] == count, "{query}: {sample}");
        }
    }
    // Of the format that has them.
    let scrape = Scrape::fetch(&daemon, OPEN_METRICS);
    let shown = &scrape.exemplars["tollbar_decisions_total{rule=\"per_client\",outcome=\"deny\"}"];
    let id = shown.split('"').nth(1).unwrap();
    let query = "query_exemplars?query=tollbar_decisions_total&start=0&end=9999999999";
    let answer = prometheus
        .until(query, |answer| answer.as_array().is_some_and(|exemplars| !exemplars.is_empty()));
    assert!(answer.to_string().contains(&format!("\"decision_id\":\"{id}\"")), "{answer}");
    assert_eq!(daemon.stop(), 0);
}
