//! An explanation as JSON: over HTTP, and on the command line.

use schemars::JsonSchema;
use serde::Serialize;
use tollbar_rules::{Explanation, LimitAccuracy, LimitExplanation, RuleExplanation, RuleFate};

use super::check_response::{CapacityName, millis};
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
    /// How critical the request is: `low`, `normal`, `high` or `critical`.
    criticality: &'static str,
    /// What makes it so, in a few words.
    criticality_why: &'e str,
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
    /// How many tokens of the limit are reserved for more critical requests, and not counted in it.
    reserved: u64,
    /// The largest cost that would pass now; null where the store cannot say.
    remaining: Option<u64>,
    /// The window's end; for a bucket, when it is full again.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    reset_at: Option<Rfc3339>,
    /// Whether the request would pass it now.
    would_pass: bool,
    /// Whether it is the one that binds.
    binds: bool,
    /// How exactly it is counted.
    accuracy: AccuracyRow<'e>,
    /// Which alternative of its rule it belongs to, counted from 1. Absent for a limit that holds by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    alternative: Option<u32>,
    /// Whether the request would pay this alternative now. Absent for a limit that holds by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_pay: Option<bool>,
    /// Whom it counts. Absent for a limit that counts whom its rule does.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'e str>,
}

/// How exactly a limit is counted, and what that costs.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "LimitAccuracy")]
pub(super) struct AccuracyRow<'e> {
    /// What the rule says, or the file for it: `exact`, `conservative(5%)`, `optimistic(5%)`, `local` or `local(4)`.
    mode: String,
    /// Why it is counted exactly although something else is said.
    exact_because: Option<&'e str>,
    /// Over how many nodes it is divided.
    nodes: u64,
    /// How long the tokens of a loan can be spent; null where nothing is lent.
    term_ms: Option<u64>,
    /// By how much a bucket is cut while tokens are lent; null where nothing is lent.
    cut_ms: Option<u64>,
    /// How many tokens more than exact counting it admits in any interval, at most.
    over_tokens: u64,
    /// How many tokens fewer, at most.
    under_tokens: u64,
    /// The tokens that this node holds; null where it has borrowed none.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_tokens: Option<u64>,
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
            criticality: explanation.criticality.name(),
            criticality_why: &explanation.criticality_why,
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
            reserved: limit.reserved,
            remaining: limit.remaining,
            reset_at: limit.reset_at.map(Rfc3339),
            would_pass: limit.would_pass,
            binds: limit.binds,
            accuracy: AccuracyRow::new(&limit.accuracy, limit.held_tokens),
            alternative: limit.alternative,
            would_pay: limit.alternative.map(|_| limit.would_pay),
            subject: limit.subject.as_deref(),
        }
    }
}

impl<'e> AccuracyRow<'e> {
    /// The row of a limit, with the tokens that this node holds of its counter.
    pub(super) fn new(accuracy: &'e LimitAccuracy, held_tokens: Option<u64>) -> Self {
        let terms = accuracy.loan_terms();
        Self {
            mode: accuracy.written.to_string(),
            exact_because: accuracy.exact_because.as_deref(),
            nodes: accuracy.nodes,
            term_ms: terms.map(|terms| millis(terms.term)),
            cut_ms: terms.map(|terms| millis(terms.cut)),
            over_tokens: accuracy.over_tokens,
            under_tokens: accuracy.under_tokens,
            held_tokens,
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
