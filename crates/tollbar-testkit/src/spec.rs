//! A policy as the vectors write it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollbar::{Policy, PolicyError, Rate};

/// The algorithms the crate has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Tokens earned over time, spent at will.
    TokenBucket,
    /// The same decisions, seen as a meter that drains.
    LeakyBucket,
    /// A count per aligned window.
    FixedWindow,
    /// The current window and a share of the previous one.
    #[serde(rename = "sliding_window_counter")]
    SlidingWindow,
    /// The current sub-window and the n before it.
    SlidingWindowStrict,
}

impl Kind {
    /// Each of them.
    pub const ALL: [Self; 5] = [
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingWindowStrict,
    ];

    /// Its name in rules, metrics and vectors.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window_counter",
            Self::SlidingWindowStrict => "sliding_window_strict",
        }
    }

    /// True for the two that take a burst.
    #[must_use]
    pub fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }
}

/// The numbers of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// How it counts.
    pub algorithm: Kind,
    /// Tokens in a window.
    pub limit: u64,
    /// How long the window is.
    pub window_us: u64,
    /// Buckets: how many tokens fit; the limit where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// `sliding_window_strict`: into how many parts the window is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict_n: Option<u32>,
}

impl PolicySpec {
    /// `limit` tokens in `window_us`; strict windows are cut in ten.
    #[must_use]
    pub fn new(algorithm: Kind, limit: u64, window_us: u64) -> Self {
        let strict_n = (algorithm == Kind::SlidingWindowStrict).then_some(10);
        Self { algorithm, limit, window_us, burst: None, strict_n }
    }

    /// The same with a burst.
    #[must_use]
    pub fn with_burst(self, burst: u64) -> Self {
        Self { burst: Some(burst), ..self }
    }

    /// The same with another number of parts.
    #[must_use]
    pub fn with_parts(self, strict_n: u32) -> Self {
        Self { strict_n: Some(strict_n), ..self }
    }

    /// The policy itself.
    pub fn build(&self) -> Result<Policy, PolicyError> {
        let rate = Rate::new(self.limit, Duration::from_micros(self.window_us));
        let policy = match self.algorithm {
            Kind::TokenBucket => Policy::token_bucket(rate),
            Kind::LeakyBucket => Policy::leaky_bucket(rate),
            Kind::FixedWindow => Policy::fixed_window(rate),
            Kind::SlidingWindow => Policy::sliding_window(rate),
            Kind::SlidingWindowStrict => {
                Policy::sliding_window_strict(rate, self.strict_n.unwrap_or(10))
            }
        }?;
        match self.burst {
            Some(burst) => policy.with_burst(burst),
            None => Ok(policy),
        }
    }
}
