//! The end of the daemon, in two steps.
//!
//! First it is announced: everything goes on, but answers that can say so tell clients to go elsewhere.
//! A moment later it is time: who is idle is closed. What a client had sent before the first step has
//! been read by the second, so that no connection is closed over an unread request.

use tokio::sync::watch;

/// Stops the daemon when it is dropped.
#[derive(Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

/// Tells when the daemon stops.
#[derive(Debug, Clone)]
pub struct ShutdownSignal(watch::Receiver<bool>);

impl ShutdownTrigger {
    /// Says that the end is near.
    pub fn announce(&self) {
        self.0.send_replace(true);
    }
}

impl ShutdownSignal {
    /// The daemon stops when the first of these is dropped.
    pub fn new() -> (ShutdownTrigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (ShutdownTrigger(sender), Self(receiver))
    }

    /// True from the announcement on.
    pub(crate) fn is_announced(&self) -> bool {
        *self.0.borrow()
    }

    /// True once the daemon stops. Cheap: for connections that are never idle.
    pub(crate) fn is_stopping(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Ends when the daemon stops. Can be dropped and asked again.
    pub async fn wait(&mut self) {
        // Announcements change nothing here: it ends with the sender.
        while self.0.changed().await.is_ok() {}
    }
}
