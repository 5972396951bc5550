//! What a store tells about itself.

use std::sync::atomic::Ordering;

use super::MemoryStore;
use super::blocks::BLOCK_BYTES;
use super::slot::fresh_at_us;
use super::table::SLOTS_PER_LINE;

/// How full a [`MemoryStore`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Counters that are not fresh. In a store of more than 65,536 cache lines, an
    /// estimate from that many of them.
    pub live_keys: usize,
    /// Slots for one-word counters; twice the keys the store was made for.
    pub slots: usize,
    /// Counters that were forgotten before they were fresh, because the store was too small.
    pub forced_evictions: u64,
    /// Request ids that were forgotten before their time, because there were more than
    /// [`max_request_ids`](crate::MemoryStoreBuilder::max_request_ids): a request that is sent again
    /// under such an id pays again.
    pub request_ids_forgotten: u64,
    /// What the table of one-word counters takes once all of it has been touched.
    pub bytes: usize,
    /// What wide counters and open reservations take once all of them have been touched.
    pub wide_bytes: usize,
    /// What request ids take once all of them have been touched.
    pub request_id_bytes: usize,
    /// Blocks of up to 15 stamps that [sliding window logs](crate::Policy::sliding_window_log) use.
    pub log_blocks: usize,
    /// How many such blocks there are: [`max_log_stamps`](crate::MemoryStoreBuilder::max_log_stamps).
    pub log_blocks_max: usize,
    /// What logs and their blocks take once all of them have been touched.
    pub log_bytes: usize,
}

/// How many cache lines of the table a look at the statistics reads at most: 4 MiB.
const SAMPLED_LINES_MAX: usize = 1 << 16;

impl MemoryStats {
    /// The share of slots that hold a live counter, 0 to 1.
    #[must_use]
    pub fn occupancy(&self) -> f64 {
        self.live_keys as f64 / self.slots as f64
    }
}

impl MemoryStore {
    /// How full the store is. Takes up to a millisecond or two; not for every request.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let now_us = self.now_us();
        let line_count = self.table.line_count();
        let step = line_count.div_ceil(SAMPLED_LINES_MAX);
        let sampled = line_count.div_ceil(step);
        let is_live = |line| {
            let slots = self.table.slots(line).filter_map(super::slot::Slot::read_any);
            slots.filter(|(tag, reading)| fresh_at_us(*tag, reading.word) > now_us).count()
        };
        let live: usize = (0..line_count).step_by(step).map(is_live).sum();
        let slots = self.table.slot_count();
        MemoryStats {
            live_keys: live * line_count / sampled
                + self.wide.live_count(now_us)
                + self.lists.live_count(now_us)
                + self.leases.live_count(now_us),
            slots,
            forced_evictions: self.forced_evictions.load(Ordering::Relaxed),
            request_ids_forgotten: self.request_ids_forgotten.load(Ordering::Relaxed),
            bytes: slots / SLOTS_PER_LINE * 64,
            wide_bytes: self.wide.bytes_max() + self.reservations.bytes_max(),
            request_id_bytes: self.request_ids.bytes_max(),
            log_blocks: self.lists.blocks.in_use_count(),
            log_blocks_max: self.lists.blocks.block_count(),
            log_bytes: self.lists.entry_bytes_max() + self.lists.blocks.block_count() * BLOCK_BYTES,
        }
    }
}
