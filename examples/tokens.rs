//! Costs that are known only afterwards: reserve what a prompt may take, settle what it took. And
//! retries that do not pay twice.

use std::sync::Arc;
use std::time::Duration;

use tollbar::{Limiter, ManualClock, MemoryStore, Policy, Receipt, Timestamp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let store = Arc::new(MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build());

    // 6,000 tokens a minute. What answers take in excess may run into debt, up to as many again.
    let policy = Policy::token_bucket("6000/min")?.with_overdraft(6_000)?;
    let limiter = Limiter::builder(policy).store(store).build();
    let time_to_answer = Duration::from_mins(2);

    let reservation = limiter.reserve("acme", 4_000, time_to_answer)?;
    println!("acme reserves 4000, {} left", limiter.peek("acme").remaining());
    // The receipt can wait in a queue or travel to another process as text.
    let text = reservation.receipt().ok_or("denied")?.to_string();

    let receipt: Receipt = text.parse()?;
    let settled = limiter.commit(&receipt, 1_500)?;
    println!("it took 1500, {} come back", settled.charges()[0].refunded);
    println!("acme has {} left", limiter.peek("acme").remaining());
    println!("once more: {}", limiter.commit(&receipt, 0).expect_err("it was settled"));

    let reservation = limiter.reserve("acme", 1_000, time_to_answer)?;
    limiter.commit(reservation.receipt().ok_or("denied")?, 6_500)?;
    let denied = limiter.check("acme");
    println!("1000 were reserved, 6500 taken: in debt for {:?}", denied.retry_after());

    clock.advance(Duration::from_mins(1));
    // The client does not see the answer, and sends the request again under the same id.
    for _ in 0..2 {
        let decision = limiter.check_once("request-7f3a", "acme", 500)?;
        println!("request-7f3a: allowed, {} left", decision.remaining());
    }
    Ok(())
}
