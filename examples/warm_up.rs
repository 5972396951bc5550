//! A limit that climbs: new clients start slowly, and so does who has been away for long.

use std::error::Error;
use std::time::Duration;

use tollbar::{Limiter, ManualClock, Policy, Timestamp, WarmUp};

fn main() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let warm_up = WarmUp { start: 10, over: Duration::from_mins(1), steps: 6 };
    let policy = Policy::token_bucket("100/s")?.with_warm_up(warm_up)?;
    let limiter = Limiter::builder(policy).clock(clock.clone()).build()?;

    // A client that takes all it gets, every five seconds.
    for second in (0..=70).step_by(5) {
        let passed = (0..200).filter(|_| limiter.check("new").is_allowed()).count();
        println!("after {second:>2} s: {:<25} {passed} at once", "#".repeat(passed / 4));
        clock.advance(Duration::from_secs(5));
    }

    // 30 are more than the second step holds, 25, and the third begins 20 s after the birth.
    let limit = limiter.check("other").limit();
    if let Err(denied) = limiter.check_n("other", 30).ok() {
        println!("30 of {limit}: {denied}");
    }
    // 100 are for keys that have been here for a minute, and a key that only waits is new by then.
    if let Err(denied) = limiter.check_n("other", 100).ok() {
        println!("100 of {limit}: {:?}", denied.reason());
    }

    clock.advance(Duration::from_mins(1));
    println!("after a minute away: {} of 100", limiter.peek("new").limit());
    Ok(())
}
