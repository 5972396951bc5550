//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell has it: a bucket whose numbers
//! come with every command, and an answer of five numbers.
//!
//! The emission interval of redis-cell's GCRA is `period / count`, and `max_burst + 1` may come at
//! once: that is a token bucket of so many tokens that earns `count` in each `period`. Commands that
//! follow each other are decided together, at one instant, so that their memory is fetched together.

use std::time::Duration;

use arrayvec::ArrayVec;
use thiserror::Error;
use tollbar::{Batch, Decision, Entry, Outcome, Policy, PolicyError, Rate, Timestamp};

use super::Shared;
use super::frame::Arguments;
use super::reply::{Excerpt, Replies};

/// The name of the command.
const COMMAND: &str = "CL.THROTTLE";
pub(super) const NAME: &[u8] = COMMAND.as_bytes();

/// How many commands are decided together at most.
const TOGETHER_MAX: usize = 32;

/// How many different limits a connection keeps at hand. Who uses more has them made anew.
const POLICIES_MAX: usize = 64;

/// The name of the policies, so that keys of commands and keys of rules never meet: no rule's name
/// has a space in it.
const POLICY_NAME: &str = "by CL.THROTTLE";

/// Why a command cannot be used. The first two are redis-cell's own texts.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum ThrottleError {
    #[error("Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]")]
    Usage,
    #[error("Couldn't parse as integer: {0}")]
    Integer(String),
    #[error("{name} is {value}: send at least {least}")]
    TooSmall { name: &'static str, value: i64, least: i64 },
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The numbers of a limit, as they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThrottleParameters {
    max_burst: u64,
    count: u64,
    period_s: u64,
}

/// A limit, ready to be used.
#[derive(Debug)]
struct ThrottleLimit {
    parameters: ThrottleParameters,
    policy: Policy,
}

/// The limits that a connection has used.
#[derive(Debug, Default)]
pub(super) struct ThrottleLimits {
    known: Vec<ThrottleLimit>,
    /// Where the last one is, which is mostly the next one too.
    last: usize,
}

/// One command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Throttle<'b> {
    key: &'b [u8],
    parameters: ThrottleParameters,
    quantity: u64,
}

/// Commands that wait to be decided together.
#[derive(Debug, Default)]
pub(super) struct Throttles<'b> {
    /// Each with the place of its limit.
    waiting: ArrayVec<(Throttle<'b>, usize), TOGETHER_MAX>,
}

impl<'b> Throttle<'b> {
    pub(super) fn parse(arguments: &Arguments<'b>) -> Result<Self, ThrottleError> {
        let (key, [max_burst, count, period], quantity) = match arguments[..] {
            [_, key, max_burst, count, period] => (key, [max_burst, count, period], None),
            [_, key, max_burst, count, period, quantity] => {
                (key, [max_burst, count, period], Some(quantity))
            }
            _ => return Err(ThrottleError::Usage),
        };
        Ok(Self {
            key,
            parameters: ThrottleParameters {
                max_burst: at_least(0, "max_burst", max_burst)?,
                count: at_least(1, "count", count)?,
                period_s: at_least(1, "period", period)?,
            },
            quantity: quantity.map_or(Ok(1), |quantity| at_least(0, "quantity", quantity))?,
        })
    }
}

fn at_least(least: i64, name: &'static str, text: &[u8]) -> Result<u64, ThrottleError> {
    let value = integer(text)?;
    // `least` is 0 or more, so what is not below it has no sign to lose.
    if value < least {
        return Err(ThrottleError::TooSmall { name, value, least });
    }
    Ok(value.unsigned_abs())
}

fn integer(text: &[u8]) -> Result<i64, ThrottleError> {
    // Few digits cannot overflow, and are what is sent.
    if (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit) {
        return Ok(text.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')));
    }
    let parsed = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| ThrottleError::Integer(Excerpt(text).to_string()))
}

impl ThrottleParameters {
    /// How many may come at once.
    fn limit(self) -> u64 {
        self.max_burst.saturating_add(1)
    }

    fn policy(self) -> Result<Policy, PolicyError> {
        let rate = Rate::new(self.count, Duration::from_secs(self.period_s));
        Ok(Policy::token_bucket(rate)?.with_burst(self.limit())?.with_name(POLICY_NAME))
    }
}

impl ThrottleLimits {
    /// Where the limit of these numbers is; made where it is not known.
    fn index_of(&mut self, parameters: ThrottleParameters) -> Result<usize, PolicyError> {
        let is_it = |limit: &ThrottleLimit| limit.parameters == parameters;
        if self.known.get(self.last).is_some_and(is_it) {
            return Ok(self.last);
        }
        self.last = if let Some(index) = self.known.iter().position(is_it) {
            index
        } else {
            self.known.push(ThrottleLimit { parameters, policy: parameters.policy()? });
            self.known.len() - 1
        };
        Ok(self.last)
    }
}

impl<'b> Throttles<'b> {
    /// True where they have to be decided before more are taken in.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.is_full()
    }

    /// Takes a command in, which [`decide`](Self::decide) will answer.
    pub(super) fn push(
        &mut self,
        throttle: Throttle<'b>,
        limits: &mut ThrottleLimits,
    ) -> Result<(), ThrottleError> {
        let index = limits.index_of(throttle.parameters)?;
        self.waiting.push((throttle, index));
        Ok(())
    }

    /// Decides all that wait, and answers them in their order.
    pub(super) async fn decide(
        &mut self,
        shared: &Shared,
        limits: &mut ThrottleLimits,
        replies: &mut Replies,
    ) {
        if self.waiting.is_empty() {
            return;
        }
        let entry = |(throttle, index): &(Throttle<'b>, usize)| {
            let policy = &limits.known[*index].policy;
            Entry::new(throttle.key, policy).with_cost(throttle.quantity)
        };
        let mut entries: ArrayVec<Entry<'_>, TOGETHER_MAX> =
            self.waiting.iter().map(entry).collect();
        let answer = shared.store.decide(Batch::independent(&mut entries)).await;
        // Read afterwards: a reset that lies a second ahead of the decision must not become two.
        let now = shared.daemon.now();
        for ((throttle, _), entry) in self.waiting.iter().zip(&entries) {
            match (&answer, entry.decision()) {
                (Ok(()), Some(decision)) => {
                    if throttle.quantity > 0 {
                        shared.daemon.count(decision.is_allowed());
                    }
                    if let Some(wait) = decision.denied().and_then(|it| it.retry_after()) {
                        let (engine, policy) = (&shared.daemon.engine, entry.policy());
                        engine.denied_elsewhere(COMMAND, entry.key(), policy, wait).await;
                    }
                    if !write(throttle.parameters.limit(), &decision, now, replies) {
                        replies.error("UNAVAILABLE the store has not counted");
                    }
                }
                // Five numbers have no place for a mark, so what was not counted is an error.
                (Err(error), _) => replies.error(format_args!("UNAVAILABLE {error}")),
                (Ok(()), None) => replies.error("UNAVAILABLE the store has not answered"),
            }
        }
        drop(entries);
        self.waiting.clear();
        if limits.known.len() > POLICIES_MAX {
            *limits = ThrottleLimits::default();
        }
    }
}

/// Writes five numbers: limited or not, the limit, what remains, when to come back or -1, when all is there
/// again. Returns false, having written nothing, if no counter was read.
fn write(limit: u64, decision: &Decision, now: Timestamp, replies: &mut Replies) -> bool {
    let (Some(remaining), Some(reset_at)) = (decision.remaining(), decision.reset_at()) else {
        return false;
    };
    replies.array(5);
    replies.integer(u8::from(!decision.is_allowed()));
    replies.integer(limit);
    replies.integer(remaining);
    match decision.outcome() {
        Outcome::Deny { retry_after_us } => replies.integer(seconds(retry_after_us)),
        Outcome::Allow | Outcome::Busy | Outcome::Never => replies.integer(-1),
    }
    replies.integer(seconds(reset_at.as_micros().saturating_sub(now.as_micros())));
    true
}

/// Up: who waits so many seconds does not come too early.
fn seconds(wait_us: u64) -> u64 {
    wait_us.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests;
