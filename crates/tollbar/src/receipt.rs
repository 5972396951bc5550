//! What a reservation leaves with whoever made it: all that is needed to settle it, and proof that
//! nobody has changed it.
//!
//! A receipt can be kept, sent elsewhere as text, and settled by any limiter that has the same
//! store and the same key. It holds what was charged to whom under which numbers; the store holds no
//! more than its name, which the first to settle it takes away.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use thiserror::Error;

use crate::Policy;
use crate::policy::code::{read_bytes, read_number, write_bytes, write_number};
use crate::store::{Entry, ReservationId, ReservationRef};

/// A reservation that can be settled once. As text: letters, digits, `-` and `_`.
#[derive(Clone, PartialEq, Eq)]
pub struct Receipt {
    bytes: Box<[u8]>,
}

/// The key under which receipts are authenticated. Limiters that settle each other's receipts have
/// the same one.
#[derive(Clone)]
pub struct ReceiptKey([u8; 32]);

/// What a receipt says, once it is known to be ours.
///
/// For whoever sends batches to a store himself; a [`Limiter`](crate::Limiter) reads its own.
#[derive(Debug)]
#[non_exhaustive]
pub struct Content {
    /// What the store calls the reservation.
    pub id: ReservationId,
    /// The id that the store remembers the request by. It is forgotten when something comes back.
    pub request_id: Option<Box<[u8]>>,
    /// Bytes of the limiter's own, which the receipt carries along; usually none.
    pub note: Box<[u8]>,
    /// What was charged, in the order of the entries.
    pub charges: Vec<Charge>,
}

/// One charge of a reservation.
#[derive(Debug)]
#[non_exhaustive]
pub struct Charge {
    /// To whom.
    pub key: Box<[u8]>,
    /// Under which numbers.
    pub policy: Policy,
    /// How many tokens.
    pub reserved: u64,
    /// What the request's own cost was multiplied by.
    pub factor: u64,
    /// What the store calls the charge.
    pub stamp: u64,
}

/// Why there is no receipt, or why one is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// Not the text of a receipt.
    #[error("this is no receipt: send the text exactly as it was given out")]
    Malformed,
    /// Changed, or from a limiter with another key.
    #[error(
        "this receipt was not given out here: send it unchanged, and give all limiters that settle \
         each other's receipts the same receipt key"
    )]
    NotOurs,
    /// A custom algorithm cannot be written down.
    #[error(
        "`{algorithm}` is a custom algorithm, which a receipt cannot hold: charge it by `check`"
    )]
    CustomAlgorithm {
        /// Its name.
        algorithm: &'static str,
    },
    /// The keys are too long.
    #[error(
        "the receipt would be longer than {RECEIPT_BYTES_MAX} bytes: use shorter keys, or hashes of \
         them"
    )]
    TooLong,
}

/// The longest receipt, in bytes; its text is a third longer.
pub const RECEIPT_BYTES_MAX: usize = 48 * 1024;

/// With a note. Without one a receipt is of the version before, which earlier releases read as well.
const VERSION_WITH_NOTE: u8 = 4;
const VERSION: u8 = 3;

/// The version before, without the request id. Its receipts may still be open.
const VERSION_WITHOUT_REQUEST_ID: u8 = 2;

/// What is hashed begins with what it is, so that no request id and no purpose passes for a receipt.
const REQUEST: u8 = 0;
const PURPOSE: u8 = u8::MAX;

/// Of the MAC, as much as goes into a receipt: forging one takes 2^128 attempts.
const MAC_BYTES: usize = 16;

/// The longest number, such as a stamp.
const NUMBER_BYTES_MAX: usize = 10;

impl ReceiptKey {
    /// 32 secret bytes, such as the output of `openssl rand 32`.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A key that no other limiter has.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    fn mac(&self, body: &[u8]) -> [u8; MAC_BYTES] {
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(&blake3::keyed_hash(&self.0, body).as_bytes()[..MAC_BYTES]);
        mac
    }

    /// Another key, which who has this one and knows the purpose can make as well. What is signed under
    /// one is not accepted under the other.
    #[must_use]
    pub fn for_purpose(&self, purpose: &str) -> Self {
        let mut keyed = Vec::with_capacity(purpose.len() + 1);
        keyed.push(PURPOSE);
        keyed.extend_from_slice(purpose.as_bytes());
        Self(*blake3::keyed_hash(&self.0, &keyed).as_bytes())
    }

    /// The name of the reservation that a request with this id makes: always the same, so that a
    /// request sent twice gets the same receipt twice.
    #[must_use]
    pub fn id_of_request(&self, request_id: &[u8]) -> ReservationId {
        let mut keyed = Vec::with_capacity(request_id.len() + 1);
        keyed.push(REQUEST);
        keyed.extend_from_slice(request_id);
        ReservationId(u128::from_le_bytes(self.mac(&keyed)))
    }

    /// The same comparison however many bytes are right, so that its time tells nothing.
    fn verify(&self, body: &[u8], mac: &[u8]) -> bool {
        let expected = self.mac(body);
        let difference =
            expected.iter().zip(mac).fold(0, |sum, (ours, theirs)| sum | (ours ^ theirs));
        mac.len() == MAC_BYTES && difference == 0
    }
}

impl fmt::Debug for ReceiptKey {
    /// Without the key, which is a secret and would end up in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReceiptKey(..)")
    }
}

/// A receipt in the making: all but the stamps is known, and checked, before anything is charged.
#[derive(Debug)]
pub struct Draft {
    /// All that comes before the charges but their number.
    head: Vec<u8>,
    /// Each entry's key, policy, cost and factor.
    entries: Vec<Vec<u8>>,
}

impl Draft {
    /// Of the entries that are to be charged, each with what the request's own cost was multiplied by.
    pub fn new<'a, 'e: 'a>(
        reservation: ReservationRef<'_>,
        entries: impl IntoIterator<Item = (&'a Entry<'e>, u64)>,
    ) -> Result<Self, ReceiptError> {
        let write = |(entry, factor): (&Entry<'_>, u64)| {
            let mut bytes = Vec::new();
            write_charge(&mut bytes, entry.key, entry.policy, entry.cost, factor)?;
            Ok(bytes)
        };
        let entries = entries.into_iter().map(write).collect::<Result<Vec<_>, ReceiptError>>()?;
        let len: usize = entries.iter().map(|entry| entry.len() + NUMBER_BYTES_MAX).sum();
        let head = write_head(reservation);
        if len + head.len() + NUMBER_BYTES_MAX + MAC_BYTES > RECEIPT_BYTES_MAX {
            return Err(ReceiptError::TooLong);
        }
        Ok(Self { head, entries })
    }

    /// The receipt, once the store has charged `entries`, which are those of the draft. A shadow that
    /// denied has paid nothing, and is not on it.
    #[must_use]
    pub fn sign(self, entries: &[Entry<'_>], key: &ReceiptKey) -> Receipt {
        let charged = self.entries.iter().zip(entries).filter(|(_, entry)| entry.is_paid());
        let mut bytes = self.head;
        write_number(&mut bytes, charged.clone().count() as u64);
        for (draft, entry) in charged {
            bytes.extend_from_slice(draft);
            write_number(&mut bytes, entry.stamp);
        }
        Receipt::signed(bytes, key)
    }
}

fn write_head(reservation: ReservationRef<'_>) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&reservation.id.0.to_le_bytes());
    write_number(&mut bytes, u64::from(reservation.request_id.is_some()));
    if let Some(request_id) = reservation.request_id {
        write_bytes(&mut bytes, request_id);
    }
    bytes
}

/// Writes everything about a charge but its stamp.
fn write_charge(
    bytes: &mut Vec<u8>,
    key: &[u8],
    policy: &Policy,
    cost: u64,
    factor: u64,
) -> Result<(), ReceiptError> {
    write_bytes(bytes, key);
    if !policy.write_code(bytes) {
        return Err(ReceiptError::CustomAlgorithm { algorithm: policy.algorithm().name() });
    }
    write_number(bytes, cost);
    write_number(bytes, factor);
    Ok(())
}

impl Receipt {
    fn signed(mut bytes: Vec<u8>, key: &ReceiptKey) -> Self {
        let mac = key.mac(&bytes);
        bytes.extend_from_slice(&mac);
        Self { bytes: bytes.into() }
    }

    /// What it says, if it was given out under `key`.
    pub fn content(&self, key: &ReceiptKey) -> Result<Content, ReceiptError> {
        let body_len = self.bytes.len().checked_sub(MAC_BYTES).ok_or(ReceiptError::Malformed)?;
        let (body, mac) = self.bytes.split_at(body_len);
        if !key.verify(body, mac) {
            return Err(ReceiptError::NotOurs);
        }
        Content::read(body).ok_or(ReceiptError::Malformed)
    }
}

impl Content {
    /// Writes it down under `key`.
    pub fn sign(&self, key: &ReceiptKey) -> Result<Receipt, ReceiptError> {
        let mut bytes = write_head(self.reservation());
        if !self.note.is_empty() {
            bytes[0] = VERSION_WITH_NOTE;
            write_bytes(&mut bytes, &self.note);
        }
        write_number(&mut bytes, self.charges.len() as u64);
        for Charge { key, policy, reserved, factor, stamp } in &self.charges {
            write_charge(&mut bytes, key, policy, *reserved, *factor)?;
            write_number(&mut bytes, *stamp);
        }
        if bytes.len() + MAC_BYTES > RECEIPT_BYTES_MAX {
            return Err(ReceiptError::TooLong);
        }
        Ok(Receipt::signed(bytes, key))
    }

    /// What the store settles it by.
    #[must_use]
    pub fn reservation(&self) -> ReservationRef<'_> {
        ReservationRef { id: self.id, request_id: self.request_id.as_deref() }
    }

    fn read(body: &[u8]) -> Option<Self> {
        let (&[version], mut rest) = body.split_first_chunk()?;
        let id;
        (id, rest) = rest.split_first_chunk()?;
        let rest = &mut rest;
        let request_id = match version {
            VERSION_WITHOUT_REQUEST_ID => None,
            VERSION | VERSION_WITH_NOTE => match read_number(rest)? {
                0 => None,
                1 => Some(read_bytes(rest)?.into()),
                _ => return None,
            },
            _ => return None,
        };
        let note =
            if version == VERSION_WITH_NOTE { read_bytes(rest)?.into() } else { Box::default() };
        let mut charges = Vec::new();
        for _ in 0..read_number(rest)? {
            charges.push(Charge {
                key: read_bytes(rest)?.into(),
                policy: Policy::read_code(rest)?,
                reserved: read_number(rest)?,
                factor: read_number(rest)?,
                stamp: read_number(rest)?,
            });
        }
        let id = ReservationId(u128::from_le_bytes(*id));
        rest.is_empty().then_some(Self { id, request_id, note, charges })
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(&self.bytes))
    }
}

impl FromStr for Receipt {
    type Err = ReceiptError;

    /// Reads the text of a receipt. Whether it is ours is seen when it is settled.
    fn from_str(text: &str) -> Result<Self, ReceiptError> {
        if text.len() > RECEIPT_BYTES_MAX / 3 * 4 {
            return Err(ReceiptError::Malformed);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| ReceiptError::Malformed)?;
        Ok(Self { bytes: bytes.into() })
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receipt({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body() -> Vec<u8> {
        let policy = Policy::token_bucket("100/min").unwrap().with_name("tokens");
        let mut entry = Entry::new("user:42", &policy).with_cost(30);
        entry.stamp = 1_700_000_000_000_000;
        entry.decision =
            Some(crate::Decision::new(crate::Outcome::Allow, 100, 70, crate::Timestamp::ZERO));
        let key = ReceiptKey::new([7; 32]);
        let entries = [entry];
        let reservation = ReservationRef { id: ReservationId(5), request_id: Some(b"r1") };
        let draft = Draft::new(reservation, entries.iter().map(|entry| (entry, 3))).unwrap();
        let mut bytes = draft.sign(&entries, &key).bytes.into_vec();
        bytes.truncate(bytes.len() - MAC_BYTES);
        bytes
    }

    #[test]
    fn a_receipt_reads_as_it_was_written() {
        let content = Content::read(&body()).unwrap();
        assert_eq!((content.id, content.charges.len()), (ReservationId(5), 1));
        assert_eq!(content.request_id.as_deref(), Some(&b"r1"[..]));
        let charge = &content.charges[0];
        assert_eq!((&*charge.key, charge.reserved, charge.factor), (&b"user:42"[..], 30, 3));
        assert_eq!(charge.stamp, 1_700_000_000_000_000);
        assert_eq!((charge.policy.limit(), charge.policy.name()), (100, Some("tokens")));
    }

    /// Receipts outlive an upgrade: they are in the hands of clients.
    #[test]
    fn a_receipt_of_the_version_before_is_read() {
        let mut bytes = body();
        bytes[0] = VERSION_WITHOUT_REQUEST_ID;
        // The flag, the length and the text of the request id.
        bytes.drain(17..21);
        let content = Content::read(&bytes).unwrap();
        assert_eq!((content.id, content.charges.len()), (ReservationId(5), 1));
        assert_eq!(content.request_id, None);
        bytes[0] = VERSION_WITH_NOTE + 1;
        assert!(Content::read(&bytes).is_none());
    }

    #[test]
    fn a_note_is_carried_along_and_costs_nothing_where_there_is_none() {
        let key = ReceiptKey::new([7; 32]);
        let mut content = Content::read(&body()).unwrap();
        let without = content.sign(&key).unwrap();
        assert_eq!(without.bytes[..without.bytes.len() - MAC_BYTES], body());
        content.note = Box::from(&b"whose"[..]);
        let with = content.sign(&key).unwrap();
        assert_eq!(with.bytes.len(), without.bytes.len() + 6);
        let content = with.content(&key).unwrap();
        assert_eq!((&*content.note, content.charges.len()), (&b"whose"[..], 1));
    }

    #[test]
    fn a_receipt_is_accepted_for_its_purpose_only() {
        let key = ReceiptKey::new([7; 32]);
        let no_entries: [Entry<'_>; 0] = [];
        let draft = || Draft::new(ReservationId(5).into(), []).unwrap();
        let lease = draft().sign(&no_entries, &key.for_purpose("lease"));
        assert!(lease.content(&key.for_purpose("lease")).is_ok());
        assert_eq!(lease.content(&key).unwrap_err(), ReceiptError::NotOurs);
        assert_eq!(lease.content(&key.for_purpose("other")).unwrap_err(), ReceiptError::NotOurs);
        let receipt = draft().sign(&no_entries, &key);
        assert_eq!(receipt.content(&key.for_purpose("lease")).unwrap_err(), ReceiptError::NotOurs);
    }

    proptest! {
        /// What another version may have signed: read or refused, never a panic.
        #[test]
        fn any_signed_bytes_are_read_or_refused(
            at in 0_usize..60, byte: u8, cut in 0_usize..80, noise: Vec<u8>,
        ) {
            let mut changed = body();
            if let Some(place) = changed.get_mut(at) {
                *place = byte;
            }
            let _ = Content::read(&changed);
            changed.truncate(cut);
            let _ = Content::read(&changed);
            let _ = Content::read(&noise);
        }
    }
}
