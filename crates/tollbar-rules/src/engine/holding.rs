//! Requests that hold something while they last: a charge to be settled, permits to be returned.
//!
//! What is held is written down here and nowhere else. Whoever was handed it sees to its end, also
//! if the request is never answered; nothing in this crate waits for that.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::{Adjustment, Hold, ReservationId, Spending};
use tollbar::{Batch, Policy, Reply, StoreError, Timestamp};

use super::selection::{Ask, Nobody, Selection};
use super::{Engine, Entries, fill, settled, verdict};
use crate::snapshot::Snapshot;
use crate::{Request, Verdict};

/// Whether a request may pass, and what it holds until it is over.
#[derive(Debug)]
#[must_use = "what it holds has to be settled"]
pub struct Admission {
    /// What the rules say.
    pub verdict: Verdict,
    /// What is to be [settled](Engine::settle). `None` where the request was denied, where nothing
    /// has to be settled, and where the store could not answer: then nothing was charged.
    pub holding: Option<Holding>,
}

/// What a request that was let through holds.
#[derive(Debug)]
#[must_use = "it has to be settled: permits that are not returned are gone"]
pub struct Holding {
    snapshot: Arc<Snapshot>,
    /// The name of the reservation, where it is one.
    reservation: Option<ReservationId>,
    cost: u64,
    keys: Box<[u8]>,
    charges: Box<[Charge]>,
}

/// One limit that a request has paid.
#[derive(Debug)]
struct Charge {
    ask: Ask,
    stamp: u64,
    /// What the rule multiplies the request's cost by.
    factor: u64,
}

impl Engine {
    /// May the request pass? Charges it if so, and says what it holds: permits, and, where it is
    /// reserved for a time, its charge, which can be settled within that time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = RuleFile::parse("rules.yaml", "rules: [{ name: tokens, limit: 1000/min }]")?;
    /// let engine = Engine::new(file.rules);
    ///
    /// let request = Request::new("POST", "/v1/chat")?.with_attributes(&[("user", "42")])?;
    /// let admission = engine.admit(&request.clone().with_cost(300), Some(Duration::from_secs(60)));
    /// if let Some(holding) = admission.holding {
    ///     // It took 120 and not 300.
    ///     engine.settle(holding, 120)?;
    /// }
    /// let left = engine.check(&request.with_cost(0)).binding().unwrap().decision().remaining();
    /// assert_eq!(left, 880);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Over a store across a network this blocks the thread; see
    /// [`admit_async`](Self::admit_async).
    pub fn admit(&self, request: &Request<'_>, reserve_for: Option<Duration>) -> Admission {
        let snapshot = self.snapshot();
        let mut selection = Selection::default();
        self.select(&snapshot, request, &mut Nobody, &mut selection);
        if let Some(verdict) = settled(&snapshot, &selection) {
            return Admission { verdict, holding: None };
        }
        let mut entries = Entries::new();
        fill(&mut entries, &snapshot, &selection);
        let hold = self.hold(reserve_for);
        let answer = match self.ask_held(&mut entries, hold) {
            Some(reply) => reply.wait(),
            None => Ok(()),
        };
        let asked = Asked { snapshot: &snapshot, selection: &selection, hold };
        self.admission(&asked, request, &entries, answer)
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn admit_async(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
    ) -> Admission {
        let snapshot = self.snapshot();
        let mut selection = Selection::default();
        self.select(&snapshot, request, &mut Nobody, &mut selection);
        if let Some(verdict) = settled(&snapshot, &selection) {
            return Admission { verdict, holding: None };
        }
        let mut entries = Entries::new();
        fill(&mut entries, &snapshot, &selection);
        let hold = self.hold(reserve_for);
        let answer = match self.ask_held(&mut entries, hold) {
            Some(reply) => reply.await,
            None => Ok(()),
        };
        let asked = Asked { snapshot: &snapshot, selection: &selection, hold };
        self.admission(&asked, request, &entries, answer)
    }

    /// Ends what a request holds: returns its permits and, where it was reserved, settles that it
    /// came to `spent`, which each rule multiplies by its own cost. What was reserved beyond that is
    /// given back; what is missing is charged.
    ///
    /// False where the reservation's time was up: its charge stands as it is. Over a store across
    /// a network this blocks the thread; see [`settle_async`](Self::settle_async).
    #[expect(
        clippy::needless_pass_by_value,
        reason = "what is settled is gone, and not settled twice"
    )]
    pub fn settle(&self, holding: Holding, spent: u64) -> Result<bool, StoreError> {
        let mut returned = Ok(());
        for charge in holding.permits() {
            returned = returned.and(self.returning(&holding, charge).wait().map(|_| ()));
        }
        let Some(id) = holding.reservation else {
            return returned.map(|()| true);
        };
        let mut adjustments = holding.adjustments(spent);
        let is_settled = self.store().settle(id, &mut adjustments).wait();
        returned.and(is_settled)
    }

    /// The same, without blocking the thread.
    pub async fn settle_async(&self, holding: Holding, spent: u64) -> Result<bool, StoreError> {
        let mut returned = Ok(());
        for charge in holding.permits() {
            returned = returned.and(self.returning(&holding, charge).await.map(|_| ()));
        }
        let Some(id) = holding.reservation else {
            return returned.map(|()| true);
        };
        let mut adjustments = holding.adjustments(spent);
        let is_settled = self.store().settle(id, &mut adjustments).await;
        returned.and(is_settled)
    }

    /// True where the store is in this process and answers at once, so that nothing here ever
    /// blocks.
    #[must_use]
    pub fn answers_at_once(&self) -> bool {
        self.memory.is_some()
    }

    /// The time by the engine's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn hold(&self, reserve_for: Option<Duration>) -> Option<Hold> {
        reserve_for.map(|ttl| Hold { id: self.reservations.next(), ttl })
    }

    fn ask_held<'a, 'e: 'a>(
        &'a self,
        entries: &'a mut Entries<'e>,
        hold: Option<Hold>,
    ) -> Option<Reply<'a, ()>> {
        match hold {
            Some(hold) => Some(self.store.check_all(Batch::all_or_none(entries).held(hold))),
            // By itself a question is answered without the name of its charge.
            None if entries.iter().any(|entry| is_permit(entry.policy())) => {
                Some(self.store.check_all(Batch::all_or_none(entries)))
            }
            None => self.ask(entries),
        }
    }

    fn admission(
        &self,
        &Asked { snapshot, selection, hold }: &Asked<'_>,
        request: &Request<'_>,
        entries: &Entries<'_>,
        answer: Result<(), StoreError>,
    ) -> Admission {
        let made = self.conclude(snapshot, request, selection, entries, answer.as_ref().err());
        let verdict = verdict(Arc::clone(snapshot), selection, made, answer.err());
        let is_charged = verdict.is_allowed() && verdict.degraded().is_none();
        let has_permits = || entries.iter().any(|entry| is_permit(entry.policy()));
        if !is_charged || hold.is_none() && !has_permits() {
            return Admission { verdict, holding: None };
        }
        let once = request.clone().with_cost(1);
        // What is in shadow mode is charged only where it allows.
        let paid = selection.asks.iter().zip(entries).filter(|(_, entry)| {
            let allows = entry.decision().is_some_and(|decision| decision.is_allowed());
            allows && (hold.is_some() || is_permit(entry.policy()))
        });
        let charges = paid.map(|(ask, entry)| Charge {
            ask: *ask,
            stamp: entry.stamp(),
            factor: snapshot.cost(ask.rule, &once),
        });
        let holding = Holding {
            charges: charges.collect(),
            reservation: hold.map(|it| it.id),
            cost: request.cost(),
            keys: selection.keys.as_slice().into(),
            snapshot: Arc::clone(snapshot),
        };
        Admission { verdict, holding: Some(holding) }
    }

    fn returning<'a>(&'a self, holding: &'a Holding, charge: &'a Charge) -> Reply<'a, u64> {
        let (key, policy) = holding.counter(charge);
        self.store().refund(key, policy, charge.stamp, charge.ask.cost)
    }
}

/// What a check was about.
struct Asked<'s> {
    snapshot: &'s Arc<Snapshot>,
    selection: &'s Selection,
    hold: Option<Hold>,
}

impl Holding {
    /// What the request was to cost, before rules multiply it.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// True where it is a reservation; else it holds permits only, and what it has spent is no
    /// matter.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.reservation.is_some()
    }

    fn permits(&self) -> impl Iterator<Item = &Charge> {
        self.charges.iter().filter(|it| is_permit(it.ask.policy(&self.snapshot)))
    }

    fn counter(&self, charge: &Charge) -> (&[u8], &Policy) {
        let (start, end) = charge.ask.key;
        (&self.keys[start..end], charge.ask.policy(&self.snapshot))
    }

    fn adjustments(&self, spent: u64) -> Vec<Adjustment<'_>> {
        let charges = self.charges.iter().filter(|it| !is_permit(it.ask.policy(&self.snapshot)));
        charges
            .map(|charge| {
                let (key, policy) = self.counter(charge);
                let spent = spent.saturating_mul(charge.factor);
                let spending = Spending { reserved: charge.ask.cost, spent };
                Adjustment::new(key, policy, charge.stamp, spending)
            })
            .collect()
    }
}

/// True for a limit of what is in flight: it has no window, and what it counts has to be returned.
fn is_permit(policy: &Policy) -> bool {
    policy.window().is_zero()
}
