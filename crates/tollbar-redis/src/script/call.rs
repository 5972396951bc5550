//! A call of a script: its keys, and everything else as one blob.

use std::collections::HashMap;
use std::time::Duration;

use tollbar::store::{Adjustment, Due, Entry, Hold, Once, ReservationId, Role};
use tollbar::{Batch, Charge, Policy};

use super::blob::Blob;
use super::policy::{Kind, write_numbers};
use super::{KindSet, Task};
use crate::error::RedisStoreError;
use crate::keys::KeyNamer;

/// A call of a script.
#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) task: Task,
    pub(crate) kinds: KindSet,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) blob: Vec<u8>,
}

/// Where the counters of a call are, and so where the names of requests have to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeyLocation<'k> {
    /// All on one server.
    Server,
    /// In a cluster, in the slot of this key.
    SlotOf(&'k [u8]),
    /// In one slot of a cluster, and others of the same request in others: what is charged here may
    /// have to be given back.
    PartOfCluster,
}

impl<'k> KeyLocation<'k> {
    fn slot_of(self) -> Option<&'k [u8]> {
        match self {
            Self::SlotOf(key) => Some(key),
            Self::Server | Self::PartOfCluster => None,
        }
    }
}

/// The most entries that a script goes down through and back.
const FEW_MAX: usize = 64;

/// The counters of a call, each once.
#[derive(Default)]
struct Counters {
    keys: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, usize>,
}

impl Counters {
    /// Its number, from 1 on, as Lua counts.
    fn number(&mut self, key: Vec<u8>) -> usize {
        let next = self.keys.len() + 1;
        *self.numbers.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            next
        })
    }
}

impl ScriptCall {
    /// May `key` pay `cost` under `policy`?
    pub(crate) fn one(
        names: &KeyNamer,
        key: &[u8],
        policy: &Policy,
        cost: u64,
    ) -> Result<Self, RedisStoreError> {
        let kind = Kind::of(policy)?;
        let mut blob = Blob::roomy();
        blob.byte(kind as u8);
        blob.cost(cost);
        write_numbers(policy, key, &mut blob)?;
        Ok(Self {
            task: Task::One,
            kinds: KindSet::of(policy)?,
            keys: vec![names.counter(key, policy)],
            blob: blob.into_bytes(),
        })
    }

    /// A whole batch, whose counters are in one slot if this is a cluster.
    pub(crate) fn for_batch(
        names: &KeyNamer,
        batch: &Batch<'_, '_>,
        location: KeyLocation<'_>,
    ) -> Result<Self, RedisStoreError> {
        let mut counters = Counters::default();
        let mut numbers = Vec::with_capacity(batch.entries().len());
        let mut kinds = KindSet::default();
        for entry in batch.entries() {
            kinds.insert_of(entry.policy())?;
            numbers.push(counters.number(names.counter(entry.key(), entry.policy())));
        }
        let is_few = batch.charge() == Charge::AllOrNone
            && batch.charged_once().is_none()
            && batch.hold().is_none()
            && !matches!(location, KeyLocation::PartOfCluster)
            && batch.entries().len() <= FEW_MAX
            && counters.keys.len() == batch.entries().len();
        if is_few {
            return Self::few(kinds, counters.keys, batch.entries());
        }
        Self::many(names, kinds, counters, &numbers, batch, location)
    }

    fn few(
        kinds: KindSet,
        keys: Vec<Vec<u8>>,
        entries: &[Entry<'_>],
    ) -> Result<Self, RedisStoreError> {
        let mut blob = Blob::roomy();
        blob.count(entries.len());
        for entry in entries {
            blob.byte(Kind::of(entry.policy())? as u8);
            blob.byte(u8::from(entry.role() == Role::Shadow));
            blob.cost(entry.cost());
            blob.sized(|blob| write_numbers(entry.policy(), entry.key(), blob))?;
        }
        Ok(Self { task: Task::Few, kinds, keys, blob: blob.into_bytes() })
    }

    fn many(
        names: &KeyNamer,
        kinds: KindSet,
        counters: Counters,
        numbers: &[usize],
        batch: &Batch<'_, '_>,
        location: KeyLocation<'_>,
    ) -> Result<Self, RedisStoreError> {
        let is_one_request = batch.charge() == Charge::AllOrNone;
        let once = batch.charged_once().filter(|_| is_one_request);
        let hold = batch.hold().filter(|_| is_one_request);
        let mut blob = Blob::default();
        blob.byte(u8::from(is_one_request));
        blob.byte(u8::from(once.is_some()));
        blob.byte(match (hold, location) {
            (Some(_), _) => 1,
            (None, KeyLocation::PartOfCluster) => 2,
            (None, _) => 0,
        });
        let slot_of = location.slot_of();
        let mut keys = counters.keys;
        let counter_count = keys.len();
        if let Some(Once { request_id, ttl }) = once {
            blob.number(micros(ttl));
            blob.bytes(&names.fingerprint(&request_content(names, batch.entries())));
            keys.push(names.request(slot_of, request_id));
        }
        if let Some(Hold { id, ttl }) = hold {
            blob.number(micros(ttl));
            keys.push(names.reservation(slot_of, id));
        }
        blob.count(counter_count);
        blob.count(batch.entries().len());
        for (entry, number) in batch.entries().iter().zip(numbers) {
            blob.byte(Kind::of(entry.policy())? as u8);
            blob.byte(u8::from(entry.role() == Role::Shadow));
            blob.count(*number);
            blob.cost(entry.cost());
            blob.sized(|blob| write_numbers(entry.policy(), entry.key(), blob))?;
        }
        Ok(Self { task: Task::Many, kinds, keys, blob: blob.into_bytes() })
    }

    /// Is the lease `stamp` still held? Then it is held for longer. `None` where there are no leases.
    pub(crate) fn renew(names: &KeyNamer, key: &[u8], policy: &Policy, stamp: u64) -> Option<Self> {
        policy.lease_ttl()?;
        let mut blob = Blob::default();
        blob.stamp(stamp);
        write_numbers(policy, key, &mut blob).ok()?;
        let kinds = KindSet::of(policy).ok()?;
        let keys = vec![names.counter(key, policy)];
        Some(Self { task: Task::Renew, kinds, keys, blob: blob.into_bytes() })
    }

    /// Make this counter fresh. `None` where to delete it is enough: a bucket and leases have to know
    /// what was granted before.
    pub(crate) fn reset(names: &KeyNamer, key: &[u8], policy: &Policy) -> Option<Self> {
        let remembers = |kind: &Kind| matches!(kind, Kind::Bucket | Kind::Leased);
        Kind::plain_of(policy).ok().filter(remembers)?;
        let mut blob = Blob::default();
        blob.byte(Kind::of(policy).ok()? as u8);
        let kinds = KindSet::of(policy).ok()?;
        let keys = vec![names.counter(key, policy)];
        Some(Self { task: Task::Reset, kinds, keys, blob: blob.into_bytes() })
    }

    /// What a reservation came to; without an id, refunds that stand alone, and in a part of a cluster
    /// those of a request that did not pass after all.
    pub(crate) fn settle(
        names: &KeyNamer,
        id: Option<ReservationId>,
        adjustments: &[Adjustment<'_>],
        location: KeyLocation<'_>,
    ) -> Result<Self, RedisStoreError> {
        let (mut kinds, mut counters, mut rows) =
            (KindSet::default(), Counters::default(), Blob::default());
        for adjustment in adjustments {
            let (key, policy) = (adjustment.key(), adjustment.policy());
            let kind = Kind::of(policy)?;
            kinds.insert_of(policy)?;
            let (is_overdraft, amount) = match adjustment.due() {
                Due::Refund(tokens) => (false, tokens),
                Due::Overdraw(tokens) => (true, tokens),
            };
            rows.byte(kind as u8);
            rows.byte(match location {
                KeyLocation::PartOfCluster => 2,
                KeyLocation::Server | KeyLocation::SlotOf(_) => u8::from(is_overdraft),
            });
            rows.count(counters.number(names.counter(key, policy)));
            rows.stamp(adjustment.stamp());
            rows.number(amount);
            rows.sized(|blob| write_numbers(policy, key, blob))?;
        }
        let mut blob = Blob::default();
        blob.byte(u8::from(id.is_some()));
        blob.count(counters.keys.len());
        blob.count(adjustments.len());
        blob.bytes(&rows.into_bytes());
        let mut keys = counters.keys;
        keys.extend(id.map(|id| names.reservation(location.slot_of(), id)));
        Ok(Self { task: Task::Settle, kinds, keys, blob: blob.into_bytes() })
    }
}

impl ScriptCall {
    /// What makes it the same question, whatever its cost where it is only one: for the deny cache.
    pub(crate) fn identity(&self) -> Box<[u8]> {
        let numbers = match self.task {
            // Without the kind, which follows from the name, and the cost.
            Task::One => &self.blob[ONE_NUMBERS_AT..],
            Task::Few | Task::Many | Task::Settle | Task::Renew | Task::Reset => &self.blob[..],
        };
        let len = 1 + self.keys.iter().map(Vec::len).sum::<usize>() + numbers.len();
        let mut identity = Vec::with_capacity(len);
        identity.push(self.task as u8);
        for key in &self.keys {
            identity.extend_from_slice(key);
        }
        identity.extend_from_slice(numbers);
        identity.into()
    }
}

/// Behind a byte for the kind and eight for the cost.
const ONE_NUMBERS_AT: usize = 9;

/// What has to be the same when a request id comes back: who asks for how much, not by which numbers.
fn request_content(names: &KeyNamer, entries: &[Entry<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        let name = names.counter(entry.key(), entry.policy());
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name);
        bytes.extend(entry.cost().to_le_bytes());
        bytes.push(u8::from(entry.role() == Role::Shadow));
    }
    bytes
}

/// Longer than a clock runs is for ever.
fn micros(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)
}
