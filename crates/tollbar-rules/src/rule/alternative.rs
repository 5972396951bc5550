//! Alternatives in a rule: of several sets of limits, a request pays the first that allows it.
//!
//! A list of limits is either plain, and all of them hold, or each limit belongs to an alternative. Limits of one
//! alternative stand side by side and must all allow.

use super::limit::Limit;
use crate::{Per, Rule};

/// The place of a limit among the alternatives of its rule or tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LimitPlace {
    /// Which alternative, counted from 0: they are tried in this order.
    pub(crate) order: u8,
    /// Whom it counts apart; `None` for those whom its rule does.
    pub(crate) per: Option<Box<[Per]>>,
}

impl Limit {
    /// Makes the limit a part of an alternative, counted from 0. It counts by `per`, or by what its rule counts by if that
    /// is `None`.
    ///
    /// ```
    /// use tollbar_rules::{Limit, Rule, RuleSet};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut rule = Rule::new("burst_to_pool");
    /// rule.limits = vec![
    ///     Limit::parse("20/s")?.in_alternative(0, None),
    ///     Limit::parse("1000/min")?.in_alternative(1, Some(vec![])),
    /// ];
    /// assert_eq!(RuleSet::new(vec![rule])?.rules()[0].limits[1].alternative(), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_alternative(mut self, order: u8, per: Option<Vec<Per>>) -> Self {
        let place = LimitPlace { order, per: per.map(Vec::into_boxed_slice) };
        self.place = Some(Box::new(place));
        self
    }

    /// Gives the limit the place that another has.
    #[cfg(feature = "admin")]
    pub(crate) fn in_place_of(mut self, other: &Self) -> Self {
        self.place.clone_from(&other.place);
        self
    }

    /// The alternative that the limit belongs to, counted from 0; `None` for a limit that holds by itself.
    #[must_use]
    pub fn alternative(&self) -> Option<u8> {
        Some(self.place.as_ref()?.order)
    }

    /// Whom the limit counts apart, if it says so itself.
    #[must_use]
    pub fn per(&self) -> Option<&[Per]> {
        self.place.as_ref()?.per.as_deref()
    }
}

impl Rule {
    /// Whom a limit of this rule counts apart, if those are others than the rule does.
    pub(crate) fn own_per<'l>(&self, limit: &'l Limit) -> Option<&'l [Per]> {
        limit.per().filter(|per| **per != *self.per)
    }

    /// True where some limit is one of alternatives.
    #[must_use]
    pub fn has_alternatives(&self) -> bool {
        self.all_limits().any(|limit| limit.alternative().is_some())
    }

    /// What the counters of a limit are kept under. A limit with a `per` of its own has counters of its own, though
    /// another one has the same algorithm and window: `acme` may be a tenant and a user.
    pub(crate) fn counter_name(&self, base: &str, limit: &Limit) -> String {
        match self.own_per(limit) {
            None => base.to_owned(),
            Some(per) => {
                let names: Vec<&str> = per.iter().map(Per::name).collect();
                format!("{base}{PER_MARK}{}", names.join(","))
            }
        }
    }
}

/// What stands between the identity of a rule and the `per` of a limit. No rule's name has a `#` in it.
const PER_MARK: &str = "#per:";

/// The identity of the rule whose counters have this name.
pub(crate) fn rule_of_counter(name: &str) -> &str {
    name.split_once(PER_MARK).map_or(name, |(identity, _)| identity)
}

/// The alternatives of a list of limits, in their order.
pub(crate) fn alternatives(limits: &[Limit]) -> impl Iterator<Item = &[Limit]> {
    limits.chunk_by(|one, other| one.alternative() == other.alternative())
}

/// The limit that a large cost fails by: the least, or of alternatives the least of the one that takes most.
pub(crate) fn least_limit(limits: &[Limit]) -> Option<&Limit> {
    let capacity = |limit: &&Limit| limit.policy().capacity();
    let is_plain = limits.first()?.alternative().is_none();
    if is_plain {
        return limits.iter().min_by_key(capacity);
    }
    alternatives(limits).filter_map(|all| all.iter().min_by_key(capacity)).max_by_key(capacity)
}

/// A list of limits as people read it: `20/s, else 1000/min and 50/s`.
pub(crate) fn text_of(limits: &[Limit]) -> String {
    let texts = |all: &[Limit]| all.iter().map(Limit::text).collect::<Vec<_>>().join(" and ");
    alternatives(limits).map(texts).collect::<Vec<_>>().join(", else ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_another_per_have_a_name_of_their_own() {
        let rule = Rule::new("a");
        let limit = |per| Limit::parse("9/s").unwrap().in_alternative(0, per);
        let [tenant, client] = [Per::of_name("tenant"), Per::Client];
        let name = |per| rule.counter_name("a", &limit(per));
        assert_eq!(name(None), "a");
        assert_eq!(name(Some(vec![client.clone()])), "a", "as the rule says");
        assert_eq!(name(Some(vec![])), "a#per:");
        assert_eq!(name(Some(vec![tenant, client])), "a#per:tenant,client");
        assert_eq!(rule_of_counter("a#per:tenant"), "a");
        assert_eq!(rule_of_counter("a#candidate"), "a#candidate");
    }

    #[test]
    fn the_largest_alternative_takes_the_largest_cost() {
        let limit = |text, order| Limit::parse(text).unwrap().in_alternative(order, None);
        let limits = [limit("20/s", 0), limit("300/min", 1), limit("50/h", 1), limit("9/day", 2)];
        assert_eq!(least_limit(&limits).unwrap().text(), "50/h");
        assert_eq!(text_of(&limits), "20/s, else 300/min and 50/h, else 9/day");
        let plain = ["20/s", "300/min"].map(|text| Limit::parse(text).unwrap());
        assert_eq!(least_limit(&plain).unwrap().text(), "20/s");
    }
}
