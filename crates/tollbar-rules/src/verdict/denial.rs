//! Why a request may not pass, as a word for programs and a sentence for people. This is the only table
//! of them: each protocol maps the code to its own status, and has no text of its own.

use std::borrow::Cow;

use tollbar::Outcome;

use crate::CheckOutcome;
use crate::verdict::{Reason, Verdict};

/// Why a request may not pass, in one word: the same over every protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DenialCode {
    /// A limit is used up for now.
    RateLimitExceeded,
    /// The request costs more than a limit can ever hold.
    CostExceedsLimit,
    /// The subject is banned.
    Banned,
    /// The request lacks an attribute that a rule cannot do without.
    MissingAttribute,
    /// The attribute from which a rule takes the cost is no number.
    InvalidCost,
    /// The path has a backslash or a NUL in it.
    AmbiguousPath,
    /// The request's id came with something else before.
    RequestIdReused,
    /// What the rules count by is too long for a receipt or a lease.
    ReceiptTooLong,
    /// More limits apply than a store takes at once.
    TooManyLimits,
    /// The counters of a request that must be remembered lie in several slots of a cluster.
    CrossSlot,
    /// The store cannot do what the request asks of it.
    Unsupported,
}

impl DenialCode {
    /// Every code there is.
    pub const ALL: [Self; 11] = [
        Self::RateLimitExceeded,
        Self::CostExceedsLimit,
        Self::Banned,
        Self::MissingAttribute,
        Self::InvalidCost,
        Self::AmbiguousPath,
        Self::RequestIdReused,
        Self::ReceiptTooLong,
        Self::TooManyLimits,
        Self::CrossSlot,
        Self::Unsupported,
    ];

    /// The code as clients get it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RateLimitExceeded => "rate_limit_exceeded",
            Self::CostExceedsLimit => "cost_exceeds_limit",
            Self::Banned => "banned",
            Self::MissingAttribute => "missing_attribute",
            Self::InvalidCost => "invalid_cost",
            Self::AmbiguousPath => "ambiguous_path",
            Self::RequestIdReused => "request_id_reused",
            Self::ReceiptTooLong => "receipt_too_long",
            Self::TooManyLimits => "too_many_limits",
            Self::CrossSlot => "cross_slot",
            Self::Unsupported => "unsupported",
        }
    }

    /// True where no limit has denied: the request, or the rules that meet it, have to be changed
    /// before it can be decided.
    #[must_use]
    pub const fn is_mistake(self) -> bool {
        match self {
            Self::RateLimitExceeded | Self::CostExceedsLimit | Self::Banned => false,
            Self::MissingAttribute
            | Self::InvalidCost
            | Self::AmbiguousPath
            | Self::RequestIdReused
            | Self::ReceiptTooLong
            | Self::TooManyLimits
            | Self::CrossSlot
            | Self::Unsupported => true,
        }
    }
}

impl Verdict {
    /// Why the request may not pass; `None` where it may.
    #[must_use]
    pub fn denial_code(&self) -> Option<DenialCode> {
        match self.check_outcome() {
            CheckOutcome::NoRule => None,
            CheckOutcome::Rejected(code) => Some(code),
            CheckOutcome::Decided(_) | CheckOutcome::Degraded(..) => match self.outcome() {
                Outcome::Allow => None,
                Outcome::Never => Some(DenialCode::CostExceedsLimit),
                Outcome::Deny { .. } | Outcome::Busy => Some(DenialCode::RateLimitExceeded),
            },
        }
    }

    /// Why the request may not pass, in a sentence for its client; `None` where it may. It does not say
    /// why a client is banned: only operators see that.
    #[must_use]
    pub fn denial_message(&self) -> Option<Cow<'static, str>> {
        Some(match self.denial_code()? {
            DenialCode::RateLimitExceeded => "Too many requests".into(),
            DenialCode::CostExceedsLimit => {
                "This request costs more than its limit can ever hold".into()
            }
            DenialCode::Banned => "This client is banned".into(),
            DenialCode::MissingAttribute => match self.reason() {
                Reason::MissingAttribute { attribute, .. } => {
                    format!("This request lacks `{attribute}`, which its rule counts by").into()
                }
                _ => "This request lacks an attribute that its rule counts by".into(),
            },
            DenialCode::InvalidCost => match self.reason() {
                Reason::InvalidCost { attribute, .. } => {
                    format!("`{attribute}` is the cost of this request: send a whole number").into()
                }
                _ => "The cost of this request is not a whole number".into(),
            },
            DenialCode::AmbiguousPath => {
                "This path has a backslash or a NUL in it, which servers read in different ways: \
                 send it without"
                    .into()
            }
            DenialCode::RequestIdReused => {
                "This request id came with another request before: send a new one".into()
            }
            DenialCode::ReceiptTooLong => {
                "What the rules count by is too long for a receipt or a lease: send shorter \
                 attributes"
                    .into()
            }
            DenialCode::TooManyLimits => match self.reason() {
                Reason::TooManyLimits { count } => {
                    format!("{count} limits apply to this request, more than can be checked").into()
                }
                _ => "More limits apply to this request than can be checked".into(),
            },
            DenialCode::CrossSlot => {
                "The counters of this request lie in several slots of the Redis cluster: bring \
                 them together with `colocate_by`, or send it without an id or a reservation, \
                 under rules without `any_of`"
                    .into()
            }
            DenialCode::Unsupported => "The store cannot do what this request asks of it".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_word_of_its_own() {
        let mut words: Vec<&str> = DenialCode::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), DenialCode::ALL.len());
    }
}
