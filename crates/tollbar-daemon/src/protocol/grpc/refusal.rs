//! Why there is no answer, as statuses of gRPC. A denial is an answer, and not here.

use tollbar_rules::{DenialCode, InvalidRequest, TokenError, UsageError, Verdict};
use tonic::Status;

pub(super) fn request(error: &InvalidRequest) -> Status {
    Status::invalid_argument(error.to_string())
}

pub(super) fn usage(error: &UsageError) -> Status {
    let message = error.to_string();
    match error {
        UsageError::UnknownRule { .. } => Status::not_found(message),
        UsageError::Store(_) => Status::unavailable(message),
        _ => Status::invalid_argument(message),
    }
}

pub(super) fn receipt(error: &TokenError) -> Status {
    let message = error.to_string();
    match error {
        TokenError::NotOpen => Status::failed_precondition(message),
        TokenError::Store(_) => Status::unavailable(message),
        _ => Status::invalid_argument(message),
    }
}

/// A verdict that says nothing about limits, but that the caller has to send another request.
pub(super) fn verdict(verdict: &Verdict) -> Result<(), Status> {
    let message = || verdict.denial_message().unwrap_or_default();
    match verdict.denial_code() {
        Some(DenialCode::RequestIdReused) => Err(Status::already_exists(message())),
        Some(DenialCode::ReceiptTooLong) => Err(Status::invalid_argument(message())),
        _ => Ok(()),
    }
}
