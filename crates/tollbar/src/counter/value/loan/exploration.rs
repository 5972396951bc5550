//! Small worlds in full: every way in which checks, loans, spending, refunds and time can follow each other, on the
//! functions that every [`CounterStore`](crate::CounterStore) counts by.
//!
//! A monitor that knows nothing of loans judges what is *spent*: a bucket of its own for buckets, a count per
//! window for windows. Each condition that the proof of decision 0083 needs is left out in a [`Mutant`], and the
//! monitor has to find a way to spend too much.

mod bucket;
mod window;

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// A condition that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// None: the code as it is.
    None,
    /// A loan for which there is no room reduces the stored debt to what fits under its cut.
    DebtReducedToFit,
    /// The cut is forgotten when all debt is paid.
    CutDroppedWhenPaid,
    /// The cut holds for the loan alone and is not part of the state.
    CutNotKept,
    /// The cut shrinks while something is owed.
    CutShrinksUnderDebt,
    /// A loan with a shorter term lowers the cut.
    LatestCutWins,
    /// The key expires when the debt is paid, before the cut has shrunk.
    KeyExpiresWithDebt,
    /// What is left of a lot goes back to its bucket.
    TokensHandedBack,
    /// A lot is spent after its term.
    LotOutlivesTerm,
    /// A lot's life begins when the reply arrives.
    LifeFromReply,
    /// A lot's life does not end with the window that it was charged in.
    LotOutlivesWindow,
    /// A cut that is larger than the tolerance, after a change of the limit, counts as none.
    CutAboveToleranceIgnored,
    /// A cost that does not fit beneath the cut is denied for good.
    CutDeniesForGood,
    /// Lots that were lent under other numbers are spent after a change of the limit.
    LotOutlivesChange,
    /// What is left of a lot goes back to its window, and is spent as well.
    LotKeptWhenHandedBack,
    /// What is left of a lot goes back to its window twice: the first answer was lost.
    RefundRetried,
    /// What is left of a lot goes back to its window, although the counter was reset meanwhile.
    RefundAfterReset,
}

/// Tokens that a node has borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lot {
    tokens: u64,
    /// For how much longer they can be spent: at this instant only, where it is 0.
    life_us: u64,
    /// The store has lent them, and the node does not know yet.
    is_in_flight: bool,
    /// The counter was reset since. Tokens that other nodes hold then are spent beside the fresh counter.
    is_before_reset: bool,
}

impl Lot {
    fn lent(tokens: u64, life_us: u64) -> Self {
        Self { tokens, life_us, is_in_flight: true, is_before_reset: false }
    }

    /// The lot a microsecond later, if it is still alive.
    fn aged(self, mutant: Mutant) -> Option<Self> {
        if self.is_in_flight && mutant == Mutant::LifeFromReply {
            return Some(self);
        }
        Some(Self { life_us: self.life_us.checked_sub(1)?, ..self })
    }
}

/// The lots of all nodes. It does not matter which node holds which.
fn lots(mut lots: Vec<Lot>) -> Vec<Lot> {
    lots.retain(|lot| lot.tokens > 0);
    lots.sort_unstable();
    lots
}

/// The lots after a reset of their counter; `None` if more than `tokens_max` were lent since the one before.
fn lots_after_reset(all: &[Lot], tokens_max: u64) -> Option<Vec<Lot>> {
    let since = all.iter().filter(|lot| !lot.is_before_reset);
    let tokens: u64 = since.map(|lot| lot.tokens).sum();
    let after = all.iter().map(|lot| Lot { is_before_reset: true, ..*lot });
    (tokens <= tokens_max).then(|| lots(after.collect()))
}

/// The lots after one of them arrives, or a token of it is spent.
fn with_lot(all: &[Lot], at: usize, lot: Lot) -> Vec<Lot> {
    let mut all = all.to_vec();
    all[at] = lot;
    lots(all)
}

/// A world and its moves.
trait World: Clone + Eq + Hash + Debug {
    /// What no move changes.
    type Setup;

    /// Every world that is one move away, and the name of the move. `Err` names a move by which more is spent
    /// than the limit allows.
    fn moves(&self, setup: &Self::Setup) -> Result<Vec<(String, Self)>, String>;
}

/// Goes to every world there is, nearest first. Returns how many there are, or the shortest way to spend too much.
fn explore<W: World>(setup: &W::Setup, start: W) -> Result<usize, String> {
    let mut known = HashMap::from([(start.clone(), 0)]);
    let mut worlds = vec![(0, String::from("start"), start)];
    let mut at = 0;
    while at < worlds.len() {
        let moves = worlds[at].2.moves(setup).map_err(|last| way_to(&worlds, at, &last))?;
        for (name, world) in moves {
            let next = worlds.len();
            known.entry(world).or_insert_with_key(|world| {
                worlds.push((at, name, world.clone()));
                next
            });
        }
        at += 1;
    }
    Ok(worlds.len())
}

fn way_to<W: Debug>(worlds: &[(usize, String, W)], mut at: usize, last: &str) -> String {
    let mut way = vec![last.to_owned()];
    while at > 0 {
        let (from, name, world) = &worlds[at];
        way.push(format!("{name}: {world:?}"));
        at = *from;
    }
    way.reverse();
    way.join("\n")
}
