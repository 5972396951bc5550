//! A rule changed by its flat fields, as forms have them.

use super::view::{CONDITIONS, RuleView, limit_of, scope_problems};
use super::{FormError, Problem, fields};
use crate::file::reader::Case;
use crate::{AlgorithmKind, Condition, Limit, LimitError, LimitOptions, Rule, Test, TierLimits};

impl RuleView {
    /// Makes `rule` say what this view says. What the flat fields of `rule` leave out stays as it is.
    ///
    /// ```
    /// use tollbar_rules::{Limit, Rule, admin::RuleView};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut rule = Rule::new("search");
    /// rule.limits = vec![Limit::parse("10/min")?];
    /// let mut view = RuleView::from_rule(&rule);
    /// view.max_requests = Some(20);
    /// view.apply(&mut rule)?;
    /// assert_eq!(rule.limits[0].text(), "20/min");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Every field that is wrong, with what to send instead. `rule` may have changed in part.
    pub fn apply(&self, rule: &mut Rule) -> Result<(), FormError> {
        let before = Self::from_rule(rule);
        let mut problems = scope_problems(None, self.conditions().map(|value| value.is_some()));
        let values = before.conditions().into_iter().zip(self.conditions());
        for ((field, attribute), (old, new)) in CONDITIONS.into_iter().zip(values) {
            if old != new
                && let Err(message) = put_condition(rule, attribute, old.is_some(), new)
            {
                problems.push(Problem::new(&Case::Camel.spell(field), message));
            }
        }
        if self.numbers() != before.numbers()
            && let Err(problem) = self.put_limit(rule, &before)
        {
            problems.push(problem);
        }
        if problems.is_empty() { Ok(()) } else { Err(FormError { problems }) }
    }

    /// The values of [`CONDITIONS`].
    fn conditions(&self) -> [Option<&str>; 3] {
        [&self.tenant_id, &self.http_method, &self.path_pattern].map(Option::as_deref)
    }

    fn numbers(&self) -> (Option<AlgorithmKind>, [Option<u64>; 3]) {
        (self.algorithm, [self.max_requests, self.window_seconds, self.burst_capacity])
    }

    fn put_limit(&self, rule: &mut Rule, before: &Self) -> Result<(), Problem> {
        let is_of_permits = self.algorithm == Some(AlgorithmKind::Concurrency);
        let text = limit_of(self.max_requests, self.window_seconds, is_of_permits)?;
        let is_shown = before.max_requests.is_some() || rule.limits.is_empty();
        if text.is_some() && !is_shown {
            let message = "`limit` says it too: leave one of them out";
            return Err(Problem::new("maxRequests", message));
        }
        let shared = fields::shared_options(rule);
        let (counting, burst) = (self.algorithm, self.burst_capacity);
        let inherited = LimitOptions { counting, burst, ..shared };
        // Every limit again: those of tiers and candidates inherit the algorithm too.
        let again = |limit: &Limit, is_rules_own: bool| {
            let is_rules_own = is_rules_own && limit.alternative().is_none();
            let own = fields::own_options(limit, shared, is_rules_own);
            let options = inherited.inherited_by(limit.text(), own, is_rules_own);
            Ok(Limit::new(limit.text(), options)?.in_place_of(limit))
        };
        let all = |limits: &[Limit], is_rules_own: bool| {
            let limits = limits.iter().map(|limit| again(limit, is_rules_own));
            limits.collect::<Result<Vec<_>, LimitError>>()
        };
        let changed = || {
            rule.limits = match text {
                Some(text) => {
                    let own = LimitOptions::default();
                    vec![Limit::new(&text, inherited.inherited_by(&text, own, true))?]
                }
                None if is_shown => Vec::new(),
                None => all(&rule.limits, true)?,
            };
            rule.candidate = all(&rule.candidate, false)?;
            for (_, tier) in &mut rule.tiers.limits {
                if let TierLimits::Limits(limits) = tier {
                    *limits = all(limits, false)?;
                }
            }
            Ok(())
        };
        changed().map_err(|error: LimitError| {
            let field = match error.field() {
                "burst" => "burstCapacity",
                "limit" => "maxRequests",
                field => return Problem::new(&Case::Camel.spell(field), error.to_string()),
            };
            Problem::new(field, error.to_string())
        })
    }
}

/// Puts a condition in the place of the one that a flat field shows, or of none.
fn put_condition(
    rule: &mut Rule,
    attribute: &str,
    is_shown: bool,
    value: Option<&str>,
) -> Result<(), String> {
    let mut conditions = rule.conditions.all().to_vec();
    let is_of_attribute = |condition: &Condition| *condition.attribute == *attribute;
    if is_shown {
        conditions.retain(|condition| !is_of_attribute(condition));
    } else if value.is_some() && conditions.iter().any(is_of_attribute) {
        return Err(format!("`match` says what `{attribute}` is too: leave one of them out"));
    }
    if let Some(value) = value {
        let test = match attribute {
            "path" => Test::Path(
                [value.parse().map_err(|error: crate::PatternError| error.to_string())?].into(),
            ),
            // As requests have it.
            "method" => Test::equal(&value.to_ascii_uppercase()),
            _ => Test::equal(value),
        };
        conditions.push(Condition { attribute: attribute.into(), test });
    }
    rule.conditions = conditions.into_iter().collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::from_json;
    use super::*;

    fn rule(json: serde_json::Value) -> Rule {
        from_json(json).unwrap()
    }

    /// Applies `change` to the view of a rule, and the view to the rule.
    fn edited(json: serde_json::Value, change: impl FnOnce(&mut RuleView)) -> Result<Rule, String> {
        let mut rule = rule(json);
        let mut view = RuleView::from_rule(&rule);
        change(&mut view);
        view.apply(&mut rule).map_err(|error| error.problems[0].field.clone())?;
        Ok(rule)
    }

    #[test]
    fn a_view_says_what_is_shown_and_the_rest_stays() {
        let base = json!({
            "name": "a", "maxRequests": 5, "windowSeconds": 60, "algorithm": "token_bucket",
            "burstCapacity": 9, "tenantId": "acme", "match": { "plan": "bulk" },
            "tiers": { "free": "1/s" }, "candidate": { "limit": "4/min", "burst": 2 },
            "exempt": [{ "api_key": "internal" }],
        });
        assert_eq!(edited(base.clone(), |_| {}).unwrap(), rule(base.clone()));
        let changed = edited(base.clone(), |view| {
            (view.max_requests, view.burst_capacity) = (Some(7), None);
            view.algorithm = Some(AlgorithmKind::LeakyBucket);
            view.tenant_id = None;
            (view.path_pattern, view.http_method) = (Some("/v1/**".into()), Some("get".into()));
        });
        let expected = json!({
            "name": "a", "maxRequests": 7, "windowSeconds": 60, "algorithm": "leaky_bucket",
            "pathPattern": "/v1/**", "httpMethod": "GET", "match": { "plan": "bulk" },
            "tiers": { "free": "1/s" }, "candidate": { "limit": "4/min", "burst": 2 },
            "exempt": [{ "api_key": "internal" }],
        });
        assert_eq!(super::super::changed_fields(&changed.unwrap(), &rule(expected)), []);
        let unlimited =
            edited(base, |view| (view.max_requests, view.window_seconds) = (None, None));
        assert!(unlimited.unwrap().limits.is_empty());
    }

    #[test]
    fn alternatives_stay_when_something_else_is_changed() {
        let any_of = json!([["20/s", "100/min"], { "limit": "1000/min", "per": [] }]);
        let rule_of = |fields: serde_json::Value| {
            let mut rule = json!({ "name": "a", "limit": { "anyOf": any_of } });
            rule.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            rule
        };
        let changed = edited(rule_of(json!({})), |view| {
            view.algorithm = Some(AlgorithmKind::FixedWindow);
            view.tenant_id = Some("acme".into());
        });
        let expected = rule_of(json!({ "algorithm": "fixed_window", "tenantId": "acme" }));
        assert_eq!(changed.unwrap(), rule(expected));
        let written_over = edited(rule_of(json!({})), |view| {
            (view.max_requests, view.window_seconds) = (Some(1), Some(1));
        });
        assert_eq!(written_over.unwrap_err(), "maxRequests");
    }

    #[test]
    fn what_a_view_does_not_show_it_does_not_overwrite() {
        let several = json!({
            "name": "a", "limit": ["1/s", "9/h"], "match": { "tenant": ["a", "b"], "path": ["/x", "/y"] },
        });
        let algorithm = |view: &mut RuleView| view.algorithm = Some(AlgorithmKind::FixedWindow);
        let changed = edited(several.clone(), algorithm).unwrap();
        assert!(
            changed.limits.iter().all(|limit| limit.policy().algorithm().name() == "fixed_window")
        );
        for (change, field) in [
            (
                (|view| (view.max_requests, view.window_seconds) = (Some(1), Some(1)))
                    as fn(&mut RuleView),
                "maxRequests",
            ),
            (|view| view.tenant_id = Some("c".into()), "tenantId"),
            (|view| view.path_pattern = Some("/z".into()), "pathPattern"),
            (|view| view.http_method = Some("GET".into()), "pathPattern"),
            (|view| view.window_seconds = Some(1), "maxRequests"),
        ] {
            assert_eq!(edited(several.clone(), change).unwrap_err(), field);
        }
        let one = json!({ "name": "a", "maxRequests": 5, "windowSeconds": 60 });
        for (change, field) in [
            (
                (|view| view.path_pattern = Some("no slash".into())) as fn(&mut RuleView),
                "pathPattern",
            ),
            (|view| view.window_seconds = None, "windowSeconds"),
            (|view| view.max_requests = None, "maxRequests"),
            (|view| view.max_requests = Some(u64::MAX), "maxRequests"),
            (|view| view.algorithm = Some(AlgorithmKind::Concurrency), "windowSeconds"),
            (
                |view| {
                    (view.burst_capacity, view.algorithm) =
                        (Some(9), Some(AlgorithmKind::FixedWindow));
                },
                "burstCapacity",
            ),
        ] {
            assert_eq!(edited(one.clone(), change).unwrap_err(), field);
        }
    }
}
