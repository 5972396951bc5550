//! A form from JSON: every field of its type, and none that nobody knows.

use serde_json::{Map, Value};

use super::{FormError, Problem, RuleForm, SPEC_FIELDS, Scope};
use crate::Counting;
use crate::pattern::shorten;
use crate::suggest::nearest;

type Fields = Map<String, Value>;

const NAMED_FIELDS: [&str; 11] = [
    "name",
    "scope",
    "tenantId",
    "httpMethod",
    "pathPattern",
    "algorithm",
    "maxRequests",
    "windowSeconds",
    "burstCapacity",
    "priority",
    "enabled",
];

/// The form that JSON has.
pub(super) fn read(fields: &Fields) -> Result<RuleForm, FormError> {
    let mut reading = Reading { fields, problems: Vec::new() };
    let form = reading.form();
    let Reading { problems, .. } = reading;
    if problems.is_empty() { Ok(form) } else { Err(FormError { problems }) }
}

struct Reading<'j> {
    fields: &'j Fields,
    problems: Vec<Problem>,
}

impl<'j> Reading<'j> {
    fn form(&mut self) -> RuleForm {
        let name = self.text("name", "a text such as \"per_client\"");
        if name.is_none() && self.value("name").is_none() {
            self.refuse("name", "the rule has no name: send one such as \"per_client\"");
        }
        let mut form = RuleForm::new(name.unwrap_or_default());
        let text = |it: Option<&str>| it.map(str::to_owned);
        form.tenant_id = text(self.text("tenantId", "a text such as \"acme\""));
        form.http_method = text(self.text("httpMethod", "a text such as \"GET\""));
        form.path_pattern = text(self.text("pathPattern", "a text such as \"/v1/**\""));
        form.scope = self.choice("scope", &Scope::NAMED).unwrap_or(
            match (&form.tenant_id, &form.http_method, &form.path_pattern) {
                (None, None, None) => Scope::Global,
                (Some(_), None, None) => Scope::Tenant,
                _ => Scope::Endpoint,
            },
        );
        form.algorithm = self.choice("algorithm", &Counting::NAMED);
        form.max_requests = self.count("maxRequests");
        form.window_seconds = self.count("windowSeconds");
        form.burst_capacity = self.count("burstCapacity");
        form.priority = self.priority();
        form.enabled = self.enabled();
        form.spec = self.spec();
        form
    }

    /// What is not named, as far as a file knows it.
    fn spec(&mut self) -> Fields {
        let known = || NAMED_FIELDS.into_iter().chain(SPEC_FIELDS);
        let mut spec = Fields::new();
        for (name, value) in self.fields {
            if !known().any(|it| it == name) {
                let meant = nearest(name, known())
                    .map_or_else(String::new, |it| format!("did you mean `{it}`? "));
                let listed = known().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ");
                let message = format!("there is no such field: {meant}the fields are {listed}");
                self.refuse(&shorten(name), message);
            } else if SPEC_FIELDS.contains(&name.as_str()) && !value.is_null() {
                spec.insert(name.clone(), value.clone());
            }
        }
        spec
    }

    fn refuse(&mut self, field: &str, message: impl Into<String>) {
        self.problems.push(Problem::of(field, message));
    }

    fn value(&self, name: &str) -> Option<&'j Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    fn text(&mut self, name: &str, what: &str) -> Option<&'j str> {
        match self.value(name)? {
            Value::String(text) if !text.is_empty() => Some(text),
            Value::String(_) => {
                self.refuse(name, format!("this is empty: send {what}, or leave it out"));
                None
            }
            _ => {
                self.refuse(name, format!("this is no text: send {what}"));
                None
            }
        }
    }

    fn choice<T: Copy>(&mut self, name: &str, words: &[(&'static str, T)]) -> Option<T> {
        let listed = words.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>();
        let what = format!("one of {}", listed.join(", "));
        let text = self.text(name, &what)?;
        let chosen = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if chosen.is_none() {
            self.refuse(name, format!("`{}` is not known here: send {what}", shorten(text)));
        }
        chosen
    }

    fn count(&mut self, name: &str) -> Option<u64> {
        let count = self.value(name)?.as_u64().filter(|count| *count > 0);
        if count.is_none() {
            self.refuse(name, "this is no whole number above 0: send one such as 100");
        }
        count
    }

    fn priority(&mut self) -> i32 {
        let Some(value) = self.value("priority") else {
            return 0;
        };
        let priority = value.as_i64().and_then(|it| i32::try_from(it).ok());
        if priority.is_none() {
            self.refuse(
                "priority",
                "this is no whole number of 32 bits: send one such as 10 or -1",
            );
        }
        priority.unwrap_or_default()
    }

    fn enabled(&mut self) -> bool {
        let Some(value) = self.value("enabled") else {
            return true;
        };
        if !value.is_boolean() {
            self.refuse("enabled", "this is neither true nor false: send one of them");
        }
        value.as_bool().unwrap_or(true)
    }
}
