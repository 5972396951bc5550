//! Lists of words in a bounded slab of blocks.
//!
//! A [`Chain`] is a first-in, first-out list: its words are in blocks of 16, one of which links to
//! the next block. Each shard has its own share of the blocks and its own list of free ones, used
//! under the shard's lock only, which the [`ShardGuard`] argument stands for. A block goes back to
//! the free ones as soon as its last word has gone. All are set aside when the store is made, and
//! take memory only once they are used: a block that was used before is preferred.
//!
//! Knows neither what the words mean nor whose they are; `lists.rs` does, and makes room.

#[cfg(all(test, not(tollbar_loom)))]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

use super::pages::{aligned_start, zeroed_huge};
use super::shards::ShardGuard;

/// Two cache lines.
const BLOCK_WORDS: usize = 16;
pub(super) const BLOCK_BYTES: usize = BLOCK_WORDS * size_of::<AtomicU64>();

/// The first word of a block is the number of the next, or of the next free one.
const LINK: usize = 0;

/// What a block holds beside its link.
pub(super) const BLOCK_ITEMS: usize = BLOCK_WORDS - 1;

/// All blocks, and which of them are free.
#[derive(Debug)]
pub(super) struct Blocks {
    words: Box<[AtomicU64]>,
    /// Where the first block begins, aligned to its size.
    first: usize,
    per_shard: usize,
    free: Box<[FreeBlocks]>,
}

/// The free blocks of one shard, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct FreeBlocks {
    /// The first of those that were used before; they are linked. 0: none.
    head: AtomicU64,
    /// How many have ever been used: the rest have not been touched.
    touched: AtomicU64,
    in_use: AtomicU64,
}

/// A list: where its words begin and end. Blocks are numbered from 1; 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Chain {
    head: u32,
    tail: u32,
    /// Where in the first block the first word is, `0..BLOCK_ITEMS`.
    start: u32,
    len: u32,
}

/// There is no free block in the shard.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlabFull;

impl Chain {
    pub(super) fn from_words([ends, extent]: [u64; 2]) -> Self {
        let halves = |word: u64| ((word >> 32) as u32, word as u32);
        let ((head, tail), (start, len)) = (halves(ends), halves(extent));
        Self { head, tail, start, len }
    }

    pub(super) fn to_words(self) -> [u64; 2] {
        let word = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        [word(self.head, self.tail), word(self.start, self.len)]
    }

    pub(super) fn len(self) -> usize {
        self.len as usize
    }

    /// How many blocks it has.
    pub(super) fn block_count(self) -> usize {
        if self.len == 0 { 0 } else { (self.start as usize + self.len()).div_ceil(BLOCK_ITEMS) }
    }

    /// True where another word needs another block.
    pub(super) fn needs_block(self) -> bool {
        self.len == 0 || (self.start as usize + self.len()).is_multiple_of(BLOCK_ITEMS)
    }

    /// How many words are in its first block.
    pub(super) fn front_block_len(self) -> usize {
        self.len().min(BLOCK_ITEMS - self.start as usize)
    }
}

impl Blocks {
    /// Room for about `items_max` words, the same in each shard: at least a block.
    pub(super) fn new(items_max: usize, shard_count: usize) -> Self {
        let blocks_max = u32::MAX as usize / shard_count - 1;
        let per_shard = items_max.div_ceil(BLOCK_ITEMS * shard_count).clamp(1, blocks_max);
        // One block more than there are, so that an aligned start can be chosen within it.
        let words = zeroed_huge((per_shard * shard_count + 1) * BLOCK_WORDS);
        let first = aligned_start(&words, BLOCK_WORDS);
        let free = (0..shard_count).map(|_| FreeBlocks::default()).collect();
        Self { words, first, per_shard, free }
    }

    pub(super) fn block_count(&self) -> usize {
        self.per_shard * self.free.len()
    }

    /// How many blocks hold words. An estimate while checks are going on.
    pub(super) fn in_use_count(&self) -> usize {
        self.free.iter().map(|free| free.in_use.load(Ordering::Relaxed) as usize).sum()
    }

    /// True where the shard has a block that nobody uses.
    pub(super) fn has_free(&self, guard: &ShardGuard<'_>) -> bool {
        let in_use = self.free[guard.shard()].in_use.load(Ordering::Relaxed);
        in_use < self.per_shard as u64
    }

    /// Appends `word`.
    #[inline]
    pub(super) fn push_back(
        &self,
        guard: &ShardGuard<'_>,
        chain: &mut Chain,
        word: u64,
    ) -> Result<(), SlabFull> {
        let end = chain.start as usize + chain.len();
        let at = end % BLOCK_ITEMS;
        if chain.len == 0 {
            let block = self.take(guard).ok_or(SlabFull)?;
            *chain = Chain { head: block, tail: block, start: 0, len: 0 };
            self.item(block, 0).store(word, Ordering::Relaxed);
        } else {
            if at == 0 {
                let block = self.take(guard).ok_or(SlabFull)?;
                self.link(chain.tail).store(block.into(), Ordering::Relaxed);
                chain.tail = block;
            }
            self.item(chain.tail, at).store(word, Ordering::Relaxed);
        }
        chain.len += 1;
        Ok(())
    }

    /// Removes the first `count` words, or all.
    #[inline]
    pub(super) fn drop_front(&self, guard: &ShardGuard<'_>, chain: &mut Chain, count: usize) {
        if count >= chain.len() {
            return self.clear(guard, chain);
        }
        // Below `len`, which is a `u32`.
        chain.len -= count as u32;
        let mut start = chain.start as usize + count;
        while start >= BLOCK_ITEMS {
            let emptied = chain.head;
            chain.head = self.link(emptied).load(Ordering::Relaxed) as u32;
            self.put_back(guard, emptied, emptied, 1);
            start -= BLOCK_ITEMS;
        }
        chain.start = start as u32;
    }

    /// Removes all words but the first `len`.
    pub(super) fn truncate(&self, guard: &ShardGuard<'_>, chain: &mut Chain, len: usize) {
        if len >= chain.len() {
            return;
        }
        if len == 0 {
            return self.clear(guard, chain);
        }
        let kept = Chain { len: len as u32, ..*chain };
        let mut tail = chain.head;
        for _ in 1..kept.block_count() {
            tail = self.link(tail).load(Ordering::Relaxed) as u32;
        }
        let free_slot = chain.block_count() - kept.block_count();
        if free_slot > 0 {
            let first = self.link(tail).load(Ordering::Relaxed) as u32;
            self.put_back(guard, first, chain.tail, free_slot);
        }
        *chain = Chain { tail, ..kept };
    }

    /// Removes all words.
    pub(super) fn clear(&self, guard: &ShardGuard<'_>, chain: &mut Chain) {
        if chain.len > 0 {
            self.put_back(guard, chain.head, chain.tail, chain.block_count());
        }
        *chain = Chain::default();
    }

    /// The last word.
    pub(super) fn back(&self, _guard: &ShardGuard<'_>, chain: Chain) -> Option<u64> {
        let last = (chain.start as usize + chain.len()).checked_sub(1)?;
        let item = (chain.len > 0).then(|| self.item(chain.tail, last % BLOCK_ITEMS))?;
        Some(item.load(Ordering::Relaxed))
    }

    /// The words from the front, to be read or written in their places.
    #[inline]
    pub(super) fn items<'a>(
        &'a self,
        _guard: &ShardGuard<'_>,
        chain: Chain,
    ) -> impl Iterator<Item = &'a AtomicU64> {
        let mut block = chain.head;
        let mut at = chain.start as usize;
        (0..chain.len).map(move |_| {
            if at == BLOCK_ITEMS {
                block = self.link(block).load(Ordering::Relaxed) as u32;
                at = 0;
            }
            at += 1;
            self.item(block, at - 1)
        })
    }

    /// A block out of the shard's share.
    fn take(&self, guard: &ShardGuard<'_>) -> Option<u32> {
        let free = &self.free[guard.shard()];
        let used_before = free.head.load(Ordering::Relaxed) as u32;
        let block = if used_before == 0 {
            let touched = free.touched.load(Ordering::Relaxed) as usize;
            if touched == self.per_shard {
                return None;
            }
            add(&free.touched, 1);
            // The first of all shards, then the second of all: what is touched lies together, and
            // the last has a number that fits a `u32`.
            (touched * self.free.len() + guard.shard() + 1) as u32
        } else {
            free.head.store(self.link(used_before).load(Ordering::Relaxed), Ordering::Relaxed);
            used_before
        };
        add(&free.in_use, 1);
        Some(block)
    }

    /// Gives back the `count` linked blocks from `first` to `last`.
    fn put_back(&self, guard: &ShardGuard<'_>, first: u32, last: u32, count: usize) {
        let free = &self.free[guard.shard()];
        self.link(last).store(free.head.load(Ordering::Relaxed), Ordering::Relaxed);
        free.head.store(first.into(), Ordering::Relaxed);
        add(&free.in_use, (count as u64).wrapping_neg());
    }

    #[inline]
    fn link(&self, block: u32) -> &AtomicU64 {
        &self.block(block)[LINK]
    }

    #[inline]
    fn item(&self, block: u32, at: usize) -> &AtomicU64 {
        &self.block(block)[LINK + 1 + at]
    }

    #[inline]
    fn block(&self, block: u32) -> &[AtomicU64; BLOCK_WORDS] {
        &self.words[self.first..].as_chunks().0[block as usize - 1]
    }
}

/// Under the lock, so that a load and a store will do.
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}
