//! Bans and boosts: what is said of single subjects beside the rules, each until its end.

use std::sync::Arc;

use tollbar::Timestamp;

/// The most bans and boosts of a set of rules.
pub(crate) const OVERRIDES_MAX: usize = 100_000;

/// The most different factors of boosts under every rule: each is compiled for each rule that meets it.
pub(crate) const FACTORS_MAX: usize = 64;

/// A ban or a boost of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Override {
    /// Under which rule, by its [identity](crate::Rule::identity). Where there is none, whatever the rules
    /// say: a ban then denies also who is exempt or unlimited.
    pub rule: Option<Arc<str>>,
    /// Whom. Under a rule, whom it counts, as [`readable`](crate::readable) writes it: `user:42`, or `42` where it
    /// counts per user. Under every rule, an attribute of requests and its value: `user:42`, `api:abc`,
    /// `ip:203.0.113.7`, `tenant:acme`. Addresses may be a network, `ip:203.0.113.0/24`: under a rule, one that counts
    /// by address or by client. [`canonical_subject`](crate::canonical_subject) says whether a subject can apply.
    pub subject: Box<str>,
    /// What becomes of them.
    pub effect: Effect,
    /// Until when; for good where there is none.
    pub until: Option<Timestamp>,
    /// Why, for people.
    pub reason: Option<Box<str>>,
}

/// What becomes of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It is denied.
    Ban,
    /// Its limits are multiplied; what it has used stays.
    Boost {
        /// By so much: 150 is one and a half times. Rounded down, but at least to one token.
        factor_percent: u32,
    },
}

impl Effect {
    pub(crate) fn factor_percent(self) -> Option<u32> {
        match self {
            Self::Ban => None,
            Self::Boost { factor_percent } => Some(factor_percent),
        }
    }
}

impl Override {
    /// Of that subject, under every rule and for good.
    #[must_use]
    pub fn new(subject: &str, effect: Effect) -> Self {
        Self { rule: None, subject: subject.into(), effect, until: None, reason: None }
    }

    pub(crate) fn is_on(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}
