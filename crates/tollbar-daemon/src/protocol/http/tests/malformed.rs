//! Bodies that cannot be used: each is told what to send instead, and charges nothing.

use super::*;

/// The path, the body, and how the message begins.
const TABLE: &[(&str, &[u8], &str)] = &[
    (
        "/v1/check",
        b"",
        "the body cannot be used: EOF while parsing a value at line 1 column 0; send JSON such as {\"method\"",
    ),
    ("/v1/check", b"null", "the body cannot be used: invalid type: null, expected an object"),
    (
        "/v1/check",
        b"[]",
        "the body cannot be used: invalid type: sequence, expected an object at line 1 column 0",
    ),
    ("/v1/check", b"{", "the body cannot be used: EOF while parsing an object at line 1 column 1"),
    ("/v1/check", b"{} {}", "the body cannot be used: trailing characters at line 1 column 4"),
    (
        "/v1/check",
        b"{\"path\":\"/\",}",
        "the body cannot be used: trailing comma at line 1 column 13",
    ),
    (
        "/v1/check",
        b"{\"paht\":1}",
        "the body cannot be used: unknown field `paht`, expected one of `method`, `path`",
    ),
    (
        "/v1/check",
        b"{\"path\":\"/\",\"path\":\"/x\"}",
        "the body cannot be used: duplicate field `path`",
    ),
    (
        "/v1/check",
        b"{\"path\":7}",
        "the body cannot be used: invalid type: integer `7`, expected a text",
    ),
    (
        "/v1/check",
        b"{\"path\":\"\xff\"}",
        "the body cannot be used: invalid unicode code point at line 1 column 10",
    ),
    ("/v1/check", b"\xff\xfe{}", "the body cannot be used: expected value at line 1 column 1"),
    (
        "/v1/check",
        b"{\"path\":\"\\ud800\"}",
        "the body cannot be used: unexpected end of hex escape",
    ),
    (
        "/v1/check",
        b"{\"path\":\"\n\"}",
        "the body cannot be used: control character (\\u0000-\\u001F) found",
    ),
    (
        "/v1/check",
        b"{\"cost\":-1}",
        "the body cannot be used: invalid type: integer `-1`, expected a whole number of at least 0",
    ),
    (
        "/v1/check",
        b"{\"cost\":5.5}",
        "the body cannot be used: a cost of 5.5 is not a whole number: write 5 or 6 at line 1 column",
    ),
    (
        "/v1/check",
        b"{\"cost\":-5.0}",
        "the body cannot be used: invalid value: floating point `-5.0`, expected a whole number of at least 0",
    ),
    (
        "/v1/check",
        b"{\"cost\":18446744073709551616}",
        "the body cannot be used: invalid value: floating point",
    ),
    (
        "/v1/check",
        b"{\"cost\":1e999}",
        "the body cannot be used: number out of range at line 1 column",
    ),
    (
        "/v1/check",
        b"{\"cost\":\"1\"}",
        "the body cannot be used: invalid type: string \"1\", expected a whole number of at least 0",
    ),
    (
        "/v1/check",
        b"{\"criticality\":\"vital\"}",
        "the body cannot be used: unknown variant `vital`, expected one of `low`",
    ),
    (
        "/v1/check",
        b"{\"attributes\":[]}",
        "the body cannot be used: invalid type: sequence, expected an object of texts",
    ),
    (
        "/v1/check",
        b"{\"attributes\":{\"user\":7}}",
        "the body cannot be used: invalid type: integer `7`, expected a text",
    ),
    (
        "/v1/check",
        b"{\"attributes\":{\"user\":{\"id\":{}}}}",
        "the body cannot be used: invalid type: map, expected a text",
    ),
    (
        "/v1/check",
        b"{\"attributes\":{\"path\":\"/\"}}",
        "`path` is not an attribute to be sent: it is taken from the request itself",
    ),
    (
        "/v1/check",
        b"{\"attributes\":{\"user\":\"1\",\"user\":\"2\"}}",
        "the attribute `user` has two values: send one, or join them",
    ),
    ("/v1/check", b"{\"ttlMs\":1}", "a check takes no `ttlMs`: leave it out"),
    (
        "/v1/check",
        b"{\"rule\":\"per_client\",\"subject\":\"\"}",
        "the subject is empty: send whom rule `per_client` counts",
    ),
    ("/v1/peek", b"{\"requestId\":\"1\"}", "a peek takes no `requestId`: leave it out"),
    ("/v1/explain", b"{\"rule\":\"per_client\"}", "an explanation takes no `rule`: leave it out"),
    ("/v1/reset", b"{\"rule\":\"per_client\",\"cost\":1}", "a reset takes no `cost`: leave it out"),
    ("/v1/reserve", b"{\"ttlMs\":0}", "`ttlMs` is 0: send 1 to 86400000, which is a day"),
    ("/v1/reserve", b"{\"ttlMs\":86400001}", "`ttlMs` is 86400001: send 1 to 86400000"),
    ("/v1/reserve", b"{\"rule\":\"per_client\"}", "a reservation takes no `rule`: leave it out"),
    ("/v1/commit", b"{}", "the body cannot be used: missing field `receipt`"),
    (
        "/v1/commit",
        b"{\"receipt\":\"x\",\"cost\":-1}",
        "the body cannot be used: invalid type: integer `-1`, expected a whole number of at least 0",
    ),
    ("/v1/commit", b"{\"receipt\":\"nonsense\"}", ""),
    ("/v1/cancel", b"{\"receipt\":\"\"}", ""),
    (
        "/v1/cancel",
        b"{\"receipt\":\"a\",\"cost\":1}",
        "the body cannot be used: unknown field `cost`, expected `receipt`",
    ),
    (
        "/v1/release",
        b"{\"lease\":\"nonsense\"}",
        "this is no lease: send the text exactly as a check gave it out",
    ),
    (
        "/v1/release",
        b"{\"lease\":\"%\"}",
        "this is no lease: send the text exactly as a check gave it out",
    ),
    (
        "/v1/renew",
        b"{\"lease\":\"nonsense\"}",
        "this is no lease: send the text exactly as a check gave it out",
    ),
    (
        "/v1/release",
        b"{\"receipt\":\"x\"}",
        "the body cannot be used: unknown field `receipt`, expected `lease`",
    ),
    (
        "/v1/renew",
        b"{\"lease\":null}",
        "the body cannot be used: invalid type: null, expected a string",
    ),
    ("/v1/check/batch", b"{}", "the body cannot be used: missing field `requests`"),
    (
        "/v1/check/batch",
        b"{\"requests\":[[null,null,null,1,null,null,null,null,null]]}",
        "the body cannot be used: invalid type: sequence, expected an object at line 1 column 13",
    ),
    (
        "/v1/check/batch",
        b"{\"requests\":{}}",
        "the body cannot be used: invalid type: map, expected a sequence",
    ),
    (
        "/v1/check/batch",
        b"{\"requests\":[{\"cost\":1},{\"cost\":-1}]}",
        "the body cannot be used: invalid type: integer `-1`, expected a whole number of at least 0",
    ),
];

#[test]
fn what_cannot_be_used_is_told_and_charges_nothing() {
    let daemon = TestDaemon::new(None);
    let mut differences = Vec::new();
    for (path, body, message) in TABLE {
        let answer = daemon.send("POST", path, body);
        let told = answer.body["message"].as_str().unwrap_or_default();
        if answer.status != 400 || told.is_empty() || !told.starts_with(message) {
            let shown = String::from_utf8_lossy(body);
            differences.push(format!("{path} {shown}: {} {told}", answer.status));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(daemon.post("/v1/peek", "{}").body["remaining"], 2, "nothing was charged");
}

#[test]
fn what_is_deep_long_or_many_is_refused_before_it_costs_much() {
    let daemon = TestDaemon::new(None);
    let deep = "[".repeat(100_000);
    let deep = daemon.post("/v1/check", &format!(r#"{{"path":{deep}"#));
    assert_eq!(deep.status, 400);
    let deep = "{\"requests\":[{\"attributes\":".repeat(50_000);
    assert_eq!(daemon.post("/v1/check/batch", &deep).status, 400);
    let long = daemon.post("/v1/check", &format!(r#"{{"path":"/{}"}}"#, "x".repeat(8_192)));
    assert_eq!(long.body["message"], "a path of 8193 bytes is too long: send at most 8192");
    let many: Vec<String> = (0..65).map(|number| format!(r#""a{number}":"x""#)).collect();
    let many = daemon.post("/v1/check", &format!(r#"{{"attributes":{{{}}}}}"#, many.join(",")));
    assert_eq!(many.body["message"], "65 attributes are too many: send at most 64");
    assert_eq!(daemon.post("/v1/peek", "{}").body["remaining"], 2, "nothing was charged");
}
