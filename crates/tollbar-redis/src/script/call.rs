//! A call of a script: its keys, and everything else as one blob.

use std::collections::HashMap;
use std::time::Duration;

use tollbar::store::{Adjustment, Due, Entry, Hold, LoanRequest, ReservationRef, Role};
use tollbar::{Batch, Charge, Policy};

use super::blob::Blob;
use super::intent::PartCall;
use super::policy::{Kind, write_numbers};
use super::{KindSet, Task};
use crate::error::RedisStoreError;
use crate::keys::KeyNamer;

/// A call of a script.
#[derive(Debug, Clone)]
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
    /// A part of an attempt, which is given back by its record.
    PartOfAttempt(&'k AttemptRecord),
}

/// What an attempt leaves in a slot where it charges.
#[derive(Debug)]
pub(crate) struct AttemptRecord {
    pub(crate) name: Vec<u8>,
    /// For how long it is kept.
    pub(crate) ttl: Duration,
}

impl<'k> KeyLocation<'k> {
    fn slot_of(self) -> Option<&'k [u8]> {
        match self {
            Self::SlotOf(key) => Some(key),
            Self::Server | Self::PartOfCluster | Self::PartOfAttempt(_) => None,
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
        let kind = Kind::for_policy(policy)?;
        let mut blob = Blob::roomy();
        blob.byte(kind as u8);
        blob.cost(cost);
        write_numbers(policy, key, &mut blob)?;
        Ok(Self {
            task: Task::One,
            kinds: KindSet::for_policy(policy)?,
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
            && !matches!(location, KeyLocation::PartOfCluster | KeyLocation::PartOfAttempt(_))
            && batch.entries().len() <= FEW_MAX
            && batch.entries().iter().all(|entry| entry.alternative().is_none())
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
            blob.byte(Kind::for_policy(entry.policy())? as u8);
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
            (_, KeyLocation::PartOfAttempt(_)) => 3,
            (Some(_), _) => 1,
            (None, KeyLocation::PartOfCluster) => 2,
            (None, _) => 0,
        });
        let slot_of = location.slot_of();
        let mut keys = counters.keys;
        let counter_count = keys.len();
        if let Some(once) = once {
            blob.number(micros(once.ttl));
            blob.bytes(&fingerprint(names, once.content, batch.entries()));
            blob.byte(once.replays_max);
            keys.push(names.request(slot_of, once.request_id));
        }
        if let Some(Hold { id, ttl }) = hold {
            blob.number(micros(ttl));
            keys.push(names.reservation(slot_of, id));
        }
        if let KeyLocation::PartOfAttempt(AttemptRecord { name, ttl }) = location {
            blob.number(micros(*ttl));
            keys.push(name.clone());
        }
        blob.count(counter_count);
        blob.count(batch.entries().len());
        let mut before = None;
        for (entry, number) in batch.entries().iter().zip(numbers) {
            blob.byte(Kind::for_policy(entry.policy())? as u8);
            blob.byte(u8::from(entry.role() == Role::Shadow));
            blob.byte(place(before.replace(entry), entry));
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
        blob.byte(Kind::for_policy(policy).ok()? as u8);
        blob.stamp(stamp);
        write_numbers(policy, key, &mut blob).ok()?;
        let kinds = KindSet::for_policy(policy).ok()?;
        let keys = vec![names.counter(key, policy)];
        Some(Self { task: Task::Renew, kinds, keys, blob: blob.into_bytes() })
    }

    /// Charges tokens early. `None` where the policy is always counted exactly.
    pub(crate) fn lend(
        names: &KeyNamer,
        key: &[u8],
        policy: &Policy,
        request: LoanRequest,
    ) -> Option<Self> {
        let kind = Kind::for_policy(policy).ok().filter(|kind| kind.is_lendable())?;
        let LoanRequest { tokens, term, cut } = request;
        // Rounded up: no loan is cut by less than it asks for.
        let cut_us = u64::try_from(cut.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        let mut blob = Blob::roomy();
        blob.byte(kind as u8);
        blob.numbers([tokens, micros(term), cut_us]);
        write_numbers(policy, key, &mut blob).ok()?;
        let kinds = KindSet::for_policy(policy).ok()?;
        let keys = vec![names.counter(key, policy)];
        Some(Self { task: Task::Lend, kinds, keys, blob: blob.into_bytes() })
    }

    /// Make this counter fresh. `None` where to delete it is enough: a bucket and leases have to know
    /// what was granted before.
    pub(crate) fn reset(names: &KeyNamer, key: &[u8], policy: &Policy) -> Option<Self> {
        let remembers = |kind: &Kind| matches!(kind, Kind::Bucket | Kind::Leased);
        Kind::plain_of(policy).ok().filter(remembers)?;
        let mut blob = Blob::default();
        blob.byte(Kind::for_policy(policy).ok()? as u8);
        let kinds = KindSet::for_policy(policy).ok()?;
        let keys = vec![names.counter(key, policy)];
        Some(Self { task: Task::Reset, kinds, keys, blob: blob.into_bytes() })
    }

    /// What a reservation came to, in one slot. Its request id goes with it where something comes back.
    pub(crate) fn settle(
        names: &KeyNamer,
        reservation: ReservationRef<'_>,
        adjustments: &[Adjustment<'_>],
        location: KeyLocation<'_>,
    ) -> Result<Self, RedisStoreError> {
        let forgotten = reservation.request_id.filter(|_| Adjustment::gives_back(adjustments));
        let name = names.reservation(location.slot_of(), reservation.id);
        let request = forgotten.map(|request_id| names.request(location.slot_of(), request_id));
        let what_for = SettlePurpose::Reservation { name, request };
        Self::settle_rows(names, what_for, adjustments.iter().map(SettleRow::from_adjustment))
    }

    /// Refunds that stand alone; in a part of a cluster those of a request that did not pass after all.
    pub(crate) fn refund(
        names: &KeyNamer,
        refunds: &[Adjustment<'_>],
        location: KeyLocation<'_>,
    ) -> Result<Self, RedisStoreError> {
        let rows = refunds.iter().map(|refund| match location {
            KeyLocation::PartOfCluster => {
                SettleRow { what: SettleKind::Void, ..SettleRow::from_adjustment(refund) }
            }
            _ => SettleRow::from_adjustment(refund),
        });
        Self::settle_rows(names, SettlePurpose::Refund, rows)
    }

    /// What a part of a reservation came to, if the attempt that made it is still on record.
    pub(crate) fn settle_part(
        names: &KeyNamer,
        adjustments: &[Adjustment<'_>],
    ) -> Result<PartCall, RedisStoreError> {
        let tag = adjustments.first().map_or(&[][..], Adjustment::key);
        let what_for = SettlePurpose::Part { record: names.attempt(tag) };
        let rows = adjustments.iter().map(SettleRow::from_adjustment);
        Self::settle_rows(names, what_for, rows).map(PartCall::new)
    }

    /// Gives back all that an attempt has charged to `entries`, which are all of its entries in one slot. Should
    /// it come before the charge, it is remembered for so long, and the charge is refused.
    pub(crate) fn cancel_part(
        names: &KeyNamer,
        entries: &[Entry<'_>],
        remembered_for: Duration,
    ) -> Result<PartCall, RedisStoreError> {
        let tag = entries.first().map_or(&[][..], Entry::key);
        let what_for = SettlePurpose::CancelledPart { record: names.attempt(tag), remembered_for };
        let rows = entries.iter().map(|entry| SettleRow {
            key: entry.key(),
            policy: entry.policy(),
            what: SettleKind::Void,
            // The record has it.
            stamp: 0,
            amount: entry.cost(),
        });
        Self::settle_rows(names, what_for, rows).map(PartCall::new)
    }

    fn settle_rows<'r>(
        names: &KeyNamer,
        what_for: SettlePurpose,
        settle_rows: impl Iterator<Item = SettleRow<'r>>,
    ) -> Result<Self, RedisStoreError> {
        let (mut kinds, mut counters, mut rows) =
            (KindSet::default(), Counters::default(), Blob::default());
        let mut row_count = 0;
        for SettleRow { key, policy, what, stamp, amount } in settle_rows {
            kinds.insert_of(policy)?;
            rows.byte(Kind::for_policy(policy)? as u8);
            rows.byte(what as u8);
            rows.count(counters.number(names.counter(key, policy)));
            rows.stamp(stamp);
            rows.number(amount);
            rows.sized(|blob| write_numbers(policy, key, blob))?;
            row_count += 1;
        }
        let mut blob = Blob::default();
        blob.byte(what_for.code());
        blob.count(counters.keys.len());
        blob.count(row_count);
        let mut keys = counters.keys;
        match what_for {
            SettlePurpose::Refund => {}
            SettlePurpose::Reservation { name, request } => {
                keys.push(name);
                keys.extend(request);
            }
            SettlePurpose::Part { record } => keys.push(record),
            SettlePurpose::CancelledPart { record, remembered_for } => {
                keys.push(record);
                blob.number(micros(remembered_for));
            }
        }
        blob.bytes(&rows.into_bytes());
        Ok(Self { task: Task::Settle, kinds, keys, blob: blob.into_bytes() })
    }
}

/// What `lua/settle.lua` is called for, and the names it needs for that.
enum SettlePurpose {
    Refund,
    Reservation {
        name: Vec<u8>,
        /// The request id, if it is to be forgotten.
        request: Option<Vec<u8>>,
    },
    /// `record` is without the attempt.
    Part {
        record: Vec<u8>,
    },
    CancelledPart {
        record: Vec<u8>,
        remembered_for: Duration,
    },
}

impl SettlePurpose {
    fn code(&self) -> u8 {
        match self {
            Self::Refund => 0,
            Self::Reservation { request: None, .. } => 1,
            Self::Reservation { request: Some(_), .. } => 2,
            Self::Part { .. } => 3,
            Self::CancelledPart { .. } => 4,
        }
    }
}

/// What becomes of one charge.
struct SettleRow<'r> {
    key: &'r [u8],
    policy: &'r Policy,
    what: SettleKind,
    stamp: u64,
    amount: u64,
}

#[derive(Clone, Copy)]
enum SettleKind {
    Refund = 0,
    Overdraft = 1,
    /// Its request did not pass after all.
    Void = 2,
}

impl<'r> SettleRow<'r> {
    fn from_adjustment(adjustment: &'r Adjustment<'_>) -> Self {
        let (what, amount) = match adjustment.due() {
            Due::Refund(tokens) => (SettleKind::Refund, tokens),
            Due::Overdraw(tokens) => (SettleKind::Overdraft, tokens),
        };
        let (key, policy, stamp) = (adjustment.key(), adjustment.policy(), adjustment.stamp());
        Self { key, policy, what, stamp, amount }
    }
}

impl ScriptCall {
    /// Can the key of a probe be written and read?
    pub(crate) fn probe_write(names: &KeyNamer, tag: u32, id: u64) -> Self {
        Self::of_no_counter(Task::Probe, names.probe(tag, id), vec![0])
    }

    /// Has the key of a probe expired? In a cluster, can its scripts be run?
    pub(crate) fn probe_expiry(names: &KeyNamer, tag: u32, id: u64, is_cluster: bool) -> Self {
        Self::of_no_counter(Task::Probe, names.probe(tag, id), vec![1 + u8::from(is_cluster)])
    }

    /// To which secret does the namespace belong? To ours, if to none yet.
    pub(crate) fn claim(names: &KeyNamer) -> Self {
        Self::of_no_counter(Task::Claim, names.secret(), names.secret_fingerprint().into())
    }

    fn of_no_counter(task: Task, key: Vec<u8>, blob: Vec<u8>) -> Self {
        Self { task, kinds: KindSet::default(), keys: vec![key], blob }
    }

    /// What makes it the same question, whatever its cost where it is only one: for the deny cache.
    pub(crate) fn identity(&self) -> Box<[u8]> {
        let numbers = match self.task {
            // Without the kind, which follows from the name, and the cost.
            Task::One => &self.blob[ONE_NUMBERS_AT..],
            _ => &self.blob[..],
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

/// Returns the place of an entry among alternatives, as lua/many.lua reads it.
fn place(before: Option<&Entry<'_>>, entry: &Entry<'_>) -> u8 {
    let Some(alternative) = entry.alternative() else {
        return 0;
    };
    match before.and_then(|before| Some((before.role(), before.alternative()?))) {
        Some((role, before)) if role == entry.role() && before == alternative => 3,
        Some((role, before)) if role == entry.role() && before.group == alternative.group => 2,
        _ => 1,
    }
}

/// Of what has to be the same when a request id comes back: the content, and who asks for how much, not by which
/// numbers.
pub(super) fn fingerprint(names: &KeyNamer, content: u128, entries: &[Entry<'_>]) -> [u8; 8] {
    let mut bytes = content.to_le_bytes().to_vec();
    for entry in entries {
        let name = names.counter(entry.key(), entry.policy());
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name);
        bytes.extend(entry.cost().to_le_bytes());
        entry.write_role(&mut bytes);
    }
    names.fingerprint(&bytes)
}

/// Longer than a clock runs is for ever.
pub(super) fn micros(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)
}
