//! The worlds of a window, for as long as three of them last.

use std::time::Duration;

use super::super::super::{Counter, Value};
use super::{Lot, Mutant, World, explore, lots, lots_after_reset, with_lot};
use crate::policy::Kind;
use crate::store::LoanRequest;
use crate::{Policy, Rate, Timestamp};

const LIMIT: u64 = 3;
const WINDOW_US: u64 = 3;
const START_US: u64 = 4 * WINDOW_US;
const END_US: u64 = START_US + 3 * WINDOW_US;
const TERMS_US: [u64; 2] = [1, 2];
const LOTS_MAX: usize = 2;

struct WindowSetup {
    kind: Kind,
    mutant: Mutant,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WindowWorld {
    now_us: u64,
    /// The counter as a backend keeps it.
    words: Vec<u64>,
    lots: Vec<Lot>,
    /// What was spent in this window, and in the one before it.
    spent: u64,
    spent_before: u64,
    may_reset: bool,
}

impl WindowWorld {
    fn counter(&self) -> Counter {
        Counter::read(&Value { words: self.words.clone(), version: 0 }).unwrap()
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now_us)
    }

    /// The world in which so many tokens are spent; `None` where that is too much. A sliding window also counts
    /// the share of the last window that is less than a window ago.
    fn spend(self, setup: &WindowSetup, tokens: u64) -> Option<Self> {
        let spent = self.spent + tokens;
        let left_us = WINDOW_US - self.now_us % WINDOW_US;
        let is_sliding = matches!(setup.kind, Kind::SlidingWindow(_));
        let weight = if is_sliding { self.spent_before * left_us } else { 0 };
        (spent * WINDOW_US + weight <= LIMIT * WINDOW_US).then_some(Self { spent, ..self })
    }

    /// A microsecond later.
    fn tick(&self, setup: &WindowSetup) -> Self {
        let now_us = self.now_us + 1;
        let has_ended = now_us.is_multiple_of(WINDOW_US);
        let mut counter = self.counter();
        if counter.forgettable_at(&setup.kind) <= Timestamp::from_micros(now_us) {
            counter = Counter::default();
        }
        Self {
            now_us,
            words: counter.to_words(),
            lots: lots(self.lots.iter().filter_map(|lot| lot.aged(setup.mutant)).collect()),
            spent: if has_ended { 0 } else { self.spent },
            spent_before: if has_ended { self.spent } else { self.spent_before },
            may_reset: self.may_reset,
        }
    }

    fn lend(&self, setup: &WindowSetup, tokens: u64, term_us: u64) -> Option<Self> {
        let (term, cut) = (Duration::from_micros(term_us), Duration::ZERO);
        let mut counter = self.counter();
        let loan = counter.lend(&setup.kind, self.now(), LoanRequest { tokens, term, cut });
        if loan.tokens == 0 {
            return None;
        }
        let life = if setup.mutant == Mutant::LotOutlivesWindow { term } else { loan.life };
        // The end of a life does not belong to it, as the end of a window does not belong to the window.
        let life_us = life.as_micros() as u64 - 1;
        let lot = Lot::lent(loan.tokens, life_us);
        let all = self.lots.iter().copied().chain([lot]).collect();
        Some(Self { lots: lots(all), words: counter.to_words(), ..self.clone() })
    }

    fn reset(&self) -> Option<Self> {
        let lots = lots_after_reset(&self.lots, LIMIT)?;
        let (spent, spent_before) = (0, 0);
        Some(Self {
            words: Vec::new(),
            lots,
            spent,
            spent_before,
            may_reset: false,
            ..self.clone()
        })
    }

    /// What is left of a lot goes back to its window, as the mutant has it.
    fn hand_back(&self, setup: &WindowSetup, at: usize) -> Self {
        let (mut counter, lot) = (self.counter(), self.lots[at]);
        let window_end_us = (self.now_us / WINDOW_US + 1) * WINDOW_US;
        let refunds = if setup.mutant == Mutant::RefundRetried { 2 } else { 1 };
        for _ in 0..refunds {
            let state = counter.fit(&setup.kind);
            setup.kind.as_dyn().refund(state, self.now(), window_end_us, lot.tokens);
        }
        let is_kept = setup.mutant == Mutant::LotKeptWhenHandedBack;
        let tokens = if is_kept { lot.tokens } else { 0 };
        let lots = with_lot(&self.lots, at, Lot { tokens, ..lot });
        Self { words: counter.to_words(), lots, ..self.clone() }
    }
}

impl World for WindowWorld {
    type Setup = WindowSetup;

    fn moves(&self, setup: &WindowSetup) -> Result<Vec<(String, Self)>, String> {
        let mut moves = Vec::new();
        if self.now_us < END_US {
            moves.push(("tick".into(), self.tick(setup)));
        }
        if self.may_reset {
            let reset = self.reset().ok_or("reset, while more than the limit is lent")?;
            moves.push(("reset".into(), reset));
        }
        for cost in 1..=LIMIT {
            let mut counter = self.counter();
            if counter.charge(&setup.kind, self.now(), cost).0.is_allowed() {
                let name = format!("check {cost}");
                let charged = Self { words: counter.to_words(), ..self.clone() };
                moves.push((name.clone(), charged.spend(setup, cost).ok_or(name)?));
            }
            for term_us in TERMS_US.iter().filter(|_| self.lots.len() < LOTS_MAX) {
                let lent = self.lend(setup, cost, *term_us);
                moves.extend(lent.map(|lent| (format!("lend {cost} for {term_us}"), lent)));
            }
        }
        for (at, lot) in self.lots.iter().enumerate() {
            if lot.is_in_flight {
                let arrived = with_lot(&self.lots, at, Lot { is_in_flight: false, ..*lot });
                moves.push(("arrive".into(), Self { lots: arrived, ..self.clone() }));
                continue;
            }
            let left = with_lot(&self.lots, at, Lot { tokens: lot.tokens - 1, ..*lot });
            let counted = u64::from(!lot.is_before_reset);
            let spent = Self { lots: left, ..self.clone() }.spend(setup, counted);
            moves.push(("spend".into(), spent.ok_or("spend a lent token")?));
            let is_handed_back = match setup.mutant {
                Mutant::LotKeptWhenHandedBack | Mutant::RefundRetried => !lot.is_before_reset,
                Mutant::RefundAfterReset => lot.is_before_reset,
                _ => false,
            };
            if is_handed_back {
                moves.push(("hand back".into(), self.hand_back(setup, at)));
            }
        }
        Ok(moves)
    }
}

fn run(policy: Policy, mutant: Mutant, may_reset: bool) -> Result<usize, String> {
    let (words, lots) = (Vec::new(), Vec::new());
    let (now_us, spent, spent_before) = (START_US, 0, 0);
    let start = WindowWorld { now_us, words, lots, spent, spent_before, may_reset };
    explore(&WindowSetup { kind: policy.kind, mutant }, start)
}

fn policies() -> [Policy; 2] {
    let rate = Rate::new(LIMIT, Duration::from_micros(WINDOW_US));
    [Policy::fixed_window(rate).unwrap(), Policy::sliding_window(rate).unwrap()]
}

#[test]
fn lent_tokens_are_never_spent_beyond_the_limit_of_a_window() {
    for policy in policies() {
        let worlds = run(policy, Mutant::None, true).unwrap();
        println!("{worlds} worlds");
        assert!(worlds > 1_000, "only {worlds} worlds");
    }
}

#[test]
fn every_condition_of_a_window_is_necessary() {
    for policy in policies() {
        for mutant in [
            Mutant::LotOutlivesWindow,
            Mutant::LifeFromReply,
            Mutant::LotKeptWhenHandedBack,
            Mutant::RefundRetried,
            Mutant::RefundAfterReset,
        ] {
            match run(policy.clone(), mutant, mutant == Mutant::RefundAfterReset) {
                Ok(worlds) => panic!("{mutant:?} spends too much in none of {worlds} worlds"),
                Err(way) => println!("{mutant:?}:\n{way}\n"),
            }
        }
    }
}
