//! A slab against the standard library's queue, and every block accounted for.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::memory::shards::Shards;

const LISTS: usize = 4;

#[derive(Debug, Clone)]
enum Op {
    Push { list: usize, count: usize },
    DropFront { list: usize, count: usize },
    Truncate { list: usize, len: usize },
    Double { list: usize },
    Clear { list: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let list = 0..LISTS;
    prop_oneof![
        6 => (list.clone(), 1_usize..40).prop_map(|(list, count)| Op::Push { list, count }),
        4 => (list.clone(), 0_usize..50).prop_map(|(list, count)| Op::DropFront { list, count }),
        2 => (list.clone(), 0_usize..50).prop_map(|(list, len)| Op::Truncate { list, len }),
        1 => list.clone().prop_map(|list| Op::Double { list }),
        1 => list.prop_map(|list| Op::Clear { list }),
    ]
}

/// Lists of one shard, and what they should hold.
struct Fixture<'a> {
    blocks: &'a Blocks,
    guard: &'a ShardGuard<'a>,
    lists: [(Chain, VecDeque<u64>); LISTS],
    next: u64,
}

impl Fixture<'_> {
    fn act(&mut self, op: &Op) {
        let (blocks, guard) = (self.blocks, self.guard);
        match *op {
            Op::Push { list, count } => (0..count).for_each(|_| self.push(list)),
            Op::DropFront { list, count } => {
                let (chain, model) = &mut self.lists[list];
                blocks.drop_front(guard, chain, count);
                model.drain(..count.min(model.len()));
            }
            Op::Truncate { list, len } => {
                let (chain, model) = &mut self.lists[list];
                blocks.truncate(guard, chain, len);
                model.truncate(len);
            }
            Op::Double { list } => {
                let (chain, model) = &mut self.lists[list];
                let double = |item: u64| item.wrapping_mul(2);
                for item in blocks.items(guard, *chain) {
                    item.store(double(item.load(Ordering::Relaxed)), Ordering::Relaxed);
                }
                for item in model {
                    *item = double(*item);
                }
            }
            Op::Clear { list } => {
                let (chain, model) = &mut self.lists[list];
                blocks.clear(guard, chain);
                model.clear();
            }
        }
    }

    fn push(&mut self, list: usize) {
        let is_full = self.blocks_in_use() == self.blocks.per_shard;
        let (chain, model) = &mut self.lists[list];
        let must_fail = is_full && chain.needs_block();
        let before = *chain;
        let pushed = self.blocks.push_back(self.guard, chain, self.next);
        assert_eq!(pushed, if must_fail { Err(SlabFull) } else { Ok(()) });
        if must_fail {
            assert_eq!(*chain, before);
        } else {
            model.push_back(self.next);
        }
        self.next += 1;
    }

    fn blocks_in_use(&self) -> usize {
        self.lists.iter().map(|(chain, _)| chain.block_count()).sum()
    }

    fn assert_holds(&self) {
        for (chain, model) in &self.lists {
            let items = self.blocks.items(self.guard, *chain);
            let items: VecDeque<u64> = items.map(|item| item.load(Ordering::Relaxed)).collect();
            assert_eq!(&items, model);
            assert_eq!(chain.len(), model.len());
            assert_eq!(self.blocks.back(self.guard, *chain), model.back().copied());
            assert_eq!(Chain::from_words(chain.to_words()), *chain);
        }
        let in_use = self.blocks_in_use();
        assert_eq!(self.blocks.in_use_count(), in_use, "a block was lost, or is used twice");
        assert_eq!(self.blocks.has_free(self.guard), in_use < self.blocks.per_shard);
        assert!(self.free_blocks().is_disjoint(&self.used_blocks()));
        assert_eq!(self.free_blocks().len() + in_use, self.blocks.per_shard);
    }

    fn used_blocks(&self) -> std::collections::BTreeSet<u32> {
        let of_chain = |chain: Chain| {
            let mut block = chain.head;
            (0..chain.block_count()).map(move |_| {
                let this = block;
                block = self.blocks.link(block).load(Ordering::Relaxed) as u32;
                this
            })
        };
        self.lists.iter().flat_map(|(chain, _)| of_chain(*chain)).collect()
    }

    /// Those that were used before, and those that never were.
    fn free_blocks(&self) -> std::collections::BTreeSet<u32> {
        let shard = self.guard.shard();
        let free = &self.blocks.free[shard];
        let mut block = free.head.load(Ordering::Relaxed) as u32;
        let used_before = std::iter::from_fn(|| {
            let this = block;
            (this != 0).then(|| {
                block = self.blocks.link(this).load(Ordering::Relaxed) as u32;
                this
            })
        });
        let touched = free.touched.load(Ordering::Relaxed) as usize;
        let untouched = touched..self.blocks.per_shard;
        let number = |block: usize| (block * self.blocks.free.len() + shard + 1) as u32;
        used_before.chain(untouched.map(number)).collect()
    }
}

proptest! {
    #[test]
    fn chains_are_queues_and_no_block_is_lost(
        ops in vec(op(), 1..60),
        blocks_per_shard in 1_usize..12,
        shard in 0_usize..2,
    ) {
        let shards = Shards::new();
        let guard = shards.lock_shard(shard);
        let blocks = Blocks::new(blocks_per_shard * BLOCK_ITEMS * 2, 2);
        let lists = std::array::from_fn(|_| Default::default());
        let mut fixture = Fixture { blocks: &blocks, guard: &guard, lists, next: 1 };
        for op in &ops {
            fixture.act(op);
            fixture.assert_holds();
        }
    }
}

#[test]
fn a_block_is_two_cache_lines_and_the_smallest_slab_has_one_for_each_shard() {
    for items_max in [0, 1, 15 * 8] {
        let blocks = Blocks::new(items_max, 8);
        assert_eq!(blocks.block_count(), 8);
        assert_eq!(blocks.block(1).as_ptr().addr() % BLOCK_BYTES, 0);
    }
    assert_eq!(Blocks::new(15 * 8 + 1, 8).block_count(), 16);
}
