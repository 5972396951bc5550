//! Leases in a slice of words: two each, then zeros.

use crate::algorithm::leased::lease_record::{LeaseList, LeaseRecord};

/// A list in a slice. Whatever the words are, nothing here panics.
#[derive(Debug)]
pub(super) struct LeaseSlice<'a> {
    words: &'a mut [u64],
}

/// An extent of 0 is no lease.
fn leases(words: &[u64]) -> impl Iterator<Item = LeaseRecord> {
    let leases = words.as_chunks().0.iter().copied().map(LeaseRecord::from_words);
    leases.take_while(|lease| lease.permits() > 0)
}

/// What the newest lease is called; 0 where there is none.
pub(super) fn newest_id(words: &[u64]) -> u64 {
    leases(words).last().map_or(0, LeaseRecord::id)
}

/// When all have ended.
pub(super) fn last_end_us(words: &[u64]) -> u64 {
    leases(words).map(LeaseRecord::ends_at_us).max().unwrap_or(0)
}

impl<'a> LeaseSlice<'a> {
    pub(super) fn new(words: &'a mut [u64]) -> Self {
        Self { words }
    }

    pub(super) fn next_id(&self) -> u64 {
        leases(self.words).map(LeaseRecord::id).max().unwrap_or(0).wrapping_add(1)
    }
}

impl LeaseList for LeaseSlice<'_> {
    fn in_flight(&self, now_us: u64) -> u64 {
        let held = leases(self.words).filter(|lease| lease.ends_at_us() > now_us);
        held.map(LeaseRecord::permits).sum()
    }

    fn push(&mut self, lease: LeaseRecord) {
        let at = leases(self.words).count() * LeaseRecord::WORDS;
        // There is room, unless the words are no list: each lease of one is worth a permit.
        if let Some(place) = self.words.get_mut(at..at + LeaseRecord::WORDS) {
            place.copy_from_slice(&lease.to_words());
        }
    }

    fn alter(&mut self, mut change: impl FnMut(LeaseRecord) -> Option<LeaseRecord>) {
        let count = leases(self.words).count();
        let (places, _) = self.words.as_chunks_mut();
        let mut kept = 0;
        for at in 0..count {
            if let Some(lease) = change(LeaseRecord::from_words(places[at])) {
                places[kept] = lease.to_words();
                kept += 1;
            }
        }
        places[kept..count].fill([0; LeaseRecord::WORDS]);
    }
}
