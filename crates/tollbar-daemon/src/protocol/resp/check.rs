//! `TB.CHECK`, `TB.PEEK`, `TB.SUBJECT` and `TB.RESERVE`: requests under the daemon's rules; `TB.COMMIT` and
//! `TB.CANCEL`: what they have reserved; `TB.RENEW` and `TB.RELEASE`: the permits that they hold; `TB.EXPLAIN`: why
//! one was denied.

use std::time::Duration;

use arrayvec::ArrayVec;
use thiserror::Error;
use tollbar::{Outcome, Timestamp};
use tollbar_rules::{
    CheckOutcome, Criticality, InvalidRequest, Request, RuleSettlement, Summary, TokenError,
    UsageError, whole_digits,
};

use super::frame::{ARGUMENTS_MAX, Arguments};
use super::reply::{Excerpt, Replies};
use crate::daemon::{AnswerRef, Daemon};
use crate::decision_log::DecisionId;
use crate::protocol::http::{
    RESERVATION_TTL_DEFAULT, ReasonName, explain_decision, millis, reservation_ttl,
};

/// Pairs of what remains of a frame.
type Attributes<'b> = ArrayVec<(&'b str, &'b str), { ARGUMENTS_MAX / 2 }>;

/// Why a command cannot be used.
#[derive(Debug, Error)]
pub(super) enum CheckError {
    #[error("`{0}` is not UTF-8")]
    Text(String),
    #[error("`{word}` is not understood: write one of {}", options.join(", "))]
    Word { word: String, options: &'static [&'static str] },
    #[error("`{0}` needs a value behind it")]
    NoValue(&'static str),
    #[error("`{0}` is given twice: write it once")]
    Twice(&'static str),
    #[error("the cost `{0}` is not a number from 0 to 18446744073709551615")]
    Cost(String),
    #[error("`TTL` is {0}: send 1 to 86400000 milliseconds, which is a day")]
    Ttl(String),
    #[error("there is no criticality `{0}`: write low, normal, high or critical")]
    Criticality(String),
    #[error("`{0}` is no decision id: write its 32 digits, as a denial or the log has them")]
    DecisionId(String),
    #[error("attributes come in pairs, and the last name has no value behind it")]
    OddAttributes,
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    #[error(transparent)]
    Subject(#[from] UsageError),
    #[error(transparent)]
    Lease(#[from] TokenError),
}

/// What can follow the fixed words of a command.
#[derive(Debug, Default)]
struct CheckOptions<'b> {
    cost: Option<u64>,
    /// How long a reservation lasts.
    ttl: Option<Duration>,
    request_id: Option<&'b str>,
    criticality: Option<Criticality>,
    attributes: Attributes<'b>,
}

/// Which options each command has.
const OF_CHECK: &[&str] = &["COST", "ID", "CRITICALITY", "WITH"];
const OF_PEEK: &[&str] = &["CRITICALITY", "WITH"];
const OF_RESERVE: &[&str] = &["COST", "TTL", "ID", "CRITICALITY", "WITH"];
const OF_COMMIT: &[&str] = &["COST"];
const OF_SUBJECT: &[&str] = &["COST", "ID", "WITH"];

/// `TB.CHECK method path [COST n] [ID id] [CRITICALITY word] [WITH name value ..]`
pub(super) async fn check(
    arguments: &Arguments<'_>,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    check_request(arguments, OF_CHECK, 1, daemon, replies).await
}

/// `TB.PEEK method path [CRITICALITY word] [WITH name value ..]`
pub(super) async fn peek(
    arguments: &Arguments<'_>,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    check_request(arguments, OF_PEEK, 0, daemon, replies).await
}

/// `TB.SUBJECT rule subject [COST n] [ID id] [WITH name value ..]`
pub(super) async fn subject(
    arguments: &Arguments<'_>,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    let (rule, subject) = (text(arguments[1])?, text(arguments[2])?);
    let options = CheckOptions::parse(&arguments[3..], OF_SUBJECT)?;
    let (cost, id) = (options.cost.unwrap_or(1), options.request_id);
    let answer = daemon.check_subject(rule, subject, &options.attributes, cost, id).await?;
    write(answer.as_ref(), false, replies);
    Ok(())
}

/// `TB.RESERVE method path [COST n] [TTL ms] [ID id] [CRITICALITY word] [WITH name value ..]`: the reply of `TB.CHECK`,
/// and the receipt.
pub(super) async fn reserve(
    arguments: &Arguments<'_>,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    let options = CheckOptions::parse(&arguments[3..], OF_RESERVE)?;
    let request = options.request(arguments, 1, daemon)?;
    let ttl = options.ttl.unwrap_or(RESERVATION_TTL_DEFAULT);
    write(daemon.check(&request, Some(ttl)).await.as_ref(), true, replies);
    Ok(())
}

/// `TB.COMMIT receipt [COST n]`: settles a reservation at what it came to, or at what was reserved.
pub(super) async fn commit(
    arguments: &Arguments<'_>,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    let options = CheckOptions::parse(&arguments[2..], OF_COMMIT)?;
    write_settlement(&daemon.settle(text(arguments[1])?, options.cost).await?, replies);
    Ok(())
}

/// `TB.CANCEL receipt`: gives back what was reserved.
pub(super) async fn cancel(
    arguments: &Arguments<'_>,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    write_settlement(&daemon.settle(text(arguments[1])?, Some(0)).await?, replies);
    Ok(())
}

/// `TB.EXPLAIN id`: what `GET /v1/decisions/{id}` answers, as JSON; null where no such denial is remembered.
pub(super) async fn explain(
    arguments: &Arguments<'_>,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    let word = text(arguments[1])?;
    let wrong = || CheckError::DecisionId(Excerpt(arguments[1]).to_string());
    let id = DecisionId::parse(word).ok_or_else(wrong)?;
    replies.bulk_or_null(explain_decision(daemon, id).await.as_deref());
    Ok(())
}

/// `TB.RENEW lease`: until when it lasts now, in milliseconds since 1970; null where it has ended.
pub(super) async fn renew(
    arguments: &Arguments<'_>,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    let ends_at = daemon.renew(text(arguments[1])?).await?;
    replies.integer_or_null(ends_at.map(instant_ms));
    Ok(())
}

/// `TB.RELEASE lease`: 1, or 0 where it had ended before.
pub(super) async fn release(
    arguments: &Arguments<'_>,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    let is_released = daemon.release(text(arguments[1])?).await?;
    replies.integer(u8::from(is_released));
    Ok(())
}

async fn check_request(
    arguments: &Arguments<'_>,
    options: &'static [&'static str],
    cost: u64,
    daemon: &Daemon,
    replies: &mut Replies,
) -> Result<(), CheckError> {
    let options = CheckOptions::parse(&arguments[3..], options)?;
    let request = options.request(arguments, cost, daemon)?;
    if daemon.check_at_once(&request, |answer| write(answer, false, replies)).is_none() {
        write(daemon.check(&request, None).await.as_ref(), false, replies);
    }
    Ok(())
}

impl<'b> CheckOptions<'b> {
    fn parse(words: &[&'b [u8]], options: &'static [&'static str]) -> Result<Self, CheckError> {
        let mut found = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = options.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(word));
            match name.copied() {
                Some(name @ "COST") => {
                    let value = value(name, &mut words)?;
                    let cost = whole_digits(value).and_then(|digits| digits.parse().ok());
                    let cost = cost.ok_or_else(|| CheckError::Cost(excerpt(value)))?;
                    once(name, found.cost.replace(cost).is_none())?;
                }
                Some(name @ "TTL") => {
                    let value = value(name, &mut words)?;
                    let ttl = value.parse().ok().and_then(reservation_ttl);
                    let ttl = ttl.ok_or_else(|| CheckError::Ttl(excerpt(value)))?;
                    once(name, found.ttl.replace(ttl).is_none())?;
                }
                Some(name @ "ID") => {
                    once(name, found.request_id.replace(value(name, &mut words)?).is_none())?;
                }
                Some(name @ "CRITICALITY") => {
                    let value = value(name, &mut words)?;
                    let criticality = Criticality::of_name(&value.to_ascii_lowercase())
                        .ok_or_else(|| CheckError::Criticality(excerpt(value)))?;
                    once(name, found.criticality.replace(criticality).is_none())?;
                }
                Some(_) => {
                    // To the end, so that attributes may have any name, that of an option too.
                    found.attributes = pairs(words.as_slice())?;
                    break;
                }
                None => {
                    return Err(CheckError::Word { word: Excerpt(word).to_string(), options });
                }
            }
        }
        Ok(found)
    }

    /// Returns the request of a command whose first arguments are a method and a path.
    fn request<'r>(
        &'r self,
        arguments: &Arguments<'r>,
        default_cost: u64,
        daemon: &Daemon,
    ) -> Result<Request<'r>, CheckError> {
        let mut request = Request::new(text(arguments[1])?, text(arguments[2])?)?;
        request.set_attributes(&self.attributes)?;
        request.set_cost(self.cost.unwrap_or(default_cost));
        if let Some(criticality) = self.criticality {
            daemon.set_criticality(&mut request, criticality);
        }
        if let Some(id) = self.request_id {
            request = request.with_request_id(id);
        }
        Ok(request)
    }
}

fn value<'b>(
    name: &'static str,
    words: &mut std::slice::Iter<'_, &'b [u8]>,
) -> Result<&'b str, CheckError> {
    text(words.next().ok_or(CheckError::NoValue(name))?)
}

fn once(name: &'static str, is_first: bool) -> Result<(), CheckError> {
    if is_first { Ok(()) } else { Err(CheckError::Twice(name)) }
}

fn pairs<'b>(words: &[&'b [u8]]) -> Result<Attributes<'b>, CheckError> {
    let (pairs, rest) = words.as_chunks();
    if !rest.is_empty() {
        return Err(CheckError::OddAttributes);
    }
    // A frame has no more words than there is room for.
    pairs.iter().map(|[name, value]| Ok((text(name)?, text(value)?))).collect()
}

fn text(bytes: &[u8]) -> Result<&str, CheckError> {
    str::from_utf8(bytes).map_err(|_| CheckError::Text(Excerpt(bytes).to_string()))
}

fn excerpt(text: &str) -> String {
    Excerpt(text.as_bytes()).to_string()
}

/// Writes names and values, those of HTTP's `CheckResponse`; the receipt only if `has_receipt`.
fn write(answer: AnswerRef<'_>, has_receipt: bool, replies: &mut Replies) {
    let AnswerRef { verdict, decision_id, lease, receipt } = answer;
    let Summary {
        is_allowed,
        check,
        outcome,
        reason,
        // The reason says it, but for mistakes.
        denial: _,
        rule,
        limit,
        remaining,
        reset_at,
        retry_after,
        delay,
    } = verdict.summary();
    let is_degraded = match check {
        CheckOutcome::Rejected(code) if code.is_mistake() => {
            let message = verdict.denial_message().unwrap_or_default();
            return replies.error(format_args!("{} {message}", code.as_str().to_uppercase()));
        }
        CheckOutcome::Degraded(..) => true,
        CheckOutcome::Decided(_) | CheckOutcome::NoRule | CheckOutcome::Rejected(_) => false,
    };
    let name = |replies: &mut Replies, name: &str| replies.bulk(name.as_bytes());
    replies.map(13 + usize::from(has_receipt));
    name(replies, "allowed");
    replies.boolean(is_allowed);
    name(replies, "outcome");
    name(replies, outcome_name(outcome));
    name(replies, "reason");
    name(replies, ReasonName::from(reason).name());
    name(replies, "rule");
    replies.bulk_or_null(rule.map(|rule| rule.name.as_bytes()));
    name(replies, "limit");
    replies.integer_or_null(limit);
    name(replies, "remaining");
    replies.integer_or_null(remaining);
    name(replies, "retry_after_ms");
    replies.integer_or_null(retry_after.map(millis));
    name(replies, "delay_ms");
    replies.integer(millis(delay));
    name(replies, "reset_at_ms");
    replies.integer_or_null(reset_at.map(instant_ms));
    name(replies, "degraded");
    replies.boolean(is_degraded);
    name(replies, "decision_id");
    replies.bulk(&decision_id.digits());
    name(replies, "lease");
    replies.bulk_or_null(lease.map(|lease| lease.text.as_bytes()));
    name(replies, "lease_ends_at_ms");
    replies.integer_or_null(lease.and_then(|lease| lease.ends_at).map(instant_ms));
    if has_receipt {
        name(replies, "receipt");
        replies.bulk_or_null(receipt.map(str::as_bytes));
    }
}

/// Writes names and values, those of HTTP's `SettleResponse`.
fn write_settlement(settlement: &RuleSettlement, replies: &mut Replies) {
    let RuleSettlement { limits, permits_returned, .. } = settlement;
    replies.map(2);
    replies.bulk(b"charges");
    replies.array(limits.len());
    for limit in limits {
        replies.map(5);
        replies.bulk(b"rule");
        replies.bulk(limit.rule.as_bytes());
        for (name, tokens) in [
            ("reserved", limit.reserved),
            ("spent", limit.spent),
            ("refunded", limit.refunded),
            ("overdrawn", limit.overdrawn),
        ] {
            replies.bulk(name.as_bytes());
            replies.integer(tokens);
        }
    }
    replies.bulk(b"permits_returned");
    replies.integer(*permits_returned);
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Deny { .. } => "deny",
        Outcome::Busy => "busy",
        Outcome::Never => "never",
    }
}

/// Up, so that who waits until then gets through.
fn instant_ms(at: Timestamp) -> u64 {
    at.as_micros().div_ceil(1_000)
}
