//! What is left of a rule's limits, and why it cannot be said.

use std::time::Duration;

use thiserror::Error;
use tollbar::{StoreError, Timestamp};

use crate::InvalidRequest;

/// What is left of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The limit as it was written.
    pub text: String,
    /// Whom it counts, for people.
    pub subject: String,
    /// Tokens a window.
    pub limit: u64,
    /// The largest cost that would pass now.
    pub remaining: u64,
    /// The window's end; for a bucket, when it is full again.
    pub reset_at: Timestamp,
    /// The window.
    pub window: Duration,
}

/// There is no rule of that name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no rule `{rule}`{}", did_you_mean(suggestion.as_deref()))]
#[non_exhaustive]
pub struct UnknownRule {
    /// The name asked for.
    pub rule: String,
    /// A name that is near.
    pub suggestion: Option<String>,
}

/// Why a rule cannot say what is left, or make it fresh.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum UsageError {
    /// There is no such rule.
    #[error(transparent)]
    UnknownRule(#[from] UnknownRule),
    /// The request does not say whom the rule would count.
    #[error("rule `{rule}` counts per `{attribute}`, which the request lacks: send it")]
    MissingAttribute {
        /// The rule.
        rule: String,
        /// The attribute.
        attribute: String,
    },
    /// A subject is one value, and the rule counts by none or by several.
    #[error(
        "rule `{rule}` counts {}, which one subject does not tell: send a request with its attributes",
        per_text(per)
    )]
    NotOneAttribute {
        /// The rule.
        rule: String,
        /// What it counts per.
        per: Vec<String>,
    },
    /// A subject that names nobody.
    #[error("the subject is empty: send whom rule `{rule}` counts")]
    EmptySubject {
        /// The rule.
        rule: String,
    },
    /// The subject is not one that a request could have.
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    /// The store cannot answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn per_text(per: &[String]) -> String {
    if per.is_empty() { "everybody together".to_owned() } else { format!("per {}", per.join(", ")) }
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!(": did you mean `{name}`?"))
}
