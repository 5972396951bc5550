//! What a verdict means for accounts.

use std::time::Duration;

use tollbar::store::block_on;
use tollbar::{ManualClock, Timestamp};
use tollbar_rules::{
    AsyncEngine, Effect, Engine, Override, UsageRecord, Verdict, meter_standalone, readable,
};

use crate::support::{ask, clock, engine, engine_at, reserve, rules};

const TTL: Duration = Duration::from_mins(10);

fn tokens(record: &UsageRecord<'_>) -> String {
    match (record.amounts.admitted, record.amounts.denied) {
        (admitted, 0) => format!("{admitted:+}"),
        (0, denied) => format!("-{denied}"),
        both => format!("{both:?}"),
    }
}

/// `rule tenant|- subject +admitted` or `-denied`, joined by `, `.
fn told(verdict: &Verdict, text: &str) -> String {
    ask(text, |request| {
        let mut told = Vec::new();
        verdict.meter(request, |record| {
            let tenant = if record.tenant.is_empty() { "-" } else { record.tenant };
            let (rule, key) = (record.rule, readable(record.key));
            told.push(format!("{rule} {tenant} {key} {}", tokens(&record)));
        });
        told.join(", ")
    })
}

/// `client tier|- requests admitted/denied` of each record, joined by `, `.
fn requests(verdict: &Verdict, text: &str) -> String {
    ask(text, |request| {
        let mut told = Vec::new();
        verdict.meter(request, |record| {
            let tier = if record.tier.is_empty() { "-" } else { record.tier };
            let amounts = record.amounts;
            let requests = format!("{}/{}", amounts.admitted_requests, amounts.denied_requests);
            told.push(format!("{} {tier} {requests}", readable(record.client)));
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
    for (request, expected) in [
        ("GET /x user=7", "a - user:7 -1"),
        ("GET /x user=8 cost=3", "global ban - user:8 -3"),
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
            let tenant = if record.tenant.is_empty() { "-" } else { record.tenant };
            told = format!("{tenant} {} {}", readable(record.key), tokens(&record));
        });
        assert_eq!(told, expected, "{rule} {subject} {cost}");
    }
}

#[test]
fn a_request_under_three_rules_is_one_request_of_its_client_and_its_tier() {
    let engine = engine(
        "rules:
- { name: a, per: [], limit: 9/h }
- { name: b, per: [tenant], limit: 9/h, tiers: { free: 2/h, gold: 9/h, default: free } }
- { name: c, limit: 9/h, tiers: { gold: unlimited } }
- { name: d, match: { path: /d }, limit: 1/h }",
    );
    for (request, expected) in [
        ("GET /x user=7 tenant=t", "user:7 free 1/0, user:7 free 0/0, user:7 free 0/0"),
        ("GET /x api_key=k tenant=t tier=gold", "api:k gold 1/0, api:k gold 0/0"),
        ("GET /x user=7 tenant=t cost=2", "user:7 free 0/1"),
        (
            "GET /x user=7 tenant=u tier=odd cost=99",
            "user:7 free 0/1, user:7 free 0/0, user:7 free 0/0",
        ),
    ] {
        let verdict = ask(request, |request| engine.check(request));
        assert_eq!(requests(&verdict, request), expected, "{request}");
    }
}

#[test]
fn the_tier_is_the_attribute_where_no_rule_has_tiers() {
    let engine = engine("rules: [{ name: a, limit: 9/h }]");
    let request = "GET /x user=7 tier=gold";
    let verdict = ask(request, |request| engine.check(request));
    assert_eq!(requests(&verdict, request), "user:7 gold 1/0");
}

#[test]
fn one_request_id_counts_once_until_it_is_charged_again() {
    let rules = rules("rules: [{ name: a, limit: 9/h }]");
    let engine = Engine::builder(rules).clock(clock()).request_id_replays(2).build();
    let request = "GET /x user=7 id=r1 cost=3";
    let told: Vec<String> =
        (0..5).map(|_| told(&ask(request, |request| engine.check(request)), request)).collect();
    // Twice it is answered again, and then it pays again.
    assert_eq!(told, ["a - user:7 +3", "", "", "a - user:7 +3", ""]);
}

/// What a settlement has told: `day rule tenant client subject +tokens requests`, joined by `, `.
fn settle(engine: &AsyncEngine, receipt: &str, spent: Option<u64>) -> String {
    let hold = engine.resume(receipt).unwrap();
    let settled = block_on(engine.settle(&hold, spent)).unwrap();
    assert!(!settled.is_repeat);
    let mut told = Vec::new();
    hold.meter_settlement(spent, |at, record| {
        let (day, rule, tenant) = (at.as_micros() / 86_400_000_000, record.rule, record.tenant);
        let [client, subject] = [record.client, record.key].map(readable);
        let (tokens, requests) = (tokens(&record), record.amounts.admitted_requests);
        told.push(format!("{day} {rule} {tenant} {client} {subject} {tokens} {requests}"));
    });
    told.join(", ")
}

const RESERVED: &str = "rules:
- { name: a, per: [], limit: [1000/h, 9000/day], cost: 2, candidate: { limit: 9000/h } }
- { name: b, mode: shadow, limit: 9000/h }
- { name: c, per: [user], limit: 1000/h }";

fn noted_receipt(engine: &AsyncEngine, request: &str, clock: &ManualClock) -> String {
    let mut admission = reserve(engine, request, TTL);
    let hold = admission.hold.as_mut().unwrap();
    ask(request, |request| {
        hold.note_usage(&admission.verdict, request, tollbar::Clock::now(clock));
    });
    engine.token(admission.hold.unwrap()).unwrap()
}

#[test]
fn a_settlement_corrects_what_was_reserved_on_the_day_of_the_charge() {
    let clock = ManualClock::at(Timestamp::from_micros(86_400_000_000 * 100 - 1_000_000));
    let engine = engine_at(RESERVED, &clock);
    let request = "POST /x user=7 tenant=acme cost=40";
    let receipts = [(); 4].map(|()| noted_receipt(&engine, request, &clock));
    clock.advance(Duration::from_secs(5));
    for (receipt, spent, expected) in [
        (0, Some(10), ["a acme user:7 (everybody) -60 0", "c acme user:7 7 -30 0"]),
        (1, Some(0), ["a acme user:7 (everybody) -80 -1", "c acme user:7 7 -40 0"]),
        (2, Some(50), ["a acme user:7 (everybody) +20 0", "c acme user:7 7 +10 0"]),
    ] {
        let expected = expected.map(|each| format!("99 {each}")).join(", ");
        assert_eq!(settle(&engine, &receipts[receipt], spent), expected, "{spent:?}");
    }
    assert_eq!(settle(&engine, &receipts[3], None), "");
}

#[test]
fn a_reservation_that_was_not_metered_is_not_corrected() {
    let engine = engine(RESERVED);
    let hold = reserve(&engine, "POST /x user=7 cost=40", TTL).hold.unwrap();
    let receipt = engine.token(hold).unwrap();
    assert_eq!(settle(&engine, &receipt, Some(1)), "");
}

/// The client has lost the first answer, sends the request again after midnight, and settles by the second
/// receipt: that corrects the first day.
#[test]
fn a_reservation_that_is_sent_again_after_midnight_is_corrected_on_the_day_it_was_charged() {
    let clock = ManualClock::at(Timestamp::from_micros(86_400_000_000 * 100 - 1_000_000));
    let engine = engine_at(RESERVED, &clock);
    let request = "POST /x user=7 tenant=acme cost=40 id=r1";
    let first = noted_receipt(&engine, request, &clock);
    clock.advance(Duration::from_secs(5));
    let again = noted_receipt(&engine, request, &clock);
    assert_eq!(again, first);
    assert!(settle(&engine, &again, Some(10)).starts_with("99 a acme"));
}

#[test]
fn long_names_are_bounded_and_corrected_under_the_same_name() {
    let long = "é".repeat(2_000);
    let engine = engine("rules: [{ name: a, limit: 1000/h }]");
    let request = format!("POST /x user={long} tenant={long} cost=40");
    let mut admission = reserve(&engine, &request, TTL);
    let mut charged = Vec::new();
    ask(&request, |request| {
        let account = |record: UsageRecord<'_>| {
            assert!(record.tenant.len() <= 256 && record.key.len() <= 256);
            charged.push((record.tenant.to_owned(), record.client.to_vec(), record.key.to_vec()));
        };
        admission.verdict.meter(request, account);
        let hold = admission.hold.as_mut().unwrap();
        hold.note_usage(&admission.verdict, request, Timestamp::ZERO);
    });
    let hold = engine.resume(&engine.token(admission.hold.unwrap()).unwrap()).unwrap();
    let mut corrected = Vec::new();
    hold.meter_settlement(Some(1), |_, record| {
        corrected.push((record.tenant.to_owned(), record.client.to_vec(), record.key.to_vec()));
    });
    assert_eq!(corrected, charged);
}

#[test]
fn what_no_rule_limits_has_the_client_that_its_facts_name() {
    for (facts, expected) in [
        (&[("client", "user:42")][..], "user:42 user:42"),
        (&[("plan", "free"), ("ip", "::ffff:10.0.0.1")], "ip:10.0.0.1 free | ip:10.0.0.1"),
        (&[("plan", "free"), ("user", "7"), ("api_key", "k")], "api:k free | user:7 | api:k"),
        (&[("plan", "free"), ("path", "/x")], "free | /x free | /x"),
    ] {
        meter_standalone("(x)", facts, tollbar_rules::UsageAmounts::default(), |record| {
            let [client, key] = [record.client, record.key].map(readable);
            assert_eq!(format!("{client} {key}"), expected);
        });
    }
}
