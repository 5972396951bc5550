//! What is allowed in a rule and probably not meant: above all, that it limits nothing.
//!
//! A warning is about a rule and not about a file, so that rules of a database and of the admin API have
//! the same ones.

use crate::message::nearest;
use crate::rule::alternative::least_limit;
use crate::{Conditions, Limit, Mode, PathPattern, Per, Rule, Test, TierLimits};

/// Something about a rule that is allowed and probably not meant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "admin", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[non_exhaustive]
pub struct RuleWarning {
    /// Which field, from the rule down: `match.usr`.
    pub field: String,
    /// What is odd, and what to write instead.
    pub message: String,
}

impl RuleWarning {
    /// A warning about a field, in a sentence.
    #[must_use]
    pub fn new(field: &str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message: message.into() }
    }
}

/// Attributes that listeners set, for typing errors.
const USUAL: [&str; 7] = ["method", "path", "ip", "user", "api_key", "tenant", "tier"];

/// Names by which people expect a part of every HTTP request. No listener sets them.
const EXPECTED: [&str; 13] = [
    "host",
    "hostname",
    "authority",
    ":authority",
    "url",
    "uri",
    "query",
    "scheme",
    "protocol",
    "port",
    "referer",
    "user_agent",
    "user-agent",
];

/// Words by which paths call the place where passwords are tried.
const LOGIN_WORDS: [&str; 9] =
    ["login", "signin", "sign-in", "auth", "token", "password", "otp", "2fa", "verify"];

/// The most warnings of one rule.
const WARNINGS_MAX: usize = 20;

impl Rule {
    /// Everything that is allowed in this rule and probably not meant.
    ///
    /// ```
    /// use tollbar_rules::{Costs, Limit, Rule};
    /// # fn main() -> Result<(), tollbar_rules::LimitError> {
    /// let mut rule = Rule::new("free");
    /// rule.limits = vec![Limit::parse("10/s")?];
    /// assert_eq!(rule.warnings(), []);
    /// rule.costs = Costs::fixed(0);
    /// assert_eq!(rule.warnings()[0].field, "cost");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<RuleWarning> {
        let mut warnings = Warnings { rule: self, list: Vec::new() };
        warnings.attributes();
        warnings.unlimited_for_all();
        warnings.idle_fields();
        warnings.tiers();
        warnings.costs();
        warnings.login();
        warnings.unreachable();
        warnings.list.truncate(WARNINGS_MAX);
        warnings.list
    }

    /// True where some request may be denied by a limit of the rule.
    pub(crate) fn limits_something(&self) -> bool {
        let is_in_force = self.enabled && self.mode == Mode::Enforce;
        is_in_force && self.has_costs_above_0() && self.live_limits().next().is_some()
    }

    fn has_costs_above_0(&self) -> bool {
        self.costs.highest() > 0 || self.costs.attribute.is_some()
    }
}

/// Whether a listener sets an attribute of that name by itself; if not, a sentence that says so where the
/// name was probably mistyped.
pub(crate) fn attribute_warning(name: &str) -> Option<String> {
    if USUAL.contains(&name) {
        return None;
    }
    if EXPECTED.contains(&name) {
        return Some(format!(
            "no listener sets an attribute `{name}` by itself: it matches only where the sender names it \
             among the attributes, or --trusted-headers maps a header to it"
        ));
    }
    let meant = nearest(name, USUAL.into_iter().chain(["client"]))?;
    Some(format!(
        "no listener sets an attribute `{name}` by itself: if you meant `{meant}`, write that"
    ))
}

struct Warnings<'r> {
    rule: &'r Rule,
    list: Vec<RuleWarning>,
}

impl Warnings<'_> {
    fn warn(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.list.push(RuleWarning { field: field.into(), message: message.into() });
    }

    fn attributes(&mut self) {
        let rule = self.rule;
        self.conditions("match", &rule.conditions);
        for per in &rule.per {
            if let Per::Attribute(name) = per
                && let Some(message) = attribute_warning(name)
            {
                self.warn("per", message);
            }
        }
        let lists = [("limit", &rule.limits), ("candidate", &rule.candidate)];
        for (field, limits) in lists {
            for per in limits.iter().filter_map(Limit::per).flatten() {
                if let Per::Attribute(name) = per
                    && let Some(message) = attribute_warning(name)
                {
                    self.warn(field, message);
                }
            }
        }
        for (at, (conditions, _)) in rule.costs.by_condition.iter().enumerate() {
            self.conditions(&format!("cost[{at}].match"), conditions);
        }
        for (at, exemption) in rule.exemptions.iter().enumerate() {
            self.conditions(&format!("exempt[{at}]"), &exemption.conditions);
            if let [condition] = exemption.conditions.all()
                && let Test::Within(blocks) = &condition.test
                && let Some(block) = blocks.iter().find(|block| block.shape().1 == 0)
            {
                let message = format!(
                    "`{block}` is every address of its kind, so the rule limits none of them: write \
                     a smaller block, or `enabled: false` for the rule"
                );
                self.warn(format!("exempt[{at}].{}", condition.attribute), message);
            }
        }
    }

    fn conditions(&mut self, field: &str, conditions: &Conditions) {
        for condition in conditions.all() {
            if let Some(message) = attribute_warning(&condition.attribute) {
                self.warn(format!("{field}.{}", condition.attribute), message);
            }
        }
    }

    /// An unlimited rule without conditions switches off all rules at its priority and below.
    fn unlimited_for_all(&mut self) {
        let rule = self.rule;
        let is_in_force = rule.enabled && rule.mode == Mode::Enforce;
        if rule.unlimited && is_in_force && rule.conditions.all().is_empty() {
            let message = format!(
                "every request matches, so no rule of priority {} or below limits anything: write a \
                 `match`, or leave the rule out",
                rule.priority
            );
            self.warn("unlimited", message);
        }
    }

    /// Fields that say how requests are counted, in a rule that counts none; and what stands for a missing
    /// attribute, in a rule that counts by none.
    fn idle_fields(&mut self) {
        let rule = self.rule;
        let plain = Rule::new(&rule.name);
        let fields = [
            ("per", rule.per != plain.per),
            ("missing", rule.missing != plain.missing),
            ("cost", rule.costs != plain.costs),
            ("accuracy", rule.accuracy.is_some()),
            ("on_store_failure", rule.on_store_failure != plain.on_store_failure),
            ("exempt", !rule.exemptions.is_empty()),
        ];
        for (field, _) in fields.iter().filter(|(_, is_given)| rule.unlimited && *is_given) {
            let message = format!(
                "an unlimited rule counts nothing, so `{field}` has no effect: leave it out, or write a \
                 `limit` in place of `unlimited`"
            );
            self.warn(*field, message);
        }
        if !rule.unlimited && rule.per.is_empty() && rule.missing != plain.missing {
            let message = "one counter for all needs no attribute, so `missing` has no effect: leave it \
                           out, or write attributes such as `per: [user]`";
            self.warn("missing", message);
        }
    }

    fn tiers(&mut self) {
        let tiers = &self.rule.tiers.limits;
        for (name, limits) in tiers {
            if matches!(limits, TierLimits::Limits(limits) if limits.is_empty()) {
                let message = format!(
                    "the tier `{name}` has no limit, so nothing limits its requests: write one such \
                     as `100/hour`, or `unlimited`"
                );
                self.warn(format!("tiers.{name}"), message);
            }
        }
        if !tiers.is_empty() && self.rule.live_limits().next().is_none() {
            self.warn("tiers", "no tier has a limit, so the rule limits nothing: write one");
        }
    }

    fn costs(&mut self) {
        let rule = self.rule;
        if !rule.has_costs_above_0() && !rule.unlimited {
            let message = "requests cost nothing under this rule, so it limits nothing: write a cost \
                           of at least 1, or `unlimited: true`";
            self.warn("cost", message);
        }
        if let Some(attribute) = &rule.costs.attribute
            && attribute.parse::<u64>().is_ok()
        {
            let message = format!(
                "`{attribute}` is read as the name of an attribute: write `cost: {attribute}` for a \
                 cost, or the name of an attribute that is a number"
            );
            self.warn("cost.attribute", message);
        }
    }

    /// Twice the limit passes around the boundary of a fixed window: that is twice the guesses.
    fn login(&mut self) {
        let is_fixed = |limit: &Limit| {
            matches!(limit.policy().algorithm().name(), "fixed_window" | "staggered_window")
        };
        if let Some(path) = self.rule.login_path()
            && self.rule.all_limits().any(is_fixed)
        {
            let message = format!(
                "a fixed window lets up to twice the limit through around its boundary, and `{path}` \
                 looks like a place where passwords are guessed: write `algorithm: \
                 sliding_window_strict`"
            );
            self.warn("limit", message);
        }
    }

    /// Limits that no request is under, permits that are lost, and costs that a candidate can never take.
    fn unreachable(&mut self) {
        let rule = self.rule;
        if let (Some(default), false) = (&rule.tiers.default, rule.limits.is_empty()) {
            let message = format!(
                "no request is under these limits, because every one has a tier, `{default}` by default: \
                 leave out the limits, or the default"
            );
            self.warn("limit", message);
        }
        let is_unleased = |limit: &&Limit| limit.policy().algorithm().name() == "concurrency";
        if let Some(limit) = rule.live_limits().find(is_unleased) {
            let message = format!(
                "a holder that vanishes keeps its permit of `{}` for ever: write `lease: 30s`, or as long \
                 as a request may take",
                limit.text()
            );
            self.warn("limit", message);
        }
        let cost = rule.costs.highest();
        let is_too_small = |limit: &&Limit| limit.policy().capacity() < cost;
        if let Some(limit) = least_limit(&rule.candidate).filter(is_too_small) {
            let message = format!(
                "a cost of {cost} can never be paid under the candidate `{}`: it will report such \
                 requests as never allowed",
                limit.text()
            );
            self.warn("candidate", message);
        }
    }
}

impl Rule {
    /// The path that it matches and that looks like a place where passwords are guessed.
    pub(crate) fn login_path(&self) -> Option<&PathPattern> {
        let conditions = self.conditions.all().iter();
        let paths = conditions.filter_map(|condition| match &condition.test {
            Test::Path(patterns) => Some(patterns),
            _ => None,
        });
        let is_login = |literal: &str| {
            let literal = literal.to_ascii_lowercase();
            LOGIN_WORDS.iter().any(|word| literal.contains(word))
        };
        paths.flatten().find(|pattern| pattern.last_literal().is_some_and(is_login))
    }
}

#[cfg(test)]
mod tests {
    use crate::RuleFile;

    fn warnings(fields: &str) -> Vec<String> {
        let text = format!("rules: [{{ name: a, {fields} }}]");
        let file = RuleFile::parse("rules.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
        let of_rule = file.rules.rules()[0].warnings();
        for warning in &of_rule {
            let of_file = |finding: &crate::Finding| {
                finding.field == format!("rules[0].{}", warning.field)
                    && finding.message == warning.message
            };
            assert!(file.warnings.iter().any(of_file), "the file says it too: {warning:?}");
        }
        of_rule
            .into_iter()
            .map(|warning| format!("{}: {}", warning.field, warning.message))
            .collect()
    }

    /// 50 of 50 requests passed under each of these, and nothing was said.
    #[test]
    fn a_rule_that_limits_nothing_is_warned_of() {
        let table = [
            ("tiers: { free: [], default: free }", "tiers.free: the tier `free` has no limit"),
            ("limit: 5/h, cost: 0", "cost: requests cost nothing under this rule"),
            ("limit: 5/h, cost: { \"GET /x\": 0, default: 0 }", "cost: requests cost nothing"),
            ("limit: 5/h, cost: { attribute: \"0\" }", "cost.attribute: `0` is read as the name"),
            (
                "limit: 5/h, match: { host: a.example }",
                "match.host: no listener sets an attribute `host`",
            ),
            ("limit: 5/h, exempt: { ip: 0.0.0.0/0 }", "exempt[0].ip: `0.0.0.0/0` is every address"),
            (
                "unlimited: true",
                "unlimited: every request matches, so no rule of priority 0 or below",
            ),
            (
                "limit: 5/h, per: usr",
                "per: no listener sets an attribute `usr` by itself: if you meant `user`",
            ),
            (
                "limit: 5/h, per: clint",
                "per: no listener sets an attribute `clint` by itself: if you meant `client`",
            ),
            (
                "limit: 5/h, exempt: { usr: x }",
                "exempt[0].usr: no listener sets an attribute `usr`",
            ),
            (
                "limit: 5/h, cost: [{ match: { tnant: x }, cost: 2 }]",
                "cost[0].match.tnant: no listener",
            ),
        ];
        for (fields, start) in table {
            let found = warnings(fields);
            assert!(found.iter().any(|text| text.starts_with(start)), "{fields}: {found:?}");
        }
        let all_tiers = warnings("tiers: { free: [], paid: unlimited, default: free }");
        assert!(all_tiers.iter().any(|text| text.starts_with("tiers: no tier has a limit")));
    }

    /// They were accepted in silence.
    #[test]
    fn a_field_without_an_effect_is_warned_of() {
        for fields in [
            "per: user",
            "missing: deny",
            "cost: 5",
            "accuracy: conservative",
            "on_store_failure: deny",
            "exempt: { user: x }",
        ] {
            let found = warnings(&format!("unlimited: true, match: {{ path: /x }}, {fields}"));
            let field = fields.split(':').next().unwrap();
            let expected = format!(
                "{field}: an unlimited rule counts nothing, so `{field}` has no effect: leave it out"
            );
            assert!(found.len() == 1 && found[0].starts_with(&expected), "{fields}: {found:?}");
        }
        let found = warnings("limit: 5/h, per: [], missing: deny");
        let expected =
            "missing: one counter for all needs no attribute, so `missing` has no effect";
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
        assert_eq!(warnings("limit: 5/h, per: []"), [""; 0]);
        assert_eq!(warnings("limit: 5/h, per: user, missing: deny"), [""; 0]);
    }

    #[test]
    fn a_rule_that_limits_something_is_not() {
        for fields in [
            "limit: 5/h",
            "limit: 5/h, cost: { \"GET /health\": 0 }",
            "limit: 5/h, cost: { \"POST /report\": 5, default: 0 }",
            "limit: 5/h, cost: { attribute: tokens, default: 0 }",
            "limit: 5/h, per: [tenant, region]",
            "limit: 5/h, match: { plan: bulk }",
            "tiers: { free: 5/h, paid: unlimited, default: free }",
            "unlimited: true, match: { path: /health }",
            "limit: 5/h, exempt: { ip: 10.0.0.0/8 }",
        ] {
            assert_eq!(warnings(fields), [""; 0], "{fields}");
        }
    }
}
