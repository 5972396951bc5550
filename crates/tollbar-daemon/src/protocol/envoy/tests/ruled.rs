//! Calls that our own rules decide.

use tollbar_rules::{Effect, Override};

use super::*;
use crate::decision_log::DecisionId;

const RULES: &str = "
rules:
  - { name: per_ip, match: { domain: edge }, per: [ip], limit: 2/min, algorithm: fixed_window }
  - { name: login, match: { domain: edge, method: POST, path: /login }, per: [ip], limit: 1/10s }
  - { name: health, match: { path: /health }, unlimited: true, priority: 9 }
  - { name: keyed, match: { domain: keyed }, per: [user], missing: deny, limit: 5/hour }
";

#[test]
fn entries_are_attributes() {
    let service = TestService::from_rules(RULES);
    let ip: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    assert_eq!(service.says(&call("edge", &[ip])), "OK: OK 1/2");
    // Another domain is not matched; another address is another client.
    assert_eq!(service.says(&call("other", &[ip])), "OK: OK");
    assert_eq!(service.says(&call("edge", &[&[("remote_address", "192.0.2.2")]])), "OK: OK 1/2");
    let login: &[(&str, &str)] =
        &[("remote_address", "192.0.2.1"), (":method", "post"), (":path", "/login?a=b")];
    assert_eq!(service.says(&call("edge", &[login])), "OK: OK 0/1");
    assert!(service.says(&call("edge", &[login])).starts_with("OVER: OVER"));
    let health: &[(&str, &str)] = &[("remote_address", "192.0.2.1"), ("path", "/health")];
    assert_eq!(service.says(&call("edge", &[health])), "OK: OK unlimited");
}

#[test]
fn the_rule_that_binds_is_the_limit_that_is_told() {
    let service = TestService::from_rules(RULES);
    let request = call("edge", &[&[("remote_address", "192.0.2.1")]]);
    let status = service.ask(&request).unwrap().statuses.remove(0);
    let limit = status.current_limit.unwrap();
    // 2 is MINUTE.
    assert_eq!((&*limit.name, limit.requests_per_unit, limit.unit), ("per_ip", 2, 2));
    assert_eq!(status.duration_until_reset.unwrap().seconds, 60);

    let login: &[(&str, &str)] =
        &[("remote_address", "192.0.2.9"), ("method", "POST"), ("path", "/login")];
    let status = service.ask(&call("edge", &[login])).unwrap().statuses.remove(0);
    let limit = status.current_limit.unwrap();
    // Ten seconds are no unit of the protocol.
    assert_eq!((&*limit.name, limit.requests_per_unit, limit.unit), ("login", 1, 0));
}

#[test]
fn a_denial_has_the_body_that_the_daemon_has_for_one() {
    let service = TestService::from_rules(RULES);
    let request = hitting(call("edge", &[&[("remote_address", "192.0.2.1")]]), 3);
    let denied = |request: &RateLimitRequest| {
        let response = service.ask(request).unwrap();
        assert_eq!(response.overall_code, Code::OverLimit as i32);
        assert_eq!(response.response_headers_to_add[0].key, "content-type");
        String::from_utf8(response.raw_body).unwrap()
    };
    let message = "This request costs more than its limit can ever hold";
    let never =
        format!(r#"{{"error":"cost_exceeds_limit","message":"{message}","rule":"per_ip"}}"#);
    assert_eq!(denied(&request), never);
    // Nothing was charged: rules are all or nothing.
    let request = hitting(request, 2);
    assert_eq!(service.says(&request), "OK: OK 0/2");
    let later = r#"{"error":"rate_limit_exceeded","message":"Too many requests","rule":"per_ip"}"#;
    assert_eq!(denied(&request), later);
}

#[test]
fn what_rules_cannot_take_is_denied_and_counted() {
    let service = TestService::from_rules(RULES);
    let long = "v".repeat(8_193);
    let facts = |entries: &[(&str, &str)]| {
        let request = call("edge", &[entries]);
        assert_eq!(service.says(&request), "OVER: OVER", "{entries:?}");
    };
    facts(&[("user", "1"), ("user", "2")]);
    facts(&[("generic_key", "a"), ("generic_key", "b")]);
    facts(&[("path", "/a"), (":path", "/b")]);
    facts(&[("domain", "other")]);
    facts(&[("client", "x")]);
    facts(&[("user", &long)]);
    facts(&[(":path", &format!("/{long}"))]);
    assert_eq!(service.count("rejected"), 7);
    assert_eq!(service.says(&giving_back(call("edge", &[&[("user", "1")]]), 1)), "OVER: OVER");
    // A rule that cannot do without an attribute denies, and that is a mistake as well.
    assert_eq!(service.says(&call("keyed", &[&[("tenant", "x")]])), "OVER: OVER");
    assert_eq!((service.count("rejected"), service.count("deny")), (9, 0));
}

/// 100 of 100 passed a limit of 5 in 15 minutes: the path was too long with its query, the call was answered
/// `INVALID_ARGUMENT`, and Envoy lets pass what is answered with an error.
#[test]
fn a_long_query_does_not_make_a_path_too_long() {
    let service = TestService::from_rules(RULES);
    let path = format!("/login?pad={}", "x".repeat(8_200));
    let login: &[(&str, &str)] =
        &[("remote_address", "192.0.2.1"), (":method", "POST"), (":path", &path)];
    assert_eq!(service.says(&call("edge", &[login])), "OK: OK 0/1");
    assert_eq!(service.says(&call("edge", &[login])), "OVER: OVER 0/1");
}

#[test]
fn a_descriptor_that_cannot_be_decided_voids_no_other() {
    let good: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    let bad: &[(&str, &str)] = &[("user", "1"), ("user", "2")];
    let both = call("edge", &[good, bad]);
    let service = TestService::from_rules(RULES);
    assert_eq!(service.says(&both), "OVER: OK 1/2 | OVER");
    assert_eq!(service.says(&both), "OVER: OK 0/2 | OVER");
    assert_eq!(service.says(&both), "OVER: OVER 0/2 | OVER");
    // All or none: what was charged for what is denied is given back.
    let service = TestService::from_rules(RULES).all_or_none();
    for _ in 0..3 {
        assert_eq!(service.says(&both), "OVER: OK 1/2 | OVER");
    }
    assert_eq!(service.says(&call("edge", &[good])), "OK: OK 1/2");
}

/// A call that met a rule about what is in flight was answered `FAILED_PRECONDITION`, which Envoy lets pass: a tenant
/// whose sub-limit is such a rule lifted all limits on itself.
#[test]
fn rules_about_what_is_in_flight_void_no_other_limit() {
    for in_flight in
        ["per: [], limit: 1, lease: 30s", "per: [], limit: 1, lease: 30s, mode: shadow"]
    {
        let rules = format!(
            "rules:
              - {{ name: jobs, {in_flight}, algorithm: concurrency, priority: 1, stop: true }}
              - {{ name: rate, per: [], limit: 2/h, algorithm: fixed_window }}"
        );
        let request = call("jobs", &[&[("user", "1")]]);
        for service in
            [TestService::from_rules(&rules), TestService::from_rules(&rules).all_or_none()]
        {
            assert_eq!(service.says(&request), "OK: OK 1/2");
            assert_eq!(service.says(&request), "OK: OK 0/2");
            assert_eq!(service.says(&request), "OVER: OVER 0/2");
            assert_eq!(service.metric("tollbar_permit_limits_skipped_total"), 3);
            // No permit was taken.
            let request = tollbar_rules::Request::new("GET", "/").unwrap().with_cost(0);
            let admission = service.envoy.daemon.engine.try_admit(&request, None).unwrap();
            let permits = admission.verdict.decisions().find(|limit| &*limit.rule().name == "jobs");
            assert_eq!(permits.unwrap().remaining(), Some(1));
        }
    }
}

const BOTH: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: hour, requests_per_unit: 100 }
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 3, name: per_user }
";

fn with_files(service: TestService) -> TestService {
    service.envoy.limits.replace(Domains::parse("f", BOTH).unwrap());
    service
}

/// With `--envoy-config`, rules of the database and `--limit` were not asked: 50 of 50 passed 3 an hour.
#[test]
fn rules_apply_to_domains_of_files_as_well() {
    let ip: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    let user: &[(&str, &str)] = &[("user", "1")];
    let service = with_files(TestService::from_rules(RULES));
    assert_eq!(service.says(&call("edge", &[ip])), "OK: OK 1/2");
    assert_eq!(service.says(&call("edge", &[ip])), "OK: OK 0/2");
    assert_eq!(service.says(&call("edge", &[ip])), "OVER: OVER 0/2");
    // Descriptors of one call describe one request, which pays each rule once: its address is known here.
    let service = with_files(TestService::from_rules(RULES));
    assert_eq!(service.says(&call("edge", &[user, ip])), "OK: OK 1/2 | OK 99/100");
    assert_eq!(service.says(&call("edge", &[user, ip])), "OK: OK 0/2 | OK 98/100");
    assert_eq!(service.says(&call("edge", &[user, ip])), "OVER: OVER 0/2 | OK 97/100");
    // What files deny, rules do not allow.
    let service =
        with_files(TestService::from_rules("rules: [{ name: all, per: [], limit: 50/h }]"));
    for expected in ["OK: OK 2/3", "OK: OK 1/3", "OK: OK 0/3", "OVER: OVER 0/3"] {
        assert_eq!(service.says(&call("edge", &[user])), expected);
    }
    // All or none: what one denies, the other does not charge.
    let service = with_files(TestService::from_rules(RULES)).all_or_none();
    let address = |value| [("remote_address", value)];
    let [second, third, fourth] = ["192.0.2.2", "192.0.2.3", "192.0.2.4"].map(address);
    for _ in 0..2 {
        service.says(&call("edge", &[ip]));
    }
    assert_eq!(service.says(&call("edge", &[ip, user])), "OVER: OVER 0/2 | OK 3/3");
    assert_eq!(service.says(&call("edge", &[&second, user])), "OK: OK 1/2 | OK 2/3");
    assert_eq!(service.says(&call("edge", &[&third, user])), "OK: OK 1/2 | OK 1/3");
    assert_eq!(service.says(&call("edge", &[&third, user])), "OK: OK 0/2 | OK 0/3");
    assert_eq!(service.says(&call("edge", &[&fourth, user])), "OVER: OK 1/2 | OVER 0/3");
    assert_eq!(service.says(&call("edge", &[&fourth])), "OK: OK 1/2", "it was given back");
    // Without rules, an unknown domain has no limit, and that is counted.
    let mut service = with_files(TestService::from_rules(RULES));
    service.envoy.config.has_rules = false;
    assert_eq!(service.says(&call("edge", &[ip])), "OK: OK 99/100");
    assert_eq!(service.says(&call("keyed", &[user])), "OK: OK");
}

#[test]
fn descriptors_that_contradict_each_other_are_each_asked_of_the_rules() {
    let rules = "rules:
      - { name: login, match: { generic_key: login }, per: [ip], limit: 2/h, algorithm: fixed_window }";
    let address: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    let [api, login]: [&[(&str, &str)]; 2] =
        [&[("generic_key", "api")], &[("generic_key", "login")]];
    let both: &[(&str, &str)] = &[("generic_key", "api"), ("generic_key", "login")];
    for descriptors in [&[address, api, login][..], &[login, address, api], &[address, both]] {
        let service = with_files(TestService::from_rules(rules));
        let request = call("edge", descriptors);
        let overall = || name(service.ask(&request).unwrap().overall_code);
        assert_eq!([overall(), overall(), overall()], ["OK", "OK", "OVER"], "{descriptors:?}");
    }
    let many: Vec<String> = (0..65).map(|value| value.to_string()).collect();
    let pairs: Vec<(&str, &str)> = (0..64).map(|at| (many[at].as_str(), "v")).collect();
    let more = [(many[64].as_str(), "v"), ("client", "nobody asks for it")];
    let service = with_files(TestService::from_rules(rules));
    assert_eq!(service.says(&call("edge", &[&pairs[..60]])), "OK: OK");
    assert_eq!(service.says(&call("edge", &[&pairs[..60], &more])), "OK: OK | OK");
    assert_eq!(service.says(&call("edge", &[&pairs, &more])), "OVER: OVER | OK");
}

#[test]
fn what_nothing_limits_is_counted() {
    let service = TestService::from_rules(RULES);
    service.says(&call("nobody", &[&[("remote_address", "192.0.2.1")]]));
    assert_eq!(service.count("no_rule"), 1);
    service.says(&call("edge", &[&[("path", "/health")]]));
    assert_eq!((service.count("no_rule"), service.count("allow")), (1, 1), "a rule lets it pass");

    let service = with_files(TestService::from_rules("rules: []"));
    service.says(&call("edge", &[&[("usr", "misspelt")], &[("user", "1")]]));
    assert_eq!((service.count("no_rule"), service.count("allow")), (1, 1));
    service.says(&call("unknown", &[&[("user", "1")]]));
    assert_eq!(service.count("no_rule"), 2);
    // Rules that limit the call limit all of its descriptors.
    let service = with_files(TestService::from_rules(RULES));
    service.says(&call("edge", &[&[("usr", "misspelt")], &[("remote_address", "192.0.2.1")]]));
    assert_eq!((service.count("no_rule"), service.count("allow")), (0, 2));
}

#[test]
fn bans_and_boosts_under_every_rule_apply_to_limits_of_files_and_to_brought_ones() {
    let rules =
        |overrides| RuleFile::parse("r", "rules: []").unwrap().rules.with_overrides(overrides);
    let service = with_files(TestService::from_rules("rules: []"));
    let engine = &service.envoy.daemon.engine;
    let user: &[(&str, &str)] = &[("user", "1")];
    let mut brought = call("edge", &[user]);
    brought.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 2, unit: 4 });
    let mut unknown = brought.clone();
    unknown.domain = "unknown".to_owned();
    engine.replace(rules(vec![Override::new("user:1", Effect::Ban)])).unwrap();
    for request in [&call("edge", &[user]), &brought, &unknown] {
        let response = service.ask(request).unwrap();
        assert_eq!(name(response.overall_code), "OVER");
        assert!(response.raw_body.starts_with(br#"{"error":"banned""#), "{response:?}");
    }
    assert_eq!((service.count("deny"), service.count("allow")), (3, 0), "each once");
    // A client cannot hide from its ban by sending too much.
    let long = "v".repeat(9_000);
    unknown.descriptors[0].entries.push(Entry { key: "agent".to_owned(), value: long });
    assert_eq!(service.says(&unknown), "OVER: OVER");
    assert_eq!(service.says(&call("edge", &[&[("user", "2")]])), "OK: OK 2/3");

    let boost = Override::new("user:1", Effect::Boost { factor_percent: 200 });
    engine.replace(rules(vec![boost])).unwrap();
    assert_eq!(service.says(&call("edge", &[user])), "OK: OK 5/6");
    assert_eq!(service.says(&brought), "OK: OK 3/4");
    // What was used stays used.
    engine.replace(rules(vec![])).unwrap();
    assert_eq!(service.says(&call("edge", &[user])), "OK: OK 1/3");
}

#[test]
fn denials_by_files_can_be_looked_up() {
    let service = with_files(TestService::from_rules("rules: []"));
    let user: &[(&str, &str)] = &[("user", "1")];
    service.says(&hitting(call("edge", &[user]), 3));
    let response = service.ask(&call("edge", &[user])).unwrap();
    let header = response.response_headers_to_add.last().unwrap();
    assert_eq!(header.key, "x-tollbar-decision-id");
    let id = DecisionId::parse(&header.value).unwrap();
    let denial = service.envoy.daemon.decision_log.find(id).unwrap();
    assert_eq!(&*denial.verdict.rule().unwrap().name, "envoy:edge:per_user");
    let binding = denial.verdict.binding().unwrap();
    assert_eq!((binding.limit().text(), binding.remaining()), ("3/hour", Some(0)));
    let asked = r#"{"attributes":{"user":"1"},"cost":1,"rule":"envoy:edge:per_user"}"#;
    assert_eq!(denial.request.as_deref(), Some(asked));
    // It stays when rules change, however often.
    for _ in 0..10 {
        service.envoy.daemon.engine.replace(tollbar_rules::RuleSet::empty()).unwrap();
        service.says(&call("keyed", &[user]));
    }
    assert!(service.envoy.daemon.decision_log.find(id).is_some());
}

#[test]
fn several_descriptors_are_one_request_where_all_or_none_are_charged() {
    let first: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    let second: &[(&str, &str)] = &[("remote_address", "192.0.2.2")];
    let both = call("edge", &[first, second]);
    for (service, left) in [
        (TestService::from_rules(RULES), "OVER: OVER 0/2"),
        (TestService::from_rules(RULES).all_or_none(), "OK: OK 0/2"),
    ] {
        assert_eq!(service.says(&call("edge", &[second])), "OK: OK 1/2");
        assert_eq!(service.says(&both), "OK: OK 1/2 | OK 0/2");
        assert!(service.says(&both).starts_with("OVER: OK 0/2 | OVER 0/2"));
        // The first has paid for the denied call, or not.
        assert_eq!(service.says(&call("edge", &[first])), left);
    }
    // The same where a limit that is brought along denies, and where a rule denies one.
    let service = TestService::from_rules(RULES).all_or_none();
    let mut brought = both.clone();
    brought.descriptors[1].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 3 });
    assert_eq!(service.says(&brought), "OK: OK 1/2 | OK 0/1");
    assert_eq!(service.says(&brought), "OVER: OK 0/2 | OVER 0/1");
    assert_eq!(service.says(&call("edge", &[first])), "OK: OK 0/2");
    brought.descriptors[1].limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 3 });
    assert_eq!(service.says(&brought), "OVER: OVER 0/2 | OK 4/5");
    assert_eq!(service.says(&brought), "OVER: OVER 0/2 | OK 4/5");
}

#[test]
fn usage_is_what_was_not_given_back() {
    let first: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    let second: &[(&str, &str)] = &[("remote_address", "192.0.2.2")];
    let both = call("edge", &[first, second]);
    let used = |service: &TestService| {
        let rows = service.tally.take_all();
        let told = |row: &crate::usage::UsageRow| {
            format!("{} +{} -{}", row.subject, row.admitted_cost, row.denied_cost)
        };
        rows.iter().map(told).collect::<Vec<_>>().join(", ")
    };
    for (service, given_back) in [
        (TestService::from_rules(RULES), "ip:192.0.2.1 +1 -0, ip:192.0.2.2 +0 -1"),
        (TestService::from_rules(RULES).all_or_none(), "ip:192.0.2.2 +0 -1"),
    ] {
        service.says(&call("edge", &[second]));
        service.says(&both);
        assert_eq!(used(&service), "ip:192.0.2.1 +1 -0, ip:192.0.2.2 +2 -0");
        service.says(&both);
        assert_eq!(used(&service), given_back);
    }
}
