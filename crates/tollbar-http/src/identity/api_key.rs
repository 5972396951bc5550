//! API keys, which are secrets: hashed before they go anywhere.
//!
//! A key that nobody checks is a name of the client's own choice, and whoever chooses a new one for
//! every request has a new counter for every request. So there is no way to read keys without saying
//! who checks them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use arrayvec::ArrayString;
use http::{HeaderMap, HeaderName};

use super::{VALUE_BYTES_MAX, bearer, only};

/// A hash in digits: 128 bits, so that no two keys ever share one.
type Hash = ArrayString<32>;

type VerifyHash = dyn Fn(&str) -> bool + Send + Sync;

/// Which API keys there are, and where requests have them.
///
/// The attribute `api_key` is the name of a [known](Self::known) key, and of any other its hash,
/// 32 hexadecimal digits: see [`hash`](Self::hash).
#[derive(Clone)]
pub struct ApiKeys {
    header: Option<HeaderName>,
    is_bearer: bool,
    secret: [u8; 32],
    verification: KeyVerification,
}

/// How a key is verified.
#[derive(Clone)]
enum KeyVerification {
    /// Shared by clones, so that one change is in force in all of them.
    Known(Arc<ArcSwap<KnownKeys>>),
    Callback(Arc<VerifyHash>),
    Upstream,
}

/// Keys with their names, and the names by the keys' hashes.
struct KnownKeys {
    raw: Vec<(Box<str>, Box<str>)>,
    names: HashMap<Hash, Arc<str>>,
}

/// What a key is called in rules.
#[derive(Debug)]
pub(super) enum Subject {
    Name(Arc<str>),
    Hash(Hash),
}

impl ApiKeys {
    /// These keys, each with the name by which rules know it, and no others.
    ///
    /// ```
    /// use tollbar_http::ApiKeys;
    /// // Rules may say `exempt: [{ api_key: internal }]`.
    /// let keys = ApiKeys::known([("internal", "k-8f3a"), ("partner", "k-77b1")]);
    /// # let _ = keys;
    /// ```
    #[must_use]
    pub fn known<N: AsRef<str>, K: AsRef<str>>(keys: impl IntoIterator<Item = (N, K)>) -> Self {
        let none = KnownKeys { raw: Vec::new(), names: HashMap::new() };
        let api_keys = Self::new(KeyVerification::Known(Arc::new(ArcSwap::from_pointee(none))));
        api_keys.replace(keys);
        api_keys
    }

    /// Puts these [known](Self::known) keys in force in place of the ones before, here and in every clone. Keys
    /// that somebody else verifies stay as they are.
    pub fn replace<N: AsRef<str>, K: AsRef<str>>(&self, keys: impl IntoIterator<Item = (N, K)>) {
        if let KeyVerification::Known(known) = &self.verification {
            let raw =
                keys.into_iter().map(|(name, key)| (name.as_ref().into(), key.as_ref().into()));
            known.store(Arc::new(self.name_keys(raw.collect())));
        }
    }

    /// Those keys whose hash `is_key` knows. Others are as good as none: their senders are counted by
    /// the next link of the chain.
    #[must_use]
    pub fn verify_hash_with(is_key: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self::new(KeyVerification::Callback(Arc::new(is_key)))
    }

    /// All keys: a layer or a proxy in front of this one turns away requests with keys that are none.
    /// Where nobody does, a client can invent one for every request and is not limited at all.
    #[must_use]
    pub fn verified_upstream() -> Self {
        Self::new(KeyVerification::Upstream)
    }

    fn new(verification: KeyVerification) -> Self {
        let secret = blake3::derive_key("tollbar 2026 API keys", b"");
        let header = Some(HeaderName::from_static("x-api-key"));
        Self { header, is_bearer: false, secret, verification }
    }

    /// In another header than `X-Api-Key`.
    #[must_use]
    pub fn header(self, name: HeaderName) -> Self {
        Self { header: Some(name), ..self }
    }

    /// Also, where the header is not there, in `Authorization: Bearer`.
    #[must_use]
    pub fn bearer(self) -> Self {
        Self { is_bearer: true, ..self }
    }

    /// Hashes with a secret, so that hashes that leak cannot be tried against guesses. All nodes
    /// that share a store need the same one.
    #[must_use]
    pub fn secret(mut self, secret: [u8; 32]) -> Self {
        self.secret = secret;
        if let KeyVerification::Known(known) = &self.verification {
            let named = self.name_keys(known.load().raw.clone());
            self.verification = KeyVerification::Known(Arc::new(ArcSwap::from_pointee(named)));
        }
        self
    }

    /// What stands for a key wherever it goes.
    #[must_use]
    pub fn hash(&self, key: &str) -> String {
        self.hash_digits(key).to_string()
    }

    fn hash_digits(&self, key: &str) -> Hash {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let hash = blake3::keyed_hash(&self.secret, key.as_bytes());
        let mut digits = Hash::new();
        for byte in &hash.as_bytes()[..16] {
            digits.push(char::from(DIGITS[usize::from(byte >> 4)]));
            digits.push(char::from(DIGITS[usize::from(byte & 0xf)]));
        }
        digits
    }

    fn name_keys(&self, raw: Vec<(Box<str>, Box<str>)>) -> KnownKeys {
        let names = raw.iter().map(|(name, key)| (self.hash_digits(key), Arc::from(&**name)));
        let names = names.collect();
        KnownKeys { raw, names }
    }

    /// What the key of a request is called, if it has one that is one.
    pub(super) fn subject(&self, headers: &HeaderMap) -> Option<Subject> {
        let in_header = self.header.as_ref().and_then(|name| only(headers, name));
        let key = in_header.or_else(|| self.is_bearer.then(|| bearer(headers))?)?;
        if !(1..=VALUE_BYTES_MAX).contains(&key.len()) {
            return None;
        }
        let hash = self.hash_digits(key);
        match &self.verification {
            KeyVerification::Known(known) => {
                known.load().names.get(&hash).cloned().map(Subject::Name)
            }
            KeyVerification::Callback(is_key) => is_key(&hash).then_some(Subject::Hash(hash)),
            KeyVerification::Upstream => Some(Subject::Hash(hash)),
        }
    }
}

impl Subject {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Hash(hash) => hash,
        }
    }
}

impl fmt::Debug for ApiKeys {
    /// Without keys and secrets, which would end up in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKeys")
            .field("header", &self.header)
            .field("is_bearer", &self.is_bearer)
            .finish_non_exhaustive()
    }
}
