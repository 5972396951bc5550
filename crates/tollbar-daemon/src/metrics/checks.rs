//! How checks come in and what becomes of them.

use tollbar_rules::{CheckOutcome, Verdict};

use super::sharded_counters::ShardedCounters;

/// The protocol that a check came over, as metrics, logs and traces name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProtocolName {
    #[default]
    Http,
    ForwardAuth,
    Grpc,
    Envoy,
    Resp,
    Proxy,
}

/// How many checks had each outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OutcomeCounts {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Allowed, where a rule in shadow mode or a candidate would have denied.
    pub(crate) shadow_denied: u64,
    /// The store could not answer, and the rules' failure policies let it pass.
    pub(crate) degraded_allowed: u64,
    /// The store could not answer, and the rules' failure policies did not let it pass.
    pub(crate) degraded_denied: u64,
}

/// The outcome of a check, as metrics, logs and traces name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Allow,
    Deny,
    ShadowDeny,
    DegradedAllow,
    DegradedDeny,
}

/// Counts checks by protocol and outcome.
#[derive(Debug, Default)]
pub(super) struct CheckCounts([ShardedCounters<{ Outcome::ALL.len() }>; ProtocolName::ALL.len()]);

impl ProtocolName {
    pub(crate) const ALL: [Self; 6] =
        [Self::Http, Self::ForwardAuth, Self::Grpc, Self::Envoy, Self::Resp, Self::Proxy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::ForwardAuth => "forward_auth",
            Self::Grpc => "grpc",
            Self::Envoy => "envoy",
            Self::Resp => "resp",
            Self::Proxy => "proxy",
        }
    }
}

impl Outcome {
    pub(crate) const ALL: [Self; 5] =
        [Self::Allow, Self::Deny, Self::ShadowDeny, Self::DegradedAllow, Self::DegradedDeny];

    pub(crate) fn of(verdict: &Verdict) -> Self {
        match (verdict.check_outcome(), verdict.is_allowed()) {
            (CheckOutcome::Degraded(..), true) => Self::DegradedAllow,
            (CheckOutcome::Degraded(..), false) => Self::DegradedDeny,
            (CheckOutcome::Rejected(_), _) | (CheckOutcome::Decided(_), false) => Self::Deny,
            // Shadows are asked where nothing is enforced, too.
            (CheckOutcome::Decided(_) | CheckOutcome::NoRule, _) => {
                if verdict.would_deny().next().is_some() { Self::ShadowDeny } else { Self::Allow }
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::ShadowDeny => "shadow_deny",
            Self::DegradedAllow => "degraded_allow",
            Self::DegradedDeny => "degraded_deny",
        }
    }
}

impl CheckCounts {
    pub(super) fn count(&self, protocol: ProtocolName, outcome: Outcome) {
        self.0[protocol as usize].add(outcome as usize, 1);
    }

    pub(super) fn of(&self, protocol: ProtocolName) -> OutcomeCounts {
        let [allowed, denied, shadow_denied, degraded_allowed, degraded_denied] =
            self.0[protocol as usize].read();
        OutcomeCounts { allowed, denied, shadow_denied, degraded_allowed, degraded_denied }
    }

    pub(super) fn total(&self) -> OutcomeCounts {
        ProtocolName::ALL
            .iter()
            .map(|protocol| self.of(*protocol))
            .fold(OutcomeCounts::default(), OutcomeCounts::plus)
    }
}

impl OutcomeCounts {
    pub(crate) fn get(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Allow => self.allowed,
            Outcome::Deny => self.denied,
            Outcome::ShadowDeny => self.shadow_denied,
            Outcome::DegradedAllow => self.degraded_allowed,
            Outcome::DegradedDeny => self.degraded_denied,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            shadow_denied: self.shadow_denied + other.shadow_denied,
            degraded_allowed: self.degraded_allowed + other.degraded_allowed,
            degraded_denied: self.degraded_denied + other.degraded_denied,
        }
    }
}
