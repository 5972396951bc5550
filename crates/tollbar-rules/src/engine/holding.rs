//! Requests that hold something while they last: a charge to be settled, permits to be returned.
//!
//! What is held is written down here and nowhere else. Whoever was handed it sees to its end, also
//! if the request is never answered; nothing in this crate waits for that.

use std::sync::Arc;
use std::time::Duration;

use tollbar::store::{Adjustment, Hold, ReservationId, Spending, block_on};
use tollbar::{Entry, StoreError, Timestamp};

use super::once::refusal;
use super::selection::{Ask, Nobody, Selection};
use super::{Asked, Engine, Entries, fill};
use crate::matcher::Items;
use crate::permits::{Permits, is_held};
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
    reserved: Option<Reserved>,
    cost: u64,
    permits: Option<Arc<Permits>>,
}

/// A charge to be settled.
#[derive(Debug)]
struct Reserved {
    id: ReservationId,
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

/// Permits of a request whose leases end unless they are [renewed](Engine::renew_leases).
#[derive(Debug, Clone)]
pub struct Leases {
    permits: Arc<Permits>,
    ttl: Duration,
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
        let verdict = Verdict::unmade(self.current.load());
        let mut admission = Admission { verdict, holding: None };
        admission.holding = self.decide(request, reserve_for, &mut admission.verdict);
        admission
    }

    /// The same, for who looks at the verdict and is done with it: it is most of a kilobyte, and is
    /// not moved from where it was made.
    #[inline]
    pub fn admit_then<T>(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        then: impl FnOnce(&Verdict, Option<Holding>) -> T,
    ) -> T {
        let mut verdict = Verdict::unmade(self.current.load());
        let holding = self.decide(request, reserve_for, &mut verdict);
        then(&verdict, holding)
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn admit_async(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
    ) -> Admission {
        let verdict = Verdict::unmade(self.snapshot());
        let mut admission = Admission { verdict, holding: None };
        admission.holding = self.decide_async(request, reserve_for, &mut admission.verdict).await;
        admission
    }

    /// Ends what a request holds: returns its permits and, where it was reserved, settles that it
    /// came to `spent`, which each rule multiplies by its own cost. What was reserved beyond that is
    /// given back; what is missing is charged.
    ///
    /// False where the reservation's time was up: its charge stands as it is. Over a store across
    /// a network this blocks the thread; see [`settle_async`](Self::settle_async).
    pub fn settle(&self, holding: Holding, spent: u64) -> Result<bool, StoreError> {
        block_on(self.settle_async(holding, spent))
    }

    /// The same, without blocking the thread.
    pub async fn settle_async(&self, holding: Holding, spent: u64) -> Result<bool, StoreError> {
        if let Some(permits) = &holding.permits {
            self.release_permits(permits).await;
        }
        let Some(reserved) = &holding.reserved else {
            return Ok(true);
        };
        let mut adjustments = reserved.adjustments(&holding.snapshot, spent);
        self.store().settle(reserved.id, &mut adjustments).await
    }

    /// The request goes on: its leases begin anew. False where one has ended, or the request has.
    pub async fn renew_leases(&self, leases: &Leases) -> bool {
        self.renew_permits(&leases.permits).await
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

    /// Makes the verdict, in place: it is most of a kilobyte, of which little is used. Answers what
    /// the request holds.
    pub(super) fn decide(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        verdict: &mut Verdict,
    ) -> Option<Holding> {
        let mut matching = Items::new();
        let matching = verdict.snapshot.matching(request, &mut matching);
        if reserve_for.is_none()
            && self.decide_alone(request, &verdict.snapshot, matching, &mut verdict.made)
        {
            verdict.bind_only_one();
            return None;
        }
        let mut selection = Selection::default();
        self.select_of(matching, &verdict.snapshot, request, &mut selection);
        let marks = self.marks(request, &verdict.snapshot, &mut selection, reserve_for);
        if verdict.settle(&selection) {
            return None;
        }
        let Verdict { snapshot, made, .. } = verdict;
        let mut entries = Entries::new();
        fill(&mut entries, snapshot, &selection);
        let answer = match self.ask_marked(&mut entries, selection.has_permits, &marks) {
            Some(reply) => reply.wait(),
            None => Ok(()),
        };
        if let Some(why) = answer.as_ref().err().and_then(refusal) {
            drop(entries);
            verdict.refuse(why);
            return None;
        }
        let asked = Asked { snapshot, request, selection: &selection, entries: &entries };
        let concluded = self.conclude(&asked, answer, made);
        if concluded.clears {
            self.clear_ahead_now(&asked);
        }
        let reserved = marks.hold.map(|hold| asked.reserved(hold));
        drop(entries);
        verdict.finish(concluded);
        verdict.holding(reserved, request)
    }

    /// The same, without blocking the thread.
    pub(super) async fn decide_async(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        verdict: &mut Verdict,
    ) -> Option<Holding> {
        let mut selection = Selection::default();
        self.select(&verdict.snapshot, request, &mut Nobody, &mut selection);
        self.decide_selected(request, reserve_for, &mut selection, verdict).await
    }

    /// The same, of what has been selected.
    pub(super) async fn decide_selected(
        &self,
        request: &Request<'_>,
        reserve_for: Option<Duration>,
        selection: &mut Selection,
        verdict: &mut Verdict,
    ) -> Option<Holding> {
        let marks = self.marks(request, &verdict.snapshot, selection, reserve_for);
        let selection = &*selection;
        if verdict.settle(selection) {
            return None;
        }
        let Verdict { snapshot, made, .. } = verdict;
        let mut entries = Entries::new();
        fill(&mut entries, snapshot, selection);
        let answer = match self.ask_marked(&mut entries, selection.has_permits, &marks) {
            Some(reply) => reply.await,
            None => Ok(()),
        };
        if let Some(why) = answer.as_ref().err().and_then(refusal) {
            drop(entries);
            verdict.refuse(why);
            return None;
        }
        let asked = Asked { snapshot, request, selection, entries: &entries };
        let concluded = self.conclude(&asked, answer, made);
        if concluded.clears {
            self.clear_ahead(&asked).await;
        }
        let reserved = marks.hold.map(|hold| asked.reserved(hold));
        drop(entries);
        verdict.finish(concluded);
        verdict.holding(reserved, request)
    }
}

/// What an allowed request has paid. What is in shadow mode has paid only where it allows; permits
/// are not paid but held.
fn charges(&Asked { snapshot, request, selection, entries }: &Asked<'_>) -> Box<[Charge]> {
    let once = request.clone().with_cost(1);
    let is_paid = |(_, entry): &(&Ask, &Entry<'_>)| {
        entry.decision().is_some_and(|it| it.is_allowed()) && !is_held(entry.policy())
    };
    let paid = selection.asks.iter().zip(entries).filter(is_paid);
    let charge = |(ask, entry): (&Ask, &Entry<'_>)| {
        let factor = snapshot.cost(ask.rule, &once);
        Charge { ask: *ask, stamp: entry.stamp(), factor }
    };
    paid.map(charge).collect()
}

impl Asked<'_> {
    /// The charge, to be settled.
    fn reserved(&self, hold: Hold) -> Reserved {
        Reserved {
            id: hold.id,
            keys: self.selection.keys.as_slice().into(),
            charges: charges(self),
        }
    }
}

impl Verdict {
    /// What the request holds, now that the verdict is made.
    fn holding(&self, reserved: Option<Reserved>, request: &Request<'_>) -> Option<Holding> {
        let is_charged = self.is_allowed() && self.degraded().is_none();
        let reserved = reserved.filter(|_| is_charged);
        if reserved.is_none() && self.permits.is_none() {
            return None;
        }
        let (cost, permits) = (request.cost(), self.permits.clone());
        Some(Holding { snapshot: self.snapshot.to_arc(), reserved, cost, permits })
    }
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
        self.reserved.is_some()
    }

    /// The leases among its permits.
    #[must_use]
    pub fn leases(&self) -> Option<Leases> {
        let permits = self.permits.as_ref()?;
        Some(Leases { ttl: permits.lease_ttl()?, permits: Arc::clone(permits) })
    }
}

impl Leases {
    /// How long the shortest of them lasts.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

impl Reserved {
    fn adjustments<'a>(&'a self, snapshot: &'a Snapshot, spent: u64) -> Vec<Adjustment<'a>> {
        let adjustment = |charge: &'a Charge| {
            let (start, end) = charge.ask.key;
            let spent = spent.saturating_mul(charge.factor);
            let spending = Spending { reserved: charge.ask.cost, spent };
            let policy = charge.ask.policy(snapshot);
            Adjustment::new(&self.keys[start..end], policy, charge.stamp, spending)
        };
        self.charges.iter().map(adjustment).collect()
    }
}
