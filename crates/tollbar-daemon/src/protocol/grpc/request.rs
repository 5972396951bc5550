//! A gRPC message as a request to the rules: in full, or by a rule and a subject alone. What is a
//! guess is refused.

use std::collections::BTreeMap;

use tollbar_proto::v1;
use tollbar_rules::{AsyncRuleHandle, Criticality, Request};
use tonic::Status;

use super::response::usage_error_status;
use crate::daemon::Daemon;

/// Where a request says neither.
const ANY_METHOD: &str = "GET";
const ANY_PATH: &str = "/";

/// How a request asks.
pub(super) enum CheckForm<'a> {
    /// By what it is: all rules look at it, or one.
    Full { rule: Option<&'a str>, attributes: Vec<(&'a str, &'a str)> },
    /// By whom a rule counts. The attributes say more, such as the tier.
    Subject { rule: &'a str, subject: &'a str, attributes: Vec<(&'a str, &'a str)> },
}

impl<'a> CheckForm<'a> {
    pub(super) fn parse(message: &'a v1::CheckRequest) -> Result<Self, Status> {
        let (rule, attributes) = (non_empty(&message.rule), pairs(&message.attributes));
        let Some(subject) = non_empty(&message.subject) else {
            return Ok(Self::Full { rule, attributes });
        };
        let is_full =
            !(message.method.is_empty() && message.path.is_empty() && message.criticality == 0);
        match rule {
            Some(rule) if !is_full => Ok(Self::Subject { rule, subject, attributes }),
            Some(_) => Err(Status::invalid_argument(
                "`subject` stands in place of `method`, `path` and `criticality`: send it or them",
            )),
            None => Err(Status::invalid_argument(
                "`subject` is whom a rule counts: send `rule` with it, or `attributes` instead",
            )),
        }
    }
}

/// The request in full.
pub(super) fn request<'a>(
    message: &'a v1::CheckRequest,
    attributes: &'a [(&'a str, &'a str)],
    cost: u64,
    daemon: &Daemon,
) -> Result<Request<'a>, Status> {
    let mut request = basic_request(&message.method, &message.path, attributes)?.with_cost(cost);
    if let Some(criticality) = criticality(message.criticality)? {
        daemon.set_criticality(&mut request, criticality);
    }
    Ok(match non_empty(&message.request_id) {
        Some(id) => request.with_request_id(id),
        None => request,
    })
}

/// Returns an error if these are several counters of a rule, and the message does not say which one is meant.
pub(super) fn check_complete(
    rule: &AsyncRuleHandle<'_>,
    (method, path): (&str, &str),
    attributes: &[(&str, &str)],
) -> Result<(), Status> {
    let is_given = |name: &str| match name {
        "method" => !method.is_empty(),
        "path" => !path.is_empty(),
        name => attributes.iter().any(|(known, _)| *known == name),
    };
    rule.check_complete(is_given).map_err(|error| usage_error_status(&error))
}

/// The request, as far as most messages describe one.
pub(super) fn basic_request<'a>(
    method: &'a str,
    path: &'a str,
    attributes: &'a [(&'a str, &'a str)],
) -> Result<Request<'a>, Status> {
    let (method, path) =
        (non_empty(method).unwrap_or(ANY_METHOD), non_empty(path).unwrap_or(ANY_PATH));
    Request::new(method, path)
        .and_then(|request| request.with_attributes(attributes))
        .map_err(|error| Status::invalid_argument(error.to_string()))
}

pub(super) fn pairs(attributes: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    attributes.iter().map(|(name, value)| (&**name, &**value)).collect()
}

/// In proto3, a text that is empty was not sent.
pub(super) fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// How critical the message calls its request, if it says so.
fn criticality(number: i32) -> Result<Option<Criticality>, Status> {
    Ok(match v1::Criticality::try_from(number) {
        Ok(v1::Criticality::Unspecified) => None,
        Ok(v1::Criticality::Low) => Some(Criticality::Low),
        Ok(v1::Criticality::Normal) => Some(Criticality::Normal),
        Ok(v1::Criticality::High) => Some(Criticality::High),
        Ok(v1::Criticality::Critical) => Some(Criticality::Critical),
        Err(_) => {
            return Err(Status::invalid_argument(format!(
                "there is no criticality {number}: send 1 (low), 2 (normal), 3 (high) or 4 (critical)"
            )));
        }
    })
}
