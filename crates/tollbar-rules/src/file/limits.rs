//! `limit`, `tiers` and `candidate`, and the options that a rule has for all of them.

use std::time::Duration;

use tollbar::{WarmUp, parse_duration};

use super::node::Value;
use super::reader::{Field, Fields, Reader};
use crate::date::parse_offset;
use crate::{Counting, Limit, LimitOptions, TierLimits, Tiers};

/// The options of a rule, which its limits inherit as far as they fit.
#[derive(Debug, Default)]
pub(super) struct Inherited<'n> {
    options: LimitOptions,
    burst: Option<Field<'n>>,
    staggered: Option<Field<'n>>,
    utc_offset: Option<Field<'n>>,
    subwindows: Option<Field<'n>>,
    warm_up: Option<Field<'n>>,
    lease: Option<Field<'n>>,
    queue: Option<Field<'n>>,
    max_wait: Option<Field<'n>>,
    /// Which of them some limit has taken.
    used: Used,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
struct Used {
    burst: bool,
    staggered: bool,
    utc_offset: bool,
    subwindows: bool,
    warm_up: bool,
    lease: bool,
    queue: bool,
    max_wait: bool,
}

/// Whether a limit takes the rule's burst and warm-up: the one of `limit` does, if it is alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleBurst {
    Taken,
    Left,
}

/// How many options there are whose place is kept.
const OPTIONS: usize = 8;

const LIMIT_WHAT: &str = "a limit such as `10/s`, or a list of them";

impl<'n> Inherited<'n> {
    pub(super) fn take(reader: &mut Reader, fields: &mut Fields<'n>) -> Self {
        let (options, options_at) = take_options(reader, fields);
        let [burst, staggered, utc_offset, subwindows, warm_up, lease, queue, max_wait] =
            options_at;
        let used = Used::default();
        Self {
            options,
            burst,
            staggered,
            utc_offset,
            subwindows,
            warm_up,
            lease,
            queue,
            max_wait,
            used,
        }
    }

    /// The limits of the field `limit`.
    pub(super) fn limits(&mut self, reader: &mut Reader, field: &Field<'n>) -> Vec<Limit> {
        let many = field.one_or_many();
        if many.len() > 1 {
            let with_numbers = [
                (&self.burst, "the burst", "burst: 50"),
                (&self.warm_up, "the warm-up", "warm_up: { start: 1, over: 10min }"),
            ];
            for (field, what, example) in with_numbers {
                if let Some(field) = field {
                    let message = format!(
                        "the rule has several limits: write {what} with the one it is for, such as \
                         `{{ limit: 10/s, {example} }}`"
                    );
                    reader.refuse(field, message);
                }
            }
            if self.burst.is_some() || self.warm_up.is_some() {
                return Vec::new();
            }
        }
        many.iter().filter_map(|item| self.limit(reader, item, RuleBurst::Taken)).collect()
    }

    /// The limits of the field `candidate`: `{ limit: 8/s }`.
    pub(super) fn candidate(&mut self, reader: &mut Reader, field: &Field<'n>) -> Vec<Limit> {
        field
            .one_or_many()
            .iter()
            .filter_map(|item| self.limit(reader, item, RuleBurst::Left))
            .collect()
    }

    /// The field `tiers`.
    pub(super) fn tiers(&mut self, reader: &mut Reader, field: &Field<'n>) -> Tiers {
        let what = "a mapping such as `{ free: 100/hour, premium: 10000/hour, default: free }`";
        let Some(mut fields) = reader.fields(field, what) else {
            return Tiers::default();
        };
        let default = fields.take("default");
        let default = default.and_then(|field| reader.text(&field, "the name of a tier"));
        let mut tiers = Tiers { limits: Vec::new(), default: default.map(Into::into) };
        for (key, field) in fields.rest() {
            let limits = match &field.node.value {
                Value::Scalar { text } if **text == *"unlimited" => TierLimits::Unlimited,
                _ => TierLimits::Limits(self.candidate(reader, &field)),
            };
            tiers.limits.push((key.text.as_ref().into(), limits));
        }
        tiers
    }

    /// One limit: a text, or a mapping with options of its own.
    fn limit(&mut self, reader: &mut Reader, item: &Field<'n>, burst: RuleBurst) -> Option<Limit> {
        let (text, own, at) = match &item.node.value {
            Value::Map(_) => {
                let mut fields = reader.fields(item, LIMIT_WHAT)?;
                let limit = fields.take("limit");
                let (options, at) = take_options(reader, &mut fields);
                let place = fields.at;
                fields.finish(reader);
                let Some(limit) = limit else {
                    reader.error(
                        place,
                        &item.path,
                        "there is no `limit` here: write one such as `limit: 10/s`",
                    );
                    return None;
                };
                (limit, options, at)
            }
            _ => (item.clone(), LimitOptions::default(), [const { None }; OPTIONS]),
        };
        let written = reader.text(&text, LIMIT_WHAT)?;
        let options = self.merged(written, own, burst);
        match Limit::new(written, options) {
            Ok(limit) => Some(limit),
            Err(error) => {
                let [burst, staggered, offset, subwindows, warm_up, lease, queue, max_wait] = at;
                let place = match error.field() {
                    "burst" => burst.or_else(|| self.burst.clone()),
                    "staggered" => staggered.or_else(|| self.staggered.clone()),
                    "utc_offset" => offset.or_else(|| self.utc_offset.clone()),
                    "subwindows" => subwindows.or_else(|| self.subwindows.clone()),
                    "warm_up" => warm_up.or_else(|| self.warm_up.clone()),
                    "lease" => lease.or_else(|| self.lease.clone()),
                    "queue" => queue.or_else(|| self.queue.clone()),
                    "max_wait" => max_wait.or_else(|| self.max_wait.clone()),
                    _ => None,
                };
                reader.refuse(&place.unwrap_or(text), error);
                None
            }
        }
    }

    /// A limit's own options, and those of the rule that fit it.
    fn merged(&mut self, written: &str, own: LimitOptions, burst: RuleBurst) -> LimitOptions {
        let rule = self.options;
        let mut merged = own;
        if merged.burst.is_none() && burst == RuleBurst::Taken && rule.burst.is_some() {
            (merged.burst, self.used.burst) = (rule.burst, true);
        }
        if merged.warm_up.is_none() && burst == RuleBurst::Taken && rule.warm_up.is_some() {
            (merged.warm_up, self.used.warm_up) = (rule.warm_up, true);
        }
        // The calendar is counted in one way only, and a burst of its own makes a limit a bucket.
        let is_bucket =
            matches!(rule.counting, Some(Counting::TokenBucket | Counting::LeakyBucket));
        let has_its_own = Limit::is_calendar(written) || own.burst.is_some() && !is_bucket;
        if merged.counting.is_none() && !has_its_own {
            let queue = rule.queue.filter(|_| merged.burst.is_none());
            merged.counting = rule.counting.or(queue.map(|_| Counting::LeakyQueue));
        }
        let counting = Limit::counting_of(written, merged);
        let fits = |own: bool, kind: Counting| !own && counting == kind;
        if fits(merged.staggered, Counting::FixedWindow) && rule.staggered {
            (merged.staggered, self.used.staggered) = (true, true);
        }
        if fits(merged.utc_offset_minutes.is_some(), Counting::CalendarWindow) {
            merged.utc_offset_minutes = rule.utc_offset_minutes;
            self.used.utc_offset |= rule.utc_offset_minutes.is_some();
        }
        if fits(merged.subwindows.is_some(), Counting::SlidingWindowStrict) {
            merged.subwindows = rule.subwindows;
            self.used.subwindows |= rule.subwindows.is_some();
        }
        if fits(merged.queue.is_some(), Counting::LeakyQueue) {
            merged.queue = rule.queue;
            self.used.queue |= rule.queue.is_some();
        }
        if fits(merged.max_wait.is_some(), Counting::LeakyQueue) {
            merged.max_wait = rule.max_wait;
            self.used.max_wait |= rule.max_wait.is_some();
        }
        if fits(merged.lease.is_some(), Counting::Concurrency) {
            merged.lease = rule.lease;
            self.used.lease |= rule.lease.is_some();
        }
        merged
    }

    /// Reports what no limit has taken: the writer believes in something that does not happen.
    pub(super) fn finish(self, reader: &mut Reader) {
        let options = [
            (
                self.burst,
                self.used.burst,
                "a burst is of the rule's own `limit`: write it with the limit it is for, such as \
                 `{ limit: 10/s, burst: 50 }`",
            ),
            (
                self.staggered,
                self.used.staggered || !self.options.staggered,
                "no limit of this rule is a fixed window: write `algorithm: fixed_window`, or \
                 leave this out",
            ),
            (
                self.utc_offset,
                self.used.utc_offset,
                "no limit of this rule is of the calendar: write one such as `1000 per calendar \
                 day`, or leave this out",
            ),
            (
                self.subwindows,
                self.used.subwindows,
                "no limit of this rule has sub-windows: write `algorithm: sliding_window_strict`, \
                 or leave this out",
            ),
            (
                self.warm_up,
                self.used.warm_up,
                "a warm-up is of the rule's own `limit`: write it with the limit it is for, such \
                 as `{ limit: 10/s, warm_up: { start: 1, over: 10min } }`",
            ),
            (
                self.lease,
                self.used.lease,
                "no limit of this rule has permits: write `algorithm: concurrency`, or leave this \
                 out",
            ),
            (
                self.queue,
                self.used.queue,
                "no limit of this rule is a queue: write `algorithm: leaky_queue`, or leave this \
                 out",
            ),
            (
                self.max_wait,
                self.used.max_wait,
                "no limit of this rule is a queue: write `algorithm: leaky_queue`, or leave this \
                 out",
            ),
        ];
        if !reader.errors.is_empty() {
            return;
        }
        for (field, is_used, message) in options {
            if let (Some(field), false) = (field, is_used) {
                reader.refuse(&field, message);
            }
        }
    }
}

/// The options of a limit or of a rule, and where each stands.
fn take_options<'n>(
    reader: &mut Reader,
    fields: &mut Fields<'n>,
) -> (LimitOptions, [Option<Field<'n>>; OPTIONS]) {
    let mut options = LimitOptions::default();
    if let Some(field) = fields.take("algorithm") {
        options.counting = reader.choice(&field, &Counting::NAMED);
    }
    let burst = fields.take("burst");
    options.burst = burst.as_ref().and_then(|field| reader.number(field));
    let staggered = fields.take("staggered");
    options.staggered = staggered.as_ref().and_then(|field| reader.boolean(field)).unwrap_or(false);
    let utc_offset = fields.take("utc_offset");
    options.utc_offset_minutes = utc_offset.as_ref().and_then(|field| offset(reader, field));
    let subwindows = fields.take("subwindows");
    options.subwindows = subwindows.as_ref().and_then(|field| {
        reader.number(field).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    });
    let warm_up = fields.take("warm_up");
    options.warm_up = warm_up.as_ref().and_then(|field| read_warm_up(reader, field));
    let lease = fields.take("lease");
    options.lease = lease.as_ref().and_then(|field| duration(reader, field));
    let queue = fields.take("queue");
    options.queue = queue.as_ref().and_then(|field| reader.number(field));
    let max_wait = fields.take("max_wait");
    options.max_wait = max_wait.as_ref().and_then(|field| duration(reader, field));
    (options, [burst, staggered, utc_offset, subwindows, warm_up, lease, queue, max_wait])
}

/// Steps of a warm-up unless it says otherwise.
const WARM_UP_STEPS: u32 = 4;

fn read_warm_up(reader: &mut Reader, field: &Field<'_>) -> Option<WarmUp> {
    let what = "a mapping such as `{ start: 10, over: 10min, steps: 4 }`";
    let mut fields = reader.fields(field, what)?;
    let start = fields.take("start").map(|field| reader.number(&field));
    let over = fields.take("over").map(|field| duration(reader, &field));
    let steps = fields.take("steps").map(|field| reader.number(&field));
    fields.finish(reader);
    let (Some(start), Some(over)) = (start, over) else {
        reader.refuse(field, format!("a warm-up has a `start` and an `over`: write {what}"));
        return None;
    };
    let steps = match steps {
        None => WARM_UP_STEPS,
        Some(steps) => u32::try_from(steps?).unwrap_or(u32::MAX),
    };
    Some(WarmUp { start: start?, over: over?, steps })
}

/// `10min`, as the window of a rate is written.
fn duration(reader: &mut Reader, field: &Field<'_>) -> Option<Duration> {
    let text = reader.text(field, "a time such as `10min`")?;
    parse_duration(text).map_err(|error| reader.refuse(field, error)).ok()
}

fn offset(reader: &mut Reader, field: &Field<'_>) -> Option<i32> {
    let text = reader.text(field, "an offset such as `+05:30`")?;
    let minutes = parse_offset(text);
    if minutes.is_none() {
        let quoted = crate::pattern::shorten(text);
        reader.refuse(
            field,
            format!("`{quoted}` is not an offset from UTC: write one such as `+05:30` or `-08:00`"),
        );
    }
    minutes
}
