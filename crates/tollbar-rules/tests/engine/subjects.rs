//! Whom rules count.

use crate::support::{engine, expect};

#[test]
fn the_client_is_the_key_the_user_or_the_address() {
    let engine = engine("rules: [{ name: a, limit: 1/h }]");
    expect(
        &engine,
        &[
            ("GET / ip=1.1.1.1", "allow a 0"),
            ("GET / ip=1.1.1.1", "deny a"),
            ("GET / ip=::ffff:1.1.1.1", "deny a"),
            ("GET / ip=1.1.1.1 user=1", "allow a 0"),
            ("GET / ip=2.2.2.2 user=1", "deny a"),
            ("GET / ip=1.1.1.1 user=1 api_key=1", "allow a 0"),
            ("GET / user=2 api_key=1", "deny a"),
            // Without the header it is the address again, which has had its turn.
            ("GET / ip=1.1.1.1 user=", "deny a"),
            // Two addresses of one /64 are one client.
            ("GET / ip=2001:db8::1", "allow a 0"),
            ("GET / ip=2001:db8::2", "deny a"),
        ],
    );
}

#[test]
fn a_missing_attribute_is_answered_as_the_rule_says() {
    let of = |missing: &str| {
        engine(&format!(
            "rules: [{{ name: a, per: user, missing: {missing}, limit: 1/h }}, {{ name: f, fallback: true, per: [], limit: 9/h }}]"
        ))
    };
    expect(
        &of("ip"),
        &[
            ("GET / ip=1.1.1.1", "allow a 0"),
            ("GET / ip=1.1.1.1", "deny a"),
            ("GET / ip=2.2.2.2", "allow a 0"),
            ("GET /", "allow a 0"),
            ("GET /", "deny a"),
        ],
    );
    expect(&of("shared"), &[("GET / ip=1.1.1.1", "allow a 0"), ("GET / ip=2.2.2.2", "deny a")]);
    // A rule that was skipped covers nobody: the fallback does.
    expect(&of("skip"), &[("GET / user=1", "allow a 0"), ("GET /", "allow f 8")]);
    expect(&of("deny"), &[("GET / user=1", "allow a 0"), ("GET /", "busy a (no user)")]);
}

#[test]
fn keys_are_of_the_rule_and_of_every_attribute() {
    let engine = engine(
        "rules:
         - { name: a, per: [user, path], limit: 1/h }
         - { name: b, per: [user, path], limit: 2/h }",
    );
    expect(
        &engine,
        &[
            ("GET /x user=1", "allow a 0"),
            ("GET /x user=1", "deny a"),
            ("GET /y user=1", "allow a 0"),
            ("GET /x user=2", "allow a 0"),
        ],
    );
}
