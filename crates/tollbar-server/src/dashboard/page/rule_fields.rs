//! The form of a rule: its fields, what they mean, and the rule that is meant by what stands in them.

use serde_json::{Value, json};
use tollbar_rules::Rule;
use tollbar_rules::admin::to_json;

use super::super::form::Fields;
use crate::admin::problem::{Problem, Wrong};
use crate::admin::rule_json::RuleSent;

/// A field of the form.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    pub(crate) help: &'static str,
    pub(crate) example: &'static str,
    pub(crate) value: String,
    pub(crate) choices: &'static [(&'static str, &'static str)],
    pub(crate) is_number: bool,
    pub(crate) is_needed: bool,
    pub(crate) wrong: Option<String>,
}

struct Kind {
    name: &'static str,
    label: &'static str,
    help: &'static str,
    example: &'static str,
    choices: &'static [(&'static str, &'static str)],
    value: As,
}

/// How a field is written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    Text,
    Number,
    Flag,
    /// A list, with commas between; `none` is a list of nothing.
    List,
}

const ALGORITHMS: &[(&str, &str)] = &[
    ("", "default"),
    ("sliding_window_counter", "sliding window counter"),
    ("sliding_window_strict", "sliding window, strict"),
    ("sliding_window_log", "sliding window log"),
    ("token_bucket", "token bucket"),
    ("leaky_bucket", "leaky bucket"),
    ("leaky_queue", "leaky queue"),
    ("fixed_window", "fixed window"),
    ("calendar_window", "calendar window"),
    ("concurrency", "concurrency (in flight)"),
];

const KINDS: [Kind; 14] = [
    kind("name", "Name", "Letters, digits and _ . : / -", "per_client", As::Text),
    kind("description", "Description", "For people.", "", As::Text),
    kind("pathPattern", "Path", "Empty is every path; ** is any rest.", "/v1/**", As::Text),
    kind("httpMethod", "Method", "Empty is any.", "GET", As::Text),
    kind("tenantId", "Tenant", "Empty is every tenant.", "acme", As::Text),
    kind(
        "per",
        "Counted per",
        "Empty: per client. `none`: one counter for all.",
        "user, path",
        As::List,
    ),
    kind("maxRequests", "Requests", "How many may pass in a window.", "100", As::Number),
    kind("windowSeconds", "Window, in seconds", "Empty for requests in flight.", "60", As::Number),
    Kind {
        choices: ALGORITHMS,
        ..kind("algorithm", "Algorithm", "How the limit counts.", "", As::Text)
    },
    kind("burstCapacity", "Burst", "What a bucket holds; empty is one window.", "20", As::Number),
    Kind {
        choices: &[("", "enforce"), ("shadow", "shadow: count, never deny")],
        ..kind("mode", "Mode", "Try a rule in shadow before it denies.", "", As::Text)
    },
    Kind {
        choices: &[
            ("", "allow"),
            ("deny", "deny"),
            ("local", "a local share"),
            ("shed", "shed what matters least"),
        ],
        ..kind("onStoreFailure", "While the store is down", "What happens then.", "", As::Text)
    },
    kind("priority", "Priority", "Higher is looked at first.", "0", As::Number),
    Kind {
        choices: &[("true", "enabled"), ("false", "disabled")],
        ..kind("enabled", "State", "A disabled rule is not looked at.", "", As::Flag)
    },
];

const fn kind(
    name: &'static str,
    label: &'static str,
    help: &'static str,
    example: &'static str,
    value: As,
) -> Kind {
    Kind { name, label, help, example, choices: &[], value }
}

/// The form, filled with what a rule says.
pub(crate) fn of_rule(rule: &Rule) -> Vec<Field> {
    let json = to_json(rule);
    let text = |kind: &Kind| json.get(kind.name).map_or_else(String::new, text_of);
    KINDS.iter().map(|kind| kind.field(text(kind))).collect()
}

/// The form, filled with what was sent, and what is wrong with it.
pub(crate) fn of_sent(sent: &Fields, problem: Option<&Problem>) -> Vec<Field> {
    let wrongs: &[Wrong] = problem.map_or(&[], |it| &it.fields);
    KINDS
        .iter()
        .map(|kind| {
            let wrong = wrongs.iter().find(|it| it.field == kind.name);
            Field {
                wrong: wrong.map(|it| super::super::shown::spelled(&it.detail)),
                ..kind.field(sent.text(kind.name).to_owned())
            }
        })
        .collect()
}

/// Returns the rule that a form stands for: what the form has no field for stays as it is in `base`.
pub(crate) fn rule_of(base: Option<&Rule>, sent: &Fields) -> RuleSent {
    let mut fields = base.map(to_json).unwrap_or_default();
    // Follows from what is there.
    fields.remove("scope");
    for kind in &KINDS {
        match (sent.filled(kind.name), fields.get(kind.name)) {
            (None, Some(value)) if !kind.can_show(value) => None,
            (None, _) => fields.remove(kind.name),
            (Some(text), _) => fields.insert(kind.name.to_owned(), kind.json(text)),
        };
    }
    RuleSent::read(fields)
}

/// True where a rule says more than the form has fields for.
pub(crate) fn has_more(rule: &Rule) -> bool {
    let is_shown = |name: &str, value: &Value| {
        let kind = KINDS.iter().find(|it| it.name == name);
        kind.map_or(name == "scope", |it| it.can_show(value))
    };
    to_json(rule).iter().any(|(name, value)| !is_shown(name, value))
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => {
            let texts: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            texts.join(", ")
        }
        other => other.to_string(),
    }
}

impl Kind {
    fn field(&self, value: String) -> Field {
        let value = if self.value == As::Flag && value.is_empty() { "true".into() } else { value };
        Field {
            name: self.name,
            label: self.label,
            help: self.help,
            example: self.example,
            value,
            choices: self.choices,
            is_number: self.value == As::Number,
            is_needed: self.name == "name",
            wrong: None,
        }
    }

    /// True where the field can show a value: an outage can be met in more ways than there are choices.
    fn can_show(&self, value: &Value) -> bool {
        value.is_null()
            || self.choices.is_empty()
            || self.choices.iter().any(|it| it.0 == text_of(value))
    }

    /// What is no number stays a text, so that whoever reads the rule says what to write instead.
    fn json(&self, text: &str) -> Value {
        match self.value {
            As::Text => json!(text),
            As::Number => text.parse::<i64>().map_or_else(|_| json!(text), |it| json!(it)),
            As::Flag => json!(text != "false"),
            As::List if text == "none" => json!([]),
            As::List => text.split(',').map(|it| json!(it.trim())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: Value) -> Rule {
        tollbar_rules::admin::from_json(json).unwrap()
    }

    #[test]
    fn what_the_form_has_no_field_for_stays() {
        let base = rule(json!({
            "name": "a", "maxRequests": 5, "windowSeconds": 1, "mode": "shadow",
            "exempt": [{ "api_key": "internal" }],
        }));
        let sent =
            Fields::read(b"name=a&maxRequests=9&windowSeconds=1&per=none&enabled=false").unwrap();
        let expected = rule(json!({
            "name": "a", "maxRequests": 9, "windowSeconds": 1, "per": [], "enabled": false,
            "exempt": [{ "api_key": "internal" }],
        }));
        assert_eq!(rule_of(Some(&base), &sent).rule(), Ok(expected));
        assert!(has_more(&base));
        let limited = |fields: Value| {
            let mut json = json!({ "name": "a", "maxRequests": 5, "windowSeconds": 1 });
            json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            rule(json)
        };
        assert!(!has_more(&limited(json!({ "mode": "shadow", "tenantId": "acme" }))));
        assert!(!has_more(&limited(json!({ "onStoreFailure": "local" }))));
        let shedding = limited(json!({ "onStoreFailure": { "shed": "low" } }));
        assert!(has_more(&shedding));
        let sent = Fields::read(b"name=a&maxRequests=5&windowSeconds=1&onStoreFailure=").unwrap();
        assert_eq!(rule_of(Some(&shedding), &sent).rule(), Ok(shedding), "it has no such choice");
    }

    #[test]
    fn a_mistake_is_told_at_its_field() {
        let sent = Fields::read(b"name=a&maxRequests=many&windowSeconds=1").unwrap();
        let problem = rule_of(None, &sent).rule().unwrap_err();
        let fields = of_sent(&sent, Some(&problem));
        let wrong: Vec<&str> =
            fields.iter().filter(|it| it.wrong.is_some()).map(|it| it.name).collect();
        assert_eq!(wrong, ["maxRequests"]);
        let kept = fields.iter().find(|it| it.name == "maxRequests").unwrap();
        assert_eq!(kept.value, "many");
    }
}
