//! Token bucket: a bucket of `burst` tokens that fills at `rate`; a request takes `cost` of them.
//!
//! At most `burst + rate x T` pass in any interval of length T, and a client that always asks gets
//! at least `rate x T - 1`. The retry-after is exact. What is stored is the tokens that are
//! missing, as the time it takes to earn them: see `debt.rs`.

use super::debt::Meter;
use crate::PolicyError;
use crate::units::Rate;

/// The algorithm's name.
pub const NAME: &str = "token_bucket";

/// A bucket of `burst` tokens, by default as many as the rate gives per window.
pub(crate) fn token_bucket(rate: Rate, burst: Option<u64>) -> Result<Meter, PolicyError> {
    Meter::new(NAME, rate, burst)
}
