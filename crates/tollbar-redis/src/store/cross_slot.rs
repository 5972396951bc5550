//! A request whose counters are in several slots of a cluster: charged in each, and given back if one
//! denies.
//!
//! No script can see two slots. So all are asked at once, each part all or none; where every part allows,
//! that is it. Where one denies, or cannot be asked, the others are given back what they took. Nothing
//! passes that may not. What was taken for that moment can deny others for nothing; and where it cannot
//! be given back, because the deadline has come, it stays charged.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tollbar::remote::Exchange;
use tollbar::store::{Adjustment, Spending};
use tollbar::{Batch, Charge, Entry, Role};

use crate::error::RedisStoreError;
use crate::script::call::{KeyLocation, ScriptCall};
use crate::script::reply;
use crate::server::slot_map::slot_of;
use crate::store::RedisStore;

/// The entries of one slot, and where they are in the batch.
struct SlotBatch<'e> {
    positions: Vec<usize>,
    entries: Vec<Entry<'e>>,
}

impl SlotBatch<'_> {
    fn is_allowed(&self) -> bool {
        let denies = |entry: &Entry<'_>| {
            entry.role() == Role::Enforce && !entry.decision().is_some_and(|it| it.is_allowed())
        };
        !self.entries.iter().any(denies)
    }
}

impl RedisStore {
    pub(crate) async fn check_scattered(
        &self,
        batch: &mut Batch<'_, '_>,
    ) -> Result<(), RedisStoreError> {
        let mut slot_batches = self.slot_batches(batch.entries());
        self.check_slots(&self.route.begin()?, &mut slot_batches, batch.charge()).await?;
        for slot_batch in slot_batches {
            for (position, entry) in slot_batch.positions.into_iter().zip(slot_batch.entries) {
                batch.entries_mut()[position] = entry;
            }
        }
        Ok(())
    }

    fn slot_batches<'e>(&self, entries: &[Entry<'e>]) -> Vec<SlotBatch<'e>> {
        let mut slot_batches = BTreeMap::new();
        for (position, entry) in entries.iter().enumerate() {
            let slot = slot_of(&self.names.counter(entry.key(), entry.policy()));
            let new = || SlotBatch { positions: Vec::new(), entries: Vec::new() };
            let slot_batch: &mut SlotBatch<'e> = slot_batches.entry(slot).or_insert_with(new);
            slot_batch.positions.push(position);
            slot_batch.entries.push(entry.clone());
        }
        slot_batches.into_values().collect()
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
        let passes = failure.is_none() && slot_batches.iter().all(SlotBatch::is_allowed);
        if !passes && charge == Charge::AllOrNone {
            let charged =
                slot_batches.iter_mut().zip(&answered).filter_map(|(slot_batch, answer)| {
                    (answer.is_ok() && slot_batch.is_allowed()).then_some(slot_batch)
                });
            let given_back = charged.map(|slot_batch| self.give_back(exchange, slot_batch));
            join_all(given_back).await.into_iter().collect::<Result<(), _>>()?;
        }
        failure.map_or(Ok(()), Err)
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
        reply::read_decisions(&self.ask_by(exchange, &call).await?, &mut slot_batch.entries)
    }

    /// Gives back what a part has charged, and says what remains then.
    async fn give_back(
        &self,
        exchange: &Exchange<'_>,
        slot_batch: &mut SlotBatch<'_>,
    ) -> Result<(), RedisStoreError> {
        let is_charged =
            |entry: &&Entry<'_>| entry.decision().is_some_and(|decision| decision.is_allowed());
        let refunds: Vec<Adjustment<'_>> = slot_batch
            .entries
            .iter()
            .filter(is_charged)
            .map(|entry| {
                let spending = Spending { reserved: entry.cost(), spent: 0 };
                Adjustment::new(entry.key(), entry.policy(), entry.stamp(), spending)
            })
            .collect();
        let call = ScriptCall::settle(&self.names, None, &refunds, KeyLocation::PartOfCluster)?;
        self.ask_by(exchange, &call).await?;
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
                && is_charged(&&*entry)
            {
                entry.decide(decision);
            }
        }
        Ok(())
    }
}
