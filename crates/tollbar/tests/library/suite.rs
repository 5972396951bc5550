//! The in-memory store passes the suite that every store must pass.

use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::suite;

#[test]
fn memory_store_passes_the_whole_suite() {
    suite::run_all(&MemorySubject::boxed);
}

/// More traces than stores across a network have time for.
#[test]
fn memory_store_keeps_every_bound_with_old_clock_readings() {
    suite::run_stale_time(&MemorySubject::boxed, 16);
}

#[test]
#[ignore = "long: thousands of random traces for each algorithm"]
fn memory_store_keeps_every_bound_with_old_clock_readings_for_long() {
    suite::run_stale_time(&MemorySubject::boxed, 3_000);
}
