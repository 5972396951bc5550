//! Five tasks call an API that takes one request every 50 ms; one of them is in a hurry.
//!
//! `cargo run --example queue`

use std::error::Error;
use std::time::Duration;

use tollbar::{Clock, Limiter, Policy, SystemClock, WaitError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Up to three wait; a fourth is denied at once and told when to come back. Under another policy,
    // such as a token bucket, as many wait as come.
    let policy = Policy::leaky_queue("20/s", 3)?;
    // Without a timer of its own the limiter works as well, under any runtime.
    let limiter = Limiter::builder(policy).timer(tokio::time::sleep).build()?;

    let clock = SystemClock::new();
    let start = clock.now();
    let tasks: Vec<_> = (1..=5)
        .map(|number| {
            let limiter = limiter.clone();
            #[expect(
                clippy::disallowed_methods,
                reason = "a panic is seen when the task is awaited"
            )]
            tokio::spawn(async move {
                // The second gives up after 20 ms, and those behind it move up.
                let patience = Duration::from_millis(if number == 2 { 20 } else { 1_000 });
                tokio::time::timeout(patience, limiter.wait("api.example.com")).await
            })
        })
        .collect();
    for (number, task) in (1..).zip(tasks) {
        let ms = |clock: &SystemClock| (clock.now() - start).as_millis();
        match task.await {
            Ok(Ok(Ok(_))) => println!("{number} has gone; it is {} ms", ms(&clock)),
            Ok(Ok(Err(WaitError::Denied(denied)))) => {
                println!("{number} found the queue full: {denied}");
            }
            Ok(Ok(Err(error))) => println!("{number}: {error}"),
            Ok(Err(_)) => println!("{number} gave up; it is {} ms", ms(&clock)),
            Err(error) => println!("{number}: {error}"),
        }
    }
    println!("{} wait", limiter.waiting().waiters);
    Ok(())
}
