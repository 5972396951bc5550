//! Staggered window: a fixed window on a clock that the key has set back.

use super::fixed::Fixed;
use super::log::{Event, Log};
use crate::oracle::model::{Lending, Model};

/// The numbers of a staggered window, and of one key of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staggered {
    /// What it is on the key's own clock.
    pub fixed: Fixed,
    /// How far the windows of the key are behind those of the others.
    pub stagger_us: u128,
}

impl Staggered {
    /// The key's clock is behind; a window more keeps it from showing less than zero.
    fn ahead_us(&self) -> u128 {
        self.fixed.window_us - self.stagger_us
    }

    fn on_its_clock(&self, log: &Log) -> Log {
        let mut log = log.clone();
        for event in &mut log.events {
            if let Event::Charged { at_us, .. } = event {
                *at_us += self.ahead_us();
            }
        }
        log
    }
}

/// How long after a multiple of the window those of `key` begin, as the documentation has it.
pub(super) fn stagger_us(key: &[u8], window_us: u128) -> u128 {
    const MODULUS: u128 = 1 << 64;
    let mut hash = 0xcbf2_9ce4_8422_2325_u128;
    for byte in key {
        hash = (hash ^ u128::from(*byte)) * 0x0000_0100_0000_01b3 % MODULUS;
    }
    let spread = (hash ^ (hash >> 32)) * 0x9e37_79b9_7f4a_7c15 % MODULUS;
    spread * window_us / MODULUS
}

impl Model for Staggered {
    fn capacity(&self) -> u64 {
        self.fixed.capacity()
    }

    fn fits(&self, log: &Log, now_us: u128, cost: u64) -> bool {
        self.fixed.fits(&self.on_its_clock(log), now_us + self.ahead_us(), cost)
    }

    fn remaining(&self, log: &Log, now_us: u128) -> u128 {
        self.fixed.remaining(&self.on_its_clock(log), now_us + self.ahead_us())
    }

    fn counts(&self, log: &Log, now_us: u128, stamp: u64) -> bool {
        self.fixed.counts(&self.on_its_clock(log), now_us + self.ahead_us(), stamp)
    }

    fn lends(&self) -> Option<Lending> {
        Some(Lending::UntilReset)
    }

    fn reset_at_us(&self, log: &Log, now_us: u128) -> u128 {
        let log = self.on_its_clock(log);
        self.fixed.reset_at_us(&log, now_us + self.ahead_us()) - self.ahead_us()
    }
}

#[cfg(test)]
mod tests {
    use super::stagger_us;

    /// Worked out by a script in another language.
    #[test]
    fn keys_have_their_documented_moments() {
        assert_eq!(stagger_us(b"key", 60_000_000), 42_135_032);
        assert_eq!(stagger_us(b"other", 60_000_000), 21_219_752);
    }
}
