//! A rule as the fields of a file, in the order in which people write them: what `file/` reads, written.
//!
//! Every rule that was read from a file or from JSON can be written. A rule made by a program may hold
//! costs that no file can say; those are left out.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::date::instant_text;
use crate::file::reader::Case;
use crate::rule::accuracy::percent_text;
use crate::rule::alternative::alternatives;
use crate::{
    Condition, Conditions, Costs, Criticality, Exemption, Limit, LimitOptions, Mode, OnMissing,
    OnOutage, Per, Reserve, Rule, Test, TierLimits, Tiers,
};

/// The fields of a rule or of a part of it, in order.
pub(super) type Fields = Vec<(Cow<'static, str>, Value)>;

/// Returns every field that differs from its default, and the name.
pub(super) fn rule_fields(rule: &Rule, case: Case) -> Fields {
    let writer = Writer { case };
    let (shared, none) = (shared_options(rule), LimitOptions::default());
    let texts = |list: &[Box<str>]| json!(list.iter().map(|text| &**text).collect::<Vec<&str>>());
    let per = || json!(rule.per.iter().map(Per::name).collect::<Vec<&str>>());
    let said = |is_said: bool, value: &dyn Fn() -> Value| is_said.then(value);
    let mut fields = vec![
        ("name", Some(json!(&*rule.name))),
        ("id", rule.id.as_ref().map(|id| json!(&**id))),
        ("description", rule.description.as_ref().map(|description| json!(&**description))),
        ("match", said(!rule.conditions.all().is_empty(), &|| writer.conditions(&rule.conditions))),
        ("criticality", rule.criticality.map(|criticality| json!(criticality.name()))),
        ("per", said(rule.per != [Per::Client], &per)),
        ("missing", said(rule.missing != OnMissing::default(), &|| json!(rule.missing.name()))),
        ("new_keys", rule.new_keys.as_ref().map(|limit| writer.limit(limit, none, false))),
        ("limit", said(!rule.limits.is_empty(), &|| writer.limits(&rule.limits, shared, true))),
    ];
    fields.extend(option_fields(shared));
    fields.extend([
        ("tiers", said(rule.tiers != Tiers::default(), &|| writer.tiers(&rule.tiers, shared))),
        (
            "candidate",
            said(!rule.candidate.is_empty(), &|| writer.limits(&rule.candidate, shared, false)),
        ),
        ("cost", said(rule.costs != Costs::default(), &|| writer.costs(&rule.costs))),
        ("priority", said(rule.priority != 0, &|| json!(rule.priority))),
        ("stop", said(rule.stop, &|| json!(true))),
        ("fallback", said(rule.fallback, &|| json!(true))),
        ("unlimited", said(rule.unlimited, &|| json!(true))),
        ("replaces", said(!rule.replaces.is_empty(), &|| texts(&rule.replaces))),
        ("mode", said(rule.mode != Mode::default(), &|| json!(Mode::NAMED[rule.mode as usize].0))),
        ("accuracy", rule.accuracy.map(|accuracy| json!(accuracy.to_string()))),
        (
            "on_store_failure",
            said(rule.on_store_failure != OnOutage::default(), &|| {
                on_store_failure(rule.on_store_failure)
            }),
        ),
        (
            "exempt",
            said(!rule.exemptions.is_empty(), &|| {
                rule.exemptions.iter().map(|exemption| writer.exemption(exemption)).collect()
            }),
        ),
        ("enabled", said(!rule.enabled, &|| json!(false))),
    ]);
    there(fields, case)
}

/// Returns the options that all limits of a rule can be written with once: every limit inherits exactly
/// what it has. None where each limit has to say its own.
pub(super) fn shared_options(rule: &Rule) -> LimitOptions {
    let Some(first) = rule.all_limits().next() else {
        return LimitOptions::default();
    };
    let mut shared = first.options();
    if rule.limits.len() != 1 {
        // A burst and a warm-up are of one limit.
        (shared.burst, shared.warm_up) = (None, None);
    }
    let fits = |limit: &Limit, is_rules_own: bool| {
        let is_rules_own = is_rules_own && limit.alternative().is_none();
        let own = own_options(limit, shared, is_rules_own);
        shared.inherited_by(limit.text(), own, is_rules_own) == limit.options()
    };
    let mut others = rule.all_limits().skip(rule.limits.len());
    let all_fit =
        rule.limits.iter().all(|limit| fits(limit, true)) && others.all(|limit| fits(limit, false));
    if all_fit { shared } else { LimitOptions::default() }
}

/// Returns what a limit says itself, where its rule says `shared`.
pub(super) fn own_options(limit: &Limit, shared: LimitOptions, is_rules_own: bool) -> LimitOptions {
    let options = limit.options();
    if shared == LimitOptions::default() {
        return options;
    }
    let mut own = LimitOptions::default();
    if !is_rules_own || shared.burst.is_none() {
        own.burst = options.burst;
    }
    if !is_rules_own || shared.warm_up.is_none() {
        own.warm_up = options.warm_up;
    }
    own
}

fn there(fields: Vec<(&'static str, Option<Value>)>, case: Case) -> Fields {
    fields.into_iter().filter_map(|(name, value)| Some((case.spell(name), value?))).collect()
}

fn object(fields: Fields) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.into_owned(), value)).collect())
}

fn option_fields(options: LimitOptions) -> [(&'static str, Option<Value>); 10] {
    let warm_up = options.warm_up.map(|warm_up| {
        json!({ "start": warm_up.start, "over": time_text(warm_up.over), "steps": warm_up.steps })
    });
    [
        ("burst", options.burst.map(|burst| json!(burst))),
        ("algorithm", options.counting.map(|counting| json!(counting.name()))),
        ("staggered", options.staggered.then_some(Value::Bool(true))),
        ("utc_offset", options.utc_offset_minutes.map(|minutes| json!(offset_text(minutes)))),
        ("subwindows", options.subwindows.map(|count| json!(count))),
        ("warm_up", warm_up),
        ("lease", options.lease.map(|lease| json!(time_text(lease)))),
        ("queue", options.queue.map(|length| json!(length))),
        ("max_wait", options.max_wait.map(|wait| json!(time_text(wait)))),
        ("reserve", options.reserve.map(reserve_json)),
    ]
}

fn reserve_json(reserve: Reserve) -> Value {
    let share = |(of, ppm): (Criticality, u32)| (of.name().to_owned(), json!(percent_text(ppm)));
    Value::Object(reserve.shares().map(share).collect())
}

/// Writes the parts of a rule.
#[derive(Debug, Clone, Copy)]
struct Writer {
    case: Case,
}

impl Writer {
    fn conditions(self, conditions: &Conditions) -> Value {
        let fields = condition_fields(conditions, self.case);
        Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// One limit by itself, a list, or alternatives.
    fn limits(self, limits: &[Limit], shared: LimitOptions, is_rules_own: bool) -> Value {
        if limits.iter().any(|limit| limit.alternative().is_some()) {
            let alternative = |limits| self.all_of(limits, shared, false);
            let any_of = alternatives(limits).map(alternative).collect();
            return object(vec![(self.case.spell("any_of"), any_of)]);
        }
        self.all_of(limits, shared, is_rules_own)
    }

    fn all_of(self, limits: &[Limit], shared: LimitOptions, is_rules_own: bool) -> Value {
        match limits {
            [one] => self.limit(one, shared, is_rules_own),
            several => {
                several.iter().map(|limit| self.limit(limit, shared, is_rules_own)).collect()
            }
        }
    }

    /// Its text; with its own options where it has any.
    fn limit(self, limit: &Limit, shared: LimitOptions, is_rules_own: bool) -> Value {
        let own = own_options(limit, shared, is_rules_own);
        if own == LimitOptions::default() && limit.per().is_none() {
            return json!(limit.text());
        }
        let per = |per: &[Per]| json!(per.iter().map(Per::name).collect::<Vec<&str>>());
        let mut fields = vec![("limit", Some(json!(limit.text())))];
        fields.extend(option_fields(own));
        fields.push(("per", limit.per().map(per)));
        object(there(fields, self.case))
    }

    fn tiers(self, tiers: &Tiers, shared: LimitOptions) -> Value {
        let of_tier = |limits: &TierLimits| match limits {
            TierLimits::Limits(limits) => self.limits(limits, shared, false),
            TierLimits::Unlimited => json!("unlimited"),
        };
        let limits = tiers.limits.iter().map(|(name, limits)| (name.to_string(), of_tier(limits)));
        let default = tiers.default.iter().map(|tier| ("default".to_owned(), json!(&**tier)));
        Value::Object(limits.chain(default).collect())
    }

    fn costs(self, costs: &Costs) -> Value {
        if costs.by_condition.is_empty() && costs.attribute.is_none() {
            return json!(costs.default);
        }
        let routes: Option<Map<String, Value>> =
            costs.by_condition.iter().map(|(of, cost)| Some((route(of)?, json!(cost)))).collect();
        let is_list = costs.default == 1 && costs.attribute.is_none();
        let mut fields = match routes {
            // Two costs of one route are two items of a list.
            Some(routes) if routes.len() == costs.by_condition.len() || !is_list => routes,
            _ => {
                let item = |(of, cost): &(Conditions, u64)| json!({ "match": self.conditions(of), "cost": cost });
                return costs.by_condition.iter().map(item).collect();
            }
        };
        if costs.default != 1 {
            fields.insert("default".to_owned(), json!(costs.default));
        }
        if let Some(attribute) = &costs.attribute {
            fields.insert("attribute".to_owned(), json!(&**attribute));
        }
        Value::Object(fields)
    }

    fn exemption(self, exemption: &Exemption) -> Value {
        let mut fields = match self.conditions(&exemption.conditions) {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        if let Some(until) = exemption.until {
            fields.insert("until".to_owned(), json!(instant_text(until)));
        }
        if let Some(reason) = &exemption.reason {
            fields.insert("reason".to_owned(), json!(&**reason));
        }
        Value::Object(fields)
    }
}

/// Returns each attribute and what must hold of it.
pub(super) fn condition_fields(conditions: &Conditions, case: Case) -> Vec<(&str, Value)> {
    let groups = conditions.all().chunk_by(|one, other| one.attribute == other.attribute);
    let field = |of_one: &'_ [Condition]| match of_one {
        [one] => test(&one.attribute, &one.test, case),
        several => {
            let mut tests = Map::new();
            // From the last to the first, so that of two lists of values the first is `equal`.
            for condition in several.iter().rev() {
                let (name, value) = named_test(&condition.attribute, &condition.test, case);
                let is_second =
                    matches!(condition.test, Test::OneOf(_)) && tests.contains_key(&name);
                tests.insert(if is_second { "equal".to_owned() } else { name }, value);
            }
            Value::Object(tests)
        }
    };
    groups.map(|of_one| (&*of_one[0].attribute, field(of_one))).collect()
}

/// One test in the shortest way that its attribute has.
fn test(attribute: &str, test: &Test, case: Case) -> Value {
    match (attribute, test) {
        ("path", Test::Path(patterns)) => one_or_many(patterns.iter()),
        ("ip", Test::Within(blocks)) => one_or_many(blocks.iter()),
        ("ip" | "path", Test::OneOf(_)) => {
            Value::Object([named_test(attribute, test, case)].into_iter().collect())
        }
        (_, Test::OneOf(values)) => one_or_many(values.iter()),
        _ => Value::Object([named_test(attribute, test, case)].into_iter().collect()),
    }
}

fn named_test(attribute: &str, test: &Test, case: Case) -> (String, Value) {
    let (name, value) = match test {
        Test::OneOf(values) => ("one_of", one_or_many(values.iter())),
        Test::Prefix(prefix) => ("prefix", json!(&**prefix)),
        Test::Within(blocks) => ("cidr", one_or_many(blocks.iter())),
        Test::Present => ("present", json!(true)),
        Test::Path(patterns) => ("path", one_or_many(patterns.iter())),
        Test::Not(within) if **within == Test::Present => ("absent", json!(true)),
        Test::Not(within) => ("not", self::test(attribute, within, case)),
    };
    (case.spell(name).into_owned(), value)
}

fn one_or_many<T: ToString>(values: impl ExactSizeIterator<Item = T>) -> Value {
    let is_one = values.len() == 1;
    let mut values = values.map(|value| Value::String(value.to_string()));
    match values.next() {
        Some(only) if is_one => only,
        first => first.into_iter().chain(values).collect(),
    }
}

/// Returns `GET /v1/search`, or a path alone; none of conditions that do not read as such a route.
fn route(conditions: &Conditions) -> Option<String> {
    let fields = condition_fields(conditions, Case::Snake);
    let text = match fields.as_slice() {
        [("path", path)] => path.as_str()?.to_owned(),
        [("method", method), ("path", path)] => format!("{} {}", method.as_str()?, path.as_str()?),
        _ => return None,
    };
    crate::file::route(&text).is_ok_and(|read| read == *conditions).then_some(text)
}

fn on_store_failure(on_store_failure: OnOutage) -> Value {
    match (on_store_failure.name(), on_store_failure) {
        (None, OnOutage::Shed { keep }) => json!({ "shed": keep.name() }),
        (name, _) => json!(name),
    }
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
