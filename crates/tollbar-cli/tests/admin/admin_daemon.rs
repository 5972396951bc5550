//! A daemon with a database of its own, and somebody who administers it.

use serde_json::{Value, json};

use crate::common::http::{Answer, ask};
use crate::common::{Daemon, Scratch, status};

pub(crate) const RULES: &str = "/v1/rate-limit/rules";
pub(crate) const TOKENS: &str = "/v1/rate-limit/tokens";

/// The daemon, and the token that its first start gave.
pub(crate) struct AdminDaemon {
    pub(crate) daemon: Daemon,
    pub(crate) token: String,
    pub(crate) database: String,
    pub(crate) scratch: Scratch,
}

impl AdminDaemon {
    /// With these rules in its file.
    pub(crate) fn open(name: &str, rules: &str) -> Self {
        Self::open_with(name, rules, &[])
    }

    /// With these rules in its file, and more flags.
    pub(crate) fn open_with(name: &str, rules: &str, flags: &[&str]) -> Self {
        let scratch = Scratch::new(&format!("admin-{name}"));
        let database = scratch.path("rules.sqlite");
        Self::start(scratch, rules, database, flags)
    }

    /// The same over a database elsewhere.
    pub(crate) fn open_at(scratch: Scratch, rules: &str, database: String) -> Self {
        Self::start(scratch, rules, database, &[])
    }

    fn start(scratch: Scratch, rules: &str, database: String, flags: &[&str]) -> Self {
        let rules = scratch.file("rules.yaml", rules);
        let own = ["--rules", &rules, "--database", &database];
        let daemon = Daemon::start(&[&own, flags].concat());
        let token = first_token(&daemon).expect("the first start shows a token");
        Self { daemon, token, database, scratch }
    }

    /// A request as the administrator sends it.
    pub(crate) fn ask(&self, method: &str, target: &str, body: &Value) -> Answer {
        self.ask_as(&self.token, method, target, "", body)
    }

    /// The same, of a version.
    pub(crate) fn ask_of(&self, etag: &str, method: &str, target: &str, body: &Value) -> Answer {
        self.ask_as(&self.token, method, target, &format!("if-match: {etag}\r\n"), body)
    }

    pub(crate) fn get(&self, target: &str) -> Value {
        self.ask("GET", target, &Value::Null).expect(200)
    }

    /// A request with that token and these lines of headers.
    pub(crate) fn ask_as(
        &self,
        token: &str,
        method: &str,
        target: &str,
        lines: &str,
        body: &Value,
    ) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let lines = format!("authorization: Bearer {token}\r\n{lines}");
        self.send(method, target, &lines, body.as_bytes())
    }

    pub(crate) fn send(&self, method: &str, target: &str, lines: &str, body: &[u8]) -> Answer {
        send(self.daemon.address("admin"), method, target, lines, body)
    }

    /// A token of these scopes.
    pub(crate) fn token_of(&self, scopes: &[&str], subject: Option<&str>) -> String {
        let form = json!({ "name": scopes.join(" "), "scopes": scopes, "subject": subject });
        let made = self.ask("POST", TOKENS, &form).expect(201);
        made["token"].as_str().unwrap().to_owned()
    }

    /// Makes a rule; its id.
    pub(crate) fn rule(&self, form: &Value) -> String {
        let made = self.ask("POST", RULES, form).expect(201);
        made["ruleId"].as_str().unwrap().to_owned()
    }

    /// The status of a check of this user for this path.
    pub(crate) fn check(&self, path: &str, user: &str) -> u16 {
        let body = json!({ "path": path, "attributes": { "user": user } });
        status(&self.daemon.post("/v1/check", &body.to_string()))
    }
}

pub(crate) fn first_token(daemon: &Daemon) -> Option<String> {
    let shown = |line: &String| line.strip_prefix("admin token (shown once): ").map(str::to_owned);
    daemon.greeting.iter().find_map(shown)
}

pub(crate) fn send(address: &str, method: &str, target: &str, lines: &str, body: &[u8]) -> Answer {
    ask(address, method, target, lines, body).expect("the daemon answers")
}
