//! `CL.THROTTLE key max_burst count period [quantity] [WITHID]`, as redis-cell has it: a bucket whose numbers
//! come with every command, and an answer of five numbers. `WITHID` is ours: the decision id of a denial follows them.
//!
//! The emission interval of redis-cell's GCRA is `period / count`, and `max_burst + 1` may come at
//! once: that is a token bucket of so many tokens that earns `count` in each `period`. Commands that
//! follow each other are decided together, at one instant, so that their memory is fetched together.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::Duration;

use arrayvec::ArrayVec;
use thiserror::Error;
use tollbar::{Batch, Decision, Entry, Outcome, Policy, PolicyError, Rate, Timestamp};
use tollbar_rules::{
    AsyncEngine, GLOBAL_BAN, GlobalOverrides, StandaloneLimit, UsageAmounts, Verdict,
    meter_standalone,
};

use super::RespState;
use super::frame::Arguments;
use super::reply::{Excerpt, Replies};
use crate::daemon::{Check, Daemon};
use crate::decision_log::{DecisionId, LoggedRequest};
use crate::metrics::Outcome as CheckedOutcome;

/// The name of the command.
const COMMAND: &str = "CL.THROTTLE";
pub(super) const NAME: &[u8] = COMMAND.as_bytes();

/// What usage is accounted under. No rule has this name.
const USAGE_RULE: &str = "(CL.THROTTLE)";

/// How many commands are decided together at most.
const TOGETHER_MAX: usize = 32;

/// The longest period, and the longest time in which a key may be filled again: 366 days.
const PERIOD_S_MAX: u64 = 366 * 86_400;

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
    #[error(
        "the {what} is longer than {} days: send a shorter period, a smaller max_burst or a larger count",
        PERIOD_S_MAX / 86_400
    )]
    TooLong { what: &'static str },
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
    /// What a boost multiplies it by, in percent.
    factor_percent: Option<u32>,
    policy: Policy,
    /// The limit as logs have it, made when it first denies.
    standalone: OnceLock<StandaloneLimit>,
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
    /// The reply ends with the decision id of a denial.
    with_id: bool,
}

/// Commands that wait to be decided together.
#[derive(Debug, Default)]
pub(super) struct Throttles<'b> {
    waiting: ArrayVec<WaitingThrottle<'b>, TOGETHER_MAX>,
}

/// A command that waits to be decided.
#[derive(Debug)]
struct WaitingThrottle<'b> {
    throttle: Throttle<'b>,
    /// The place of its limit.
    limit: usize,
    /// The verdict, where its key is banned: then nothing is charged.
    ban: Option<Box<Verdict>>,
}

impl ThrottleParameters {
    /// Refuses a limit whose counters would be kept for longer than anybody means.
    fn check_times(self) -> Result<(), ThrottleError> {
        let Self { max_burst, count, period_s } = self;
        if period_s > PERIOD_S_MAX {
            return Err(ThrottleError::TooLong { what: "period" });
        }
        // 16 tokens at 30 a minute are there again after (15 + 1) * 60 / 30 = 32 s.
        let filled_s = (u128::from(max_burst) + 1) * u128::from(period_s) / u128::from(count);
        if filled_s > u128::from(PERIOD_S_MAX) {
            return Err(ThrottleError::TooLong { what: "time until a used-up key is whole again" });
        }
        Ok(())
    }
}

impl<'b> Throttle<'b> {
    pub(super) fn parse(arguments: &Arguments<'b>) -> Result<Self, ThrottleError> {
        let (key, [max_burst, count, period], rest) = match &arguments[..] {
            [_, key, max_burst, count, period, rest @ ..] => {
                (*key, [*max_burst, *count, *period], rest)
            }
            _ => return Err(ThrottleError::Usage),
        };
        let (quantity, with_id) = match rest {
            [] => (None, false),
            [word] if is_with_id(word) => (None, true),
            [quantity] => (Some(*quantity), false),
            [quantity, word] if is_with_id(word) => (Some(*quantity), true),
            _ => return Err(ThrottleError::Usage),
        };
        let parameters = ThrottleParameters {
            max_burst: at_least(0, "max_burst", max_burst)?,
            count: at_least(1, "count", count)?,
            period_s: at_least(1, "period", period)?,
        };
        parameters.check_times()?;
        Ok(Self {
            key,
            parameters,
            quantity: quantity.map_or(Ok(1), |quantity| at_least(0, "quantity", quantity))?,
            with_id,
        })
    }
}

fn is_with_id(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"WITHID")
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
    /// Where the limit of these numbers is, multiplied by a boost; made where it is not known.
    fn index_of(
        &mut self,
        parameters: ThrottleParameters,
        factor_percent: Option<u32>,
    ) -> Result<usize, PolicyError> {
        let is_it = |limit: &ThrottleLimit| {
            limit.parameters == parameters && limit.factor_percent == factor_percent
        };
        if self.known.get(self.last).is_some_and(is_it) {
            return Ok(self.last);
        }
        self.last = if let Some(index) = self.known.iter().position(is_it) {
            index
        } else {
            let policy = parameters.policy()?;
            let policy = factor_percent.map_or(policy.clone(), |factor| policy.boosted(factor));
            let standalone = OnceLock::new();
            self.known.push(ThrottleLimit { parameters, factor_percent, policy, standalone });
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
        shared: &RespState,
        limits: &mut ThrottleLimits,
    ) -> Result<(), ThrottleError> {
        let engine = &shared.daemon.engine;
        let overrides = if engine.has_overrides() {
            throttle.overrides(engine)
        } else {
            GlobalOverrides::default()
        };
        let limit = limits.index_of(throttle.parameters, overrides.factor_percent)?;
        let ban = overrides.ban.map(Box::new);
        self.waiting.push(WaitingThrottle { throttle, limit, ban });
        Ok(())
    }

    /// Decides all that wait, and answers them in their order.
    pub(super) async fn decide(
        &mut self,
        shared: &RespState,
        limits: &mut ThrottleLimits,
        replies: &mut Replies,
    ) {
        if self.waiting.is_empty() {
            return;
        }
        let daemon = &shared.daemon;
        let cost = |waiting: &WaitingThrottle<'b>| match waiting.ban {
            Some(_) => 0,
            None => waiting.throttle.quantity,
        };
        let entry = |waiting: &WaitingThrottle<'b>| {
            let policy = &limits.known[waiting.limit].policy;
            Entry::new(waiting.throttle.key, policy).with_cost(cost(waiting))
        };
        let mut entries: ArrayVec<Entry<'_>, TOGETHER_MAX> =
            self.waiting.iter().map(entry).collect();
        let began: ArrayVec<Option<Check>, TOGETHER_MAX> =
            self.waiting.iter().map(|waiting| daemon.begin_standalone(cost(waiting))).collect();
        let answer = shared.store.decide(Batch::independent(&mut entries)).await;
        // Read afterwards: a reset that lies a second ahead of the decision must not become two.
        let now = daemon.now();
        for ((waiting, entry), began) in self.waiting.iter().zip(&entries).zip(began) {
            let WaitingThrottle { throttle, limit, ban } = waiting;
            let limit = &limits.known[*limit];
            if let Some(ban) = ban {
                let id = throttle.conclude_ban(ban, daemon);
                write_ban(limit.policy.capacity(), ban, throttle.with_id, replies);
                throttle.write_id(Some(id), replies);
                continue;
            }
            match (&answer, entry.decision()) {
                (Ok(()), Some(decision)) => {
                    let id = throttle.conclude(limit, decision, began, daemon);
                    if let Some(wait) = decision.denied().and_then(|denial| denial.retry_after()) {
                        let (engine, policy) = (&daemon.engine, entry.policy());
                        engine.denied_elsewhere(COMMAND, entry.key(), policy, wait).await;
                    }
                    if write(limit.policy.capacity(), &decision, throttle.with_id, now, replies) {
                        throttle.write_id(id, replies);
                    } else {
                        replies.error("UNAVAILABLE the store has not counted");
                    }
                }
                // Five numbers have no place for a mark, so what was not counted is an error.
                (Err(error), _) => {
                    if error.is_outage() && throttle.quantity > 0 {
                        daemon.count(CheckedOutcome::DegradedAllow);
                    }
                    replies.error(format_args!("UNAVAILABLE {error}"));
                }
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

impl Throttle<'_> {
    /// What bans and boosts under every rule say of the key, which is read as they are written: `user:42`. They
    /// are texts of bounded length, so none is of a key that is not.
    fn overrides(&self, engine: &AsyncEngine) -> GlobalOverrides {
        let subject = str::from_utf8(self.key).ok();
        let found = subject.and_then(|subject| engine.global_overrides_of_subject(subject).ok());
        found.unwrap_or_default()
    }

    /// Counts and traces a decision, and records it if it denies: then it returns the id by which the denial can be
    /// looked up.
    fn conclude(
        &self,
        limit: &ThrottleLimit,
        decision: Decision,
        began: Option<Check>,
        daemon: &Daemon,
    ) -> Option<DecisionId> {
        let outcome =
            if decision.is_allowed() { CheckedOutcome::Allow } else { CheckedOutcome::Deny };
        let key = if decision.is_allowed() && began.is_none() {
            Cow::Borrowed("")
        } else {
            String::from_utf8_lossy(self.key)
        };
        let verdict = || limit.standalone().verdict(self.quantity, decision);
        let logged = || LoggedRequest::subject(COMMAND, &key, self.quantity);
        self.meter(USAGE_RULE, decision.is_allowed(), daemon);
        daemon.conclude_standalone(outcome, self.quantity, began, verdict, logged)
    }

    /// Counts usage. The client is the key as it was sent, so `user:42` is the user 42 of rules.
    fn meter(&self, rule: &str, is_admitted: bool, daemon: &Daemon) {
        if self.quantity > 0 && daemon.is_metered() {
            let key = String::from_utf8_lossy(self.key);
            let amounts = UsageAmounts::of_request(self.quantity, is_admitted, true);
            let facts = [("client", &*key)];
            meter_standalone(rule, &facts, amounts, |record| daemon.count_usage(&record));
        }
    }

    fn conclude_ban(&self, ban: &Verdict, daemon: &Daemon) -> DecisionId {
        let key = String::from_utf8_lossy(self.key);
        self.meter(GLOBAL_BAN, false, daemon);
        let logged = || LoggedRequest::subject(COMMAND, &key, self.quantity);
        let check = daemon.begin(self.quantity);
        daemon.conclude(ban, &check, logged);
        check.id
    }

    /// Writes the decision id of a denial, or null, if the command asks for it.
    #[inline]
    fn write_id(&self, id: Option<DecisionId>, replies: &mut Replies) {
        if self.with_id {
            replies.bulk_or_null(id.map(DecisionId::digits).as_ref().map(|digits| &digits[..]));
        }
    }
}

impl ThrottleLimit {
    fn standalone(&self) -> &StandaloneLimit {
        self.standalone.get_or_init(|| {
            let ThrottleParameters { count, period_s, .. } = self.parameters;
            let text = format!("{count}/{period_s}s, {} at once", self.policy.capacity());
            StandaloneLimit::new(COMMAND, &text, &self.policy)
        })
    }
}

/// Writes the five numbers of a key that is banned: nothing remains until the ban ends, if it does.
fn write_ban(limit: u64, ban: &Verdict, with_id: bool, replies: &mut Replies) {
    let wait_s = ban.retry_after().map(|wait| wait.as_micros().div_ceil(1_000_000));
    let wait_s = wait_s.map(|wait_s| i64::try_from(wait_s).unwrap_or(i64::MAX));
    replies.array(5 + usize::from(with_id));
    replies.integer(1_u8);
    replies.integer(limit);
    replies.integer(0_u8);
    replies.integer(wait_s.unwrap_or(-1));
    replies.integer(wait_s.unwrap_or(-1));
}

/// Writes five numbers: limited or not, the limit, what remains, when to come back or -1, when all is there
/// again. Returns false, having written nothing, if no counter was read.
fn write(
    limit: u64,
    decision: &Decision,
    with_id: bool,
    now: Timestamp,
    replies: &mut Replies,
) -> bool {
    let (Some(remaining), Some(reset_at)) = (decision.remaining(), decision.reset_at()) else {
        return false;
    };
    replies.array(5 + usize::from(with_id));
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
