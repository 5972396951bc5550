//! What a response's headers say of its limits.
//!
//! `X-RateLimit-*`, which clients know, and `RateLimit-Policy` and `RateLimit` of the IETF's draft 11,
//! which are structured fields (RFC 9651). They are written by hand, because a serializer costs more
//! than the check; the tests read every one back by a parser. Who is denied and why is not decided
//! here.

#[cfg(test)]
mod tests;

use std::time::Duration;

use arrayvec::ArrayVec;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use smallvec::SmallVec;
use tollbar::{Degraded, Timestamp};
use tollbar_rules::{Capacity, RuleDecision, Verdict};

/// A header's name, lower case.
pub(crate) static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(crate) static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(crate) static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(crate) static X_DEGRADED: HeaderName = HeaderName::from_static("x-ratelimit-degraded");
pub(crate) static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) static STATE: HeaderName = HeaderName::from_static("ratelimit");

/// The most policies that a response lists: with names of full length they fill 2 KiB, and servers
/// and clients that take 8 KiB of headers still have room.
const LISTED_MAX: usize = 8;

/// The largest number that a structured field has.
const INTEGER_MAX: u64 = 999_999_999_999_999;

const US_PER_S: u64 = 1_000_000;

/// Which headers responses have, and how they tell the time.
///
/// ```
/// use tollbar_http::{HeaderStyle, Reset};
/// let style = HeaderStyle::default().reset(Reset::Delta).without_ietf();
/// # let _ = style;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderStyle {
    has_x: bool,
    has_ietf: bool,
    reset: Reset,
}

/// What `X-RateLimit-Reset` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reset {
    /// Seconds since 1970, as GitHub does it.
    #[default]
    Epoch,
    /// Seconds from now.
    Delta,
}

impl Default for HeaderStyle {
    /// All of them.
    fn default() -> Self {
        Self { has_x: true, has_ietf: true, reset: Reset::Epoch }
    }
}

impl HeaderStyle {
    /// No headers but `Retry-After` and, on a degraded answer, `X-RateLimit-Degraded`.
    #[must_use]
    pub fn none() -> Self {
        Self { has_x: false, has_ietf: false, reset: Reset::Epoch }
    }

    /// Without `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    #[must_use]
    pub fn without_x(self) -> Self {
        Self { has_x: false, ..self }
    }

    /// Without `RateLimit-Policy` and `RateLimit`.
    #[must_use]
    pub fn without_ietf(self) -> Self {
        Self { has_ietf: false, ..self }
    }

    /// With `X-RateLimit-Reset` in other terms.
    #[must_use]
    pub fn reset(self, reset: Reset) -> Self {
        Self { reset, ..self }
    }

    /// Puts what `verdict` says into `headers`, in place of what they said of limits before.
    ///
    /// Where no limit was enforced there is nothing to say. Limits in shadow mode are none of the
    /// client's business.
    pub fn write(self, verdict: &Verdict, now: Timestamp, headers: &mut HeaderMap) {
        self.prepare(verdict, || now).insert_into(headers);
    }

    /// The same, for a response that is not there yet.
    pub(crate) fn prepare(self, verdict: &Verdict, now: impl FnOnce() -> Timestamp) -> Prepared {
        let degraded = verdict.degraded().is_some().then(|| degraded(verdict));
        let Some(binding) = verdict.binding().filter(|_| self.has_x || self.has_ietf) else {
            return Prepared { degraded, ..Prepared::default() };
        };
        let now = now();
        // All values in one buffer, of which each header holds a piece: one allocation.
        let mut values = Values { text: String::with_capacity(192), pieces: Pieces::new() };
        if self.has_x {
            self.write_x(&binding, now, &mut values);
        }
        if self.has_ietf {
            let listed = listed(verdict, &binding);
            values.list(&POLICY, &listed, write_policy);
            let seen = listed.iter().filter(|it| !is_blind(it));
            values.list(&STATE, seen, |it, text| write_state(it, now, text));
        }
        Prepared { degraded, text: values.text.into(), pieces: values.pieces }
    }

    fn write_x(self, binding: &RuleDecision<'_>, now: Timestamp, values: &mut Values) {
        let decision = binding.decision();
        values.number(&X_LIMIT, decision.limit());
        if is_blind(binding) {
            return;
        }
        values.number(&X_REMAINING, decision.remaining());
        let reset_us = match self.reset {
            Reset::Epoch => decision.reset_at().as_micros(),
            Reset::Delta => micros(decision.reset_at().since(now)),
        };
        values.number(&X_RESET, reset_us.div_ceil(US_PER_S));
    }
}

/// `Retry-After` in whole seconds: rounded up, so that whoever waits that long passes, and never 0.
#[must_use]
pub fn retry_after_s(wait: Duration) -> u64 {
    micros(wait).div_ceil(US_PER_S).max(1)
}

/// Puts `Retry-After` into `headers`.
pub(crate) fn write_retry_after(wait: Duration, headers: &mut HeaderMap) {
    headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s(wait)));
}

/// The name by which headers and bodies call a limit. The first of a rule has the rule's name, the
/// second has `#2` behind it, which is in no rule's name.
pub(crate) fn write_name(decision: &RuleDecision<'_>, text: &mut String) {
    text.push_str(&decision.rule().name);
    if decision.place() > 0 {
        text.push('#');
        text.push_str(itoa::Buffer::new().format(decision.place() + 1));
    }
}

/// The live decisions, the binding one first.
fn listed<'v>(
    verdict: &'v Verdict,
    binding: &RuleDecision<'v>,
) -> SmallVec<[RuleDecision<'v>; LISTED_MAX]> {
    let is_binding = |it: &RuleDecision<'_>| {
        std::ptr::eq(it.rule(), binding.rule()) && it.place() == binding.place()
    };
    let others = verdict
        .decisions()
        .filter(|it| it.capacity() == Capacity::Live && !is_binding(it))
        .take(LISTED_MAX - 1);
    std::iter::once(*binding).chain(others).collect()
}

/// True where a decision has seen no counter, and so cannot tell what remains.
fn is_blind(decision: &RuleDecision<'_>) -> bool {
    matches!(decision.degraded(), Some(Degraded::Allowed | Degraded::Denied))
}

/// `"name";q=100;w=60`
fn write_policy(it: &RuleDecision<'_>, text: &mut String) {
    write_string(it, text);
    write_parameter(";q=", it.decision().limit(), text);
    if let Some(window_s) = whole_seconds(it) {
        write_parameter(";w=", window_s, text);
    }
}

/// `"name";r=42;t=30`
fn write_state(it: &RuleDecision<'_>, now: Timestamp, text: &mut String) {
    let decision = it.decision();
    let reset_s = micros(decision.reset_at().since(now)).div_ceil(US_PER_S);
    write_string(it, text);
    write_parameter(";r=", decision.remaining(), text);
    write_parameter(";t=", reset_s, text);
}

/// A name as a structured string. Rules have names of letters, digits and `_-.:/`, none of which
/// needs an escape.
fn write_string(it: &RuleDecision<'_>, text: &mut String) {
    text.push('"');
    write_name(it, text);
    text.push('"');
}

fn write_parameter(name: &str, value: u64, text: &mut String) {
    text.push_str(name);
    text.push_str(itoa::Buffer::new().format(value.min(INTEGER_MAX)));
}

/// The window, where it is one that seconds can tell: none of a concurrency limit has one, months
/// differ, and half a second is neither 0 nor 1.
fn whole_seconds(it: &RuleDecision<'_>) -> Option<u64> {
    let policy = it.limit().policy();
    let window = policy.window();
    let is_whole = window.subsec_nanos() == 0 && !window.is_zero();
    (is_whole && policy.period() != Some(tollbar::Period::Month)).then_some(window.as_secs())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn degraded(verdict: &Verdict) -> &'static str {
    match verdict.binding().and_then(|it| it.degraded()) {
        Some(Degraded::Denied) => "denied",
        Some(Degraded::Fallback) => "local",
        Some(Degraded::Allowed) | None => "allowed",
    }
}

/// Whose value ends where; it begins where the one before ends.
type Pieces = ArrayVec<(&'static HeaderName, u32), 5>;

/// Headers that wait for their response.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    degraded: Option<&'static str>,
    text: Bytes,
    pieces: Pieces,
}

impl Prepared {
    pub(crate) fn insert_into(self, headers: &mut HeaderMap) {
        if let Some(how) = self.degraded {
            headers.insert(&X_DEGRADED, HeaderValue::from_static(how));
        }
        headers.reserve(self.pieces.len());
        let mut start = 0;
        for (name, end) in self.pieces {
            let end = end as usize;
            // Digits, names of rules, and what is written above: all of it ASCII.
            if let Ok(value) = HeaderValue::from_maybe_shared(self.text.slice(start..end)) {
                headers.insert(name, value);
            }
            start = end;
        }
    }
}

/// Values of headers in the making.
struct Values {
    text: String,
    pieces: Pieces,
}

impl Values {
    fn number(&mut self, name: &'static HeaderName, value: u64) {
        self.text.push_str(itoa::Buffer::new().format(value));
        self.pieces.push((name, self.text.len() as u32));
    }

    /// A list. An empty one is no header at all.
    fn list<'d, 'v: 'd>(
        &mut self,
        name: &'static HeaderName,
        items: impl IntoIterator<Item = &'d RuleDecision<'v>>,
        write: impl Fn(&RuleDecision<'_>, &mut String),
    ) {
        let start = self.text.len();
        for item in items {
            if self.text.len() > start {
                self.text.push_str(", ");
            }
            write(item, &mut self.text);
        }
        if self.text.len() > start {
            self.pieces.push((name, self.text.len() as u32));
        }
    }
}
