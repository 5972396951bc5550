//! What the daemon tells systemd, where that has started it and asks: ready, reloading, stopping, alive.
//! Anywhere else nothing is told, and nothing is an error.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

pub(crate) fn notify_ready() {
    notify(&[NotifyState::Ready, NotifyState::Status("answering")]);
}

/// Until [`notify_ready`] is said again.
pub(crate) fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
        Err(error) => warn!(%error, "cannot tell systemd of a reload"),
    }
}

pub(crate) fn notify_stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("answering what has been asked")]);
}

/// Feeds the watchdog; due every [`watchdog_period`].
pub(crate) fn feed_watchdog() {
    notify(&[NotifyState::Watchdog]);
}

/// Returns how often to call [`feed_watchdog`]: twice as often as systemd demands. `None` without a watchdog.
pub(crate) fn watchdog_period() -> Option<Duration> {
    let half = sd_notify::watchdog_enabled()? / 2;
    (!half.is_zero()).then_some(half)
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "cannot tell systemd");
    }
}
