//! What things are called in a backend.

use std::fmt;

use super::backend::CounterKey;
use crate::Policy;
use crate::store::{Entry, ReservationId};

/// Gives keys under a secret. The same secret and namespace give the same keys in every process.
#[derive(Clone)]
pub(super) struct BackendKeys {
    secret: [u8; 32],
    namespace: String,
}

/// Keeps the different kinds of keys apart.
#[derive(Clone, Copy)]
enum Domain {
    Counter = 1,
    Request = 2,
    Reservation = 3,
    Fingerprint = 4,
}

impl BackendKeys {
    pub(super) fn new(secret: [u8; 32]) -> Self {
        Self { secret, namespace: String::new() }
    }

    pub(super) fn with_namespace(self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self }
    }

    /// Of the counter of `key` under `policy`: a changed limit keeps it, another name, algorithm or
    /// window has another.
    pub(super) fn counter(&self, key: &[u8], policy: &Policy) -> CounterKey {
        let algorithm = policy.algorithm();
        let numbers = [algorithm.window_us(), algorithm.variant()].map(u64::to_le_bytes);
        let name = policy.name().unwrap_or_default().as_bytes();
        let [window, variant] = &numbers;
        self.key(Domain::Counter, &[algorithm.name().as_bytes(), window, variant, name, key])
    }

    pub(super) fn request(&self, request_id: &[u8]) -> CounterKey {
        self.key(Domain::Request, &[request_id])
    }

    pub(super) fn reservation(&self, id: ReservationId) -> CounterKey {
        self.key(Domain::Reservation, &[&id.0.to_le_bytes()])
    }

    /// What has to be the same when a request id comes back: the content, the counters, costs and roles.
    pub(super) fn fingerprint(
        &self,
        content: u128,
        entries: &[Entry<'_>],
        counters: &[CounterKey],
    ) -> u64 {
        let mut bytes = Vec::with_capacity(16 + entries.len() * 25);
        bytes.extend(content.to_le_bytes());
        for (entry, counter) in entries.iter().zip(counters) {
            bytes.extend(counter.as_bytes());
            bytes.extend(entry.cost.to_le_bytes());
            entry.write_role(&mut bytes);
        }
        let hash = self.key(Domain::Fingerprint, &[&bytes]);
        let (words, _) = hash.as_bytes().as_chunks();
        u64::from_le_bytes(words[0])
    }

    fn key(&self, domain: Domain, parts: &[&[u8]]) -> CounterKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&[domain as u8]);
        for part in [self.namespace.as_bytes()].iter().chain(parts) {
            // With its length, so that no two lists of parts look the same.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        CounterKey::from_bytes(key)
    }
}

impl fmt::Debug for BackendKeys {
    /// Without the secret, which would end up in a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BackendKeys")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_secret_namespace_key_and_policy_apart() {
        let policy = |rate: &str| Policy::token_bucket(rate).unwrap();
        let backend_keys = |secret| BackendKeys::new([secret; 32]);
        let key = backend_keys(1).counter(b"user:42", &policy("10/s"));
        assert_eq!(key, backend_keys(1).counter(b"user:42", &policy("20/s")));
        let others = [
            backend_keys(2).counter(b"user:42", &policy("10/s")),
            backend_keys(1).with_namespace("a").counter(b"user:42", &policy("10/s")),
            backend_keys(1).counter(b"user:43", &policy("10/s")),
            backend_keys(1).counter(b"user:42", &policy("10/min")),
            backend_keys(1).counter(b"user:42", &policy("10/s").with_name("a")),
            backend_keys(1).counter(b"user:42", &Policy::leaky_bucket("10/s").unwrap()),
            backend_keys(1).request(b"user:42"),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(key, *other, "{at}");
        }
        assert!(!format!("{:?}", backend_keys(77)).contains("77"));
    }
}
