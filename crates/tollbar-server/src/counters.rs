//! Where the daemon counts: in memory, or in the Redis that a fleet shares.

use std::sync::Arc;

use tollbar::{MemoryStore, Policy, Store};
use tollbar_redis::{BreakerState, RedisStore};

/// The store, by its kind: what answers at once can be asked for many decisions at one instant, and
/// kept over a restart.
#[derive(Debug, Clone)]
pub(crate) enum Counters {
    Memory(Arc<MemoryStore>),
    Redis(Arc<RedisStore>),
}

/// How the store is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Health {
    Ok,
    /// It does not answer: rules' failure policies do, until it is back.
    Degraded {
        why: Arc<str>,
    },
}

impl Counters {
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::Redis(store) => Arc::clone(store) as Arc<dyn Store>,
        }
    }

    pub(crate) fn memory(&self) -> Option<&Arc<MemoryStore>> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Redis(_) => None,
        }
    }

    /// Asks a store that is elsewhere for something that costs nothing, so that its health is known
    /// also where no client asks.
    pub(crate) async fn probe(self) {
        let Self::Redis(store) = self else {
            return;
        };
        if let Ok(policy) = Policy::fixed_window("1/s") {
            // What came of it, the store knows itself.
            let _ = store.check(b"tollbar:probe", &policy, 0).await;
        }
    }

    /// How the store is doing now. Asks nobody: it is what the last checks and probes found.
    pub(crate) fn health(&self) -> Health {
        let Self::Redis(store) = self else {
            return Health::Ok;
        };
        let health = store.health();
        match health.breaker {
            BreakerState::Closed => Health::Ok,
            _ => Health::Degraded {
                why: health.last_error.unwrap_or_else(|| "there is no connection yet".into()),
            },
        }
    }
}

impl Health {
    /// One word for clients: why is told in the log, which knows addresses.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded { .. } => "degraded",
        }
    }
}
