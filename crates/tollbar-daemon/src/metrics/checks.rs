//! How checks come in and what becomes of them.

use tollbar_rules::{CheckOutcome, Reason, Verdict};

use super::sharded_counters::ShardedCounters;

/// The protocol that a check came over, as metrics, logs and traces name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProtocolName {
    #[default]
    Http,
    ForwardAuth,
    Grpc,
    Envoy,
    ExtAuthz,
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
    /// Denied without a limit: the request, the rules or the store have to be changed.
    pub(crate) rejected: u64,
    /// Allowed, because no rule applies.
    pub(crate) no_rule: u64,
}

/// The outcome of a check, as metrics, logs and traces name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Allow,
    Deny,
    ShadowDeny,
    DegradedAllow,
    DegradedDeny,
    Rejected,
    NoRule,
}

/// Counts checks by protocol and outcome.
#[derive(Debug, Default)]
pub(super) struct CheckCounts([ShardedCounters<{ Outcome::ALL.len() }>; ProtocolName::ALL.len()]);

impl ProtocolName {
    pub(crate) const ALL: [Self; 7] = [
        Self::Http,
        Self::ForwardAuth,
        Self::Grpc,
        Self::Envoy,
        Self::ExtAuthz,
        Self::Resp,
        Self::Proxy,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::ForwardAuth => "forward_auth",
            Self::Grpc => "grpc",
            Self::Envoy => "envoy",
            Self::ExtAuthz => "ext_authz",
            Self::Resp => "resp",
            Self::Proxy => "proxy",
        }
    }
}

impl Outcome {
    pub(crate) const ALL: [Self; 7] = [
        Self::Allow,
        Self::Deny,
        Self::ShadowDeny,
        Self::DegradedAllow,
        Self::DegradedDeny,
        Self::Rejected,
        Self::NoRule,
    ];

    pub(crate) fn from_verdict(verdict: &Verdict) -> Self {
        match verdict.check_outcome() {
            CheckOutcome::Degraded(..) if verdict.is_allowed() => Self::DegradedAllow,
            CheckOutcome::Degraded(..) => Self::DegradedDeny,
            CheckOutcome::Rejected(code) if code.is_mistake() => Self::Rejected,
            // A ban is what somebody wants.
            CheckOutcome::Rejected(_) => Self::Deny,
            CheckOutcome::Decided(_) if !verdict.is_allowed() => Self::Deny,
            CheckOutcome::Decided(_) | CheckOutcome::NoRule => Self::from_pass(verdict),
        }
    }

    /// The outcome of a request that passes. Shadows are asked where nothing is enforced, too.
    fn from_pass(verdict: &Verdict) -> Self {
        match verdict.reason() {
            _ if verdict.would_deny().next().is_some() => Self::ShadowDeny,
            Reason::NoRule if verdict.decisions().next().is_none() => Self::NoRule,
            _ => Self::Allow,
        }
    }

    pub(crate) fn is_denial(self) -> bool {
        match self {
            Self::Deny | Self::DegradedDeny | Self::Rejected => true,
            Self::Allow | Self::ShadowDeny | Self::DegradedAllow | Self::NoRule => false,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::ShadowDeny => "shadow_deny",
            Self::DegradedAllow => "degraded_allow",
            Self::DegradedDeny => "degraded_deny",
            Self::Rejected => "rejected",
            Self::NoRule => "no_rule",
        }
    }
}

impl CheckCounts {
    pub(super) fn count(&self, protocol: ProtocolName, outcome: Outcome) {
        self.0[protocol as usize].add(outcome as usize, 1);
    }

    pub(super) fn for_protocol(&self, protocol: ProtocolName) -> OutcomeCounts {
        let [allowed, denied, shadow_denied, degraded_allowed, degraded_denied, rejected, no_rule] =
            self.0[protocol as usize].read();
        OutcomeCounts {
            allowed,
            denied,
            shadow_denied,
            degraded_allowed,
            degraded_denied,
            rejected,
            no_rule,
        }
    }

    pub(super) fn total(&self) -> OutcomeCounts {
        ProtocolName::ALL
            .iter()
            .map(|protocol| self.for_protocol(*protocol))
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
            Outcome::Rejected => self.rejected,
            Outcome::NoRule => self.no_rule,
        }
    }

    /// All checks.
    pub(crate) fn sum(&self) -> u64 {
        Outcome::ALL.iter().map(|outcome| self.get(*outcome)).sum()
    }

    fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            shadow_denied: self.shadow_denied + other.shadow_denied,
            degraded_allowed: self.degraded_allowed + other.degraded_allowed,
            degraded_denied: self.degraded_denied + other.degraded_denied,
            rejected: self.rejected + other.rejected,
            no_rule: self.no_rule + other.no_rule,
        }
    }
}
