//! How things are called in Redis: `tollbar1{subject}policy`.
//!
//! The 1 is the version of what is stored. Within the braces is what decides the slot of a cluster:
//! all counters of one key lie together. The subject is 84 bits of a keyed hash, because keys name
//! people, and a database is read by many: of a billion keys two share a counter with a probability of
//! 3 in a hundred million. The policy's part is 36 bits, which have to tell apart the few policies of one
//! key. A name is 30 bytes, the most that fit 32 in Redis: with its state, a counter of one word takes 88.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tollbar::Policy;
use tollbar::store::ReservationId;

/// The version of names, states and scripts. Another version has counters of its own.
const PREFIX: &str = "tollbar1";

/// So many slots share the requests whose counters are in several slots. Each process asks all of them once a
/// second, and a request is in the one that its name hashes to.
pub(crate) const COORDINATOR_COUNT: u8 = 16;

/// Six bits each.
pub(crate) const SUBJECT_CHARS: usize = 14;
const POLICY_CHARS: usize = 6;

/// How keys appear in Redis.
#[derive(Debug, Clone)]
pub enum KeyNames {
    /// As hashes under a secret.
    Hashed(FleetSecret),
    /// As they are: for whoever wants to read them there, and may.
    Raw,
}

/// The secret under which keys are hashed. Processes that share counters have the same one.
#[derive(Clone)]
pub struct FleetSecret([u8; 32]);

impl FleetSecret {
    /// Returns the secret of 32 random bytes, such as the output of `openssl rand 32`.
    #[must_use]
    pub const fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }
}

/// Which part of a key decides where in a cluster its counters are.
pub(crate) type Colocate = Arc<dyn Fn(&[u8]) -> &[u8] + Send + Sync>;

/// What a request with counters in several slots is known by.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TransactionId<'a> {
    /// Its id.
    Request(&'a [u8]),
    /// It has none, and is a reservation.
    Reservation(ReservationId),
}

impl TransactionId<'_> {
    fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Request(request_id) => [b"r", request_id].concat(),
            Self::Reservation(id) => [&b"h"[..], &id.0.to_le_bytes()].concat(),
        }
    }
}

/// What a coordinator calls something that is under way.
pub(crate) type IntentName = [u8; SUBJECT_CHARS];

/// Gives names.
#[derive(Clone)]
pub(crate) struct KeyNamer {
    prefix: String,
    form: KeyNames,
    colocate: Option<Colocate>,
}

impl KeyNamer {
    /// Returns true if different keys may be in one slot of a cluster.
    pub(crate) fn brings_keys_together(&self) -> bool {
        self.colocate.is_some()
    }

    pub(crate) fn new(namespace: Option<&str>, form: KeyNames, colocate: Option<Colocate>) -> Self {
        let prefix =
            namespace.map_or_else(|| PREFIX.to_owned(), |name| format!("{PREFIX}:{name}:"));
        Self { prefix, form, colocate }
    }

    pub(crate) fn with_namespace(&self, namespace: &str) -> Self {
        Self::new(Some(namespace), self.form.clone(), self.colocate.clone())
    }

    /// Of the counter of `key` under `policy`.
    pub(crate) fn counter(&self, key: &[u8], policy: &Policy) -> Vec<u8> {
        let mut name = self.tagged(key);
        if let Some(colocate) = &self.colocate
            && colocate(key) != key
        {
            // The braces hold only a part of the key, so it follows as a whole.
            self.push_subject(b'k', key, &mut name);
        }
        let policy = self.hash(b'p', &identity(policy));
        name.extend_from_slice(&policy[..POLICY_CHARS]);
        name
    }

    /// Of a request by its id; in a cluster, where it must be in the slot of a key.
    pub(crate) fn request(&self, slot_of: Option<&[u8]>, request_id: &[u8]) -> Vec<u8> {
        let mut name = slot_of.map_or_else(|| self.in_braces(&[]), |key| self.tagged(key));
        self.push_request(request_id, &mut name);
        name
    }

    /// Of a reservation; in a cluster, where it must be in the slot of a key.
    pub(crate) fn reservation(&self, slot_of: Option<&[u8]>, id: ReservationId) -> Vec<u8> {
        let mut name = slot_of.map_or_else(|| self.in_braces(&[]), |key| self.tagged(key));
        self.push_reservation(id, &mut name);
        name
    }

    /// Of what an attempt has charged in the slot of a key, without the attempt's own name.
    pub(crate) fn attempt(&self, slot_of: &[u8]) -> Vec<u8> {
        let mut name = self.tagged(slot_of);
        name.extend_from_slice(b"try:");
        name
    }

    /// Of everything that the coordinator with this number keeps: what all of its names begin with.
    pub(crate) fn coordinator(&self, number: u8) -> Vec<u8> {
        let mut name = self.prefix.clone().into_bytes();
        name.push(b'{');
        name.extend_from_slice(&self.hash(b'c', &[number]));
        name.push(b'}');
        name
    }

    /// The coordinator of a request that is remembered by its id or, without one, of a reservation.
    pub(crate) fn coordinator_of(&self, transaction: TransactionId<'_>) -> u8 {
        self.digest(b'q', &transaction.to_bytes()).as_bytes()[0] % COORDINATOR_COUNT
    }

    /// What its coordinator calls a request, among those that are under way.
    pub(crate) fn intent(&self, transaction: TransactionId<'_>) -> IntentName {
        self.hash(b'n', &transaction.to_bytes())
    }

    /// What its coordinator calls the settlement of a reservation, among those that are under way. Another
    /// settlement of the same reservation has another name.
    pub(crate) fn settlement(&self, id: ReservationId, content: &[u8]) -> IntentName {
        self.hash(b't', &[&id.0.to_le_bytes(), content].concat())
    }

    /// A request id as a part of a name.
    pub(crate) fn push_request(&self, request_id: &[u8], name: &mut Vec<u8>) {
        name.extend_from_slice(b"once:");
        self.push_subject(b'o', request_id, name);
    }

    /// A reservation as a part of a name.
    pub(crate) fn push_reservation(&self, id: ReservationId, name: &mut Vec<u8>) {
        name.extend_from_slice(b"hold:");
        name.extend_from_slice(&self.hash(b'h', &id.0.to_le_bytes()));
    }

    /// Of a key that a probe writes, in the slot of `tag`.
    pub(crate) fn probe(&self, tag: u32, id: u64) -> Vec<u8> {
        format!("{}{{{tag}}}probe:{id:016x}", self.prefix).into_bytes()
    }

    /// Of the key that says to which secret the namespace belongs.
    pub(crate) fn secret(&self) -> Vec<u8> {
        format!("{}secret", self.prefix).into_bytes()
    }

    /// What is known of the secret in Redis. It tells secrets apart, and nothing about them.
    pub(crate) fn secret_fingerprint(&self) -> [u8; SUBJECT_CHARS] {
        let form: &[u8] = match self.form {
            KeyNames::Raw => b"raw",
            KeyNames::Hashed(_) => b"hashed",
        };
        self.hash(b'i', form)
    }

    /// What all names begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What of a key decides its slot.
    pub(crate) fn tag<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        self.colocate.as_ref().map_or(key, |colocate| colocate(key))
    }

    /// What a name begins with that lies in the slot of `key`.
    fn tagged(&self, key: &[u8]) -> Vec<u8> {
        let tag = self.tag(key);
        // Of a name with `{}` in it, a cluster takes the whole for the slot, and each name of the key would lie apart.
        let is_empty_tag = tag.first().is_none_or(|byte| *byte == b'}');
        if is_empty_tag && matches!(self.form, KeyNames::Raw) {
            let hash = self.hash(b's', tag);
            // The last character is in no hash, so that this is the name of no other key.
            return [self.prefix.as_bytes(), b"{", &hash, b"}="].concat();
        }
        self.in_braces(tag)
    }

    /// What a name begins with: the prefix, and `tag` in braces.
    fn in_braces(&self, tag: &[u8]) -> Vec<u8> {
        let mut name = Vec::with_capacity(64);
        name.extend_from_slice(self.prefix.as_bytes());
        name.push(b'{');
        self.push_subject(b's', tag, &mut name);
        name.push(b'}');
        name
    }

    fn push_subject(&self, domain: u8, subject: &[u8], name: &mut Vec<u8>) {
        match self.form {
            KeyNames::Raw => name.extend_from_slice(subject),
            KeyNames::Hashed(_) => {
                name.extend_from_slice(&self.hash(domain, subject));
            }
        }
    }

    /// The hash of `bytes` as text; in each domain another one.
    fn hash(&self, domain: u8, bytes: &[u8]) -> [u8; SUBJECT_CHARS] {
        // Three bytes are four characters: twelve are enough, and fit.
        let mut text = [0; 16];
        let hash = self.digest(domain, bytes);
        let encoded = URL_SAFE_NO_PAD.encode_slice(&hash.as_bytes()[..12], &mut text);
        debug_assert_eq!(encoded, Ok(16));
        let mut subject = [0; SUBJECT_CHARS];
        subject.copy_from_slice(&text[..SUBJECT_CHARS]);
        subject
    }

    fn digest(&self, domain: u8, bytes: &[u8]) -> blake3::Hash {
        let secret = match &self.form {
            KeyNames::Hashed(FleetSecret(secret)) => secret,
            KeyNames::Raw => &[0; 32],
        };
        let mut hasher = blake3::Hasher::new_keyed(secret);
        hasher.update(&[domain]).update(bytes);
        hasher.finalize()
    }

    /// What has to be the same when a request id comes back.
    pub(crate) fn fingerprint(&self, question: &[u8]) -> [u8; 8] {
        let mut fingerprint = [0; 8];
        fingerprint.copy_from_slice(&self.hash(b'f', question)[..8]);
        fingerprint
    }
}

/// What makes counters comparable: the same as in every store.
fn identity(policy: &Policy) -> Vec<u8> {
    let algorithm = policy.algorithm();
    let mut bytes = Vec::with_capacity(128);
    bytes.extend_from_slice(algorithm.name().as_bytes());
    bytes.push(0);
    bytes.extend(algorithm.window_us().to_le_bytes());
    bytes.extend(algorithm.variant().to_le_bytes());
    bytes.extend_from_slice(policy.name().unwrap_or_default().as_bytes());
    bytes
}

impl fmt::Debug for KeyNamer {
    /// Without the secret, which would end up in a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KeyNamer").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl fmt::Debug for FleetSecret {
    /// Leaves the secret out, which would end up in a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FleetSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollbar::{Concurrency, Period, WarmUp};

    use super::*;

    fn policy(rate: &str) -> Policy {
        Policy::token_bucket(rate).unwrap()
    }

    fn hashed(secret: u8) -> KeyNamer {
        KeyNamer::new(None, KeyNames::Hashed(FleetSecret::new([secret; 32])), None)
    }

    fn slot_part(name: &[u8]) -> &[u8] {
        let text = std::str::from_utf8(name).unwrap();
        text.split(['{', '}']).nth(1).unwrap().as_bytes()
    }

    #[test]
    fn a_name_tells_the_secret_the_key_and_the_policy_apart_and_shows_none() {
        let name = hashed(1).counter(b"user:42", &policy("10/s"));
        assert_eq!(name.len(), 30);
        assert_eq!(name, hashed(1).counter(b"user:42", &policy("20/s")));
        assert_ne!(name, hashed(2).counter(b"user:42", &policy("10/s")));
        assert_ne!(name, hashed(1).counter(b"user:43", &policy("10/s")));
        assert_ne!(name, hashed(1).counter(b"user:42", &policy("10/min")));
        assert_ne!(name, hashed(1).counter(b"user:42", &policy("10/s").with_name("a")));
        assert!(!String::from_utf8(name).unwrap().contains("42"));
        assert!(
            !format!("{:?}{:?}", hashed(77), KeyNames::Hashed(FleetSecret::new([77; 32])))
                .contains("77")
        );
    }

    fn text(name: Vec<u8>) -> String {
        String::from_utf8(name).unwrap()
    }

    fn by_tenant() -> Colocate {
        Arc::new(|key| key.split(|byte| *byte == b'/').next().unwrap_or(key))
    }

    /// A counter or a mark under another name is a counter or a mark forgotten: after an upgrade, every
    /// client would have its limit once more, and every reservation would be lost.
    #[test]
    fn names_of_counters_stay_as_they_are() {
        let warm_up = WarmUp { start: 10, over: Duration::from_mins(1), steps: 3 };
        let table = [
            (policy("10/s"), "bdUeR6"),
            (policy("10/s").with_name("api"), "zOaVEP"),
            (policy("10/min"), "-sUWA0"),
            (Policy::leaky_bucket("10/s").unwrap(), "cYUpwW"),
            (Policy::leaky_queue("10/s", 5).unwrap(), "HVPlBH"),
            (Policy::fixed_window("10/s").unwrap(), "SSw5j5"),
            (Policy::fixed_window("10/s").and_then(Policy::with_stagger).unwrap(), "2Luxiz"),
            (Policy::calendar_window(10, Period::Day).unwrap(), "lz6xh4"),
            (Policy::calendar_window(10, Period::Week).unwrap(), "KiK6eJ"),
            (Policy::calendar_window(10, Period::Month).unwrap(), "At2D36"),
            (
                Policy::calendar_window(10, Period::Month)
                    .and_then(|policy| policy.with_utc_offset(60))
                    .unwrap(),
                "GBGq90",
            ),
            (Policy::sliding_window("10/s").unwrap(), "r8RhXp"),
            (Policy::sliding_window_strict("10/s", 10).unwrap(), "3f1Zrg"),
            (Policy::sliding_window_strict("10/s", 20).unwrap(), "SXbdfz"),
            (Policy::sliding_window_log("10/s").unwrap(), "7qLXkS"),
            (Concurrency::new(10).unwrap().into_policy(), "WvYcJD"),
            (
                Concurrency::new(10)
                    .and_then(|permits| permits.with_lease(Duration::from_secs(30)))
                    .map(Concurrency::into_policy)
                    .unwrap(),
                "7mhqUD",
            ),
            (policy("100/s").with_warm_up(warm_up).unwrap(), "cE7tQm"),
        ];
        for (policy, name) in table {
            let found = text(hashed(1).counter(b"user:42", &policy));
            assert_eq!(found, format!("tollbar1{{pWq6hwv5XIsIi9}}{name}"), "{policy:?}");
        }
    }

    #[test]
    fn names_of_marks_and_namespaces_stay_as_they_are() {
        let plain = hashed(1);
        let shop = plain.with_namespace("shop");
        let colocated =
            KeyNamer::new(None, KeyNames::Hashed(FleetSecret::new([1; 32])), Some(by_tenant()));
        let raw = KeyNamer::new(None, KeyNames::Raw, None);
        let raw_colocated = KeyNamer::new(None, KeyNames::Raw, Some(by_tenant()));
        let (key, id) = (&b"acme/42"[..], ReservationId(7));
        let bucket = policy("10/s");
        let table = [
            (plain.request(None, b"id"), "tollbar1{IPG2r9yzkdXlAM}once:_HzdJinbulYGR5"),
            (plain.request(Some(key), b"id"), "tollbar1{EIEnNZIChjzaY8}once:_HzdJinbulYGR5"),
            (plain.reservation(None, id), "tollbar1{IPG2r9yzkdXlAM}hold:inhy94H5CHuvj9"),
            (plain.reservation(Some(key), id), "tollbar1{EIEnNZIChjzaY8}hold:inhy94H5CHuvj9"),
            (
                plain.reservation(None, ReservationId(7 << 64)),
                "tollbar1{IPG2r9yzkdXlAM}hold:9BDyIqLtvLIXbu",
            ),
            (plain.fingerprint(b"question").to_vec(), "gvBALy2a"),
            (shop.counter(key, &bucket), "tollbar1:shop:{EIEnNZIChjzaY8}bdUeR6"),
            (shop.request(None, b"id"), "tollbar1:shop:{IPG2r9yzkdXlAM}once:_HzdJinbulYGR5"),
            (shop.reservation(None, id), "tollbar1:shop:{IPG2r9yzkdXlAM}hold:inhy94H5CHuvj9"),
            (colocated.counter(key, &bucket), "tollbar1{YidmflKjJDxwA-}REzdkmQvxO3wiYbdUeR6"),
            (colocated.counter(b"acme", &bucket), "tollbar1{YidmflKjJDxwA-}bdUeR6"),
            (colocated.request(Some(key), b"id"), "tollbar1{YidmflKjJDxwA-}once:_HzdJinbulYGR5"),
            (colocated.reservation(Some(key), id), "tollbar1{YidmflKjJDxwA-}hold:inhy94H5CHuvj9"),
            (raw.counter(key, &bucket), "tollbar1{acme/42}Wc_9AI"),
            (raw.request(None, b"id"), "tollbar1{}once:id"),
            (raw.request(Some(key), b"id"), "tollbar1{acme/42}once:id"),
            (raw.reservation(None, id), "tollbar1{}hold:5LQex1cSlFIW81"),
            (raw_colocated.counter(key, &bucket), "tollbar1{acme}acme/42Wc_9AI"),
            (raw.attempt(key), "tollbar1{acme/42}try:"),
        ];
        for (name, expected) in table {
            assert_eq!(text(name), expected);
        }
    }

    #[test]
    fn a_secret_is_told_apart_by_its_fingerprint() {
        let fingerprint = |secret: u8| hashed(secret).secret_fingerprint();
        assert_eq!(fingerprint(1), hashed(1).with_namespace("shop").secret_fingerprint());
        assert_ne!(fingerprint(1), fingerprint(2));
        let raw = KeyNamer::new(None, KeyNames::Raw, None).secret_fingerprint();
        // The secret of a fleet that chose zeros is still another one than none.
        assert!(raw != fingerprint(1) && raw != fingerprint(0));
        assert_eq!(text(hashed(1).with_namespace("shop").secret()), "tollbar1:shop:secret");
        assert_eq!(text(hashed(1).probe(7, 255)), "tollbar1{7}probe:00000000000000ff");
    }

    #[test]
    fn what_belongs_to_one_key_lies_in_one_slot() {
        let names = hashed(1);
        let slot = names.counter(b"user:42", &policy("10/s"));
        let others = [
            names.counter(b"user:42", &policy("10/min")),
            names.request(Some(b"user:42"), b"id"),
            names.reservation(Some(b"user:42"), ReservationId(7)),
        ];
        for other in &others {
            assert_eq!(slot_part(other), slot_part(&slot));
            assert_ne!(other, &slot);
        }
    }

    #[test]
    fn keys_may_share_a_slot_by_a_part_of_theirs() {
        let names =
            KeyNamer::new(None, KeyNames::Hashed(FleetSecret::new([1; 32])), Some(by_tenant()));
        let [one, two, other] =
            [&b"acme/1"[..], b"acme/2", b"else/1"].map(|key| names.counter(key, &policy("10/s")));
        assert_eq!(slot_part(&one), slot_part(&two));
        assert_ne!(one, two);
        assert_ne!(slot_part(&one), slot_part(&other));
    }

    /// A rule that counts all requests together has an empty key. Under raw names its requests with an id were refused by
    /// every cluster (`CROSSSLOT`), and so let through; so were those of a client that is called `}`.
    #[test]
    fn raw_names_of_one_key_lie_in_one_slot_whatever_the_key() {
        use crate::server::slot_map::slot_of;
        let names = KeyNamer::new(None, KeyNames::Raw, None);
        let mut counters = std::collections::BTreeSet::new();
        for key in [&b""[..], b"}", b"}x", b"{}", b"x}", b"x", &names.hash(b's', b"")] {
            let counter = names.counter(key, &policy("10/s"));
            let others = [
                names.attempt(key),
                names.request(Some(key), b"r"),
                names.reservation(Some(key), ReservationId(1)),
            ];
            for other in others {
                assert_eq!(slot_of(&other), slot_of(&counter), "{}", key.escape_ascii());
            }
            assert!(counters.insert(counter), "{}", key.escape_ascii());
        }
    }

    #[test]
    fn raw_names_can_be_read() {
        let names = KeyNamer::new(Some("shop"), KeyNames::Raw, None);
        let name = names.counter(b"user:42", &policy("10/s"));
        assert!(String::from_utf8(name).unwrap().starts_with("tollbar1:shop:{user:42}"));
    }
}
