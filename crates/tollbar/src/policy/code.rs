//! A policy as a few bytes, for receipts: whoever reads them counts on the same counters, by the
//! same numbers.
//!
//! A tag for the algorithm, the rate, options by tag and value, and the name. Numbers are in
//! LEB128: seven bits a byte, the last one without its high bit.

use std::time::Duration;

use arrayvec::ArrayVec;

use super::kind::Kind;
use super::{Period, Policy};
use crate::algorithm::warm_up::WarmUp;
use crate::algorithm::{Algorithm, leaky_bucket, token_bucket};
use crate::units::Rate;

/// How an algorithm is written. Numbers once given stay.
const TOKEN_BUCKET: u64 = 1;
const LEAKY_BUCKET: u64 = 2;
const FIXED_WINDOW: u64 = 3;
const STAGGERED_WINDOW: u64 = 4;
const CALENDAR_WINDOW: u64 = 5;
const SLIDING_WINDOW: u64 = 6;
const SLIDING_STRICT: u64 = 7;
const SLIDING_LOG: u64 = 8;
const LEAKY_QUEUE: u64 = 9;
const CONCURRENCY: u64 = 12;
const LEASED: u64 = 13;

/// How an option is written.
const BURST: u64 = 1;
const OVERDRAFT: u64 = 2;
const SUBWINDOWS: u64 = 3;
const PERIOD: u64 = 4;
/// Minutes from UTC, counted from the westernmost.
const UTC_OFFSET: u64 = 5;
const WARM_UP_START: u64 = 6;
const WARM_UP_OVER_US: u64 = 7;
const WARM_UP_STEPS: u64 = 8;
const QUEUE_LENGTH: u64 = 9;
const WAIT_US_MAX: u64 = 10;
/// In flight at once, where there is no rate.
const PERMITS: u64 = 12;
const LEASE_US: u64 = 13;
/// Places that a queue has beyond its own.
const QUEUE_RESERVED: u64 = 14;

const UTC_OFFSET_BASE: i64 = 1 << 16;

const OPTIONS_MAX: usize = 8;

type Options = ArrayVec<(u64, u64), OPTIONS_MAX>;

impl Policy {
    /// Appends the policy to `bytes`; false, having appended nothing, for a custom algorithm, which
    /// only the code that has it can count by.
    pub(crate) fn write_code(&self, bytes: &mut Vec<u8>) -> bool {
        let Some((tag, options)) = self.tag_and_options() else {
            return false;
        };
        let rate = self.rate.unwrap_or(Rate { tokens: 0, tokens_divisor: 1, window_us: 0 });
        for number in [tag, rate.tokens, rate.tokens_divisor, rate.window_us] {
            write_number(bytes, number);
        }
        write_number(bytes, options.len() as u64);
        for (option, value) in options {
            write_number(bytes, option);
            write_number(bytes, value);
        }
        write_bytes(bytes, self.name().unwrap_or_default().as_bytes());
        true
    }

    fn tag_and_options(&self) -> Option<(u64, Options)> {
        let mut options = Options::new();
        if let Some(warm_up) = self.warm_up() {
            let WarmUp { start, steps, .. } = warm_up;
            options.extend([(WARM_UP_START, start), (WARM_UP_OVER_US, warm_up.over_us())]);
            options.push((WARM_UP_STEPS, steps.into()));
        }
        let tag = match &*self.kind.plain() {
            Kind::Bucket(meter) => {
                options.extend([(BURST, meter.capacity()), (OVERDRAFT, meter.overdraft())]);
                match meter.name() {
                    token_bucket::NAME => TOKEN_BUCKET,
                    leaky_bucket::NAME => LEAKY_BUCKET,
                    _ => return None,
                }
            }
            Kind::FixedWindow(_) => FIXED_WINDOW,
            Kind::StaggeredWindow(_) => STAGGERED_WINDOW,
            Kind::CalendarWindow(window) => {
                let offset = UTC_OFFSET_BASE + i64::from(window.utc_offset_minutes());
                let period = match window.period() {
                    Period::Day => 0,
                    Period::Week => 1,
                    Period::Month => 2,
                };
                options.extend([(PERIOD, period), (UTC_OFFSET, offset.cast_unsigned())]);
                CALENDAR_WINDOW
            }
            Kind::SlidingWindow(_) => SLIDING_WINDOW,
            Kind::SlidingStrict(window) => {
                options.push((SUBWINDOWS, window.variant()));
                SLIDING_STRICT
            }
            Kind::SlidingLog(_) => SLIDING_LOG,
            Kind::Concurrency(permits) => {
                options.push((PERMITS, permits.limit()));
                CONCURRENCY
            }
            Kind::Leased(leased) => {
                options.extend([(PERMITS, leased.limit()), (LEASE_US, leased.ttl_us())]);
                LEASED
            }
            Kind::LeakyQueue(queue) => {
                options.push((QUEUE_LENGTH, queue.length()));
                options.extend(
                    Some(queue.reserved())
                        .filter(|reserved| *reserved > 0)
                        .map(|reserved| (QUEUE_RESERVED, reserved)),
                );
                options.extend(queue.wait_us_max().map(|wait_us| (WAIT_US_MAX, wait_us)));
                LEAKY_QUEUE
            }
            Kind::WarmUp(_) | Kind::Custom(_) => return None,
        };
        Some((tag, options))
    }

    /// Reads a policy from the front of `bytes`, and leaves what follows. `None` where there is none
    /// that this version knows.
    pub(crate) fn read_code(bytes: &mut &[u8]) -> Option<Self> {
        let tag = read_number(bytes)?;
        let [tokens, tokens_divisor, window_us] =
            [read_number(bytes)?, read_number(bytes)?, read_number(bytes)?];
        // The constructors below refuse a rate that cannot be, such as one whose divisor is 0.
        let rate = Rate { tokens, tokens_divisor, window_us };
        let mut options = Options::new();
        for _ in 0..read_number(bytes)? {
            options.try_push((read_number(bytes)?, read_number(bytes)?)).ok()?;
        }
        let option =
            |wanted| options.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let policy = match tag {
            TOKEN_BUCKET | LEAKY_BUCKET => {
                let bucket = if tag == TOKEN_BUCKET {
                    Self::token_bucket(rate)
                } else {
                    Self::leaky_bucket(rate)
                };
                let bucket = bucket.ok()?.with_burst(option(BURST)?).ok()?;
                bucket.with_overdraft(option(OVERDRAFT)?)
            }
            FIXED_WINDOW => Self::fixed_window(rate),
            STAGGERED_WINDOW => Self::fixed_window(rate).ok()?.with_stagger(),
            CALENDAR_WINDOW => {
                let period = match option(PERIOD)? {
                    0 => Period::Day,
                    1 => Period::Week,
                    2 => Period::Month,
                    _ => return None,
                };
                let offset =
                    i64::try_from(option(UTC_OFFSET)?).ok()?.checked_sub(UTC_OFFSET_BASE)?;
                let window = Self::calendar_window(tokens, period).ok()?;
                window.with_utc_offset(i32::try_from(offset).ok()?)
            }
            SLIDING_WINDOW => Self::sliding_window(rate),
            SLIDING_STRICT => {
                let subwindows = u32::try_from(option(SUBWINDOWS)?).ok()?;
                Self::sliding_window_strict(rate, subwindows)
            }
            SLIDING_LOG => Self::sliding_window_log(rate),
            LEAKY_QUEUE => {
                let reserved = option(QUEUE_RESERVED).unwrap_or(0);
                let length = option(QUEUE_LENGTH)?.checked_add(reserved)?;
                let queue = Self::leaky_queue(rate, length).ok()?.reserving(reserved).ok()?;
                match option(WAIT_US_MAX) {
                    Some(wait_us) => queue.with_max_wait(Duration::from_micros(wait_us)),
                    None => Ok(queue),
                }
            }
            CONCURRENCY => Self::concurrency(option(PERMITS)?),
            LEASED => {
                let ttl = Duration::from_micros(option(LEASE_US)?);
                Self::concurrency(option(PERMITS)?).and_then(|permits| permits.leased(ttl))
            }
            _ => return None,
        };
        let name = std::str::from_utf8(read_bytes(bytes)?).ok()?;
        let mut policy = policy.ok()?;
        if let Some(start) = option(WARM_UP_START) {
            let over = Duration::from_micros(option(WARM_UP_OVER_US)?);
            let steps = u32::try_from(option(WARM_UP_STEPS)?).ok()?;
            policy = policy.with_warm_up(WarmUp { start, over, steps }).ok()?;
        }
        Some(if name.is_empty() { policy } else { policy.with_name(name) })
    }
}

pub(crate) fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// `None` where the bytes end too soon, or hold more than 64 bits.
pub(crate) fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The length, then the bytes.
pub(crate) fn write_bytes(bytes: &mut Vec<u8>, content: &[u8]) {
    write_number(bytes, content.len() as u64);
    bytes.extend_from_slice(content);
}

pub(crate) fn read_bytes<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = usize::try_from(read_number(bytes)?).ok()?;
    let (content, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(content)
}
