//! Atomics and locks, from the standard library or, under `--cfg tollbar_loom`, from loom.

#[cfg(not(tollbar_loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(tollbar_loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

/// Waits for another thread to leave a slot it has locked: for a few nanoseconds, as a rule.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    rounds: u32,
}

impl Backoff {
    pub(crate) fn wait(&mut self) {
        self.rounds += 1;
        #[cfg(tollbar_loom)]
        loom::thread::yield_now();
        // The holder may have been put to sleep; let it run.
        #[cfg(not(tollbar_loom))]
        if self.rounds > 64 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    pub(crate) fn rounds(&self) -> u32 {
        self.rounds
    }
}

/// A lock whose poison is ignored: what it guards is only ever written whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
