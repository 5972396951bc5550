//! Connections of each listener: how many there are, and how many there were.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The connections of all listeners.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Vec<Arc<ListenerConnections>>>);

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct ListenerConnections {
    pub(super) listener: &'static str,
    accepted: AtomicU64,
    ended: AtomicU64,
    refused: [AtomicU64; ConnectionRefusal::ALL.len()],
}

/// Why a connection is closed that a client could have used.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ConnectionRefusal {
    /// Its address holds as many as it may.
    Address,
    /// It was the slowest on a full listener.
    Evicted,
}

impl ConnectionRefusal {
    pub(super) const ALL: [Self; 2] = [Self::Address, Self::Evicted];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Evicted => "evicted",
        }
    }
}

/// A connection, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<ListenerConnections>);

impl Connections {
    /// Returns the counters of a listener, which are made at the first call.
    pub(super) fn listener(&self, listener: &'static str) -> Arc<ListenerConnections> {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = listeners.iter().find(|known| known.listener == listener);
        known.cloned().unwrap_or_else(|| {
            let (accepted, ended, refused) = Default::default();
            let new = Arc::new(ListenerConnections { listener, accepted, ended, refused });
            listeners.push(Arc::clone(&new));
            new
        })
    }

    pub(super) fn all(&self) -> Vec<Arc<ListenerConnections>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ListenerConnections {
    pub(crate) fn open(self: &Arc<Self>) -> OpenConnection {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Counts a refusal, and returns how many there were for this reason.
    pub(crate) fn refuse(&self, reason: ConnectionRefusal) -> u64 {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn refused(&self, reason: ConnectionRefusal) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(super) fn open_count(&self) -> u64 {
        // First, so that one that comes and ends meanwhile does not make it negative.
        let ended = self.ended.load(Ordering::Acquire);
        self.accepted().saturating_sub(ended)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}
