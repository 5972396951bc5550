//! A limit that somebody counts after you: no 60 seconds of the record hold more than the contract
//! allows, and the client got all of it.
//!
//! `cargo run --release --example audit_window`

use std::error::Error;
use std::time::Duration;

use tollbar::{BuildError, Clock, Limiter, ManualClock, Policy, Timestamp};

const LIMIT: usize = 20;
const WINDOW: Duration = Duration::from_mins(1);

/// When each of the requests passed that a client makes every 700 ms for ten minutes.
fn record(policy: Policy) -> Result<Vec<Timestamp>, BuildError> {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let limiter = Limiter::builder(policy).max_keys(1_000).clock(clock.clone()).build()?;
    let end = clock.now() + 10 * WINDOW;
    let mut passed = Vec::new();
    while clock.now() < end {
        if limiter.check("acme").is_allowed() {
            passed.push(clock.now());
        }
        clock.advance(Duration::from_millis(700));
    }
    Ok(passed)
}

/// The auditor: the most that passed in any window, wherever it begins.
fn most_in_any_window(passed: &[Timestamp]) -> usize {
    let from = |first: &Timestamp| {
        passed.iter().filter(|at| *at >= first && **at - *first < WINDOW).count()
    };
    passed.iter().map(from).max().unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("{LIMIT} a minute, asked for every 700 ms in ten minutes\n");
    println!("{:<25} passed  most in any minute", "");
    for (name, policy) in [
        ("fixed window", Policy::fixed_window("20/min")?),
        ("sliding window counter", Policy::sliding_window("20/min")?),
        ("sliding window strict(10)", Policy::sliding_window_strict("20/min", 10)?),
        ("sliding window log", Policy::sliding_window_log("20/min")?),
    ] {
        let passed = record(policy)?;
        let most = most_in_any_window(&passed);
        let verdict = if most > LIMIT { "  more than the contract allows" } else { "" };
        println!("{name:<25} {:>6}  {most:>18}{verdict}", passed.len());
    }
    Ok(())
}
