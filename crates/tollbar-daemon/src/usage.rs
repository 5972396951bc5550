//! Accounts in memory: what was admitted and denied, by day, rule, tenant, tier, client and subject, until they
//! are taken. Writes nothing down.
//!
//! The number of entries is bounded. A client that comes when all are taken counts as `(other)` of its tenant
//! and, if there are too many tenants, as `(other)` of its rule: nothing is left out of a sum.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::rfc3339::{self, Date};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use smallvec::SmallVec;
use tollbar::Timestamp;
use tollbar_rules::{UsageAmounts, UsageRecord, readable};

/// So that threads that count at the same time seldom meet.
const SHARDS: usize = 16;

/// The client and the subject of what there was no room for.
const OTHER: &str = "(other)";

/// A client that comes when only one entry in so many is free counts with its tenant.
const TENANTS_SHARE: usize = 8;

const DAY_US: u64 = 86_400_000_000;

/// Accounts that any number of threads add to.
#[derive(Debug)]
pub struct Tally {
    shards: [Mutex<Shard>; SHARDS],
    entries: AtomicUsize,
    entries_max: usize,
}

/// What a client used under a rule in a day.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Daily")]
pub struct UsageRow {
    /// The day in UTC, by days since 1970-01-01.
    #[serde(serialize_with = "rfc3339::write_day")]
    #[schemars(with = "Date", description = "The day in UTC.")]
    pub day: i32,
    /// The tenant; empty where there is none.
    #[serde(serialize_with = "write_tenant")]
    #[schemars(with = "Option<String>", description = "The tenant; null where there is none.")]
    pub tenant: String,
    /// Whom the rule counted.
    pub subject: String,
    /// The rule, by its identity; a name that no rule has for what none limits.
    #[serde(rename = "ruleId")]
    pub rule: String,
    /// The tokens that were paid. A settlement that arrives before its charge is below zero.
    #[serde(rename = "admitted")]
    pub admitted_cost: i64,
    /// The tokens that were denied.
    #[serde(rename = "denied")]
    pub denied_cost: i64,
    /// The client: its API key, its user or its address.
    pub client: String,
    /// The tier; empty where there is none.
    #[serde(serialize_with = "write_tenant")]
    #[schemars(with = "Option<String>", description = "The tier; null where there is none.")]
    pub tier: String,
    /// The requests that passed. A request under several rules is in the row of the first only.
    pub admitted_requests: i64,
    /// The requests that were denied, in the same way.
    pub denied_requests: i64,
}

impl UsageRow {
    /// How much was used.
    pub fn amounts(&self) -> UsageAmounts {
        UsageAmounts {
            admitted: self.admitted_cost,
            denied: self.denied_cost,
            admitted_requests: self.admitted_requests,
            denied_requests: self.denied_requests,
        }
    }
}

fn write_tenant<S: Serializer>(tenant: &str, to: S) -> Result<S::Ok, S::Error> {
    Some(tenant).filter(|tenant| !tenant.is_empty()).serialize(to)
}

type Shard = HashMap<Box<[u8]>, Entry>;

#[derive(Debug, Default)]
struct Entry {
    amounts: UsageAmounts,
    /// Whether it is one of the entries whose number is bounded.
    is_taken: bool,
}

/// Day, tenant, client, tier, subject and rule.
type Account = (i32, String, String, String, String, String);

/// An account as one string of bytes, so that it is looked up without an allocation: the day, then
/// the rule, the tenant, the tier and the client, each behind its length, and the subject's key, which is left
/// out where it is the client's.
type Name = SmallVec<[u8; 256]>;

impl Tally {
    pub fn new(entries_max: usize) -> Self {
        Self { shards: Default::default(), entries: AtomicUsize::new(0), entries_max }
    }

    /// Counts what one rule has admitted or denied, or a correction of that.
    pub fn count(&self, at: Timestamp, metered: &UsageRecord<'_>) {
        let day = (at.as_micros() / DAY_US) as i32;
        let name = name(day, metered);
        let shard = &self.shards[shard_of(&name)];
        let mut shard = lock(shard);
        if let Some(entry) = shard.get_mut(&*name) {
            return entry.amounts.add(metered.amounts);
        }
        let (name, is_taken) = self.name_for_new(day, metered, name, &shard);
        let entry = shard.entry(name.into_boxed_slice());
        let new = Entry { amounts: UsageAmounts::default(), is_taken };
        entry.or_insert(new).amounts.add(metered.amounts);
    }

    /// The name under which an account that is not there yet is to be counted, and whether an entry
    /// was taken for it.
    #[cold]
    fn name_for_new(
        &self,
        day: i32,
        metered: &UsageRecord<'_>,
        name: Name,
        shard: &Shard,
    ) -> (Name, bool) {
        let UsageRecord { rule, tenant, .. } = *metered;
        let room = self.entries_max - self.entries_max / TENANTS_SHARE;
        if self.take(room) {
            return (name, true);
        }
        if !tenant.is_empty() {
            let of_tenant = other(day, rule, tenant);
            if shard.contains_key(&*of_tenant) || self.take(self.entries_max) {
                return (of_tenant, true);
            }
        }
        // There are as many of these as there are rules, however many clients there are.
        (other(day, rule, ""), false)
    }

    /// Takes an entry, if fewer than `room` are taken.
    fn take(&self, room: usize) -> bool {
        let has_room = self.entries.fetch_add(1, Ordering::Relaxed) < room;
        if !has_room {
            self.entries.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Takes everything that was counted. Threads that go on counting are never held up for longer
    /// than one shard takes to change hands.
    ///
    /// The rows are in order, so that nodes that write the same ones at once wait for each other and
    /// not in a circle.
    pub fn take_all(&self) -> Vec<UsageRow> {
        let mut accounts: BTreeMap<Account, UsageAmounts> = BTreeMap::new();
        for shard in &self.shards {
            let shard = std::mem::take(&mut *lock(shard));
            let taken = shard.values().filter(|entry| entry.is_taken).count();
            self.entries.fetch_sub(taken, Ordering::Relaxed);
            for (name, Entry { amounts, .. }) in shard {
                accounts.entry(read(&name)).or_default().add(amounts);
            }
        }
        // What was reserved and cancelled since the last time comes to nothing.
        let used = |(_, amounts): &(Account, UsageAmounts)| *amounts != UsageAmounts::default();
        accounts.into_iter().filter(used).map(row).collect()
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // A map of sums is never left half changed.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Any spread will do: the maps behind it are safe from those who choose their names.
fn shard_of(name: &[u8]) -> usize {
    let (words, rest) = name.as_chunks::<8>();
    let mix =
        |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let hash = words.iter().fold(0, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let hash = rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)));
    (hash >> 32) as usize % SHARDS
}

fn name(day: i32, record: &UsageRecord<'_>) -> Name {
    let UsageRecord { rule, tenant, tier, client, key, .. } = *record;
    let mut name = Name::from_slice(&day.to_le_bytes());
    for part in [rule.as_bytes(), tenant.as_bytes(), tier.as_bytes(), client] {
        push(&mut name, part);
    }
    name.push(u8::from(key == client));
    if key != client {
        name.extend_from_slice(key);
    }
    name
}

/// The name of `(other)` of a tenant, or of a rule where that is empty.
fn other(day: i32, rule: &str, tenant: &str) -> Name {
    // A tag that no key has, so that no client of that name is taken for it here.
    let mut key = Name::from_slice(b"o");
    push(&mut key, OTHER.as_bytes());
    let (client, amounts) = (&*key, UsageAmounts::default());
    name(day, &UsageRecord { rule, tenant, tier: "", client, key: client, amounts })
}

fn push(name: &mut Name, text: &[u8]) {
    name.extend_from_slice(&(text.len() as u16).to_le_bytes());
    name.extend_from_slice(text);
}

fn read(name: &[u8]) -> Account {
    let (day, rest) = name.split_first_chunk().unwrap_or((&[0; 4], &[]));
    let (rule, rest) = pull(rest);
    let (tenant, rest) = pull(rest);
    let (tier, rest) = pull(rest);
    let (client, rest) = pull(rest);
    let key = match rest {
        [0, key @ ..] => key,
        _ => client,
    };
    let [tenant, tier, rule] =
        [tenant, tier, rule].map(|text| visible(&String::from_utf8_lossy(text)));
    let [client, subject] = [client, key].map(|key| visible(&readable(key)));
    (i32::from_le_bytes(*day), tenant, client, tier, subject, rule)
}

/// Without what databases refuse and terminals obey.
fn visible(text: &str) -> String {
    text.replace(char::is_control, "\u{FFFD}")
}

fn row(((day, tenant, client, tier, subject, rule), amounts): (Account, UsageAmounts)) -> UsageRow {
    let UsageAmounts { admitted, denied, admitted_requests, denied_requests } = amounts;
    let (admitted_cost, denied_cost) = (admitted, denied);
    UsageRow {
        day,
        tenant,
        subject,
        rule,
        admitted_cost,
        denied_cost,
        client,
        tier,
        admitted_requests,
        denied_requests,
    }
}

fn pull(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = bytes.split_first_chunk().unwrap_or((&[0; 2], &[]));
    rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()))
}

#[cfg(test)]
mod tests;
