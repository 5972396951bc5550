//! What a request holds after its check: a charge to be settled, permits to be returned.

use std::time::Duration;

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use tollbar_http::Format;
use tollbar_rules::{LimitSettlement, RuleSettlement};

use super::refusal::Refusal;
use super::request::{CancelRequest, CheckRequest, CommitRequest, LeaseRequest, parse};
use super::response::{ApiResponse, JSON, json};
use super::route::{CANCEL_EXAMPLE, COMMIT_EXAMPLE, LEASE_EXAMPLE, RESERVE};
use super::{Api, check_response};
use crate::rfc3339::Rfc3339;

/// How long a reservation lasts that does not say.
pub(crate) const RESERVATION_TTL_DEFAULT: Duration = Duration::from_mins(1);

/// A day: until then the store remembers what was reserved.
const TTL_MS_MAX: u64 = 86_400_000;

/// Returns how long a reservation lasts, unless the store cannot remember it for so many milliseconds.
pub(crate) fn reservation_ttl(ttl_ms: u64) -> Option<Duration> {
    (1..=TTL_MS_MAX).contains(&ttl_ms).then(|| Duration::from_millis(ttl_ms))
}

/// The JSON body of `POST /v1/commit` and `/v1/cancel`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SettleResponse {
    /// Each limit that had been paid.
    charges: Vec<SettledCharge>,
    /// How many permits came back.
    permits_returned: u64,
}

/// What became of one charge.
#[derive(Debug, Serialize, JsonSchema)]
struct SettledCharge {
    rule: String,
    /// What the request had paid.
    reserved: u64,
    /// What it came to.
    spent: u64,
    /// What was given back.
    refunded: u64,
    /// What it came to beyond what the limit had left.
    overdrawn: u64,
}

/// The JSON body of `POST /v1/release`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReleaseResponse {
    /// False where the lease had ended before.
    released: bool,
}

/// The JSON body of `POST /v1/renew`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RenewResponse {
    /// False where the lease had ended before: the permits are somebody else's now.
    renewed: bool,
    /// When they come back by themselves, unless they are renewed again.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    ends_at: Option<Rfc3339>,
}

impl Api {
    pub(super) async fn reserve(
        &self,
        body: &[u8],
        format: impl Fn() -> Format,
    ) -> Result<ApiResponse, Refusal> {
        let check: CheckRequest<'_> = parse(body, RESERVE.example)?;
        check.target(&RESERVE)?;
        let ttl = match check.ttl_ms {
            None => RESERVATION_TTL_DEFAULT,
            Some(ttl_ms) => reservation_ttl(ttl_ms).ok_or_else(|| {
                let message =
                    format!("`ttlMs` is {ttl_ms}: send 1 to {TTL_MS_MAX}, which is a day");
                Refusal::bad_request(message)
            })?,
        };
        let pairs = check.pairs();
        let request = check.request(&pairs, check.cost_or_one(), &self.daemon)?;
        let answer = self.daemon.check(&request, Some(ttl)).await;
        let (client_headers, now) = (self.daemon.client_headers, self.daemon.now());
        Ok(check_response::response(answer.as_ref(), client_headers, now, format))
    }

    pub(super) async fn commit(&self, body: &[u8]) -> Result<ApiResponse, Refusal> {
        let CommitRequest { receipt, cost } = parse(body, COMMIT_EXAMPLE)?;
        Ok(settlement_response(self.daemon.settle(&receipt, cost.map(|cost| cost.0)).await?))
    }

    pub(super) async fn cancel(&self, body: &[u8]) -> Result<ApiResponse, Refusal> {
        let CancelRequest { receipt } = parse(body, CANCEL_EXAMPLE)?;
        Ok(settlement_response(self.daemon.settle(&receipt, Some(0)).await?))
    }

    pub(super) async fn release(&self, body: &[u8]) -> Result<ApiResponse, Refusal> {
        let LeaseRequest { lease } = parse(body, LEASE_EXAMPLE)?;
        let released = self.daemon.release(&lease).await?;
        Ok(json(StatusCode::OK, JSON, &ReleaseResponse { released }))
    }

    pub(super) async fn renew(&self, body: &[u8]) -> Result<ApiResponse, Refusal> {
        let LeaseRequest { lease } = parse(body, LEASE_EXAMPLE)?;
        let ends_at = self.daemon.renew(&lease).await?.map(Rfc3339);
        Ok(json(StatusCode::OK, JSON, &RenewResponse { renewed: ends_at.is_some(), ends_at }))
    }
}

fn settlement_response(settlement: RuleSettlement) -> ApiResponse {
    let charge = |limit: LimitSettlement| SettledCharge {
        rule: limit.rule,
        reserved: limit.reserved,
        spent: limit.spent,
        refunded: limit.refunded,
        overdrawn: limit.overdrawn,
    };
    let RuleSettlement { limits, permits_returned, .. } = settlement;
    let charges = limits.into_iter().map(charge).collect();
    json(StatusCode::OK, JSON, &SettleResponse { charges, permits_returned })
}
