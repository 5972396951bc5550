//! Our own protocol over gRPC, asked beside a tonic service of the same messages that decides nothing.

use prost::Message;
use tollbar_proto::v1::limiter_server::Limiter;
use tollbar_proto::v1::{Capacity, CheckRequest, CheckResponse, Decision, Outcome, Reason};
use tonic::{Request, Response, Status};

use super::h2::KEY;

pub(super) const OURS: &str = "tollbar, gRPC";
pub(super) const EMPTY: &str = "tonic, gRPC that decides nothing";

pub(super) const PATH: &str = "/tollbar.v1.Limiter/Check";

/// What is asked, encoded.
pub(super) fn request() -> Vec<u8> {
    let request = CheckRequest {
        method: "GET".to_owned(),
        path: "/".to_owned(),
        attributes: [("user".to_owned(), KEY.to_owned())].into(),
        ..CheckRequest::default()
    };
    request.encode_to_vec()
}

/// Answers what a limiter would, always.
pub(super) struct FixedLimiter;

#[tonic::async_trait]
impl Limiter for FixedLimiter {
    async fn check(&self, _: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let reset_at = Some(prost_types::Timestamp { seconds: 1_794_796_900, nanos: 1_000 });
        let decision = Decision {
            rule: "per_user".to_owned(),
            limit_text: "1000000/s".to_owned(),
            capacity: Capacity::Live.into(),
            allowed: true,
            cost: 1,
            limit: 1_000_000,
            remaining: Some(999_999),
            reset_at,
            ..Decision::default()
        };
        Ok(Response::new(CheckResponse {
            allowed: true,
            outcome: Outcome::Allow.into(),
            reason: Reason::Limits.into(),
            rule: "per_user".to_owned(),
            limit: Some(1_000_000),
            remaining: Some(999_999),
            reset_at,
            decision_id: "c101320b17b6b40ee17f046bf977ab85".to_owned(),
            decisions: vec![decision],
            ..CheckResponse::default()
        }))
    }
}
