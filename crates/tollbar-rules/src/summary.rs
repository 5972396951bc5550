//! What every protocol says about a verdict, each in its own words.

use std::time::Duration;

use tollbar::{Outcome, Timestamp};

use crate::Rule;
use crate::denial::DenialCode;
use crate::verdict::{Reason, Verdict};

/// A verdict as clients get it. Each protocol takes it apart whole, so that none leaves a part out.
#[derive(Debug, Clone, Copy)]
pub struct Summary<'v> {
    /// Whether the request may pass; then it has paid.
    pub is_allowed: bool,
    /// Allow, deny, busy or never.
    pub outcome: Outcome,
    /// Why.
    pub reason: Reason<'v>,
    /// Why the request may not pass, in one word; `None` where it may.
    pub denial: Option<DenialCode>,
    /// Whether the store could not answer, and the rules' failure policies did in its place.
    pub is_degraded: bool,
    /// The rule that binds, or that lets the request pass.
    pub rule: Option<&'v Rule>,
    /// Tokens a window, of the limit that binds; `None` where no limit was enforced.
    pub limit: Option<u64>,
    /// What is left of it; `None` where no counter was read.
    pub remaining: Option<u64>,
    /// The window's end, or when a bucket is full again; `None` where no counter was read.
    pub reset_at: Option<Timestamp>,
    /// After which the same request passes, if nobody else asks; `None` where no wait is known to help.
    pub retry_after: Option<Duration>,
    /// How long an allowed request of a queue waits for its turn.
    pub delay: Duration,
}

impl Verdict {
    /// What to tell whoever has asked.
    #[must_use]
    pub fn summary(&self) -> Summary<'_> {
        let binding = self.binding();
        Summary {
            is_allowed: self.is_allowed(),
            outcome: self.outcome(),
            reason: self.reason(),
            denial: self.denial_code(),
            is_degraded: self.degraded().is_some(),
            rule: self.rule(),
            limit: binding.map(|it| it.decision().limit()),
            remaining: binding.and_then(|it| it.remaining()),
            reset_at: binding.and_then(|it| it.reset_at()),
            retry_after: self.retry_after(),
            delay: self.delay(),
        }
    }
}
