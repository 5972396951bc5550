//! So many at once: permits that come back when they are dropped, beside a rate that stays paid; and
//! leases for holders in other processes, which end by themselves.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollbar::{
    Charges, Concurrency, ConcurrencyLimiter, Lease, Limiter, ManualClock, MemoryStore, Policy,
};

fn main() -> Result<(), Box<dyn Error>> {
    // Three reports at a time for each tenant, whatever they cost and however long they take.
    let reports = ConcurrencyLimiter::new(Concurrency::new(3)?);
    let first = reports.try_acquire("acme")?;
    let large = reports.try_acquire_n("acme", 2)?;
    match reports.try_acquire("acme") {
        Ok(_) => println!("acme: a fourth is let in"),
        Err(denied) => println!("acme: {denied}"),
    }
    drop(large);
    println!("acme: the large one is done, {} left", left(&reports, "acme"));

    // A permit of its own for a thread or a task, which may outlive the limiter.
    let permit = reports.try_acquire("acme")?.into_owned();
    let task = thread::spawn(move || println!("task: holds {} permit", permit.count()));
    println!("task ended well: {}", task.join().is_ok());
    drop(first);
    println!("acme: all are done, {} left", left(&reports, "acme"));

    // One request under a rate and a number in flight: both, or neither.
    let (rate, in_flight) = (Policy::token_bucket("100/min")?, Concurrency::new(1)?);
    let api = Limiter::new(rate.clone());
    let admit = || api.admit(Charges::new().charge("ann", &rate, 1).permit("ann", &in_flight, 1));
    let grant = admit()?;
    if let Err(error) = admit() {
        println!("ann: {error}, and the rate has not paid for it");
    }
    drop(grant);
    println!("ann: in again: {}", admit().is_ok());
    println!("ann: {} of the rate left", api.peek("ann").remaining().unwrap_or(0));

    // Two jobs at a time, wherever they run. A worker that is silent for 30 s has lost its place.
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::builder().clock(clock.clone()).build());
    let permits = Concurrency::new(2)?.with_lease(Duration::from_secs(30))?.with_name("jobs");
    let jobs = ConcurrencyLimiter::builder(permits).store(store).build()?;
    let (mut alive, silent) = (jobs.lease("jobs")?, jobs.lease("jobs")?);
    clock.advance(Duration::from_secs(20));
    println!("jobs: renewed: {}", jobs.renew(&mut alive));
    clock.advance(Duration::from_secs(10));
    println!("jobs: one has fallen silent, {} left", left(&jobs, "jobs"));
    println!("jobs: released too late: {}", jobs.release(&silent));
    // A worker elsewhere sends back the key and the id it was given.
    println!("jobs: released: {}", jobs.release(&Lease::from_id("jobs", alive.id)));
    println!("jobs: {} left", left(&jobs, "jobs"));
    Ok(())
}

fn left(limiter: &ConcurrencyLimiter, key: &str) -> u64 {
    limiter.peek(key).remaining().unwrap_or(0)
}
