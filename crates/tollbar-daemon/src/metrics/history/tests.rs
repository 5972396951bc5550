//! What is kept of what was decided, for how long, and of whom.

use tollbar_rules::{Engine, Request, RuleFile, RuleSet};

use super::*;

fn rules(count: usize) -> RuleSet {
    let rule = |at| format!("  - {{ name: r{at}, match: {{ path: /{at} }}, limit: 9/day }}\n");
    let text: String = (0..count).map(rule).collect();
    RuleFile::parse("rules.yaml", &format!("rules:\n{text}")).unwrap().rules
}

/// A check of the rule in this place by a client of its own.
fn check(engine: &Engine, at: usize, user: usize) {
    let (path, user) = (format!("/{at}"), user.to_string());
    let attributes = [("user", &*user)];
    let request = Request::new("GET", &path).unwrap().with_attributes(&attributes).unwrap();
    assert!(engine.check(&request).is_allowed());
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_micros(second * 1_000_000 + 999)
}

fn allowed(allowed: u64) -> OutcomeCounts {
    OutcomeCounts { allowed, ..OutcomeCounts::default() }
}

fn counts(series: &HistorySeries) -> Vec<u32> {
    series.points.iter().map(|point| point.allowed).collect()
}

#[test]
fn what_was_decided_is_in_its_second_and_its_minute() {
    let engine = Engine::new(rules(1));
    let mut history = History::default();
    history.tick(at(118), allowed(5), &engine.tallies());
    check(&engine, 0, 1);
    history.tick(at(119), allowed(7), &engine.tallies());
    // A second without a tick is a second in which nothing was.
    check(&engine, 0, 2);
    check(&engine, 0, 3);
    history.tick(at(121), allowed(17), &engine.tallies());

    let seconds = history.seconds(None, 99).unwrap();
    assert_eq!(seconds.start, Timestamp::from_micros(118_000_000));
    assert_eq!(counts(&seconds), [5, 2, 0, 10]);
    let minutes = history.minutes(None, 99).unwrap();
    assert_eq!(minutes.start, Timestamp::from_micros(60_000_000));
    assert_eq!(counts(&minutes), [7, 10]);
    assert_eq!(counts(&history.seconds(None, 2).unwrap()), [0, 10]);

    let rule = history.seconds(Some("r0"), 99).unwrap();
    assert_eq!(counts(&rule), [0, 1, 0, 2]);
    assert_eq!(rule.start, seconds.start, "it begins where the others do");
    assert_eq!(history.seconds(Some("r1"), 99), None);
}

#[test]
fn a_clock_that_goes_back_or_far_ahead_leaves_it_whole() {
    let engine = Engine::new(rules(1));
    let mut history = History::default();
    history.tick(at(1_000), allowed(1), &engine.tallies());
    history.tick(at(10), allowed(3), &engine.tallies());
    assert_eq!(counts(&history.seconds(None, 99).unwrap()), [3]);
    history.tick(Timestamp::from_micros(u64::MAX), allowed(4), &engine.tallies());
    let (seconds, minutes) =
        (history.seconds(None, usize::MAX).unwrap(), history.minutes(None, usize::MAX).unwrap());
    assert_eq!((seconds.points.len(), minutes.points.len()), (SECONDS_MAX, MINUTES_MAX));
    assert_eq!(counts(&seconds).iter().sum::<u32>(), 1);
}

#[test]
fn it_has_a_bound_however_long_it_runs() {
    let engine = Engine::new(rules(1));
    let mut history = History::default();
    for second in 0..100_000 {
        history.tick(at(second), allowed(second), &engine.tallies());
    }
    assert_eq!(history.seconds(None, usize::MAX).unwrap().points.len(), SECONDS_MAX);
    let minutes = history.minutes(None, usize::MAX).unwrap();
    assert_eq!(minutes.points.len(), MINUTES_MAX);
    assert!(counts(&minutes)[..MINUTES_MAX - 1].iter().all(|count| *count == 60));
}

#[test]
fn the_rules_that_decide_have_a_history_and_idle_ones_make_room() {
    let engine = Engine::new(rules(RULES_MAX + 2));
    let mut history = History::default();
    for rule in 0..RULES_MAX {
        check(&engine, rule, 1);
    }
    history.tick(at(1), allowed(0), &engine.tallies());
    assert_eq!(history.rules().count(), RULES_MAX);
    // No room yet.
    check(&engine, RULES_MAX, 1);
    history.tick(at(2), allowed(0), &engine.tallies());
    assert_eq!(history.seconds(Some(&format!("r{RULES_MAX}")), 9), None);
    for rule in 1..RULES_MAX {
        check(&engine, rule, 2);
    }
    history.tick(at(3), allowed(0), &engine.tallies());
    // The first has been idle for long.
    check(&engine, RULES_MAX, 2);
    history.tick(at(1 + IDLE_SECONDS), allowed(0), &engine.tallies());
    assert!(history.seconds(Some(&format!("r{RULES_MAX}")), 9).is_some());
    assert_eq!(history.seconds(Some("r0"), 9), None);
    assert_eq!(history.rules().count(), RULES_MAX);
}

#[test]
fn a_rule_that_is_gone_has_no_history_and_the_change_is_marked() {
    let engine = Engine::new(rules(2));
    let mut history = History::default();
    check(&engine, 0, 1);
    check(&engine, 1, 1);
    history.tick(at(1), allowed(0), &engine.tallies());
    assert_eq!(history.rules_changes().count(), 0);
    engine.replace(rules(1));
    history.tick(at(2), allowed(0), &engine.tallies());
    assert_eq!(history.rules().collect::<Vec<_>>(), ["r0"]);
    assert_eq!(
        history.rules_changes().collect::<Vec<_>>(),
        [RulesChange { at: at(2), rules_version: 2 }]
    );
    assert_eq!(counts(&history.seconds(Some("r0"), 9).unwrap()), [1, 0], "what stays goes on");
    for version in 0..2 * RULES_CHANGES_MAX as u64 {
        engine.replace(rules(1));
        history.tick(at(3 + version), allowed(0), &engine.tallies());
    }
    assert_eq!(history.rules_changes().count(), RULES_CHANGES_MAX);
}

#[test]
fn a_rule_that_comes_to_stand_elsewhere_counts_on() {
    let engine = Engine::new(rules(3));
    let mut history = History::default();
    for rule in 0..3 {
        check(&engine, rule, 1);
    }
    history.tick(at(1), allowed(0), &engine.tallies());
    // The first goes, so that the others move up.
    let moved = engine.rules().changed(&["r0"], Vec::new()).unwrap();
    engine.replace(moved);
    check(&engine, 2, 2);
    history.tick(at(2), allowed(0), &engine.tallies());
    assert_eq!(counts(&history.seconds(Some("r1"), 9).unwrap()), [1, 0]);
    assert_eq!(counts(&history.seconds(Some("r2"), 9).unwrap()), [1, 1]);
    assert_eq!(history.seconds(Some("r0"), 9), None);
}
