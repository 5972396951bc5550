//! An algorithm of one's own: backing off. Each denied try in a row doubles the wait.
//!
//! Tollbar counts it like any other: over the same store, in batches, bounded.

use std::error::Error;
use std::time::Duration;

use tollbar::{Algorithm, Clock, Decision, Limiter, ManualClock, Outcome, Policy, Timestamp};

/// One attempt, then a pause that doubles with every attempt made before the pause was over since
/// the last one that was given: 1 s, 2 s, 4 s, up to `pause_max_us`.
#[derive(Debug)]
struct Backoff {
    pause_us: u64,
    pause_max_us: u64,
}

/// The state: when the next attempt is open, and the pause that was last imposed.
const OPEN_AT: usize = 0;
const PAUSE: usize = 1;

impl Algorithm for Backoff {
    fn name(&self) -> &'static str {
        "backoff"
    }

    fn limit(&self) -> u64 {
        1
    }

    fn window_us(&self) -> u64 {
        self.pause_us
    }

    fn words(&self) -> usize {
        2
    }

    fn transition(&self, state: &mut [u64], now: Timestamp, cost: u64) -> Decision {
        let now_us = now.as_micros();
        // Twice the last pause without an attempt, and all is forgotten.
        if now >= self.fresh_at(state) {
            state.fill(0);
        }
        let closed_us = state[OPEN_AT].saturating_sub(now_us);
        let outcome = match (cost, closed_us) {
            (0, _) => Outcome::Allow,
            (1, 0) => {
                let pause_us = (state[PAUSE] * 2).clamp(self.pause_us, self.pause_max_us);
                state[OPEN_AT] = now_us + pause_us;
                state[PAUSE] = pause_us;
                Outcome::Allow
            }
            (1, retry_after_us) => Outcome::Deny { retry_after_us },
            _ => Outcome::Never,
        };
        let open_at = Timestamp::from_micros(state[OPEN_AT]).max(now);
        Decision::new(outcome, 1, u64::from(open_at == now), open_at)
    }

    fn fresh_at(&self, state: &[u64]) -> Timestamp {
        Timestamp::from_micros(state[OPEN_AT] + 2 * state[PAUSE])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let backoff = Backoff { pause_us: 1_000_000, pause_max_us: 60_000_000 };
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let limiter = Limiter::builder(Policy::custom(backoff)?).clock(clock.clone()).build()?;

    for attempt in 1..=6 {
        // Each attempt has waited for the pause before it.
        let decision = limiter.check("login:ann").ok()?;
        let pause = pause(&decision, &clock);
        println!("attempt {attempt} is let through; the next one has to wait {pause:?}");
        let denied = limiter.check("login:ann").ok().expect_err("it is too early");
        println!("  at once: {denied}");
        clock.advance(pause);
    }
    clock.advance(Duration::from_mins(2));
    let decision = limiter.check("login:ann").ok()?;
    println!("after two quiet minutes: {:?} again", pause(&decision, &clock));
    Ok(())
}

/// How long until the next attempt is open.
fn pause(decision: &Decision, clock: &ManualClock) -> Duration {
    decision.reset_at().map_or(Duration::ZERO, |open_at| open_at - clock.now())
}
