//! What a response's headers say of its limits.
//!
//! `X-RateLimit-*`, which clients know, and `RateLimit-Policy` and `RateLimit` of the IETF's draft 11,
//! which are structured fields (RFC 9651). They are written by hand, because a serializer costs more
//! than the check; the tests read every one back by a parser. Who is denied and why is not decided
//! here.

mod number_text;
#[cfg(test)]
mod tests;

use std::time::Duration;

use arrayvec::ArrayVec;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tollbar::{Degraded, Timestamp};
use tollbar_rules::{Enforcement, RuleDecision, Verdict};

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

/// How many headers an answer has that is not degraded.
const HEADERS: usize = 5;

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
        let mut prepared = PreparedHeaders::default();
        self.prepare(verdict, || now, &mut prepared);
        prepared.insert_into(headers);
    }

    /// The same, for a response that is not there yet: into what is empty so far.
    #[inline]
    pub(crate) fn prepare(
        self,
        verdict: &Verdict,
        now: impl Fn() -> Timestamp,
        prepared: &mut PreparedHeaders,
    ) {
        if verdict.degraded().is_some() {
            prepared.degraded = Some(degraded(verdict));
        }
        let Some(binding) = verdict.binding() else {
            return;
        };
        if self.has_x {
            prepared.numbers[0] = binding.decision().limit();
            prepared.number_count = 1;
            if let Some(counter) = CounterState::from_decision(&binding) {
                let reset_us = match self.reset {
                    Reset::Epoch => counter.reset_at.as_micros(),
                    Reset::Delta => micros(counter.reset_at.since(now())),
                };
                prepared.numbers[1] = counter.remaining;
                prepared.numbers[2] = reset_us.div_ceil(US_PER_S);
                prepared.number_count = 3;
            }
        }
        if self.has_ietf {
            prepared.write_lists(verdict, &binding, now());
        }
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
pub(crate) fn name_of(decision: &RuleDecision<'_>) -> String {
    let mut text = HeaderText::new();
    write_name(decision, &mut text);
    String::from_utf8_lossy(&text.0).into_owned()
}

fn write_name(decision: &RuleDecision<'_>, text: &mut HeaderText) {
    text.write(decision.rule().name.as_bytes());
    if decision.place() > 0 {
        text.write(b"#");
        write_number(decision.place() as u64 + 1, text);
    }
}

/// The live decisions, the binding one first.
fn listed<'v>(
    verdict: &'v Verdict,
    binding: &RuleDecision<'v>,
) -> impl Iterator<Item = RuleDecision<'v>> {
    let binding = *binding;
    let is_binding = move |decision: &RuleDecision<'_>| {
        std::ptr::eq(decision.rule(), binding.rule()) && decision.place() == binding.place()
    };
    let others = verdict
        .decisions()
        .filter(move |decision| {
            decision.enforcement() == Enforcement::Live && !is_binding(decision)
        })
        .take(LISTED_MAX - 1);
    std::iter::once(binding).chain(others)
}

/// A list, its items apart by commas.
fn write_list<T>(
    items: impl Iterator<Item = T>,
    write: impl Fn(&T, &mut HeaderText),
    text: &mut HeaderText,
) {
    let start = text.len();
    for item in items {
        if text.len() > start {
            text.write(b", ");
        }
        write(&item, text);
    }
}

/// `"name";q=100;w=60`
fn write_policy(decision: &RuleDecision<'_>, text: &mut HeaderText) {
    write_string(decision, text);
    write_parameter(*b";q=", decision.decision().limit(), text);
    if let Some(window_s) = whole_seconds(decision) {
        write_parameter(*b";w=", window_s, text);
    }
}

/// `"name";r=42;t=30`
fn write_state(
    decision: &RuleDecision<'_>,
    counter: CounterState,
    now: Timestamp,
    text: &mut HeaderText,
) {
    let reset_s = micros(counter.reset_at.since(now)).div_ceil(US_PER_S);
    write_string(decision, text);
    write_parameter(*b";r=", counter.remaining, text);
    write_parameter(*b";t=", reset_s, text);
}

/// A name as a structured string. Rules have names of letters, digits and `_-.:/`, none of which
/// needs an escape.
fn write_string(decision: &RuleDecision<'_>, text: &mut HeaderText) {
    text.write(b"\"");
    write_name(decision, text);
    text.write(b"\"");
}

fn write_parameter(name: [u8; 3], value: u64, text: &mut HeaderText) {
    text.write(&name);
    write_number(value.min(INTEGER_MAX), text);
}

fn write_number(value: u64, text: &mut HeaderText) {
    text.write(itoa::Buffer::new().format(value).as_bytes());
}

/// The window, where it is one that seconds can tell: none of a concurrency limit has one, months
/// differ, and half a second is neither 0 nor 1.
fn whole_seconds(decision: &RuleDecision<'_>) -> Option<u64> {
    let policy = decision.limit().policy();
    let window = policy.window();
    let is_whole = window.subsec_nanos() == 0 && !window.is_zero();
    (is_whole && policy.period() != Some(tollbar::Period::Month)).then_some(window.as_secs())
}

/// The state of a counter that was read.
#[derive(Clone, Copy)]
struct CounterState {
    remaining: u64,
    reset_at: Timestamp,
}

impl CounterState {
    fn from_decision(decision: &RuleDecision<'_>) -> Option<Self> {
        Some(Self { remaining: decision.remaining()?, reset_at: decision.reset_at()? })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// How a degraded answer came about.
#[cold]
fn degraded(verdict: &Verdict) -> Degraded {
    verdict.binding().and_then(|decision| decision.degraded()).unwrap_or(Degraded::Allowed)
}

fn name_of_degraded(how: Degraded) -> &'static str {
    match how {
        Degraded::Denied => "denied",
        Degraded::Fallback => "local",
        Degraded::Allowed => "allowed",
    }
}

/// The value of a header, in the making.
struct HeaderText(ArrayVec<u8, TEXT_BYTES_MAX>);

/// What [`LISTED_MAX`] limits take, with names of full length and numbers of full width:
/// 8 x (128 + 44) bytes.
const TEXT_BYTES_MAX: usize = 1_536;

impl HeaderText {
    fn new() -> Self {
        Self(ArrayVec::new())
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let has_room = self.0.try_extend_from_slice(bytes).is_ok();
        debug_assert!(has_room, "headers outgrow their buffer");
    }

    /// What is written so far, and the next begins. An empty one is no header. Digits, names of rules, and
    /// what is written above: all of it ASCII.
    fn take(&mut self) -> Option<HeaderValue> {
        let value = HeaderValue::from_bytes(&self.0).ok().filter(|value| !value.is_empty());
        self.0.clear();
        value
    }
}

/// Headers that wait for their response, in little room: they are moved about with it.
#[derive(Debug, Default)]
pub(crate) struct PreparedHeaders {
    /// The limit, what remains, the reset. Numbers wait as numbers.
    numbers: [u64; 3],
    /// How many of them are known.
    number_count: u8,
    degraded: Option<Degraded>,
    policy: Option<HeaderValue>,
    state: Option<HeaderValue>,
}

impl PreparedHeaders {
    /// Apart from the rest, which need not have that much room on the stack.
    #[inline(never)]
    fn write_lists(&mut self, verdict: &Verdict, binding: &RuleDecision<'_>, now: Timestamp) {
        let mut text = HeaderText::new();
        write_list(listed(verdict, binding), write_policy, &mut text);
        self.policy = text.take();
        let read = listed(verdict, binding)
            .filter_map(|decision| Some((decision, CounterState::from_decision(&decision)?)));
        write_list(
            read,
            |(decision, counter), text| write_state(decision, *counter, now, text),
            &mut text,
        );
        self.state = text.take();
    }

    /// Makes room for all of them and for the length of the body, which frameworks put in later: together
    /// they do not fit into the smallest map, and one that has to grow had better do so while there is
    /// little in it.
    pub(crate) fn make_room(&self, headers: &mut HeaderMap) {
        if self.policy.is_some() {
            headers.reserve(HEADERS + 1);
        }
    }

    pub(crate) fn insert_into(self, headers: &mut HeaderMap) {
        let [limit, remaining, reset] = self.numbers;
        if self.number_count > 0 {
            headers.insert(&X_LIMIT, number_text::cached(limit));
        }
        if self.number_count > 1 {
            headers.insert(&X_REMAINING, number_text::fresh(remaining));
            headers.insert(&X_RESET, number_text::cached(reset));
        }
        if let Some(policy) = self.policy {
            headers.insert(&POLICY, policy);
        }
        if let Some(state) = self.state {
            headers.insert(&STATE, state);
        }
        if let Some(how) = self.degraded {
            headers.insert(&X_DEGRADED, HeaderValue::from_static(name_of_degraded(how)));
        }
    }
}
