//! Calls that our own rules decide.

use super::*;

const RULES: &str = "
rules:
  - { name: per_ip, match: { domain: edge }, per: [ip], limit: 2/min, algorithm: fixed_window }
  - { name: login, match: { domain: edge, method: POST, path: /login }, per: [ip], limit: 1/10s }
  - { name: health, match: { path: /health }, unlimited: true, priority: 9 }
  - { name: keyed, match: { domain: keyed }, per: [user], missing: deny, limit: 5/hour }
";

#[test]
fn entries_are_attributes() {
    let service = Service::of_rules(RULES);
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
    let service = Service::of_rules(RULES);
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
    let service = Service::of_rules(RULES);
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
fn what_rules_cannot_take_is_told() {
    let service = Service::of_rules(RULES);
    for (entries, message) in [
        (
            &[("user", "1"), ("user", "2")][..],
            "descriptors[0]: the attribute `user` has two values: send one, or join them",
        ),
        (
            &[("path", "/a"), (":path", "/b")],
            "descriptors[0]: the attribute `path` has two values: send one, or join them",
        ),
        (
            &[("domain", "other")],
            "descriptors[0]: the attribute `domain` has two values: send one, or join them",
        ),
        (
            &[("client", "x")],
            "descriptors[0]: `client` is not an attribute to be sent: it is taken from the request \
             itself",
        ),
    ] {
        let status = service.ask(&call("edge", &[entries])).unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, message));
    }
    let status = service.ask(&giving_back(call("edge", &[&[("user", "1")]]), 1)).unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("rules give back by receipts"));
    // A rule that cannot do without an attribute denies.
    assert_eq!(service.says(&call("keyed", &[&[("tenant", "x")]])), "OVER: OVER");
}

#[test]
fn rules_about_what_is_in_flight_are_refused() {
    for lease in ["", ", lease: 30s"] {
        let rule = format!("name: jobs, match: {{ domain: jobs }}, per: [], limit: 1{lease}");
        let rules = format!("rules: [{{ {rule}, algorithm: concurrency }}]");
        let one = call("jobs", &[&[("user", "1")]]);
        let two = call("jobs", &[&[("user", "1")], &[("user", "2")]]);
        for (service, request) in
            [(Service::of_rules(&rules), one), (Service::of_rules(&rules).all_or_none(), two)]
        {
            for _ in 0..3 {
                let status = service.ask(&request).unwrap_err();
                assert_eq!(status.code(), tonic::Code::FailedPrecondition);
                assert!(status.message().starts_with("rule `jobs` limits what is in flight"));
            }
            // Nobody was kept out by it.
            let attributes = [("domain", "jobs")];
            let request = tollbar_rules::Request::new("GET", "/").unwrap();
            let request = request.with_attributes(&attributes).unwrap();
            let admission = service.envoy.daemon.engine.try_admit(&request, None).unwrap();
            assert!(admission.verdict.is_allowed(), "{rules}");
        }
    }
}

#[test]
fn domains_of_files_come_first_and_rules_may_be_absent() {
    let mut service = Service::of_rules(RULES);
    let file = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: hour, requests_per_unit: 100 }
";
    service.envoy.limits.replace(Domains::parse("f", file).unwrap());
    let ip: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    assert_eq!(service.says(&call("edge", &[ip])), "OK: OK 99/100");
    assert_eq!(service.says(&call("keyed", &[&[("user", "1")]])), "OK: OK 4/5");
    service.envoy.config.has_rules = false;
    assert_eq!(service.says(&call("keyed", &[&[("user", "1")]])), "OK: OK");
}

#[test]
fn several_descriptors_are_one_request_where_all_or_none_are_charged() {
    let first: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    let second: &[(&str, &str)] = &[("remote_address", "192.0.2.2")];
    let both = call("edge", &[first, second]);
    for (service, left) in [
        (Service::of_rules(RULES), "OVER: OVER 0/2"),
        (Service::of_rules(RULES).all_or_none(), "OK: OK 0/2"),
    ] {
        assert_eq!(service.says(&call("edge", &[second])), "OK: OK 1/2");
        assert_eq!(service.says(&both), "OK: OK 1/2 | OK 0/2");
        assert!(service.says(&both).starts_with("OVER: OK 0/2 | OVER 0/2"));
        // The first has paid for the denied call, or not.
        assert_eq!(service.says(&call("edge", &[first])), left);
    }
    // The same where a limit that is brought along denies, and where a rule denies one.
    let service = Service::of_rules(RULES).all_or_none();
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
    let used = |service: &Service| {
        let rows = service.tally.take_all();
        let told = |it: &crate::usage::UsageRow| {
            format!("{} +{} -{}", it.subject, it.admitted_cost, it.denied_cost)
        };
        rows.iter().map(told).collect::<Vec<_>>().join(", ")
    };
    for (service, given_back) in [
        (Service::of_rules(RULES), "ip:192.0.2.1 +1 -0, ip:192.0.2.2 +0 -1"),
        (Service::of_rules(RULES).all_or_none(), "ip:192.0.2.2 +0 -1"),
    ] {
        service.says(&call("edge", &[second]));
        service.says(&both);
        assert_eq!(used(&service), "ip:192.0.2.1 +1 -0, ip:192.0.2.2 +2 -0");
        service.says(&both);
        assert_eq!(used(&service), given_back);
    }
}
