//! What a version of the rules shares with the one before it, and what it must not.

use super::*;
use crate::RuleFile;

fn rules(text: &str) -> RuleSet {
    RuleFile::parse("r", text).unwrap().rules
}

fn first(rules: &str) -> Snapshot {
    Snapshot::new(self::rules(rules), 1, None)
}

/// The next version, in which the rule of the text takes the place of that of its identity.
fn next(before: &Snapshot, rule: &str) -> Snapshot {
    let rule = Arc::clone(&rules(&format!("rules: [{rule}]")).rules()[0]);
    let rules = before.rules.changed(&[rule.identity()], vec![Arc::clone(&rule)]).unwrap();
    Snapshot::new(rules, before.version + 1, Some(before))
}

fn is_shared(before: &Snapshot, after: &Snapshot) -> Vec<bool> {
    let both = before.compiled.iter().zip(&after.compiled);
    both.map(|(one, other)| Arc::ptr_eq(one, other)).collect()
}

#[test]
fn a_changed_limit_leaves_everything_else_as_it_is() {
    let before =
        first("rules: [{name: a, limit: 1/s}, {name: b, limit: 1/s}, {name: c, limit: 1/s}]");
    let after = next(&before, "{name: b, limit: 2/s}");
    assert!(Arc::ptr_eq(&before.index, &after.index));
    assert_eq!(is_shared(&before, &after), [true, false, true]);
    assert_eq!(after.core(1).limits[0].limit(), 2);
    assert!(Arc::ptr_eq(&before.plan(1).top, &after.plan(1).top), "who is limited most goes on");
    assert_eq!(before.core(1).recipe.id(), after.core(1).recipe.id());
}

#[test]
fn another_condition_place_or_number_is_looked_up_anew() {
    let before =
        first("rules: [{name: a, limit: 1/s}, {name: b, limit: 1/s}, {name: c, limit: 1/s}]");
    for change in ["{name: b, match: {user: u}, limit: 1/s}", "{name: d, limit: 1/s}"] {
        let after = next(&before, change);
        assert!(!Arc::ptr_eq(&before.index, &after.index), "{change}");
        assert!(is_shared(&before, &after)[0], "{change}");
    }
}

#[test]
fn rules_that_are_replaced_are_found_where_they_are_now() {
    let before = first(
        "rules: [{name: a, limit: 1/s, replaces: [c]}, {name: b, limit: 1/s}, {name: c, limit: 1/s}]",
    );
    assert_eq!(before.replaced_by(0), [2]);
    let other = Rule { replaces: vec!["b".into()], ..before.rule(0).clone() };
    let other = before.rules.changed(&["a"], vec![Arc::new(other)]).unwrap();
    assert_eq!(Snapshot::new(other, 2, Some(&before)).replaced_by(0), [1]);
    // As many rules of the same conditions as before, and none of them where it was.
    let d = Arc::clone(&rules("rules: [{name: d, limit: 1/s}]").rules()[0]);
    let moved = before.rules.changed(&["b"], vec![d]).unwrap();
    assert_eq!(Snapshot::new(moved, 2, Some(&before)).replaced_by(0), [1]);
}

#[test]
fn a_share_is_that_of_as_many_nodes_as_there_are_now() {
    let before = first("rules: [{name: a, limit: 8/s, on_store_failure: local}]");
    let after = Snapshot::new(before.rules.clone().with_node_count(4), 2, Some(&before));
    let share = |snapshot: &Snapshot| snapshot.plan(0).shares(Tier::Rule)[0].limit();
    assert_eq!((share(&before), share(&after)), (8, 2));
    assert!(Arc::ptr_eq(&before.plan(0).top, &after.plan(0).top));
}
