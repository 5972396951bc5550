//! Rules as YAML, as files have them.

use std::fmt::Write;

use serde_json::Value;

use super::fields;
use crate::file::reader::Case;
use crate::{Conditions, Rule};

/// A line that is longer is broken up, where what it says has parts.
const LINE_CHARS_MAX: usize = 60;

/// Returns a rule as YAML, a field a line where that is readable.
///
/// ```
/// use tollbar_rules::{RuleFile, admin};
/// # fn main() -> Result<(), tollbar_rules::FileError> {
/// let file = RuleFile::parse("rules.yaml", "rules: [{ name: a, limit: 10/s, per: [user] }]")?;
/// assert_eq!(admin::to_yaml(&file.rules.rules()[0]), "name: a\nper: [user]\nlimit: 10/s\n");
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn to_yaml(rule: &Rule) -> String {
    let mut text = String::new();
    for (name, value) in fields::rule_fields(rule, Case::Snake) {
        block(&mut text, &name, &value, 0);
    }
    text
}

/// Returns the fields of a rule that differ from their defaults, each as one line of YAML.
#[must_use]
pub fn field_texts(rule: &Rule) -> Vec<(String, String)> {
    let fields = fields::rule_fields(rule, Case::Snake).into_iter();
    fields.map(|(name, value)| (name.into_owned(), flow(&value))).collect()
}

/// Returns each attribute of conditions and what must hold of it, as one line of YAML.
#[must_use]
pub fn condition_texts(conditions: &Conditions) -> Vec<(&str, String)> {
    let fields = fields::condition_fields(conditions, Case::Snake).into_iter();
    fields.map(|(name, value)| (name, flow(&value))).collect()
}

/// A field on a line of its own, or on several where it is long.
fn block(text: &mut String, name: &str, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    let line = flow(value);
    let is_long = line.chars().count() > LINE_CHARS_MAX;
    let name = scalar(name);
    // Writing to a string cannot fail.
    match value {
        Value::Object(fields) if is_long && !fields.is_empty() => {
            writeln!(text, "{indent}{name}:").unwrap_or_default();
            for (name, value) in fields {
                block(text, name, value, depth + 1);
            }
        }
        Value::Array(items) if is_long && !items.is_empty() => {
            writeln!(text, "{indent}{name}:").unwrap_or_default();
            for item in items {
                writeln!(text, "{indent}  - {}", flow(item)).unwrap_or_default();
            }
        }
        _ => {
            writeln!(text, "{indent}{name}: {line}").unwrap_or_default();
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
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./+%".contains(c);
    let begins = text.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == '/');
    let is_word = ["null", "true", "false", "yes", "no", "on", "off"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    if begins && !is_word && text.chars().all(is_plain) {
        return text.to_owned();
    }
    // A text in JSON is one in YAML. What cannot be seen is spelled out, so that it can be edited.
    let quoted = Value::from(text).to_string();
    let mut safe = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        let is_hidden = !c.is_ascii_graphic() && c != ' ' && c.escape_debug().len() > 1;
        match u32::from(c) {
            code @ 0..=0xffff if is_hidden => {
                write!(safe, "\\u{code:04x}").unwrap_or_default();
            }
            code if is_hidden => {
                write!(safe, "\\U{code:08x}").unwrap_or_default();
            }
            _ => safe.push(c),
        }
    }
    safe
}
