//! Conditions: what must hold of a request for a rule, an exemption or a cost to apply.
//!
//! `method` and `path` are attributes like any other, only that a path is tested by patterns. An
//! absent attribute meets no positive test and every negated one.

use std::fmt;
use std::net::IpAddr;

use crate::request::path::PathOptions;
use crate::{Cidr, PathPattern, Request};

/// What must hold of one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Test {
    /// It is one of these.
    OneOf(Box<[Box<str>]>),
    /// It begins so.
    Prefix(Box<str>),
    /// It is an address in one of these blocks.
    Within(Box<[Cidr]>),
    /// It is a path that one of these stands for.
    Path(Box<[PathPattern]>),
    /// It is there.
    Present,
    /// Whatever the test says, the opposite.
    Not(Box<Test>),
}

/// An attribute and what must hold of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Whose value is tested.
    pub attribute: Box<str>,
    /// What must hold.
    pub test: Test,
}

/// Conditions that must all hold. None: any request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conditions {
    all: Vec<Condition>,
}

/// Which way a path with an encoded slash is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathReading {
    Decoded,
    SlashesKept,
}

impl Test {
    /// Equal to `value`.
    #[must_use]
    pub fn equal(value: &str) -> Self {
        Self::OneOf([value.into()].into())
    }

    /// Not there.
    #[must_use]
    pub fn absent() -> Self {
        Self::Not(Box::new(Self::Present))
    }

    /// True where the value meets the test; `None` is absence.
    #[must_use]
    pub fn holds(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Not(test), value) => !test.holds(value),
            (_, None) => false,
            (Self::Present, Some(_)) => true,
            (Self::OneOf(known), Some(value)) => known.iter().any(|one| **one == *value),
            (Self::Prefix(prefix), Some(value)) => value.starts_with(&**prefix),
            (Self::Within(blocks), Some(value)) => match value.parse::<IpAddr>() {
                Ok(address) => blocks.iter().any(|block| block.contains(address)),
                Err(_) => false,
            },
            (Self::Path(patterns), Some(path)) => {
                patterns.iter().any(|pattern| pattern.matches(path))
            }
        }
    }
}

impl Test {
    /// True where a path meets the test that was folded by `options`.
    fn holds_path(&self, path: &str, options: PathOptions) -> bool {
        match self {
            Self::Not(test) => !test.holds_path(path, options),
            Self::Path(patterns) => {
                patterns.iter().any(|pattern| pattern.matches_folded(path, options))
            }
            test => test.holds(Some(path)),
        }
    }
}

impl Condition {
    /// True if no request meets both conditions in one reading of its path. False if that cannot be proved.
    fn excludes(&self, other: &Self) -> bool {
        if self.attribute != other.attribute {
            return false;
        }
        match (&self.test, &other.test) {
            (Test::Path(own), Test::Path(others)) => {
                own.iter().all(|own| others.iter().all(|other| own.is_disjoint_from(other)))
            }
            // How other tests compare a path depends on the `paths` of the rules file.
            _ if &*self.attribute == "path" => false,
            (Test::OneOf(values), test) | (test, Test::OneOf(values)) => {
                !values.iter().any(|value| test.holds(Some(value)))
            }
            (Test::Not(negated), test) | (test, Test::Not(negated)) => match &**negated {
                // Every test that is not negated needs a value.
                Test::Present => !matches!(test, Test::Not(_)),
                negated => negated == test,
            },
            (Test::Prefix(own), Test::Prefix(other)) => {
                !own.starts_with(&**other) && !other.starts_with(&**own)
            }
            (Test::Within(own), Test::Within(others)) => {
                own.iter().all(|own| others.iter().all(|other| own.is_disjoint_from(other)))
            }
            _ => false,
        }
    }
}

impl Conditions {
    /// True if no request meets both sets of conditions in one reading of its path: the methods differ, the path
    /// patterns share no path, or an attribute would need two values. False if that cannot be proved.
    ///
    /// ```
    /// use tollbar_rules::{Conditions, Test};
    /// let get = Conditions::new().and("method", Test::equal("GET"));
    /// let post = Conditions::new().and("method", Test::equal("POST"));
    /// assert!(get.is_disjoint_from(&post) && !get.is_disjoint_from(&Conditions::new()));
    /// ```
    #[must_use]
    pub fn is_disjoint_from(&self, other: &Self) -> bool {
        self.all.iter().any(|own| other.all.iter().any(|other| own.excludes(other)))
    }

    /// Any request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// And this one.
    #[must_use]
    pub fn and(mut self, attribute: &str, test: Test) -> Self {
        self.all.push(Condition { attribute: attribute.into(), test });
        self
    }

    /// The conditions, in the order in which they were written.
    #[must_use]
    pub fn all(&self) -> &[Condition] {
        &self.all
    }

    /// True where every condition holds of `request`. Of a path with an encoded slash, whether it
    /// is read as one or not.
    #[must_use]
    pub fn hold(&self, request: &Request<'_>) -> bool {
        self.hold_as(request, PathReading::Decoded)
            || request.path_with_slashes_kept().is_some()
                && self.hold_as(request, PathReading::SlashesKept)
    }

    /// True where they hold whichever way the path is read: for what loosens a limit.
    #[must_use]
    pub fn hold_surely(&self, request: &Request<'_>) -> bool {
        self.hold_as(request, PathReading::Decoded)
            && (request.path_with_slashes_kept().is_none()
                || self.hold_as(request, PathReading::SlashesKept))
    }

    pub(crate) fn hold_as(&self, request: &Request<'_>, reading: PathReading) -> bool {
        self.first_unmet_as(request, reading).is_none()
    }

    /// The first condition that does not hold of the decoded path, for those who ask why.
    #[must_use]
    pub fn first_unmet(&self, request: &Request<'_>) -> Option<&Condition> {
        self.first_unmet_as(request, PathReading::Decoded)
    }

    fn first_unmet_as(&self, request: &Request<'_>, reading: PathReading) -> Option<&Condition> {
        self.all.iter().find(|condition| !match &*condition.attribute {
            "path" => condition.test.holds_path(request.path_as(reading), request.path_options()),
            name => condition.test.holds(request.attribute(name)),
        })
    }
}

impl Request<'_> {
    /// The path, read one way or the other.
    pub(crate) fn path_as(&self, reading: PathReading) -> &str {
        match (reading, self.path_with_slashes_kept()) {
            (PathReading::SlashesKept, Some(path)) => path,
            _ => self.path(),
        }
    }
}

impl FromIterator<Condition> for Conditions {
    fn from_iter<I: IntoIterator<Item = Condition>>(conditions: I) -> Self {
        Self { all: conditions.into_iter().collect() }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.attribute, self.test)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneOf(known) => write_any(f, "is", known),
            Self::Prefix(prefix) => write!(f, "begins with `{prefix}`"),
            Self::Within(blocks) => write_any(f, "is within", blocks),
            Self::Path(patterns) => write_any(f, "matches", patterns),
            Self::Present => f.write_str("is present"),
            Self::Not(test) => match &**test {
                Self::Present => f.write_str("is absent"),
                Self::OneOf(known) => write_any(f, "is not", known),
                test => write!(f, "not: {test}"),
            },
        }
    }
}

/// How many alternatives a message lists.
const LISTED_MAX: usize = 5;

fn write_any<T: fmt::Display>(f: &mut fmt::Formatter<'_>, verb: &str, any: &[T]) -> fmt::Result {
    write!(f, "{verb} ")?;
    for (at, value) in any.iter().take(LISTED_MAX).enumerate() {
        write!(f, "{}`{value}`", if at == 0 { "" } else { " or " })?;
    }
    match any.len().saturating_sub(LISTED_MAX) {
        0 => Ok(()),
        more => write!(f, " or {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_test_says_what_holds_of_a_value() {
        let within = Test::Within(["10.0.0.0/8".parse().unwrap()].into());
        let path = Test::Path(["/v1/**".parse().unwrap(), "/x".parse().unwrap()].into());
        let not = |test: &Test| Test::Not(Box::new(test.clone()));
        let table: &[(Test, Option<&str>, bool)] = &[
            (Test::equal("a"), Some("a"), true),
            (Test::equal("a"), Some("A"), false),
            (Test::equal("a"), None, false),
            (not(&Test::equal("a")), Some("b"), true),
            (not(&Test::equal("a")), None, true),
            (Test::OneOf(["a".into(), "b".into()].into()), Some("b"), true),
            (Test::Prefix("in-".into()), Some("in-house"), true),
            (Test::Prefix("in-".into()), Some("in"), false),
            (within.clone(), Some("10.1.1.1"), true),
            (within.clone(), Some("11.1.1.1"), false),
            (within.clone(), Some("10.1.1"), false),
            (not(&within), Some("nonsense"), true),
            (path.clone(), Some("/v1/a"), true),
            (path.clone(), Some("/x"), true),
            (path.clone(), Some("/y"), false),
            (Test::Present, Some("x"), true),
            (Test::Present, None, false),
            (Test::absent(), None, true),
            (Test::absent(), Some("x"), false),
        ];
        for (test, value, holds) in table {
            assert_eq!(test.holds(*value), *holds, "{test} of {value:?}");
        }
    }

    #[test]
    fn conditions_that_share_no_request_are_known() {
        let path = |text: &str| Test::Path([text.parse().unwrap()].into());
        let within = |text: &str| Test::Within([text.parse().unwrap()].into());
        let one_of =
            |values: &[&str]| Test::OneOf(values.iter().map(|value| (*value).into()).collect());
        let prefix = |text: &str| Test::Prefix(text.into());
        let not = |test: Test| Test::Not(Box::new(test));
        let table = [
            ("method", Test::equal("GET"), one_of(&["POST", "PUT"]), true),
            ("method", Test::equal("GET"), one_of(&["POST", "GET"]), false),
            ("method", Test::equal("GET"), not(Test::equal("GET")), true),
            ("method", Test::equal("GET"), not(Test::equal("PUT")), false),
            ("path", path("/login"), path("/search/**"), true),
            ("path", path("/**"), path("/search"), false),
            // Folded, the path `/login` meets both.
            ("path", Test::equal("/login"), path("/Login"), false),
            ("user", Test::absent(), Test::Present, true),
            ("user", Test::absent(), prefix("a"), true),
            ("user", Test::absent(), Test::equal("a"), true),
            ("user", Test::absent(), not(Test::equal("a")), false),
            ("user", not(Test::equal("a")), not(Test::equal("b")), false),
            ("user", prefix("in-"), prefix("out-"), true),
            ("user", prefix("in-"), prefix("in-house-"), false),
            ("user", prefix("in-"), not(prefix("in-")), true),
            ("user", prefix("in-"), not(prefix("in-house-")), false),
            ("user", prefix("in-"), Test::equal("out"), true),
            ("user", Test::Present, prefix("a"), false),
            ("ip", within("10.0.0.0/8"), within("192.0.2.0/24"), true),
            ("ip", within("10.0.0.0/8"), within("10.1.0.0/16"), false),
            ("ip", within("0.0.0.0/0"), within("::/0"), true),
            ("ip", within("10.0.0.0/8"), Test::equal("192.0.2.1"), true),
            ("ip", within("10.0.0.0/8"), Test::equal("::ffff:10.0.0.1"), false),
            ("ip", within("10.0.0.0/8"), prefix("10."), false),
        ];
        for (attribute, first, second, is_disjoint) in table {
            let shown = format!("{attribute}: {first}, {second}");
            let [first, second] = [first, second]
                .map(|test| Conditions::new().and("tenant", Test::Present).and(attribute, test));
            assert_eq!(first.is_disjoint_from(&second), is_disjoint, "{shown}");
            assert_eq!(second.is_disjoint_from(&first), is_disjoint, "{shown}");
        }
        let user = Conditions::new().and("user", Test::equal("GET"));
        let method = Conditions::new().and("method", Test::equal("POST"));
        assert!(!user.is_disjoint_from(&method), "they test different attributes");
    }

    proptest! {
        /// A pair that is called disjoint and shares a request would let a sub-limit above the operator's limit pass.
        #[test]
        fn tests_that_one_value_meets_are_not_disjoint(
            first in any_test(), second in any_test(), value in proptest::option::of(any_value()),
        ) {
            if first.holds(value.as_deref()) && second.holds(value.as_deref()) {
                let [first, second] = [&first, &second].map(|test| Conditions::new().and("a", test.clone()));
                prop_assert!(!first.is_disjoint_from(&second));
            }
        }
    }

    fn any_value() -> impl Strategy<Value = String> {
        prop_oneof![Just(String::new()), "[ab]{1,3}", "10\\.[01]\\.0\\.[01]", "/[ab](/[ab])?"]
    }

    fn any_test() -> impl Strategy<Value = Test> {
        let block =
            prop_oneof![Just("10.0.0.0/8"), Just("10.0.0.0/16"), Just("10.1.0.1"), Just("::/0")];
        let pattern = prop_oneof![Just("/a"), Just("/*"), Just("/a/**"), Just("/b/{x}")];
        let positive = prop_oneof![
            Just(Test::Present),
            proptest::collection::vec(any_value(), 1..3).prop_map(|values| Test::OneOf(
                values.into_iter().map(String::into_boxed_str).collect()
            )),
            any_value().prop_map(|value| Test::Prefix(value.into())),
            block.prop_map(|text| Test::Within([text.parse().unwrap()].into())),
            pattern.prop_map(|text| Test::Path([text.parse().unwrap()].into())),
        ];
        positive.prop_recursive(2, 3, 1, |test| test.prop_map(|test| Test::Not(Box::new(test))))
    }

    #[test]
    fn what_is_not_met_is_named() {
        let conditions = Conditions::new()
            .and("method", Test::OneOf(["GET".into(), "POST".into()].into()))
            .and("tenant", Test::equal("acme"))
            .and("beta", Test::absent());
        let attributes = [("tenant", "other")];
        let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
        let unmet = conditions.first_unmet(&request).map(ToString::to_string);
        assert_eq!(unmet.as_deref(), Some("`tenant` is `acme`"));
        let all: Vec<String> = conditions.all().iter().map(ToString::to_string).collect();
        assert_eq!(all, ["`method` is `GET` or `POST`", "`tenant` is `acme`", "`beta` is absent"]);
    }

    #[test]
    fn a_limit_applies_in_either_reading_of_a_path_and_a_favour_in_both() {
        let conditions =
            Conditions::new().and("path", Test::Path(["/static/**".parse().unwrap()].into()));
        let request = Request::new("GET", "/static/..%2Flogin").unwrap();
        assert!(conditions.hold(&request) && !conditions.hold_surely(&request));
        let plain = Request::new("GET", "/static/x").unwrap();
        assert!(conditions.hold(&plain) && conditions.hold_surely(&plain));
    }
}
