//! Authentication: tokens are looked up by their hash, cached for a moment, and wrong ones are limited
//! by address. What a known token may do is [`access`](super::access)'s business.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollbar::{Limiter, Outcome, Policy, Timestamp};
use tracing::warn;

use super::access::Actor;
use super::credential::TokenHash;
use crate::database::{Repository, TokenRow};
use tollbar_daemon::net::Peer;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::tasks::spawn_short;

/// How long a valid token is cached: one that is revoked on any node is worth nothing
/// on all of them within a second.
const CACHED_FOR: Duration = Duration::from_millis(500);

/// Tokens that are cached at once.
const CACHED_MAX: usize = 1_024;

/// A use is written down if the last one that was is so long ago.
const USE_EVERY: Duration = Duration::from_mins(1);

/// Wrong tokens of one address.
const FAILURES: &str = "10/min";

/// Addresses whose wrong tokens are counted at once.
const ADDRESSES_MAX: usize = 10_000;

/// Finds out whose token a request bears.
#[derive(Debug)]
pub(crate) struct Authenticator {
    cached: Mutex<HashMap<[u8; 32], CachedToken>>,
    failures: Limiter,
    /// Uses that are not written down yet.
    used: Arc<Mutex<BTreeMap<i64, Timestamp>>>,
}

/// A token that was looked up and is valid.
#[derive(Debug, Clone)]
struct CachedToken {
    actor: Arc<Actor>,
    checked_at: Timestamp,
    expires_at: Option<Timestamp>,
}

/// A token that a request bears, from whom and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PresentedToken<'a> {
    /// What stands behind `Bearer`.
    pub(crate) token: Option<&'a [u8]>,
    pub(crate) peer: Peer,
    pub(crate) now: Timestamp,
}

const NO_TOKEN: &str = "no token was sent: send `Authorization: Bearer tbar_..`; `tollbar token create` \
                        makes one";
const UNKNOWN: &str = "the token is not known: send one that `tollbar token create` made";
const REVOKED: &str = "the token was revoked: ask an administrator for another one";
const EXPIRED: &str = "the token has expired: ask an administrator for another one";

impl Authenticator {
    pub(crate) fn new() -> Self {
        let limit = Policy::token_bucket(FAILURES).expect("the limit is part of the program");
        let failures = Limiter::builder(limit).max_keys(ADDRESSES_MAX).build();
        let failures = failures.expect("a store of its own needs no name");
        Self { cached: Mutex::default(), failures, used: Arc::default() }
    }

    /// Returns whose token it is, or why it is refused.
    pub(crate) async fn authenticate(
        &self,
        repository: &Repository,
        presented: PresentedToken<'_>,
    ) -> Result<Arc<Actor>, Problem> {
        let token = presented.token.ok_or_else(|| Problem::unauthorized(NO_TOKEN))?;
        let Some(hash) = TokenHash::parse(token) else {
            return Err(self.fail(presented.peer, UNKNOWN));
        };
        if let Some(actor) = self.cached(&hash, presented.now) {
            return Ok(actor);
        }
        // Whoever has sent too many wrong ones does not get to ask the database either. Tokens in use
        // are known, so a neighbour behind the same address locks nobody out.
        let failures = self.failures.peek(&address(presented.peer));
        if failures.remaining() == Some(0) {
            return Err(too_many_failures(self.failures.check(&address(presented.peer)).outcome()));
        }
        let Some(row) = repository.token_by_hash(hash.bytes()).await? else {
            return Err(self.fail(presented.peer, UNKNOWN));
        };
        if row.revoked_at.is_some() {
            return Err(self.fail(presented.peer, REVOKED));
        }
        if row.expires_at.is_some_and(|end| end <= presented.now) {
            return Err(self.fail(presented.peer, EXPIRED));
        }
        self.record_use(repository, &row, presented.now);
        let actor = Arc::new(Actor::new(&row));
        let cached = CachedToken {
            actor: Arc::clone(&actor),
            checked_at: presented.now,
            expires_at: row.expires_at,
        };
        let mut all = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= CACHED_MAX {
            all.retain(|_, token| token.is_valid(presented.now));
        }
        // With so many in use at once the rest is looked up each time.
        if all.len() < CACHED_MAX {
            all.insert(*hash.bytes(), cached);
        }
        Ok(actor)
    }

    fn cached(&self, hash: &TokenHash, now: Timestamp) -> Option<Arc<Actor>> {
        let mut all = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(hash.bytes()) {
            Some(cached) if cached.is_valid(now) => Some(Arc::clone(&cached.actor)),
            Some(_) => {
                all.remove(hash.bytes());
                None
            }
            None => None,
        }
    }

    /// Counts a wrong token.
    fn fail(&self, peer: Peer, why: &'static str) -> Problem {
        let outcome = self.failures.check(&address(peer)).outcome();
        if outcome == Outcome::Allow {
            warn!(%peer, why, "a token was refused");
            return Problem::unauthorized(why);
        }
        too_many_failures(outcome)
    }

    /// Has the use of a token written down, at most once a minute, together with those of others.
    fn record_use(&self, repository: &Repository, row: &TokenRow, now: Timestamp) {
        if row.last_used_at.is_some_and(|used_at| now < used_at.after(USE_EVERY)) {
            return;
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = used.is_empty();
        used.insert(row.id, now);
        drop(used);
        if is_first {
            let (used, repository) = (Arc::clone(&self.used), repository.clone());
            spawn_short("token_use", async move {
                let noted: Vec<_> =
                    std::mem::take(&mut *used.lock().unwrap_or_else(PoisonError::into_inner))
                        .into_iter()
                        .collect();
                // One that is lost is noted with the next.
                if let Err(error) = repository.record_token_use(&noted).await {
                    warn!(%error, "when tokens were used is not written down");
                }
            });
        }
    }
}

impl CachedToken {
    fn is_valid(&self, now: Timestamp) -> bool {
        now >= self.checked_at
            && now < self.checked_at.after(CACHED_FOR)
            && self.expires_at.is_none_or(|end| now < end)
    }
}

fn too_many_failures(outcome: Outcome) -> Problem {
    let retry_after_us = match outcome {
        Outcome::Deny { retry_after_us } => retry_after_us,
        _ => 1,
    };
    Problem::too_many_failures(retry_after_us.div_ceil(1_000_000).max(1))
}

/// Whose failures are counted together: an address, of IPv6 the network that one customer has.
fn address(peer: Peer) -> [u8; 16] {
    let Peer::Tcp(peer) = peer else {
        return [0; 16];
    };
    match peer.ip().to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[8..].fill(0);
            octets
        }
    }
}
