//! A daemon with a database of its own, and somebody who administers it.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::common::{Daemon, Scratch, status};

pub(crate) const RULES: &str = "/v1/rate-limit/rules";
pub(crate) const TOKENS: &str = "/v1/rate-limit/tokens";

/// The daemon, and the token that its first start gave.
pub(crate) struct Office {
    pub(crate) daemon: Daemon,
    pub(crate) token: String,
    pub(crate) database: String,
    pub(crate) scratch: Scratch,
}

/// An answer, read.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Office {
    /// With these rules in its file.
    pub(crate) fn open(name: &str, rules: &str) -> Self {
        let scratch = Scratch::new(&format!("admin-{name}"));
        let database = scratch.path("rules.sqlite");
        Self::open_at(scratch, rules, database)
    }

    /// The same over a database elsewhere.
    pub(crate) fn open_at(scratch: Scratch, rules: &str, database: String) -> Self {
        let rules = scratch.file("rules.yaml", rules);
        let daemon = Daemon::start(&["--rules", &rules, "--database", &database]);
        let token = first_token(&daemon).expect("the first start shows a token");
        Self { daemon, token, database, scratch }
    }

    /// A request as the administrator sends it.
    pub(crate) fn ask(&self, method: &str, target: &str, body: &Value) -> Told {
        self.ask_as(&self.token, method, target, "", body)
    }

    /// The same, of a version.
    pub(crate) fn ask_of(&self, etag: &str, method: &str, target: &str, body: &Value) -> Told {
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
    ) -> Told {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let lines = format!("authorization: Bearer {token}\r\n{lines}");
        self.send(method, target, &lines, body.as_bytes())
    }

    pub(crate) fn send(&self, method: &str, target: &str, lines: &str, body: &[u8]) -> Told {
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
    let shown = |it: &String| it.strip_prefix("admin token (shown once): ").map(str::to_owned);
    daemon.greeting.iter().find_map(shown)
}

pub(crate) fn send(address: &str, method: &str, target: &str, lines: &str, body: &[u8]) -> Told {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    // Whoever refuses a body may have closed before all of it was sent.
    let _ = stream.write_all(body);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    let response = String::from_utf8(response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    Told { status: status(&response), head: head.to_owned(), body: body.to_owned() }
}

impl Told {
    /// The JSON of an answer that has this status.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.body);
        if self.body.is_empty() { Value::Null } else { serde_json::from_str(&self.body).unwrap() }
    }

    /// A problem of this status and code; its first field, or nothing.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> String {
        let told = self.expect(status);
        assert!(self.head.contains("content-type: application/problem+json"), "{}", self.head);
        assert_eq!((&told["code"], &told["status"]), (&json!(code), &json!(status)), "{told}");
        assert_eq!(told["type"], "about:blank");
        assert!(told["detail"].as_str().is_some_and(|it| !it.is_empty()), "{told}");
        told["errors"][0]["field"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn etag(&self) -> String {
        self.header("etag").unwrap_or_else(|| panic!("no etag in {}", self.head))
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut values = lines.filter(|(it, _)| it.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.to_owned())
    }
}
