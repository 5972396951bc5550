//! One rule of a file, field by field.

use std::collections::HashMap;

use super::conditions;
use super::limits::{self, InheritedOptions};
use super::node::{Position, Value};
use super::reader::{Field, Fields, Reader};
use crate::date::parse_instant;
use crate::message::shorten;
use crate::{
    AccuracyError, Costs, Criticality, Exemption, Mode, OnMissing, OnOutage, Rule, RuleAccuracy,
    RuleWarning,
};

/// Where the fields of a rule stand, for what is found only when all rules are together.
#[derive(Debug)]
pub(super) struct FieldPositions {
    pub(super) path: String,
    pub(super) rule: Position,
    pub(super) fields: HashMap<&'static str, Position>,
}

pub(super) const RULE_WHAT: &str = "a mapping such as `{ name: per_client, limit: 10/s }`";

pub(super) fn read(reader: &mut Reader, field: &Field<'_>) -> Option<(Rule, FieldPositions)> {
    let mut fields = reader.fields(field, RULE_WHAT)?;
    let mut rule_reader = RuleReader {
        positions: FieldPositions {
            path: field.path.clone(),
            rule: fields.at,
            fields: HashMap::new(),
        },
        reader,
        fields: &mut fields,
    };
    let rule = rule_reader.rule()?;
    let positions = rule_reader.positions;
    fields.know(reader.read_before);
    fields.finish(reader);
    for RuleWarning { field: within, message } in rule.warnings() {
        reader.warn(field.node.locate(&within), &format!("{}.{within}", field.path), message);
    }
    Some((rule, positions))
}

struct RuleReader<'a, 'n> {
    reader: &'a mut Reader,
    fields: &'a mut Fields<'n>,
    positions: FieldPositions,
}

impl<'n> RuleReader<'_, 'n> {
    fn take(&mut self, name: &'static str) -> Option<Field<'n>> {
        let field = self.fields.take(name)?;
        self.positions.fields.insert(name, field.node.at);
        Some(field)
    }

    fn boolean(&mut self, name: &'static str, default: bool) -> bool {
        let field = self.take(name);
        field.and_then(|field| self.reader.boolean(&field)).unwrap_or(default)
    }

    fn text(&mut self, name: &'static str, what: &str) -> Option<&'n str> {
        let field = self.take(name)?;
        self.reader.text(&field, what)
    }

    fn rule(&mut self) -> Option<Rule> {
        let name = self.text("name", "a name such as `per_client`");
        let id = self.text("id", "an identity that survives a new name");
        let Some(named) = name.or(id) else {
            if !self.positions.fields.contains_key("name") {
                let message = "the rule has no name: write one such as `name: per_client`";
                self.reader.error(self.fields.at, &self.fields.path, message);
            }
            return None;
        };
        let mut rule = Rule::new(named);
        rule.id = id.map(Into::into);
        rule.description = self.text("description", "a text").map(Into::into);
        rule.enabled = self.boolean("enabled", true);
        if let Some(field) = self.take("match") {
            rule.conditions = conditions::read(self.reader, &field);
        }
        if let Some(field) = self.take("criticality") {
            rule.criticality = self.reader.choice(&field, &Criticality::NAMED);
        }
        self.subject(&mut rule);
        self.limits(&mut rule);
        if let Some(field) = self.take("cost") {
            rule.costs = costs(self.reader, &field);
        }
        self.precedence(&mut rule);
        if let Some(field) = self.take("mode") {
            rule.mode = self.reader.choice(&field, &Mode::NAMED).unwrap_or_default();
        }
        if let Some(field) = self.take("accuracy") {
            rule.accuracy = accuracy(self.reader, &field);
        }
        if let Some(field) = self.take("on_store_failure") {
            rule.on_store_failure = on_store_failure(self.reader, &field);
        }
        if let Some(field) = self.take("exempt") {
            let items = field.one_or_many();
            rule.exemptions =
                items.iter().filter_map(|item| exemption(self.reader, item)).collect();
        }
        Some(rule)
    }

    fn subject(&mut self, rule: &mut Rule) {
        if let Some(field) = self.take("per") {
            rule.per = limits::read_per(self.reader, &field);
        }
        if let Some(field) = self.take("missing") {
            rule.missing = self.reader.choice(&field, &OnMissing::NAMED).unwrap_or_default();
        }
        if let Some(field) = self.take("new_keys") {
            rule.new_keys = limits::new_keys(self.reader, &field);
        }
    }

    fn limits(&mut self, rule: &mut Rule) {
        let mut inherited = InheritedOptions::take(self.reader, self.fields);
        if let Some(field) = self.take("limit") {
            rule.limits = inherited.limits(self.reader, &field);
        }
        if let Some(field) = self.take("tiers") {
            rule.tiers = inherited.tiers(self.reader, &field);
        }
        if let Some(field) = self.take("candidate") {
            rule.candidate = inherited.candidate(self.reader, &field);
        }
        inherited.finish(self.reader);
    }

    fn precedence(&mut self, rule: &mut Rule) {
        if let Some(field) = self.take("priority") {
            rule.priority = self.reader.signed(&field).unwrap_or_default();
        }
        rule.stop = self.boolean("stop", false);
        rule.fallback = self.boolean("fallback", false);
        rule.unlimited = self.boolean("unlimited", false);
        if let Some(field) = self.take("replaces") {
            for item in field.one_or_many() {
                let name = self.reader.text(&item, "the names of other rules");
                rule.replaces.extend(name.map(Box::from));
            }
        }
    }
}

fn costs(reader: &mut Reader, field: &Field<'_>) -> Costs {
    let mut costs = Costs::default();
    match &field.node.value {
        Value::Map(_) => {
            let Some(mut fields) = reader.fields(field, "costs") else {
                return costs;
            };
            if let Some(field) = fields.take("default") {
                costs.default = reader.number(&field).unwrap_or(1);
            }
            if let Some(field) = fields.take("attribute") {
                let name = reader.text(&field, "the name of an attribute that is a number");
                costs.attribute = name.map(Into::into);
            }
            for (key, field) in fields.rest() {
                let cost = reader.number(&field);
                match conditions::route(&key.text) {
                    Ok(route) => costs.by_condition.extend(cost.map(|cost| (route, cost))),
                    Err(message) => reader.error(key.at, &field.path, message),
                }
            }
        }
        Value::List(_) => {
            for item in field.items() {
                let Some(mut fields) =
                    reader.fields(&item, "a mapping such as `{ match: { plan: bulk }, cost: 5 }`")
                else {
                    continue;
                };
                let conditions = fields.take("match").map(|field| conditions::read(reader, &field));
                let cost = fields.take("cost").and_then(|field| reader.number(&field));
                match (conditions, cost) {
                    (Some(conditions), Some(cost)) => costs.by_condition.push((conditions, cost)),
                    _ => reader.refuse(&item, "a cost has a `match` and a `cost`: write both"),
                }
                fields.finish(reader);
            }
        }
        _ => costs.default = reader.number(field).unwrap_or(1),
    }
    costs
}

/// Reads how exactly a rule counts, or all rules that do not say it themselves.
pub(super) fn accuracy(reader: &mut Reader, field: &Field<'_>) -> Option<RuleAccuracy> {
    let text = reader.text(field, "one such as `conservative(5%)` or `local(4)`")?;
    text.parse().map_err(|error: AccuracyError| reader.refuse(field, error)).ok()
}

fn on_store_failure(reader: &mut Reader, field: &Field<'_>) -> OnOutage {
    if let Value::Map(_) = field.node.value {
        let Some(mut fields) = reader.fields(field, "a mapping") else {
            return OnOutage::default();
        };
        let keep = fields.take("shed").and_then(|field| reader.choice(&field, &Criticality::NAMED));
        fields.finish(reader);
        return OnOutage::Shed { keep: keep.unwrap_or(Criticality::High) };
    }
    reader.choice(field, &OnOutage::NAMED).unwrap_or_default()
}

fn exemption(reader: &mut Reader, field: &Field<'_>) -> Option<Exemption> {
    let mut fields = reader.fields(field, "a mapping such as `{ api_key: internal }`")?;
    let until = fields.take("until");
    let reason = fields.take("reason").and_then(|field| reader.text(&field, "a text"));
    let conditions = conditions::read_fields(reader, &fields);
    if conditions.all().is_empty() && reader.errors.is_empty() {
        let message = "this exempts everybody: write whom, such as `{ api_key: internal }`, or \
                       `enabled: false` for the rule";
        reader.refuse(field, message);
    }
    let mut exemption = Exemption::new(conditions);
    exemption.reason = reason.map(Into::into);
    if let Some(field) = until {
        let text = reader.text(&field, "a date such as `2027-01-01`")?;
        exemption.until = parse_instant(text);
        if exemption.until.is_none() {
            let quoted = shorten(text);
            let message = format!(
                "`{quoted}` is not a date: write one such as `2027-01-01` or `2027-01-01T12:00:00Z`"
            );
            reader.refuse(&field, message);
        }
    }
    Some(exemption)
}
