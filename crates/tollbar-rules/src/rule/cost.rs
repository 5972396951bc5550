//! What a request costs under a rule: by route, by attribute, or the same for all.

use crate::rule::condition::PathReading;
use crate::{Conditions, Request};

/// Costs by condition. Where several apply the highest counts, so that their order is no matter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Costs {
    /// What requests of some kind cost.
    pub by_condition: Vec<(Conditions, u64)>,
    /// An attribute that says the cost itself, as a whole number of at least 1.
    pub attribute: Option<Box<str>>,
    /// What any other request costs.
    pub default: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { by_condition: Vec::new(), attribute: None, default: 1 }
    }
}

impl Costs {
    /// The same for all.
    #[must_use]
    pub fn fixed(cost: u64) -> Self {
        Self { default: cost, ..Self::default() }
    }

    /// What the request pays: its own cost times what the rule says. Of a path with an encoded slash,
    /// which can be read in two ways, the reading counts that costs more.
    ///
    /// An attribute says something if it is a number of at least 1; one that is too large for 64 bits is as
    /// large as can be. 0 says nothing: that a request costs nothing, only the rule says. Nor does what is no number,
    /// for which engines deny a request.
    #[must_use]
    pub fn of(&self, request: &Request<'_>) -> u64 {
        self.in_dearest_reading(request, |reading| {
            let by_condition = self.by_condition.iter();
            let holding =
                by_condition.filter(|(conditions, _)| conditions.hold_as(request, reading));
            holding.map(|(_, cost)| *cost).max()
        })
    }

    /// The cost in the reading of the path that costs more, where `highest` knows the highest cost whose
    /// conditions hold in a reading.
    pub(crate) fn in_dearest_reading(
        &self,
        request: &Request<'_>,
        highest: impl Fn(PathReading) -> Option<u64>,
    ) -> u64 {
        let said = self.said_by(request);
        let cost = |reading| highest(reading).max(said).unwrap_or(self.default);
        let mut factor = cost(PathReading::Decoded);
        if request.path_with_slashes_kept().is_some() {
            factor = factor.max(cost(PathReading::SlashesKept));
        }
        request.cost().saturating_mul(factor)
    }

    fn said_by(&self, request: &Request<'_>) -> Option<u64> {
        let value = request.attribute(self.attribute.as_deref()?)?;
        let number = whole_digits(value)?.parse().unwrap_or(u64::MAX);
        (number > 0).then_some(number)
    }

    /// True where the attribute that says the cost is there, and is no number.
    pub(crate) fn is_invalid_for(&self, request: &Request<'_>) -> bool {
        let attribute = self.attribute.as_deref();
        attribute
            .and_then(|name| request.attribute(name))
            .is_some_and(|value| whole_digits(value).is_none())
    }

    /// The highest cost that is known beforehand.
    pub(crate) fn highest(&self) -> u64 {
        self.by_condition.iter().map(|(_, cost)| *cost).fold(self.default, u64::max)
    }
}

/// Returns the digits of a whole number that is not negative, without a fraction of zero: `5` for `5` and for `5.0`,
/// which is how some languages write the number 5. Returns `None` for anything else.
#[must_use]
pub fn whole_digits(text: &str) -> Option<&str> {
    let (digits, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let has_zero_fraction = !fraction.is_empty() && fraction.bytes().all(|byte| byte == b'0');
    (is_whole && has_zero_fraction).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Test;

    #[test]
    fn the_highest_cost_that_applies_counts() {
        let path = |pattern: &str| Test::Path([pattern.parse().unwrap()].into());
        let costs = Costs {
            by_condition: vec![
                (Conditions::new().and("path", path("/v1/search")), 5),
                (
                    Conditions::new()
                        .and("path", path("/v1/**"))
                        .and("method", Test::equal("POST")),
                    50,
                ),
            ],
            attribute: Some("tokens".into()),
            default: 2,
        };
        let cost = |method, path, tokens, own| {
            let attributes = [("tokens", tokens)];
            let request = Request::new(method, path).unwrap().with_attributes(&attributes).unwrap();
            costs.of(&request.with_cost(own))
        };
        assert_eq!(cost("GET", "/", "", 1), 2);
        assert_eq!(cost("GET", "/v1/search", "", 1), 5);
        assert_eq!(cost("POST", "/v1/search", "", 1), 50);
        assert_eq!(cost("POST", "/v1/search", "7", 1), 50);
        assert_eq!(cost("GET", "/", "700", 1), 700);
        assert_eq!(cost("GET", "/", "7", 3), 21);
        assert_eq!(cost("GET", "/", "700.0", 1), 700);
        assert_eq!(cost("GET", "/", "700.5", 1), 2);
        assert_eq!(cost("GET", "/", "many", 1), 2);
        assert_eq!(cost("GET", "/", "-1", 1), 2);
        assert_eq!(cost("GET", "/", "0", 1), 2);
        assert_eq!(cost("GET", "/", "00", 1), 2);
        assert_eq!(cost("GET", "/", "99999999999999999999999", 1), u64::MAX);
        assert_eq!(cost("GET", "/", "99999999999999999999999", 2), u64::MAX);
        assert_eq!(cost("POST", "/v1/search", "7", 0), 0);
        assert_eq!(costs.highest(), 50);
    }

    #[test]
    fn a_fraction_of_zero_leaves_a_whole_number() {
        for (text, digits) in [("5", "5"), ("5.0", "5"), ("05.000", "05"), ("0.0", "0")] {
            assert_eq!(whole_digits(text), Some(digits), "{text}");
        }
        for text in ["", ".", "5.", ".0", "5.5", "5.01", "-5.0", "+5", "5.0.0", "5,0", "5e0", " 5"]
        {
            assert_eq!(whole_digits(text), None, "{text}");
        }
    }
}
