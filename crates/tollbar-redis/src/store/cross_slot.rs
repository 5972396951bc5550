//! A request whose counters are in several slots of a cluster: charged in each, and given back if one
//! denies.
//!
//! No script can see two slots. So all are asked at once, each part all or none; where every part allows,
//! that is it. Where one denies, or cannot be asked, the others are given back what they took. Nothing
//! passes that may not. What was taken for that moment can deny others for nothing; and where it cannot
//! be given back, because the deadline has come, it stays charged.
//!
//! A part that denies decides the request, whatever has become of the other parts: otherwise a client that is
//! over one limit would pass because the server of another one is down.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tollbar::remote::Exchange;
use tollbar::store::{self, Adjustment, Spending};
use tollbar::{Batch, Charge, Entry, Role};

use crate::error::RedisStoreError;
use crate::script::call::{KeyLocation, ScriptCall};
use crate::script::reply;
use crate::server::slot_map::slot_of;
use crate::store::RedisStore;

/// The entries of one slot, and where they are in the batch.
#[derive(Debug)]
pub(super) struct SlotBatch<'e> {
    pub(super) positions: Vec<usize>,
    pub(super) entries: Vec<Entry<'e>>,
}

impl<'e> SlotBatch<'e> {
    /// Puts entries together of which `place_of` is the same, in the order of that.
    pub(super) fn group<P: Ord>(
        entries: &[Entry<'e>],
        place_of: impl Fn(&Entry<'e>) -> P,
    ) -> Vec<Self> {
        let mut slot_batches = BTreeMap::new();
        for (position, entry) in entries.iter().enumerate() {
            let new = || Self { positions: Vec::new(), entries: Vec::new() };
            let slot_batch: &mut Self = slot_batches.entry(place_of(entry)).or_insert_with(new);
            slot_batch.positions.push(position);
            slot_batch.entries.push(entry.clone());
        }
        slot_batches.into_values().collect()
    }

    /// True where it has been decided, and may pass.
    pub(super) fn is_allowed(&self) -> bool {
        let is_decided =
            |entry: &Entry<'_>| entry.role() == Role::Shadow || entry.decision().is_some();
        self.entries.iter().all(is_decided) && store::is_allowed(&self.entries)
    }

    /// True where it has been decided, and may not pass.
    pub(super) fn is_denied(&self) -> bool {
        !store::is_allowed(&self.entries)
    }

    /// Puts the entries where they came from.
    pub(super) fn put_back(self, batch: &mut Batch<'_, 'e>) {
        for (position, entry) in self.positions.into_iter().zip(self.entries) {
            batch.entries_mut()[position] = entry;
        }
    }
}

impl RedisStore {
    pub(crate) async fn check_scattered(
        &self,
        exchange: &Exchange<'_>,
        batch: &mut Batch<'_, '_>,
    ) -> Result<(), RedisStoreError> {
        let slot = |entry: &Entry<'_>| slot_of(&self.names.counter(entry.key(), entry.policy()));
        let mut slot_batches = SlotBatch::group(batch.entries(), slot);
        self.check_slots(exchange, &mut slot_batches, batch.charge()).await?;
        for slot_batch in slot_batches {
            slot_batch.put_back(batch);
        }
        Ok(())
    }

    async fn check_slots(
        &self,
        exchange: &Exchange<'_>,
        slot_batches: &mut [SlotBatch<'_>],
        charge: Charge,
    ) -> Result<(), RedisStoreError> {
        let asked =
            slot_batches.iter_mut().map(|slot_batch| self.check_slot(exchange, slot_batch, charge));
        let answered = join_all(asked).await;
        let failure = answered.iter().find_map(|answer| answer.as_ref().err()).cloned();
        if charge == Charge::Independent {
            return failure.map_or(Ok(()), Err);
        }
        let is_denied = slot_batches.iter().any(SlotBatch::is_denied);
        if failure.is_some() || is_denied {
            let charged =
                slot_batches.iter_mut().zip(&answered).filter_map(|(slot_batch, answer)| {
                    (answer.is_ok() && slot_batch.is_allowed()).then_some(slot_batch)
                });
            let given_back = charged.map(|slot_batch| self.give_back(exchange, slot_batch));
            let given_back: Result<(), _> = join_all(given_back).await.into_iter().collect();
            if !is_denied {
                given_back?;
            }
        }
        // A denial is one, also where other slots did not answer.
        failure.filter(|_| !is_denied).map_or(Ok(()), Err)
    }

    async fn check_slot(
        &self,
        exchange: &Exchange<'_>,
        slot_batch: &mut SlotBatch<'_>,
        charge: Charge,
    ) -> Result<(), RedisStoreError> {
        let batch = match charge {
            Charge::AllOrNone => Batch::all_or_none(&mut slot_batch.entries),
            Charge::Independent => Batch::independent(&mut slot_batch.entries),
        };
        let call = ScriptCall::for_batch(&self.names, &batch, KeyLocation::PartOfCluster)?;
        let answer = self.ask_by(exchange, &call).await;
        let answer = answer.inspect_err(|error| self.suspect(error, &slot_batch.entries));
        reply::read_decisions(&answer?, &mut slot_batch.entries)
    }

    /// Gives back what a part has charged, and says what remains then.
    async fn give_back(
        &self,
        exchange: &Exchange<'_>,
        slot_batch: &mut SlotBatch<'_>,
    ) -> Result<(), RedisStoreError> {
        let refunds: Vec<Adjustment<'_>> = slot_batch
            .entries
            .iter()
            .filter(|entry| entry.is_paid())
            .map(|entry| {
                let spending = Spending { reserved: entry.cost(), spent: 0 };
                Adjustment::new(entry.key(), entry.policy(), entry.stamp(), spending)
            })
            .collect();
        let call = ScriptCall::refund(&self.names, &refunds, KeyLocation::PartOfCluster)?;
        self.ask_by(exchange, &call).await?;
        self.peek_again(exchange, slot_batch).await
    }

    /// Has entries that were charged, and are not any more, say what remains now.
    pub(super) async fn peek_again(
        &self,
        exchange: &Exchange<'_>,
        slot_batch: &mut SlotBatch<'_>,
    ) -> Result<(), RedisStoreError> {
        let mut peeks: Vec<Entry<'_>> =
            slot_batch.entries.iter().map(|entry| entry.clone().with_cost(0)).collect();
        let call = ScriptCall::for_batch(
            &self.names,
            &Batch::independent(&mut peeks),
            KeyLocation::PartOfCluster,
        )?;
        reply::read_decisions(&self.ask_by(exchange, &call).await?, &mut peeks)?;
        for (entry, peek) in slot_batch.entries.iter_mut().zip(&peeks) {
            // A shadow that denied has its answer.
            if let Some(decision) = peek.decision()
                && entry.is_paid()
            {
                entry.decide(decision);
            }
        }
        Ok(())
    }
}
