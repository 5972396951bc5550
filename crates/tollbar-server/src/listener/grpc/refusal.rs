//! Why there is no answer, as statuses of gRPC. A denial is an answer, and not here.

use tollbar_rules::{Reason, ReceiptError, RequestError, UsageError, Verdict};
use tonic::Status;

pub(super) fn request(error: &RequestError) -> Status {
    Status::invalid_argument(error.to_string())
}

pub(super) fn usage(error: &UsageError) -> Status {
    let told = error.to_string();
    match error {
        UsageError::UnknownRule { .. } => Status::not_found(told),
        UsageError::Store(_) => Status::unavailable(told),
        _ => Status::invalid_argument(told),
    }
}

pub(super) fn receipt(error: &ReceiptError) -> Status {
    let told = error.to_string();
    match error {
        ReceiptError::NotOpen => Status::failed_precondition(told),
        ReceiptError::Store(_) => Status::unavailable(told),
        _ => Status::invalid_argument(told),
    }
}

/// A verdict that says nothing about limits, but that the request was a mistake.
pub(super) fn verdict(verdict: &Verdict) -> Result<(), Status> {
    match verdict.reason() {
        Reason::RequestIdReused => Err(Status::already_exists(
            "`request_id` came with another request before: send each request under an id of its own",
        )),
        Reason::ReceiptTooLong => Err(Status::invalid_argument(
            "what the rules count by is too long to be written down in a lease or a receipt: send \
             shorter attributes",
        )),
        _ => Ok(()),
    }
}
