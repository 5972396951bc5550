//! Large zeroed arrays whose memory is there only once it is touched, on huge pages where the
//! system has them.
//!
//! A file of its own because it needs `unsafe`, twice; each with its proof.

#[cfg(not(tollbar_loom))]
use std::sync::atomic::AtomicU64;

/// Words of one cache line.
pub(super) const LINE_WORDS: usize = 8;

/// `line_count` cache lines of zeros, aligned to a cache line.
#[derive(Debug)]
pub(super) struct Lines<W> {
    words: Box<[W]>,
    /// Where the first whole cache line begins.
    first: usize,
    line_count: usize,
}

#[cfg(not(tollbar_loom))]
impl Lines<AtomicU64> {
    pub(super) fn zeroed(line_count: usize) -> Self {
        // One line more than asked for, so that an aligned start can be chosen within it: asking
        // the allocator for alignment would make it write all the zeros itself.
        let words = zeroed_huge((line_count + 1) * LINE_WORDS);
        let first = aligned_start(&words, LINE_WORDS);
        Self { words, first, line_count }
    }
}

#[cfg(tollbar_loom)]
impl Lines<loom::sync::atomic::AtomicU64> {
    pub(super) fn zeroed(line_count: usize) -> Self {
        let word = |_| loom::sync::atomic::AtomicU64::new(0);
        let words = (0..line_count * LINE_WORDS).map(word).collect();
        Self { words, first: 0, line_count }
    }
}

impl<W> Lines<W> {
    #[inline]
    pub(super) fn line(&self, index: usize) -> &[W; LINE_WORDS] {
        &self.words[self.first..].as_chunks().0[index]
    }

    pub(super) fn len(&self) -> usize {
        self.line_count
    }
}

/// `count` zeros, from pages that the system fills in when they are first touched.
#[expect(unsafe_code, reason = "the safe ways write every zero, which touches every page")]
pub(super) fn zeroed(count: usize) -> Box<[std::sync::atomic::AtomicU64]> {
    let words = Box::<[std::sync::atomic::AtomicU64]>::new_zeroed_slice(count);
    // SAFETY: an `AtomicU64` has the same representation as a `u64`, for which eight bytes of zero
    // are a valid value; `new_zeroed_slice` has set all `count * 8` bytes to zero.
    unsafe { words.assume_init() }
}

/// The same, on huge pages where the system has them and there are enough to fill some.
pub(super) fn zeroed_huge(count: usize) -> Box<[std::sync::atomic::AtomicU64]> {
    let words = zeroed(count);
    #[cfg(not(tollbar_loom))]
    advise_huge_pages(&words);
    words
}

/// The first place in `words` whose address is a multiple of `multiple` words.
pub(super) fn aligned_start(words: &[std::sync::atomic::AtomicU64], multiple: usize) -> usize {
    let misaligned = words.as_ptr().addr() / size_of::<u64>() % multiple;
    (multiple - misaligned) % multiple
}

/// Below this, huge pages change nothing worth a system call.
#[cfg(all(target_os = "linux", not(tollbar_loom)))]
const HUGE_PAGES_BYTES_MIN: usize = 4 << 20;

/// Asks for huge pages, which spare most of the address translations of random access. A system
/// that has none goes on with small ones.
#[cfg(all(target_os = "linux", not(tollbar_loom)))]
#[expect(unsafe_code, reason = "no safe interface to madvise for memory that is already a slice")]
fn advise_huge_pages(words: &[AtomicU64]) {
    const PAGE_BYTES: usize = 4096;
    let bytes = size_of_val(words);
    if bytes < HUGE_PAGES_BYTES_MIN {
        return;
    }
    // The whole pages inside the slice: madvise wants its start aligned.
    let to_page = words.as_ptr().addr().next_multiple_of(PAGE_BYTES) - words.as_ptr().addr();
    let length = (bytes - to_page) / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: `to_page` is below 4096 and `to_page + length` at most `bytes`, so the range lies
    // within `words`, which is borrowed for the call. MADV_HUGEPAGE changes how the range is backed
    // and never what it holds, so other references to it, of which there are none yet, would not
    // notice. A failure (a kernel without huge pages) is reported by the return value and harmless.
    unsafe {
        let start = words.as_ptr().byte_add(to_page).cast_mut().cast();
        libc::madvise(start, length, libc::MADV_HUGEPAGE);
    }
}

#[cfg(all(not(target_os = "linux"), not(tollbar_loom)))]
fn advise_huge_pages(_words: &[AtomicU64]) {}

#[cfg(all(test, not(tollbar_loom)))]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn lines_are_aligned_zeroed_and_apart() {
        // The last two are large enough for huge pages.
        for line_count in [1, 2, 3, 1_000, 70_000, 200_001] {
            let lines = Lines::zeroed(line_count);
            for index in 0..line_count {
                let line = lines.line(index);
                assert_eq!(line.as_ptr().addr() % 64, 0);
                for word in line {
                    assert_eq!(word.swap(1, Ordering::Relaxed), 0, "zero, and nobody else's");
                }
            }
            assert_eq!(lines.len(), line_count);
        }
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn a_line_past_the_end_is_refused() {
        let lines = Lines::zeroed(3);
        // One line of slack lies behind the last; two are never there.
        let _ = lines.line(5);
    }
}
