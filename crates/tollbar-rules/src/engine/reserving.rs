//! Reservations for whoever asks over a wire: charged now, settled later by a text.
//!
//! [`Engine::admit`] is for those who keep what a request holds in this process.

use std::sync::Arc;
use std::time::Duration;

use tollbar::receipt::{Charge, Content, Draft};
use tollbar::store::{Adjustment, Due, Spending, block_on};

use super::once::refusal;
use super::selection::{Nobody, Selection};
use super::texts::{Opened, ReceiptError};
use super::{Asked, Engine, Entries, denied, fill, settled};
use crate::verdict::Why;
use crate::{Request, Verdict};

/// A request that was charged in advance, or not.
#[derive(Debug)]
#[must_use = "it has to be settled"]
pub struct Reservation {
    /// What the rules say.
    pub verdict: Verdict,
    /// What [`Engine::commit`] and [`Engine::cancel`] take: letters, digits, `-` and `_`. None where
    /// the request was denied, where nothing limits it, and where the store could not answer: then
    /// nothing was charged, and there is nothing to settle.
    pub receipt: Option<String>,
}

/// What settling a reservation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// Each limit that was charged, in the order of the rules.
    pub charges: Vec<SettledLimit>,
    /// How many permits have come back. Leases that had ended are not among them.
    pub permits_returned: u64,
}

/// What became of one charge of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettledLimit {
    /// What the rule's counters are kept under: its id, or its name.
    pub rule: String,
    /// Tokens charged at first.
    pub reserved: u64,
    /// Tokens it came to.
    pub spent: u64,
    /// Tokens given back. Fewer than were left over where time has given back the rest already, or
    /// their window is gone.
    pub refunded: u64,
    /// Tokens charged in addition. Fewer than were missing where a bucket can owe no more.
    pub overdrawn: u64,
}

impl Engine {
    /// Charges the request with what it is expected to cost, to be settled within `ttl`, by anybody
    /// who has the receipt. What is not settled by then stays charged as it is.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = RuleFile::parse("rules.yaml", "rules: [{ name: tokens, limit: 1000/min }]")?;
    /// let engine = Engine::new(file.rules);
    ///
    /// let request = Request::new("POST", "/v1/chat")?.with_attributes(&[("user", "42")])?;
    /// let reserved = engine.reserve(&request.clone().with_cost(300), Duration::from_secs(60));
    /// if let Some(receipt) = reserved.receipt {
    ///     // It took 120 and not 300.
    ///     let settled = engine.commit(&receipt, Some(120))?;
    ///     assert_eq!(settled.charges[0].refunded, 180);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Permits are on the receipt too: settling gives them back. Those with a lease end by themselves,
    /// unless [`renew_text`](Self::renew_text) is told the receipt; those without one are lost where
    /// nobody settles. With a [request id](Request::with_request_id) the same request gets the same
    /// receipt again.
    pub fn reserve(&self, request: &Request<'_>, ttl: Duration) -> Reservation {
        block_on(self.reserve_async(request, ttl))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn reserve_async(&self, request: &Request<'_>, ttl: Duration) -> Reservation {
        let snapshot = self.snapshot();
        let mut selection = Selection::default();
        self.select(&snapshot, request, &mut Nobody, &mut selection);
        let marks = self.marks(request, &snapshot, &mut selection, Some(ttl));
        let without = |verdict| Reservation { verdict, receipt: None };
        if let Some(verdict) = settled(&snapshot, &selection) {
            return without(verdict);
        }
        let mut entries = Entries::new();
        fill(&mut entries, &snapshot, &selection);
        let once = request.clone().with_cost(1);
        let factors = selection.asks.iter().map(|ask| snapshot.cost(ask.rule, &once));
        let draft = marks.hold.map(|hold| Draft::new(hold.id, entries.iter().zip(factors)));
        let Some(Ok(draft)) = draft else {
            return without(denied(&snapshot, Why::ReceiptTooLong));
        };
        let answer = match self.ask_marked(&mut entries, selection.has_permits, &marks) {
            Some(reply) => reply.await,
            None => Ok(()),
        };
        if let Some(why) = answer.as_ref().err().and_then(refusal) {
            return without(denied(&snapshot, why));
        }
        let mut verdict = Verdict::unmade(Arc::clone(&snapshot));
        let (selection, snapshot) = (&selection, &*snapshot);
        let asked = Asked { snapshot, request, selection, entries: &entries };
        let concluded = self.conclude(&asked, answer, &mut verdict.made);
        if concluded.clears {
            self.clear_ahead(&asked).await;
        }
        verdict.settle(selection);
        verdict.finish(concluded);
        if !verdict.is_allowed() || verdict.degraded().is_some() {
            return without(verdict);
        }
        // They are on the receipt, and come back once.
        verdict.permits = None;
        let receipt = draft.sign(&entries, &self.texts.reservations).to_string();
        Reservation { verdict, receipt: Some(receipt) }
    }

    /// Settles a reservation that came to `spent`, which each rule multiplies by its own cost as it
    /// did with the request's; `None` is as much as was reserved. What was reserved beyond that is
    /// given back, what is missing is charged, and permits come back.
    ///
    /// Works once, on every engine over the same store with the same
    /// [secret](super::EngineBuilder::receipt_secret), whatever has become of the rules.
    pub fn commit(&self, receipt: &str, spent: Option<u64>) -> Result<Settled, ReceiptError> {
        block_on(self.commit_async(receipt, spent))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn commit_async(
        &self,
        receipt: &str,
        spent: Option<u64>,
    ) -> Result<Settled, ReceiptError> {
        let content = match self.texts.open(receipt)? {
            Opened::Reservation(content) => content,
            Opened::Lease { .. } => return Err(ReceiptError::IsLease),
        };
        let mut adjustments: Vec<_> =
            content.charges.iter().map(|charge| adjustment(charge, spent)).collect();
        if !self.store().settle(content.id, &mut adjustments).await? {
            // Its time is up, but whoever commits has done with its leases.
            self.return_leases(&content, false).await?;
            return Err(ReceiptError::NotOpen);
        }
        Ok(Settled::of(&content, &adjustments, spent))
    }

    /// Gives a whole reservation back: the request was never served.
    pub fn cancel(&self, receipt: &str) -> Result<Settled, ReceiptError> {
        block_on(self.cancel_async(receipt))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn cancel_async(&self, receipt: &str) -> Result<Settled, ReceiptError> {
        self.commit_async(receipt, Some(0)).await
    }
}

fn adjustment(charge: &Charge, spent: Option<u64>) -> Adjustment<'_> {
    let spending = Spending { reserved: charge.reserved, spent: spent_of(charge, spent) };
    Adjustment::new(&charge.key, &charge.policy, charge.stamp, spending)
}

/// What was spent of one charge. Permits are not spent: whoever settles has done with all of them.
fn spent_of(charge: &Charge, spent: Option<u64>) -> u64 {
    match spent {
        _ if charge.policy.has_permits() => 0,
        Some(spent) => spent.saturating_mul(charge.factor),
        None => charge.reserved,
    }
}

impl Settled {
    fn of(content: &Content, adjustments: &[Adjustment<'_>], spent: Option<u64>) -> Self {
        let mut settled = Self { charges: Vec::new(), permits_returned: 0 };
        for (charge, adjustment) in content.charges.iter().zip(adjustments) {
            if charge.policy.has_permits() {
                settled.permits_returned += adjustment.adjusted();
                continue;
            }
            let (refunded, overdrawn) = match adjustment.due() {
                Due::Refund(_) => (adjustment.adjusted(), 0),
                Due::Overdraw(_) => (0, adjustment.adjusted()),
            };
            settled.charges.push(SettledLimit {
                rule: charge.policy.name().unwrap_or_default().to_owned(),
                reserved: charge.reserved,
                spent: spent_of(charge, spent),
                refunded,
                overdrawn,
            });
        }
        settled
    }
}
