//! Quotas as on a bill: so many a month, by the calendar; and windows that do not all end together.

use std::sync::Arc;

use tollbar::{Clock, Limiter, ManualClock, MemoryStore, Period, Policy, Timestamp};

/// 2024-02-29T23:59:00Z, as `date --utc --date=2024-02-29T23:59:00Z +%s` has it.
const LEAP_DAY_EVENING_S: u64 = 1_709_251_140;

fn main() -> Result<(), tollbar::PolicyError> {
    let clock = ManualClock::at(Timestamp::from_micros(LEAP_DAY_EVENING_S * 1_000_000));
    let store = Arc::new(MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build());
    let limiter = |policy| Limiter::builder(policy).store(store.clone()).build();

    let utc = Policy::calendar_window(3, Period::Month)?;
    let delhi = utc.clone().with_utc_offset(5 * 60 + 30)?;
    let staggered = Policy::fixed_window("3/h")?.staggered()?;

    let monthly = limiter(utc);
    for _ in 0..4 {
        let decision = monthly.check("acme");
        match decision.retry_after() {
            None => println!("acme: in, {} left this month", decision.remaining()),
            Some(wait) => println!("acme: spent; the month is over in {wait:?}"),
        }
    }
    clock.set(monthly.peek("acme").reset_at());
    println!("acme, on the first of March: {} left", monthly.peek("acme").remaining());

    // In Delhi the first of March began at 18:30 UTC, five and a half hours ago.
    let resets = limiter(delhi).check("acme").reset_at().since(clock.now());
    println!("acme in Delhi: the month is over in {} hours", resets.as_secs() / 3_600);

    let hourly = limiter(staggered);
    for client in ["ann", "bob", "cid"] {
        let resets = hourly.check(client).reset_at().since(clock.now());
        println!("{client}: a new hour begins in {} minutes", resets.as_secs() / 60);
    }
    Ok(())
}
