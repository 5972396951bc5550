//! Leases for whoever asks over a wire: permits that are renewed and released by a text.
//!
//! [`Engine::release`] and [`Engine::renew`] are for those who keep the verdict in this process.

use tollbar::receipt::Draft;
use tollbar::store::{ReservationId, block_on};
use tollbar::{Decision, Entry, Outcome, Timestamp};

use super::Engine;
use super::selection::{Nobody, Selection};
use super::texts::{Opened, ReceiptError};
use super::{denied, settled};
use crate::permits::{Held, Permits};
use crate::verdict::Why;
use crate::{Request, Verdict};

/// A request that was checked, and what it holds.
#[derive(Debug)]
#[must_use = "what it holds has to be released"]
pub struct Leased {
    /// What the rules say.
    pub verdict: Verdict,
    /// What [`Engine::release_text`] and [`Engine::renew_text`] take: letters, digits, `-` and `_`.
    /// None where the request was denied, or holds no leases.
    pub lease: Option<String>,
    /// When the first of them ends, by the store's clock, unless it is renewed.
    pub ends_at: Option<Timestamp>,
}

/// Leases are known by what the store calls them, each by itself: they have no name together.
const NO_RESERVATION: ReservationId = ReservationId(0);

impl Engine {
    /// May the request pass? Charges it if so, and names the leases that it holds by a text.
    ///
    /// ```
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = "rules: [{ name: jobs, algorithm: concurrency, limit: 1, lease: 30s }]";
    /// let engine = Engine::new(RuleFile::parse("rules.yaml", text)?.rules);
    /// let request = Request::new("POST", "/jobs")?;
    ///
    /// if let Some(lease) = engine.lease(&request).lease {
    ///     assert!(engine.lease(&request).lease.is_none());
    ///     assert!(engine.renew_text(&lease)?.is_some());
    ///     assert!(engine.release_text(&lease)?);
    /// }
    /// assert!(engine.lease(&request).verdict.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Permits without a lease are not in the text: nobody could tell who returns it twice. They come
    /// back by [`release`](Self::release).
    pub fn lease(&self, request: &Request<'_>) -> Leased {
        block_on(self.lease_async(request))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn lease_async(&self, request: &Request<'_>) -> Leased {
        let snapshot = self.snapshot();
        let mut selection = Selection::default();
        self.select(&snapshot, request, &mut Nobody, &mut selection);
        let verdict = match settled(&snapshot, &selection) {
            Some(verdict) => verdict,
            // Before anything is held: what has no name could not be released.
            None if !has_text(&snapshot, &selection) => denied(&snapshot, Why::ReceiptTooLong),
            None => self.verdict_on(&snapshot, &mut selection, request).await,
        };
        let permits = verdict.permits.as_deref();
        let (lease, ends_at) = match permits.and_then(|permits| self.lease_text(permits)) {
            Some((lease, ends_at)) => (Some(lease), Some(ends_at)),
            None => (None, None),
        };
        Leased { verdict, lease, ends_at }
    }

    /// The text of the leases that a verdict of [`check`](Self::check) and its kin holds, and when the
    /// first of them ends. `None` where it holds none, or they are too long to be written down: those
    /// come back when they end.
    #[must_use]
    pub fn lease_of(&self, verdict: &Verdict) -> Option<(String, Timestamp)> {
        self.lease_text(verdict.permits.as_deref()?)
    }

    fn lease_text(&self, permits: &Permits) -> Option<(String, Timestamp)> {
        let leased = || permits.held.iter().filter_map(|it| Some((it, it.policy.lease_ttl()?)));
        let ends_at = leased().map(|(held, ttl)| held.granted_at.after(ttl)).min()?;
        let entries: Vec<Entry<'_>> = leased().map(|(held, _)| charged(held)).collect();
        // Either all are counted here or none is.
        let is_local = leased().any(|(held, _)| held.is_local);
        let key = if is_local { &self.texts.leases_here } else { &self.texts.leases };
        let draft = Draft::new(NO_RESERVATION, entries.iter().map(|entry| (entry, 1))).ok()?;
        Some((draft.sign(&entries, key).to_string(), ends_at))
    }

    /// The work is done: gives the permits of a lease back. False where it has ended, or was released
    /// before.
    pub fn release_text(&self, lease: &str) -> Result<bool, ReceiptError> {
        block_on(self.release_text_async(lease))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn release_text_async(&self, lease: &str) -> Result<bool, ReceiptError> {
        match self.texts.open(lease)? {
            Opened::Lease { content, is_local } => {
                Ok(self.return_leases(&content, is_local).await? > 0)
            }
            Opened::Reservation(_) => Err(ReceiptError::IsReservation),
        }
    }

    /// The work goes on: leases begin anew. Until when the shortest lasts now; `None` where one has
    /// ended or was released, and where there are none. Takes the receipt of a
    /// [reservation](Self::reserve) as well.
    pub fn renew_text(&self, lease: &str) -> Result<Option<Timestamp>, ReceiptError> {
        block_on(self.renew_text_async(lease))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn renew_text_async(&self, lease: &str) -> Result<Option<Timestamp>, ReceiptError> {
        let (content, is_local) = match self.texts.open(lease)? {
            Opened::Lease { content, is_local } => (content, is_local),
            Opened::Reservation(content) => (content, false),
        };
        let store = self.store_of(is_local);
        let mut first_end = None;
        for charge in content.charges.iter().filter(|it| it.policy.lease_ttl().is_some()) {
            let Some(ends_at) = store.renew(&charge.key, &charge.policy, charge.stamp).await?
            else {
                return Ok(None);
            };
            first_end = Some(first_end.map_or(ends_at, |first: Timestamp| first.min(ends_at)));
        }
        Ok(first_end)
    }
}

/// True where the leases that would be held can be written down.
fn has_text(snapshot: &crate::snapshot::Snapshot, selection: &Selection) -> bool {
    if !selection.has_permits {
        return true;
    }
    let entries = selection.asks.iter().map(|ask| ask.entry(snapshot, selection));
    let leased: Vec<Entry<'_>> =
        entries.filter(|entry| entry.policy().lease_ttl().is_some()).collect();
    Draft::new(NO_RESERVATION, leased.iter().map(|entry| (entry, 1))).is_ok()
}

/// What was asked for permits that are held now.
fn charged(held: &Held) -> Entry<'_> {
    let mut entry = Entry::new(&held.key, &held.policy).with_cost(held.cost);
    entry.set_stamp(held.stamp);
    entry.decide(Decision::new(Outcome::Allow, held.policy.limit(), 0, held.granted_at));
    entry
}
