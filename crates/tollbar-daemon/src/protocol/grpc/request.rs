//! What is asked over gRPC, as the rules see it: in full, or by a rule and a subject alone. What is a
//! guess is refused.

use std::collections::BTreeMap;

use tollbar_proto::v1;
use tollbar_rules::{Criticality, Request};
use tonic::Status;

use super::refusal;

/// Where a request says neither.
const ANY_METHOD: &str = "GET";
const ANY_PATH: &str = "/";

/// How a request asks.
pub(super) enum Form<'a> {
    /// By what it is: all rules look at it, or one.
    Full { rule: Option<&'a str>, attributes: Vec<(&'a str, &'a str)> },
    /// By whom a rule counts.
    Small { rule: &'a str, subject: &'a str },
}

impl<'a> Form<'a> {
    pub(super) fn of(asked: &'a v1::CheckRequest) -> Result<Self, Status> {
        let rule = filled(&asked.rule);
        let Some(subject) = filled(&asked.subject) else {
            return Ok(Self::Full { rule, attributes: pairs(&asked.attributes) });
        };
        let is_full = !(asked.method.is_empty()
            && asked.path.is_empty()
            && asked.attributes.is_empty()
            && asked.criticality == 0);
        match rule {
            Some(rule) if !is_full => Ok(Self::Small { rule, subject }),
            Some(_) => Err(Status::invalid_argument(
                "`subject` stands in place of `method`, `path`, `attributes` and `criticality`: send it \
                 or them",
            )),
            None => Err(Status::invalid_argument(
                "`subject` is whom a rule counts: send `rule` with it, or `attributes` instead",
            )),
        }
    }
}

/// The request in full.
pub(super) fn request<'a>(
    asked: &'a v1::CheckRequest,
    attributes: &'a [(&'a str, &'a str)],
    cost: u64,
) -> Result<Request<'a>, Status> {
    let request = plain(&asked.method, &asked.path, attributes)?
        .with_cost(cost)
        .with_criticality(criticality(asked.criticality)?);
    Ok(match filled(&asked.request_id) {
        Some(id) => request.with_request_id(id),
        None => request,
    })
}

/// The request, as far as most messages describe one.
pub(super) fn plain<'a>(
    method: &'a str,
    path: &'a str,
    attributes: &'a [(&'a str, &'a str)],
) -> Result<Request<'a>, Status> {
    let (method, path) = (filled(method).unwrap_or(ANY_METHOD), filled(path).unwrap_or(ANY_PATH));
    Request::new(method, path)
        .and_then(|request| request.with_attributes(attributes))
        .map_err(|error| refusal::request(&error))
}

pub(super) fn pairs(attributes: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    attributes.iter().map(|(name, value)| (&**name, &**value)).collect()
}

/// In proto3, a text that is empty was not sent.
pub(super) fn filled(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn criticality(number: i32) -> Result<Criticality, Status> {
    match v1::Criticality::try_from(number) {
        Ok(v1::Criticality::Unspecified | v1::Criticality::Normal) => Ok(Criticality::Normal),
        Ok(v1::Criticality::Low) => Ok(Criticality::Low),
        Ok(v1::Criticality::High) => Ok(Criticality::High),
        Ok(v1::Criticality::Critical) => Ok(Criticality::Critical),
        Err(_) => Err(Status::invalid_argument(format!(
            "there is no criticality {number}: send 1 (low), 2 (normal), 3 (high) or 4 (critical)"
        ))),
    }
}
