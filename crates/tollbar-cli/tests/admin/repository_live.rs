//! Daemons over one database: what is changed there is enforced, also while it is away and after it is back.
//!
//! Time passes here as it does: these are faults, and how soon a change is live is the promise.

mod crash;
mod fleet;
mod outage;
mod rows;

use std::time::Duration;

use crate::common::http::ask;
use crate::common::{Daemon, Scratch};
use serde_json::{Value, json};
use tollbar::{Clock, SystemClock};
use tollbar_admin::database::{DatabaseLocation, Repository};
use tollbar_rules::Rule;
use tollbar_rules::admin::from_json;

/// What does not come true in so long never will.
const PATIENCE: Duration = Duration::from_secs(30);

/// For a daemon whose log nobody reads: many changes are more than a pipe holds.
const QUIET: &[&str] = &["--log-level", "error"];

/// Runs a test on a runtime.
fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test)
}

async fn open(url: &str) -> Repository {
    Repository::open(&url.parse::<DatabaseLocation>().unwrap()).await.unwrap()
}

fn rule(json: &Value) -> Rule {
    from_json(json.clone()).unwrap()
}

/// So many a day for each client.
fn daily(name: &str, max_requests: u64) -> Rule {
    rule(&json!({ "name": name, "maxRequests": max_requests, "windowSeconds": 86_400,
                  "algorithm": "fixed_window" }))
}

/// Looks again and again until it is so; how long that took.
fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let clock = SystemClock::new();
    let start = clock.now();
    while !is_so() {
        assert!(clock.now().since(start) < PATIENCE, "{what} does not come true");
    }
    clock.now().since(start)
}

/// A daemon over a database, with a file for its rules that is its own.
fn serve(scratch: &Scratch, name: &str, database: &str, more: &[&str]) -> Daemon {
    let cache = scratch.path(&format!("{name}.cache"));
    let mut args = vec!["--database", database, "--rules-cache", &cache, "--node", name];
    args.extend(more);
    Daemon::start_logged(&args)
}

/// The limit that a client is under, without paying.
fn limit(daemon: &Daemon, user: &str) -> Option<u64> {
    let body = format!(r#"{{"attributes":{{"user":"{user}"}}}}"#);
    let response = daemon.post("/v1/peek", &body);
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    serde_json::from_str::<Value>(body).unwrap()["limit"].as_u64()
}

/// How many of so many requests of a user pass.
fn passed(daemon: &Daemon, user: &str, of: usize) -> usize {
    (0..of).filter(|_| daemon.check(user) == 200).count()
}

/// What it says of its health to those who would send it requests.
fn readiness(daemon: &Daemon) -> Value {
    read(daemon, "/readyz")
}

/// What it says of its health.
fn health(daemon: &Daemon) -> Value {
    read(daemon, "/healthz")
}

fn read(daemon: &Daemon, path: &str) -> Value {
    let response = daemon.get_with(path, "");
    serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// The admin API of a daemon, by the token that it said at its first start.
struct Admin {
    address: String,
    token: String,
}

impl Admin {
    fn from_greeting(daemon: &Daemon) -> Self {
        let line =
            daemon.greeting.iter().find_map(|line| line.strip_prefix("admin token (shown once): "));
        let token = line.expect("the first daemon over a database says a token").to_owned();
        Self { address: daemon.address("admin").to_owned(), token }
    }

    /// The same at another daemon.
    fn at(&self, daemon: &Daemon) -> Self {
        Self { address: daemon.address("admin").to_owned(), token: self.token.clone() }
    }

    /// The status and the body; `None` where the daemon is gone.
    fn ask(
        &self,
        method: &str,
        path: &str,
        version: Option<u64>,
        body: &Value,
    ) -> Option<(u16, Value)> {
        let body = body.to_string();
        let if_match =
            version.map_or_else(String::new, |version| format!("if-match: \"{version}\"\r\n"));
        let lines = format!(
            "authorization: Bearer {}\r\n{if_match}content-type: application/json\r\n",
            self.token
        );
        let answer = ask(&self.address, method, &format!("/v1/rate-limit{path}"), &lines, body)?;
        Some((answer.status, serde_json::from_str(&answer.body).unwrap_or_default()))
    }
}
