//! The worlds of a bucket. The clock stands still, and whatever is reckoned in time moves towards it, so that
//! worlds that differ in nothing but the time are one.

use std::time::Duration;

use super::super::super::{Counter, Value};
use super::{Lot, Mutant, World, explore, lots, with_lot};
use crate::policy::Kind;
use crate::store::LoanRequest;
use crate::{Interval, Policy, Rate, Timestamp};

const NOW: Timestamp = Timestamp::from_micros(1_000_000);

/// What is explored.
#[derive(Debug, Clone)]
struct Scope {
    /// Tokens per `window_us`.
    limit: u64,
    window_us: u64,
    burst: u64,
    terms_us: Vec<u64>,
    lots_max: usize,
    has_reservations: bool,
}

struct BucketSetup {
    kind: Kind,
    interval: Interval,
    scope: Scope,
    mutant: Mutant,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct BucketWorld {
    /// The counter as a backend keeps it.
    words: Vec<u64>,
    lots: Vec<Lot>,
    reservation: Option<OpenCharge>,
    /// What the monitor has left, in units of `1 / denominator` microsecond.
    monitor: u64,
}

/// A charge of which something comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct OpenCharge {
    back: u64,
    stamp_us: u64,
}

impl BucketSetup {
    fn new(scope: Scope, mutant: Mutant) -> Self {
        let rate = Rate::new(scope.limit, Duration::from_micros(scope.window_us));
        let policy = Policy::token_bucket(rate).unwrap().with_burst(scope.burst).unwrap();
        Self { interval: policy.interval().unwrap(), kind: policy.kind, scope, mutant }
    }

    /// A full debt, in units.
    fn full(&self) -> u64 {
        self.scope.burst * self.interval.numerator_us
    }

    fn is_paid(&self, counter: &Counter) -> bool {
        self.kind.as_dyn().fresh_at(counter.clone().fit(&self.kind)) <= NOW
    }
}

impl BucketWorld {
    fn new(setup: &BucketSetup) -> Self {
        Self { words: Vec::new(), lots: Vec::new(), reservation: None, monitor: setup.full() }
    }

    fn counter(&self, setup: &BucketSetup) -> Counter {
        let mut counter = Counter::read(&Value { words: self.words.clone(), version: 0 }).unwrap();
        if setup.mutant == Mutant::CutDroppedWhenPaid && setup.is_paid(&counter) {
            counter.cut_us = 0;
        }
        counter
    }

    fn with_counter(&self, counter: &Counter) -> Self {
        Self { words: counter.to_words(), ..self.clone() }
    }

    /// The world in which so many tokens are spent; `None` where that is too much.
    fn spend(self, setup: &BucketSetup, tokens: u64) -> Option<Self> {
        let monitor = self.monitor.checked_sub(tokens * setup.interval.numerator_us)?;
        Some(Self { monitor, ..self })
    }

    /// A microsecond later.
    fn tick(&self, setup: &BucketSetup) -> Self {
        let mut counter = self.counter(setup);
        if let Some(paid_at_us) = counter.state.first_mut() {
            *paid_at_us = paid_at_us.saturating_sub(1);
        }
        let is_paid = setup.is_paid(&counter);
        if setup.mutant == Mutant::CutShrinksUnderDebt && !is_paid {
            counter.cut_us = counter.cut_us.saturating_sub(1);
        }
        let is_early = setup.mutant == Mutant::KeyExpiresWithDebt && is_paid;
        if is_early || counter.forgettable_at(&setup.kind) <= NOW {
            counter = Counter::default();
        }
        let reservation = self.reservation.and_then(|reservation| {
            let stamp_us = reservation.stamp_us - 1;
            (stamp_us > NOW.as_micros()).then_some(OpenCharge { stamp_us, ..reservation })
        });
        Self {
            lots: lots(self.lots.iter().filter_map(|lot| lot.aged(setup.mutant)).collect()),
            reservation,
            monitor: (self.monitor + setup.interval.denominator).min(setup.full()),
            words: counter.to_words(),
        }
    }

    fn lend(&self, setup: &BucketSetup, tokens: u64, term_us: u64) -> Option<Self> {
        let mut counter = self.counter(setup);
        if setup.mutant == Mutant::DebtReducedToFit && !counter.state.is_empty() {
            let tolerance_us = setup.full() / setup.interval.denominator - term_us;
            let paid_at_us_max = NOW.as_micros() + tolerance_us;
            if counter.state[0] > paid_at_us_max {
                counter.state = vec![paid_at_us_max, 0];
                return Some(self.with_counter(&counter));
            }
        }
        let cut = Duration::from_micros(term_us);
        let loan = counter.lend(&setup.kind, NOW, LoanRequest { tokens, term: cut, cut });
        match setup.mutant {
            Mutant::CutNotKept => counter.cut_us = 0,
            Mutant::LatestCutWins => counter.cut_us = term_us,
            _ => {}
        }
        let late_us = u64::from(setup.mutant == Mutant::LotOutlivesTerm);
        let life_us = loan.life.as_micros() as u64 + late_us;
        let lot = Lot { tokens: loan.tokens, life_us, is_in_flight: true };
        let all = self.lots.iter().copied().chain([lot]).collect();
        (loan.tokens > 0).then(|| Self { lots: lots(all), ..self.with_counter(&counter) })
    }

    /// Charges `cost` tokens. Of these `kept` are spent at once, and the others may come back.
    fn reserve(&self, setup: &BucketSetup, cost: u64, kept: u64) -> Option<Self> {
        let mut counter = self.counter(setup);
        let (decision, stamp_us) = counter.charge(&setup.kind, NOW, cost);
        let reservation = Some(OpenCharge { back: cost - kept, stamp_us });
        decision.is_allowed().then(|| Self { reservation, ..self.with_counter(&counter) })
    }

    fn settle(&self, setup: &BucketSetup, OpenCharge { back, stamp_us }: OpenCharge) -> Self {
        let mut counter = self.counter(setup);
        setup.kind.as_dyn().refund(counter.fit(&setup.kind), NOW, stamp_us, back);
        Self { reservation: None, ..self.with_counter(&counter) }
    }

    /// The tokens of a lot go back, as far as anything is owed.
    fn hand_back(&self, setup: &BucketSetup, at: usize) -> Self {
        let mut counter = self.counter(setup);
        let lot = self.lots[at];
        setup.kind.as_dyn().refund(counter.fit(&setup.kind), NOW, u64::MAX, lot.tokens);
        let lots = with_lot(&self.lots, at, Lot { tokens: 0, ..lot });
        Self { lots, ..self.with_counter(&counter) }
    }
}

impl World for BucketWorld {
    type Setup = BucketSetup;

    fn moves(&self, setup: &BucketSetup) -> Result<Vec<(String, Self)>, String> {
        let Scope { burst, terms_us, lots_max, has_reservations, .. } = &setup.scope;
        let mut moves = vec![("tick".into(), self.tick(setup))];
        for cost in 1..=*burst {
            let mut counter = self.counter(setup);
            if counter.charge(&setup.kind, NOW, cost).0.is_allowed() {
                let name = format!("check {cost}");
                let spent = self.with_counter(&counter).spend(setup, cost).ok_or(name.clone())?;
                moves.push((name, spent));
            }
            for term_us in terms_us.iter().filter(|_| self.lots.len() < *lots_max) {
                let lent = self.lend(setup, cost, *term_us);
                moves.extend(lent.map(|lent| (format!("lend {cost} for {term_us}"), lent)));
            }
            let may_reserve = *has_reservations && self.reservation.is_none();
            for kept in (0..cost).filter(|_| may_reserve) {
                let name = format!("reserve {cost}, keep {kept}");
                if let Some(reserved) = self.reserve(setup, cost, kept) {
                    moves.push((name.clone(), reserved.spend(setup, kept).ok_or(name)?));
                }
            }
        }
        for (at, lot) in self.lots.iter().enumerate() {
            if lot.is_in_flight {
                let arrived = with_lot(&self.lots, at, Lot { is_in_flight: false, ..*lot });
                moves.push(("arrive".into(), Self { lots: arrived, ..self.clone() }));
                continue;
            }
            let left = with_lot(&self.lots, at, Lot { tokens: lot.tokens - 1, ..*lot });
            let spent = Self { lots: left, ..self.clone() }.spend(setup, 1);
            moves.push(("spend".into(), spent.ok_or("spend a lent token")?));
            if setup.mutant == Mutant::TokensHandedBack {
                moves.push(("hand back".into(), self.hand_back(setup, at)));
            }
        }
        moves.extend(self.reservation.map(|held| ("settle".into(), self.settle(setup, held))));
        Ok(moves)
    }
}

fn run(scope: Scope, mutant: Mutant) -> Result<usize, String> {
    let setup = BucketSetup::new(scope, mutant);
    explore(&setup, BucketWorld::new(&setup))
}

fn small() -> Scope {
    let terms_us = vec![1, 2];
    Scope { limit: 1, window_us: 1, burst: 5, terms_us, lots_max: 3, has_reservations: false }
}

#[test]
fn lent_tokens_are_never_spent_beyond_the_limit_of_a_bucket() {
    let worlds = run(small(), Mutant::None).unwrap();
    println!("{worlds} worlds");
    assert!(worlds > 1_000, "only {worlds} worlds");
}

/// Tokens take three halves of a microsecond, so that parts of one are owed.
#[test]
fn parts_of_a_microsecond_do_not_shrink_a_cut() {
    let worlds = run(Scope { limit: 2, window_us: 3, ..small() }, Mutant::None).unwrap();
    println!("{worlds} worlds");
    assert!(worlds > 1_000, "only {worlds} worlds");
}

#[test]
#[ignore = "long: a million worlds"]
fn lent_tokens_are_never_spent_beyond_the_limit_of_larger_buckets() {
    for (limit, window_us) in [(1, 1), (2, 3), (1, 2)] {
        let terms_us = vec![1, 2, 3];
        let scope = Scope { limit, window_us, burst: 9, terms_us, lots_max: 4, ..small() };
        let with_reservations =
            Scope { has_reservations: true, burst: 5, lots_max: 3, ..scope.clone() };
        for scope in [scope, with_reservations] {
            let worlds = run(scope.clone(), Mutant::None).unwrap();
            println!("{scope:?}: {worlds} worlds");
        }
    }
}

#[test]
fn every_condition_of_a_bucket_is_necessary() {
    for mutant in [
        Mutant::DebtReducedToFit,
        Mutant::CutDroppedWhenPaid,
        Mutant::CutNotKept,
        Mutant::CutShrinksUnderDebt,
        Mutant::LatestCutWins,
        Mutant::KeyExpiresWithDebt,
        Mutant::TokensHandedBack,
        Mutant::LotOutlivesTerm,
        Mutant::LifeFromReply,
    ] {
        match run(small(), mutant) {
            Ok(worlds) => panic!("{mutant:?} spends too much in none of {worlds} worlds"),
            Err(way) => println!("{mutant:?}:\n{way}\n"),
        }
    }
}
