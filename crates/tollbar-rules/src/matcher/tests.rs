//! The index finds what looking at every condition finds.

use proptest::prelude::*;

use super::*;
use crate::Condition;

/// What looking at every condition finds.
fn naive(list: &[Conditions], request: &Request<'_>) -> Vec<ItemId> {
    (0..list.len() as ItemId).filter(|at| list[*at as usize].hold(request)).collect()
}

fn indexed(list: &[Conditions], request: &Request<'_>) -> Vec<ItemId> {
    let mut found = Items::new();
    let matcher = Matcher::new(list.iter(), PathOptions::default());
    matcher.matching(request, |at| &list[at as usize], &mut found).to_vec()
}

fn value() -> impl Strategy<Value = Box<str>> {
    prop::sample::select(vec!["a", "b", "ab", "abc", "10.0.0.1", "10.1.2.3", "::1", "é"])
        .prop_map(Box::from)
}

fn test() -> impl Strategy<Value = Test> {
    let block =
        prop::sample::select(vec!["10.0.0.0/8", "10.0.0.0/31", "10.1.2.3", "::/0", "0.0.0.0/0"]);
    let blocks = prop::collection::vec(block.prop_map(|text| text.parse().unwrap()), 1..3);
    let positive = prop_oneof![
        prop::collection::vec(value(), 1..4).prop_map(|known| Test::OneOf(known.into())),
        value().prop_map(Test::Prefix),
        blocks.prop_map(|blocks| Test::Within(blocks.into())),
        Just(Test::Present),
    ];
    positive.prop_flat_map(|test| {
        let not = Test::Not(Box::new(test.clone()));
        prop_oneof![3 => Just(test), 1 => Just(not)]
    })
}

fn path_test() -> impl Strategy<Value = Test> {
    let pattern = "(/([ab]|\\*)){1,3}(/\\*\\*)?".prop_map(|text| text.parse().unwrap());
    let tests =
        prop::collection::vec(pattern, 1..3).prop_map(|patterns| Test::Path(patterns.into()));
    tests.prop_flat_map(|test| {
        let not = Test::Not(Box::new(test.clone()));
        prop_oneof![4 => Just(test), 1 => Just(not)]
    })
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let attribute = prop::sample::select(vec!["x", "y", "ip", "method"]);
    let of_attribute =
        (attribute, test()).prop_map(|(name, test)| Condition { attribute: name.into(), test });
    let of_path = path_test().prop_map(|test| Condition { attribute: "path".into(), test });
    let one = prop_oneof![3 => of_attribute, 2 => of_path];
    prop::collection::vec(one, 0..4).prop_map(|all| all.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_index_finds_what_a_scan_finds(
        list in prop::collection::vec(conditions(), 0..30),
        path in "(/|%2F)[ab](/|%2f|)[ab]?(/[abc])?",
        method in prop::sample::select(vec!["a", "b", "GET"]),
        attributes in prop::collection::btree_map(
            prop::sample::select(vec!["x", "y", "ip", "z"]), value(), 0..4
        ),
    ) {
        let attributes: Vec<(&str, &str)> = attributes
            .iter()
            .map(|(name, value)| (*name, &**value))
            // No request has an `ip` that is no address.
            .filter(|(name, value)| *name != "ip" || crate::address_part(value).is_some())
            .collect();
        let request = Request::new(method, &path).unwrap().with_attributes(&attributes).unwrap();
        prop_assert_eq!(indexed(&list, &request), naive(&list, &request));
        let matcher = Matcher::new(list.iter(), PathOptions::default());
        for reading in [PathReading::Decoded, PathReading::SlashesKept] {
            let mut found = Items::new();
            let found =
                matcher.matching_as(&request, reading, |at| &list[at as usize], &mut found);
            let holds = |at: &ItemId| list[*at as usize].hold_as(&request, reading);
            let expected: Vec<ItemId> = (0..list.len() as ItemId).filter(holds).collect();
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn only_what_matches_is_compared() {
    // A thousand rules of a hundred tenants and ten plans: each attribute alone would propose ten
    // or a hundred of them.
    let list: Vec<Conditions> = (0..1_000)
        .map(|n| {
            Conditions::new()
                .and("tenant", Test::equal(&format!("t{}", n % 100)))
                .and("plan", Test::equal(&format!("p{}", n / 100)))
        })
        .collect();
    let matcher = Matcher::new(list.iter(), PathOptions::default());
    let attributes = [("plan", "p3"), ("tenant", "t7")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    let mut proposed = Items::new();
    matcher.look_up(&request, PathReading::Decoded, &mut proposed);
    assert_eq!(proposed.as_slice(), [307]);
}

#[test]
fn alternatives_beyond_all_measure_are_compared_and_not_multiplied_out() {
    let many = |name: &str| {
        let values: Box<[Box<str>]> = (0..1_000).map(|n| format!("{name}{n}").into()).collect();
        Test::OneOf(values)
    };
    let list =
        [Conditions::new().and("x", many("x")).and("y", many("y")).and("z", Test::equal("z"))];
    let attributes = [("x", "x7"), ("y", "y999"), ("z", "z")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    assert_eq!(indexed(&list, &request), [0]);
    let attributes = [("x", "x7"), ("y", "y1000"), ("z", "z")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    assert_eq!(indexed(&list, &request), [] as [ItemId; 0]);
}

#[test]
fn ten_thousand_attributes_are_not_asked_one_by_one() {
    let list: Vec<Conditions> =
        (0..10_000).map(|n| Conditions::new().and(&format!("a{n}"), Test::Present)).collect();
    let matcher = Matcher::new(list.iter(), PathOptions::default());
    assert!(matcher.buckets[0].by_lead.is_some());
    let attributes = [("a77", "x"), ("a9999", "y"), ("b", "z")];
    let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
    assert_eq!(indexed(&list, &request), [77, 9_999]);
}
