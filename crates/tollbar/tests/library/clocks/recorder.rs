//! The judge's clock, and what one thread saw of one key.

use std::time::{Duration, Instant};

use tollbar::{Clock, Decision, Policy};
use tollbar_testkit::bounds::{AdmissionLog, Span};

/// How far the store's clock may be behind the judge's. It runs slow by a thousandth and is corrected
/// every millisecond, and both round to microseconds.
pub(crate) const CLOCK_BEHIND_US: u64 = 5;

/// A monotonic clock that shows the store's microseconds, so that the judge knows where windows begin.
/// It is set once, and runs by itself from then on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JudgeClock {
    started: Instant,
    started_us: u64,
}

impl JudgeClock {
    /// Sets a clock by the store's: to the farthest that it gets in a few milliseconds, since its
    /// interpolation is slow and never fast.
    #[expect(clippy::disallowed_methods, reason = "a judge needs a clock of its own")]
    pub(crate) fn beside(clock: &dyn Clock) -> Self {
        let started = Instant::now();
        let mut started_us = 0;
        while started.elapsed() < Duration::from_millis(5) {
            let shown_us = clock.now().as_micros();
            let elapsed_us = started.elapsed().as_micros() as u64;
            started_us = started_us.max(shown_us - elapsed_us);
        }
        Self { started, started_us }
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.started_us + self.started.elapsed().as_micros() as u64
    }
}

/// Denials that follow another one so soon are not kept.
const DENIALS_EVERY_US: u64 = 50;

/// What was answered for one key.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    admitted: AdmissionLog,
    /// Of a queue, when admitted requests departed.
    departed: Option<AdmissionLog>,
    denied: Vec<Span>,
}

impl Recorder {
    pub(crate) fn new(policy: &Policy) -> Self {
        let departed = policy.queue_length().map(|_| AdmissionLog::default());
        Self { admitted: AdmissionLog::default(), departed, denied: Vec::new() }
    }

    /// Adds a decision about one token that was asked for at `from_us` and answered by `to_us`.
    pub(crate) fn record(&mut self, from_us: u64, to_us: u64, decision: &Decision) {
        // What is in microseconds was rounded down.
        let span = Span { from_us: from_us - CLOCK_BEHIND_US, to_us: to_us + 1, tokens: 1 };
        if !decision.is_allowed() {
            let last_us = self.denied.last().map_or(0, |denial| denial.to_us);
            if from_us >= last_us + DENIALS_EVERY_US {
                self.denied.push(span);
            }
            return;
        }
        self.admitted.admitted.push(span);
        if let Some(departed) = &mut self.departed {
            let delay_us = decision.delay().as_micros() as u64;
            let (from_us, to_us) = (span.from_us + delay_us, span.to_us + delay_us);
            departed.admitted.push(Span { from_us, to_us, ..span });
        }
    }

    /// Adds what another thread saw of the same key.
    pub(crate) fn merge(&mut self, other: Self) {
        self.admitted.merge(other.admitted);
        self.denied.extend(other.denied);
        if let (Some(departed), Some(other)) = (&mut self.departed, other.departed) {
            departed.merge(other);
        }
    }

    /// Checks that no interval has more than the limit in it, and that every denial was due.
    pub(crate) fn judge(&self, policy: &Policy, key: &str) -> Result<(), String> {
        let key = key.as_bytes();
        self.departed.as_ref().unwrap_or(&self.admitted).at_most(policy, key)?;
        self.admitted.justifies(policy, key, &self.denied, 1)
    }
}
