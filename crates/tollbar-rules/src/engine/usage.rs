//! What is left of a rule's limits, and why it cannot be said.

use std::time::Duration;

use thiserror::Error;
use tollbar::{StoreError, Timestamp};

use crate::InvalidRequest;
use crate::rule::subject::{EVERYBODY, SEPARATOR};

/// What is left of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The limit as it was written.
    pub text: String,
    /// Whom it counts, for people.
    pub subject: String,
    /// The tier whose limit it is, if the rule has tiers.
    pub tier: Option<String>,
    /// False if the subject's latest request was under another tier. The subject has used this limit all the same.
    pub is_current: bool,
    /// Which alternative of its rule the limit belongs to, counted from 1; `None` for a limit that holds by itself.
    pub alternative: Option<u32>,
    /// True for a limit with a `per` of its own: others may have used it.
    pub has_own_per: bool,
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
    /// The rule counts by several attributes, and some of them are not given.
    #[error("rule `{rule}` counts per {}: say which one, and send {} too", and(per), and(&quoted(missing)))]
    Incomplete {
        /// The rule.
        rule: String,
        /// What it counts per.
        per: Vec<String>,
        /// The attributes that are missing.
        missing: Vec<String>,
    },
    /// A subject has one value for each attribute that the rule counts per, and this one has another number.
    #[error("{}", subject_advice(rule, per))]
    SubjectValues {
        /// The rule.
        rule: String,
        /// What it counts per.
        per: Vec<String>,
    },
    /// An attribute beside a subject says once more whom the rule counts.
    #[error(
        "the subject says whom rule `{rule}` counts: leave `{attribute}` out of the attributes"
    )]
    SubjectTwice {
        /// The rule.
        rule: String,
        /// The attribute.
        attribute: String,
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

impl UsageError {
    /// Returns true if the question is about several counters, and has to say which one.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        matches!(self, Self::Incomplete { .. } | Self::SubjectValues { .. })
    }
}

fn subject_advice(rule: &str, per: &[String]) -> String {
    if per.is_empty() {
        return format!(
            "rule `{rule}` counts everybody together: send the subject `{EVERYBODY}`, or none"
        );
    }
    let names: Vec<_> = per.iter().map(|name| name.to_uppercase()).collect();
    format!(
        "rule `{rule}` counts per {}: say which one, with a subject of {} values, `{}`, or with attributes in its place",
        and(per),
        per.len(),
        names.join(SEPARATOR)
    )
}

fn quoted(names: &[String]) -> Vec<String> {
    names.iter().map(|name| format!("`{name}`")).collect()
}

/// Joins words: `a, b and c`.
fn and(words: &[String]) -> String {
    match words {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        words => words.concat(),
    }
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!(": did you mean `{name}`?"))
}
