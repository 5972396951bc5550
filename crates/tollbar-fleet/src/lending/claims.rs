//! One batch while it is decided: which tokens were taken for it here, and what is asked of the store.

use std::time::Duration;

use smallvec::SmallVec;
use tollbar::store::{Adjustment, Hold, ReservationId, Spending, is_allowed};
use tollbar::{Accuracy, Batch, Charge, Entry, Role, Source, Store, StoreError};

use super::LendingStore;
use crate::holdings::{TakenTokens, Taking};

/// In a batch that also asks the store, lots that end within this time are left alone. An answer that takes longer is
/// rare: it is the deadline of a check, by default.
const STORE_MARGIN_US: u64 = 25_000;

/// For how long local charges can be given back. The answer of the store is there long before.
const LOCAL_HOLD_TTL: Duration = Duration::from_mins(1);

/// What a batch has taken here. Whatever has not been [kept](Self::keep) is given back when this is dropped: when the
/// request is denied, when the store fails, and when the caller no longer waits.
pub(super) struct Claims<'a, 'e> {
    store: &'a LendingStore,
    /// Tokens from lots, and for which entries.
    loans: SmallVec<[(usize, TakenTokens); 2]>,
    /// Entries that the store has to answer.
    store_entries: SmallVec<[usize; 4]>,
    local: Option<LocalCharge<'e>>,
}

/// Local limits that were charged as a reservation, so that they can be given back.
struct LocalCharge<'e> {
    id: ReservationId,
    entries: Vec<Entry<'e>>,
}

impl<'a, 'e: 'a> Claims<'a, 'e> {
    pub(super) fn new(store: &'a LendingStore) -> Self {
        Self { store, loans: SmallVec::new(), store_entries: SmallVec::new(), local: None }
    }

    /// Takes what can be taken here. Returns true if the batch is decided with that.
    pub(super) fn take(&mut self, batch: &mut Batch<'a, 'e>) -> bool {
        let is_all_or_none = batch.charge() == Charge::AllOrNone;
        let is_denied = self.take_loans(batch) && is_all_or_none;
        if is_denied {
            return true;
        }
        self.spare_short_lots(batch);
        if self.charge_local(batch) && is_all_or_none {
            return true;
        }
        if self.store_entries.is_empty() {
            self.keep();
            return true;
        }
        false
    }

    /// Asks the store for what was not taken here, and checks what was when the answer is there.
    pub(super) async fn ask_store(mut self, mut batch: Batch<'a, 'e>) -> Result<(), StoreError> {
        let inner = self.store.inner();
        let is_all_or_none = batch.charge() == Charge::AllOrNone;
        let asked = std::mem::take(&mut self.store_entries);
        let mut rest = select(&batch, &asked);
        inner.decide(batch_like(&batch, &mut rest)).await?;
        put_into(&mut batch, &asked, &rest);
        if is_all_or_none && !is_allowed(&rest) {
            return Ok(());
        }
        let repeat_of = rest.iter().find_map(Entry::repeat_of);
        if let Some(charged_at) = repeat_of {
            // It has paid before, here as well. What was charged now is given back.
            let is_local = |entry: &&mut Entry<'_>| accuracy_of(entry) == Accuracy::Local;
            for entry in batch.entries_mut().iter_mut().filter(is_local) {
                entry.mark_repeat_of(charged_at);
            }
            return Ok(());
        }
        if self.has_expired() {
            let again = self.put_back();
            let mut entries = select(&batch, &again);
            for entry in &mut entries {
                entry.set_source(Source::Store);
            }
            let answer = inner.decide(batch_like(&batch, &mut entries)).await;
            put_into(&mut batch, &again, &entries);
            if is_all_or_none && (answer.is_err() || !is_allowed(&entries)) {
                refund(inner, &rest).await;
                return answer;
            }
            answer?;
        }
        self.keep();
        Ok(())
    }

    /// Takes tokens for entries that may be loaned. Returns true if an enforced one is denied for now.
    fn take_loans(&mut self, batch: &mut Batch<'_, '_>) -> bool {
        let may_lend = self.store.borrower.is_lending()
            && batch.charged_once().is_none()
            && batch.hold().is_none();
        let mut is_denied = false;
        for (at, entry) in batch.entries_mut().iter_mut().enumerate() {
            let terms = match accuracy_of(entry) {
                Accuracy::Local => continue,
                Accuracy::Loaned(terms) if may_lend && entry.cost() > 0 => terms,
                _ => {
                    self.store_entries.push(at);
                    continue;
                }
            };
            let (key, policy, cost) = (entry.key(), entry.policy(), entry.cost());
            match self.store.borrower.take(key, policy, &terms, cost) {
                Taking::Paid(taken, decision) => {
                    self.loans.push((at, taken));
                    entry.decide(decision);
                    entry.set_source(Source::Loan);
                }
                Taking::Denied(decision) => {
                    is_denied |= entry.role() == Role::Enforce;
                    entry.decide(decision);
                    entry.set_source(Source::Loan);
                }
                Taking::Exact | Taking::NotHeld => self.store_entries.push(at),
            }
        }
        is_denied
    }

    /// Has the store answer for lots that might end before it does, if it is asked anyway.
    fn spare_short_lots(&mut self, batch: &mut Batch<'_, '_>) {
        if self.store_entries.is_empty() || self.loans.is_empty() {
            return;
        }
        let Self { store, loans, store_entries, .. } = self;
        let end_us_min = store.borrower.now_us() + STORE_MARGIN_US;
        loans.retain(|(at, taken)| {
            let is_long = taken.end_us() >= end_us_min;
            if !is_long {
                store.borrower.put_back(taken);
                batch.entries_mut()[*at].set_source(Source::Store);
                store_entries.push(*at);
            }
            is_long
        });
        store_entries.sort_unstable();
    }

    /// Charges local limits: as a reservation if the store can still deny. Returns true if an enforced one denies.
    fn charge_local(&mut self, batch: &mut Batch<'_, 'e>) -> bool {
        let is_local = |(at, entry): (usize, &Entry<'_>)| {
            (accuracy_of(entry) == Accuracy::Local).then_some(at)
        };
        let at: Vec<usize> = batch.entries().iter().enumerate().filter_map(is_local).collect();
        if at.is_empty() {
            return false;
        }
        let mut entries = select(batch, &at);
        let is_all_or_none = batch.charge() == Charge::AllOrNone;
        let id = self.store.reservation_ids.next();
        let is_held = is_all_or_none && !self.store_entries.is_empty();
        let asked = match (is_all_or_none, is_held) {
            (true, true) => Batch::all_or_none(&mut entries).held(Hold { id, ttl: LOCAL_HOLD_TTL }),
            (true, false) => Batch::all_or_none(&mut entries),
            (false, _) => Batch::independent(&mut entries),
        };
        let is_answered = self.store.local.decide(asked).wait().is_ok();
        entries.iter_mut().for_each(mark_local);
        put_into(batch, &at, &entries);
        let is_denied = !is_answered || !is_allowed(&entries);
        if is_held && !is_denied {
            self.local = Some(LocalCharge { id, entries });
        }
        is_denied
    }

    fn has_expired(&self) -> bool {
        let now_us = self.store.borrower.now_us();
        self.loans.iter().any(|(_, taken)| taken.end_us() <= now_us)
    }

    /// Puts all tokens back to their lots, and returns which entries they were for.
    fn put_back(&mut self) -> SmallVec<[usize; 4]> {
        let borrower = &self.store.borrower;
        self.loans
            .drain(..)
            .map(|(at, taken)| {
                borrower.put_back(&taken);
                at
            })
            .collect()
    }

    /// The request is admitted: what was taken for it is spent.
    fn keep(&mut self) {
        self.loans.clear();
        self.local = None;
    }
}

impl Drop for Claims<'_, '_> {
    fn drop(&mut self) {
        for (_, taken) in self.loans.drain(..) {
            self.store.borrower.put_back(&taken);
        }
        if let Some(LocalCharge { id, entries }) = self.local.take() {
            let paid = entries.iter().filter(|entry| entry.is_paid());
            let mut refunds: Vec<Adjustment<'_>> = paid
                .map(|entry| {
                    let spending = Spending { reserved: entry.cost(), spent: 0 };
                    Adjustment::new(entry.key(), entry.policy(), entry.stamp(), spending)
                })
                .collect();
            // A memory store settles at once. A reservation that it has forgotten stays charged.
            self.store.local.settle(id.into(), &mut refunds).wait().ok();
        }
    }
}

/// Marks an entry as answered by this process's own counters.
pub(super) fn mark_local(entry: &mut Entry<'_>) {
    entry.set_source(Source::Local);
}

fn select<'e>(batch: &Batch<'_, 'e>, at: &[usize]) -> Vec<Entry<'e>> {
    at.iter().map(|at| batch.entries()[*at].clone()).collect()
}

fn put_into<'e>(batch: &mut Batch<'_, 'e>, at: &[usize], entries: &[Entry<'e>]) {
    for (at, entry) in at.iter().zip(entries) {
        batch.entries_mut()[*at] = entry.clone();
    }
}

/// A batch of other entries that is charged as `batch` is.
fn batch_like<'b, 'e>(batch: &Batch<'b, 'e>, entries: &'b mut [Entry<'e>]) -> Batch<'b, 'e> {
    match batch.charge() {
        Charge::Independent => Batch::independent(entries),
        Charge::AllOrNone => {
            let mut like = Batch::all_or_none(entries);
            if let Some(once) = batch.charged_once() {
                like = like.once(once);
            }
            match batch.hold() {
                Some(hold) => like.held(hold),
                None => like,
            }
        }
    }
}

/// Returns how exactly an entry is counted. Alternatives are always exact: which one pays is decided in one place.
pub(super) fn accuracy_of(entry: &Entry<'_>) -> Accuracy {
    if entry.alternative().is_some() { Accuracy::Exact } else { entry.accuracy() }
}

/// Gives back what a request was charged that is denied after all. What cannot be given back is paid by time.
async fn refund(inner: &dyn Store, entries: &[Entry<'_>]) {
    for entry in entries.iter().filter(|entry| entry.is_paid() && entry.cost() > 0) {
        inner.refund(entry.key(), entry.policy(), entry.stamp(), entry.cost()).await.ok();
    }
}
