//! How long to wait before the next try to connect: longer each time, and never the same for two clients.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

/// Between tries.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST }
    }

    /// True where there was no pause yet.
    pub(super) fn is_first(&self) -> bool {
        self.next == FIRST
    }

    /// Between a half and the whole of 20 ms, 40 ms, .., 1 s: clients that have lost one daemon do not
    /// come back together.
    #[expect(
        clippy::disallowed_methods,
        reason = "nobody gains by guessing how long another waits"
    )]
    pub(super) fn pause(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST);
        let half_us = whole.as_micros() as u64 / 2;
        Duration::from_micros(half_us + fastrand::u64(0..=half_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_and_vary() {
        let mut backoff = Backoff::new();
        assert!(backoff.is_first());
        for whole_ms in [20, 40, 80, 160, 320, 640, 1_000, 1_000] {
            let pause = backoff.pause();
            let whole = Duration::from_millis(whole_ms);
            assert!(!backoff.is_first());
            assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
        }
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.pause()).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
