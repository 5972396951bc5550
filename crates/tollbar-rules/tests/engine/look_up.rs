//! What is left to a subject, whatever its tier and however many values it has.

use std::sync::Arc;
use std::time::Duration;

use tollbar::MemoryStore;
use tollbar::store::block_on;
use tollbar_rules::{AsyncEngine, Engine, Usage};

use crate::support::{answer, ask, check, clock, engine, expect, reserve, rules};

/// What is left, as `tier limit/remaining`, in order.
fn left(usages: &[Usage]) -> Vec<String> {
    let text = |usage: &Usage| {
        let tier = usage.tier.as_deref().unwrap_or("-");
        let past = if usage.is_current { "" } else { " (past)" };
        format!("{tier} {}/{}{past}", usage.remaining, usage.limit)
    };
    usages.iter().map(text).collect()
}

fn look_up(engine: &Engine, rule: &str, subject: &str, attributes: &[(&str, &str)]) -> Vec<String> {
    let rule = engine.rule(rule).unwrap();
    let subject = rule.subject(subject, attributes).unwrap();
    left(&rule.usage(&subject.request().unwrap()).unwrap())
}

const PLANS: &str = "rules: [{ name: plans, tiers: { free: 3/h, premium: 10/h, staff: unlimited, default: free } }]";

/// A premium user with 4 of 10 used was shown limit 3 and remaining 0.
#[test]
fn a_premium_user_is_shown_what_is_left_of_the_premium_limit() {
    let engine = engine(PLANS);
    for _ in 0..4 {
        assert!(check(&engine, "GET / user=42 tier=premium").is_allowed());
    }
    assert_eq!(look_up(&engine, "plans", "user:42", &[]), ["premium 6/10"]);
    assert_eq!(look_up(&engine, "plans", "user:42", &[("tier", "premium")]), ["premium 6/10"]);
    // Whoever names a tier is told of that one.
    assert_eq!(look_up(&engine, "plans", "user:42", &[("tier", "free")]), ["free 0/3"]);
    // So is a peek, under one rule and under all.
    let rule = engine.rule("plans").unwrap();
    let subject = rule.subject("user:42", &[]).unwrap();
    let request = subject.request().unwrap();
    assert_eq!(answer(&rule.check(&request.clone().with_cost(0))), "allow plans 6");
    expect(&engine, &[("GET / user=42 cost=0", "allow plans 6")]);
    assert_eq!(check(&engine, "GET / user=42 cost=0").binding().unwrap().tier(), Some("premium"));
    // A look-up changes nothing about who is what.
    expect(&engine, &[("GET / user=42 tier=free cost=0", "allow plans 0")]);
    assert_eq!(look_up(&engine, "plans", "user:42", &[]), ["premium 6/10"]);
}

#[test]
fn a_check_that_charges_is_under_the_tier_that_it_names_or_the_default_one() {
    let engine = engine(PLANS);
    let rule = engine.rule("plans").unwrap();
    let charge = |attributes| {
        let subject = rule.subject("user:42", attributes).unwrap();
        answer(&rule.check(&subject.request().unwrap()))
    };
    assert_eq!(charge(&[("tier", "premium")]), "allow plans 9");
    assert_eq!(charge(&[]), "allow plans 1");
    assert_eq!(charge(&[]), "allow plans 0");
    assert_eq!(charge(&[]), "deny plans");
    assert_eq!(charge(&[("tier", "premium")]), "allow plans 6");
    assert_eq!(charge(&[("tier", "staff")]), "allow plans (unlimited)");
}

/// It is of cost 0, and yet it is charged when it is settled.
#[test]
fn a_reservation_of_nothing_is_under_the_tier_that_it_names_or_the_default_one() {
    let engine = engine(PLANS);
    let _ = check(&engine, "GET / user=42 tier=premium");
    let tier_of = |line| {
        let admission = reserve(&engine, line, Duration::from_mins(1));
        admission.verdict.binding().unwrap().tier().map(str::to_owned)
    };
    assert_eq!(tier_of("GET / user=42 cost=0").as_deref(), Some("free"));
    assert_eq!(tier_of("GET / user=42 cost=0 tier=premium").as_deref(), Some("premium"));
    let asked =
        ask("GET / user=42 cost=0", |request| engine.admit(request, Some(Duration::from_mins(1))));
    assert_eq!(asked.verdict.binding().unwrap().tier(), Some("free"));
}

#[test]
fn a_subject_is_shown_under_the_tier_of_its_latest_request() {
    let engine = engine(PLANS);
    let usage = || look_up(&engine, "plans", "user:42", &[]);
    assert_eq!(
        usage(),
        ["free 3/3"],
        "nothing is known, and a check would be under the default tier"
    );
    for (tier, expected) in [
        ("free", &["free 2/3"][..]),
        ("premium", &["premium 8/10"]),
        ("nosuch", &["free 0/3"]),
        ("staff", &[]),
        ("premium", &["premium 6/10"]),
    ] {
        let _ = check(&engine, &format!("GET / user=42 tier={tier}"));
        assert_eq!(usage(), expected, "after {tier}");
    }
    // A denial is a request as well.
    assert!(!check(&engine, "GET / user=42 tier=free").is_allowed());
    assert_eq!(usage(), ["free 0/3"]);
    // Rules change, and tiers with them.
    engine.replace(rules(
        "rules: [{ name: plans, tiers: { premium: 10/h, free: 5/h, default: premium } }]",
    ));
    assert_eq!(usage(), ["free 1/5"]);
    engine.replace(rules("rules: [{ name: plans, tiers: { premium: 10/h, default: premium } }]"));
    assert_eq!(usage(), ["premium 6/10"]);
}

#[test]
fn a_subject_with_counters_under_several_tiers_sees_each() {
    let engine = engine(
        "rules:
         - name: plans
           limit: 50/h
           tiers: { free: [3/min, 20/day], premium: [10/min, 1000/12h], team: 99/s }",
    );
    let usage = || look_up(&engine, "plans", "user:42", &[]);
    assert_eq!(usage(), ["- 50/50"]);
    let _ = check(&engine, "GET / user=42 tier=free");
    assert_eq!(usage(), ["free 2/3", "free 19/20"]);
    let _ = check(&engine, "GET / user=42");
    assert_eq!(usage(), ["- 49/50", "free 2/3 (past)", "free 19/20 (past)", "premium 9/10 (past)"]);
    // The minute is one counter for both tiers, and is shown for the one in force.
    let _ = check(&engine, "GET / user=42 tier=premium");
    let left = ["premium 8/10", "premium 999/1000", "- 49/50 (past)", "free 19/20 (past)"];
    assert_eq!(usage(), left);
    // A reset makes all of them fresh, or those of one tier.
    let rule = engine.rule("plans").unwrap();
    let reset = |attributes| {
        let subject = rule.subject("user:42", attributes).unwrap();
        rule.reset(&subject.request().unwrap()).unwrap();
    };
    reset(&[("tier", "free")]);
    assert_eq!(usage(), ["premium 10/10", "premium 999/1000", "- 49/50 (past)"]);
    reset(&[]);
    assert_eq!(usage(), ["premium 10/10", "premium 1000/1000"]);
}

/// The counters are in a store that several processes share, and another one has charged them.
#[test]
fn a_subject_that_this_process_has_not_seen_is_shown_every_tier_in_use() {
    let text =
        "rules: [{ name: plans, tiers: { free: 3/h, premium: 10/h, team: 9/s, default: free } }]";
    let store = Arc::new(MemoryStore::builder().clock(clock()).build());
    let node = || AsyncEngine::new(rules(text), store.clone()).unwrap();
    let (charging, asking) = (node(), node());
    for _ in 0..2 {
        let _ = check(&charging, "GET / user=42 tier=premium");
    }
    let usage = || {
        let rule = asking.rule("plans").unwrap();
        let subject = rule.subject("user:42", &[]).unwrap();
        left(&block_on(rule.usage(&subject.request().unwrap())).unwrap())
    };
    assert_eq!(usage(), ["free 1/3", "premium 8/10"]);
    let _ = check(&asking, "GET / user=42 tier=premium");
    assert_eq!(usage(), ["premium 7/10"]);
}

#[test]
fn a_subject_of_several_values_has_all_of_them() {
    let engine = engine(
        "rules:
         - { name: user_path, per: [user, path], limit: 5/h }
         - { name: client_tenant, per: [client, tenant], limit: 5/h }
         - { name: all, per: [], limit: 5/h }",
    );
    for (rule, subject, line) in [
        ("user_path", "42 | /v1/a", "GET /v1/a user=42"),
        ("user_path", "42 | /v1/b", "GET /v1/b user=42"),
        ("client_tenant", "user:42 | acme", "GET / user=42 tenant=acme"),
        ("client_tenant", "ip:::ffff:10.0.0.1 | acme", "GET / ip=10.0.0.1 tenant=acme"),
        ("all", "(everybody)", "GET /"),
    ] {
        let rule = engine.rule(rule).unwrap();
        let _ = ask(line, |request| rule.check(request));
        let subject = rule.subject(subject, &[]).unwrap();
        let verdict = rule.check(&subject.request().unwrap().with_cost(2));
        assert_eq!(verdict.binding().unwrap().remaining(), Some(2), "{line}");
        let usage = ask(line, |request| rule.usage(request)).unwrap();
        assert_eq!(left(&usage), ["- 2/5"], "{line}");
    }
    let rule = engine.rule("user_path").unwrap();
    let request = rule.look_up(&[("user", "42"), ("path", "/v1/a")]).unwrap();
    assert_eq!(left(&rule.usage(&request.request().unwrap()).unwrap()), ["- 2/5"]);
}

#[test]
fn a_question_about_several_counters_is_told_what_to_send() {
    let engine = engine(
        "rules:
         - { name: two, per: [user, path], limit: 5/h }
         - { name: three, per: [client, tenant, region], limit: 5/h, missing: shared }
         - { name: path, per: path, limit: 5/h }
         - { name: user, per: user, limit: 5/h }
         - { name: all, per: [], limit: 5/h }",
    );
    for (rule, attributes, expected) in [
        (
            "two",
            &[("user", "1")][..],
            "rule `two` counts per user and path: say which one, and send `path` too",
        ),
        (
            "two",
            &[("path", "/")],
            "rule `two` counts per user and path: say which one, and send `user` too",
        ),
        (
            "two",
            &[],
            "rule `two` counts per user and path: say which one, and send `user` and `path` too",
        ),
        ("two", &[("ip", "10.0.0.1"), ("path", "/")], ""),
        (
            "two",
            &[("ip", "10.0.0.1")],
            "rule `two` counts per user and path: say which one, and send `path` too",
        ),
        (
            "three",
            &[("ip", "10.0.0.1")],
            "rule `three` counts per client, tenant and region: say which one, and send `tenant` and `region` too",
        ),
        ("three", &[("user", "1"), ("tenant", ""), ("region", "eu")], ""),
        (
            "path",
            &[("user", "1")],
            "rule `path` counts per path: say which one, and send `path` too",
        ),
        // The one value that a request lacks is counted as the rule says.
        ("user", &[], ""),
        ("all", &[], ""),
        (
            "user",
            &[("user", "1"), ("user", "2")],
            "the attribute `user` has two values: send one, or join them",
        ),
    ] {
        let told =
            engine.rule(rule).unwrap().look_up(attributes).err().map(|error| error.to_string());
        assert_eq!(told.unwrap_or_default(), expected, "{rule} {attributes:?}");
    }
    for (rule, subject, attributes, expected) in [
        (
            "two",
            "1",
            &[][..],
            "rule `two` counts per user and path: say which one, with a subject of 2 values, `USER | PATH`, or with attributes in its place",
        ),
        (
            "all",
            "1",
            &[],
            "rule `all` counts everybody together: send the subject `(everybody)`, or none",
        ),
        ("two", "1 | ", &[], "the subject is empty: send whom rule `two` counts"),
        (
            "user",
            "1",
            &[("user", "2")],
            "the subject says whom rule `user` counts: leave `user` out of the attributes",
        ),
        (
            "three",
            "user:1 | t | eu",
            &[("api_key", "2")],
            "the subject says whom rule `three` counts: leave `api_key` out of the attributes",
        ),
    ] {
        let rule = engine.rule(rule).unwrap();
        let told = rule.subject(subject, attributes).unwrap_err();
        assert_eq!(told.to_string(), expected);
    }
    let told = engine.rule("two").unwrap().subject("1 | /a | /b", &[]).unwrap_err();
    assert!(told.is_incomplete(), "which value has the separator in it cannot be told: {told}");
}

#[test]
fn those_who_lack_what_a_rule_counts_by_are_found_as_they_are_listed() {
    let engine = engine("rules: [{ name: a, per: user, limit: 1/h }]");
    for line in ["GET / ip=10.0.0.1", "GET /"] {
        assert!(check(&engine, line).is_allowed());
        assert!(!check(&engine, line).is_allowed());
    }
    let rule = engine.rule("a").unwrap();
    let listed = rule.top_denied(10);
    assert_eq!(listed.len(), 2);
    for key in listed {
        let subject = rule.readable_subject(&key.subject, &[]).unwrap();
        assert_eq!(left(&rule.usage(&subject.request().unwrap()).unwrap()), ["- 0/1"], "{key:?}");
        // A check counts a user of that name, who has nothing to do with it.
        let user = rule.subject(&key.subject, &[]).unwrap();
        assert_eq!(left(&rule.usage(&user.request().unwrap()).unwrap()), ["- 1/1"], "{key:?}");
    }
}

#[test]
fn a_path_is_looked_up_as_the_rules_compare_it() {
    let engine =
        engine("paths: { case: insensitive }\nrules: [{ name: a, per: [user, path], limit: 5/h }]");
    let _ = check(&engine, "GET /V1/Users user=1");
    assert_eq!(look_up(&engine, "a", "1 | /v1/USERS", &[]), ["- 4/5"]);
}
