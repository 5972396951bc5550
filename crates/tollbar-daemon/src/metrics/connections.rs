//! Connections of each listener: how many there are, and how many there were.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The connections of all listeners.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Vec<Arc<Port>>>);

/// Those of one listener.
#[derive(Debug)]
pub(crate) struct Port {
    pub(super) listener: &'static str,
    accepted: AtomicU64,
    ended: AtomicU64,
}

/// A connection, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<Port>);

impl Connections {
    /// A listener's, from now on.
    pub(super) fn port(&self, listener: &'static str) -> Arc<Port> {
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = ports.iter().find(|it| it.listener == listener);
        known.cloned().unwrap_or_else(|| {
            let (accepted, ended) = (AtomicU64::new(0), AtomicU64::new(0));
            let port = Arc::new(Port { listener, accepted, ended });
            ports.push(Arc::clone(&port));
            port
        })
    }

    pub(super) fn all(&self) -> Vec<Arc<Port>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Port {
    pub(crate) fn open(self: &Arc<Self>) -> Open {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(super) fn open_count(&self) -> u64 {
        // First, so that one that comes and ends meanwhile does not make it negative.
        let ended = self.ended.load(Ordering::Acquire);
        self.accepted().saturating_sub(ended)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}
