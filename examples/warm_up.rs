//! A limit that climbs: new clients start slowly, and so does who has been away for long.

use std::sync::Arc;
use std::time::Duration;

use tollbar::{Limiter, ManualClock, MemoryStore, Outcome, Policy, Timestamp, WarmUp};

fn main() -> Result<(), tollbar::PolicyError> {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
    let warm_up = WarmUp { start: 10, over: Duration::from_mins(1), steps: 6 };
    let policy = Policy::token_bucket("100/s")?.with_warm_up(warm_up)?;
    let limiter = Limiter::builder(policy).store(Arc::new(store)).build();

    // A client that takes all it gets, every five seconds.
    for second in (0..=70).step_by(5) {
        let passed = (0..200).filter(|_| limiter.check("new").is_allowed()).count();
        println!("after {second:>2} s: {:<25} {passed} at once", "#".repeat(passed / 4));
        clock.advance(Duration::from_secs(5));
    }

    // 30 are more than the second step holds, 25, and the third begins 20 s after the birth.
    let limit = limiter.check("other").limit();
    match limiter.check_cost("other", 30).outcome() {
        Outcome::Deny { retry_after_us } => {
            println!("30 of {limit}: again in {} s", retry_after_us / 1_000_000);
        }
        outcome => println!("30 of {limit}: {outcome:?}"),
    }
    // 100 are for those who have been here for a minute, and who only waits is new by then.
    println!("100 of {limit}: {:?}", limiter.check_cost("other", 100).outcome());

    clock.advance(Duration::from_mins(1));
    println!("after a minute away: {} of 100", limiter.peek("new").limit());
    Ok(())
}
