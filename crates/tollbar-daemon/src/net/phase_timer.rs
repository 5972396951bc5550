//! How long a connection is waited for, without a timer for every request.
//!
//! A connection has one clock that ticks every few seconds, and looks whether the connection is still
//! at what it was at. A request moves a number on, and that is all it costs. So times are kept up to a
//! tick: what may take 10 s is ended after 10 to 15.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

/// The longest and the shortest time between two looks.
const TICK_MAX: Duration = Duration::from_secs(5);
const TICK_MIN: Duration = Duration::from_millis(1);

/// The phase of an HTTP/1.1 connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// A head is waited for.
    Head,
    /// A body is waited for.
    Body,
    /// The client waits for us.
    Response,
}

/// Notices a connection that stays in one phase for too long.
#[derive(Debug)]
pub struct PhaseTimer {
    tick: Duration,
    /// For an answer to be taken and the next head to come: also how long an idle connection is kept.
    head_ticks: u128,
    /// For a body.
    body_ticks: u128,
    /// How many phases there have been, and in the last two bits which it is. One task writes it.
    state: AtomicU64,
}

/// Set beside a phase that has taken too long.
const LATE: u64 = 3;

impl PhaseTimer {
    pub(crate) fn new(head_time: Duration, body_time: Duration) -> Self {
        let tick = (head_time.min(body_time) / 2).clamp(TICK_MIN, TICK_MAX);
        let ticks = |time: Duration| time.as_nanos().div_ceil(tick.as_nanos());
        let (head_ticks, body_ticks) = (ticks(head_time), ticks(body_time));
        Self { tick, head_ticks, body_ticks, state: AtomicU64::new(0) }
    }

    /// Notes that the connection has entered another phase.
    pub(crate) fn enter(&self, phase: ConnectionPhase) {
        let count = self.state.load(Ordering::Relaxed) | 3;
        self.state.store(count.wrapping_add(1) | phase as u64, Ordering::Relaxed);
    }

    /// Returns a number that is different after each change of phase.
    pub(super) fn state(&self) -> u64 {
        self.state.load(Ordering::Relaxed)
    }

    /// Returns true while the client waits for a response, or for the rest of one that was last sent at the state
    /// `flushed`.
    pub(super) fn is_response_due(&self, flushed: u64) -> bool {
        let state = self.state();
        let phase = state & 3;
        phase == ConnectionPhase::Response as u64
            || (phase == ConnectionPhase::Head as u64 && state != flushed)
    }

    /// True where the body has not come in time.
    pub(crate) fn is_late(&self) -> bool {
        self.state.load(Ordering::Relaxed) & 3 == LATE
    }

    /// Ends when the connection is of no more use: no head has come, or the answer is not taken. One
    /// whose body has not come is late, and is told so before it ends.
    pub(crate) async fn wait_until_late(&self) {
        let (mut seen, mut ticks) = (self.state.load(Ordering::Relaxed), 0);
        loop {
            #[expect(clippy::let_underscore_must_use, reason = "it always ends by the timeout")]
            let _ = timeout(self.tick, pending::<()>()).await;
            let state = self.state.load(Ordering::Relaxed);
            ticks = if state == seen { ticks + 1 } else { 0 };
            seen = state;
            match state & 3 {
                phase if phase == ConnectionPhase::Head as u64 && ticks >= self.head_ticks => {
                    return;
                }
                phase if phase == ConnectionPhase::Body as u64 && ticks >= self.body_ticks => {
                    self.state.store(state | LATE, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn phase_timer() -> PhaseTimer {
        PhaseTimer::new(Duration::from_secs(30), Duration::from_secs(10))
    }

    /// How many seconds until the connection is given up, or its body is late.
    async fn waited(phase_timer: &PhaseTimer) -> u64 {
        let start = Instant::now();
        let late = async {
            while !phase_timer.is_late() {
                let _ = timeout(Duration::from_secs(1), pending::<()>()).await;
            }
        };
        tokio::select! {
            () = phase_timer.wait_until_late() => {}
            () = late => {}
        }
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn heads_and_bodies_have_their_time_and_a_tick() {
        assert!((30..=35).contains(&waited(&phase_timer()).await));
        let phase_timer = phase_timer();
        phase_timer.enter(ConnectionPhase::Body);
        assert!((10..=15).contains(&waited(&phase_timer).await));
        assert!(phase_timer.is_late());
        phase_timer.enter(ConnectionPhase::Response);
        assert!(!phase_timer.is_late());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_us_or_keeps_asking_is_not_given_up() {
        let phase_timer = phase_timer();
        phase_timer.enter(ConnectionPhase::Response);
        let hour = Duration::from_hours(1);
        assert!(timeout(hour, phase_timer.wait_until_late()).await.is_err());
        let asking = async {
            for _ in 0..100 {
                for phase in
                    [ConnectionPhase::Body, ConnectionPhase::Response, ConnectionPhase::Head]
                {
                    phase_timer.enter(phase);
                    let _ = timeout(Duration::from_secs(8), pending::<()>()).await;
                    assert!(!phase_timer.is_late());
                }
            }
        };
        tokio::select! {
            () = phase_timer.wait_until_late() => panic!("given up"),
            () = asking => {}
        }
    }
}
