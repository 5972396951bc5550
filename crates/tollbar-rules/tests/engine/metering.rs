//! What a verdict means for accounts.

use tollbar_rules::{Effect, Engine, Override, Verdict, readable};

use crate::support::{ask, clock, engine, rules};

/// `rule tenant|- subject +admitted` or `-denied`, joined by `, `.
fn told(verdict: &Verdict, text: &str) -> String {
    ask(text, |request| {
        let mut told = Vec::new();
        verdict.meter(request, |record| {
            let sign = if record.is_admitted { '+' } else { '-' };
            let (rule, tenant) = (&record.rule.name, record.tenant.unwrap_or("-"));
            told.push(format!("{rule} {tenant} {} {sign}{}", readable(record.key), record.cost));
        });
        told.join(", ")
    })
}

#[track_caller]
fn expect(rules: &str, steps: &[(&str, &str)]) {
    let engine = engine(rules);
    for (request, expected) in steps {
        let verdict = ask(request, |request| engine.check(request));
        assert_eq!(told(&verdict, request), *expected, "{request}");
    }
}

#[test]
fn what_is_admitted_counts_under_every_rule_that_was_paid_and_what_is_denied_under_who_denies() {
    let rules = "rules:
- { name: a, limit: [5/h, 100/day], cost: { \"GET /twice\": 2 } }
- { name: b, per: [], limit: 3/h }";
    expect(
        rules,
        &[
            ("GET /twice user=7 tenant=acme", "a acme user:7 +2, b acme (everybody) +1"),
            ("GET /x ip=10.0.0.1", "a - ip:10.0.0.1 +1, b - (everybody) +1"),
            ("GET /x user=7 cost=0", ""),
            ("GET /x user=7 cost=2", "b - (everybody) -2"),
            ("GET /x user=7 cost=9", "a - user:7 -9, b - (everybody) -9"),
        ],
    );
}

#[test]
fn what_only_reports_counts_nothing() {
    let rules = "rules:
- { name: a, limit: 1/h, candidate: { limit: 1/day } }
- { name: shadow, mode: shadow, limit: 1/h }";
    expect(rules, &[("GET /x user=7", "a - user:7 +1"), ("GET /x user=7", "a - user:7 -1")]);
    let rules = "rules: [{ name: shadow, mode: shadow, limit: 1/h }]";
    expect(rules, &[("GET /x user=7", ""), ("GET /x user=7", "")]);
}

#[test]
fn what_nothing_limits_counts_under_the_rule_that_says_so() {
    let rules = "rules:
- { name: free, match: { path: /free }, unlimited: true }
- { name: a, match: { path: /a }, limit: 9/h, cost: 3, exempt: [{ user: boss }] }
- { name: b, match: { path: /b }, limit: 1/h, tiers: { gold: unlimited } }";
    expect(
        rules,
        &[
            ("GET /free user=7", "free - user:7 +1"),
            ("GET /a user=boss", "a - user:boss +3"),
            ("GET /b user=7 tier=gold", "b - user:7 +1"),
            ("GET /nothing user=7", ""),
        ],
    );
}

#[test]
fn who_lacks_an_attribute_is_nobody_in_particular() {
    let rules = "rules: [{ name: a, per: [tenant], missing: deny, limit: 1/h }]";
    expect(rules, &[("GET /x user=7", "a - (none) -1"), ("GET /x tenant=t", "a t t +1")]);
}

#[test]
fn who_is_banned_under_a_rule_is_denied_by_it() {
    let ban = |rule: Option<&str>, subject: &str| {
        let mut ban = Override::new(subject, Effect::Ban);
        ban.rule = rule.map(Into::into);
        ban
    };
    let rules = rules("rules: [{ name: a, limit: 3/h }]");
    let rules = rules.with_overrides(vec![ban(Some("a"), "user:7"), ban(None, "user:8")]);
    let engine = Engine::builder(rules).clock(clock()).build();
    // Under no rule in particular there is no rule to count it under.
    for (request, expected) in [
        ("GET /x user=7", "a - user:7 -1"),
        ("GET /x user=8", ""),
        ("GET /x user=9", "a - user:9 +1"),
    ] {
        let verdict = ask(request, |request| engine.check(request));
        assert_eq!(told(&verdict, request), expected, "{request}");
    }
}

#[test]
fn a_subject_counts_as_the_request_it_stands_for() {
    let engine: Engine = engine(
        "rules: [{ name: a, limit: 3/h }, { name: t, per: [tenant], limit: 3/h }, \
         { name: off, enabled: false, limit: 1/h }]",
    );
    for (rule, subject, cost, expected) in [
        ("a", "user:7", 2, "- user:7 +2"),
        ("a", "user:7", 2, "- user:7 -2"),
        ("a", "user:7", 0, ""),
        ("t", "acme", 1, "acme acme +1"),
        ("off", "user:7", 1, ""),
    ] {
        let handle = engine.rule(rule).unwrap();
        let request = handle.subject(subject, &[]).unwrap();
        let request = request.request().unwrap().with_cost(cost);
        let mut told = String::new();
        handle.check(&request).meter(&request, |record| {
            let sign = if record.is_admitted { '+' } else { '-' };
            let (tenant, key) = (record.tenant.unwrap_or("-"), readable(record.key));
            told = format!("{tenant} {key} {sign}{}", record.cost);
        });
        assert_eq!(told, expected, "{rule} {subject} {cost}");
    }
}
