//! Where the daemon counts: in memory, or in the Redis that a fleet shares.

use std::sync::Arc;

use tollbar::{MemoryStore, Policy, Store};
use tollbar_redis::{BreakerState, RedisStore};

use crate::health::Health;

/// The store, by its kind: what answers at once can be asked for many decisions at one instant, and
/// kept over a restart.
#[derive(Debug, Clone)]
pub enum Counters {
    Memory(Arc<MemoryStore>),
    Redis(Arc<RedisStore>),
}

impl Counters {
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::Redis(store) => Arc::clone(store) as Arc<dyn Store>,
        }
    }

    pub fn memory(&self) -> Option<&Arc<MemoryStore>> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Redis(_) => None,
        }
    }

    /// Asks a store that is elsewhere for something that costs nothing, so that its health is known
    /// also where no client asks.
    pub async fn probe(self) {
        let Self::Redis(store) = self else {
            return;
        };
        if let Ok(policy) = Policy::fixed_window("1/s") {
            // What came of it, the store knows itself.
            let _ = store.check(b"tollbar:probe", &policy, 0).await;
        }
    }

    /// How the store is doing now. Asks nobody: it is what the last checks and probes found.
    pub fn health(&self) -> Health {
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
