//! What is no request of ours is refused exactly, and takes nothing with it.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::admin_daemon::{AdminDaemon, RULES, TOKENS};
use crate::common::status;

const FILE: &str = "rules: [{ name: a, match: { path: /a }, limit: 3/day }]";

#[test]
fn nothing_that_is_sent_breaks_out_of_its_place() {
    let admin = AdminDaemon::open("injection", FILE);
    let id = admin.rule(&json!({ "name": "keep", "maxRequests": 1, "windowSeconds": 60 }));
    let before = (admin.get(RULES), admin.get("/v1/rate-limit/audit"));
    let evil = [
        "'; DROP TABLE rate_limit_rules; --",
        "\" OR 1=1 --",
        "1; DELETE FROM tokens",
        "../../../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "\0",
        "\u{202e}evil",
        "\u{1F4A9}",
        "a\u{0301}",
        "{{7*7}}",
        "<script>alert(1)</script>",
        "%",
        "*",
    ];
    for text in evil {
        let encoded = text.bytes().fold(String::new(), |all, byte| format!("{all}%{byte:02X}"));
        for target in [
            format!("{RULES}/{encoded}"),
            format!("{RULES}/{encoded}/history"),
            format!("/v1/rate-limit/audit?ruleId={encoded}"),
        ] {
            let told = admin.ask("GET", &target, &Value::Null);
            // No database keeps a NUL, so no parameter has one; in a path it names nothing.
            if text == "\0" && target.contains('?') {
                told.problem(400, "bad_request");
            } else {
                told.problem(404, "not_found");
            }
        }
        for (target, method) in [
            (format!("/v1/rate-limit/exemptions/{encoded}"), "DELETE"),
            (format!("{TOKENS}/{encoded}"), "DELETE"),
            (format!("/v1/rate-limit/keys/{encoded}"), "DELETE"),
        ] {
            admin.ask(method, &target, &Value::Null).problem(404, "not_found");
        }
        // Dots and slashes are part of names, which are nowhere part of a path.
        if !text.starts_with("../") {
            let name = json!({ "name": text, "maxRequests": 1, "windowSeconds": 1 });
            assert_eq!(admin.ask("POST", RULES, &name).problem(422, "invalid"), "name", "{text}");
        }
        let scope = json!({ "name": "x", "scopes": [format!("tenant:{text}")] });
        assert_eq!(admin.ask("POST", TOKENS, &scope).problem(422, "invalid"), "scopes", "{text}");
        // As filters they are texts like any other.
        for parameter in ["tenant", "name"] {
            if text != "\0" {
                let page = admin.get(&format!("{RULES}?{parameter}={encoded}"));
                assert_eq!(page["items"], json!([]), "{text}");
            }
        }
    }
    assert_eq!((admin.get(RULES), admin.get("/v1/rate-limit/audit")), before);
    assert_eq!(admin.get(&format!("{RULES}/{id}"))["name"], "keep");
}

#[test]
fn texts_that_can_be_kept_are_kept_as_they_are() {
    let admin = AdminDaemon::open("texts", FILE);
    for text in ["'; DROP TABLE tokens; --", "größe 名前 \u{1F4A9}", "a\u{0301}", "%s%n", "\\"]
    {
        let made =
            admin.ask("POST", TOKENS, &json!({ "name": text, "scopes": ["read"] })).expect(201);
        assert_eq!(made["name"], text);
        let subject = format!("user:{text}");
        let ban = json!({ "subject": subject, "reason": text });
        let banned = admin.ask("POST", "/v1/rate-limit/keys/ban", &ban).expect(201);
        assert_eq!((&banned["subject"], &banned["reason"]), (&json!(subject), &json!(text)));
    }
    for (name, field) in
        [("", "name"), ("a\u{0}", "name"), ("\u{202e}a", "name"), ("a\u{200b}", "name")]
    {
        let told = admin.ask("POST", TOKENS, &json!({ "name": name, "scopes": ["read"] }));
        assert_eq!(told.problem(422, "invalid"), field, "{name:?}");
    }
    for (form, field) in [
        (json!({ "name": "a", "scopes": [] }), "scopes"),
        (json!({ "name": "a", "scopes": ["root"] }), "scopes"),
        (json!({ "name": "a", "scopes": ["read", "read"] }), "scopes"),
        (json!({ "name": "a", "scopes": ["tenant:a", "tenant:b"] }), "scopes"),
        (json!({ "name": "a", "scopes": ["usage:me"] }), "subject"),
        (json!({ "name": "a", "scopes": ["read"], "subject": "user:1" }), "subject"),
        (json!({ "name": "a", "scopes": ["read"], "expiresAt": "2001-01-01" }), "expiresAt"),
        (json!({ "name": "a", "scopes": "read" }), "scopes"),
        (json!({ "name": "a", "scopes": ["read"], "hash": "x" }), "hash"),
    ] {
        assert_eq!(admin.ask("POST", TOKENS, &form).problem(422, "invalid"), field, "{form}");
    }
}

#[test]
fn a_body_that_is_too_large_or_no_json_is_refused() {
    let admin = AdminDaemon::open("bodies", FILE);
    let lines = format!("authorization: Bearer {}\r\n", admin.token);
    let large = vec![b' '; 10 * 1024 * 1024];
    let told = admin.send("POST", RULES, &lines, &large);
    told.problem(413, "too_large");
    // In chunks, nobody announces how much it will be.
    let mut stream = TcpStream::connect(admin.daemon.address("admin")).unwrap();
    let head = format!(
        "POST {RULES} HTTP/1.1\r\nhost: localhost\r\n{lines}transfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = [b"10000\r\n".as_slice(), &vec![b' '; 0x10000], b"\r\n"].concat();
    for _ in 0..40 {
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    assert_eq!(status(&String::from_utf8_lossy(&response)), 413);

    let almost = format!(
        "{}{}",
        " ".repeat(1024 * 1024 - 60),
        r#"{"name":"b","maxRequests":1,"windowSeconds":1}"#
    );
    assert_eq!(admin.send("POST", RULES, &lines, almost.as_bytes()).status, 201);
    for body in
        ["", "{", "nul", "{\"name\":\"x\"} trailing", "\u{feff}{}", "{\"name\":\"\\ud800\"}"]
    {
        admin.send("POST", RULES, &lines, body.as_bytes()).problem(400, "bad_request");
    }
    admin.send("POST", RULES, &lines, b"{\"name\":\"\xff\"}").problem(400, "bad_request");
    for body in ["[]", "null", "7", "\"x\"", "{\"name\":\"x\",\"name\":\"y\"}"] {
        admin.send("POST", RULES, &lines, body.as_bytes()).problem(422, "invalid");
    }
    let deep = "{\"match\":".repeat(5_000);
    admin.send("POST", RULES, &lines, deep.as_bytes()).problem(400, "bad_request");
    assert_eq!(admin.get(RULES)["items"].as_array().unwrap().len(), 2);
}

#[test]
fn paths_methods_and_queries_that_are_none_are_told_what_there_is() {
    let admin = AdminDaemon::open("paths", FILE);
    // `/` is the dashboard's.
    for path in [
        "/v1",
        "/v1/rate-limit",
        "/v1/rate-limit/rules/",
        "/v1/rate-limit/rules//history",
        "/V1/rate-limit/rules",
        "/v1/rate-limit/rules/a/b",
        "/v1/rate-limit/../rate-limit/rules",
        "/v1/check",
    ] {
        admin.ask("GET", path, &Value::Null).problem(404, "not_found");
    }
    for (method, path, allow) in [
        ("DELETE", RULES, "GET, HEAD, POST, OPTIONS"),
        ("PATCH", &format!("{RULES}/x"), "GET, HEAD, PUT, DELETE, OPTIONS"),
        ("GET", "/v1/rate-limit/keys/ban", "POST, OPTIONS"),
        ("POST", "/v1/rate-limit/nodes", "GET, HEAD, OPTIONS"),
        ("GET", &format!("{TOKENS}/1"), "DELETE, OPTIONS"),
        ("BREW", "/docs", "GET, HEAD, OPTIONS"),
    ] {
        let told = admin.ask(method, path, &Value::Null);
        assert_eq!(told.header("allow"), allow, "{method} {path}");
        told.problem(405, "wrong_method");
        let options = admin.send("OPTIONS", path, "", b"");
        assert_eq!((options.status, options.header("allow")), (204, allow));
    }
    for query in [
        "nosuch=1",
        "limit=0",
        "limit=1001",
        "limit=x",
        "enabled=maybe",
        "scope=all",
        "limit=1&limit=2",
        "name=%ff",
    ] {
        admin.ask("GET", &format!("{RULES}?{query}"), &Value::Null).problem(400, "bad_request");
    }
    admin
        .ask("GET", "/v1/rate-limit/usage?subjectType=user", &Value::Null)
        .problem(400, "bad_request");
    admin.ask("GET", "/v1/rate-limit/nodes?x=1", &Value::Null).problem(400, "bad_request");
    admin.ask_of("3", "DELETE", &format!("{RULES}/x"), &Value::Null).problem(400, "bad_request");
    let told = admin.ask("GET", RULES, &Value::Null);
    assert_eq!(told.header("cache-control"), "no-store");
    let head = admin.ask("HEAD", RULES, &Value::Null);
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}
