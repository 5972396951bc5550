//! What a response's headers say of its limits.
//!
//! There are three families: `X-RateLimit-*`, which most clients know; `RateLimit-Policy` and `RateLimit` of the IETF's
//! draft 11, which are structured fields (RFC 9651); and `RateLimit-Limit`, `-Remaining` and `-Reset` of its earlier
//! drafts. They are written by hand, because a serializer costs more than the check; the tests read every one back by
//! a parser. Who is denied and why is not decided here.

mod number_text;
mod style_text;
#[cfg(test)]
mod tests;

use std::time::Duration;

use arrayvec::ArrayVec;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tollbar::{Degraded, Policy, Timestamp};
use tollbar_rules::{Enforcement, RuleDecision, Verdict};

pub use style_text::HeaderStyleError;

/// A header's name, lower case.
pub(crate) static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(crate) static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(crate) static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(crate) static X_DEGRADED: HeaderName = HeaderName::from_static("x-ratelimit-degraded");
pub(crate) static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) static STATE: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) static SPLIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(crate) static SPLIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
pub(crate) static SPLIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// The most policies that a response lists: with names of full length they fill 2 KiB, and servers
/// and clients that take 8 KiB of headers still have room.
const LISTED_MAX: usize = 8;

/// The largest number that a structured field has.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// The longest name of a limit that is no rule's.
const NAME_BYTES_MAX: usize = 128;

const US_PER_S: u64 = 1_000_000;

/// Which headers responses have, and how they tell the time.
///
/// ```
/// use tollbar_http::{HeaderStyle, Reset};
/// let style = HeaderStyle::default().reset(Reset::Delta).without_ietf();
/// assert_eq!("x,split".parse(), Ok(HeaderStyle::default().without_ietf().with_split()));
/// # let _ = style;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderStyle {
    has_x: bool,
    has_ietf: bool,
    has_split: bool,
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

/// A limit as headers report it, for protocols that decide without a [`Verdict`].
#[derive(Debug, Clone, Copy)]
pub struct LimitReport<'a> {
    /// The name. Characters that a header cannot have become `_`.
    pub name: &'a str,
    /// Tokens a window.
    pub limit: u64,
    /// The window, if it can be told in seconds.
    pub window_s: Option<u64>,
    /// What is left.
    pub remaining: u64,
    /// The time until the reset.
    pub until_reset: Option<Duration>,
}

impl Default for HeaderStyle {
    /// `X-RateLimit-*`, and the IETF's.
    fn default() -> Self {
        Self { has_x: true, has_ietf: true, ..Self::none() }
    }
}

impl HeaderStyle {
    /// No headers but `Retry-After` and, on a degraded answer, `X-RateLimit-Degraded`.
    #[must_use]
    pub fn none() -> Self {
        Self { has_x: false, has_ietf: false, has_split: false, reset: Reset::Epoch }
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

    /// With `RateLimit-Limit`, `-Remaining` and `-Reset`, which counts seconds from now.
    #[must_use]
    pub fn with_split(self) -> Self {
        Self { has_split: true, ..self }
    }

    /// With `X-RateLimit-Reset` in other terms.
    #[must_use]
    pub fn reset(self, reset: Reset) -> Self {
        Self { reset, ..self }
    }

    /// Puts what `verdict` says into `headers`, in place of what they said of limits before, and `Retry-After` where
    /// the client is to wait. `retry_after` is the verdict's, perhaps [lengthened](crate::RetryJitter); no reset is
    /// before it.
    ///
    /// Where no limit was enforced there is nothing to say. Limits in shadow mode are none of the
    /// client's business.
    pub fn write(
        self,
        verdict: &Verdict,
        retry_after: Option<Duration>,
        now: Timestamp,
        headers: &mut HeaderMap,
    ) {
        let mut prepared = PreparedHeaders::default();
        self.prepare(verdict, retry_after, || now, &mut prepared);
        prepared.insert_into(headers);
        if let Some(wait) = retry_after {
            write_retry_after(wait, headers);
        }
    }

    /// Puts what is known of one limit into `headers`.
    pub fn write_limit(self, limit: &LimitReport<'_>, now: Timestamp, headers: &mut HeaderMap) {
        let mut prepared = PreparedHeaders::default();
        let reset_at = limit.until_reset.map(|wait| now.after(wait));
        self.prepare_numbers(limit.limit, Some(limit.remaining), reset_at, || now, &mut prepared);
        if self.has_ietf {
            let name = style_text::header_name_of(limit.name);
            let name = LimitName { rule: &name, place: 0 };
            let mut text = HeaderText::new();
            write_policy(name, limit.limit, limit.window_s, &mut text);
            prepared.policy = text.take();
            let remaining = limit.remaining.min(limit.limit);
            write_state(name, remaining, limit.until_reset.map(seconds_up), &mut text);
            prepared.state = text.take();
        }
        prepared.insert_into(headers);
    }

    /// Prepares the headers of a response that is not there yet. `prepared` is empty so far.
    #[inline]
    pub(crate) fn prepare(
        self,
        verdict: &Verdict,
        retry_after: Option<Duration>,
        now: impl Fn() -> Timestamp,
        prepared: &mut PreparedHeaders,
    ) {
        if verdict.degraded().is_some() {
            prepared.degraded = Some(degraded(verdict));
        }
        let Some(binding) = verdict.binding() else {
            return;
        };
        if self.has_x || self.has_split {
            let reset_at = verdict.reset_at().map(|reset_at| match retry_after {
                Some(wait) => reset_at.max(now().after(wait)),
                None => reset_at,
            });
            let limit = binding.decision().limit();
            self.prepare_numbers(limit, binding.remaining(), reset_at, &now, prepared);
        }
        if self.has_ietf {
            prepared.write_lists(verdict, &binding, retry_after, now());
        }
    }

    #[inline]
    fn prepare_numbers(
        self,
        limit: u64,
        remaining: Option<u64>,
        reset_at: Option<Timestamp>,
        now: impl Fn() -> Timestamp,
        prepared: &mut PreparedHeaders,
    ) {
        (prepared.has_x, prepared.has_split) = (self.has_x, self.has_split);
        (prepared.numbers[0], prepared.number_count) = (limit, 1);
        let Some(remaining) = remaining else {
            return;
        };
        // A burst above the limit is not the limit's: nothing is left of it but itself.
        (prepared.numbers[1], prepared.number_count) = (remaining.min(limit), 2);
        let Some(reset_at) = reset_at else {
            return;
        };
        let epoch_s = reset_at.as_micros().div_ceil(US_PER_S);
        let is_delta_wanted = self.has_split || self.reset == Reset::Delta;
        let delta_s = if is_delta_wanted { seconds_up(reset_at.since(now())) } else { 0 };
        let x_s = if self.reset == Reset::Epoch { epoch_s } else { delta_s };
        (prepared.numbers[2], prepared.numbers[3]) = (x_s, delta_s);
        prepared.number_count = 3;
    }
}

/// `Retry-After` in whole seconds: rounded up, so that whoever waits that long passes, and never 0.
#[must_use]
pub fn retry_after_s(wait: Duration) -> u64 {
    seconds_up(wait).max(1)
}

/// Puts `Retry-After` into `headers`.
pub(crate) fn write_retry_after(wait: Duration, headers: &mut HeaderMap) {
    headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s(wait)));
}

/// The name by which headers and bodies call a limit. The first of a rule has the rule's name, the
/// second has `#2` behind it, which is in no rule's name.
pub(crate) fn name_of(decision: &RuleDecision<'_>) -> String {
    let mut text = HeaderText::new();
    LimitName::from_decision(decision).write(&mut text);
    String::from_utf8_lossy(&text.0).into_owned()
}

/// The parts of a limit's name.
#[derive(Clone, Copy)]
struct LimitName<'a> {
    rule: &'a str,
    /// Which of its rule's limits it is: 0 is the first.
    place: usize,
}

impl<'a> LimitName<'a> {
    fn from_decision(decision: &RuleDecision<'a>) -> Self {
        Self { rule: &decision.rule().name, place: decision.place() }
    }

    fn write(self, text: &mut HeaderText) {
        text.write(self.rule.as_bytes());
        if self.place > 0 {
            text.write(b"#");
            write_number(self.place as u64 + 1, text);
        }
    }

    /// Writes the name as a structured string. Rules have names of letters, digits and `_-.:/`, none of which
    /// needs an escape.
    fn write_string(self, text: &mut HeaderText) {
        text.write(b"\"");
        self.write(text);
        text.write(b"\"");
    }
}

/// The live decisions, the binding one first. Of alternatives, the one that has most left.
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
            decision.enforcement() == Enforcement::Live
                && !is_binding(decision)
                && decision.speaks()
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
fn write_policy(name: LimitName<'_>, limit: u64, window_s: Option<u64>, text: &mut HeaderText) {
    name.write_string(text);
    write_parameter(*b";q=", limit, text);
    if let Some(window_s) = window_s {
        write_parameter(*b";w=", window_s, text);
    }
}

/// `"name";r=42;t=30`
fn write_state(name: LimitName<'_>, remaining: u64, reset_s: Option<u64>, text: &mut HeaderText) {
    name.write_string(text);
    write_parameter(*b";r=", remaining, text);
    if let Some(reset_s) = reset_s {
        write_parameter(*b";t=", reset_s, text);
    }
}

fn write_parameter(name: [u8; 3], value: u64, text: &mut HeaderText) {
    text.write(&name);
    write_number(value.min(INTEGER_MAX), text);
}

fn write_number(value: u64, text: &mut HeaderText) {
    text.write(itoa::Buffer::new().format(value).as_bytes());
}

/// The window of a limit, if it can be told in seconds: a concurrency limit has none, months differ, and half a second is neither
/// 0 nor 1. A rate of a fraction of a token has the time of a whole one, rounded up so that it is never too fast:
/// `0.01/s` is 1 in 100 s.
#[must_use]
pub fn window_s(policy: &Policy) -> Option<u64> {
    let window = policy.limit_window();
    let is_whole = window.subsec_nanos() == 0 && !window.is_zero();
    let is_stretched = window != policy.window() && window > Duration::from_secs(1);
    let can_be_told = is_whole || is_stretched;
    (can_be_told && policy.period() != Some(tollbar::Period::Month)).then(|| seconds_up(window))
}

/// In whole seconds, rounded up.
fn seconds_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).div_ceil(US_PER_S)
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
    /// The limit, what remains, the reset as `X-RateLimit-Reset` has it and in seconds from now. Numbers wait as
    /// numbers.
    numbers: [u64; 4],
    /// How many of limit, remaining and reset are known.
    number_count: u8,
    has_x: bool,
    has_split: bool,
    degraded: Option<Degraded>,
    policy: Option<HeaderValue>,
    state: Option<HeaderValue>,
}

impl PreparedHeaders {
    /// Apart from the rest, which need not have that much room on the stack.
    #[inline(never)]
    fn write_lists(
        &mut self,
        verdict: &Verdict,
        binding: &RuleDecision<'_>,
        retry_after: Option<Duration>,
        now: Timestamp,
    ) {
        let mut text = HeaderText::new();
        write_list(
            listed(verdict, binding),
            |decision, text| {
                let name = LimitName::from_decision(decision);
                let window_s = window_s(decision.limit().policy());
                write_policy(name, decision.decision().limit(), window_s, text);
            },
            &mut text,
        );
        self.policy = text.take();
        // Of what is listed, the binding limit comes first, and the client is to wait for it.
        let waits = std::iter::once(retry_after.unwrap_or_default())
            .chain(std::iter::repeat(Duration::ZERO));
        let read = listed(verdict, binding)
            .zip(waits)
            .filter_map(|(decision, wait)| Some((decision, decision.remaining()?, wait)));
        write_list(
            read,
            |(decision, remaining, wait), text| {
                let until_reset = decision.reset_at().map(|at| at.since(now).max(*wait));
                let remaining = (*remaining).min(decision.decision().limit());
                let name = LimitName::from_decision(decision);
                write_state(name, remaining, until_reset.map(seconds_up), text);
            },
            &mut text,
        );
        self.state = text.take();
    }

    /// Makes room for all of them and for the length of the body, which frameworks put in later: together
    /// they do not fit into the smallest map, and one that has to grow had better do so while there is
    /// little in it.
    pub(crate) fn make_room(&self, headers: &mut HeaderMap) {
        let families = [(self.has_x, 3), (self.policy.is_some(), 2), (self.has_split, 3)];
        let count: usize = families.iter().filter(|(is_in, _)| *is_in).map(|(_, size)| size).sum();
        if count > 3 {
            headers.reserve(count + 1);
        }
    }

    pub(crate) fn insert_into(self, headers: &mut HeaderMap) {
        let [limit, remaining, x_reset, delta] = self.numbers;
        if self.has_x {
            let names = [&X_LIMIT, &X_REMAINING, &X_RESET];
            insert_numbers(names, [limit, remaining, x_reset], self.number_count, headers);
        }
        if self.has_split {
            let names = [&SPLIT_LIMIT, &SPLIT_REMAINING, &SPLIT_RESET];
            insert_numbers(names, [limit, remaining, delta], self.number_count, headers);
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

/// Inserts the limit, what remains and the reset, as far as they are known.
#[inline]
fn insert_numbers(
    [limit_name, remaining_name, reset_name]: [&'static HeaderName; 3],
    [limit, remaining, reset]: [u64; 3],
    count: u8,
    headers: &mut HeaderMap,
) {
    if count > 0 {
        headers.insert(limit_name, number_text::cached(limit));
    }
    if count > 1 {
        headers.insert(remaining_name, number_text::fresh(remaining));
    }
    if count > 2 {
        headers.insert(reset_name, number_text::cached(reset));
    }
}
