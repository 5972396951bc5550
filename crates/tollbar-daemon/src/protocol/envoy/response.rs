//! What Envoy is told: a status for each descriptor, and what they come to together.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::RETRY_AFTER;
use prost_types::Struct;
use tollbar::Timestamp;
use tollbar_http::{
    Denial, Format, HeaderStyle, LimitReport, RetryJitter, retry_after_s, window_s,
};
use tollbar_proto::envoy::config::core::v3::HeaderValue;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tollbar_proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use tollbar_rules::{CheckOutcome, Reason, Summary, Verdict};

use super::charge::{CounterCharge, CounterReading};
use super::domains::EnforcementMode;
use super::window_unit::WindowUnit;
use crate::decision_log::DecisionId;

/// The status of one descriptor, and what it does to the whole.
#[derive(Debug)]
pub(super) struct DescriptorResult {
    status: DescriptorStatus,
    mode: EnforcementMode,
    times: HeaderTimes,
    /// The body of a denial, which Envoy sends to the client.
    body: Option<Bytes>,
    /// The id by which a denial can be looked up.
    pub(super) decision_id: Option<DecisionId>,
    /// What the files say of the limit.
    metadata: Option<Arc<Struct>>,
}

/// The times that headers tell a client of its limit.
#[derive(Debug, Clone, Copy, Default)]
struct HeaderTimes {
    /// The window of the limit, if it can be told in seconds.
    window_s: Option<u64>,
    /// The reset, and never before the end of `retry_after`.
    reset_at: Option<Timestamp>,
    /// How long the client of a denied call is told to wait, jitter included. `None` where no wait is known to help.
    retry_after: Option<Duration>,
}

impl HeaderTimes {
    fn new(
        window_s: Option<u64>,
        reset_at: Timestamp,
        retry_after: Option<Duration>,
        now: Timestamp,
    ) -> Self {
        let earliest = retry_after.map_or(Timestamp::ZERO, |wait| now.after(wait));
        Self { window_s, reset_at: Some(reset_at.max(earliest)), retry_after }
    }
}

/// The body of a call that cannot be decided. Why is in the log: the client can do nothing about it.
const REJECTION: &str =
    r#"{"error":"invalid_request","message":"This request cannot be checked against its limits"}"#;

impl DescriptorResult {
    /// No limit is met.
    pub(super) fn free() -> Self {
        let status = DescriptorStatus { code: Code::Ok as i32, ..DescriptorStatus::default() };
        Self {
            status,
            mode: EnforcementMode::Enforce,
            times: HeaderTimes::default(),
            body: None,
            decision_id: None,
            metadata: None,
        }
    }

    /// It cannot be decided, so it is denied: Envoy lets pass what is answered with an error.
    pub(super) fn rejected() -> Self {
        let mut result = Self::free();
        result.status.code = Code::OverLimit as i32;
        Self { body: Some(Bytes::from_static(REJECTION.as_bytes())), ..result }
    }

    /// What is met is unlimited, which is told by the largest number there is.
    pub(super) fn unlimited() -> Self {
        let mut free = Self::free();
        free.status.limit_remaining = u32::MAX;
        free
    }

    /// By a limit of the reference's kind.
    pub(super) fn counted(
        charge: &CounterCharge<'_>,
        counted: CounterReading,
        jitter: RetryJitter,
        now: Timestamp,
    ) -> Self {
        let (limit, mode) = (&charge.limit, charge.mode);
        let is_denied = counted.is_over && mode != EnforcementMode::Shadow;
        let current = RateLimit {
            name: charge.name().to_owned(),
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit.to_proto() as i32,
        };
        let remaining = if counted.is_over { 0 } else { counted.remaining };
        let until_reset = counted.reset_at.since(now);
        let status = status(is_denied, current, remaining, until_reset);
        let window = limit.unit.window();
        // A limit of 0 is never passed. All windows begin at the epoch.
        let retry_after = (is_denied && limit.requests_per_unit > 0)
            .then(|| jitter.lengthen_wait(until_reset, Some(window)));
        let window_s = Some(window.as_secs());
        let times = HeaderTimes::new(window_s, counted.reset_at, retry_after, now);
        let metadata = charge.rule.and_then(|rule| rule.metadata.clone());
        Self { status, mode, times, body: None, decision_id: None, metadata }
    }

    /// By our own rules: the decision that binds is the limit.
    pub(super) fn ruled(verdict: &Verdict, jitter: RetryJitter, now: Timestamp) -> Self {
        let Summary {
            is_allowed,
            check,
            // The protocol has one word for all denials, and none for a wait or a degraded result.
            outcome: _,
            reason,
            denial: _,
            rule: _,
            limit,
            remaining,
            reset_at,
            retry_after: _,
            delay: _,
        } = verdict.summary();
        let retry_after = jitter.lengthen(verdict);
        let denial = (!is_allowed).then(|| Denial::new(verdict, retry_after));
        // The body that the tower layer has for the denial.
        let body = denial.map(|denial| denial.response(Format::Json).into_body());
        let binding = match check {
            CheckOutcome::Decided(verdict) | CheckOutcome::Degraded(verdict, _) => {
                verdict.binding()
            }
            CheckOutcome::NoRule | CheckOutcome::Rejected(_) => None,
        };
        // A limit without a reset is left out: Envoy would write headers from zeros.
        let (Some(binding), Some(limit), Some(remaining), Some(reset_at)) =
            (binding, limit, remaining, reset_at)
        else {
            let mut result = match reason {
                Reason::Unlimited(_) => Self::unlimited(),
                _ => Self::free(),
            };
            if !is_allowed {
                result.status.code = Code::OverLimit as i32;
            }
            return Self { body, ..result };
        };
        let policy = binding.limit().policy();
        let current = RateLimit {
            name: binding.rule().name.to_string(),
            requests_per_unit: narrow(limit),
            // 10 s is none of the units; the limit is told all the same.
            unit: WindowUnit::from_window(policy.limit_window())
                .map_or(0, |unit| unit.to_proto() as i32),
        };
        // Envoy writes headers from this: a burst above the limit is not the limit's.
        let status = status(!is_allowed, current, remaining.min(limit), reset_at.since(now));
        let times = HeaderTimes::new(window_s(policy), reset_at, retry_after, now);
        Self { status, times, body, ..Self::free() }
    }

    /// Adds what rules say of the same descriptor. The stricter of both is what it comes to.
    pub(super) fn join(&mut self, ruled: Self) {
        let remaining = |result: &Self| {
            let limit = result.status.current_limit.as_ref();
            limit.map(|_| result.status.limit_remaining)
        };
        let is_stricter = match (self.is_over(), ruled.is_over()) {
            (_, true) => true,
            (true, false) => false,
            (false, false) if self.mode == EnforcementMode::Quota => false,
            (false, false) => match (remaining(self), remaining(&ruled)) {
                (None, Some(_)) => true,
                (Some(own), Some(ruled)) => ruled < own,
                // Without a limit both are free, or one of them is told as unlimited.
                (None, None) => self.status.limit_remaining == 0,
                (Some(_), None) => false,
            },
        };
        if is_stricter {
            let decision_id = ruled.decision_id.or(self.decision_id);
            *self = Self { decision_id, metadata: self.metadata.take(), ..ruled };
        }
    }

    /// What the files say of the limit, while it is not exceeded.
    pub(super) fn metadata(&self) -> Option<&Struct> {
        self.metadata.as_deref().filter(|_| !self.is_over())
    }

    pub(super) fn is_over(&self) -> bool {
        self.status.code == Code::OverLimit as i32
    }

    /// The headers that Envoy is told to add.
    fn headers(&self, style: HeaderStyle, now: Timestamp) -> Vec<HeaderValue> {
        let Some(limit) = &self.status.current_limit else {
            return Vec::new();
        };
        let report = LimitReport {
            name: &limit.name,
            limit: limit.requests_per_unit.into(),
            window_s: self.times.window_s,
            remaining: self.status.limit_remaining.into(),
            until_reset: self.times.reset_at.map(|reset_at| reset_at.since(now)),
        };
        let mut headers = HeaderMap::new();
        style.write_limit(&report, now, &mut headers);
        if let Some(wait) = self.times.retry_after {
            headers.insert(RETRY_AFTER, retry_after_s(wait).into());
        }
        let texts = headers.iter().filter_map(|(name, value)| Some((name, value.to_str().ok()?)));
        texts.map(|(name, text)| header(name.as_str(), text)).collect()
    }
}

fn status(
    is_denied: bool,
    current: RateLimit,
    remaining: u64,
    until_reset: Duration,
) -> DescriptorStatus {
    let code = if is_denied { Code::OverLimit } else { Code::Ok };
    DescriptorStatus {
        code: code as i32,
        current_limit: Some(current),
        limit_remaining: narrow(remaining),
        duration_until_reset: Some(prost_types::Duration {
            // Up: a client that comes back then finds the window begun.
            seconds: i64::try_from(until_reset.as_micros().div_ceil(1_000_000)).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        quota: None,
    }
}

/// The protocol has 32 bits for a limit.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// What statuses come to: denied where a limit is exceeded, or all quotas are.
pub(super) fn is_denied(results: &[DescriptorResult]) -> bool {
    let is_exceeded =
        results.iter().any(|result| result.is_over() && result.mode != EnforcementMode::Quota);
    let mut quotas =
        results.iter().filter(|result| result.mode == EnforcementMode::Quota).peekable();
    is_exceeded || quotas.peek().is_some() && quotas.all(DescriptorResult::is_over)
}

/// All statuses, and what they come to.
pub(super) fn response(
    results: Vec<DescriptorResult>,
    style: HeaderStyle,
    now: Timestamp,
) -> RateLimitResponse {
    let code = if is_denied(&results) { Code::OverLimit } else { Code::Ok };

    let mut to_add = match nearest(&results) {
        Some(result) if style != HeaderStyle::none() => result.headers(style, now),
        _ => Vec::new(),
    };
    let raw_body =
        results.iter().find_map(|result| result.body.as_deref()).unwrap_or_default().to_vec();
    if !raw_body.is_empty() {
        to_add.push(header("content-type", "application/json"));
    }
    if code == Code::OverLimit {
        let decision_id = results.iter().find_map(|result| result.decision_id);
        to_add.extend(decision_id.map(|id| header(DecisionId::HEADER, &id.to_string())));
    }
    RateLimitResponse {
        overall_code: code as i32,
        statuses: results.into_iter().map(|result| result.status).collect(),
        response_headers_to_add: to_add,
        raw_body,
        ..RateLimitResponse::default()
    }
}

/// The denial of a call that cannot be decided, of so many descriptors.
pub(super) fn rejection(descriptor_count: usize) -> RateLimitResponse {
    let statuses = (0..descriptor_count).map(|_| DescriptorResult::rejected().status);
    RateLimitResponse {
        overall_code: Code::OverLimit as i32,
        statuses: statuses.collect(),
        response_headers_to_add: vec![header("content-type", "application/json")],
        raw_body: REJECTION.into(),
        ..RateLimitResponse::default()
    }
}

/// The limit that headers tell: the last that is exceeded, otherwise the first that has least left.
fn nearest(results: &[DescriptorResult]) -> Option<&DescriptorResult> {
    let exceeded = results
        .iter()
        .rev()
        .find(|result| result.is_over() && result.mode != EnforcementMode::Quota);
    let limited = || results.iter().filter(|result| result.status.current_limit.is_some());
    let least = || limited().min_by_key(|result| result.status.limit_remaining);
    exceeded.or_else(least).filter(|result| result.status.current_limit.is_some())
}

pub(super) fn header(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned(), ..HeaderValue::default() }
}
