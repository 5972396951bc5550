//! A rule as the fields of a file, in JSON: the other way round than `file/` reads them.
//!
//! What a file cannot say comes out as something else. Whoever needs to know reads it again.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::date::instant_text;
use crate::{
    Condition, Conditions, Costs, Exemption, Limit, Missing, Mode, OnStoreFailure, Per, Rule, Test,
    TierLimits, Tiers,
};

type Fields = Map<String, Value>;

/// Every field that differs from its default, but for the name, the priority and whether it is
/// enabled.
pub(super) fn fields_of(rule: &Rule) -> Fields {
    let mut fields = Fields::new();
    let mut say = |name: &str, is_said: bool, value: &dyn Fn() -> Value| {
        if is_said {
            fields.insert(name.to_owned(), value());
        }
    };
    let texts = |list: &[Box<str>]| json!(list.iter().map(|it| &**it).collect::<Vec<&str>>());
    say("id", rule.id.is_some(), &|| json!(rule.id.as_deref()));
    say("description", rule.description.is_some(), &|| json!(rule.description.as_deref()));
    say("match", !rule.conditions.all().is_empty(), &|| conditions(&rule.conditions).into());
    say("per", rule.per != [Per::Client], &|| {
        json!(rule.per.iter().map(Per::name).collect::<Vec<&str>>())
    });
    say("missing", rule.missing != Missing::default(), &|| json!(rule.missing.name()));
    say("limit", !rule.limits.is_empty(), &|| limits(&rule.limits));
    say("tiers", rule.tiers != Tiers::default(), &|| tiers(&rule.tiers));
    say("candidate", !rule.candidate.is_empty(), &|| limits(&rule.candidate));
    say("cost", rule.costs != Costs::default(), &|| costs(&rule.costs));
    say("stop", rule.stop, &|| json!(true));
    say("fallback", rule.fallback, &|| json!(true));
    say("unlimited", rule.unlimited, &|| json!(true));
    say("replaces", !rule.replaces.is_empty(), &|| texts(&rule.replaces));
    say("mode", rule.mode != Mode::default(), &|| json!(Mode::NAMED[rule.mode as usize].0));
    say("on_store_failure", rule.on_store_failure != OnStoreFailure::default(), &|| {
        on_store_failure(rule.on_store_failure)
    });
    say("exempt", !rule.exemptions.is_empty(), &|| rule.exemptions.iter().map(exemption).collect());
    fields
}

fn conditions(conditions: &Conditions) -> Fields {
    let mut fields = Fields::new();
    let mut rest = conditions.all();
    while let [first, ..] = rest {
        let is_same = |it: &&Condition| it.attribute == first.attribute;
        let (of_one, after) = rest.split_at(rest.iter().take_while(is_same).count());
        let value = match of_one {
            [one] => test(&one.attribute, &one.test),
            several => {
                let tests = several.iter().map(|it| named_test(&it.test));
                Value::Object(tests.flatten().collect())
            }
        };
        fields.insert(first.attribute.to_string(), value);
        rest = after;
    }
    fields
}

/// One test in the shortest way that its attribute has.
fn test(attribute: &str, test: &Test) -> Value {
    match (attribute, test) {
        ("path", Test::Path(patterns)) => one_or_many(patterns.iter().map(ToString::to_string)),
        ("ip", Test::Within(blocks)) => one_or_many(blocks.iter().map(ToString::to_string)),
        ("ip" | "path", Test::OneOf(_)) => Value::Object(named_test(test).collect()),
        (_, Test::OneOf(values)) => one_or_many(values.iter().map(ToString::to_string)),
        (_, Test::Not(within)) if **within != Test::Present => {
            json!({ "not": self::test(attribute, within) })
        }
        _ => Value::Object(named_test(test).collect()),
    }
}

fn named_test(test: &Test) -> impl Iterator<Item = (String, Value)> {
    let (name, value) = match test {
        Test::OneOf(values) => ("one_of", one_or_many(values.iter().map(ToString::to_string))),
        Test::Prefix(prefix) => ("prefix", json!(&**prefix)),
        Test::Within(blocks) => ("cidr", one_or_many(blocks.iter().map(ToString::to_string))),
        Test::Present => ("present", json!(true)),
        Test::Path(patterns) => ("path", one_or_many(patterns.iter().map(ToString::to_string))),
        Test::Not(within) if **within == Test::Present => ("absent", json!(true)),
        Test::Not(within) => ("not", Value::Object(named_test(within).collect())),
    };
    [(name.to_owned(), value)].into_iter()
}

fn one_or_many(values: impl Iterator<Item = String>) -> Value {
    let mut values: Vec<String> = values.collect();
    match (values.len(), values.pop()) {
        (1, Some(value)) => json!(value),
        (_, last) => {
            values.extend(last);
            json!(values)
        }
    }
}

/// One limit by itself, or a list.
fn limits(limits: &[Limit]) -> Value {
    match limits {
        [one] => limit(one),
        several => several.iter().map(limit).collect(),
    }
}

/// Its text; with its options where it has any.
fn limit(limit: &Limit) -> Value {
    let mut fields = options(limit);
    if fields.is_empty() {
        return json!(limit.text());
    }
    fields.insert("limit".to_owned(), json!(limit.text()));
    Value::Object(fields)
}

fn options(limit: &Limit) -> Fields {
    let options = limit.options();
    let warm_up = options
        .warm_up
        .map(|it| json!({ "start": it.start, "over": time_text(it.over), "steps": it.steps }));
    let said = [
        ("algorithm", options.counting.map(|it| json!(it.name()))),
        ("burst", options.burst.map(|it| json!(it))),
        ("staggered", options.staggered.then_some(Value::Bool(true))),
        ("utc_offset", options.utc_offset_minutes.map(|it| json!(offset_text(it)))),
        ("subwindows", options.subwindows.map(|it| json!(it))),
        ("warm_up", warm_up),
        ("lease", options.lease.map(|it| json!(time_text(it)))),
        ("queue", options.queue.map(|it| json!(it))),
        ("max_wait", options.max_wait.map(|it| json!(time_text(it)))),
    ];
    said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn tiers(tiers: &Tiers) -> Value {
    let mut fields: Fields = tiers
        .limits
        .iter()
        .map(|(name, of_tier)| {
            let value = match of_tier {
                TierLimits::Limits(of_tier) => limits(of_tier),
                TierLimits::Unlimited => json!("unlimited"),
            };
            (name.to_string(), value)
        })
        .collect();
    if let Some(default) = &tiers.default {
        fields.insert("default".to_owned(), json!(&**default));
    }
    Value::Object(fields)
}

fn costs(costs: &Costs) -> Value {
    if costs.by_condition.is_empty() && costs.attribute.is_none() {
        return json!(costs.default);
    }
    // A list has no default and no attribute; a mapping has routes only.
    if costs.default == 1 && costs.attribute.is_none() {
        let item =
            |(of, cost): &(Conditions, u64)| json!({ "match": conditions(of), "cost": cost });
        return costs.by_condition.iter().map(item).collect();
    }
    let mut fields = Fields::new();
    fields.insert("default".to_owned(), json!(costs.default));
    if let Some(attribute) = &costs.attribute {
        fields.insert("attribute".to_owned(), json!(&**attribute));
    }
    for (of, cost) in &costs.by_condition {
        fields.insert(route(of), json!(cost));
    }
    Value::Object(fields)
}

/// `GET /v1/search`; what is no route is a text that no reader takes.
fn route(conditions: &Conditions) -> String {
    let value = |attribute: &str| {
        let condition = conditions.all().iter().find(|it| &*it.attribute == attribute)?;
        self::test(attribute, &condition.test).as_str().map(str::to_owned)
    };
    match (value("method"), value("path")) {
        (Some(method), Some(path)) => format!("{method} {path}"),
        (_, path) => path.unwrap_or_default(),
    }
}

fn on_store_failure(on_store_failure: OnStoreFailure) -> Value {
    match on_store_failure {
        OnStoreFailure::Allow => json!("allow"),
        OnStoreFailure::Deny => json!("deny"),
        OnStoreFailure::Local => json!("local"),
        OnStoreFailure::Shed { keep } => json!({ "shed": keep.name() }),
    }
}

fn exemption(exemption: &Exemption) -> Value {
    let mut fields = conditions(&exemption.conditions);
    if let Some(until) = exemption.until {
        fields.insert("until".to_owned(), json!(instant_text(until)));
    }
    if let Some(reason) = &exemption.reason {
        fields.insert("reason".to_owned(), json!(&**reason));
    }
    Value::Object(fields)
}

/// `90s`, in the largest unit that it is a whole number of.
pub(super) fn time_text(time: Duration) -> String {
    const UNITS: [(&str, u128); 6] = [
        ("week", 604_800_000_000),
        ("day", 86_400_000_000),
        ("h", 3_600_000_000),
        ("min", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1_000),
    ];
    let micros = time.as_micros();
    let fits = |(_, unit): &&(&str, u128)| micros > 0 && micros.is_multiple_of(*unit);
    let (name, unit) = UNITS.iter().find(fits).copied().unwrap_or(("us", 1));
    match micros / unit {
        1 => name.to_owned(),
        count => format!("{count}{name}"),
    }
}

fn offset_text(minutes: i32) -> String {
    let sign = if minutes < 0 { '-' } else { '+' };
    let minutes = minutes.unsigned_abs();
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}
