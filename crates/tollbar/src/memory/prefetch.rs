//! One hint to the processor: this memory will be needed soon.
//!
//! A file of its own because it needs `unsafe`. `check_many` asks for the lines of sixteen keys
//! before it looks at the first: the misses overlap, and sixteen cost little more than one.
//! `cargo xtask bench core` shows it as `check_many`.

/// Asks for the cache line that `place` is in, to be read and written.
#[inline]
#[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "the intrinsic takes a pointer"))]
pub(super) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program and never faults, whatever the
        // address; this one is of a live reference. SSE, which it needs, is part of x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
