//! A rule in the words of a file, for people: written as YAML, read from it, and told apart from what it
//! was. What the words mean, `tollbar_rules` says.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use tollbar_rules::admin::RuleForm;
use tollbar_rules::yaml::{Node, Value as Yaml, read_text};

use super::shown::{Shown, is_hidden};
use crate::admin::problem::{Problem, Wrong};
use crate::admin::rule_json::RuleSent;

/// A rule's fields in the order in which files have them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RuleText(Vec<(String, Value)>);

/// A field that would say, or says, something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) name: String,
    pub(crate) old: Option<Shown>,
    pub(crate) new: Option<Shown>,
}

/// The fields that people look for first.
const FIRST: [&str; 9] =
    ["name", "description", "match", "per", "limit", "burst", "algorithm", "tiers", "mode"];

/// What only the daemon knows of a rule, in what it tells of one.
const OURS: [&str; 7] =
    ["ruleId", "source", "version", "createdAt", "updatedAt", "deletedAt", "scope"];

/// Fields whose values are numbers, or true and false.
const NUMBERS: [&str; 4] = ["maxRequests", "windowSeconds", "burstCapacity", "priority"];

impl RuleText {
    /// Of JSON, as the admin API and its history have it.
    pub(crate) fn of_json(json: &Value) -> Self {
        let Value::Object(fields) = json else {
            return Self::default();
        };
        let mut fields = fields.clone();
        fields.retain(|name, value| !OURS.contains(&name.as_str()) && !value.is_null());
        let named = [("tenantId", "tenant"), ("httpMethod", "method"), ("pathPattern", "path")];
        let mut conditions = match fields.remove("match") {
            Some(Value::Object(conditions)) => conditions,
            _ => Map::new(),
        };
        for (name, attribute) in named {
            if let Some(value) = fields.remove(name) {
                conditions.insert(attribute.to_owned(), value);
            }
        }
        if !conditions.is_empty() {
            fields.insert("match".to_owned(), Value::Object(conditions));
        }
        if let Some(limit) = limit(&fields) {
            fields.remove("maxRequests");
            fields.remove("windowSeconds");
            fields.insert("limit".to_owned(), limit);
        }
        if let Some(burst) = fields.remove("burstCapacity") {
            fields.insert("burst".to_owned(), burst);
        }
        // What holds anyway needs no words.
        fields.retain(|name, value| {
            !(name == "priority" && *value == json!(0)
                || name == "enabled" && *value == json!(true))
        });
        let mut text = Vec::new();
        for name in FIRST {
            text.extend(fields.remove(name).map(|value| (name.to_owned(), value)));
        }
        text.extend(fields);
        Self(text)
    }

    /// Read from YAML: the rule by itself, or a file of one rule. What is wrong has its line.
    pub(crate) fn read(yaml: &str) -> Result<RuleSent, Problem> {
        let read = read_text("rule", yaml, "a rule such as `name: per_client`", |_, field| {
            Some(field.node.clone())
        });
        let (node, _) = read.map_err(|error| Problem::invalid_field("yaml", error.to_string()))?;
        let rule = alone(&node)?;
        let Yaml::Map(fields) = &rule.value else {
            let detail = "this is no rule: write one such as `name: per_client`";
            return Err(Problem::invalid_field("yaml", detail));
        };
        let mut json = Map::new();
        for (key, value) in &**fields {
            json.insert(key.text.to_string(), typed(&key.text, value));
        }
        let line_of = |field: &str| {
            let first = field.split(['.', '[']).next().unwrap_or_default();
            fields.iter().find(|(key, _)| *key.text == *first).map(|(key, _)| key.at.line)
        };
        let placed = |wrong: Wrong| match line_of(&wrong.field) {
            Some(line) => Wrong { field: format!("line {line}, {}", wrong.field), ..wrong },
            None => wrong,
        };
        let placed = |error: tollbar_rules::admin::FormError| {
            Problem::invalid(Problem::from(error).fields.into_iter().map(placed).collect())
        };
        let form = RuleForm::from_json(&Value::Object(json)).map_err(placed)?;
        let rule = form.rule().map_err(placed)?;
        // With what can be said by named fields in named fields: they say whose rule it is.
        let form = RuleForm::of(&rule).unwrap_or(form);
        Ok(RuleSent(form.to_json()))
    }

    /// As YAML, a field a line where that is readable.
    pub(crate) fn yaml(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.0 {
            block(&mut text, name, value, 0);
        }
        text
    }

    /// What is different in `after`.
    pub(crate) fn changes(&self, after: &Self) -> Vec<Changed> {
        let value =
            |of: &Self, name: &str| of.0.iter().find(|it| it.0 == name).map(|it| it.1.clone());
        let mut names: Vec<&String> = self.0.iter().map(|it| &it.0).collect();
        names.extend(after.0.iter().map(|it| &it.0).filter(|it| value(self, it).is_none()));
        let changed = names.into_iter().map(|name| (name, value(self, name), value(after, name)));
        let shown = |it: Option<Value>| it.map(|it| Shown::new(flow(&it)));
        changed
            .filter(|(_, old, new)| old != new)
            .map(|(name, old, new)| Changed {
                name: name.clone(),
                old: shown(old),
                new: shown(new),
            })
            .collect()
    }

    /// Which requests it is about: `POST /v1/login, tenant acme`.
    pub(crate) fn applies_to(&self) -> String {
        let conditions = match self.0.iter().find(|it| it.0 == "match") {
            Some((_, Value::Object(conditions))) => conditions.clone(),
            _ => Map::new(),
        };
        let text = |it: &Value| it.as_str().map_or_else(|| flow(it), str::to_owned);
        let endpoint: Vec<String> =
            ["method", "path"].iter().filter_map(|it| conditions.get(*it)).map(text).collect();
        let others = conditions.iter().filter(|it| it.0 != "method" && it.0 != "path");
        let others = others.map(|(name, value)| format!("{name} {}", text(value)));
        let all: Vec<String> = [endpoint.join(" ")].into_iter().chain(others).collect();
        let all: Vec<String> = all.into_iter().filter(|it| !it.is_empty()).collect();
        if all.is_empty() { "every request".to_owned() } else { all.join(", ") }
    }

    /// What one field says, in a line.
    pub(crate) fn line(&self, name: &str) -> Option<String> {
        self.0.iter().find(|it| it.0 == name).map(|it| flow(&it.1))
    }
}

/// The limit that the named fields stand for, as files write it: `100/min`.
fn limit(fields: &Map<String, Value>) -> Option<Value> {
    let names = ["maxRequests", "windowSeconds"];
    let said = fields.iter().filter(|(name, _)| names.contains(&name.as_str()));
    let mut alone: Map<String, Value> =
        said.map(|(name, value)| (name.clone(), value.clone())).collect();
    if !alone.contains_key("windowSeconds") {
        // What is in flight has no window, and is written as its number.
        return alone.remove("maxRequests");
    }
    alone.insert("name".to_owned(), json!("a"));
    let rule = RuleForm::from_json(&Value::Object(alone)).ok()?.rule().ok()?;
    rule.limits.first().map(|it| json!(it.text()))
}

/// The rule of a document that has one, by itself or in a list as files have it.
fn alone(node: &Node) -> Result<Node, Problem> {
    let Yaml::Map(fields) = &node.value else {
        return Ok(node.clone());
    };
    let Some((_, rules)) = fields.iter().find(|(key, _)| &*key.text == "rules") else {
        return Ok(node.clone());
    };
    match &rules.value {
        Yaml::List(rules) if rules.len() == 1 => Ok(rules[0].clone()),
        _ => {
            Err(Problem::invalid_field("yaml", "write one rule here: others have their own pages"))
        }
    }
}

/// A value as JSON. What is a number is known by its field: in YAML everything is a text.
fn typed(name: &str, node: &Node) -> Value {
    match &node.value {
        Yaml::Scalar { text } if NUMBERS.contains(&name) => {
            text.parse::<i64>().map_or_else(|_| json!(&**text), |it| json!(it))
        }
        Yaml::Scalar { text } if name == "enabled" => match &**text {
            "true" => json!(true),
            "false" => json!(false),
            text => json!(text),
        },
        _ => untyped(node),
    }
}

fn untyped(node: &Node) -> Value {
    match &node.value {
        Yaml::Null => Value::Null,
        Yaml::Scalar { text } => json!(&**text),
        Yaml::List(items) => items.iter().map(untyped).collect(),
        Yaml::Map(fields) => {
            fields.iter().map(|(key, value)| (key.text.to_string(), untyped(value))).collect()
        }
    }
}

/// A field on a line of its own, or on several where it is long.
fn block(text: &mut String, name: &str, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    let line = flow(value);
    let name = scalar(name);
    // Writing to a string cannot fail.
    match value {
        Value::Object(fields) if line.len() > 60 && !fields.is_empty() => {
            let _ = writeln!(text, "{indent}{name}:");
            for (name, value) in fields {
                block(text, name, value, depth + 1);
            }
        }
        Value::Array(items) if line.len() > 60 && !items.is_empty() => {
            let _ = writeln!(text, "{indent}{name}:");
            for item in items {
                let _ = writeln!(text, "{indent}  - {}", flow(item));
            }
        }
        _ => {
            let _ = writeln!(text, "{indent}{name}: {line}");
        }
    }
}

/// A value on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(fields) => {
            let field =
                |(name, value): (&String, &Value)| format!("{}: {}", scalar(name), flow(value));
            format!("{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// A text, in quotes where YAML would take it for something else.
fn scalar(text: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "_-./+%".contains(it);
    let begins = text.chars().next().is_some_and(|it| it.is_ascii_alphanumeric() || it == '/');
    let is_word = ["null", "true", "false", "yes", "no", "on", "off"]
        .iter()
        .any(|it| text.eq_ignore_ascii_case(it));
    if begins && !is_word && text.chars().all(is_plain) {
        return text.to_owned();
    }
    // A text in JSON is one in YAML. What cannot be seen is spelled out, so that it can be edited.
    let quoted = json!(text).to_string();
    let mut safe = String::with_capacity(quoted.len());
    for it in quoted.chars() {
        match u32::from(it) {
            code @ 0..=0xffff if is_hidden(it) => {
                let _ = write!(safe, "\\u{code:04x}");
            }
            code if is_hidden(it) => {
                let _ = write!(safe, "\\U{code:08x}");
            }
            _ => safe.push(it),
        }
    }
    safe
}

#[cfg(test)]
mod tests;
