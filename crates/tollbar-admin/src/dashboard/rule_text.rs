//! A rule in the words of a file, for people: read from YAML, and compared with what it was.

use tollbar_rules::admin::{condition_texts, field_texts, from_yaml};
use tollbar_rules::{FileError, Finding, Rule};

use crate::dashboard::view::untrusted_text::UntrustedText;
use tollbar_daemon::problem::{FieldError, Problem};

/// A field that would say, or says, something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldDiff {
    pub(crate) name: String,
    pub(crate) old: Option<UntrustedText>,
    pub(crate) new: Option<UntrustedText>,
}

/// Reads a rule from YAML: the rule by itself, or a file of one rule. A mistake is reported with its line.
pub(crate) fn read(yaml: &str) -> Result<Rule, Problem> {
    from_yaml("rule", yaml).map_err(|error| match error {
        FileError::Findings { findings, .. } => {
            let wrong = |Finding { position, field, message, .. }: Finding| {
                let line = position.line;
                let separator = if field.is_empty() { "" } else { ", " };
                FieldError { field: format!("line {line}{separator}{field}"), detail: message }
            };
            Problem::invalid(findings.into_iter().map(wrong).collect())
        }
        error => Problem::invalid_field("yaml", error.to_string()),
    })
}

/// Returns the fields that differ between two rules, or between a rule and none.
pub(crate) fn changes(before: Option<&Rule>, after: Option<&Rule>) -> Vec<FieldDiff> {
    let [before, after] = [before, after].map(|rule| rule.map(field_texts).unwrap_or_default());
    let value = |of: &[(String, String)], name: &str| {
        of.iter().find(|field| field.0 == name).map(|field| field.1.clone())
    };
    let added = after.iter().filter(|field| value(&before, &field.0).is_none());
    let names = before.iter().chain(added).map(|field| field.0.clone());
    let changed = names.map(|name| (value(&before, &name), value(&after, &name), name));
    changed
        .filter(|(old, new, _)| old != new)
        .map(|(old, new, name)| FieldDiff {
            name,
            old: old.map(UntrustedText::new),
            new: new.map(UntrustedText::new),
        })
        .collect()
}

/// Returns which requests a rule is about: `POST /v1/login, tenant acme`.
pub(crate) fn applies_to(rule: &Rule) -> String {
    let conditions = condition_texts(&rule.conditions);
    let value = |name: &str| {
        conditions.iter().find(|condition| condition.0 == name).map(|condition| &*condition.1)
    };
    let endpoint: Vec<&str> = ["method", "path"].into_iter().filter_map(value).collect();
    let others =
        conditions.iter().filter(|condition| condition.0 != "method" && condition.0 != "path");
    let mut all: Vec<String> = others.map(|(name, value)| format!("{name} {value}")).collect();
    if !endpoint.is_empty() {
        all.insert(0, endpoint.join(" ").replace('"', ""));
    }
    if all.is_empty() { "every request".to_owned() } else { all.join(", ") }
}

/// Returns what a rule allows, in a line: `100/min, burst 20 per user`.
pub(crate) fn limit_line(rule: &Rule) -> String {
    let fields = field_texts(rule);
    let of = |name: &str| fields.iter().find(|field| field.0 == name).map(|field| &*field.1);
    let limit =
        of("limit").or_else(|| of("tiers")).or_else(|| of("unlimited").map(|_| "unlimited"));
    let burst = of("burst").map_or_else(String::new, |burst| format!(", burst {burst}"));
    let per = of("per").map_or_else(String::new, |per| match per.trim_matches(['[', ']']) {
        "" => " for all together".to_owned(),
        per => format!(" per {per}"),
    });
    format!("{}{burst}{per}", limit.unwrap_or("–"))
}

#[cfg(test)]
mod tests;
