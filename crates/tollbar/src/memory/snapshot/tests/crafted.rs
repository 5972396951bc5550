//! Snapshots that are put together by hand: what is in them twice, and leases that cannot be.
//!
//! A counter that was forgotten and came back while a snapshot was taken is in it twice.

use super::super::format::{Counts, Header, Sink, WordEntry};
use super::*;
use crate::memory::rank::EntryRank;
use crate::memory::wide_table::CLASS_WORDS;

/// A snapshot of a store whose hash is that of [`store`], with these counters.
#[derive(Default)]
struct CraftedSnapshot {
    words: Vec<[u64; 3]>,
    /// Of four words: the name, the rank, and the state.
    wide: Vec<[u64; 6]>,
    leases: Vec<[u64; 4]>,
}

impl CraftedSnapshot {
    fn bytes(&self, line_count: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut sink = Sink::new(&mut bytes);
        sink.header(&Header { seeds: [1, 2], taken_at_us: START_US, line_count }).unwrap();
        self.words.iter().for_each(|entry| sink.buffer(entry));
        self.wide.iter().for_each(|entry| sink.buffer(entry));
        self.leases.iter().for_each(|entry| sink.buffer(entry));
        let mut counts = Counts {
            words: self.words.len() as u64,
            leases: self.leases.len() as u64,
            ..Counts::default()
        };
        assert_eq!(CLASS_WORDS[0], 4);
        counts.wide[0] = self.wide.len() as u64;
        sink.finish(&counts, false).unwrap();
        bytes
    }
}

fn snapshot_of(store: &MemoryStore) -> Snapshot {
    let mut bytes = Vec::new();
    store.write_snapshot(&mut bytes).unwrap();
    Snapshot::read(&mut bytes.as_slice(), u64::MAX - 1).unwrap()
}

/// The counter of "a" in the table of a store for `max_keys`, once it was charged `cost`.
fn word_entry(max_keys: usize, cost: u64) -> [u64; 3] {
    let store = store(max_keys);
    check(&store, "a", &bucket(), cost);
    let WordEntry { line, tag, word } = snapshot_of(&store).words().next().unwrap();
    [line as u64, tag, word]
}

#[test]
fn of_a_counter_that_is_twice_in_a_snapshot_the_later_state_is_restored() {
    let (few, many) = (word_entry(1_000, 3), word_entry(1_000, 7));
    for words in [vec![few, many], vec![many, few], vec![few, many, few]] {
        let bytes = CraftedSnapshot { words, ..CraftedSnapshot::default() }.bytes(500);
        // In a table of the same size, and in others.
        for max_keys in [1_000, 600, 5_000] {
            let new = restore(max_keys, &bytes).unwrap();
            assert_eq!(
                check(&new, "a", &bucket(), 0).remaining().unwrap(),
                3,
                "for {max_keys} keys"
            );
            assert_eq!(new.stats().forced_evictions, 0);
        }
    }
}

/// The strict window of "a" after a charge of 4, and after another one of 3 in its next half.
fn wide_entries() -> [[u64; 6]; 2] {
    let (builder, clock) = builder(4);
    let store = builder.build_with(CounterHash::from_seeds([1, 2]));
    let entry = || {
        let snapshot = snapshot_of(&store);
        let entry = snapshot.wide().next().unwrap();
        let mut state = entry.state();
        std::array::from_fn(|at| match at {
            0 => entry.id,
            1 => entry.rank().to_word(),
            _ => state.next().unwrap(),
        })
    };
    check(&store, "a", &strict(), 4);
    let before = entry();
    clock.advance(Duration::from_mins(30));
    check(&store, "a", &strict(), 3);
    [before, entry()]
}

#[test]
fn of_a_wide_counter_that_is_twice_in_a_snapshot_the_later_state_is_restored() {
    let [before, after] = wide_entries();
    assert!(before[1] < after[1], "it ranks higher later");
    for wide in [vec![before, after], vec![after, before]] {
        let bytes = CraftedSnapshot { wide, ..CraftedSnapshot::default() }.bytes(2);
        let new = restore(4, &bytes).unwrap();
        assert_eq!(check(&new, "a", &strict(), 0).remaining().unwrap(), 3);
        assert_eq!(new.stats().live_keys, 1);
    }
}

#[test]
fn a_lease_without_a_counter_a_name_or_permits_is_refused() {
    let store = store(4);
    check(&store, "a", &leased(), 4);
    let snapshot = snapshot_of(&store);
    let entry = snapshot.leases().next().unwrap();
    let (name, [id, extent]) = (entry.name, entry.lease.to_words());
    let rank = EntryRank { used: entry.used(), fresh_at_us: entry.lease.ends_at_us() }.to_word();
    let restored = |lease: [u64; 4]| {
        restore(4, &CraftedSnapshot { leases: vec![lease], ..CraftedSnapshot::default() }.bytes(2))
    };
    let whole = restored([name, rank, id, extent]).unwrap();
    assert_eq!(check(&whole, "a", &leased(), 0).remaining().unwrap(), 6);
    for cannot_be in [
        [0, rank, id, extent],
        [name, rank | 1 << 61, id, extent],
        [name, rank, 0, extent],
        [name, rank, id, extent - 4],
    ] {
        let refused = restored(cannot_be);
        assert!(matches!(refused, Err(SnapshotError::Corrupt { .. })), "{cannot_be:?}");
    }
}
