//! How much a piece of code allocates: an allocator that counts, for tests that promise "nothing".
//!
//! A test of its own names it as the global allocator; nothing else is changed by it.
//!
//! ```
//! use tollbar_testkit::allocations::{CountingAllocator, allocates_nothing};
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//! allocates_nothing("adding", || assert_eq!(1 + 1, 2));
//! ```
#![expect(unsafe_code, reason = "an allocator that counts is the only way to see allocations")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, and counts what each thread allocates.
#[derive(Debug)]
pub struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Runs `f`, which must not allocate.
///
/// # Panics
/// If it does.
#[track_caller]
pub fn allocates_nothing(what: &str, f: impl FnOnce()) {
    let before = ALLOCATIONS.with(Cell::get);
    f();
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "{what} allocated");
}
