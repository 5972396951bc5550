//! Where the daemon counts: in memory, or in the Redis that a fleet shares.

use std::sync::Arc;

use tollbar::{MemoryStore, Store};
use tollbar_redis::RedisStore;

use crate::health::Health;
use crate::store::loans::Loans;

/// The store, by its kind: what answers at once can be asked for many decisions at one instant, and
/// kept over a restart.
#[derive(Debug, Clone)]
pub enum Counters {
    Memory(Arc<MemoryStore>),
    /// The store, and what is borrowed from it.
    Redis(Arc<RedisStore>, Arc<Loans>),
}

impl Counters {
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::Redis(_, loans) => loans.store() as Arc<dyn Store>,
        }
    }

    pub fn memory(&self) -> Option<&Arc<MemoryStore>> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Redis(..) => None,
        }
    }

    /// What is borrowed from a store that a fleet shares.
    pub fn loans(&self) -> Option<&Arc<Loans>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(_, loans) => Some(loans),
        }
    }

    /// Writes, reads and expires a key at every server of a store that is elsewhere, so that its health
    /// is known also where no client asks.
    pub async fn probe(self) {
        if let Self::Redis(store, _) = self {
            // The store keeps what came of it.
            store.probe().await.ok();
        }
    }

    /// Whether the store decides every check, keeps every counter, and is shared by one secret. Asks nobody: it
    /// is what the last checks and probes found.
    pub fn health(&self) -> Health {
        let Self::Redis(store, _) = self else {
            return Health::Ok;
        };
        let faults: Vec<String> = store.faults().iter().map(ToString::to_string).collect();
        if faults.is_empty() {
            return Health::Ok;
        }
        Health::Degraded { why: faults.join("; ").into() }
    }
}
