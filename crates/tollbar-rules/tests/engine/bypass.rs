//! Ways around a limit that work elsewhere. None may work here.

use tollbar::{ManualClock, Timestamp};
use tollbar_rules::{Effect, Engine, InvalidRequest, Override, Request, RuleFile};

const RULES: &str = r#"
rules:
  - { name: login, match: { method: POST, path: /v1/login }, per: ip, limit: 1/h }
  - { name: files, match: { path: "/files/{name}" }, per: ip, limit: 1/h }
  - { name: users, match: { path: "/v1/users/**" }, per: user, limit: 1/h }
  - { name: static, match: { path: "/static/**" }, unlimited: true }
  - { name: media, match: { path: "/**" }, per: ip, limit: 1/h, exempt: { path: "/media/**", ip: 203.0.113.9 } }
  - { name: partners, match: { path: "/partners/**" }, priority: 5, stop: true, limit: 1000/h }
"#;

fn engine() -> Engine {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let rules = RuleFile::parse("rules.yaml", RULES).unwrap().rules;
    Engine::builder(rules).clock(clock).build()
}

fn is_allowed(engine: &Engine, method: &str, path: &str, attributes: &[(&str, &str)]) -> bool {
    let request = Request::new(method, path).unwrap().with_attributes(attributes).unwrap();
    engine.check(&request).is_allowed()
}

/// A method, a path and attributes.
type Sent<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

/// The first spelling uses the limit up; no other spelling of the same request passes after it.
#[track_caller]
fn no_way_around(first: Sent<'_>, others: &[Sent<'_>]) {
    let engine = engine();
    let (method, path, attributes) = first;
    assert!(is_allowed(&engine, method, path, attributes), "the first passes: {first:?}");
    for (method, path, attributes) in others {
        let passed = is_allowed(&engine, method, path, attributes);
        assert!(!passed, "a way around: {method} {path} {attributes:?}");
    }
}

#[test]
fn no_spelling_of_a_path_goes_around_its_limit() {
    let ip: &[(&str, &str)] = &[("ip", "203.0.113.7")];
    let spellings = [
        "/v1/login",
        "/v1/login/",
        "/v1/login//",
        "//v1/login",
        "/v1//login",
        "/v1/./login",
        "/./v1/login",
        "/v1/login/.",
        "/v1/x/../login",
        "/v1/login/x/..",
        "/../v1/login",
        "/v1/%6cogin",
        "/v1/%6Cogin",
        "/%76%31/%6c%6f%67%69%6e",
        "/v1%2flogin",
        "/v1%2Flogin",
        "%2fv1%2Flogin",
        "/v1/%2e/login",
        "/v1/x/%2e%2e/login",
        "/v1/x/.%2E/login",
        "/v1/x%2f..%2flogin",
        "/static/../v1/login",
        "/static/%2e%2e/v1/login",
        "/static/..%2fv1%2flogin",
        "/static%2f..%2fv1/login",
        "/partners/..%2fv1%2flogin",
        "/v1/login?",
        "/v1/login?x=/static/",
        "/v1/login#/static/",
        "/v1/login/?a=b",
        "http://api.example/v1/login",
        "https://static.example:443/v1/login?x",
        "v1/login",
    ];
    let others: Vec<Sent<'_>> = spellings.iter().map(|path| ("POST", *path, ip)).collect();
    no_way_around(("POST", "/v1/login", ip), &others);
    no_way_around(
        ("POST", "/v1/login", ip),
        &[("post", "/v1/login", ip), ("Post", "/v1/login", ip)],
    );
}

#[test]
fn an_encoded_slash_in_a_name_is_limited_as_a_name_too() {
    let ip: &[(&str, &str)] = &[("ip", "203.0.113.7")];
    no_way_around(
        ("GET", "/files/a", ip),
        &[("GET", "/files/a%2fb", ip), ("GET", "/files/%2e%2e%2fx", ip), ("GET", "/files/b", ip)],
    );
}

#[test]
fn no_way_of_naming_oneself_makes_another_client() {
    no_way_around(
        ("POST", "/v1/login", &[("ip", "203.0.113.7")]),
        &[
            ("POST", "/v1/login", &[("ip", "::ffff:203.0.113.7")]),
            ("POST", "/v1/login", &[("ip", "::FFFF:CB00:7107")]),
            ("POST", "/v1/login", &[("ip", "0:0:0:0:0:ffff:cb00:7107")]),
            ("POST", "/v1/login", &[("ip", "203.0.113.7"), ("user", "somebody")]),
            ("POST", "/v1/login", &[("ip", "203.0.113.7"), ("ip", "203.0.113.7")]),
        ],
    );
    no_way_around(
        ("POST", "/v1/login", &[("ip", "2001:db8::1")]),
        &[
            ("POST", "/v1/login", &[("ip", "2001:db8::2")]),
            ("POST", "/v1/login", &[("ip", "2001:DB8:0:0:ffff:ffff:ffff:ffff")]),
        ],
    );
}

#[test]
fn dropping_or_emptying_a_header_escapes_nothing() {
    let without: &[(&str, &str)] = &[("ip", "203.0.113.7")];
    no_way_around(
        ("GET", "/v1/users/me", without),
        &[
            ("GET", "/v1/users/me", without),
            ("GET", "/v1/users/me", &[("ip", "203.0.113.7"), ("user", "")]),
            ("GET", "/v1/users/other", without),
        ],
    );
    // Without any identity there is one counter for all.
    no_way_around(("GET", "/v1/users/me", &[]), &[("GET", "/v1/users/you", &[])]);
}

#[test]
fn two_values_for_one_attribute_are_refused_before_any_rule_sees_them() {
    let request = Request::new("GET", "/v1/users/me").unwrap();
    let error = request.with_attributes(&[("user", "1"), ("user", "2")]).unwrap_err();
    assert_eq!(error, InvalidRequest::DuplicateAttribute { name: "user".to_owned() });
}

#[test]
fn what_is_free_stays_free_and_only_that() {
    let engine = engine();
    for _ in 0..5 {
        assert!(is_allowed(&engine, "GET", "/static/app.js", &[]));
    }
    // Another path by case, to the letter of the contract.
    let request = Request::new("POST", "/V1/login").unwrap();
    assert!(engine.check(&request).decisions().all(|limit| &*limit.rule().name != "login"));
}

#[test]
fn an_exemption_by_path_holds_only_where_the_path_is_sure() {
    let ip: &[(&str, &str)] = &[("ip", "203.0.113.9")];
    let engine = engine();
    for _ in 0..3 {
        assert!(is_allowed(&engine, "GET", "/media/a", ip));
    }
    assert!(is_allowed(&engine, "GET", "/x", ip));
    assert!(!is_allowed(&engine, "GET", "/x", ip));
    assert!(!is_allowed(&engine, "GET", "/media/..%2Fx", ip), "a way around");
    assert!(is_allowed(&engine, "GET", "/media/a%2Fb", ip), "within it either way");
}

/// 200 of 200 requests passed a limit of 5 an hour: each came from another port, as Go's `RemoteAddr` says it.
#[test]
fn a_port_behind_an_address_makes_no_other_client() {
    let rules = "rules:
      - { name: per_ip, per: ip, limit: 1/h }
      - { name: inside, match: { ip: 10.0.0.0/8 }, per: [], limit: 1/h }
      - { name: exact, match: { ip: { equal: 192.0.2.9 } }, per: [], limit: 1/h }";
    let rules = RuleFile::parse("rules.yaml", rules).unwrap().rules;
    let mut ban = Override::new("ip:198.51.100.7:80", Effect::Ban);
    ban.reason = Some("a test".into());
    let engine = Engine::new(rules.with_overrides(vec![ban]));
    let check = |ip: &str| is_allowed(&engine, "GET", "/", &[("ip", ip)]);
    assert!(check("203.0.113.7:1001"));
    for ip in ["203.0.113.7", "203.0.113.7:1002", "[::ffff:203.0.113.7]:1003"] {
        assert!(!check(ip), "{ip}");
    }
    assert!(check("[2001:db8::1]:1001"));
    for ip in ["2001:db8::1", "[2001:db8::2]", "[2001:db8::3]:1002", "2001:db8::4%eth0"] {
        assert!(!check(ip), "{ip}");
    }
    assert!(check("10.0.0.1:1001"));
    assert!(!check("10.0.0.2:1001"), "a block of addresses holds it too");
    assert!(check("192.0.2.9:1001"));
    assert!(!check("192.0.2.9:1002"));
    assert!(!check("198.51.100.7:1001"), "a ban holds it too");
}
