//! Exemptions of an admin API.

use serde_json::json;
use tollbar::{ManualClock, Timestamp};
use tollbar_rules::admin::{ExemptionForm, SubjectType, from_json};
use tollbar_rules::{Engine, Request, RuleFile, RuleSet};

#[test]
fn each_type_exempts_its_subject_until_it_expires() {
    let table = [
        ("api_key", "internal", [("api_key", "internal")], [("api_key", "other")]),
        ("user", "42", [("user", "42")], [("user", "43")]),
        ("ip_cidr", "10.0.0.0/8", [("ip", "10.1.2.3")], [("ip", "11.1.2.3")]),
        ("service_account", "ci", [("service_account", "ci")], [("service_account", "cd")]),
    ];
    for (subject_type, value, exempt, counted) in table {
        let json = json!({
            "subjectType": subject_type, "subjectValue": value, "reason": "tests",
            "expiresAt": "2027-01-01T00:00:00.500Z",
        });
        let form: ExemptionForm = serde_json::from_value(json).unwrap();
        let exemption = form.exemption().unwrap();
        assert_eq!(ExemptionForm::from_exemption(&exemption), Some(form.clone()));
        let again = serde_json::to_value(&form).and_then(serde_json::from_value);
        assert_eq!(again.ok(), Some(form));

        let rule = json!({ "name": "a", "maxRequests": 1, "windowSeconds": 3600, "per": [] });
        let mut rule = from_json(rule).unwrap();
        rule.exemptions.push(exemption);
        let clock = ManualClock::at(Timestamp::from_micros(1_798_761_600_499_999));
        let engine =
            Engine::builder(RuleSet::new(vec![rule]).unwrap()).clock(clock.clone()).build();
        let passes = |attributes: &[(&str, &str)]| {
            let request = Request::new("GET", "/").unwrap().with_attributes(attributes).unwrap();
            engine.check(&request).is_allowed()
        };
        assert!(passes(&counted) && !passes(&counted), "{subject_type}");
        assert!(passes(&exempt) && passes(&exempt), "{subject_type}");
        clock.set(Timestamp::from_micros(1_798_761_600_500_000));
        assert!(!passes(&exempt), "{subject_type}");
    }
}

#[test]
fn mistakes_are_reported_with_what_to_send() {
    let table = [
        (json!(7), "invalid type"),
        (json!({ "subjectValue": "a" }), "missing field `subjectType`"),
        (
            json!({ "subjectType": "ip", "subjectValue": "a" }),
            "unknown variant `ip`, expected one of `api_key`, `user`, `ip_cidr`, `service_account`",
        ),
        (json!({ "subjectType": "user" }), "missing field `subjectValue`"),
        (
            json!({ "subjectType": "user", "subjectValue": "a", "expiresAt": "soon" }),
            "this is no instant: send one such as \"2027-01-01T12:00:00Z\"",
        ),
        (json!({ "subjectType": "user", "subjectValue": "a", "reason": 7 }), "invalid type"),
        (
            json!({ "subjectType": "user", "subjectValue": "a", "why": "x" }),
            "unknown field `why`, expected one of `subjectType`, `subjectValue`, `reason`, `expiresAt`",
        ),
    ];
    for (json, message) in table {
        let error = serde_json::from_value::<ExemptionForm>(json).expect_err(message).to_string();
        assert!(error.contains(message), "{error}");
    }
    let table = [
        (SubjectType::User, "", "subjectValue: this is empty: send whom to exempt"),
        (
            SubjectType::IpCidr,
            "10.0.0.1/8",
            "subjectValue: `10.0.0.1/8` has bits beyond its prefix: write `10.0.0.0/8`",
        ),
    ];
    for (subject_type, value, message) in table {
        let error = ExemptionForm::new(subject_type, value).exemption().expect_err(message);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn what_is_not_one_subject_has_no_form() {
    let text =
        "rules: [{ name: a, limit: 1/s, exempt: [{ user: [a, b] }, { user: a, ip: 10.0.0.1 },
        { plan: x }, { ip: [10.0.0.1, 10.0.0.2] }, { user: { prefix: a } }, { ip: 10.0.0.1 }] }]";
    let file = RuleFile::parse("r", text).unwrap();
    let forms: Vec<bool> = file.rules.rules()[0]
        .exemptions
        .iter()
        .map(|exemption| ExemptionForm::from_exemption(exemption).is_some())
        .collect();
    assert_eq!(forms, [false, false, false, false, false, true]);
}
