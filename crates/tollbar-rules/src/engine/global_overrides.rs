//! Bans and boosts under every rule, for decisions that no rule makes: limits of Envoy's files, `CL.THROTTLE`.

use super::AsyncEngine;
use super::selection::denial_by_ban;
use crate::snapshot::overrides::attribute_of;
use crate::{InvalidRequest, Request, Verdict};

/// What bans and boosts under every rule say of a request.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct GlobalOverrides {
    /// The verdict on a request that is banned.
    pub ban: Option<Verdict>,
    /// What limits are multiplied by, in percent; `None` where nothing is boosted.
    pub factor_percent: Option<u32>,
}

impl AsyncEngine {
    /// Returns true if any subject is banned or boosted.
    #[must_use]
    pub fn has_overrides(&self) -> bool {
        self.current.load().overrides.is_some()
    }

    /// Returns what bans and boosts under every rule say of a request.
    #[must_use]
    pub fn global_overrides(&self, request: &Request<'_>) -> GlobalOverrides {
        let snapshot = self.snapshot();
        let Some(overrides) = &snapshot.overrides else {
            return GlobalOverrides::default();
        };
        let now = self.clock.now();
        let active = overrides.active_for_request(request, now);
        let factor_percent =
            active.boost.and_then(|boost| overrides.get(boost).effect.factor_percent());
        let ban = active.ban.map(|ban| {
            let reason = denial_by_ban(overrides, None, ban, now);
            let mut verdict = Verdict::undecided(snapshot.clone());
            (verdict.outcome, verdict.reason) = (reason.outcome(), reason);
            verdict
        });
        GlobalOverrides { ban, factor_percent }
    }

    /// Returns what bans and boosts under every rule say of a subject that is written as theirs are, such as
    /// `user:42`.
    ///
    /// ```
    /// use tollbar_rules::{Effect, Engine, Override, RuleSet};
    /// let bans = vec![Override::new("user:42", Effect::Ban)];
    /// let engine = Engine::new(RuleSet::empty().with_overrides(bans));
    /// assert!(engine.global_overrides_of_subject("user:42").unwrap().ban.is_some());
    /// assert!(engine.global_overrides_of_subject("user:43").unwrap().ban.is_none());
    /// ```
    pub fn global_overrides_of_subject(
        &self,
        subject: &str,
    ) -> Result<GlobalOverrides, InvalidRequest> {
        let attributes = [attribute_of(subject)];
        let request = Request::new("GET", "/")?.with_known_attributes(&attributes)?;
        Ok(self.global_overrides(&request))
    }
}
