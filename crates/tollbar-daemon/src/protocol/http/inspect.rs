//! What is there to be read: what is left to somebody, why somebody was denied, what every rule makes
//! of a request. And the one thing that puts counters back.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tollbar::{Degraded, Outcome, Timestamp};
use tollbar_rules::{
    Enforcement, Reason, Request, Rule, RuleDecision, Usage, UsageError, Verdict, readable_instant,
    readable_wait,
};

use super::Api;
use super::check_response::{CheckResponse, ReasonName};
use super::explain_response::ExplainResponse;
use super::refusal::Refusal;
use super::request::{CheckRequest, CheckTarget, Pairs, parse};
use super::response::{ApiResponse, JSON, body, json};
use super::route::{CHECK, EXPLAIN, RESET};
use crate::daemon::{AnswerRef, Daemon};
use crate::decision_log::DecisionId;
use crate::rfc3339::Rfc3339;
use crate::store::ahead_of_clock::AheadOfClock;

/// How the daemon and its parts are doing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Health")]
pub struct HealthResponse {
    /// `ok`, or `degraded` while any part is: requests are answered all the same.
    #[schemars(with = "String", extend("enum" = ["ok", "degraded"]))]
    status: &'static str,
    /// `ok` or `degraded` for each part by its name, such as `store`, `database`, `tasks`, `snapshot` and `usage`.
    /// A part that this daemon does not have is absent. The log says why a part is degraded.
    parts: BTreeMap<&'static str, &'static str>,
    /// Denials by counters that owe more than their policy can, where there were any: the daemon is well,
    /// and their clients wait for the clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead_of_clock: Option<AheadOfClock>,
}

impl HealthResponse {
    pub fn new(daemon: &Daemon) -> Self {
        let report = daemon.health.report();
        let ahead_of_clock = AheadOfClock::from_engine(&daemon.engine);
        Self { status: report.status(), parts: report.words(), ahead_of_clock }
    }
}

/// Counters that were made fresh.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResetResponse<'a> {
    rule: &'a str,
    /// Always true.
    reset: bool,
}

/// What is left to somebody.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UsageResponse {
    /// Why there are limits, or none.
    reason: ReasonName,
    /// Whether the store could not answer.
    degraded: bool,
    /// Every limit that may deny. If the query names no tier, these are the limits of the latest request, and those of
    /// other tiers that are in use.
    usage: Vec<LimitUsage>,
    /// Rules that count by more than the query has.
    incomplete: Vec<IncompleteUsage>,
}

/// What is left of one limit.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Usage")]
struct LimitUsage {
    /// The rule's identity, which outlives its name.
    rule_id: String,
    /// The rule's name.
    rule: String,
    /// The tier whose limit it is, if the rule has tiers.
    tier: Option<String>,
    /// The limit as it was written.
    limit_text: String,
    /// Tokens a window.
    limit: u64,
    /// The largest cost that would pass now; null where no counter was read.
    remaining: Option<u64>,
    /// The window's end; for a bucket, when it is full again. Null where no counter was read.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    reset_at: Option<Rfc3339>,
    /// The time that it takes to earn `limit` tokens, rounded up: the window, but 100 for `0.01/s`. 0 for permits, which
    /// have no window.
    window_seconds: u64,
    /// Which alternative of its rule the limit belongs to, counted from 1. Absent for a limit that holds by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    alternative: Option<u32>,
}

/// A rule under which a subject has several counters. The question does not say which one it is about.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IncompleteUsage {
    /// The rule's identity, which outlives its name.
    rule_id: String,
    /// The rule's name.
    rule: String,
    /// The attributes to be sent as well.
    missing: Vec<String>,
    /// What to send, in a sentence.
    message: String,
}

impl IncompleteUsage {
    /// Returns what a question about `rule` lacks; `None` if that is not why it has no answer.
    pub fn new(rule: &Rule, error: &UsageError) -> Option<Self> {
        let UsageError::Incomplete { missing, .. } = error else {
            return None;
        };
        let (rule_id, rule) = (rule.identity().to_string(), rule.name.to_string());
        Some(Self { rule_id, rule, missing: missing.clone(), message: error.to_string() })
    }

    /// What to send, in a sentence.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl LimitUsage {
    fn from_usage(rule: &Rule, usage: Usage) -> Self {
        Self {
            rule_id: rule.identity().to_string(),
            rule: rule.name.to_string(),
            tier: usage.tier,
            limit_text: usage.text,
            limit: usage.limit,
            remaining: Some(usage.remaining),
            reset_at: Some(Rfc3339(usage.reset_at)),
            window_seconds: usage.window.as_millis().div_ceil(1_000) as u64,
            alternative: usage.alternative,
        }
    }

    fn from_decision(decision: &RuleDecision<'_>) -> Self {
        let rule = decision.rule();
        Self {
            rule_id: rule.identity().to_string(),
            rule: rule.name.to_string(),
            tier: decision.tier().map(str::to_owned),
            limit_text: decision.limit().text().to_owned(),
            limit: decision.decision().limit(),
            remaining: decision.remaining(),
            reset_at: decision.reset_at().map(Rfc3339),
            window_seconds: decision.limit().policy().limit_window().as_millis().div_ceil(1_000)
                as u64,
            alternative: decision.alternative(),
        }
    }
}

/// A request that was denied.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DecisionResponse<'v> {
    /// When it was denied.
    #[schemars(with = "String", extend("format" = "date-time"))]
    decided_at: Rfc3339,
    /// Why, in a sentence.
    why: String,
    /// What was asked, as it can be sent to `/v1/check` again; null where it was too long to be kept.
    request: Option<Value>,
    /// How critical the request was: `low`, `normal`, `high` or `critical`.
    criticality: &'static str,
    /// The rule that says so of such requests; null where none does, and where their sender has said something else.
    criticality_rule: Option<&'v str>,
    /// What was answered.
    verdict: CheckResponse<'v>,
    /// What every rule makes of the same request now; null where that cannot be told.
    now: Option<ExplainResponse<'v>>,
}

impl Api {
    pub async fn explain(&self, body: &[u8]) -> Result<ApiResponse, Refusal> {
        let check: CheckRequest<'_> = parse(body, EXPLAIN.example)?;
        check.target(&EXPLAIN)?;
        let pairs = check.pairs();
        let request = check.request(&pairs, check.cost_or_one(), &self.daemon)?;
        let explanation = self.daemon.engine.explain(&request).await;
        Ok(json(StatusCode::OK, JSON, &ExplainResponse::from_explanation(&explanation)))
    }

    pub(super) async fn reset(&self, body: &[u8]) -> Result<ApiResponse, Refusal> {
        let check: CheckRequest<'_> = parse(body, RESET.example)?;
        let (engine, pairs) = (&self.daemon.engine, check.pairs());
        let rule = match check.target(&RESET)? {
            CheckTarget::Subject { rule, subject } => {
                let handle = engine.rule(rule)?;
                handle.reset(&handle.subject(subject, &pairs)?.request()?).await?;
                rule
            }
            CheckTarget::Rule(rule) => {
                let handle = engine.rule(rule)?;
                handle.check_complete(|name| check.has(name))?;
                handle.reset(&check.request(&pairs, 1, &self.daemon)?).await?;
                rule
            }
            CheckTarget::Request => return Err(Refusal::bad_request("a reset needs `rule`")),
        };
        Ok(json(StatusCode::OK, JSON, &ResetResponse { rule, reset: true }))
    }

    /// Answers what is left to the subject that the query names. The caller vouches for it, as in a check.
    pub(super) async fn usage(&self, query: &str) -> Result<ApiResponse, Refusal> {
        let input: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        let of = |name: &str| input.iter().find(|pair| pair.0 == name).map(|pair| &*pair.1);
        let is_twice = |name: &str| input.iter().filter(|pair| pair.0 == name).count() > 1;
        for name in ["method", "path"] {
            if is_twice(name) {
                return Err(Refusal::bad_request(format!("`{name}` is there twice: send one")));
            }
        }
        let others = input.iter().filter(|pair| pair.0 != "method" && pair.0 != "path");
        let pairs: Pairs<'_> = others.map(|(name, value)| (&**name, &**value)).collect();
        if pairs.is_empty() {
            return Err(Refusal::bad_request(
                "nobody is named: say who by attributes, such as /v1/rate-limit/usage/me?user=42",
            ));
        }
        let (method, path) = (of("method").unwrap_or("GET"), of("path").unwrap_or("/"));
        let request = Request::new(method, path)?.with_attributes(&pairs)?.with_cost(0);
        let engine = &self.daemon.engine;
        let verdict = engine.check(&request).await;
        let live: Vec<_> = verdict
            .decisions()
            .filter(|decision| decision.enforcement() == Enforcement::Live)
            .collect();
        let (mut usage, mut incomplete) = (Vec::new(), Vec::new());
        for decisions in live.chunk_by(|one, next| one.rule().name == next.rule().name) {
            let rule = decisions[0].rule();
            let handle = engine.rule(&rule.name)?;
            if let Err(error) = handle.check_complete(|name| of(name).is_some()) {
                incomplete.extend(IncompleteUsage::new(rule, &error));
                continue;
            }
            if rule.tiers.limits.is_empty() || verdict.degraded().is_some() {
                usage.extend(decisions.iter().map(LimitUsage::from_decision));
            } else {
                let usages = handle.usage(&request).await?;
                usage.extend(usages.into_iter().map(|usage| LimitUsage::from_usage(rule, usage)));
            }
        }
        let (reason, degraded) = (verdict.reason().into(), verdict.degraded().is_some());
        let response = UsageResponse { reason, degraded, usage, incomplete };
        Ok(json(StatusCode::OK, JSON, &response))
    }

    pub(super) async fn decision(&self, id: &str) -> Result<ApiResponse, Refusal> {
        let id = DecisionId::parse(id).ok_or_else(Refusal::unknown_decision)?;
        let json = explain_decision(&self.daemon, id).await;
        let json = json.ok_or_else(Refusal::unknown_decision)?;
        Ok(body(StatusCode::OK, JSON, |to| to.extend_from_slice(&json)))
    }
}

/// Why a request was denied and what every rule makes of it now, as JSON; `None` where no denial of that id is
/// remembered.
pub(crate) async fn explain_decision(daemon: &Daemon, id: DecisionId) -> Option<Vec<u8>> {
    let denial = daemon.decision_log.find(id)?;
    let logged = denial.request.as_deref();
    let explanation = match logged {
        Some(logged) => explain_again(daemon, logged, &denial.verdict).await,
        None => None,
    };
    let verdict = &denial.verdict;
    let classifier = verdict.classifier();
    let classifier = classifier.filter(|rule| rule.criticality == Some(verdict.criticality()));
    let answer = AnswerRef { verdict, decision_id: id, lease: None, receipt: None };
    let response = DecisionResponse {
        decided_at: Rfc3339(denial.at),
        why: describe_denial(verdict, denial.at),
        request: logged.and_then(|text| serde_json::from_str(text).ok()),
        criticality: verdict.criticality().name(),
        criticality_rule: classifier.map(|rule| &*rule.name),
        verdict: CheckResponse::from_answer(answer),
        now: explanation.as_ref().map(ExplainResponse::from_explanation),
    };
    serde_json::to_vec(&response).ok()
}

/// Only a request under all rules can be explained. It is as critical as it was, unless the rules have made it so.
async fn explain_again(
    daemon: &Daemon,
    logged: &str,
    verdict: &Verdict,
) -> Option<tollbar_rules::Explanation> {
    let check: CheckRequest<'_> = serde_json::from_str(logged).ok()?;
    let check = check.without_criticality();
    let CheckTarget::Request = check.target(&CHECK).ok()? else {
        return None;
    };
    let pairs = check.pairs();
    let mut request = check.request(&pairs, check.cost_or_one(), daemon).ok()?;
    let declared = verdict.classifier().and_then(|rule| rule.criticality).unwrap_or_default();
    if verdict.criticality() != declared {
        request.set_criticality(verdict.criticality());
    }
    Some(daemon.engine.explain(&request).await)
}

/// Returns why a request was denied at `denied_at`, in a sentence.
pub fn describe_denial(verdict: &Verdict, denied_at: Timestamp) -> String {
    let name = verdict.rule().map_or("a rule", |rule| &rule.name);
    match (verdict.reason(), verdict.binding()) {
        (Reason::MissingAttribute { attribute, .. }, _) => {
            format!("`{name}` counts by `{attribute}`, which the request lacked")
        }
        (Reason::InvalidCost { attribute, .. }, _) => {
            format!("`{name}` takes its cost from `{attribute}`, which was not a number")
        }
        (Reason::AmbiguousPath, _) => {
            "its path had a backslash or a NUL in it, which servers read in different ways"
                .to_owned()
        }
        (Reason::Banned { rule, ban, .. }, _) => {
            let under =
                rule.map_or_else(|| "every rule".to_owned(), |rule| format!("`{}`", rule.name));
            let until = ban.until.map(|until| format!(" until {}", readable_instant(until)));
            let reason = ban.reason.as_deref().map(|reason| format!(": {reason}"));
            let (until, reason) = (until.unwrap_or_default(), reason.unwrap_or_default());
            format!("`{}` is banned under {under}{until}{reason}", ban.subject)
        }
        (Reason::TooManyLimits { count }, _) => {
            format!("{count} limits applied, more than can be checked at once")
        }
        (Reason::RequestIdReused, _) => "its request id had come with another request".to_owned(),
        (Reason::ReceiptTooLong, _) => {
            "what the rules count by was too long for a receipt".to_owned()
        }
        (Reason::CrossSlot, _) => {
            "its counters lay in several slots of the cluster, and it was to be remembered"
                .to_owned()
        }
        (Reason::Unsupported, _) => "the store could not do what it asked".to_owned(),
        (_, Some(binding)) => {
            let (limit, cost) = (binding.limit().text(), binding.cost());
            let share = match binding.degraded() {
                Some(Degraded::Fallback) => " of this node's share",
                Some(Degraded::Allowed | Degraded::Denied) | None => "",
            };
            let how = match (verdict.outcome(), binding.remaining()) {
                (Outcome::Never, _) => {
                    format!("the request cost {cost}, more than that can ever hold")
                }
                (_, None) => {
                    "the store could not answer, and the rule says to deny then".to_owned()
                }
                (Outcome::Deny { retry_after_us }, Some(left)) => {
                    let wait = readable_wait(Duration::from_micros(retry_after_us), denied_at);
                    format!("the request cost {cost}, {left}{share} were left, for another {wait}")
                }
                (Outcome::Allow | Outcome::Busy, Some(left)) => {
                    format!("the request needed {cost}, {left}{share} were free")
                }
            };
            format!("`{name}` allows {limit}: {how}")
        }
        (_, None) => format!("`{name}` denied it"),
    }
}
