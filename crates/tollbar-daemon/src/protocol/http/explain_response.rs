//! An explanation as JSON: over HTTP, and on the command line.

use schemars::JsonSchema;
use serde::Serialize;
use tollbar_rules::{Explanation, LimitExplanation, RuleExplanation, RuleFate};

use super::check_response::CapacityName;
use crate::rfc3339::Rfc3339;

/// What every rule makes of a request.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainResponse<'e> {
    /// The method, as rules see it.
    method: &'e str,
    /// The path, as rules see it.
    path: &'e str,
    /// Whether the request would pass now.
    allowed: bool,
    /// Why, in a sentence.
    summary: &'e str,
    /// Every rule, in the order in which they are looked at.
    rules: Vec<RuleRow<'e>>,
    /// Why the counters could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error: Option<&'e str>,
}

/// What became of one rule.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ExplainedRule")]
struct RuleRow<'e> {
    name: &'e str,
    /// What became of it, for programs.
    fate: FateName,
    /// Why, in a sentence.
    why: &'e str,
    /// The tier whose limits hold, where they are one's.
    tier: Option<&'e str>,
    /// What the request costs under it.
    cost: u64,
    /// Whom it counts, where it counts.
    subject: Option<&'e str>,
    /// Its limits that would be checked.
    limits: Vec<LimitRow<'e>>,
}

/// The state of one counter.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ExplainedLimit")]
struct LimitRow<'e> {
    /// The limit as it was written.
    text: &'e str,
    algorithm: &'static str,
    /// Whether it may deny.
    capacity: CapacityName,
    /// Tokens a window.
    limit: u64,
    /// The largest cost that would pass now; null where the store cannot say.
    remaining: Option<u64>,
    /// The window's end; for a bucket, when it is full again.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    reset_at: Option<Rfc3339>,
    /// Whether the request would pass it now.
    would_pass: bool,
    /// Whether it is the one that binds.
    binds: bool,
}

/// What may become of a rule.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RuleFate")]
enum FateName {
    NotMatched,
    Applied,
    Disabled,
    Exempt,
    Unlimited,
    Skipped,
    Denied,
    Banned,
    Overruled,
    FallbackNotNeeded,
    Unknown,
}

impl<'e> ExplainResponse<'e> {
    pub fn from_explanation(explanation: &'e Explanation) -> Self {
        Self {
            method: &explanation.method,
            path: &explanation.path,
            allowed: explanation.is_allowed,
            summary: &explanation.summary,
            rules: explanation.rules.iter().map(RuleRow::from_rule).collect(),
            store_error: explanation.store_error.as_deref(),
        }
    }
}

impl<'e> RuleRow<'e> {
    fn from_rule(rule: &'e RuleExplanation) -> Self {
        Self {
            name: &rule.name,
            fate: FateName::from_fate(rule.fate),
            why: &rule.why,
            tier: rule.tier.as_deref(),
            cost: rule.cost,
            subject: rule.subject.as_deref(),
            limits: rule.limits.iter().map(LimitRow::from_limit).collect(),
        }
    }
}

impl<'e> LimitRow<'e> {
    fn from_limit(limit: &'e LimitExplanation) -> Self {
        Self {
            text: &limit.text,
            algorithm: limit.algorithm,
            capacity: limit.enforcement.into(),
            limit: limit.limit,
            remaining: limit.remaining,
            reset_at: limit.reset_at.map(Rfc3339),
            would_pass: limit.would_pass,
            binds: limit.binds,
        }
    }
}

impl FateName {
    fn from_fate(fate: RuleFate) -> Self {
        match fate {
            RuleFate::NotMatched => Self::NotMatched,
            RuleFate::Applied => Self::Applied,
            RuleFate::Disabled => Self::Disabled,
            RuleFate::Exempt => Self::Exempt,
            RuleFate::Unlimited => Self::Unlimited,
            RuleFate::Skipped => Self::Skipped,
            RuleFate::Denied => Self::Denied,
            RuleFate::Banned => Self::Banned,
            RuleFate::Overruled => Self::Overruled,
            RuleFate::FallbackNotNeeded => Self::FallbackNotNeeded,
            _ => Self::Unknown,
        }
    }
}
