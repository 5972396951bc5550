//! Quotas as on a bill: so many a month, by the calendar; and windows that do not all end together.

use std::error::Error;
use std::time::Duration;

use tollbar::{Clock, Decision, Limiter, ManualClock, Period, Policy, Timestamp};

/// 2024-02-29T23:59:00Z, as `date --utc --date=2024-02-29T23:59:00Z +%s` has it.
const LEAP_DAY_EVENING_S: u64 = 1_709_251_140;

fn main() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::at(Timestamp::from_secs(LEAP_DAY_EVENING_S));
    let limiter = |policy: Policy| Limiter::builder(policy).clock(clock.clone()).build();

    let utc = Policy::calendar_window(3, Period::Month)?;
    let delhi = utc.clone().with_utc_offset(5 * 60 + 30)?;
    let staggered = Policy::fixed_window("3/h")?.with_stagger()?;

    let monthly = limiter(utc)?;
    for _ in 0..4 {
        match monthly.check("acme").ok() {
            Ok(decision) => println!("acme: in, {} left this month", left(&decision)),
            Err(denied) => println!("acme: {denied}"),
        }
    }
    clock.advance(resets_in(&monthly.peek("acme"), &clock));
    println!("acme at {}: {} left", clock.now(), left(&monthly.peek("acme")));

    // In Delhi the first of March began at 18:30 UTC, five and a half hours ago.
    let resets = resets_in(&limiter(delhi)?.check("acme"), &clock);
    println!("acme in Delhi: the month is over in {} hours", resets.as_secs() / 3_600);

    let hourly = limiter(staggered)?;
    for client in ["ann", "bob", "cid"] {
        let resets = resets_in(&hourly.check(client), &clock);
        println!("{client}: a new hour begins in {} minutes", resets.as_secs() / 60);
    }
    Ok(())
}

fn left(decision: &Decision) -> u64 {
    decision.remaining().unwrap_or(0)
}

fn resets_in(decision: &Decision, clock: &ManualClock) -> Duration {
    decision.reset_at().map_or(Duration::ZERO, |reset_at| reset_at - clock.now())
}
