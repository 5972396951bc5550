//! Leaky bucket as a meter: each request pours `cost` in, the bucket leaks at `rate`, and what
//! would overflow is denied.
//!
//! It is the token bucket seen from the other side (the level is what the tokens lack), so its
//! decisions are the same to the microsecond. It has a name of its own because its counters are
//! its own, and because the form that delays instead of denying belongs beside it.

use super::debt::Meter;
use crate::PolicyError;
use crate::units::Rate;

/// The algorithm's name.
pub const NAME: &str = "leaky_bucket";

/// A bucket that holds `burst`, by default as much as leaks out in one window.
pub(crate) fn leaky_bucket(rate: Rate, burst: Option<u64>) -> Result<Meter, PolicyError> {
    Meter::new(NAME, rate, burst)
}
