//! The named fields: what they stand for in a file, and which of a file's fields they can stand for.

use serde_json::{Map, Value, json};

use super::spec::time_text;
use super::{FormError, Problem, RuleForm, Scope};
use crate::{Counting, Rule};

type Fields = Map<String, Value>;

/// The fields of a file that a form stands for.
pub(super) fn lower(form: &RuleForm) -> Result<Fields, FormError> {
    let mut lowering = Lowering { form, fields: form.spec.clone(), problems: Vec::new() };
    lowering.scope();
    lowering.conditions();
    lowering.limit();
    let Lowering { mut fields, problems, .. } = lowering;
    if !problems.is_empty() {
        return Err(FormError { problems });
    }
    fields.insert("name".to_owned(), json!(form.name));
    fields.insert("priority".to_owned(), json!(form.priority));
    fields.insert("enabled".to_owned(), json!(form.enabled));
    if let Some(algorithm) = form.algorithm {
        fields.insert("algorithm".to_owned(), json!(algorithm.name()));
    }
    Ok(fields)
}

struct Lowering<'f> {
    form: &'f RuleForm,
    fields: Fields,
    problems: Vec<Problem>,
}

impl Lowering<'_> {
    fn refuse(&mut self, field: &str, message: impl Into<String>) {
        self.problems.push(Problem::of(field, message));
    }

    /// A scope says which of the three others are there.
    fn scope(&mut self) {
        let RuleForm { scope, tenant_id, http_method, path_pattern, .. } = self.form;
        let other = |name, is_there: bool, scope| (is_there).then_some((name, scope));
        let of_endpoint = [
            other("httpMethod", http_method.is_some(), "endpoint"),
            other("pathPattern", path_pattern.is_some(), "endpoint"),
        ];
        let of_tenant = [other("tenantId", tenant_id.is_some(), "tenant"), None];
        let (refused, missing) = match scope {
            Scope::Global => ([of_tenant, of_endpoint].concat(), None),
            Scope::Tenant => (of_endpoint.to_vec(), {
                tenant_id.is_none().then_some(("tenantId", "the tenant, such as \"acme\""))
            }),
            Scope::Endpoint => (Vec::new(), {
                let what = "the path, such as \"/v1/**\"";
                path_pattern.is_none().then_some(("pathPattern", what))
            }),
        };
        let scope = scope.name();
        for (name, meant) in refused.into_iter().flatten() {
            let message = format!(
                "a rule of scope \"{scope}\" has none: send scope \"{meant}\", or leave it out"
            );
            self.refuse(name, message);
        }
        if let Some((name, what)) = missing {
            let message = format!("a rule of scope \"{scope}\" has one: send {what}");
            self.refuse(name, message);
        }
    }

    fn conditions(&mut self) {
        let RuleForm { tenant_id, http_method, path_pattern, .. } = self.form;
        let named = [
            ("tenantId", "tenant", tenant_id),
            ("httpMethod", "method", http_method),
            ("pathPattern", "path", path_pattern),
        ];
        let mut conditions = match self.fields.remove("match") {
            None => Fields::new(),
            Some(Value::Object(conditions)) => conditions,
            Some(_) => {
                let message = "this is no object: send one such as {\"plan\": \"bulk\"}";
                return self.refuse("match", message);
            }
        };
        for (name, attribute, value) in named {
            let Some(value) = value else {
                continue;
            };
            if value.is_empty() {
                self.refuse(name, "this is empty: send a value, or leave it out");
            }
            if conditions.insert(attribute.to_owned(), json!(value)).is_some() {
                let message =
                    format!("`match` says what `{attribute}` is too: leave one of them out");
                self.refuse(name, message);
            }
        }
        if !conditions.is_empty() {
            self.fields.insert("match".to_owned(), Value::Object(conditions));
        }
    }

    fn limit(&mut self) {
        let RuleForm { max_requests, window_seconds, burst_capacity, algorithm, .. } = self.form;
        let is_of_permits = *algorithm == Some(Counting::Concurrency);
        let limit = match (max_requests, window_seconds) {
            (None, None) => None,
            (Some(0), _) => {
                self.refuse(
                    "maxRequests",
                    "a limit is at least 1: send that, or \"enabled\": false",
                );
                None
            }
            (_, Some(0)) => {
                self.refuse("windowSeconds", "a window is at least a second: send 1 or more");
                None
            }
            (Some(_), Some(_)) if is_of_permits => {
                self.refuse("windowSeconds", "what is in flight has no window: leave it out");
                None
            }
            (Some(max_requests), None) if is_of_permits => Some(max_requests.to_string()),
            (Some(max_requests), Some(seconds)) => Some(limit_text(*max_requests, *seconds)),
            (Some(_), None) => {
                self.refuse("windowSeconds", "a limit has a window: send its seconds, such as 60");
                None
            }
            (None, Some(_)) => {
                self.refuse("maxRequests", "a window has a limit: send one such as 100");
                None
            }
        };
        self.put("limit", "maxRequests", limit.map(|it| json!(it)));
        self.put("burst", "burstCapacity", burst_capacity.map(|it| json!(it)));
    }

    fn put(&mut self, field: &str, named: &str, value: Option<Value>) {
        if let Some(value) = value
            && self.fields.insert(field.to_owned(), value).is_some()
        {
            self.refuse(named, format!("`{field}` says it too: leave one of them out"));
        }
    }
}

/// `100/min`.
fn limit_text(max_requests: u64, seconds: u64) -> String {
    format!("{max_requests}/{}", time_text(std::time::Duration::from_secs(seconds)))
}

/// What is said by the fields of a file, as a form: with the limit in named fields, and with the
/// conditions, where that is asked for and can be.
pub(super) fn lift(rule: &Rule, fields: Fields, (limit, conditions): (bool, bool)) -> RuleForm {
    let mut form = RuleForm::new(&rule.name);
    (form.priority, form.enabled, form.spec) = (rule.priority, rule.enabled, fields);
    if limit {
        lift_limit(rule, &mut form);
    }
    if conditions {
        lift_conditions(&mut form);
    }
    form
}

/// One limit of whole seconds, or of permits; its options become the rule's.
fn lift_limit(rule: &Rule, form: &mut RuleForm) {
    let [limit] = rule.limits.as_slice() else {
        return;
    };
    let policy = limit.policy();
    let seconds = policy.window().as_secs();
    let is_whole = limit.text() == limit_text(policy.limit(), seconds);
    let is_permits = policy.has_permits() && limit.text() == policy.limit().to_string();
    if !is_whole && !is_permits {
        return;
    }
    form.max_requests = Some(policy.limit());
    form.window_seconds = is_whole.then_some(seconds);
    form.algorithm = limit.options().counting;
    form.burst_capacity = limit.options().burst;
    if let Some(Value::Object(options)) = form.spec.remove("limit") {
        let is_named = |name: &str| ["limit", "algorithm", "burst"].contains(&name);
        form.spec.extend(options.into_iter().filter(|(name, _)| !is_named(name)));
    }
}

/// A tenant, a path and a method that are one value each.
fn lift_conditions(form: &mut RuleForm) {
    let Some(Value::Object(conditions)) = form.spec.get_mut("match") else {
        return;
    };
    let mut take = |attribute: &str| match conditions.remove(attribute) {
        Some(Value::String(value)) => Some(value),
        Some(other) => {
            conditions.insert(attribute.to_owned(), other);
            None
        }
        None => None,
    };
    form.tenant_id = take("tenant");
    form.path_pattern = take("path");
    if form.path_pattern.is_some() {
        form.http_method = take("method");
        form.scope = Scope::Endpoint;
    } else if form.tenant_id.is_some() {
        form.scope = Scope::Tenant;
    }
    if conditions.is_empty() {
        form.spec.remove("match");
    }
}
