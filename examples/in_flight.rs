//! So many at once: permits that come back when they are dropped, beside a rate that stays paid; and
//! leases for holders elsewhere, which end by themselves.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollbar::{Entry, Lease, Limiter, ManualClock, MemoryStore, Policy};

fn main() -> Result<(), tollbar::PolicyError> {
    // Three reports at a time for each tenant, whatever they cost and however long they take.
    let reports = Limiter::new(Policy::concurrency(3)?);
    let first = reports.acquire("acme");
    let large = reports.acquire_cost("acme", 2);
    match reports.acquire("acme") {
        Ok(_) => println!("acme: a fourth is let in"),
        Err(busy) => println!("acme: {:?}, {} of {} left", busy.outcome(), busy.remaining(), 3),
    }
    drop(large);
    println!("acme: the large one is done, {} left", reports.peek("acme").remaining());

    // A permit of its own for a thread or a task, which may outlive the limiter.
    if let Ok(permit) = reports.acquire("acme") {
        let permit = permit.into_owned();
        let task = thread::spawn(move || println!("task: holds {} permit", permit.count()));
        println!("task ended well: {}", task.join().is_ok());
    }
    drop(first);
    println!("acme: all are done, {} left", reports.peek("acme").remaining());

    // One request under a rate and a number in flight: both, or neither.
    let (rate, in_flight) = (Policy::token_bucket("100/min")?, Policy::concurrency(1)?);
    let api = Limiter::new(rate.clone());
    let entries = || [Entry::new("ann", &rate), Entry::new("ann", &in_flight)];
    let permit = api.acquire_all(&mut entries());
    if let Err(error) = api.acquire_all(&mut entries()) {
        println!("ann: {error}, and the rate has not paid for it");
    }
    drop(permit);
    println!("ann: in again: {}", api.acquire_all(&mut entries()).is_ok());
    println!("ann: {} of the rate left", api.peek("ann").remaining());

    // Two jobs at a time, wherever they run. A worker that is silent for 30 s has lost its place.
    let clock = ManualClock::default();
    let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
    let policy = Policy::concurrency(2)?.leased(Duration::from_secs(30))?;
    let jobs = Limiter::builder(policy).store(Arc::new(store)).build();
    if let (Ok(mut alive), Ok(silent)) = (jobs.lease("jobs"), jobs.lease("jobs")) {
        clock.advance(Duration::from_secs(20));
        // The worker sends back the key and the id it was given.
        println!("jobs: renewed: {}", jobs.renew(&mut alive));
        clock.advance(Duration::from_secs(10));
        println!("jobs: one has fallen silent, {} left", jobs.peek("jobs").remaining());
        println!("jobs: released too late: {}", jobs.release(&silent));
        println!("jobs: released: {}", jobs.release(&Lease::of("jobs", alive.id)));
        println!("jobs: {} left", jobs.peek("jobs").remaining());
    }
    Ok(())
}
