//! Accounts in memory: what was admitted and denied, by day, rule, tenant and subject, until somebody
//! takes them. Writes nothing down.
//!
//! There are so many entries and no more. Who comes when they are all taken counts as `(other)` of its
//! tenant, and where there are too many tenants as `(other)` of its rule: nothing is left out of a sum.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::rfc3339::{self, Date};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use smallvec::SmallVec;
use tollbar::Timestamp;
use tollbar_rules::{UsageRecord, readable};

/// So that threads that count at the same time seldom meet.
const SHARDS: usize = 16;

/// The longest tenant and the longest subject that are kept as they are.
const TEXT_BYTES_MAX: usize = 256;

/// What is left of a longer one, before the hash that tells it from others.
const PREFIX_BYTES: usize = 200;

/// The subject of those for whom there was no room.
const OTHER: &str = "(other)";

/// Who comes when only one entry in so many is free counts with its tenant.
const TENANTS_SHARE: usize = 8;

const DAY_US: u64 = 86_400_000_000;

/// Accounts that any number of threads add to.
#[derive(Debug)]
pub struct Tally {
    shards: [Mutex<Shard>; SHARDS],
    entries: AtomicUsize,
    entries_max: usize,
}

/// What a subject used under a rule in a day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
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
    /// The rule, by its identity.
    #[serde(rename = "ruleId")]
    pub rule: String,
    /// What passed.
    #[serde(rename = "admitted")]
    pub admitted_cost: u64,
    /// What was turned away.
    #[serde(rename = "denied")]
    pub denied_cost: u64,
}

fn write_tenant<S: Serializer>(tenant: &str, to: S) -> Result<S::Ok, S::Error> {
    Some(tenant).filter(|tenant| !tenant.is_empty()).serialize(to)
}

type Shard = HashMap<Box<[u8]>, Entry>;

#[derive(Debug, Default)]
struct Entry {
    amounts: Amounts,
    /// Whether it is one of the entries of which there are so many and no more.
    is_taken: bool,
}

/// What was admitted and denied, in the tokens that rules charge.
#[derive(Debug, Clone, Copy, Default)]
struct Amounts {
    admitted: u64,
    denied: u64,
}

/// Day, tenant, subject and rule.
type Account = (i32, String, String, String);

/// An account as one string of bytes, so that it is looked up without an allocation: the day, then
/// the rule and the tenant, each behind its length, and the subject's key.
type Name = SmallVec<[u8; 256]>;

impl Tally {
    pub fn new(entries_max: usize) -> Self {
        Self { shards: Default::default(), entries: AtomicUsize::new(0), entries_max }
    }

    /// Counts what one rule has admitted or denied.
    pub fn count(&self, at: Timestamp, metered: &UsageRecord<'_>) {
        let UsageRecord { rule, tenant, key, cost, is_admitted, .. } = *metered;
        let day = (at.as_micros() / DAY_US) as i32;
        let name = name(day, rule.identity(), tenant.unwrap_or_default(), key);
        let shard = &self.shards[shard_of(&name)];
        let mut shard = lock(shard);
        if let Some(entry) = shard.get_mut(&*name) {
            return entry.amounts.add(cost, is_admitted);
        }
        let (name, is_taken) = self.name_for_new(day, metered, name, &shard);
        let entry = shard.entry(name.into_boxed_slice());
        let new = Entry { amounts: Amounts::default(), is_taken };
        entry.or_insert(new).amounts.add(cost, is_admitted);
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
        if let Some(tenant) = tenant {
            let of_tenant = other(day, rule.identity(), tenant);
            if shard.contains_key(&*of_tenant) || self.take(self.entries_max) {
                return (of_tenant, true);
            }
        }
        // There are as many of these as there are rules, however many clients there are.
        (other(day, rule.identity(), ""), false)
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
        let mut accounts: BTreeMap<Account, Amounts> = BTreeMap::new();
        for shard in &self.shards {
            let shard = std::mem::take(&mut *lock(shard));
            let taken = shard.values().filter(|entry| entry.is_taken).count();
            self.entries.fetch_sub(taken, Ordering::Relaxed);
            for (name, Entry { amounts, .. }) in shard {
                let sum = accounts.entry(read(&name)).or_default();
                sum.add(amounts.admitted, true);
                sum.add(amounts.denied, false);
            }
        }
        accounts.into_iter().map(row).collect()
    }
}

impl Amounts {
    fn add(&mut self, cost: u64, is_admitted: bool) {
        let amount = if is_admitted { &mut self.admitted } else { &mut self.denied };
        *amount = amount.saturating_add(cost);
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

fn name(day: i32, rule: &str, tenant: &str, key: &[u8]) -> Name {
    let mut name = Name::from_slice(&day.to_le_bytes());
    push(&mut name, rule.as_bytes());
    push(&mut name, bounded(tenant).as_bytes());
    if key.len() <= TEXT_BYTES_MAX {
        name.extend_from_slice(key);
    } else {
        name.push(b'=');
        push(&mut name, shortened(&readable(key)).as_bytes());
    }
    name
}

/// The name of `(other)` of a tenant, or of a rule where that is empty.
fn other(day: i32, rule: &str, tenant: &str) -> Name {
    let mut name = name(day, rule, tenant, &[]);
    // A tag that no key has, so that nobody who calls himself so is taken for it here.
    name.push(b'o');
    push(&mut name, OTHER.as_bytes());
    name
}

fn push(name: &mut Name, text: &[u8]) {
    name.extend_from_slice(&(text.len() as u16).to_le_bytes());
    name.extend_from_slice(text);
}

fn bounded(text: &str) -> std::borrow::Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX { text.into() } else { shortened(text).into() }
}

/// The beginning, and a hash by which it is known on every node and after a restart.
fn shortened(text: &str) -> String {
    let prefix = &text[..text.floor_char_boundary(PREFIX_BYTES)];
    let hash = blake3::hash(text.as_bytes()).to_hex();
    format!("{prefix}…{}", &hash[..16])
}

fn read(name: &[u8]) -> Account {
    let (day, rest) = name.split_first_chunk().unwrap_or((&[0; 4], &[]));
    let (rule, rest) = pull(rest);
    let (tenant, key) = pull(rest);
    let text = |bytes| visible(&String::from_utf8_lossy(bytes));
    (i32::from_le_bytes(*day), text(tenant), visible(&readable(key)), text(rule))
}

/// Without what databases refuse and terminals obey.
fn visible(text: &str) -> String {
    text.replace(char::is_control, "\u{FFFD}")
}

fn row(((day, tenant, subject, rule), amounts): (Account, Amounts)) -> UsageRow {
    let Amounts { admitted: admitted_cost, denied: denied_cost } = amounts;
    UsageRow { day, tenant, subject, rule, admitted_cost, denied_cost }
}

fn pull(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = bytes.split_first_chunk().unwrap_or((&[0; 2], &[]));
    rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()))
}

#[cfg(test)]
mod tests;
