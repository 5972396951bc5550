//! `limit`, `tiers` and `candidate`, and the options that a rule has for all of them.

use std::time::Duration;

use tollbar::{WarmUp, parse_duration};

use super::node::Value;
use super::reader::{Field, Fields, Reader};
use crate::date::parse_offset;
use crate::{
    AlgorithmKind, Criticality, Limit, LimitOptions, Per, Reserve, RuleProblem, TierLimits, Tiers,
};

/// The options of a rule, which its limits inherit as far as they fit.
#[derive(Debug)]
pub(super) struct InheritedOptions<'n> {
    options: LimitOptions,
    /// Where each option was written.
    option_fields: OptionFields<'n>,
    /// Which of them some limit has taken.
    used: [bool; OPTIONS.len()],
}

/// Which field a limit is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitOf {
    /// `limit`: it inherits the rule's burst and warm-up.
    Rule,
    /// `any_of`.
    Alternative { order: u8 },
    /// `tiers`, `candidate` or `new_keys`.
    Other,
}

type OptionFields<'n> = [Option<Field<'n>>; OPTIONS.len()];

/// Every option but the algorithm, and what to write where no limit of the rule has a use for it.
const OPTIONS: [(&str, &str); 9] = [
    (
        "burst",
        "a burst is of the rule's own `limit`: write it with the limit it is for, such as \
         `{ limit: 10/s, burst: 50 }`",
    ),
    (
        "staggered",
        "no limit of this rule is a fixed window: write `algorithm: fixed_window`, or leave this out",
    ),
    (
        "utc_offset",
        "no limit of this rule is of the calendar: write one such as `1000 per calendar day`, or \
         leave this out",
    ),
    (
        "subwindows",
        "no limit of this rule has sub-windows: write `algorithm: sliding_window_strict`, or leave \
         this out",
    ),
    (
        "warm_up",
        "a warm-up is of the rule's own `limit`: write it with the limit it is for, such as \
         `{ limit: 10/s, warm_up: { start: 1, over: 10min } }`",
    ),
    (
        "lease",
        "no limit of this rule has permits: write `algorithm: concurrency`, or leave this out",
    ),
    (
        "queue",
        "no limit of this rule is a queue: write `algorithm: leaky_queue`, or leave this out",
    ),
    (
        "max_wait",
        "no limit of this rule is a queue: write `algorithm: leaky_queue`, or leave this out",
    ),
    (
        "reserve",
        "no limit of this rule has a use for it: write it with the limit that it is for, or leave this out",
    ),
];

/// Which of the [`OPTIONS`] are there.
fn is_there(options: LimitOptions) -> [bool; OPTIONS.len()] {
    [
        options.burst.is_some(),
        options.staggered,
        options.utc_offset_minutes.is_some(),
        options.subwindows.is_some(),
        options.warm_up.is_some(),
        options.lease.is_some(),
        options.queue.is_some(),
        options.max_wait.is_some(),
        options.reserve.is_some(),
    ]
}

const LIMIT_WHAT: &str = "a limit such as `10/s`, or a list of them";

impl<'n> InheritedOptions<'n> {
    pub(super) fn take(reader: &mut Reader, fields: &mut Fields<'n>) -> Self {
        let (options, option_fields) = take_options(reader, fields);
        Self { options, option_fields, used: [false; OPTIONS.len()] }
    }

    /// The limits of the field `limit`.
    pub(super) fn limits(&mut self, reader: &mut Reader, field: &Field<'n>) -> Vec<Limit> {
        let any_of = any_of(reader, field);
        let many = field.one_or_many();
        if many.len() > 1 || any_of.is_some() {
            let with_numbers = [
                (option_field(&self.option_fields, "burst"), "the burst", "burst: 50"),
                (
                    option_field(&self.option_fields, "warm_up"),
                    "the warm-up",
                    "warm_up: { start: 1, over: 10min }",
                ),
            ];
            let mut is_refused = false;
            for (field, what, example) in with_numbers {
                if let Some(field) = field {
                    let message = format!(
                        "the rule has several limits: write {what} with the one it is for, such as \
                         `{{ limit: 10/s, {example} }}`"
                    );
                    reader.refuse(field, message);
                    is_refused = true;
                }
            }
            if is_refused {
                return Vec::new();
            }
        }
        if let Some(any_of) = any_of {
            return self.alternatives(reader, &any_of);
        }
        many.iter().filter_map(|item| self.limit(reader, item, LimitOf::Rule)).collect()
    }

    /// The limits of the field `candidate`: `{ limit: 8/s }`.
    pub(super) fn candidate(&mut self, reader: &mut Reader, field: &Field<'n>) -> Vec<Limit> {
        if let Some(any_of) = any_of(reader, field) {
            return self.alternatives(reader, &any_of);
        }
        let many = field.one_or_many();
        many.iter().filter_map(|item| self.limit(reader, item, LimitOf::Other)).collect()
    }

    /// The limits of the field `any_of`: `[20/s, { limit: 1000/min, per: [] }]`. Each element is an alternative.
    fn alternatives(&mut self, reader: &mut Reader, field: &Field<'n>) -> Vec<Limit> {
        const EXAMPLE: &str = "such as `any_of: [20/s, { limit: 1000/min, per: [] }]`";
        let Value::List(items) = &field.node.value else {
            let found = field.node.value.describe();
            reader
                .refuse(field, format!("this is {found}: write a list of alternatives, {EXAMPLE}"));
            return Vec::new();
        };
        match items.len() {
            0 => reader.refuse(field, format!("`any_of` is empty: write alternatives, {EXAMPLE}")),
            1 => reader.refuse(field, RuleProblem::SingleAlternative),
            _ => {}
        }
        let mut limits = Vec::new();
        for (order, item) in field.items().iter().enumerate() {
            if matches!(&item.node.value, Value::List(limits) if limits.is_empty()) {
                reader.refuse(
                    item,
                    "an alternative without a limit allows everything: write one, or leave it out",
                );
            }
            // More than a number has room for are more than a rule may have.
            let order = u8::try_from(order).unwrap_or(u8::MAX);
            let of = LimitOf::Alternative { order };
            limits
                .extend(item.one_or_many().iter().filter_map(|item| self.limit(reader, item, of)));
        }
        limits
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
                Value::Scalar { text, .. } if **text == *"unlimited" => TierLimits::Unlimited,
                _ => TierLimits::Limits(self.candidate(reader, &field)),
            };
            tiers.limits.push((key.text.as_ref().into(), limits));
        }
        tiers
    }

    /// One limit: a text, or a mapping with options of its own.
    fn limit(&mut self, reader: &mut Reader, item: &Field<'n>, of: LimitOf) -> Option<Limit> {
        let mut per = None;
        let (text, own, option_fields) = match &item.node.value {
            Value::Map(_) => {
                if let Some(nested) = any_of(reader, item) {
                    let message = match of {
                        LimitOf::Alternative { .. } => "alternatives have no alternatives of their own: write these among \
                                                        the others, or a list of limits that must all allow".to_owned(),
                        _ => RuleProblem::AlternativesBesideLimits.to_string(),
                    };
                    reader.refuse(&nested, message);
                    return None;
                }
                let mut fields = reader.fields(item, LIMIT_WHAT)?;
                let limit = fields.take("limit");
                if let LimitOf::Alternative { .. } = of {
                    per = fields.take("per").map(|field| read_per(reader, &field));
                }
                let (options, option_fields) = take_options(reader, &mut fields);
                let at = fields.at;
                fields.finish(reader);
                let Some(limit) = limit else {
                    reader.error(
                        at,
                        &item.path,
                        "there is no `limit` here: write one such as `limit: 10/s`",
                    );
                    return None;
                };
                (limit, options, option_fields)
            }
            _ => (item.clone(), LimitOptions::default(), OptionFields::default()),
        };
        let written = reader.text(&text, LIMIT_WHAT)?;
        let options = self.options.inherited_by(written, own, of == LimitOf::Rule);
        for ((used, has), had) in self.used.iter_mut().zip(is_there(options)).zip(is_there(own)) {
            *used |= has && !had;
        }
        match Limit::new(written, options) {
            Ok(limit) => Some(match of {
                LimitOf::Alternative { order } => limit.in_alternative(order, per),
                _ => limit,
            }),
            Err(error) => {
                let of = error.field();
                let field = option_field(&option_fields, of)
                    .or_else(|| option_field(&self.option_fields, of));
                reader.refuse(field.unwrap_or(&text), error);
                None
            }
        }
    }

    /// Reports what no limit has taken: the writer believes in something that does not happen.
    pub(super) fn finish(self, reader: &mut Reader) {
        if !reader.errors.is_empty() {
            return;
        }
        let is_said = is_there(self.options);
        for (at, (_, message)) in OPTIONS.into_iter().enumerate() {
            if let Some(field) =
                self.option_fields[at].as_ref().filter(|_| is_said[at] && !self.used[at])
            {
                reader.refuse(field, message);
            }
        }
    }
}

/// The field `any_of` of a mapping that has one.
fn any_of<'n>(reader: &mut Reader, field: &Field<'n>) -> Option<Field<'n>> {
    let Value::Map(_) = field.node.value else {
        return None;
    };
    let mut fields = reader.fields(field, LIMIT_WHAT)?;
    let any_of = fields.take("any_of")?;
    fields.finish(reader);
    Some(any_of)
}

/// The field `per`: whom a rule or a limit counts apart.
pub(super) fn read_per(reader: &mut Reader, field: &Field<'_>) -> Vec<Per> {
    let what = "attributes such as `[user, path]`, or `[]` for one counter for all";
    let mut per = Vec::new();
    for item in field.one_or_many() {
        let Some(name) = reader.text(&item, what) else {
            continue;
        };
        let part = Per::of_name(name);
        if per.contains(&part) {
            reader.refuse(&item, format!("`{name}` is there already: leave it out"));
        }
        per.push(part);
    }
    per
}

/// The field `new_keys`: a limit that inherits nothing from its rule.
pub(super) fn new_keys(reader: &mut Reader, field: &Field<'_>) -> Option<Limit> {
    let mut own = InheritedOptions {
        options: LimitOptions::default(),
        option_fields: OptionFields::default(),
        used: [false; OPTIONS.len()],
    };
    own.limit(reader, field, LimitOf::Other)
}

/// Where an option was written.
fn option_field<'p, 'n>(option_fields: &'p OptionFields<'n>, name: &str) -> Option<&'p Field<'n>> {
    let at = OPTIONS.iter().position(|option| option.0 == name)?;
    option_fields[at].as_ref()
}

/// The options of a limit or of a rule, and where each was written.
fn take_options<'n>(
    reader: &mut Reader,
    fields: &mut Fields<'n>,
) -> (LimitOptions, OptionFields<'n>) {
    let mut options = LimitOptions::default();
    if let Some(field) = fields.take("algorithm") {
        options.counting = reader.choice(&field, &AlgorithmKind::NAMED);
    }
    let option_fields = OPTIONS.map(|(name, _)| fields.take(name));
    for ((name, _), field) in OPTIONS.into_iter().zip(&option_fields) {
        let Some(field) = field else {
            continue;
        };
        match name {
            "burst" => options.burst = reader.number(field),
            "staggered" => options.staggered = reader.boolean(field).unwrap_or(false),
            "utc_offset" => options.utc_offset_minutes = offset(reader, field),
            "subwindows" => {
                let number = reader.number(field);
                options.subwindows = number.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
            }
            "warm_up" => options.warm_up = read_warm_up(reader, field),
            "lease" => options.lease = duration(reader, field),
            "queue" => options.queue = reader.number(field),
            "reserve" => options.reserve = read_reserve(reader, field),
            _ => options.max_wait = duration(reader, field),
        }
    }
    (options, option_fields)
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

fn read_reserve(reader: &mut Reader, field: &Field<'_>) -> Option<Reserve> {
    let what = "a mapping such as `{ critical: 10% }`";
    let mut fields = reader.fields(field, what)?;
    let shares = Criticality::NAMED.map(|(name, criticality)| (criticality, fields.take(name)));
    let error_count = reader.errors.len();
    fields.finish(reader);
    if reader.errors.len() > error_count {
        return None;
    }
    let mut texts = Vec::new();
    for (criticality, share) in &shares {
        if let Some(share) = share {
            let text = reader.text(share, "a share such as `10%`")?;
            // Each is refused where it stands, and all together where they begin.
            if let Err(error) = Reserve::new([(*criticality, text)]) {
                reader.refuse(share, error);
                return None;
            }
            texts.push((*criticality, text));
        }
    }
    Reserve::new(texts).map_err(|error| reader.refuse(field, error)).ok()
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
        let quoted = crate::message::shorten(text);
        reader.refuse(
            field,
            format!("`{quoted}` is not an offset from UTC: write one such as `+05:30` or `-08:00`"),
        );
    }
    minutes
}
