//! Any bytes are a rule, an exemption or clear problems, as the admin API reads JSON and as the dashboard reads a form.
//! What is a rule is written as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tollbar_admin::dashboard::fuzz_form;
use tollbar_rules::admin::{FormError, from_json, from_yaml, to_json, to_yaml};
use tollbar_rules::{Rule, RuleSet};

fn check_problems(error: &FormError) {
    assert!(!error.problems.is_empty());
    for problem in &error.problems {
        assert!(problem.message.len() < 2_000, "{problem:?}");
    }
}

fn check_rule(rule: Rule) {
    let json = to_json(&rule);
    let again = from_json(Value::Object(json.clone())).expect("it was written so");
    assert_eq!(to_json(&again), json);
    let again = from_yaml("rule.yaml", &to_yaml(&rule)).expect("it was written so");
    assert_eq!(to_json(&again), json);
    drop(rule.warnings());
    if let Err(error) = RuleSet::new(vec![rule]) {
        assert!(!error.to_string().is_empty());
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(json) = serde_json::from_slice::<Value>(bytes) {
        match from_json(json) {
            Ok(rule) => check_rule(rule),
            Err(error) => check_problems(&error),
        }
    }
    if let Some(rule) = fuzz_form(bytes) {
        check_rule(rule);
    }
});
