//! Wrong tokens: limited by address, counted by listener, and logged. Every listener shares one [`AuthFailures`].
//! Which tokens are right is the listeners' business; a right one is never held back for the wrong ones of others.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tollbar::{Limiter, Outcome, Policy};
use tracing::warn;

use crate::net::Peer;

/// Wrong tokens of one address that begin alike.
const PER_PREFIX: &str = "10/min";
/// All wrong tokens of one address.
const PER_ADDRESS: &str = "300/min";
/// Lines of the log about wrong tokens, of all addresses. The metric counts every one.
const LOG_LINES: &str = "60/min";

/// Addresses, and prefixes of addresses, that are counted at once.
const KEYS_MAX: usize = 10_000;

/// How much of a token is its prefix: `tbar_` and four digits, too little to be of use to anybody.
const PREFIX_BYTES: usize = 9;

/// Listeners that take tokens, as the metric names them.
pub(crate) const LISTENERS: [&str; 5] = ["http", "forward_auth", "grpc", "resp", "admin"];

/// Counts wrong tokens, in bounded memory.
#[derive(Debug)]
pub struct AuthFailures {
    per_prefix: Limiter,
    per_address: Limiter,
    log_lines: Limiter,
    counts: [AtomicU64; LISTENERS.len()],
}

/// A token that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongToken {
    /// After how many seconds another one is looked at, where there were too many.
    pub retry_after_s: Option<u64>,
}

impl Default for AuthFailures {
    fn default() -> Self {
        let limiter = |limit: &str, keys_max: usize| {
            let policy = Policy::token_bucket(limit).expect("the limit is part of the program");
            let limiter = Limiter::builder(policy).max_keys(keys_max).build();
            limiter.expect("a store of its own needs no name")
        };
        Self {
            per_prefix: limiter(PER_PREFIX, KEYS_MAX),
            per_address: limiter(PER_ADDRESS, KEYS_MAX),
            log_lines: limiter(LOG_LINES, 1),
            counts: <[AtomicU64; LISTENERS.len()]>::default(),
        }
    }
}

impl AuthFailures {
    /// Returns after how many seconds a token may be looked up, where too many wrong ones came from the address
    /// or began alike.
    pub fn retry_after_s(&self, peer: Peer, token: &[u8]) -> Option<u64> {
        let is_used_up = |limiter: &Limiter, key: &[u8]| limiter.peek(key).remaining() == Some(0);
        let prefix = prefix(peer, token);
        let address = &prefix[..16];
        if is_used_up(&self.per_prefix, &prefix) {
            return charge(&self.per_prefix, &prefix);
        }
        is_used_up(&self.per_address, address).then(|| charge(&self.per_address, address))?
    }

    /// Counts and logs a wrong token.
    pub fn record(
        &self,
        listener: &'static str,
        peer: Peer,
        token: &[u8],
        why: &str,
    ) -> WrongToken {
        let index = LISTENERS.iter().position(|name| *name == listener);
        let failures = index.map(|index| self.counts[index].fetch_add(1, Ordering::Relaxed) + 1);
        // A client that repeats one wrong token does not use up what its address has.
        let prefix = prefix(peer, token);
        let retry_after_s =
            charge(&self.per_prefix, &prefix).or_else(|| charge(&self.per_address, &prefix[..16]));
        if retry_after_s.is_none() && charge(&self.log_lines, b"").is_none() {
            warn!(%peer, listener, why, failures, "a token was refused");
        }
        WrongToken { retry_after_s }
    }

    /// Returns how many wrong tokens each listener was sent.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        LISTENERS.into_iter().zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// Returns how many seconds are to be waited for the limit, if it denies.
fn charge(limiter: &Limiter, key: &[u8]) -> Option<u64> {
    match limiter.check(key).outcome() {
        Outcome::Allow => None,
        Outcome::Deny { retry_after_us } => Some(retry_after_us.div_ceil(1_000_000).max(1)),
        _ => Some(1),
    }
}

/// Returns the address, of IPv6 the network that one customer has, and behind it how the token begins.
fn prefix(peer: Peer, token: &[u8]) -> Vec<u8> {
    let mut octets = match peer {
        Peer::Unix => [0; 16],
        Peer::Tcp(peer) => match peer.ip().to_canonical() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => {
                let mut octets = address.octets();
                octets[8..].fill(0);
                octets
            }
        },
    }
    .to_vec();
    octets.extend_from_slice(&token[..token.len().min(PREFIX_BYTES)]);
    octets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::Tcp(address.parse().unwrap())
    }

    fn is_too_many(failures: &AuthFailures, from: &str, token: &[u8]) -> bool {
        failures.record("http", peer(from), token, "test").retry_after_s.is_some()
    }

    #[test]
    fn ten_wrong_tokens_that_begin_alike_are_told_so_and_others_of_the_address_too() {
        let failures = AuthFailures::default();
        assert!((0..10).all(|_| !is_too_many(&failures, "203.0.113.7:1", b"tbar_0000a")));
        assert!(is_too_many(&failures, "[::ffff:203.0.113.7]:2", b"tbar_0000b"));
        assert!(failures.retry_after_s(peer("203.0.113.7:1"), b"tbar_0000c").is_some());
        assert_eq!(failures.retry_after_s(peer("203.0.113.7:1"), b"tbar_1000c"), None);
        assert_eq!(failures.retry_after_s(peer("203.0.113.8:1"), b"tbar_0000c"), None);
        // One customer has a whole network of IPv6 addresses.
        assert!((0..10).all(|_| !is_too_many(&failures, "[2001:db8:1:2::1]:1", b"x")));
        assert!(is_too_many(&failures, "[2001:db8:1:2:ffff::9]:1", b"x"));
        assert!(!is_too_many(&failures, "[2001:db8:1:3::1]:1", b"x"));
        assert_eq!(failures.counts().next(), Some(("http", 23)));
    }

    #[test]
    fn an_address_that_never_repeats_itself_has_three_hundred() {
        let failures = AuthFailures::default();
        let denied = (0..400).filter(|number| {
            is_too_many(&failures, "203.0.113.7:1", format!("tbar_{number:04}").as_bytes())
        });
        // A few come back while the test runs.
        assert!((80..=100).contains(&denied.count()));
        assert!(failures.retry_after_s(peer("203.0.113.7:1"), b"tbar_ffff").is_some());
        assert_eq!(failures.retry_after_s(peer("203.0.113.8:1"), b"tbar_ffff"), None);
    }
}
