//! The form of a rule: its fields, what they mean, and the rule that is meant by what stands in them.

use tollbar_rules::admin::{RuleView, changed_fields};
use tollbar_rules::{AlgorithmKind, Criticality, Limit, Mode, OnOutage, Per, Rule, RuleAccuracy};

use super::super::form::FormFields;
use tollbar_daemon::problem::{FieldError, Problem};

/// A field of the form.
#[derive(Debug, Clone)]
pub(crate) struct RuleField {
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

struct RuleFieldKind {
    name: &'static str,
    label: &'static str,
    help: &'static str,
    example: &'static str,
    choices: &'static [(&'static str, &'static str)],
    is_number: bool,
    /// Returns what stands in the field; nothing for a default, and for what it cannot show.
    get: fn(&RuleDraft) -> String,
    /// Takes what stands in the field, or says what to write instead.
    set: fn(&mut RuleDraft, &str) -> Result<(), String>,
}

/// A rule on its way through the form.
struct RuleDraft {
    rule: Rule,
    view: RuleView,
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

const KINDS: [RuleFieldKind; 17] = [
    RuleFieldKind {
        get: |draft| draft.rule.name.to_string(),
        set: |draft, text| {
            draft.rule.name = text.into();
            let wrong = "the rule has no name: write one such as `per_client`";
            if text.is_empty() { Err(wrong.to_owned()) } else { Ok(()) }
        },
        ..kind("name", "Name", "Letters, digits and _ . : / -", "per_client")
    },
    RuleFieldKind {
        get: |draft| draft.rule.description.as_deref().unwrap_or_default().to_owned(),
        set: |draft, text| set(&mut draft.rule.description, non_empty(text).map(Into::into)),
        ..kind("description", "Description", "For people.", "")
    },
    RuleFieldKind {
        get: |draft| draft.view.path_pattern.clone().unwrap_or_default(),
        set: |draft, text| set(&mut draft.view.path_pattern, non_empty(text)),
        ..kind("pathPattern", "Path", "Empty is every path; ** is any rest.", "/v1/**")
    },
    RuleFieldKind {
        get: |draft| draft.view.http_method.clone().unwrap_or_default(),
        set: |draft, text| set(&mut draft.view.http_method, non_empty(text)),
        ..kind("httpMethod", "Method", "Empty is any.", "GET")
    },
    RuleFieldKind {
        get: |draft| draft.view.tenant_id.clone().unwrap_or_default(),
        set: |draft, text| set(&mut draft.view.tenant_id, non_empty(text)),
        ..kind("tenantId", "Tenant", "Empty is every tenant.", "acme")
    },
    RuleFieldKind {
        choices: &[
            ("", "not said here"),
            ("low", "low"),
            ("normal", "normal"),
            ("high", "high"),
            ("critical", "critical"),
        ],
        get: |draft| draft.rule.criticality.map_or("", Criticality::name).to_owned(),
        set: |draft, text| set(&mut draft.rule.criticality, choice(text, Criticality::of_name)?),
        ..kind(
            "criticality",
            "Criticality",
            "How critical such requests are: who gives way to a reserve, and is shed first. A rule may say this alone.",
            "",
        )
    },
    RuleFieldKind {
        get: |draft| match draft.rule.per.as_slice() {
            [Per::Client] => String::new(),
            [] => "none".to_owned(),
            per => per.iter().map(Per::name).collect::<Vec<_>>().join(", "),
        },
        set: |draft, text| set(&mut draft.rule.per, per_of(text)?),
        ..kind(
            "per",
            "Counted per",
            "Empty: per client. `none`: one counter for all.",
            "user, path",
        )
    },
    RuleFieldKind {
        get: |draft| draft.rule.new_keys.as_ref().map_or("", Limit::text).to_owned(),
        set: |draft, text| {
            // A burst has no field: it stays as long as the rate does.
            let is_same = draft.rule.new_keys.as_ref().is_some_and(|limit| limit.text() == text);
            if !is_same {
                let limit = non_empty(text).map(|text| Limit::parse(&text));
                draft.rule.new_keys = limit.transpose().map_err(|error| error.to_string())?;
            }
            Ok(())
        },
        ..kind(
            "newKeys",
            "New keys per network",
            "Empty: no bound. Beyond it, new keys of one IPv4 /24 or IPv6 /48 share a counter.",
            "100/min",
        )
    },
    RuleFieldKind {
        get: |draft| number_text(draft.view.max_requests),
        set: |draft, text| set(&mut draft.view.max_requests, number(text)?),
        ..number_kind("maxRequests", "Requests", "How many may pass in a window.", "100")
    },
    RuleFieldKind {
        get: |draft| number_text(draft.view.window_seconds),
        set: |draft, text| set(&mut draft.view.window_seconds, number(text)?),
        ..number_kind("windowSeconds", "Window, in seconds", "Empty for requests in flight.", "60")
    },
    RuleFieldKind {
        choices: ALGORITHMS,
        get: |draft| draft.view.algorithm.map_or("", AlgorithmKind::name).to_owned(),
        set: |draft, text| set(&mut draft.view.algorithm, choice(text, AlgorithmKind::of_name)?),
        ..kind("algorithm", "Algorithm", "How the limit counts.", "")
    },
    RuleFieldKind {
        get: |draft| number_text(draft.view.burst_capacity),
        set: |draft, text| set(&mut draft.view.burst_capacity, number(text)?),
        ..number_kind("burstCapacity", "Burst", "What a bucket holds; empty is one window.", "20")
    },
    RuleFieldKind {
        choices: &[("", "enforce"), ("shadow", "shadow: count, never deny")],
        get: |draft| {
            if draft.rule.mode == Mode::Shadow { "shadow".to_owned() } else { String::new() }
        },
        set: |draft, text| {
            let mode = choice(text, |name| (name == "shadow").then_some(Mode::Shadow))?;
            set(&mut draft.rule.mode, mode.unwrap_or_default())
        },
        ..kind("mode", "Mode", "Try a rule in shadow before it denies.", "")
    },
    RuleFieldKind {
        get: |draft| draft.rule.accuracy.map_or_else(String::new, |accuracy| accuracy.to_string()),
        set: |draft, text| {
            let accuracy = non_empty(text).map(|text| text.parse::<RuleAccuracy>());
            set(&mut draft.rule.accuracy, accuracy.transpose().map_err(|error| error.to_string())?)
        },
        ..kind(
            "accuracy",
            "Accuracy",
            "Empty: as the file of rules says, else exact. Or exact, conservative(5%), optimistic(5%), local(4).",
            "conservative(5%)",
        )
    },
    RuleFieldKind {
        choices: &[
            ("", "allow"),
            ("deny", "deny"),
            ("local", "a local share"),
            ("shed", "shed what matters least"),
        ],
        get: |draft| {
            draft.rule.on_store_failure.name().filter(|name| *name != "allow").unwrap_or("").into()
        },
        set: |draft, text| {
            let named = |text: &str| OnOutage::NAMED.into_iter().find(|pair| pair.0 == text);
            let chosen = choice(text, |name| named(name).map(|pair| pair.1))?;
            // An outage can be met in more ways than there are choices: such a way stays.
            if chosen.is_some() || draft.rule.on_store_failure.name().is_some() {
                draft.rule.on_store_failure = chosen.unwrap_or_default();
            }
            Ok(())
        },
        ..kind("onStoreFailure", "While the store is down", "What happens then.", "")
    },
    RuleFieldKind {
        get: |draft| draft.rule.priority.to_string(),
        set: |draft, text| {
            let wrong = |_| "write a whole number of 32 bits, such as 10 or -1".to_owned();
            let text = if text.is_empty() { "0" } else { text };
            set(&mut draft.rule.priority, text.parse().map_err(wrong)?)
        },
        ..number_kind("priority", "Priority", "Higher is looked at first.", "0")
    },
    RuleFieldKind {
        choices: &[("true", "enabled"), ("false", "disabled")],
        get: |draft| draft.rule.enabled.to_string(),
        set: |draft, text| set(&mut draft.rule.enabled, text != "false"),
        ..kind("enabled", "State", "A disabled rule is not looked at.", "")
    },
];

const fn kind(
    name: &'static str,
    label: &'static str,
    help: &'static str,
    example: &'static str,
) -> RuleFieldKind {
    RuleFieldKind {
        name,
        label,
        help,
        example,
        choices: &[],
        is_number: false,
        get: |_| String::new(),
        set: |_, _| Ok(()),
    }
}

const fn number_kind(
    name: &'static str,
    label: &'static str,
    help: &'static str,
    example: &'static str,
) -> RuleFieldKind {
    RuleFieldKind { is_number: true, ..kind(name, label, help, example) }
}

#[expect(clippy::unnecessary_wraps, reason = "every field ends with one of these")]
fn set<T>(target: &mut T, value: T) -> Result<(), String> {
    *target = value;
    Ok(())
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn per_of(text: &str) -> Result<Vec<Per>, String> {
    let mut per = Vec::new();
    for name in text.split(',').map(str::trim).filter(|_| text != "none") {
        let part = Per::of_name(if text.is_empty() { "client" } else { name });
        if per.contains(&part) {
            return Err(format!("`{name}` is there already: leave it out"));
        }
        per.push(part);
    }
    Ok(per)
}

fn number(text: &str) -> Result<Option<u64>, String> {
    let number = non_empty(text).map(|text| text.parse().ok().filter(|number| *number > 0));
    match number {
        Some(None) => Err("write a whole number above 0, such as 100".to_owned()),
        number => Ok(number.flatten()),
    }
}

fn number_text(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

fn choice<T>(text: &str, of_name: impl Fn(&str) -> Option<T>) -> Result<Option<T>, String> {
    match (text, of_name(text)) {
        (_, Some(chosen)) => Ok(Some(chosen)),
        ("", None) => Ok(None),
        _ => Err("choose one of those there are".to_owned()),
    }
}

/// The form, filled with what a rule says.
pub(crate) fn from_rule(rule: &Rule) -> Vec<RuleField> {
    let draft = RuleDraft::new(rule.clone());
    KINDS.iter().map(|kind| kind.field((kind.get)(&draft))).collect()
}

/// The form, filled with what was sent, and what is wrong with it.
pub(crate) fn from_form(form: &FormFields, problem: Option<&Problem>) -> Vec<RuleField> {
    let wrongs: &[FieldError] = problem.map_or(&[], |problem| &problem.fields);
    KINDS
        .iter()
        .map(|kind| {
            let wrong = wrongs.iter().find(|error| error.field == kind.name);
            RuleField {
                wrong: wrong.map(|error| {
                    crate::dashboard::view::untrusted_text::escape_invisible(&error.detail)
                }),
                ..kind.field(form.text(kind.name).to_owned())
            }
        })
        .collect()
}

/// Returns the rule that a form stands for: what the form has no field for stays as it is in `base`.
pub(crate) fn to_rule(base: Option<&Rule>, form: &FormFields) -> Result<Rule, Problem> {
    let base = base.cloned().unwrap_or_else(|| Rule::new(""));
    RuleDraft::new(base).into_rule(|kind| form.text(kind.name))
}

/// True where a rule says more than the form has fields for.
pub(crate) fn has_more(rule: &Rule) -> bool {
    let draft = RuleDraft::new(rule.clone());
    let form = RuleDraft::new(Rule::new("")).into_rule(|kind| (kind.get)(&draft));
    form.is_ok_and(|form| !changed_fields(rule, &form).is_empty())
}

impl RuleDraft {
    fn new(rule: Rule) -> Self {
        Self { view: RuleView::from_rule(&rule), rule }
    }

    /// The rule with what stands in each field.
    fn into_rule<T: AsRef<str>>(
        mut self,
        text: impl Fn(&RuleFieldKind) -> T,
    ) -> Result<Rule, Problem> {
        let mut wrong = Vec::new();
        for kind in &KINDS {
            if let Err(detail) = (kind.set)(&mut self, text(kind).as_ref().trim()) {
                wrong.push(FieldError { field: kind.name.to_owned(), detail });
            }
        }
        if !wrong.is_empty() {
            return Err(Problem::invalid(wrong));
        }
        self.view.apply(&mut self.rule)?;
        Ok(self.rule)
    }
}

impl RuleFieldKind {
    fn field(&self, value: String) -> RuleField {
        RuleField {
            name: self.name,
            label: self.label,
            help: self.help,
            example: self.example,
            value,
            choices: self.choices,
            is_number: self.is_number,
            is_needed: self.name == "name",
            wrong: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
        let form = FormFields::read(b"name=a&maxRequests=9&windowSeconds=1&per=none&enabled=false")
            .unwrap();
        let expected = rule(json!({
            "name": "a", "maxRequests": 9, "windowSeconds": 1, "per": [], "enabled": false,
            "exempt": [{ "api_key": "internal" }],
        }));
        assert_eq!(to_rule(Some(&base), &form), Ok(expected));
        assert!(has_more(&base));
        let limited = |fields: Value| {
            let mut json = json!({ "name": "a", "maxRequests": 5, "windowSeconds": 1 });
            json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            rule(json)
        };
        assert!(!has_more(&limited(json!({ "mode": "shadow", "tenantId": "acme" }))));
        assert!(!has_more(&limited(json!({ "onStoreFailure": "local" }))));
        let bursting = limited(json!({ "newKeys": { "limit": "9/min", "burst": 90 } }));
        assert!(has_more(&bursting));
        let form =
            FormFields::read(b"name=a&maxRequests=5&windowSeconds=1&newKeys=9%2Fmin").unwrap();
        assert_eq!(to_rule(Some(&bursting), &form), Ok(bursting), "it has no field for the burst");
        let shedding = limited(json!({ "onStoreFailure": { "shed": "low" } }));
        assert!(has_more(&shedding));
        let form =
            FormFields::read(b"name=a&maxRequests=5&windowSeconds=1&onStoreFailure=").unwrap();
        assert_eq!(to_rule(Some(&shedding), &form), Ok(shedding), "it has no such choice");
    }

    #[test]
    fn a_form_says_what_the_rule_says_that_it_was_filled_with() {
        for json in [
            json!({ "name": "a", "maxRequests": 5, "windowSeconds": 60 }),
            json!({ "name": "a", "maxRequests": 5, "algorithm": "concurrency" }),
            json!({
                "name": "a", "maxRequests": 5, "windowSeconds": 60, "burstCapacity": 9,
                "algorithm": "token_bucket", "tenantId": "acme", "httpMethod": "GET",
                "pathPattern": "/v1/**", "per": ["user", "path"], "mode": "shadow", "priority": -3,
                "onStoreFailure": "shed", "enabled": false, "description": "for people",
                "newKeys": "100/min", "accuracy": "conservative(2.5%)", "criticality": "high",
            }),
            json!({ "name": "a", "pathPattern": "/checkout/**", "criticality": "critical" }),
        ] {
            let rule = rule(json);
            let pairs = from_rule(&rule).into_iter().map(|field| (field.name, field.value));
            let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
            let form = FormFields::read(form.as_bytes()).unwrap();
            let read = to_rule(None, &form).unwrap();
            assert_eq!(changed_fields(&rule, &read), []);
            assert!(!has_more(&rule));
        }
    }

    #[test]
    fn a_mistake_is_told_at_its_field() {
        let form = FormFields::read(b"name=a&maxRequests=many&windowSeconds=1").unwrap();
        let problem = to_rule(None, &form).unwrap_err();
        let fields = from_form(&form, Some(&problem));
        let wrong: Vec<&str> =
            fields.iter().filter(|field| field.wrong.is_some()).map(|field| field.name).collect();
        assert_eq!(wrong, ["maxRequests"]);
        let kept = fields.iter().find(|field| field.name == "maxRequests").unwrap();
        assert_eq!(kept.value, "many");
        for (form, field) in [
            ("name=&maxRequests=1&windowSeconds=1", "name"),
            ("name=a&maxRequests=0&windowSeconds=1", "maxRequests"),
            ("name=a&maxRequests=1", "windowSeconds"),
            ("name=a&maxRequests=1&windowSeconds=1&algorithm=fast", "algorithm"),
            ("name=a&maxRequests=1&windowSeconds=1&newKeys=many", "newKeys"),
            ("name=a&maxRequests=1&windowSeconds=1&burstCapacity=-1", "burstCapacity"),
            ("name=a&maxRequests=1&windowSeconds=1&per=user,user", "per"),
            ("name=a&maxRequests=1&windowSeconds=1&criticality=urgent", "criticality"),
            ("name=a&maxRequests=1&windowSeconds=1&mode=loud", "mode"),
            ("name=a&maxRequests=1&windowSeconds=1&accuracy=local(0)", "accuracy"),
            ("name=a&maxRequests=1&windowSeconds=1&onStoreFailure=panic", "onStoreFailure"),
            ("name=a&maxRequests=1&windowSeconds=1&priority=high", "priority"),
            ("name=a&maxRequests=1&windowSeconds=1&pathPattern=v1", "pathPattern"),
            ("name=a&maxRequests=1&windowSeconds=1&httpMethod=GET", "pathPattern"),
        ] {
            let problem = to_rule(None, &FormFields::read(form.as_bytes()).unwrap()).unwrap_err();
            assert_eq!(problem.fields[0].field, field, "{form}");
        }
    }
}
