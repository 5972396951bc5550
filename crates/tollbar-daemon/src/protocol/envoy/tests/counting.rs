//! What is counted, and what Envoy is told of it.

use tollbar_http::{HeaderStyle, RetryJitter};

use super::*;

const TEN_A_MINUTE: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 10 }
  - key: ip
    rate_limit: { unit: minute, requests_per_unit: 3 }
";

fn user() -> RateLimitRequest {
    call("api", &[&[("user", "42")]])
}

#[test]
fn so_many_pass_and_no_more_until_the_window_ends() {
    let service = TestService::from_file(TEN_A_MINUTE);
    for remaining in (0..10).rev() {
        assert_eq!(service.says(&user()), format!("OK: OK {remaining}/10"));
    }
    assert_eq!(service.says(&user()), "OVER: OVER 0/10");
    let before_the_end = Duration::from_micros(59_749_999);
    service.clock.advance(before_the_end);
    assert_eq!(service.says(&user()), "OVER: OVER 0/10");
    service.clock.advance(Duration::from_micros(1));
    assert_eq!(service.says(&user()), "OK: OK 9/10");
}

#[test]
fn a_counter_ahead_of_the_clock_is_found_and_cleared() {
    for service in
        [TestService::from_file(TEN_A_MINUTE), TestService::from_file(TEN_A_MINUTE).all_or_none()]
    {
        let engine = &service.envoy.daemon.engine;
        service.clock.advance(Duration::from_hours(24));
        assert_eq!(service.says(&hitting(user(), 10)), "OK: OK 0/10");
        assert_eq!(service.says(&user()), "OVER: OVER 0/10");
        assert_eq!(engine.ahead_of_clock().denials, 0, "a usual denial");
        service.clock.set(NOW);
        assert_eq!(service.says(&user()), "OVER: OVER 0/10");
        engine.clear_ahead_for(Duration::from_mins(10));
        assert_eq!(service.says(&user()), "OVER: OVER 0/10");
        assert_eq!(service.says(&user()), "OK: OK 9/10");
        let found = engine.ahead_of_clock();
        assert_eq!((found.denials_without_rule, found.cleared), (2, 1));
    }
}

#[test]
fn denied_hits_count() {
    // Eight of ten; four more are too many, and then nothing passes: the reference has counted twelve.
    let service = TestService::from_file(TEN_A_MINUTE);
    assert_eq!(service.says(&hitting(user(), 8)), "OK: OK 2/10");
    assert_eq!(service.says(&hitting(user(), 4)), "OVER: OVER 0/10");
    assert_eq!(service.says(&hitting(user(), 1)), "OVER: OVER 0/10");
    assert_eq!(service.says(&hitting(user(), u64::MAX)), "OVER: OVER 0/10");
    assert_eq!(service.says(&hitting(user(), u64::MAX)), "OVER: OVER 0/10");
}

#[test]
fn denied_hits_do_not_count_where_all_or_none_are_charged() {
    let service = TestService::from_file(TEN_A_MINUTE).all_or_none();
    assert_eq!(service.says(&hitting(user(), 8)), "OK: OK 2/10");
    assert_eq!(service.says(&hitting(user(), 4)), "OVER: OVER 0/10");
    assert_eq!(service.says(&hitting(user(), 2)), "OK: OK 0/10");
}

#[test]
fn each_descriptor_is_counted_by_itself_or_all_or_none() {
    let both = call("api", &[&[("user", "42")], &[("ip", "192.0.2.1")]]);
    let service = TestService::from_file(TEN_A_MINUTE);
    let expected = ["OK: OK 9/10 | OK 2/3", "OK: OK 8/10 | OK 1/3", "OK: OK 7/10 | OK 0/3"];
    for expected in expected {
        assert_eq!(service.says(&both), expected);
    }
    assert_eq!(service.says(&both), "OVER: OK 6/10 | OVER 0/3");
    assert_eq!(service.says(&both), "OVER: OK 5/10 | OVER 0/3");

    let service = TestService::from_file(TEN_A_MINUTE).all_or_none();
    for expected in expected {
        assert_eq!(service.says(&both), expected);
    }
    assert_eq!(service.says(&both), "OVER: OK 7/10 | OVER 0/3");
    assert_eq!(service.says(&both), "OVER: OK 7/10 | OVER 0/3");
}

#[test]
fn no_hits_look_and_the_call_s_zero_is_one() {
    for service in
        [TestService::from_file(TEN_A_MINUTE), TestService::from_file(TEN_A_MINUTE).all_or_none()]
    {
        assert_eq!(service.says(&hitting(user(), 0)), "OK: OK 10/10");
        assert_eq!(service.says(&user()), "OK: OK 9/10");
        let five = RateLimitRequest { hits_addend: 5, ..user() };
        assert_eq!(service.says(&five), "OK: OK 4/10");
        // A descriptor's own number counts, not the call's.
        assert_eq!(service.says(&hitting(five.clone(), 0)), "OK: OK 4/10");
        assert_eq!(service.says(&hitting(five, 4)), "OK: OK 0/10");
        assert_eq!(service.says(&hitting(user(), 0)), "OK: OK 0/10");
    }
    // Who looks at a counter above its limit is told so, as in the reference.
    let service = TestService::from_file(TEN_A_MINUTE);
    service.says(&hitting(user(), 11));
    assert_eq!(service.says(&hitting(user(), 0)), "OVER: OVER 0/10");
}

#[test]
fn negative_hits_give_back_and_no_more_than_was_taken() {
    for service in
        [TestService::from_file(TEN_A_MINUTE), TestService::from_file(TEN_A_MINUTE).all_or_none()]
    {
        assert_eq!(service.says(&giving_back(user(), 3)), "OK: OK 10/10");
        assert_eq!(service.says(&hitting(user(), 10)), "OK: OK 0/10");
        assert_eq!(service.says(&giving_back(user(), 3)), "OK: OK 3/10");
        assert_eq!(service.says(&hitting(user(), 3)), "OK: OK 0/10");
        assert_eq!(service.says(&giving_back(user(), 1_000)), "OK: OK 10/10");
        assert_eq!(service.says(&hitting(user(), 10)), "OK: OK 0/10");
        // The window is over, and with it what could be given back.
        service.clock.advance(Duration::from_mins(1));
        assert_eq!(service.says(&giving_back(user(), 1)), "OK: OK 10/10");
    }
    // What was counted beyond the limit is given back first, and it is never too much to give back.
    let service = TestService::from_file(TEN_A_MINUTE);
    assert_eq!(service.says(&hitting(user(), 15)), "OVER: OVER 0/10");
    assert_eq!(service.says(&giving_back(user(), 3)), "OK: OK 0/10");
    assert_eq!(service.says(&hitting(user(), 0)), "OVER: OVER 0/10");
    assert_eq!(service.says(&giving_back(user(), 3)), "OK: OK 1/10");
}

#[test]
fn nothing_passes_a_limit_of_zero() {
    let file = "
domain: api
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 10 }
  - key: blocked
    rate_limit: { unit: minute, requests_per_unit: 0 }
";
    let both = call("api", &[&[("user", "42")], &[("blocked", "x")]]);
    let service = TestService::from_file(file);
    assert_eq!(service.says(&both), "OVER: OK 9/10 | OVER 0/0");
    let service = TestService::from_file(file).all_or_none();
    assert_eq!(service.says(&both), "OVER: OK 10/10 | OVER 0/0");
    assert_eq!(service.says(&both), "OVER: OK 10/10 | OVER 0/0");
}

#[test]
fn a_limit_in_shadow_denies_nothing() {
    // Example 6 of the README.
    let file = "
domain: example6
descriptors:
  - key: service
    descriptors:
      - key: user
        value: user-a
        rate_limit: { requests_per_unit: 1, unit: second }
        shadow_mode: true
      - key: user
        value: user-b
        rate_limit: { requests_per_unit: 2, unit: second }
";
    for service in [TestService::from_file(file), TestService::from_file(file).all_or_none()] {
        let request = |user| call("example6", &[&[("service", "auth-service"), ("user", user)]]);
        for _ in 0..5 {
            assert_eq!(service.says(&request("user-a")), "OK: OK 0/1");
        }
        assert_eq!(service.says(&request("user-b")), "OK: OK 1/2");
        assert_eq!(service.says(&request("user-b")), "OK: OK 0/2");
        assert_eq!(service.says(&request("user-b")), "OVER: OVER 0/2");
    }
}

const QUOTAS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 10 }
  - key: model
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: team
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
";

#[test]
fn quotas_deny_when_all_of_them_are_exceeded() {
    let request = call("api", &[&[("user", "42")], &[("model", "m")], &[("team", "t")]]);
    let service = TestService::from_file(QUOTAS);
    assert_eq!(service.says(&request), "OK: OK 9/10 | OK 0/1 | OK 1/2");
    assert_eq!(service.says(&request), "OK: OK 8/10 | OVER 0/1 | OK 0/2");
    assert_eq!(service.says(&request), "OVER: OK 7/10 | OVER 0/1 | OVER 0/2");

    let service = TestService::from_file(QUOTAS).all_or_none();
    assert_eq!(service.says(&request), "OK: OK 9/10 | OK 0/1 | OK 1/2");
    assert_eq!(service.says(&request), "OK: OK 8/10 | OVER 0/1 | OK 0/2");
    // The user has paid nothing for what was denied.
    assert_eq!(service.says(&request), "OVER: OK 8/10 | OVER 0/1 | OVER 0/2");
    assert_eq!(service.says(&request), "OVER: OK 8/10 | OVER 0/1 | OVER 0/2");

    // The only quota of a call denies by itself.
    let one = call("api", &[&[("user", "7")], &[("model", "n")]]);
    for service in [TestService::from_file(QUOTAS), TestService::from_file(QUOTAS).all_or_none()] {
        assert_eq!(service.says(&one), "OK: OK 9/10 | OK 0/1");
        assert!(service.says(&one).starts_with("OVER: OK"));
    }
    let service = TestService::from_file(QUOTAS).all_or_none();
    service.says(&one);
    assert_eq!(service.says(&one), "OVER: OK 9/10 | OVER 0/1");
}

#[test]
fn windows_begin_at_the_epoch_and_the_rest_of_one_is_rounded_up() {
    // NOW is 12:00:00.25 of a Thursday; weeks begin on Thursdays, as the epoch did.
    let since_epoch_s = NOW.as_micros() / 1_000_000;
    for (unit, length_s) in [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("DAY", 86_400),
        ("week", 604_800),
        ("month", 30 * 86_400),
        ("year", 365 * 86_400),
    ] {
        let file = format!(
            "{{ domain: d, descriptors: [{{ key: k, rate_limit: {{ unit: {unit}, \
             requests_per_unit: 10 }} }}] }}"
        );
        for service in [TestService::from_file(&file), TestService::from_file(&file).all_or_none()]
        {
            let request = call("d", &[&[("k", "v")]]);
            let status = service.ask(&request).unwrap().statuses.remove(0);
            let until_reset = status.duration_until_reset.unwrap();
            // The reference's own arithmetic, on whole seconds.
            let expected = length_s - since_epoch_s % length_s;
            assert_eq!(
                (until_reset.seconds, until_reset.nanos),
                (expected.cast_signed(), 0),
                "{unit}"
            );
            let limit = status.current_limit.unwrap();
            let to_proto =
                super::super::window_unit::WindowUnit::from_name(unit).unwrap().to_proto();
            assert_eq!((limit.requests_per_unit, limit.unit), (10, to_proto as i32));
            // To its very end and not beyond.
            service.clock.advance(Duration::from_micros(expected * 1_000_000 - 250_001));
            assert_eq!(service.says(&request), "OK: OK 8/10", "{unit}");
            service.clock.advance(Duration::from_micros(1));
            assert_eq!(service.says(&request), "OK: OK 9/10", "{unit}");
        }
    }
}

#[test]
fn a_descriptor_may_bring_its_limit() {
    let with = |requests_per_unit, unit| {
        let mut request = user();
        request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit, unit });
        request
    };
    for service in [TestService::from_file(TEN_A_MINUTE), TestService::from_rules("rules: []")] {
        // 1 is SECOND.
        assert_eq!(service.says(&with(2, 1)), "OK: OK 1/2");
        assert_eq!(service.says(&with(2, 1)), "OK: OK 0/2");
        assert_eq!(service.says(&with(2, 1)), "OVER: OVER 0/2");
        assert_eq!(service.says(&giving_back(with(2, 1), 2)), "OK: OK 1/2");
        for request in [with(2, 0), with(2, 99), with(u32::MAX, 1)] {
            assert_eq!(service.says(&request), "OVER: OVER");
        }
        assert_eq!(service.count("rejected"), 3);
    }
    // The file's own limit has not been charged.
    let service = TestService::from_file(TEN_A_MINUTE);
    service.says(&with(2, 1));
    assert_eq!(service.says(&user()), "OK: OK 9/10");
}

#[test]
fn domains_and_values_do_not_meet_in_one_counter() {
    let file = "
domain: api
descriptors:
  - key: a
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: a
    value: '1:b1:c'
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: a
    descriptors:
      - key: b
        rate_limit: { unit: hour, requests_per_unit: 1 }
";
    assert!(Domains::parse("x", file).is_err(), "the key `a` is there twice");
    let service = TestService::from_file(TEN_A_MINUTE);
    for value in ["", "1", "42", "1:42", "42_"] {
        assert_eq!(service.says(&call("api", &[&[("user", value)]])), "OK: OK 9/10", "{value}");
    }
}

#[test]
fn the_same_descriptor_twice_is_counted_twice() {
    let twice = call("api", &[&[("ip", "192.0.2.1")], &[("ip", "192.0.2.1")]]);
    let service = TestService::from_file(TEN_A_MINUTE);
    assert_eq!(service.says(&twice), "OK: OK 2/3 | OK 1/3");
    assert_eq!(service.says(&twice), "OVER: OK 0/3 | OVER 0/3");
    let service = TestService::from_file(TEN_A_MINUTE).all_or_none();
    service.says(&twice);
    assert!(service.says(&twice).starts_with("OVER:"));
    assert_eq!(service.says(&call("api", &[&[("ip", "192.0.2.1")]])), "OK: OK 0/3");
}

#[test]
fn headers_tell_the_limit_that_is_nearest() {
    let mut service = TestService::from_file(TEN_A_MINUTE);
    let both = call("api", &[&[("user", "42")], &[("ip", "192.0.2.1")]]);
    let headers = |service: &TestService| -> Vec<String> {
        let response = service.ask(&both).unwrap();
        let headers = response.response_headers_to_add.iter();
        headers.map(|header| format!("{}: {}", header.key, header.value)).collect()
    };
    assert!(headers(&service).is_empty());
    let choose = |service: &mut TestService, style: HeaderStyle| {
        let daemon = Arc::get_mut(&mut service.envoy.daemon).unwrap();
        daemon.client_headers.envoy = style;
        daemon.client_headers.jitter = RetryJitter::Off;
    };
    choose(&mut service, HeaderStyle::none().with_split());
    assert_eq!(
        headers(&service),
        ["ratelimit-limit: 3", "ratelimit-remaining: 1", "ratelimit-reset: 60"]
    );
    choose(&mut service, HeaderStyle::default());
    let reset_s = NOW.as_micros() / 1_000_000 + 60;
    assert_eq!(
        headers(&service),
        [
            "x-ratelimit-limit: 3",
            "x-ratelimit-remaining: 0",
            &format!("x-ratelimit-reset: {reset_s}"),
            "ratelimit-policy: \"limit\";q=3;w=60",
            "ratelimit: \"limit\";r=0;t=60",
        ]
    );
    // Exceeded, it is told whatever has as little left.
    service.says(&hitting(user(), 7));
    let told = headers(&service);
    assert_eq!((&*told[0], &*told[5]), ("x-ratelimit-limit: 3", "retry-after: 60"));
    // With jitter, the reset moves as well.
    Arc::get_mut(&mut service.envoy.daemon).unwrap().client_headers.jitter =
        RetryJitter::UpTo(Duration::from_hours(1));
    let told: Vec<(u64, u64)> = (0..50)
        .map(|_| {
            let told = headers(&service);
            let wait_s = told[5].strip_prefix("retry-after: ").unwrap().parse().unwrap();
            (wait_s, told[4].split_once("t=").unwrap().1.parse().unwrap())
        })
        .collect();
    assert!(told.iter().all(|(wait_s, reset_s)| *wait_s >= 60 && wait_s == reset_s), "{told:?}");
    assert!(told.iter().any(|(wait_s, _)| *wait_s > 120), "{told:?}");
}

#[test]
fn the_call_comes_back_as_metadata_where_that_is_wanted() {
    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        envoy: EnvoyFlags,
    }

    let mut service = TestService::from_file(TEN_A_MINUTE);
    assert!(service.ask(&user()).unwrap().dynamic_metadata.is_none());
    let line: CommandLine = clap::Parser::parse_from(["tollbar", "--envoy-metadata"]);
    service.envoy.config.sends_metadata = EnvoyConfig::new(&line.envoy, false).sends_metadata;
    let request = hitting(RateLimitRequest { hits_addend: 7, ..user() }, 2);
    let metadata = service.ask(&request).unwrap().dynamic_metadata.unwrap();
    let said = format!("{metadata:?}");
    for part in ["\"domain\"", "\"api\"", "\"user=42\"", "NumberValue(7.0)", "NumberValue(2.0)"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

/// Envoy lets a call pass that is not answered, so one that no store can count is denied.
#[test]
fn a_call_with_more_limits_than_a_store_takes_at_once_is_denied() {
    let service = TestService::from_file(TEN_A_MINUTE).all_or_none();
    let users: Vec<String> = (0..33).map(|number| number.to_string()).collect();
    let pairs: Vec<[(&str, &str); 1]> =
        users.iter().map(|user| [("user", user.as_str())]).collect();
    let descriptors: Vec<&[(&str, &str)]> =
        pairs.iter().map(|descriptor| &descriptor[..]).collect();
    let response = service.ask(&call("api", &descriptors)).unwrap();
    assert_eq!(name(response.overall_code), "OVER");
    assert!(response.statuses.iter().all(|status| name(status.code) == "OVER"));
    // Nothing was charged: one fewer fits, and has all ten but one left.
    let response = service.ask(&call("api", &descriptors[..32])).unwrap();
    assert!(response.statuses.iter().all(|status| status.limit_remaining == 9));
}

/// A port behind an address, as Go's `RemoteAddr` writes it, made every connection a client of its own.
#[test]
fn a_remote_address_is_counted_without_its_port() {
    let service = TestService::from_file(
        "{ domain: api, descriptors: [{ key: remote_address, rate_limit: { unit: hour, requests_per_unit: 2 } }] }",
    );
    let from = |address| call("api", &[&[("remote_address", address)]]);
    assert_eq!(service.says(&from("192.0.2.1:1001")), "OK: OK 1/2");
    assert_eq!(service.says(&from("192.0.2.1:1002")), "OK: OK 0/2");
    assert_eq!(service.says(&from("192.0.2.1")), "OVER: OVER 0/2");
    assert_eq!(service.says(&from("[2001:db8::1]:1001")), "OK: OK 1/2");
    assert_eq!(service.says(&from("2001:db8::1")), "OK: OK 0/2");
}
