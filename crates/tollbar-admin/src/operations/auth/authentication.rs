//! Authentication: tokens are looked up by their hash and cached for a moment. Wrong ones are limited, and those that
//! worked lately are exempt from that. What a known token may do is [`access`](super::access)'s business.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollbar::Timestamp;
use tracing::warn;

use super::access::Actor;
use super::credential::TokenHash;
use crate::database::{Repository, TokenRow};
use tollbar_daemon::auth_failures::AuthFailures;
use tollbar_daemon::net::Peer;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::tasks::spawn_short;

/// How long a valid token is cached: one that is revoked on any node is worth nothing
/// on all of them within a second.
const CACHED_FOR: Duration = Duration::from_millis(500);

/// How long a token that worked is looked up however many wrong ones come from its address.
const RECENT_FOR: Duration = Duration::from_hours(24);

/// Tokens that are kept as cached or recent at once.
const CACHED_MAX: usize = 1_024;

/// A use is written down if the last one that was is so long ago.
const USE_EVERY: Duration = Duration::from_mins(1);

/// Finds out whose token a request bears.
#[derive(Debug)]
pub(crate) struct Authenticator {
    cached: Mutex<HashMap<[u8; 32], CachedToken>>,
    failures: Arc<AuthFailures>,
    /// Uses that are not written down yet.
    used: Arc<Mutex<BTreeMap<i64, Timestamp>>>,
}

/// A token that was valid when it was looked up.
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
    pub(crate) fn new(failures: Arc<AuthFailures>) -> Self {
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
            return Err(self.fail(presented.peer, token, UNKNOWN));
        };
        let recent = self.recent(&hash, presented.now);
        if let Some(cached) = recent.as_ref().filter(|recent| recent.is_valid(presented.now)) {
            return Ok(Arc::clone(&cached.actor));
        }
        // The database is not asked about a guess too many.
        if recent.is_none()
            && let Some(seconds) = self.failures.retry_after_s(presented.peer, token)
        {
            return Err(Problem::too_many_failures(seconds));
        }
        let row = repository.token_by_hash(hash.bytes()).await?;
        let row = match row {
            None => Err(UNKNOWN),
            Some(row) if row.revoked_at.is_some() => Err(REVOKED),
            Some(row) if row.expires_at.is_some_and(|end| end <= presented.now) => Err(EXPIRED),
            Some(row) => Ok(row),
        };
        let row = row.map_err(|why| {
            self.all_cached().remove(hash.bytes());
            self.fail(presented.peer, token, why)
        })?;
        self.record_use(repository, &row, presented.now);
        let actor = Arc::new(Actor::new(&row));
        let cached = CachedToken {
            actor: Arc::clone(&actor),
            checked_at: presented.now,
            expires_at: row.expires_at,
        };
        let mut all = self.all_cached();
        all.insert(*hash.bytes(), cached);
        if all.len() > CACHED_MAX {
            let oldest = all.iter().min_by_key(|(_, token)| token.checked_at);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                all.remove(&oldest);
            }
        }
        Ok(actor)
    }

    fn all_cached(&self) -> MutexGuard<'_, HashMap<[u8; 32], CachedToken>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the token if it worked in the last [`RECENT_FOR`].
    fn recent(&self, hash: &TokenHash, now: Timestamp) -> Option<CachedToken> {
        let recent = self.all_cached().get(hash.bytes()).cloned();
        recent.filter(|recent| now < recent.checked_at.after(RECENT_FOR))
    }

    /// Counts a wrong token.
    fn fail(&self, peer: Peer, token: &[u8], why: &'static str) -> Problem {
        match self.failures.record("admin", peer, token, why).retry_after_s {
            Some(seconds) => Problem::too_many_failures(seconds),
            None => Problem::unauthorized(why),
        }
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
