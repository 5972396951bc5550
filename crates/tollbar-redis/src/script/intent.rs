//! Calls of a coordinator, and its replies: see `lua/intent.lua`, which runs there.

use std::time::Duration;

use tollbar::Entry;
use tollbar::store::{Adjustment, Due, Hold, Once, ReservationId, ReservationRef};

use super::blob::{Blob, Reader};
use super::call::{ScriptCall, fingerprint, micros};
use super::{KindSet, Task, reply};
use crate::error::RedisStoreError;
use crate::keys::{IntentName, KeyNamer, TransactionId};

/// One attempt to charge a request in several slots. No two have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt([u8; 16]);

impl Attempt {
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }

    /// As a part of the names of its records.
    fn to_text(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }
}

/// How long things last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IntentTimes {
    /// For how long an attempt can be committed. After that others give back what it has charged.
    pub(crate) life: Duration,
    /// For how long after that they try to.
    pub(crate) drop_after: Duration,
}

/// A call that ends a part of an attempt in one slot. All but the attempt is known before it is made.
#[derive(Debug)]
pub(crate) struct PartCall(ScriptCall);

/// The calls that end an attempt, in all of its slots.
pub(crate) type PartCalls = Vec<PartCall>;

/// The first byte of calls that are written down. Another version leaves them alone.
const CALLS_VERSION: u8 = 1;

impl PartCall {
    /// A call whose last key is the record of an attempt, without the attempt.
    pub(crate) fn new(call: ScriptCall) -> Self {
        Self(call)
    }

    /// The call for one attempt.
    pub(crate) fn for_attempt(&self, attempt: Attempt) -> ScriptCall {
        let mut call = self.0.clone();
        if let Some(record) = call.keys.last_mut() {
            record.extend_from_slice(attempt.to_text().as_bytes());
        }
        call
    }

    fn write(&self, blob: &mut Blob) {
        let ScriptCall { kinds, keys, blob: arguments, .. } = &self.0;
        blob.count(kinds.bits());
        blob.count(keys.len());
        for key in keys {
            blob.long_bytes(key);
        }
        blob.long_bytes(arguments);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, RedisStoreError> {
        let kinds = KindSet::from_bits(reader.count()?).ok_or(RedisStoreError::Garbled)?;
        let key_count = reader.count()?;
        let mut keys = Vec::new();
        for _ in 0..key_count {
            keys.push(reader.long_bytes()?.to_vec());
        }
        let blob = reader.long_bytes()?.to_vec();
        Ok(Self(ScriptCall { task: Task::Settle, kinds, keys, blob }))
    }
}

fn write_calls(calls: &[PartCall], blob: &mut Blob) {
    blob.byte(CALLS_VERSION);
    blob.count(calls.len());
    for call in calls {
        call.write(blob);
    }
}

/// What was written down; `None` where another version has.
fn read_calls(bytes: &[u8]) -> Result<Option<PartCalls>, RedisStoreError> {
    let mut reader = Reader(bytes);
    if reader.byte()? != CALLS_VERSION {
        return Ok(None);
    }
    let calls = (0..reader.count()?).map(|_| PartCall::read(&mut reader));
    let calls = calls.collect::<Result<PartCalls, _>>()?;
    reader.finish()?;
    Ok(Some(calls))
}

/// A request that several slots have to agree on, and what its coordinator calls it.
#[derive(Debug)]
pub(crate) struct Coordinator {
    /// The intents and their deadlines; then the request id and the reservation, where there are such.
    keys: Vec<Vec<u8>>,
    name: IntentName,
    has_once: bool,
    has_hold: bool,
    /// Of the request id: see [`Once`].
    content: u128,
    replays_max: u8,
}

/// What lua/intent.lua does.
#[derive(Debug, Clone, Copy)]
enum IntentTask {
    Begin = 1,
    Commit = 2,
    Remove = 3,
    Claim = 4,
    Settle = 5,
}

/// What a coordinator says to a new attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BeginReply {
    Begun,
    /// The request was allowed before; until when it is remembered, and its answers.
    Answered(Vec<u8>),
    /// Another attempt of the same request is under way.
    Pending,
    /// The id was used for something else.
    Reused,
    /// There are too many intents that could not be ended.
    Full,
}

/// What a coordinator says to a settlement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SettleReply {
    /// This attempt has made the reservation. It is to be settled now.
    Open(Attempt),
    Absent,
    Full,
}

/// An intent that its own process has not ended in time.
#[derive(Debug)]
pub(crate) struct OverdueIntent {
    name: IntentName,
    pub(crate) attempt: Attempt,
    /// `None` where another version has written them, which has to end the intent.
    pub(crate) calls: Option<PartCalls>,
}

impl Coordinator {
    /// Of a request that is charged once, or is a reservation, or both. `None` where it is neither.
    pub(crate) fn of_request(
        names: &KeyNamer,
        once: Option<Once<'_>>,
        hold: Option<Hold>,
    ) -> Option<Self> {
        let request_id = once.map(|once| once.request_id);
        let transaction = match (request_id, hold) {
            (Some(request_id), _) => TransactionId::Request(request_id),
            (None, Some(hold)) => TransactionId::Reservation(hold.id),
            (None, None) => return None,
        };
        let mut coordinator =
            Self::numbered(names, names.coordinator_of(transaction), names.intent(transaction));
        coordinator.push_marks(names, request_id, hold.map(|hold| hold.id));
        if let Some(once) = once {
            (coordinator.content, coordinator.replays_max) = (once.content, once.replays_max);
        }
        Some(coordinator)
    }

    /// Of the settlement of a reservation.
    pub(crate) fn of_settlement(
        names: &KeyNamer,
        reservation: ReservationRef<'_>,
        adjustments: &[Adjustment<'_>],
    ) -> Self {
        let ReservationRef { id, request_id } = reservation;
        let transaction = request_id.map_or(TransactionId::Reservation(id), TransactionId::Request);
        let name = names.settlement(id, &settlement_content(adjustments));
        let mut coordinator = Self::numbered(names, names.coordinator_of(transaction), name);
        coordinator.push_marks(names, request_id, Some(id));
        coordinator
    }

    /// The name under which the coordinator of a request remembers its id.
    pub(crate) fn request_key(names: &KeyNamer, request_id: &[u8]) -> Vec<u8> {
        let mut name = names.coordinator(names.coordinator_of(TransactionId::Request(request_id)));
        names.push_request(request_id, &mut name);
        name
    }

    /// The coordinator with this number, to be asked about `name`.
    fn numbered(names: &KeyNamer, number: u8, name: IntentName) -> Self {
        let prefix = names.coordinator(number);
        let keys = [&b"intents"[..], b"deadlines"].map(|kind| [&prefix[..], kind].concat()).into();
        let (has_once, has_hold) = (false, false);
        Self { keys, name, has_once, has_hold, content: 0, replays_max: 0 }
    }

    fn push_marks(
        &mut self,
        names: &KeyNamer,
        request_id: Option<&[u8]>,
        hold: Option<ReservationId>,
    ) {
        let prefix_len = self.keys[0].len() - b"intents".len();
        let prefix = self.keys[0][..prefix_len].to_vec();
        (self.has_once, self.has_hold) = (request_id.is_some(), hold.is_some());
        if let Some(request_id) = request_id {
            let mut name = prefix.clone();
            names.push_request(request_id, &mut name);
            self.keys.push(name);
        }
        if let Some(id) = hold {
            let mut name = prefix;
            names.push_reservation(id, &mut name);
            self.keys.push(name);
        }
    }

    fn call(&self, task: IntentTask, write: impl FnOnce(&mut Blob)) -> ScriptCall {
        let mut blob = Blob::default();
        blob.bytes(&[task as u8, u8::from(self.has_once), u8::from(self.has_hold)]);
        write(&mut blob);
        let (keys, blob) = (self.keys.clone(), blob.into_bytes());
        ScriptCall { task: Task::Intent, kinds: KindSet::default(), keys, blob }
    }

    /// Notes what an attempt is about to charge, and how that is given back.
    pub(crate) fn begin(
        &self,
        names: &KeyNamer,
        entries: &[Entry<'_>],
        attempt: Attempt,
        times: IntentTimes,
        calls: &[PartCall],
    ) -> ScriptCall {
        self.call(IntentTask::Begin, |blob| {
            blob.bytes(&self.name);
            blob.bytes(&fingerprint(names, self.content, entries));
            blob.byte(self.replays_max);
            blob.bytes(&attempt.0);
            blob.numbers([micros(times.life), micros(times.drop_after)]);
            write_calls(calls, blob);
        })
    }

    /// Lets an attempt pass whose parts are all charged: `answers` are those of its entries.
    pub(crate) fn commit(
        &self,
        attempt: Attempt,
        once: Option<Once<'_>>,
        hold: Option<Hold>,
        answers: &[u8],
    ) -> ScriptCall {
        self.call(IntentTask::Commit, |blob| {
            blob.bytes(&self.name);
            blob.bytes(&attempt.0);
            blob.number(once.map_or(0, |once| micros(once.ttl)));
            blob.number(hold.map_or(0, |hold| micros(hold.ttl)));
            blob.bytes(answers);
        })
    }

    /// Forgets an attempt all of whose parts have been ended.
    pub(crate) fn remove(&self, attempt: Attempt) -> ScriptCall {
        self.call(IntentTask::Remove, |blob| {
            blob.bytes(&self.name);
            blob.bytes(&attempt.0);
        })
    }

    /// Takes an open reservation away, and notes how it is settled.
    pub(crate) fn settle(
        &self,
        forgets_request: bool,
        times: IntentTimes,
        calls: &[PartCall],
    ) -> ScriptCall {
        self.call(IntentTask::Settle, |blob| {
            blob.bytes(&self.name);
            blob.byte(u8::from(forgets_request));
            blob.numbers([micros(times.life), micros(times.drop_after)]);
            write_calls(calls, blob);
        })
    }
}

/// Asks the coordinator with this number for intents whose time is up, at most `count_max` of them. They are not
/// handed out again for `patience`.
pub(crate) fn claim(
    names: &KeyNamer,
    number: u8,
    patience: Duration,
    count_max: usize,
) -> ScriptCall {
    let coordinator = Coordinator::numbered(names, number, IntentName::default());
    coordinator.call(IntentTask::Claim, |blob| {
        blob.number(micros(patience));
        blob.count(count_max);
    })
}

impl OverdueIntent {
    /// Forgets it, once it is ended.
    pub(crate) fn remove(&self, names: &KeyNamer, number: u8) -> ScriptCall {
        Coordinator::numbered(names, number, self.name).remove(self.attempt)
    }
}

/// What tells one settlement of a reservation from another.
fn settlement_content(adjustments: &[Adjustment<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for adjustment in adjustments {
        bytes.extend((adjustment.key().len() as u64).to_le_bytes());
        bytes.extend(adjustment.key());
        bytes.extend(adjustment.stamp().to_le_bytes());
        let (is_refund, tokens) = match adjustment.due() {
            Due::Refund(tokens) => (1, tokens),
            Due::Overdraw(tokens) => (0, tokens),
        };
        bytes.push(is_refund);
        bytes.extend(tokens.to_le_bytes());
    }
    bytes
}

pub(crate) fn read_begin(bytes: &[u8]) -> Result<BeginReply, RedisStoreError> {
    Ok(match bytes {
        b"reused" => BeginReply::Reused,
        b"B" => BeginReply::Begun,
        b"P" => BeginReply::Pending,
        b"F" => BeginReply::Full,
        [reply::REPEATED, answers @ ..] => BeginReply::Answered(answers.to_vec()),
        _ => return Err(RedisStoreError::Garbled),
    })
}

/// True where the attempt has passed.
pub(crate) fn read_commit(bytes: &[u8]) -> Result<bool, RedisStoreError> {
    match bytes {
        b"C" => Ok(true),
        b"L" => Ok(false),
        _ => Err(RedisStoreError::Garbled),
    }
}

pub(crate) fn read_settle(bytes: &[u8]) -> Result<SettleReply, RedisStoreError> {
    Ok(match bytes {
        b"absent" => SettleReply::Absent,
        b"F" => SettleReply::Full,
        [b'S', attempt @ ..] => {
            let attempt = attempt.try_into().map_err(|_| RedisStoreError::Garbled)?;
            SettleReply::Open(Attempt(attempt))
        }
        _ => return Err(RedisStoreError::Garbled),
    })
}

/// True for the one caller whose call has removed the intent.
pub(crate) fn read_remove(bytes: &[u8]) -> bool {
    bytes == b"R"
}

pub(crate) fn read_claim(bytes: &[u8]) -> Result<Vec<OverdueIntent>, RedisStoreError> {
    let mut reader = Reader(bytes);
    let mut overdue = Vec::new();
    while reader.finish().is_err() {
        let (name, attempt) = (reader.take()?, Attempt(reader.take()?));
        // One that cannot be read must not keep the others from being ended.
        let calls = read_calls(reader.long_bytes()?).ok().flatten();
        overdue.push(OverdueIntent { name, attempt, calls });
    }
    Ok(overdue)
}

#[cfg(test)]
mod tests {
    use tollbar::Policy;

    use super::*;
    use crate::keys::KeyNames;

    fn names() -> KeyNamer {
        KeyNamer::new(None, KeyNames::Raw, None)
    }

    /// A process of another version reads what this one has written, or leaves it alone.
    #[test]
    fn calls_are_read_as_they_were_written() {
        let policy = Policy::token_bucket("10/s").unwrap();
        let entries = [Entry::new("a", &policy), Entry::new("a", &policy).with_cost(3)];
        let call = ScriptCall::cancel_part(&names(), &entries, Duration::from_mins(1)).unwrap();
        let attempt = Attempt([7; 16]);
        let expected = call.for_attempt(attempt);
        assert!(expected.keys.last().unwrap().ends_with(&b"07".repeat(16)));
        let mut blob = Blob::default();
        write_calls(&[call], &mut blob);
        let mut bytes = blob.into_bytes();
        let read = read_calls(&bytes).unwrap().unwrap();
        let [read] = &read[..] else { panic!("{} calls", read.len()) };
        let read = read.for_attempt(attempt);
        assert_eq!((&read.keys, &read.blob), (&expected.keys, &expected.blob));
        assert_eq!(read.kinds, expected.kinds);
        for len in 0..bytes.len() {
            assert!(read_calls(&bytes[..len]).is_err(), "{len} bytes are not all");
        }
        bytes[0] = CALLS_VERSION + 1;
        assert!(read_calls(&bytes).unwrap().is_none());
    }

    #[test]
    fn what_no_coordinator_says_is_an_error() {
        assert!(read_begin(b"").is_err() && read_begin(b"BB").is_err());
        assert!(read_commit(b"c").is_err());
        assert!(read_settle(b"Sshort").is_err());
        assert!(read_claim(b"x").is_err());
        assert!(read_claim(b"").unwrap().is_empty());
    }

    #[test]
    fn a_settlement_finds_the_coordinator_of_its_request() {
        let ttl = Duration::from_mins(1);
        let hold = Hold { id: ReservationId(7), ttl };
        for request_id in [None, Some(&b"r1"[..])] {
            let once = request_id.map(|request_id| Once::new(request_id, ttl));
            let request = Coordinator::of_request(&names(), once, Some(hold)).unwrap();
            let reservation = ReservationRef { id: hold.id, request_id };
            let settlement = Coordinator::of_settlement(&names(), reservation, &[]);
            assert_eq!(request.keys, settlement.keys);
            assert_ne!(request.name, settlement.name);
        }
        assert!(Coordinator::of_request(&names(), None, None).is_none());
    }
}
