//! What calls of Envoy's mean for accounts.

use super::*;

const FILE: &str = "domain: edge
descriptors:
  - key: plan
    descriptors:
      - { key: user, rate_limit: { unit: hour, requests_per_unit: 3 } }
  - { key: remote_address, rate_limit: { unit: hour, requests_per_unit: 3 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }
";

/// `client tenant|- rule +tokens -denied requests admitted/denied` of each row.
fn used(service: &TestService) -> Vec<String> {
    let told = |row: &crate::usage::UsageRow| {
        let tenant = if row.tenant.is_empty() { "-" } else { &row.tenant };
        format!(
            "{} {tenant} {} +{} -{} requests {}/{}",
            row.client,
            row.rule,
            row.admitted_cost,
            row.denied_cost,
            row.admitted_requests,
            row.denied_requests
        )
    };
    service.tally.take_all().iter().map(told).collect()
}

#[test]
fn what_files_limit_is_metered_under_the_name_it_has_in_the_log_and_a_call_is_one_request() {
    let user: &[(&str, &str)] = &[("plan", "free"), ("user", "7")];
    let address: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    let both = call("edge", &[user, address, &[("shadow", "x")], &[("none", "x")]]);
    for service in [TestService::from_file(FILE), TestService::from_file(FILE).all_or_none()] {
        service.says(&hitting(both.clone(), 2));
        let expected = [
            "ip:192.0.2.1 - envoy:edge:remote_address +1 -0 requests 0/0",
            "user:7 - envoy:edge:plan.user +2 -0 requests 1/0",
        ];
        assert_eq!(used(&service), expected);
    }
}

#[test]
fn a_denied_call_is_metered_as_what_it_was_charged_and_one_denied_request() {
    let user: &[(&str, &str)] = &[("plan", "free"), ("user", "7")];
    let address: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    let both = hitting(call("edge", &[user, address]), 5);
    // By itself each descriptor is charged, whatever becomes of the call.
    let independent = [
        "ip:192.0.2.1 - envoy:edge:remote_address +1 -0 requests 0/0",
        "user:7 - envoy:edge:plan.user +0 -5 requests 0/1",
    ];
    let together = ["user:7 - envoy:edge:plan.user +0 -5 requests 0/1"];
    for (service, expected) in [
        (TestService::from_file(FILE), &independent[..]),
        (TestService::from_file(FILE).all_or_none(), &together),
    ] {
        assert!(service.says(&both).starts_with("OVER"));
        assert_eq!(used(&service), expected);
    }
}

#[test]
fn hits_that_are_taken_back_are_metered_below_zero_and_are_no_request() {
    let one = call("edge", &[&[("remote_address", "192.0.2.1"), ("tenant", "acme")]]);
    let mut brought = hitting(one, 3);
    brought.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 9, unit: 3 });
    for service in [TestService::from_file(FILE), TestService::from_file(FILE).all_or_none()] {
        service.says(&brought);
        let rule = "ip:192.0.2.1 acme envoy:edge:remote_address.tenant";
        assert_eq!(used(&service), [format!("{rule} +3 -0 requests 1/0")]);
        // No more comes back than was charged.
        for (hits, back) in [(2, "-2"), (7, "-1")] {
            service.says(&giving_back(brought.clone(), hits));
            assert_eq!(used(&service), [format!("{rule} +{back} -0 requests 0/0")]);
        }
    }
}

#[test]
fn rules_beside_files_are_metered_too_and_the_call_is_still_one_request() {
    let service = TestService::from_rules("rules: [{ name: per_client, limit: 9/h }]");
    service.envoy.limits.replace(Domains::parse("limits.yaml", FILE).unwrap());
    service.says(&call("edge", &[&[("remote_address", "192.0.2.1")]]));
    let expected = [
        "ip:192.0.2.1 - envoy:edge:remote_address +1 -0 requests 0/0",
        "ip:192.0.2.1 - per_client +1 -0 requests 1/0",
    ];
    assert_eq!(used(&service), expected);
}

#[test]
fn what_a_ban_under_all_rules_denies_is_metered_as_a_ban() {
    let service = TestService::from_file(FILE);
    let ban = tollbar_rules::Override::new("user:7", tollbar_rules::Effect::Ban);
    let rules = service.envoy.daemon.engine.rules().with_overrides(vec![ban]);
    service.envoy.daemon.engine.replace(rules).unwrap();
    let user: &[(&str, &str)] = &[("plan", "free"), ("user", "7")];
    let mut brought = hitting(call("edge", &[user]), 2);
    assert!(service.says(&brought).starts_with("OVER"));
    assert_eq!(used(&service), ["user:7 - global ban +0 -2 requests 0/1"]);
    brought.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 9, unit: 3 });
    assert!(service.says(&brought).starts_with("OVER"));
    assert_eq!(used(&service), ["user:7 - global ban +0 -2 requests 0/1"]);
}
