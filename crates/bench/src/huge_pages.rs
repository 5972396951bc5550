//! Zeroed memory aligned to, and where the kernel grants it backed by, huge pages.
//!
//! The one place of this crate that maps memory.
#![expect(unsafe_code, reason = "mmap, madvise and sysconf have no safe form in std")]

use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU64;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A fixed number of atomic words, all zero at first. Unmapped on drop.
#[derive(Debug)]
pub(crate) struct AtomicWords {
    mapping: NonNull<libc::c_void>,
    mapping_bytes: usize,
    first: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the words are plain memory owned by this value and only ever lent out as `&AtomicU64`,
// which may be shared between threads; unmapping needs `&mut self`.
unsafe impl Send for AtomicWords {}
// SAFETY: as above.
unsafe impl Sync for AtomicWords {}

impl AtomicWords {
    /// `len` zeroed words.
    ///
    /// # Panics
    /// If the kernel refuses the memory: a benchmark without its table is pointless.
    pub(crate) fn zeroed(len: usize) -> Self {
        // One huge page more than needed, so that an aligned start lies inside.
        let bytes = (len * size_of::<AtomicU64>()).next_multiple_of(HUGE_PAGE_BYTES);
        let mapping_bytes = bytes + HUGE_PAGE_BYTES;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no
        // existing memory.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapping_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(address != libc::MAP_FAILED, "cannot map {mapping_bytes} bytes");
        let mapping = NonNull::new(address).expect("the kernel maps nothing at zero");
        let skip = address.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `skip` is below HUGE_PAGE_BYTES, and the mapping is that much longer than `bytes`,
        // so `first .. first + bytes` lies inside it.
        let first = unsafe { mapping.cast::<u8>().add(skip) };
        // SAFETY: the range lies inside our own mapping. It is only advice: a refusal leaves
        // ordinary pages, so the result does not matter.
        unsafe { libc::madvise(first.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Self { mapping, mapping_bytes, first: first.cast(), len }
    }

    pub(crate) fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: `first` is aligned to a huge page and followed by `len` mapped words inside one
        // mapping; zeroed or written memory is a valid AtomicU64; it lives as long as `self`.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl Drop for AtomicWords {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and no slice of it outlives `self`. It can only fail
        // for arguments that are no mapping, and then there is nothing to do.
        unsafe { libc::munmap(self.mapping.as_ptr(), self.mapping_bytes) };
    }
}

/// Asks the processor to fetch the line of `word`; changes nothing else.
#[inline]
pub(crate) fn prefetch(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching any address is allowed, and this one is valid.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(ptr::from_ref(word).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// The size of an ordinary page.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: sysconf only reads.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4_096)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_zero_aligned_and_writable_to_the_last() {
        let words = AtomicWords::zeroed(300_000);
        let slice = words.as_slice();
        assert_eq!(slice.len(), 300_000);
        assert_eq!(slice.as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
        assert!(slice.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        slice[299_999].store(7, Ordering::Relaxed);
        assert_eq!(slice[299_999].load(Ordering::Relaxed), 7);
    }
}
