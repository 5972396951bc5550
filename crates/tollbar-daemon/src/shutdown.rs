//! The end of the daemon, in two steps.
//!
//! First it is announced: everything goes on, but answers that can say so tell clients to go elsewhere.
//! A moment later it is time: who is idle is closed. What a client had sent before the first step has
//! been read by the second, so that no connection is closed over an unread request.

use tokio::sync::watch;

/// Stops the daemon when it is dropped.
#[derive(Debug)]
pub struct Stop(watch::Sender<bool>);

/// Tells when the daemon stops.
#[derive(Debug, Clone)]
pub struct Stopped(watch::Receiver<bool>);

impl Stop {
    /// Says that the end is near.
    pub fn announce(&self) {
        self.0.send_replace(true);
    }
}

impl Stopped {
    /// The daemon stops when the first of these is dropped.
    pub fn new() -> (Stop, Self) {
        let (sender, receiver) = watch::channel(false);
        (Stop(sender), Self(receiver))
    }

    /// True from the announcement on.
    pub(crate) fn is_announced(&self) -> bool {
        *self.0.borrow()
    }

    /// True once the daemon stops. For those who are never idle, at the cost of a glance.
    pub(crate) fn is_over(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Ends when the daemon stops. Can be dropped and asked again.
    pub async fn wait(&mut self) {
        // Announcements change nothing here: it ends with the sender.
        while self.0.changed().await.is_ok() {}
    }
}
