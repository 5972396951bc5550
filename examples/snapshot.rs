//! Counters that survive a restart: written to a file, read back, and counted on.

use std::sync::Arc;

use tollbar::{Limiter, MemoryStore, Policy, SnapshotError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("tollbar-example-{}", std::process::id()));
    let policy = Policy::token_bucket("5/h")?.with_name("per_user");
    for run in 1..=3 {
        // What a service does when it starts. On the very first run there is no file yet.
        let builder = || MemoryStore::builder().max_keys(10_000);
        let store = match builder().restore_from_file(&path) {
            Err(SnapshotError::Missing { .. }) => builder().build(),
            restored => restored?,
        };
        let store = Arc::new(store);
        let limiter = Limiter::builder(policy.clone()).store(store.clone()).build()?;

        println!("run {run}");
        for _ in 0..2 {
            match limiter.check("user:42").ok() {
                Ok(decision) => println!("  in, {} left", decision.remaining().unwrap_or(0)),
                Err(denied) => println!("  {denied}"),
            }
        }

        // What it does when it stops; and now and then before, for the day it does not come to it.
        let summary = store.snapshot_to_file(&path)?;
        println!("  {} counter in {} bytes", summary.counters, summary.bytes);
    }
    std::fs::remove_file(&path)?;
    Ok(())
}
