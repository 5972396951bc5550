//! What all listeners answer with: one engine over one store, whatever the wire.

use std::sync::Arc;

use tollbar::{Clock, Store, SystemClock, Timestamp};
use tollbar_rules::{Engine, Request, Verdict};

use crate::counters::{Counters, Health};
use crate::token::Tokens;

/// Shared by every listener.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) engine: Arc<Engine>,
    pub(crate) counters: Counters,
    /// What clients must show, where something is asked for.
    pub(crate) tokens: Option<Arc<Tokens>>,
    /// For a store that has no clock to offer.
    clock: SystemClock,
}

/// A verdict, and the name by which it can be asked about.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) verdict: Verdict,
    pub(crate) decision_id: DecisionId,
}

/// Names one decision. Random, so that nobody can guess another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DecisionId(pub(crate) u128);

impl Daemon {
    pub(crate) fn new(
        engine: Arc<Engine>,
        counters: Counters,
        tokens: Option<Arc<Tokens>>,
    ) -> Self {
        Self { engine, counters, tokens, clock: SystemClock::new() }
    }

    /// How the store is doing: whatever it is, questions are answered.
    pub(crate) fn health(&self) -> Health {
        self.counters.health()
    }

    /// Decides and charges a request that came over any wire.
    pub(crate) async fn check(&self, request: &Request<'_>) -> Answered {
        let verdict = self.engine.check_async(request).await;
        self.answered(verdict)
    }

    /// Gives a verdict its name.
    pub(crate) fn answered(&self, verdict: Verdict) -> Answered {
        Answered { verdict, decision_id: DecisionId(fastrand::u128(..)) }
    }

    /// By the clock that counts.
    pub(crate) fn now(&self) -> Timestamp {
        match &self.counters {
            Counters::Memory(store) => store.clock().map_or_else(|| self.clock.now(), Clock::now),
            Counters::Redis(_) => self.clock.now(),
        }
    }

    /// True where whoever shows `shown` may ask.
    pub(crate) fn is_admitted(&self, shown: Option<&[u8]>) -> bool {
        self.tokens.as_ref().is_none_or(|tokens| tokens.is(shown.unwrap_or_default()))
    }
}

impl std::fmt::Display for DecisionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
