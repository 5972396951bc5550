//! Accounts of real verdicts: kept apart, bounded, and none left out.

use std::collections::HashSet;
use std::thread;

use tollbar_rules::{Engine, Request, RuleFile};

use super::*;

const RULES: &str = "rules:
- { name: per_client, limit: [5/day, 100/7d] }
- { name: per_tenant, per: [tenant], missing: skip, limit: 1000/day }";

fn engine() -> Engine {
    Engine::new(RuleFile::parse("rules.yaml", RULES).unwrap().rules)
}

fn at_day(day: u64) -> Timestamp {
    Timestamp::from_micros(day * DAY_US + 7)
}

/// Checks and counts; whether it passed.
fn ask(engine: &Engine, tally: &Tally, at: Timestamp, pairs: &[(&str, &str)], cost: u64) -> bool {
    let request = Request::new("GET", "/").unwrap().with_attributes(pairs).unwrap().with_cost(cost);
    let verdict = engine.check(&request);
    verdict.meter(&request, |record| tally.count(at, &record));
    verdict.is_allowed()
}

/// `day tenant subject rule +admitted -denied`
fn told(tally: &Tally) -> Vec<String> {
    let text = |row: UsageRow| {
        let UsageRow { day, tenant, subject, rule, admitted_cost, denied_cost, .. } = row;
        format!("{day} {tenant} {subject} {rule} +{admitted_cost} -{denied_cost}")
    };
    tally.take_all().into_iter().map(text).collect()
}

#[test]
fn accounts_are_kept_apart_by_day_tenant_subject_and_rule() {
    let (engine, tally) = (engine(), Tally::new(1_000));
    for (day, cost) in [(1, 2), (1, 3), (1, 4), (2, 1)] {
        ask(&engine, &tally, at_day(day), &[("user", "7"), ("tenant", "acme")], cost);
    }
    ask(&engine, &tally, at_day(2), &[("ip", "10.0.0.1")], 1);
    let expected = [
        "1 acme acme per_tenant +5 -0",
        "1 acme user:7 per_client +5 -4",
        "2  ip:10.0.0.1 per_client +1 -0",
        "2 acme user:7 per_client +0 -1",
    ];
    assert_eq!(told(&tally), expected);
    assert_eq!(told(&tally), [""; 0], "what was taken is gone");
}

#[test]
fn who_does_not_fit_counts_with_its_tenant_and_then_with_its_rule() {
    let (engine, tally) = (engine(), Tally::new(16));
    for user in 0..200 {
        let (user, tenant) = (user.to_string(), format!("t{}", user / 100));
        assert!(ask(&engine, &tally, at_day(1), &[("user", &user), ("tenant", &tenant)], 1));
    }
    for user in 200..300 {
        assert!(ask(&engine, &tally, at_day(1), &[("user", &user.to_string())], 1));
    }
    let rows = tally.take_all();
    let sum_of = |rule: &str| {
        rows.iter().filter(|row| row.rule == rule).map(|row| row.admitted_cost).sum::<i64>()
    };
    assert_eq!((sum_of("per_client"), sum_of("per_tenant")), (300, 200), "{rows:?}");
    let others: Vec<_> = rows.iter().filter(|row| row.subject == OTHER).collect();
    assert!(others.iter().any(|row| row.tenant == "t0"), "{others:?}");
    assert!(others.iter().any(|row| row.tenant.is_empty()), "{others:?}");
    // Room for the entries, and what there is one of for each rule.
    assert!(rows.len() <= 16 + 2, "{rows:?}");
    assert_eq!(tally.entries.load(Ordering::Relaxed), 0, "all entries are free again");
}

#[test]
fn long_and_strange_names_are_bounded_and_stay_apart() {
    let (engine, tally) = (engine(), Tally::new(1_000));
    let long = "é".repeat(2_000);
    let names =
        [format!("{long}a"), format!("{long}b"), "a\0b\u{1b}[2J".to_owned(), OTHER.to_owned()];
    for name in &names {
        ask(&engine, &tally, at_day(1), &[("user", name), ("tenant", name)], 1);
    }
    let rows = tally.take_all();
    let subjects: HashSet<&str> = rows.iter().map(|row| &*row.subject).collect();
    assert_eq!((rows.len(), subjects.len()), (8, 8), "{rows:?}");
    for row in &rows {
        assert!(row.subject.len() < 300 && row.tenant.len() < 300, "{row:?}");
        assert!(!row.subject.contains(char::is_control), "{row:?}");
    }
}

#[test]
fn what_threads_count_while_others_take_is_all_there() {
    const THREADS: u64 = 4;
    const EACH: u64 = 5_000;
    let (engine, tally) = (engine(), Tally::new(300));
    let mut rows = Vec::new();
    let (admitted, denied) = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (engine, tally) = (&engine, &tally);
                scope.spawn(move || {
                    let mut sums = (0, 0);
                    for at in 0..EACH {
                        // Some hundred clients for who there is room, and more for who there is none.
                        let user = (at * THREADS + thread) % 700;
                        let pairs = [("user", &*user.to_string())];
                        let cost = 1 + at % 3;
                        if ask(engine, tally, at_day(at % 2), &pairs, cost) {
                            sums.0 += cost.cast_signed();
                        } else {
                            sums.1 += cost.cast_signed();
                        }
                    }
                    sums
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            rows.extend(tally.take_all());
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .fold((0, 0), |sum, costs| (sum.0 + costs.0, sum.1 + costs.1))
    });
    rows.extend(tally.take_all());
    let sums =
        rows.iter().fold((0, 0), |sum, row| (sum.0 + row.admitted_cost, sum.1 + row.denied_cost));
    assert_eq!(sums, (admitted, denied));
    assert!(admitted > 0 && denied > 0, "{sums:?}");
    assert_eq!(tally.entries.load(Ordering::Relaxed), 0);
}

#[test]
fn requests_clients_and_tiers_are_kept_and_a_cancelled_charge_leaves_no_row() {
    let (engine, tally) = (engine(), Tally::new(1_000));
    let attributes = [("user", "7"), ("tenant", "acme"), ("tier", "gold")];
    assert!(ask(&engine, &tally, at_day(1), &attributes, 3));
    let rows = tally.take_all();
    let told = |row: &UsageRow| {
        let UsageRow { client, tier, rule, admitted_requests, .. } = row;
        format!("{client} {tier} {rule} {admitted_requests}")
    };
    let told: Vec<String> = rows.iter().map(told).collect();
    assert_eq!(told, ["user:7 gold per_tenant 0", "user:7 gold per_client 1"]);
    let key = &[b'u', 1, 0, b'7'];
    for sign in [1, -1] {
        let amounts =
            UsageAmounts { admitted: 4 * sign, admitted_requests: sign, ..UsageAmounts::default() };
        let record = UsageRecord { rule: "a", tenant: "", tier: "", client: key, key, amounts };
        tally.count(at_day(1), &record);
    }
    assert!(tally.take_all().is_empty());
    assert_eq!(tally.entries.load(Ordering::Relaxed), 0);
}
