//! The in-memory store passes the suite that every store must pass.

use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::suite;

#[test]
fn memory_store_passes_the_whole_suite() {
    suite::run_all(&MemorySubject::boxed);
}
