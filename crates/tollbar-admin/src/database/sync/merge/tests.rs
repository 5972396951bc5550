//! Which rows are in force beside the rules of a file, and which are left out.

use serde_json::{Value, json};
use tollbar::Timestamp;
use tollbar_rules::RuleFile;
use tollbar_rules::admin::{ExemptionForm, SubjectType, from_json};

use super::*;
use crate::database::sync::contents::{RowChanges, RuleWithExemptions};
use crate::database::{KeyRecord, Owner, Revisions};

fn row(at: u128, json: &Value) -> RuleRow {
    RuleRow {
        id: RuleId::of_u128(at),
        rule: from_json(json.clone()).unwrap(),
        version: 1,
        owner: Owner::default(),
        created_at: Timestamp::ZERO,
        updated_at: Timestamp::ZERO,
        deleted_at: None,
        row: at as i64,
    }
}

fn small(at: u128, name: &str) -> RuleRow {
    row(at, &json!({ "name": name, "maxRequests": 1, "windowSeconds": 1 }))
}

fn file(text: &str) -> RuleSet {
    RuleFile::parse("rules.yaml", text).unwrap().rules
}

fn composed(file: &RuleSet, rules: Vec<RuleRow>) -> (Vec<String>, Vec<(String, String)>) {
    let rules = rules.into_iter().map(Arc::new).collect();
    let contents = DatabaseContents { rules, ..DatabaseContents::default() };
    let MergedRules { rules, skipped, .. } =
        merge(file, &contents, &mut BuiltRules::new(), &UnsupportedRules::new());
    let names = rules.rules().iter().map(|rule| rule.name.to_string()).collect();
    (names, skipped.into_iter().map(|row| (row.name, row.why)).collect())
}

#[test]
fn both_are_in_force_and_a_row_is_counted_by_its_id() {
    let file = file("rules: [{ name: a, limit: 1/s }]").with_node_count(3);
    let contents =
        DatabaseContents { rules: vec![small(7, "b").into()], ..DatabaseContents::default() };
    let MergedRules { rules, skipped, .. } =
        merge(&file, &contents, &mut BuiltRules::new(), &UnsupportedRules::new());
    assert_eq!((rules.len(), rules.node_count(), skipped.len()), (2, 3, 0));
    assert_eq!(**rules.get("a").unwrap().identity(), *"a");
    assert_eq!(**rules.get("b").unwrap().identity(), *RuleId::of_u128(7).to_string());
}

#[test]
fn the_file_goes_before_a_row_of_the_same_name() {
    let file = file("rules: [{ name: a, limit: 9/s }]");
    let (names, skipped) = composed(&file, vec![small(1, "a"), small(2, "b")]);
    assert_eq!((names, skipped.len()), (vec!["a".to_owned(), "b".to_owned()], 1));
    assert!(skipped[0].1.contains("the file has a rule of that name"), "{skipped:?}");
}

#[test]
fn rows_that_do_not_fit_are_left_out_and_the_others_are_not() {
    let every = |at: u128| {
        let limits: Vec<String> = (1..=8).map(|count| format!("{count}/{count}min")).collect();
        row(at, &json!({ "name": format!("many{at}"), "limit": limits }))
    };
    let rows = vec![
        small(1, "good"),
        row(
            2,
            &json!({ "name": "replaces", "maxRequests": 1, "windowSeconds": 1, "replaces": ["gone"] }),
        ),
        row(
            3,
            &json!({ "name": "follows", "maxRequests": 1, "windowSeconds": 1, "replaces": ["replaces"] }),
        ),
        row(4, &json!({ "name": "held", "algorithm": "concurrency", "maxRequests": 3 })),
        row(5, &json!({ "name": "nothing" })),
        every(6),
        every(7),
        every(8),
        every(9),
        small(10, "fine"),
    ];
    let (names, skipped) = composed(&file("rules: [{ name: a, limit: 1/s }]"), rows);
    for name in ["a", "good", "replaces", "follows", "many6", "many7", "many8"] {
        assert!(names.iter().any(|other| other == name), "{name} of {names:?}");
    }
    for (name, why) in
        [("held", "lease"), ("nothing", "limit"), ("many9", "limits apply to every request")]
    {
        let told =
            skipped.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("{skipped:?}"));
        assert!(told.1.contains(why), "{told:?}");
    }
    assert_eq!(names.len() + skipped.len(), 11);
}

#[test]
fn exemptions_and_overrides_are_where_they_belong() {
    let exemption = |id, value: &str, rule| ExemptionRow {
        id,
        rule: RuleId::of_u128(rule),
        form: ExemptionForm::new(SubjectType::IpCidr, value),
        created_by: String::new(),
        created_at: Timestamp::ZERO,
    };
    let boost = |id: i64, factor_percent: u32| KeyRow {
        id,
        record: KeyRecord {
            rule: None,
            subject: format!("user:{id}"),
            effect: KeyEffect::Boost { factor_percent },
            reason: None,
            expires_at: None,
        },
        created_by: String::new(),
        created_at: Timestamp::ZERO,
    };
    let contents = DatabaseContents {
        rules: vec![small(1, "a").into()],
        exemptions: [
            (1, vec![exemption(1, "10.0.0.0/8", 1), exemption(2, "nowhere", 1)]),
            (9, vec![exemption(3, "::/0", 9)]),
        ]
        .map(|(rule, rows)| (RuleId::of_u128(rule), rows.into()))
        .into(),
        keys: (1..=70)
            .map(|at| boost(at, 100 + u32::try_from(at).unwrap()))
            .chain([boost(71, 101)])
            .map(Arc::new)
            .collect(),
        ..DatabaseContents::default()
    };
    let mut built = BuiltRules::new();
    for _ in 0..2 {
        // The second time from what is known: nothing is there twice.
        let MergedRules { rules, skipped, .. } =
            merge(&RuleSet::empty(), &contents, &mut built, &UnsupportedRules::new());
        assert_eq!(rules.get("a").unwrap().exemptions.len(), 1);
        assert_eq!(rules.overrides().len(), 65);
        assert_eq!((skipped.len(), skipped[0].what), (7, "exemption"));
        assert_eq!((skipped[1].what, skipped[1].name.as_str()), ("key record", "user:65"));
    }
}

#[test]
fn a_rule_that_changes_is_made_again() {
    let mut built = BuiltRules::new();
    let mut contents =
        DatabaseContents { rules: vec![small(1, "a").into()], ..DatabaseContents::default() };
    let before = merge(&RuleSet::empty(), &contents, &mut built, &UnsupportedRules::new()).rules;
    // Read again, and it says the same: it is the very same rule.
    contents.rules[0] = small(1, "a").into();
    let rules = merge(&RuleSet::empty(), &contents, &mut built, &UnsupportedRules::new()).rules;
    assert!(Arc::ptr_eq(&before.rules()[0], &rules.rules()[0]));
    Arc::make_mut(&mut contents.rules[0]).rule.limits =
        vec![tollbar_rules::Limit::parse("77/s").unwrap()];
    let rules = merge(&RuleSet::empty(), &contents, &mut built, &UnsupportedRules::new()).rules;
    assert_eq!(rules.get("a").unwrap().limits[0].policy().limit(), 77);
    contents.rules.clear();
    merge(&RuleSet::empty(), &contents, &mut built, &UnsupportedRules::new());
    assert!(built.is_empty(), "what is gone is not kept");
}

/// Rows of which the one at 1 is changed, and what comes of it: the quick way, and the other.
fn changed(rows: &[RuleRow], to: Option<RuleWithExemptions>) -> (Option<RuleSet>, MergedRules) {
    let file = file("rules: [{ name: f, limit: 1/s }]").with_node_count(2);
    let rules = rows.iter().cloned().map(Arc::new).collect();
    let mut contents = DatabaseContents { rules, ..DatabaseContents::default() };
    let mut built = BuiltRules::new();
    let before = merge(&file, &contents, &mut built, &UnsupportedRules::new());
    assert!(before.skipped.is_empty(), "{:?}", before.skipped);
    let delta = contents.apply(RowChanges {
        revisions: Revisions::default(),
        mark: 0,
        rules: vec![(1, to)],
        keys: Vec::new(),
        now: Timestamp::ZERO,
    });
    let quick = merge_changes(&before.rules, &contents, &delta, &mut built);
    // Whatever it left of what was known, the other way is not misled.
    let again = merge(&file, &contents, &mut built, &UnsupportedRules::new());
    let anew = merge(&file, &contents, &mut BuiltRules::new(), &UnsupportedRules::new());
    assert_eq!((&again.rules, &again.skipped), (&anew.rules, &anew.skipped));
    (quick, anew)
}

fn to(row: RuleRow, exempt: &[&str]) -> RuleWithExemptions {
    let exemption = |(id, value): (i64, &&str)| ExemptionRow {
        id,
        rule: row.id,
        form: ExemptionForm::new(SubjectType::IpCidr, value),
        created_by: String::new(),
        created_at: Timestamp::ZERO,
    };
    let exemptions = (1..).zip(exempt).map(exemption).collect();
    RuleWithExemptions { row, exemptions }
}

#[test]
fn a_change_that_fits_comes_to_the_same_the_quick_way() {
    let replaces = json!({ "name": "c", "maxRequests": 1, "windowSeconds": 1, "replaces": ["b"] });
    let rows = [small(1, "a"), small(2, "b"), row(3, &replaces)];
    let other = row(1, &json!({ "name": "a", "maxRequests": 9, "windowSeconds": 1 }));
    for change in [
        None,
        Some(to(other, &[])),
        Some(to(small(1, "z"), &["10.0.0.0/8", "::/0"])),
        Some(to(RuleRow { row: 1, ..small(7, "another_id") }, &[])),
    ] {
        let (quick, anew) = changed(&rows, change);
        assert_eq!((quick, anew.skipped.len()), (Some(anew.rules), 0));
    }
}

#[test]
fn a_change_that_does_not_fit_is_not_made_the_quick_way() {
    let replaces = json!({ "name": "b", "maxRequests": 1, "windowSeconds": 1, "replaces": ["a"] });
    let rows = [small(1, "a"), row(2, &replaces), small(3, "c")];
    let held = row(1, &json!({ "name": "a", "algorithm": "concurrency", "maxRequests": 3 }));
    for (what, change) in [
        ("a rule that another one replaces is gone", None),
        ("the file has that name", Some(to(small(1, "f"), &[]))),
        ("another row has that name", Some(to(small(1, "c"), &[]))),
        ("it has no limit", Some(to(row(1, &json!({ "name": "a" })), &[]))),
        ("permits are lost with whoever has them", Some(to(held, &[]))),
        ("nobody is exempt by that", Some(to(small(1, "a"), &["nowhere"]))),
    ] {
        let (quick, anew) = changed(&rows, change);
        let is_odd = !anew.skipped.is_empty() || !anew.void_replaces.is_empty();
        assert!(quick.is_none() && is_odd, "{what}");
    }
}

#[test]
fn a_rule_that_replaces_one_that_is_not_there_is_in_force() {
    let replacing = |at, name: &str, replaced: &[&str]| {
        let form =
            json!({ "name": name, "maxRequests": 1, "windowSeconds": 1, "replaces": replaced });
        Arc::new(row(at, &form))
    };
    let rules = vec![replacing(1, "a", &["gone", "b"]), replacing(2, "b", &["away"])];
    let contents = DatabaseContents { rules, ..DatabaseContents::default() };
    let mut built = BuiltRules::new();
    let merged = merge(&RuleSet::empty(), &contents, &mut built, &UnsupportedRules::new());
    assert_eq!((merged.rules.len(), merged.skipped.len()), (2, 0));
    let replaces = |name: &str| merged.rules.get(name).unwrap().replaces.clone();
    assert_eq!((replaces("a"), replaces("b")), (vec!["b".into()], Vec::new()));
    let void: Vec<(&str, &str)> = merged
        .void_replaces
        .iter()
        .map(|void| (void.name.as_str(), void.replaced.as_str()))
        .collect();
    assert_eq!(void, [("a", "gone"), ("b", "away")]);
    // The rows are as they were, so that what they replace counts again when it is there.
    let again = merge(&RuleSet::empty(), &contents, &mut built, &UnsupportedRules::new());
    assert_eq!(again.void_replaces, merged.void_replaces);
}
