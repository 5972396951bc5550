//! The table, asked of the real daemon as proxies ask: nginx, which knows one status for all denials, and
//! `HAProxy`, which passes statuses on. Attributes are headers that the proxy sets, and requests have no cost.

use super::step::{Expect, Step};
use super::{Answer, COUNTED, Table, WITHOUT_STORE, go_through_without_costs, limit_headers};
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
        let daemon = serve(table, &scratch);
        go_through_without_costs(table, |step| ask(&daemon, profile, step, status_of));
        assert_eq!(daemon.stop(), 0);
    }
}

fn serve(table: &Table, scratch: &Scratch) -> Daemon {
    let keys = scratch.file("keys", API_KEYS);
    let headers = "user=x-user,tenant=x-tenant,tier=x-tier,tokens=x-tokens";
    table.serve(scratch, &["--api-keys", &keys, "--trusted-headers", headers])
}

fn ask(daemon: &Daemon, profile: &str, step: &Step, status_of: fn(Expect) -> u16) -> Answer {
    let own = [("x-original-method", step.method), ("x-original-uri", step.path)];
    // A proxy always knows the address of its client.
    let ip = step.attributes.iter().find(|it| it.0 == "ip").map_or("198.51.100.1", |it| it.1);
    let own = own.into_iter().chain([("x-real-ip", ip)]).map(|(name, value)| line(name, value));
    let attributes = step.attributes.iter().filter(|it| it.0 != "ip");
    let attributes = attributes.map(|(name, value)| match *name {
        "api_key" => line("x-api-key", &format!("0123456789abcdef-{value}")),
        name => line(&format!("x-{name}"), value),
    });
    let lines: String = own.chain(attributes).collect();
    let response = daemon.get_with(&format!("/v1/forward-auth/{profile}"), &lines);
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
    let header = |name: &str| Some(response.header(name)).filter(|it| !it.is_empty());
    let answer = limit_headers::answer_of_any_status(step, header, denial.as_ref());
    if answer.outcome != Expect::Allow {
        assert_eq!(response.status, status_of(answer.outcome), "{step:?} gave {response:?}");
    }
    answer
}

fn line(name: &str, value: &str) -> String {
    format!("{name}: {value}\r\n")
}
