//! What was read again while the daemon served, and what could not be used.

use std::sync::atomic::{AtomicU64, Ordering};

use tollbar::Timestamp;

/// What is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadKind {
    Rules,
    Tokens,
    Certificates,
    ApiKeys,
    EnvoyLimits,
}

/// Reloads, by what was read.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    succeeded: [AtomicU64; ReloadKind::ALL.len()],
    failed: [AtomicU64; ReloadKind::ALL.len()],
    /// When rules were put in force last, in microseconds; 0 is never.
    rules_at_us: AtomicU64,
}

impl ReloadKind {
    pub(super) const ALL: [Self; 5] =
        [Self::Rules, Self::Tokens, Self::Certificates, Self::ApiKeys, Self::EnvoyLimits];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rules => "rules",
            Self::Tokens => "tokens",
            Self::Certificates => "certificates",
            Self::ApiKeys => "api_keys",
            Self::EnvoyLimits => "envoy_limits",
        }
    }
}

impl Reloads {
    pub(super) fn count(&self, kind: ReloadKind, is_good: bool) {
        let counters = if is_good { &self.succeeded } else { &self.failed };
        counters[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn rules_loaded(&self, at: Timestamp) {
        self.rules_at_us.store(at.as_micros(), Ordering::Relaxed);
    }

    pub(super) fn rules_loaded_at(&self) -> Option<Timestamp> {
        let at_us = self.rules_at_us.load(Ordering::Relaxed);
        (at_us > 0).then_some(Timestamp::from_micros(at_us))
    }

    /// How often it succeeded, and failed.
    pub(super) fn counts(&self, kind: ReloadKind) -> (u64, u64) {
        let read = |counters: &[AtomicU64]| counters[kind as usize].load(Ordering::Relaxed);
        (read(&self.succeeded), read(&self.failed))
    }
}
