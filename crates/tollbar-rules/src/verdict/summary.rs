//! What every protocol says about a verdict, each in its own words.

use std::time::Duration;

use tollbar::{Outcome, StoreError, Timestamp};

use crate::Rule;
use crate::verdict::denial::DenialCode;
use crate::verdict::{Reason, Verdict};

/// How a verdict came about, after each rule's outage policy was applied. Every protocol matches it whole, so that
/// none takes an outage for an answer, or a mistake for a limit.
///
/// It borrows the verdict, which is most of a kilobyte and is not moved from where it was made.
#[derive(Debug, Clone, Copy)]
pub enum CheckOutcome<'v> {
    /// The store has counted the request, and the decision that binds says whether it may pass.
    Decided(&'v Verdict),
    /// The store could not answer, and the rules' outage policies did in its place.
    Degraded(&'v Verdict, &'v StoreError),
    /// The request may pass, and no limit was enforced: no rule applies, or one lets it pass.
    NoRule,
    /// The request may not pass, and no limit was asked: it is banned, or it, the rules or the store have to
    /// be changed.
    Rejected(DenialCode),
}

/// A verdict as clients get it. Each protocol takes it apart whole, so that none leaves a part out.
#[derive(Debug, Clone, Copy)]
pub struct Summary<'v> {
    /// Whether the request may pass; then it has paid.
    pub is_allowed: bool,
    /// How the verdict came about.
    pub check: CheckOutcome<'v>,
    /// Allow, deny, busy or never.
    pub outcome: Outcome,
    /// Why.
    pub reason: Reason<'v>,
    /// Why the request may not pass, in one word; `None` where it may.
    pub denial: Option<DenialCode>,
    /// The rule that binds, or that lets the request pass.
    pub rule: Option<&'v Rule>,
    /// Tokens a window, of the limit that binds; `None` where no limit was enforced.
    pub limit: Option<u64>,
    /// What is left of it; `None` where no counter was read.
    pub remaining: Option<u64>,
    /// The window's end, or when a bucket is full again, and never before `retry_after`. `None` where no counter was
    /// read, and where permits bind.
    pub reset_at: Option<Timestamp>,
    /// After which the same request passes, if nobody else asks; `None` where no wait is known to help.
    pub retry_after: Option<Duration>,
    /// How long an allowed request of a queue waits for its turn.
    pub delay: Duration,
}

impl CheckOutcome<'_> {
    /// Returns true if the store could not answer, and the rules' outage policies did in its place.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        match self {
            Self::Degraded(..) => true,
            Self::Decided(_) | Self::NoRule | Self::Rejected(_) => false,
        }
    }
}

impl Verdict {
    /// Says how the verdict came about.
    #[must_use]
    pub fn check_outcome(&self) -> CheckOutcome<'_> {
        match (self.degraded(), self.reason()) {
            (Some(error), _) => CheckOutcome::Degraded(self, error),
            (None, Reason::Limits) => CheckOutcome::Decided(self),
            (None, Reason::NoRule | Reason::Unlimited(_) | Reason::Exempt(..)) => {
                CheckOutcome::NoRule
            }
            (None, Reason::MissingAttribute { .. }) => {
                CheckOutcome::Rejected(DenialCode::MissingAttribute)
            }
            (None, Reason::InvalidCost { .. }) => CheckOutcome::Rejected(DenialCode::InvalidCost),
            (None, Reason::AmbiguousPath) => CheckOutcome::Rejected(DenialCode::AmbiguousPath),
            (None, Reason::Banned { .. }) => CheckOutcome::Rejected(DenialCode::Banned),
            (None, Reason::TooManyLimits { .. }) => {
                CheckOutcome::Rejected(DenialCode::TooManyLimits)
            }
            (None, Reason::RequestIdReused) => CheckOutcome::Rejected(DenialCode::RequestIdReused),
            (None, Reason::ReceiptTooLong) => CheckOutcome::Rejected(DenialCode::ReceiptTooLong),
            (None, Reason::CrossSlot) => CheckOutcome::Rejected(DenialCode::CrossSlot),
            (None, Reason::Unsupported) => CheckOutcome::Rejected(DenialCode::Unsupported),
        }
    }

    /// What to tell whoever has asked.
    #[must_use]
    pub fn summary(&self) -> Summary<'_> {
        let binding = self.binding();
        Summary {
            is_allowed: self.is_allowed(),
            check: self.check_outcome(),
            outcome: self.outcome(),
            reason: self.reason(),
            denial: self.denial_code(),
            rule: self.rule(),
            limit: binding.map(|binding| binding.decision().limit()),
            remaining: binding.and_then(|binding| binding.remaining()),
            reset_at: self.reset_at(),
            retry_after: self.retry_after(),
            delay: self.delay(),
        }
    }
}
