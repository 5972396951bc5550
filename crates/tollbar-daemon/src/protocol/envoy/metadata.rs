//! A call sent back as dynamic metadata, in the fields that the reference service gives it.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use super::window_unit::WindowUnit;

pub(super) fn from_request(request: &RateLimitRequest) -> Struct {
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
    Struct { fields }
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
