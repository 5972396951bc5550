//! One node: a store over its own connection, counting in one of three ways.

use std::sync::Arc;
use std::time::Duration;

use tollbar::{Accuracy, Batch, Entry, LoanTerms, Policy, Store, StoreError};
use tollbar_fleet::LendingStore;
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, RedisStoreError};

use super::Subject;
use super::batching::Batching;

pub(super) struct Node {
    store: LendingStore,
    batching: Option<Batching>,
    terms: LoanTerms,
}

/// A store over a connection of its own. A busy machine must not make answers fail that are late.
async fn connect(url: &str) -> Result<RedisStore, RedisStoreError> {
    let names = KeyNames::Hashed(FleetSecret::new([7; 32]));
    RedisStore::builder(url, names).timeout(Duration::from_secs(5)).connect().await
}

impl Node {
    pub(super) async fn new(
        url: &str,
        subject: Subject,
        terms: LoanTerms,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let store = LendingStore::new(Arc::new(connect(url).await?));
        store.set_lending(subject == Subject::Loans);
        let batching = match subject {
            Subject::Batching => Some(Batching::connect(url).await?),
            Subject::Exact | Subject::Loans => None,
        };
        Ok(Self { store, batching, terms })
    }

    /// Returns whether one token of `key` may be spent.
    pub(super) async fn ask(&self, key: &str, policy: &Policy) -> bool {
        if let Some(batching) = &self.batching {
            return batching.ask(key, policy);
        }
        let entry = Entry::new(key, policy).with_accuracy(Accuracy::Loaned(self.terms));
        let mut entries = [entry];
        let answer = self.store.decide(Batch::all_or_none(&mut entries)).await;
        answer.is_ok() && entries[0].is_paid()
    }

    /// Spends so many tokens at once.
    pub(super) async fn spend(
        &self,
        key: &str,
        policy: &Policy,
        tokens: u64,
    ) -> Result<(), StoreError> {
        if let Some(batching) = &self.batching {
            return batching.spend(key, policy, tokens).await;
        }
        self.store.check(key.as_bytes(), policy, tokens).await.map(drop)
    }
}
