//! The table, asked of the real daemon as proxies ask: nginx, which knows one status for all denials, and
//! `HAProxy`, which passes statuses on. Attributes and costs are headers that the proxy sets.

use super::step::{Expect, Step};
use super::{Answer, COUNTED, Table, WITHOUT_STORE, go_through, limit_headers};
use crate::common::http::Answer as Response;
use crate::common::{Daemon, Scratch};

/// Names and keys: the attribute `api_key` is the name.
const API_KEYS: &str = "k 0123456789abcdef-k\ninternal 0123456789abcdef-internal\n\
                        other 0123456789abcdef-other\n";

#[test]
fn nginx_is_answered_as_the_tables_say() {
    answers_as("nginx", |_| 403);
}

#[test]
fn haproxy_is_answered_as_the_tables_say() {
    answers_as("haproxy", |denial| if denial == Expect::Never { 422 } else { 429 });
}

fn answers_as(profile: &str, status_of: fn(Expect) -> u16) {
    for table in [&COUNTED, &WITHOUT_STORE] {
        let scratch = Scratch::new("conformance-forward-auth");
        let daemon = serve(table, &scratch, &[]);
        go_through(table, |step| ask(&daemon, profile, step, status_of));
        assert_eq!(daemon.stop(), 0);
    }
}

/// A daemon that reads API keys, and attributes and costs from headers of proxies.
pub(super) fn serve(table: &Table, scratch: &Scratch, more: &[&str]) -> Daemon {
    let keys = scratch.file("keys", API_KEYS);
    let headers = "user=x-user,tenant=x-tenant,tier=x-tier,tokens=x-tokens";
    let flags = ["--api-keys", &keys, "--trusted-headers", headers, "--cost-header", "X-Cost"];
    table.serve(scratch, &[&flags[..], more].concat())
}

/// The client's address. A proxy always knows it.
pub(super) fn client_address(step: &Step) -> &'static str {
    let mut attributes = step.attributes.iter();
    attributes.find(|attribute| attribute.0 == "ip").map_or("198.51.100.1", |attribute| attribute.1)
}

/// The headers that say what a request has and costs.
pub(super) fn headers(step: &Step) -> impl Iterator<Item = (String, String)> {
    let attributes = step.attributes.iter().filter(|attribute| attribute.0 != "ip");
    let attributes = attributes.map(|(name, value)| match *name {
        "api_key" => ("x-api-key".to_owned(), format!("0123456789abcdef-{value}")),
        name => (format!("x-{name}"), (*value).to_owned()),
    });
    attributes.chain([("x-cost".to_owned(), step.cost.to_string())])
}

fn ask(daemon: &Daemon, profile: &str, step: &Step, status_of: fn(Expect) -> u16) -> Answer {
    let original = [
        ("x-original-method", step.method),
        ("x-original-uri", step.path),
        ("x-real-ip", client_address(step)),
    ];
    let original = original.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let headers = original.into_iter().chain(headers(step));
    let lines: Vec<String> = headers.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let response = daemon.get_with(&format!("/v1/forward-auth/{profile}"), &lines.concat());
    let response = Response::read(&response).unwrap();
    if step.path == "/jobs" {
        // A proxy does not say when a request is over, so such rules are refused.
        assert_eq!(response.status, 400, "{response:?}");
        assert!(response.body.contains("limits what is in flight"), "{response:?}");
        return Answer::only(step.expected.outcome);
    }
    let denial = match response.status {
        200 => None,
        _ => Some(serde_json::from_str(&response.body).unwrap()),
    };
    let header = |name: &str| Some(response.header(name)).filter(|value| !value.is_empty());
    let answer = limit_headers::answer_of_any_status(step, header, denial.as_ref());
    if answer.outcome != Expect::Allow {
        assert_eq!(response.status, status_of(answer.outcome), "{step:?} gave {response:?}");
    }
    answer
}
