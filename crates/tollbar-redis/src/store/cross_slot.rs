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
use crate::script::call::{Place, Question};
use crate::script::reply;
use crate::server::slot_map::slot_of;
use crate::store::RedisStore;

/// The entries of one slot, and where they are in the batch.
struct Part<'e> {
    places: Vec<usize>,
    entries: Vec<Entry<'e>>,
}

impl Part<'_> {
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
        let mut parts = self.parts(batch.entries());
        self.check_parts(&self.route.begin()?, &mut parts, batch.charge()).await?;
        for part in parts {
            for (place, entry) in part.places.into_iter().zip(part.entries) {
                batch.entries_mut()[place] = entry;
            }
        }
        Ok(())
    }

    fn parts<'e>(&self, entries: &[Entry<'e>]) -> Vec<Part<'e>> {
        let mut parts = BTreeMap::new();
        for (place, entry) in entries.iter().enumerate() {
            let slot = slot_of(&self.names.counter(entry.key(), entry.policy()));
            let new = || Part { places: Vec::new(), entries: Vec::new() };
            let part: &mut Part<'e> = parts.entry(slot).or_insert_with(new);
            part.places.push(place);
            part.entries.push(entry.clone());
        }
        parts.into_values().collect()
    }

    async fn check_parts(
        &self,
        exchange: &Exchange<'_>,
        parts: &mut [Part<'_>],
        charge: Charge,
    ) -> Result<(), RedisStoreError> {
        let asked = parts.iter_mut().map(|part| self.check_part(exchange, part, charge));
        let answered = join_all(asked).await;
        let failure = answered.iter().find_map(|answer| answer.as_ref().err()).cloned();
        let passes = failure.is_none() && parts.iter().all(Part::is_allowed);
        if !passes && charge == Charge::AllOrNone {
            let charged = parts
                .iter_mut()
                .zip(&answered)
                .filter_map(|(part, answer)| (answer.is_ok() && part.is_allowed()).then_some(part));
            let given_back = charged.map(|part| self.give_back(exchange, part));
            join_all(given_back).await.into_iter().collect::<Result<(), _>>()?;
        }
        failure.map_or(Ok(()), Err)
    }

    async fn check_part(
        &self,
        exchange: &Exchange<'_>,
        part: &mut Part<'_>,
        charge: Charge,
    ) -> Result<(), RedisStoreError> {
        let batch = match charge {
            Charge::AllOrNone => Batch::all_or_none(&mut part.entries),
            Charge::Independent => Batch::independent(&mut part.entries),
        };
        let question = Question::of(&self.names, &batch, Place::PartOfCluster)?;
        reply::decided(&self.ask_by(exchange, &question).await?, &mut part.entries)
    }

    /// Gives back what a part has charged, and says what remains then.
    async fn give_back(
        &self,
        exchange: &Exchange<'_>,
        part: &mut Part<'_>,
    ) -> Result<(), RedisStoreError> {
        let is_charged =
            |entry: &&Entry<'_>| entry.decision().is_some_and(|decision| decision.is_allowed());
        let refunds: Vec<Adjustment<'_>> = part
            .entries
            .iter()
            .filter(is_charged)
            .map(|entry| {
                let spending = Spending { reserved: entry.cost(), spent: 0 };
                Adjustment::new(entry.key(), entry.policy(), entry.stamp(), spending)
            })
            .collect();
        let question = Question::settle(&self.names, None, &refunds, Place::PartOfCluster)?;
        self.ask_by(exchange, &question).await?;
        let mut peeks: Vec<Entry<'_>> =
            part.entries.iter().map(|entry| entry.clone().with_cost(0)).collect();
        let question =
            Question::of(&self.names, &Batch::independent(&mut peeks), Place::PartOfCluster)?;
        reply::decided(&self.ask_by(exchange, &question).await?, &mut peeks)?;
        for (entry, peek) in part.entries.iter_mut().zip(&peeks) {
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
