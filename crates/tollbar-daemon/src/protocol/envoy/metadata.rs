//! Dynamic metadata, in the fields that the reference service gives it: the call, and what the files say of the limits
//! that were not exceeded.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_rules::yaml::{Field, Node, Reader, Value as YamlValue};

use super::window_unit::WindowUnit;

/// The metadata of a call. `passed` is what the files say of its limits that were not exceeded.
pub(super) fn from_request<'a>(
    request: &RateLimitRequest,
    passed: impl Iterator<Item = &'a Struct>,
) -> Struct {
    let descriptors = request
        .descriptors
        .iter()
        .map(|descriptor| structure(descriptor_fields(descriptor)))
        .collect();
    let mut fields = BTreeMap::from([
        ("domain".to_owned(), text(request.domain.clone())),
        ("descriptors".to_owned(), list(descriptors)),
    ]);
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), number(request.hits_addend.into()));
    }
    let mut of_limits = BTreeMap::new();
    passed.for_each(|metadata| merge(&mut of_limits, metadata));
    if !of_limits.is_empty() {
        fields.insert("metadata".to_owned(), structure(of_limits));
    }
    Struct { fields }
}

/// Adds fields that are not there yet. Structures are merged; of other values of one name the first stays.
fn merge(into: &mut BTreeMap<String, Value>, more: &Struct) {
    for (name, value) in &more.fields {
        match into.entry(name.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(value.clone());
            }
            Entry::Occupied(mut known) => {
                if let (Some(Kind::StructValue(known)), Some(Kind::StructValue(more))) =
                    (&mut known.get_mut().kind, &value.kind)
                {
                    merge(&mut known.fields, more);
                }
            }
        }
    }
}

/// The metadata of a descriptor, as a file says it. What it means is up to its reader.
pub(super) fn from_yaml(reader: &mut Reader, field: &Field<'_>) -> Option<Struct> {
    match (&field.node.value, value_of(field.node).kind) {
        (YamlValue::Null, _) => None,
        (_, Some(Kind::StructValue(fields))) => Some(fields),
        (value, _) => {
            let kind = value.describe();
            reader.refuse(field, format!("this is {kind}: write a mapping, such as `name: TEXT`"));
            None
        }
    }
}

/// A scalar without quotes is a number or a switch if it looks like one, and otherwise a text.
fn value_of(node: &Node) -> Value {
    let kind = match &node.value {
        YamlValue::Null => Kind::NullValue(0),
        YamlValue::Scalar { text, is_quoted } => match (&**text, text.parse::<f64>()) {
            (text, _) if *is_quoted => Kind::StringValue(text.to_owned()),
            ("true", _) => Kind::BoolValue(true),
            ("false", _) => Kind::BoolValue(false),
            (_, Ok(number)) if number.is_finite() => Kind::NumberValue(number),
            (text, _) => Kind::StringValue(text.to_owned()),
        },
        YamlValue::List(items) => return list(items.iter().map(value_of).collect()),
        YamlValue::Map(fields) => {
            let fields = fields.iter().map(|(key, node)| (key.text.to_string(), value_of(node)));
            return structure(fields.collect());
        }
    };
    Value { kind: Some(kind) }
}

fn descriptor_fields(descriptor: &RateLimitDescriptor) -> BTreeMap<String, Value> {
    let entries = &descriptor.entries;
    let entries =
        entries.iter().map(|entry| text(format!("{}={}", entry.key, entry.value))).collect();
    let mut fields = BTreeMap::from([("entries".to_owned(), list(entries))]);
    if let Some(limit) = &descriptor.limit {
        let unit = WindowUnit::from_proto(limit.unit)
            .map_or("UNKNOWN", |unit| unit.to_proto().as_str_name());
        let limit = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        fields.insert("limit".to_owned(), text(limit));
    }
    if let Some(hits) = &descriptor.hits_addend {
        // JSON's numbers: those beyond 2^53 are near what was sent.
        fields.insert("hitsAddend".to_owned(), number(*hits as f64));
    }
    fields
}

fn text(text: String) -> Value {
    Value { kind: Some(Kind::StringValue(text)) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

fn list(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}

fn structure(fields: BTreeMap<String, Value>) -> Value {
    Value { kind: Some(Kind::StructValue(Struct { fields })) }
}
