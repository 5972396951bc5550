//! Costs that are known only afterwards: reserve what a prompt may take, settle what it took. And
//! retries that do not pay twice.

use std::error::Error;
use std::time::Duration;

use tollbar::{Charges, Limiter, ManualClock, Policy, Receipt, Timestamp};

fn main() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));

    // 6,000 tokens a minute. What answers take in excess may run into debt, up to as many again.
    let policy = Policy::token_bucket("6000/min")?.with_overdraft(6_000)?;
    let limiter = Limiter::builder(policy.clone()).clock(clock.clone()).build()?;
    let left = || limiter.peek("acme").remaining().unwrap_or(0);

    let reservation = limiter.reserve("acme", 4_000)?;
    println!("acme reserves 4000, {} left", left());
    let settled = reservation.commit(1_500)?;
    println!("it took 1500, {} come back", settled.charges()[0].refunded);
    println!("acme has {} left", left());

    // The receipt can wait in a queue or travel to another process as text.
    let reservation = limiter.reserve("acme", 1_000)?;
    let text = reservation.receipt().map(ToString::to_string).unwrap_or_default();
    let receipt: Receipt = text.parse()?;
    limiter.commit(&receipt, 6_500)?;
    println!("once more: {}", limiter.commit(&receipt, 0).expect_err("it was settled"));
    if let Err(denied) = limiter.check("acme").ok() {
        println!("1000 were reserved, 6500 taken: {denied}");
    }

    clock.advance(Duration::from_mins(1));
    // The client does not see the answer, and sends the request again under the same id.
    for _ in 0..2 {
        let charges = Charges::new().charge("acme", &policy, 500).request_id("request-7f3a");
        let grant = limiter.admit(charges)?;
        let left = grant.decisions().each()[0].remaining().unwrap_or(0);
        println!("request-7f3a: allowed, {left} left");
    }
    Ok(())
}
