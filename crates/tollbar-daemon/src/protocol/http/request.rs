//! What clients send: JSON, every field of which is known or refused. Texts are borrowed from the
//! body wherever nothing in them is escaped. What a request means is the engine's business.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use smallvec::SmallVec;
use tollbar_rules::{Criticality, InvalidRequest, Request};

use super::refusal::Refusal;
use crate::daemon::Daemon;

/// A request to be checked, peeked at, explained, reset or reserved. Which of the fields a path takes
/// is its [`RequestForm`]'s business.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "Question")]
pub(crate) struct CheckRequest<'a> {
    /// The request's method; `GET` where it is left out.
    #[serde(borrow)]
    #[schemars(with = "Option<String>", length(max = 64))]
    method: Option<JsonText<'a>>,
    /// The request's path, as the client sent it; `/` where it is left out.
    #[serde(borrow)]
    #[schemars(with = "Option<String>", length(max = 8_192))]
    path: Option<JsonText<'a>>,
    /// Who asks, and what else rules go by: `user`, `api_key`, `ip`, `tenant`, `tier`, any name.
    #[serde(borrow, default)]
    #[schemars(with = "Option<std::collections::BTreeMap<String, String>>", extend("maxProperties" = 64))]
    attributes: Option<AttributeList<'a>>,
    /// What the request costs before rules multiply it; 1 where it is left out, and 0 peeks.
    #[serde(default)]
    #[schemars(with = "Option<u64>")]
    cost: Option<JsonCost>,
    /// The name by which its sender knows the request: sent again, it does not pay again.
    #[serde(borrow)]
    #[schemars(with = "Option<String>")]
    request_id: Option<JsonText<'a>>,
    /// How bad it is to turn the request away.
    criticality: Option<CriticalityName>,
    /// Only this rule, whatever it matches.
    #[serde(borrow)]
    #[schemars(with = "Option<String>")]
    rule: Option<JsonText<'a>>,
    /// Whom `rule` counts, in place of a whole request: the values that it counts by, joined by ` | `. `attributes` may
    /// say more, such as `tier`.
    #[serde(borrow)]
    #[schemars(with = "Option<String>")]
    subject: Option<JsonText<'a>>,
    /// For how long the charge can be settled.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub(super) ttl_ms: Option<u64>,
}

/// The fields of a [`CheckRequest`] that a path takes.
#[derive(Debug)]
pub(crate) struct RequestForm {
    /// What is asked for, for people: `a peek`.
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [&'static str],
    pub(crate) required: &'static [&'static str],
    pub(crate) example: &'static str,
}

/// What is asked about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CheckTarget<'q> {
    /// A request, under all rules that match it.
    Request,
    /// A request, under one rule.
    Rule(&'q str),
    /// One value, under one rule.
    Subject { rule: &'q str, subject: &'q str },
}

/// Requests that are decided one by one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Batch")]
pub(super) struct BatchRequest<'a> {
    /// Each as a check takes it.
    #[serde(borrow)]
    #[schemars(length(max = 1_000))]
    #[schemars(with = "Vec<CheckRequest<'a>>")]
    pub(super) requests: Vec<Object<CheckRequest<'a>>>,
}

/// A reservation to be settled.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Commit")]
pub(super) struct CommitRequest<'a> {
    /// What `/v1/reserve` gave.
    #[serde(borrow)]
    pub(super) receipt: Cow<'a, str>,
    /// What the request came to, before rules multiply it; as reserved where it is left out.
    #[serde(default)]
    #[schemars(with = "Option<u64>")]
    pub(super) cost: Option<JsonCost>,
}

/// A reservation to be given back.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Cancel")]
pub(super) struct CancelRequest<'a> {
    /// What `/v1/reserve` gave.
    #[serde(borrow)]
    pub(super) receipt: Cow<'a, str>,
}

/// Permits to be given back, or to be kept for longer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Holder")]
pub(super) struct LeaseRequest<'a> {
    /// What a check of a rule with leases gave.
    #[serde(borrow)]
    pub(super) lease: Cow<'a, str>,
}

/// How bad it is to turn a request away.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Important")]
enum CriticalityName {
    Low,
    Normal,
    High,
    Critical,
}

/// A string of the body, borrowed where nothing in it is escaped: serde's own `Cow` always copies.
#[derive(Debug)]
struct JsonText<'a>(Cow<'a, str>);

/// A cost: a whole number, which may be written with a fraction of zero, since JSON knows no difference between 5 and 5.0.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonCost(pub(super) u64);

/// Names and values as they were sent. Not a map, which would keep one of two values for a name and
/// not tell: which of them counts would be a guess, and is refused.
#[derive(Debug, Default)]
struct AttributeList<'a>(SmallVec<[(JsonText<'a>, JsonText<'a>); 4]>);

/// The attributes as an engine takes them.
pub(super) type Pairs<'q> = SmallVec<[(&'q str, &'q str); 8]>;

impl CheckRequest<'_> {
    /// Refuses what the form does not take, and what makes no sense together.
    pub(super) fn target(&self, form: &RequestForm) -> Result<CheckTarget<'_>, Refusal> {
        let present: [(&str, bool); 9] = [
            ("method", self.method.is_some()),
            ("path", self.path.is_some()),
            ("attributes", self.attributes.is_some()),
            ("cost", self.cost.is_some()),
            ("requestId", self.request_id.is_some()),
            ("criticality", self.criticality.is_some()),
            ("rule", self.rule.is_some()),
            ("subject", self.subject.is_some()),
            ("ttlMs", self.ttl_ms.is_some()),
        ];
        for (field, is_present) in present {
            if is_present && !form.fields.contains(&field) {
                let message = format!("{} takes no `{field}`: leave it out", form.name);
                return Err(Refusal::bad_request(message));
            }
            if !is_present && form.required.contains(&field) {
                return Err(Refusal::bad_request(format!("{} needs `{field}`", form.name)));
            }
        }
        match (&self.rule, &self.subject) {
            (None, None) => Ok(CheckTarget::Request),
            (Some(rule), None) => Ok(CheckTarget::Rule(&rule.0)),
            (None, Some(_)) => Err(Refusal::bad_request("a `subject` needs its `rule`: send both")),
            (Some(rule), Some(subject)) => {
                let beside = |(field, is_present): &&(&str, bool)| {
                    *is_present && matches!(*field, "method" | "path" | "criticality")
                };
                match present.iter().find(beside) {
                    None => Ok(CheckTarget::Subject { rule: &rule.0, subject: &subject.0 }),
                    Some((field, _)) => Err(Refusal::bad_request(format!(
                        "a `subject` stands in place of method and path: leave `{field}` out, or `subject`"
                    ))),
                }
            }
        }
    }

    /// Returns true if the request says what this attribute is.
    pub(super) fn has(&self, attribute: &str) -> bool {
        match attribute {
            "method" => self.method.is_some(),
            "path" => self.path.is_some(),
            name => self.pairs().iter().any(|(known, _)| *known == name),
        }
    }

    pub(super) fn cost_or_one(&self) -> u64 {
        self.cost.map_or(1, |cost| cost.0)
    }

    pub(super) fn pairs(&self) -> Pairs<'_> {
        let input = self.attributes.as_ref().map_or(&[][..], |attributes| attributes.0.as_slice());
        input.iter().map(|(name, value)| (&*name.0, &*value.0)).collect()
    }

    pub(super) fn request<'q>(
        &'q self,
        pairs: &'q [(&'q str, &'q str)],
        cost: u64,
        daemon: &Daemon,
    ) -> Result<Request<'q>, InvalidRequest> {
        let method = self.method.as_ref().map_or("GET", |method| &method.0);
        let path = self.path.as_ref().map_or("/", |path| &path.0);
        let mut request = Request::new(method, path)?;
        request.set_attributes(pairs)?;
        request.set_cost(cost);
        if let Some(id) = self.request_id() {
            request = request.with_request_id(id);
        }
        if let Some(criticality) = self.criticality {
            daemon.set_criticality(&mut request, criticality.into());
        }
        Ok(request)
    }

    /// Says nothing of how critical it is.
    pub(super) fn without_criticality(self) -> Self {
        Self { criticality: None, ..self }
    }

    pub(super) fn request_id(&self) -> Option<&str> {
        self.request_id.as_ref().map(|id| &*id.0)
    }
}

impl From<CriticalityName> for Criticality {
    fn from(name: CriticalityName) -> Self {
        match name {
            CriticalityName::Low => Self::Low,
            CriticalityName::Normal => Self::Normal,
            CriticalityName::High => Self::High,
            CriticalityName::Critical => Self::Critical,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonText<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = JsonText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<JsonText<'de>, E> {
                Ok(JsonText(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<JsonText<'de>, E> {
                Ok(JsonText(Cow::Owned(text.to_owned())))
            }
        }

        from.deserialize_str(TextVisitor)
    }
}

/// The largest `f64` below which every whole number has its own.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

impl<'de> Deserialize<'de> for JsonCost {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct CostVisitor;

        impl Visitor<'_> for CostVisitor {
            type Value = JsonCost;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of at least 0")
            }

            fn visit_u64<E>(self, cost: u64) -> Result<JsonCost, E> {
                Ok(JsonCost(cost))
            }

            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "within the range in which an f64 is exact, and not negative"
            )]
            fn visit_f64<E: serde::de::Error>(self, cost: f64) -> Result<JsonCost, E> {
                if !(0.0..=EXACT_MAX).contains(&cost) {
                    return Err(E::invalid_value(serde::de::Unexpected::Float(cost), &self));
                }
                if cost.fract() != 0.0 {
                    let (below, above) = (cost.floor(), cost.ceil());
                    return Err(E::custom(format_args!(
                        "a cost of {cost} is not a whole number: write {below} or {above}"
                    )));
                }
                Ok(JsonCost(cost as u64))
            }
        }

        from.deserialize_u64(CostVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for AttributeList<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AttributesVisitor<'a>(PhantomData<&'a str>);

        impl<'de: 'a, 'a> Visitor<'de> for AttributesVisitor<'a> {
            type Value = AttributeList<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts, such as {\"user\":\"42\"}")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut pairs = SmallVec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(AttributeList(pairs))
            }
        }

        from.deserialize_map(AttributesVisitor(PhantomData))
    }
}

/// Something that is sent as an object, and only so: serde would take its values in a list as well.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Object<T>, M::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        from.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Reads a body; what is wrong with it is told with line and column.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8], example: &str) -> Result<T, Refusal> {
    let read: Result<Object<T>, _> = serde_json::from_slice(body);
    read.map(|object| object.0).map_err(|error| {
        Refusal::bad_request(format!(
            "the body cannot be used: {error}; send JSON such as {example}"
        ))
    })
}
