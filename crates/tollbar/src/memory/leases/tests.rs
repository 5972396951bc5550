//! What leases take of the slab, and that they give it back.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::{ManualClock, MemoryStore, Policy, Store, Timestamp};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const TTL: Duration = Duration::from_mins(1);

fn store(max_leases: usize) -> (ManualClock, Arc<MemoryStore>) {
    let clock = ManualClock::at(START);
    let builder = MemoryStore::builder().max_keys(100).max_leases(max_leases);
    (clock.clone(), Arc::new(builder.clock(clock).build()))
}

fn leased(limit: u64) -> Policy {
    Policy::concurrency(limit).unwrap().leased(TTL).unwrap()
}

fn blocks(store: &MemoryStore) -> usize {
    store.leases.blocks.in_use_count()
}

proptest! {
    /// A block that nobody finds again would be lost for good.
    #[test]
    fn every_block_is_back_when_all_leases_have_ended_or_were_released(
        acts in vec((0_u8..3, 0_u64..40, 0_u8..4, any::<u16>()), 1..120),
    ) {
        let (clock, store) = store(0);
        let policy = leased(5_000);
        let mut stamps = Vec::new();
        for (key, cost, act, pick) in acts {
            let key = [key];
            match act {
                0 | 1 => {
                    let mut entries = [crate::Entry::new(&key, &policy).with_cost(cost * 100)];
                    let batch = crate::Batch::all_or_none(&mut entries);
                    store.decide(batch).wait().unwrap();
                    stamps.push((key, entries[0].stamp()));
                }
                2 if !stamps.is_empty() => {
                    let (key, stamp) = stamps.swap_remove(usize::from(pick) % stamps.len());
                    store.refund_now(&key, &policy, stamp, u64::MAX);
                }
                _ => clock.advance(TTL / 8),
            }
        }
        clock.advance(TTL);
        for (key, stamp) in stamps {
            prop_assert_eq!(store.refund_now(&key, &policy, stamp, u64::MAX), 0, "it has ended");
        }
        // What nobody asks for again is free for others, and so is what is reset.
        for key in 0..3 {
            store.reset(&[key], &policy).wait().unwrap();
        }
        prop_assert_eq!(blocks(&store), 0);
        prop_assert_eq!(store.stats().live_keys, 0);
    }
}

/// With one block for each shard there is room for seven leases of one key and half of another, with
/// three for 22 and half of another.
#[test]
fn leases_for_which_there_is_no_room_forgive_the_oldest_whole_and_are_counted() {
    for (max_leases, block_count) in [(0, 1), (5_760, 3)] {
        let (_, store) = store(max_leases);
        let policy = leased(5_000);
        let left = || store.check_now(b"key", &policy, 0).remaining().unwrap();
        let mut stamps = Vec::new();
        for cost in 1..=60 {
            let mut entries = [crate::Entry::new("key", &policy).with_cost(cost)];
            store.decide(crate::Batch::all_or_none(&mut entries)).wait().unwrap();
            stamps.push(entries[0].stamp());
            assert_eq!(blocks(&store).max(1), blocks(&store).clamp(1, block_count));
        }
        let in_flight = 5_000 - left();
        assert!(in_flight >= 60 && store.stats().forced_evictions > 0);
        let returned =
            stamps.iter().map(|stamp| store.refund_now(b"key", &policy, *stamp, u64::MAX));
        let returned: Vec<u64> = returned.collect();
        assert_eq!(returned.iter().sum::<u64>(), in_flight);
        // The oldest are gone, and the others whole.
        let held: Vec<u64> = returned.into_iter().skip_while(|permits| *permits == 0).collect();
        assert!(held.iter().copied().eq(61 - held.len() as u64..=60), "{held:?}");
        assert_eq!((left(), blocks(&store)), (5_000, 0));
    }
}

#[test]
fn no_two_leases_have_the_same_name() {
    let mut names: Vec<u64> = (0..100_000).map(|_| super::lease_name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 100_000);
    assert_ne!(names[0], 0);
}
