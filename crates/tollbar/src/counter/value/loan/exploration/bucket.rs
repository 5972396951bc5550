//! The worlds of a bucket. The clock stands still, and whatever is reckoned in time moves towards it, so that
//! worlds that differ in nothing but the time are one.

use std::time::Duration;

use super::super::super::{Counter, Value};
use super::{Lot, Mutant, World, explore, lots, lots_after_reset, with_lot};
use crate::policy::Kind;
use crate::store::LoanRequest;
use crate::{Interval, Outcome, Policy, Rate, Timestamp};

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
    /// How often the counter may be reset.
    resets: u64,
    /// The limit was changed: a loan of all there was, from a larger burst and under a cut, came before.
    before: Option<LimitBefore>,
}

#[derive(Debug, Clone, Copy)]
struct LimitBefore {
    burst: u64,
    cut_us: u64,
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
    resets_left: u64,
    /// What the monitor has left, in units of `1 / denominator` microsecond.
    monitor: u64,
}

/// A charge of which something comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct OpenCharge {
    back: u64,
    stamp_us: u64,
}

impl Scope {
    fn policy(&self, burst: u64) -> Policy {
        let rate = Rate::new(self.limit, Duration::from_micros(self.window_us));
        Policy::token_bucket(rate).unwrap().with_burst(burst).unwrap()
    }
}

impl BucketSetup {
    fn new(scope: Scope, mutant: Mutant) -> Self {
        let policy = scope.policy(scope.burst);
        Self { interval: policy.interval().unwrap(), kind: policy.kind, scope, mutant }
    }

    /// How much time an empty bucket takes to fill.
    fn tolerance_us(&self) -> u64 {
        self.full() / self.interval.denominator
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
        let resets_left = setup.scope.resets;
        let (words, reservation) = (Vec::new(), None);
        let mut start =
            Self { words, lots: Vec::new(), reservation, resets_left, monitor: setup.full() };
        if let Some(LimitBefore { burst, cut_us }) = setup.scope.before {
            let (policy, mut counter) = (setup.scope.policy(burst), Counter::default());
            let term_us = setup.scope.terms_us.iter().max().copied().unwrap_or_default();
            let [term, cut] = [term_us, cut_us].map(Duration::from_micros);
            let loan = counter.lend(&policy.kind, NOW, LoanRequest { tokens: burst, term, cut });
            start.words = counter.to_words();
            if setup.mutant == Mutant::LotOutlivesChange {
                start.lots.push(Lot { is_in_flight: false, ..Lot::lent(loan.tokens, term_us) });
            }
        }
        start
    }

    fn counter(&self, setup: &BucketSetup) -> Counter {
        let mut counter = Counter::read(&Value { words: self.words.clone(), version: 0 }).unwrap();
        if setup.mutant == Mutant::CutDroppedWhenPaid && setup.is_paid(&counter) {
            counter.cut_us = 0;
        }
        counter
    }

    /// Does something with the counter. As the mutant has it, a cut that is larger than the tolerance does not count.
    fn under_cut<T>(
        setup: &BucketSetup,
        counter: &mut Counter,
        act: impl FnOnce(&mut Counter) -> T,
    ) -> T {
        let cut_us = counter.cut_left_us(&setup.kind, NOW);
        if setup.mutant != Mutant::CutAboveToleranceIgnored || cut_us <= setup.tolerance_us() {
            return act(counter);
        }
        counter.cut_us = 0;
        let result = act(counter);
        counter.cut_us = cut_us;
        result
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
            resets_left: self.resets_left,
            monitor: (self.monitor + setup.interval.denominator).min(setup.full()),
            words: counter.to_words(),
        }
    }

    fn lend(&self, setup: &BucketSetup, tokens: u64, term_us: u64) -> Option<Self> {
        let mut counter = self.counter(setup);
        if setup.mutant == Mutant::DebtReducedToFit && !counter.state.is_empty() {
            let paid_at_us_max = NOW.as_micros() + setup.tolerance_us() - term_us;
            if counter.state[0] > paid_at_us_max {
                counter.state = vec![paid_at_us_max, 0];
                return Some(self.with_counter(&counter));
            }
        }
        let cut = Duration::from_micros(term_us);
        let request = LoanRequest { tokens, term: cut, cut };
        let lend = |counter: &mut Counter| counter.lend(&setup.kind, NOW, request);
        let loan = Self::under_cut(setup, &mut counter, lend);
        match setup.mutant {
            Mutant::CutNotKept => counter.cut_us = 0,
            Mutant::LatestCutWins => counter.cut_us = term_us,
            _ => {}
        }
        let late_us = u64::from(setup.mutant == Mutant::LotOutlivesTerm);
        let life_us = loan.life.as_micros() as u64 + late_us;
        let lot = Lot::lent(loan.tokens, life_us);
        let all = self.lots.iter().copied().chain([lot]).collect();
        (loan.tokens > 0).then(|| Self { lots: lots(all), ..self.with_counter(&counter) })
    }

    /// A reset: nothing is owed, nothing is cut, and what nodes hold is beside the limit.
    fn reset(&self, setup: &BucketSetup) -> Option<Self> {
        let lots = lots_after_reset(&self.lots, setup.scope.burst)?;
        let resets_left = self.resets_left - 1;
        Some(Self {
            words: Vec::new(),
            lots,
            reservation: None,
            resets_left,
            monitor: setup.full(),
        })
    }

    /// Whether a denial of `cost` holds until exactly when it says, if nobody else asks.
    fn is_honest(&self, setup: &BucketSetup, cost: u64) -> bool {
        let outcome_after = |wait_us| {
            let now = NOW.after(Duration::from_micros(wait_us));
            self.counter(setup).charge(&setup.kind, now, cost).0.outcome
        };
        let counter = &mut self.counter(setup);
        let room_us = setup.tolerance_us().saturating_sub(counter.cut_left_us(&setup.kind, NOW));
        let needed_us = (cost * setup.interval.numerator_us).div_ceil(setup.interval.denominator);
        match outcome_after(0) {
            Outcome::Allow => true,
            _ if setup.mutant == Mutant::CutDeniesForGood && needed_us > room_us => false,
            Outcome::Deny { retry_after_us } => {
                outcome_after(retry_after_us) == Outcome::Allow
                    && outcome_after(retry_after_us - 1) != Outcome::Allow
            }
            _ => false,
        }
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
        if self.resets_left > 0 {
            let reset = self.reset(setup).ok_or("reset, while more than a burst is lent")?;
            moves.push(("reset".into(), reset));
        }
        for cost in 1..=*burst {
            if !self.is_honest(setup, cost) {
                return Err(format!("{cost} tokens are not denied until they pass"));
            }
            let mut counter = self.counter(setup);
            let charge = |counter: &mut Counter| counter.charge(&setup.kind, NOW, cost).0;
            if Self::under_cut(setup, &mut counter, charge).is_allowed() {
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
            let counted = u64::from(!lot.is_before_reset);
            let spent = Self { lots: left, ..self.clone() }.spend(setup, counted);
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
    Scope {
        limit: 1,
        window_us: 1,
        burst: 5,
        terms_us: vec![1, 2],
        lots_max: 3,
        has_reservations: false,
        resets: 0,
        before: None,
    }
}

/// A burst of 9 before, and of 3 now.
fn changed(cut_us: u64) -> Scope {
    Scope { burst: 3, before: Some(LimitBefore { burst: 9, cut_us }), ..small() }
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
fn a_reset_admits_what_is_lent_beside_a_fresh_bucket() {
    let worlds = run(Scope { resets: 1, lots_max: 2, ..small() }, Mutant::None).unwrap();
    println!("{worlds} worlds");
    assert!(worlds > 1_000, "only {worlds} worlds");
}

#[test]
fn a_cut_that_is_larger_than_the_tolerance_is_waited_for() {
    for cut_us in [2, 8] {
        let worlds = run(changed(cut_us), Mutant::None).unwrap();
        println!("{worlds} worlds");
        assert!(worlds > 100, "only {worlds} worlds");
    }
}

#[test]
#[ignore = "long: a million worlds"]
fn lent_tokens_are_never_spent_beyond_the_limit_of_larger_buckets() {
    for (limit, window_us) in [(1, 1), (2, 3), (1, 2)] {
        let terms_us = vec![1, 2, 3];
        let scope = Scope { limit, window_us, burst: 9, terms_us, lots_max: 4, ..small() };
        let with_reservations =
            Scope { has_reservations: true, burst: 5, lots_max: 3, ..scope.clone() };
        let with_resets = Scope { resets: 2, burst: 6, lots_max: 3, ..scope.clone() };
        let before = Some(LimitBefore { burst: 20, cut_us: 8 });
        let with_change = Scope { burst: 5, before, ..scope.clone() };
        for scope in [scope, with_reservations, with_resets, with_change] {
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
        Mutant::CutDeniesForGood,
        Mutant::CutAboveToleranceIgnored,
        Mutant::LotOutlivesChange,
    ] {
        let scope = match mutant {
            Mutant::CutAboveToleranceIgnored => changed(8),
            Mutant::LotOutlivesChange => changed(2),
            _ => small(),
        };
        match run(scope, mutant) {
            Ok(worlds) => panic!("{mutant:?} spends too much in none of {worlds} worlds"),
            Err(way) => println!("{mutant:?}:\n{way}\n"),
        }
    }
}
