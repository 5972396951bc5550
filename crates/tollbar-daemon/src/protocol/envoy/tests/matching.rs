//! Which limit a descriptor meets: the examples of the reference's README, and what its code does
//! beyond them.

use super::*;

/// The limit that a descriptor meets, as `500/second`.
fn matched(domains: &Domains, domain: &str, entries: &[(&str, &str)]) -> String {
    let Some(matched) = domains.find_rule(domain, entries.iter().copied()) else {
        return "-".to_owned();
    };
    match &matched.rule.limit {
        None => "unlimited".to_owned(),
        Some(limit) => format!("{}/{:?}", limit.requests_per_unit, limit.unit).to_lowercase(),
    }
}

fn check(file: &str, domain: &str, expected: &[(&[(&str, &str)], &str)]) {
    let domains = Domains::parse("limits.yaml", file).unwrap();
    for (entries, limit) in expected {
        assert_eq!(matched(&domains, domain, entries), *limit, "{entries:?}");
    }
}

#[test]
fn example_1_a_limit_for_each_value() {
    let file = "
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit:
      unit: second
      requests_per_unit: 500
  - key: database
    value: default
    rate_limit:
      unit: second
      requests_per_unit: 400
";
    check(
        file,
        "mongo_cps",
        &[
            (&[("database", "users")], "500/second"),
            (&[("database", "default")], "400/second"),
            (&[("database", "other")], "-"),
            (&[("database", "Users")], "-"),
            (&[("Database", "users")], "-"),
        ],
    );
    check(file, "other_domain", &[(&[("database", "users")], "-")]);
}

#[test]
fn example_2_nested_descriptors() {
    let file = "
domain: messaging
descriptors:
  # Only allow 5 marketing messages a day
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit:
          unit: day
          requests_per_unit: 5
  # Only allow 100 messages a day to any unique phone number
  - key: to_number
    rate_limit:
      unit: day
      requests_per_unit: 100
";
    check(
        file,
        "messaging",
        &[
            (&[("message_type", "marketing"), ("to_number", "2061111111")], "5/day"),
            (&[("to_number", "2061111111")], "100/day"),
            (&[("message_type", "marketing")], "-"),
            (&[("to_number", "2061111111"), ("message_type", "marketing")], "-"),
            (&[("message_type", "other"), ("to_number", "2061111111")], "-"),
        ],
    );
}

#[test]
fn example_3_the_most_specific_first() {
    let file = "
domain: edge_proxy_per_ip
descriptors:
  - key: remote_address
    rate_limit:
      unit: second
      requests_per_unit: 10
  # Black list IP
  - key: remote_address
    value: 50.0.0.5
    rate_limit:
      unit: second
      requests_per_unit: 0
";
    check(
        file,
        "edge_proxy_per_ip",
        &[
            (&[("remote_address", "50.0.0.1")], "10/second"),
            (&[("remote_address", "50.0.0.5")], "0/second"),
            (&[("remote_address", "")], "10/second"),
        ],
    );
}

#[test]
fn example_4_as_many_entries_as_levels() {
    let flat = "
domain: example4
descriptors:
  - key: key
    value: value
    rate_limit: { requests_per_unit: 300, unit: second }
";
    let request: &[(&str, &str)] = &[("key", "value"), ("subkey", "subvalue")];
    check(flat, "example4", &[(request, "-"), (&request[..1], "300/second")]);
    let nested = "
domain: example4
descriptors:
  - key: key
    value: value
    descriptors:
      - key: subkey
        rate_limit: { requests_per_unit: 300, unit: second }
";
    check(nested, "example4", &[(request, "300/second"), (&request[..1], "-")]);
}

#[test]
fn example_5_unlimited() {
    let file = "
domain: internal
descriptors:
  - key: ldap
    rate_limit:
      unlimited: true
  - key: azure
    rate_limit:
      unit: minute
      requests_per_unit: 100
";
    check(file, "internal", &[(&[("ldap", "x")], "unlimited"), (&[("azure", "x")], "100/minute")]);
    let service = TestService::from_file(file);
    let request = call("internal", &[&[("ldap", "x")], &[("azure", "x")], &[("other", "x")]]);
    assert_eq!(service.says(&request), "OK: OK unlimited | OK 99/100 | OK");
}

#[test]
fn example_7_a_limit_that_replaces_another() {
    let file = "
domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: bkthomps
        rate_limit:
          name: specific_limit
          requests_per_unit: 5
          unit: second
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: bkthomps
        rate_limit:
          replaces:
            - name: specific_limit
          requests_per_unit: 10
          unit: second
";
    let service = TestService::from_file(file);
    let first: &[(&str, &str)] = &[("key_1", "value_1"), ("user", "bkthomps")];
    let second: &[(&str, &str)] = &[("key_2", "value_2"), ("user", "bkthomps")];
    assert_eq!(service.says(&call("example7", &[first])), "OK: OK 4/5");
    assert_eq!(service.says(&call("example7", &[first, second])), "OK: OK | OK 9/10");
    // What was replaced has not been charged.
    assert_eq!(service.says(&call("example7", &[first])), "OK: OK 3/5");
    let response = service.ask(&call("example7", &[first])).unwrap();
    let limit = response.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!(limit.name, "specific_limit");
}

#[test]
fn example_8_detailed_metrics_change_no_decision() {
    let file = "
domain: example8
descriptors:
  - key: key1
    detailed_metric: true
    value_to_metric: yes
    rate_limit: { unit: minute, requests_per_unit: 10 }
  - key: key1
    value: value1
    rate_limit: { unit: minute, requests_per_unit: 20 }
";
    check(
        file,
        "example8",
        &[(&[("key1", "unspecified")], "10/minute"), (&[("key1", "value1")], "20/minute")],
    );
}

#[test]
fn example_9_wildcards_count_each_value_by_itself() {
    let file = "
domain: example9
descriptors:
  - key: key1
    value: value*
    rate_limit: { unit: minute, requests_per_unit: 20 }
";
    check(
        file,
        "example9",
        &[
            (&[("key1", "value1")], "20/minute"),
            (&[("key1", "value")], "20/minute"),
            (&[("key1", "other")], "-"),
        ],
    );
    let service = TestService::from_file(file);
    let request = |value| call("example9", &[&[("key1", value)]]);
    assert_eq!(service.says(&request("value1")), "OK: OK 19/20");
    assert_eq!(service.says(&request("value2")), "OK: OK 19/20");
}

/// They matched nothing: only a `*` at the end was a wildcard.
#[test]
fn a_wildcard_anywhere_in_a_value_stands_for_any_text() {
    let values = |pattern: &str| {
        let file = format!(
            "{{ domain: d, descriptors: [{{ key: path, value: '{pattern}', \
             rate_limit: {{ unit: hour, requests_per_unit: 1 }} }}] }}"
        );
        let domains = Domains::parse("limits.yaml", &file).unwrap();
        move |value: &str| matched(&domains, "d", &[("path", value)]) == "1/hour"
    };
    for (pattern, matching, other) in [
        (
            "/api/*/action",
            &["/api/7/action", "/api//action", "/api/a/b/action", "/api/*/action"][..],
            &["/api/action", "/api/7/action/", "/api/7/actions", "x/api/7/action", ""][..],
        ),
        ("*.example.com", &["a.example.com", ".example.com"], &["example.com", "a.example.comx"]),
        ("a*b*c", &["abc", "a-b-c", "abbcc", "ab-b-c"], &["ac", "acb", "abcd", "a-c"]),
        ("ab*ba", &["abba", "ab-ba"], &["aba", "ab", "ba"]),
        ("a**b", &["ab", "axb"], &["a", "b"]),
        ("*", &["", "anything"], &[]),
        ("a*é*b", &["aéb", "a-é-b"], &["ab", "aeb"]),
    ] {
        let matches = values(pattern);
        assert!(matching.iter().all(|value| matches(value)), "{pattern}: {matching:?}");
        assert!(!other.iter().any(|value| matches(value)), "{pattern}: {other:?}");
    }
}

#[test]
fn exact_before_wildcard_before_key_and_the_first_wildcard_of_the_file() {
    let file = "
domain: order
descriptors:
  - key: path
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: path
    value: /a*
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: path
    value: /a/b*
    rate_limit: { unit: hour, requests_per_unit: 3 }
  - key: path
    value: /a/b
    rate_limit: { unit: hour, requests_per_unit: 4 }
  - key: x-*
    rate_limit: { unit: hour, requests_per_unit: 5 }
  - key: path
    value: /b/*/c
    rate_limit: { unit: hour, requests_per_unit: 6 }
  - key: path
    value: /b/*
    rate_limit: { unit: hour, requests_per_unit: 7 }
";
    check(
        file,
        "order",
        &[
            (&[("path", "/a/b")], "4/hour"),
            // Not the longest.
            (&[("path", "/a/b/c")], "2/hour"),
            (&[("path", "/z")], "1/hour"),
            // A wildcard is compared with key and value joined.
            (&[("x-tenant", "acme")], "5/hour"),
            (&[("path", "/b/1/c")], "6/hour"),
            (&[("path", "/b/1/d")], "7/hour"),
        ],
    );
}

#[test]
fn keys_and_values_are_joined_as_the_reference_joins_them() {
    let file = "
domain: joined
descriptors:
  - key: a
    value: b_c
    rate_limit: { unit: hour, requests_per_unit: 1 }
";
    check(file, "joined", &[(&[("a_b", "c")], "1/hour"), (&[("a_b_c", "")], "1/hour")]);
    // They meet one limit, and are counted apart.
    let service = TestService::from_file(file);
    assert_eq!(service.says(&call("joined", &[&[("a", "b_c")]])), "OK: OK 0/1");
    assert_eq!(service.says(&call("joined", &[&[("a_b", "c")]])), "OK: OK 0/1");
}

#[test]
fn values_below_a_wildcard_share_a_counter_where_the_file_says_so() {
    let file = "
domain: files
descriptors:
  - key: tenant
    descriptors:
      - key: file
        value: docs/*
        share_threshold: true
        descriptors:
          - key: user
            rate_limit: { unit: minute, requests_per_unit: 10 }
";
    let service = TestService::from_file(file);
    let request = |tenant, file, user| {
        call("files", &[&[("tenant", tenant), ("file", file), ("user", user)]])
    };
    assert_eq!(service.says(&request("t", "docs/a", "u")), "OK: OK 9/10");
    assert_eq!(service.says(&request("t", "docs/b", "u")), "OK: OK 8/10");
    // Only the file is shared.
    assert_eq!(service.says(&request("t", "docs/b", "v")), "OK: OK 9/10");
    assert_eq!(service.says(&request("s", "docs/b", "u")), "OK: OK 9/10");
}

#[test]
fn values_that_a_wildcard_inside_matches_share_a_counter_or_have_their_own() {
    let file = "
domain: api
descriptors:
  - key: path
    value: /api/*/shared
    share_threshold: true
    rate_limit: { unit: minute, requests_per_unit: 10 }
  - key: path
    value: /api/*/own
    rate_limit: { unit: minute, requests_per_unit: 10 }
  - key: path
    value: /api/*/part
    descriptors:
      - key: host
        value: '*.example.com'
        share_threshold: true
        rate_limit: { unit: minute, requests_per_unit: 10 }
";
    let service = TestService::from_file(file);
    let says = |path, host: Option<&str>| {
        let mut entries = vec![("path", path)];
        entries.extend(host.map(|host| ("host", host)));
        service.says(&call("api", &[&entries]))
    };
    assert_eq!(says("/api/1/shared", None), "OK: OK 9/10");
    assert_eq!(says("/api/2/shared", None), "OK: OK 8/10");
    // The wildcard itself as a value is the same counter, as in the reference.
    assert_eq!(says("/api/*/shared", None), "OK: OK 7/10");
    assert_eq!(says("/api/1/own", None), "OK: OK 9/10");
    assert_eq!(says("/api/2/own", None), "OK: OK 9/10");
    // Hosts share, and paths do not.
    assert_eq!(says("/api/1/part", Some("a.example.com")), "OK: OK 9/10");
    assert_eq!(says("/api/1/part", Some("b.example.com")), "OK: OK 8/10");
    assert_eq!(says("/api/2/part", Some("b.example.com")), "OK: OK 9/10");
}

/// Both wildcards match values of one key, and look the same without their keys.
#[test]
fn a_wildcard_in_a_key_shares_no_counter_with_one_in_a_value() {
    let limit = "rate_limit: { unit: minute, requests_per_unit: 9 }";
    let file = format!(
        "{{ domain: d, descriptors: [
             {{ key: 'a*', value: 'x*1', share_threshold: true, {limit} }},
             {{ key: ab, value: 'x*', share_threshold: true, {limit} }},
         ] }}"
    );
    let service = TestService::from_file(&file);
    let says = |value| service.says(&call("d", &[&[("ab", value)]]));
    assert_eq!([says("x-1"), says("x-2")], ["OK: OK 8/9", "OK: OK 8/9"]);
    assert_eq!([says("x-11"), says("x-22")], ["OK: OK 7/9", "OK: OK 7/9"]);

    let file = format!(
        "{{ domain: d, descriptors: [
             {{ key: ab, value: 'x*', share_threshold: true, {limit} }},
             {{ key: 'a*', value: 'x*', share_threshold: true, {limit} }},
         ] }}"
    );
    let service = TestService::from_file(&file);
    let says = |value| service.says(&call("d", &[&[("ab", value)]]));
    assert_eq!([says("x-1"), says("y_x-1")], ["OK: OK 8/9", "OK: OK 8/9"]);
    assert_eq!([says("x-2"), says("y_x-2")], ["OK: OK 7/9", "OK: OK 7/9"]);
}

#[test]
fn fifteen_levels_are_read() {
    let level = |below: String| format!("descriptors: [{{ key: k, {below} }}]");
    let leaf = "rate_limit: { unit: hour, requests_per_unit: 1 }".to_owned();
    let file = format!("{{ domain: deep, {} }}", (0..15).fold(leaf, |below, _| level(below)));
    let entries = [("k", "v"); 15];
    check(&file, "deep", &[(&entries, "1/hour")]);
}
