//! What every benchmark of Tollbar shares: keys, rounds, medians, reports, and the floor.
//!
//! Ratios are the point, not absolute times: the machine is shared and its speed drifts, so every
//! subject is measured once a round, in an order that rotates, and ratios are taken within a
//! round. Nothing here knows a limiter; the subjects are the binary's.
//!
//! | module | what it has |
//! |---|---|
//! | [`harness`] | worker processes, rounds and the timed loop |
//! | [`floor`] | the least work a limiter could do |
//! | [`keys`] | sequences of keys, uniform and Zipf |
//! | [`report`], [`sample`] | rows, targets and tables; medians and ratios |
//! | [`machine`], [`timer`] | the machine it ran on; clocks and pauses |

#![allow(clippy::let_underscore_must_use, reason = "a benchmark may drop what it does not look at")]

pub mod floor;
pub mod harness;
mod huge_pages;
pub mod keys;
pub mod machine;
pub mod report;
pub mod sample;
pub mod timer;
