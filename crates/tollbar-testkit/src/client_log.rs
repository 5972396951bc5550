//! What clients of a real server saw of one limit: the judge of [`bounds`](crate::bounds), for servers and
//! processes that can be watched from outside only.
//!
//! A client knows when it sent a request and when it received the reply. The server decided in between. The
//! lower bound is checked only between denials: a denial proves that the client wanted more than it got, also
//! where clients are slower than the limit.

use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};

use tollbar::Policy;

use crate::bounds::{AdmissionLog, Span};

/// How far the clocks of two processes on one machine may differ: both are the wall clock, read once and
/// continued by the monotonic clock.
const CLOCK_ERROR_US: u64 = 50;

/// The wall clock as it was once, continued by the monotonic clock. Processes on one machine agree about it.
#[derive(Debug, Clone, Copy)]
pub struct ClientClock {
    started: Instant,
    started_us: u64,
}

impl ClientClock {
    /// Reads the wall clock.
    ///
    /// # Panics
    /// If the wall clock is before 1970.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a judge shares no clock with what it judges")]
    pub fn start() -> Self {
        // Both clocks must be read at one instant, so a pair with a pause in between is read again.
        loop {
            let started = Instant::now();
            let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            if started.elapsed() < Duration::from_micros(CLOCK_ERROR_US / 5) {
                let started_us = wall.expect("it is after 1970").as_micros() as u64;
                return Self { started, started_us };
            }
        }
    }

    /// Microseconds since 1970.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.started_us + self.started.elapsed().as_micros() as u64
    }
}

/// The replies that clients received under one limit, for requests of cost 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientLog {
    /// From when to when each admitted request, or pipeline of them, was under way.
    admitted: Vec<Span>,
    /// From when to when each denied request was under way: of a pipeline, one.
    denied: Vec<(u64, u64)>,
}

/// What a log that stayed within its bounds was.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// How many requests were admitted.
    pub admitted: u64,
    /// For how long the lower bound could be checked.
    pub saturated_us: u64,
}

impl ClientLog {
    /// Adds the replies to what was sent at `sent_us` and answered by `received_us`: so many allowed, and so many
    /// denied.
    pub fn record(&mut self, sent_us: u64, received_us: u64, allowed: u64, denied: u64) {
        let (from_us, to_us) = (sent_us - CLOCK_ERROR_US, received_us + CLOCK_ERROR_US);
        if allowed > 0 {
            self.admitted.push(Span { from_us, to_us, tokens: allowed });
        }
        if denied > 0 {
            self.denied.push((from_us, to_us));
        }
    }

    /// Adds what another client has logged.
    pub fn merge(&mut self, other: Self) {
        self.admitted.extend(other.admitted);
        self.denied.extend(other.denied);
    }

    /// How many requests were admitted.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.admitted.iter().map(|span| span.tokens).sum()
    }

    /// Checks that no more was admitted than `policy` promises for `key`, over every interval.
    ///
    /// # Errors
    /// If more was: where, and how much.
    pub fn at_most(&self, policy: &Policy, key: &[u8]) -> Result<(), String> {
        self.admissions().at_most(policy, key)
    }

    /// Checks both bounds that `policy` promises for `key`, over every interval.
    ///
    /// # Errors
    /// If one of them does not hold: where, and by how much.
    pub fn judge(&self, policy: &Policy, key: &[u8]) -> Result<Summary, String> {
        self.at_most(policy, key)?;
        let mut saturated_us = 0;
        for stretch in self.saturated(policy) {
            let log = AdmissionLog { questions_us: stretch.denials_us, ..self.admissions() };
            log.at_least(policy, key, stretch.pause_us_max)?;
            saturated_us += stretch.length_us;
        }
        Ok(Summary { admitted: self.admitted(), saturated_us })
    }

    fn admissions(&self) -> AdmissionLog {
        AdmissionLog { admitted: self.admitted.clone(), questions_us: Vec::new() }
    }

    /// The stretches of time in which the clients certainly wanted more than they got.
    fn saturated(&self, policy: &Policy) -> Vec<SaturatedSpan> {
        let Some(pause_us_max) = pause_us_max(policy) else { return Vec::new() };
        let mut by_end = self.denied.clone();
        by_end.sort_unstable_by_key(|(_, received_us)| *received_us);
        let mut stretches = Vec::new();
        let mut chain: Vec<(u64, u64)> = Vec::new();
        for denial in by_end {
            match chain.last() {
                // It came back later and was sent no later: it proves nothing more.
                Some((sent_us, _)) if denial.0 <= *sent_us => {}
                Some((sent_us, _)) if denial.1 - sent_us > pause_us_max => {
                    stretches.extend(SaturatedSpan::new(&chain));
                    chain = vec![denial];
                }
                _ => chain.push(denial),
            }
        }
        stretches.extend(SaturatedSpan::new(&chain));
        stretches
    }
}

/// A stretch of time with so many denials that nothing earned can have been lost in between.
struct SaturatedSpan {
    denials_us: Vec<u64>,
    length_us: u64,
    /// The longest time between a denial and the next: what was earned in it may not have been asked for.
    pause_us_max: u64,
}

impl SaturatedSpan {
    /// Takes denials in order, each of which was sent and received after the one before.
    fn new(chain: &[(u64, u64)]) -> Option<Self> {
        let (first, last) = (chain.first()?, chain.last()?);
        let sent_us =
            chain.iter().map(|(sent_us, _)| *sent_us).filter(|sent_us| *sent_us > first.1);
        let pauses_us = chain.windows(2).map(|pair| pair[1].1 - pair[0].0);
        Some(Self {
            denials_us: [first.1].into_iter().chain(sent_us).collect(),
            length_us: last.0.checked_sub(first.1)?,
            pause_us_max: pauses_us.max()?,
        })
    }
}

/// The longest time from a denial to the next in which no earned token can be lost; `None` of algorithms without a
/// lower bound.
fn pause_us_max(policy: &Policy) -> Option<u64> {
    let window_us = policy.window().as_micros() as u64;
    match policy.algorithm().name() {
        "token_bucket" | "leaky_bucket" => {
            let token = policy.interval()?;
            Some((policy.capacity() - 1) * token.numerator_us / token.denominator)
        }
        "fixed_window" => Some(window_us),
        "sliding_window_strict" => Some(window_us.div_ceil(policy.algorithm().variant())),
        _ => None,
    }
}

/// For a process that tells another what it saw: a line for each entry.
impl std::fmt::Display for ClientLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Span { from_us, to_us, tokens } in &self.admitted {
            writeln!(f, "admitted {from_us} {to_us} {tokens}")?;
        }
        self.denied.iter().try_for_each(|(from_us, to_us)| writeln!(f, "denied {from_us} {to_us}"))
    }
}

/// Reads the lines that [`Display`](std::fmt::Display) wrote, and skips all others.
impl FromStr for ClientLog {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut log = Self::default();
        for line in text.lines() {
            match *line.split(' ').collect::<Vec<_>>() {
                ["admitted", from_us, to_us, tokens] => log.admitted.push(Span {
                    from_us: from_us.parse()?,
                    to_us: to_us.parse()?,
                    tokens: tokens.parse()?,
                }),
                ["denied", from_us, to_us] => log.denied.push((from_us.parse()?, to_us.parse()?)),
                _ => {}
            }
        }
        Ok(log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client of `100/s` with a burst of 10 that asks every millisecond for a second, and gets a token every
    /// `step_ms`.
    fn log(step_ms: u64) -> ClientLog {
        let mut log = ClientLog::default();
        for at_ms in 0..1_000 {
            let allowed = u64::from(at_ms % step_ms == 0);
            let sent_us = 1_000_000 + at_ms * 1_000;
            log.record(sent_us, sent_us + 100, allowed, 1 - allowed);
        }
        log
    }

    fn bucket() -> Policy {
        Policy::token_bucket("100/s").unwrap().with_burst(10).unwrap()
    }

    #[test]
    fn more_than_the_rate_and_less_than_the_rate_are_noticed() {
        let summary = log(10).judge(&bucket(), b"").unwrap();
        assert_eq!(summary.admitted, 100);
        assert!(summary.saturated_us > 990_000, "{summary:?}");
        assert!(log(9).judge(&bucket(), b"").is_err(), "111 in a second");
        assert!(log(11).judge(&bucket(), b"").is_err(), "91 in a second");
    }

    #[test]
    fn a_client_that_is_never_denied_is_owed_nothing() {
        let mut slow = ClientLog::default();
        for at in 0..50 {
            slow.record(1_000_000 + at * 20_000, 1_000_100 + at * 20_000, 1, 0);
        }
        assert_eq!(slow.judge(&bucket(), b"").unwrap().saturated_us, 0);
    }

    #[test]
    fn pauses_in_which_the_bucket_may_have_filled_end_a_stretch() {
        let mut paused = log(10);
        // Nothing is asked for half a second: 50 tokens are earned, and 40 of them are lost.
        let mut later = log(10);
        later.admitted.iter_mut().for_each(|span| {
            span.from_us += 1_500_000;
            span.to_us += 1_500_000;
        });
        later.denied.iter_mut().for_each(|(from_us, to_us)| {
            *from_us += 1_500_000;
            *to_us += 1_500_000;
        });
        paused.merge(later);
        let summary = paused.judge(&bucket(), b"").unwrap();
        assert!((1_980_000..2_000_000).contains(&summary.saturated_us), "{summary:?}");
    }

    #[test]
    fn a_log_comes_back_from_its_lines() {
        let log = log(10);
        assert_eq!(format!("running 1 test\n{log}ok\n").parse(), Ok(log));
    }
}
