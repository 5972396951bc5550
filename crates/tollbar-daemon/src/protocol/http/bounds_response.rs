//! Bounds of limits as JSON: over the admin API, and on the command line.

use schemars::JsonSchema;
use serde::Serialize;
use tollbar_rules::{AdmittedTokens, IntervalBounds, LimitBounds};

use super::explain_response::AccuracyRow;

/// What limits admit to one subject in any interval, in tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BoundsResponse<'b> {
    /// Each limit of each tier.
    limits: Vec<LimitBoundsRow<'b>>,
}

/// What one limit admits.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "LimitBounds")]
struct LimitBoundsRow<'b> {
    /// The rule's name.
    rule: &'b str,
    /// The tier whose limit it is, where it is one's.
    tier: Option<&'b str>,
    /// The limit as it was written; `unlimited` where there is none.
    limit_text: &'b str,
    /// How it counts; null where there is no limit.
    algorithm: Option<&'static str>,
    /// How exactly it counts.
    accuracy: AccuracyRow<'b>,
    /// For each length of interval that was asked for.
    intervals: Vec<IntervalRow>,
}

/// What is admitted in any interval of one length.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "IntervalBounds")]
struct IntervalRow {
    /// The length, in microseconds.
    length_us: u64,
    /// While the store answers.
    answering: AdmittedRow,
    /// While it does not, by the rule's `onStoreFailure`.
    unreachable: AdmittedRow,
}

/// Tokens that are admitted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AdmittedTokens")]
struct AdmittedRow {
    /// At most.
    most: TokenBound,
    /// At least, to a client that always asks, for one token at a time.
    least: TokenBound,
}

/// A number of tokens, or that there is no bound.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum TokenBound {
    Tokens(u64),
    Unbounded(UnboundedName),
}

/// There is no bound.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum UnboundedName {
    Unbounded,
}

impl<'b> BoundsResponse<'b> {
    /// The response that says these bounds.
    #[must_use]
    pub fn new(bounds: &'b [LimitBounds]) -> Self {
        Self { limits: bounds.iter().map(LimitBoundsRow::new).collect() }
    }
}

impl<'b> LimitBoundsRow<'b> {
    fn new(bounds: &'b LimitBounds) -> Self {
        Self {
            rule: &bounds.rule,
            tier: bounds.tier.as_deref(),
            limit_text: &bounds.limit,
            algorithm: bounds.algorithm,
            accuracy: AccuracyRow::new(&bounds.accuracy, None),
            intervals: bounds.intervals.iter().map(IntervalRow::new).collect(),
        }
    }
}

impl IntervalRow {
    fn new(bounds: &IntervalBounds) -> Self {
        Self {
            length_us: u64::try_from(bounds.length.as_micros()).unwrap_or(u64::MAX),
            answering: AdmittedRow::new(bounds.answering),
            unreachable: AdmittedRow::new(bounds.unreachable),
        }
    }
}

impl AdmittedRow {
    fn new(admitted: AdmittedTokens) -> Self {
        Self { most: TokenBound::new(admitted.most), least: TokenBound::new(admitted.least) }
    }
}

impl TokenBound {
    fn new(tokens: Option<u64>) -> Self {
        tokens.map_or(Self::Unbounded(UnboundedName::Unbounded), Self::Tokens)
    }
}
