//! Checks under one rule alone.

use tollbar_rules::{Engine, UsageError, Verdict};

use crate::support::{answer, ask, check, clock, engine, engine_at, expect};

/// Checks `subject` under `rule`.
fn check_subject(
    engine: &Engine,
    rule: &str,
    subject: &str,
    cost: u64,
    id: Option<&str>,
) -> Result<Verdict, UsageError> {
    let handle = engine.rule(rule)?;
    let subject = handle.subject(subject, &[])?;
    let request = subject.request()?.with_cost(cost);
    Ok(match id {
        Some(id) => handle.check(&request.with_request_id(id)),
        None => handle.check(&request),
    })
}

#[test]
fn one_rule_alone_decides_whatever_it_matches() {
    let engine = engine(
        "rules:
         - { name: tight, per: [], limit: 1/h }
         - { name: writes, match: { method: POST, path: /v1/** }, per: user, limit: 5/h }
         - { name: rest, fallback: true, limit: 7/h }
         - { name: lifted, match: { path: /x }, unlimited: true }
         - { name: off, enabled: false, limit: 1/h }
         - { name: seen, mode: shadow, limit: 1/h }
         - { name: strict, per: tenant, missing: deny, limit: 1/h }
         - { name: lax, per: tenant, missing: skip, limit: 1/h }",
    );
    let under = |rule: &str, line: &str| {
        answer(&ask(line, |request| engine.rule(rule).unwrap().check(request)))
    };
    for left in ["4", "3", "2", "1", "0"] {
        assert_eq!(under("writes", "GET / user=1"), format!("allow writes {left}"));
    }
    assert_eq!(under("writes", "GET / user=1"), "deny writes");
    // The same counters as in a request that the rule matches.
    let verdict = check(&engine, "POST /v1/x user=1 tenant=1");
    assert_eq!(answer(&verdict), "deny writes");
    assert_eq!(under("rest", "GET /"), "allow rest 6");
    assert_eq!(under("lifted", "GET /"), "allow lifted (unlimited)");
    assert_eq!(under("off", "GET /"), "allow (no rule)");
    assert_eq!(under("seen", "GET /"), "allow (no rule)");
    assert_eq!(under("seen", "GET /"), "allow (no rule)");
    assert_eq!(under("strict", "GET /"), "busy strict (no tenant)");
    assert_eq!(under("lax", "GET /"), "allow (no rule)");
    assert_eq!(under("tight", "GET /"), "allow tight 0");
    assert_eq!(under("tight", "GET / cost=2"), "never tight");
    let error = engine.rule("write").unwrap_err();
    assert_eq!(error.to_string(), "there is no rule `write`: did you mean `writes`?");
    assert_eq!(error.suggestion.as_deref(), Some("writes"));
}

#[test]
fn a_subject_is_the_value_that_the_rule_counts_by() {
    let engine = engine(
        "rules:
         - { name: client, limit: 9/h }
         - { name: user, per: user, limit: 9/h }
         - { name: ip, per: ip, limit: 9/h }
         - { name: path, per: path, limit: 9/h }
         - { name: method, per: method, limit: 9/h }",
    );
    // Whoever it is, the request and the subject have one counter.
    let table = [
        ("client", "user:42", "GET / user=42"),
        ("client", "api:abc", "GET / api_key=abc user=42"),
        ("client", "ip:203.0.113.7", "GET / ip=203.0.113.7"),
        ("client", "ip:2001:db8::7", "GET / ip=2001:db8::8"),
        ("client", "user:user:42", "GET / user=user:42"),
        ("user", "43", "GET / user=43"),
        ("user", "user:44", "GET / user=user:44"),
        ("ip", "::ffff:203.0.113.8", "GET / ip=203.0.113.8"),
        ("path", "/v1//users/", "GET /v1/users"),
        ("method", "get", "GET /"),
    ];
    for (rule, subject, line) in table {
        let remaining = |verdict: &Verdict| verdict.binding().unwrap().remaining().unwrap();
        let under = |cost| check_subject(&engine, rule, subject, cost, None).unwrap();
        let handle = engine.rule(rule).unwrap();
        let request = handle.subject(subject, &[]).unwrap();
        let request = request.request().unwrap();
        assert_eq!(remaining(&under(2)), 7, "{rule} {subject}");
        assert_eq!(remaining(&ask(line, |request| handle.check(request))), 6, "{line}");
        assert_eq!(remaining(&under(0)), 6, "{rule} {subject}");
        let usage = handle.usage(&request).unwrap();
        assert_eq!((usage[0].limit, usage[0].remaining), (9, 6));
        handle.reset(&request).unwrap();
        assert_eq!(remaining(&under(0)), 9, "{rule} {subject}");
    }
}

#[test]
fn any_other_client_is_counted_as_it_stands() {
    let engine = engine("rules: [{ name: a, limit: 9/h }]");
    let left = |subject| {
        let verdict = check_subject(&engine, "a", subject, 1, None).unwrap();
        verdict.binding().unwrap().remaining().unwrap()
    };
    assert_eq!((left("42"), left("42"), left("43"), left("User:42")), (8, 7, 8, 8));
    assert_eq!((left("192.0.2.42"), left("192.0.2.42")), (8, 7));
    // Apart from the users, keys and addresses of that name, and from nobody.
    expect(
        &engine,
        &[
            ("GET / user=42", "allow a 8"),
            ("GET / api_key=42", "allow a 8"),
            ("GET / ip=192.0.2.42", "allow a 8"),
            ("GET /", "allow a 8"),
        ],
    );
    let rule = engine.rule("a").unwrap();
    let usage = rule.usage(&rule.subject("42", &[]).unwrap().request().unwrap()).unwrap();
    assert_eq!(usage[0].subject, "42");
}

#[test]
fn exemptions_tiers_costs_and_ids_are_as_usual() {
    let clock = clock();
    let engine = engine_at(
        "rules:
         - name: a
           per: user
           limit: 10/h
           cost: 2
           tiers: { free: 6/h, gold: 100/h, default: free }
           exempt: [{ user: root }, { user: guest, until: 2023-11-15 }]",
        &clock,
    );
    let under =
        |subject, cost, id| answer(&check_subject(&engine, "a", subject, cost, id).unwrap());
    assert_eq!(under("1", 1, Some("x")), "allow a 4");
    assert_eq!(under("1", 1, Some("x")), "allow a 4");
    assert_eq!(under("1", 2, Some("x")), "busy (id reused)");
    assert_eq!(under("2", 1, Some("x")), "allow a 4");
    assert_eq!(under("1", 4, None), "never a");
    assert_eq!(under("1", 3, None), "deny a");
    assert_eq!(under("root", 1, None), "allow a (exempt)");
    assert_eq!(under("guest", 1, None), "allow a (exempt)");
    clock.set(tollbar::Timestamp::from_micros(1_700_006_400_000_000));
    assert_eq!(under("guest", 1, None), "allow a 4");
}

#[test]
fn what_is_no_subject_is_refused_with_what_to_send() {
    let engine = engine(
        "rules:
         - { name: all, per: [], limit: 9/h }
         - { name: two, per: [user, path], limit: 9/h }
         - { name: client, limit: 9/h }
         - { name: path, per: path, limit: 9/h }",
    );
    let long = "x".repeat(9_000);
    let table: [(&str, &str, &str); 7] = [
        ("none", "1", "there is no rule `none`"),
        (
            "all",
            "1",
            "rule `all` counts everybody together: send the subject `(everybody)`, or none",
        ),
        (
            "two",
            "1",
            "rule `two` counts per user and path: say which one, with a subject of 2 values, `USER | PATH`, or with attributes in its place",
        ),
        ("client", "", "the subject is empty: send whom rule `client` counts"),
        ("client", "user:", "the subject is empty: send whom rule `client` counts"),
        (
            "client",
            &long,
            "the attribute `client` is too long: send names of at most 128 bytes and values of at most 8192",
        ),
        ("path", &long, "a path of 9000 bytes is too long: send at most 8192"),
    ];
    for (rule, subject, message) in table {
        let error = check_subject(&engine, rule, subject, 1, None).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}
