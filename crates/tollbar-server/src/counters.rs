//! Where the daemon counts: in memory, or in the Redis that a fleet shares.

use std::sync::Arc;

use tollbar::{MemoryStore, Store};
use tollbar_redis::RedisStore;

/// The store, by its kind: what answers at once can be asked for many decisions at one instant, and
/// kept over a restart.
#[derive(Debug, Clone)]
pub(crate) enum Counters {
    Memory(Arc<MemoryStore>),
    Redis(Arc<RedisStore>),
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
}
