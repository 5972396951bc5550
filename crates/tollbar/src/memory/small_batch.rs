//! The usual batch: a few different counters, all in the table, none of them fought over.
//!
//! Each is read and decided on its own word, without copies. Where all allow, the slots are locked in
//! the order of their names, each only if it is still as it was read, so that what was decided
//! stands; then all are stored. Whatever is not as usual (a newcomer, a wide state, a shadow, two
//! entries on one counter, a lost race) is left to
//! `batch.rs`, and nothing has happened. Locks are never waited for here, so nobody can wait in a
//! circle.

use arrayvec::ArrayVec;

use super::MemoryStore;
use super::counter_id::CounterId;
use super::slot::{Read, Seen, Slot, SlotGuard};
use crate::algorithm::word::Packed;
use crate::policy::Kind;
use crate::store::{Entry, Role};

/// More than that are not a few.
const FEW: usize = 8;

/// One counter as it was read, and what its entry comes to.
struct Found<'s, 'p> {
    id: CounterId,
    tag: u64,
    slot: Slot<'s>,
    seen: Seen,
    packed: &'p dyn Packed,
    next: Option<u64>,
}

impl MemoryStore {
    /// True where the batch was usual, and has been decided and charged.
    pub(super) fn check_few(&self, entries: &mut [Entry<'_>], now_us: u64) -> bool {
        if entries.len() > FEW {
            return false;
        }
        let mut all = ArrayVec::<Found<'_, '_>, FEW>::new();
        let mut is_allowed = true;
        for entry in &mut *entries {
            let Some(mut found) = self.find_usual(entry) else {
                return false;
            };
            if all.iter().any(|other| other.id == found.id) {
                return false;
            }
            let step = found.packed.step_word(found.seen.word, now_us, entry.cost);
            is_allowed &= step.decision.is_allowed();
            found.next = step.next;
            entry.decision = Some(step.decision);
            entry.stamp = step.stamp;
            all.push(found);
        }
        if is_allowed { charge(&mut all) } else { report_denied(entries, &all, now_us) }
    }

    /// The counter of an entry that is as usual.
    #[inline]
    fn find_usual<'p>(&self, entry: &Entry<'p>) -> Option<Found<'_, 'p>> {
        let kind = &entry.policy.kind;
        // Those of a staggered window depend on the key.
        if entry.role != Role::Enforce || matches!(kind, Kind::StaggeredWindow(_)) {
            return None;
        }
        let packed = kind.as_packed().filter(|_| kind.fits_word())?;
        let id = self.hash.id(entry.key, entry.policy);
        let tag = id.tag(packed.word_shift());
        let slot = self.table.find(id, tag)?;
        match slot.read(tag) {
            Read::Seen(seen) => Some(Found { id, tag, slot, seen, packed, next: None }),
            Read::Locked | Read::Gone => None,
        }
    }
}

/// Stores what every entry comes to, if nobody has been faster.
fn charge(all: &mut ArrayVec<Found<'_, '_>, FEW>) -> bool {
    all.sort_unstable_by_key(|found| found.id);
    let mut held = ArrayVec::<SlotGuard<'_>, FEW>::new();
    for found in &*all {
        match found.slot.try_lock(found.seen, found.tag) {
            Some(guard) => held.push(guard),
            // Dropped, the others are as they were.
            None => return false,
        }
    }
    for (guard, found) in held.iter_mut().zip(&*all) {
        guard.word = found.next.unwrap_or(found.seen.word);
    }
    true
}

/// Nothing is charged: who would have allowed says what remains now. All must have been read while
/// nobody changed them.
fn report_denied(entries: &mut [Entry<'_>], all: &[Found<'_, '_>], now_us: u64) -> bool {
    if !all.iter().all(|found| found.slot.is_unchanged(found.seen)) {
        return false;
    }
    for (entry, found) in entries.iter_mut().zip(all) {
        if entry.decision.is_some_and(|decision| decision.is_allowed()) {
            let peek = found.packed.step_word(found.seen.word, now_us, 0);
            entry.decision = Some(peek.decision);
        }
    }
    true
}
