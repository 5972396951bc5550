//! Who has signed in. A browser holds a random id; here stands which token it was made with, and never
//! the token. A session ends by itself, by signing out, and within a second of its token's end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollbar::Timestamp;

use crate::database::{Repository, RepositoryError};
use crate::operations::auth::access::Actor;
use tollbar_daemon::problem::Problem;

/// Sessions at a time; the one that was used longest ago makes room.
const SESSIONS_MAX: usize = 1_024;

/// Sessions of one token; its own one that was used longest ago makes room, so that no token signs others out.
const SESSIONS_PER_TOKEN_MAX: usize = 16;

/// A session ends so long after it began.
const LIVES_FOR: Duration = Duration::from_hours(12);

/// A session ends when nobody has used it for so long. A page that is kept open uses it.
const IDLE_FOR: Duration = Duration::from_hours(2);

/// How long a token that was looked up is not looked up again.
const CHECKED_FOR: Duration = Duration::from_millis(500);

/// Everybody who has signed in.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: Mutex<HashMap<SessionId, Session>>,
}

/// By a hash of what the browser holds, so that time tells nothing about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionId([u8; 32]);

#[derive(Debug)]
struct Session {
    token_id: i64,
    /// What every form must send along.
    csrf: String,
    began_at: Timestamp,
    used_at: Timestamp,
    /// Shown on the next page, once.
    notice: Option<String>,
    actor: Arc<Actor>,
    checked_at: Timestamp,
    expires_at: Option<Timestamp>,
}

/// A session of somebody who is signed in, as pages see it.
#[derive(Debug, Clone)]
pub(crate) struct ActiveSession {
    pub(crate) id: SessionId,
    pub(crate) actor: Arc<Actor>,
    pub(crate) csrf: String,
}

impl SessionId {
    pub(crate) fn from_cookie(cookie: &str) -> Self {
        Self(*blake3::hash(cookie.as_bytes()).as_bytes())
    }
}

impl Sessions {
    /// Begins one; what the browser is to hold.
    pub(crate) fn begin(&self, actor: Arc<Actor>, now: Timestamp) -> String {
        let (cookie, csrf) = (random(), random());
        let session = Session {
            token_id: actor.token_id,
            csrf,
            began_at: now,
            used_at: now,
            notice: None,
            actor,
            // Looked up again at once, which tells when the token ends.
            checked_at: Timestamp::from_micros(0),
            expires_at: None,
        };
        let mut all = self.lock();
        if all.len() >= SESSIONS_MAX {
            all.retain(|_, session| session.is_alive(now));
        }
        let is_own = |other: &Session| other.token_id == session.token_id;
        let own_count = all.values().filter(|other| is_own(other)).count();
        let has_own_max = own_count >= SESSIONS_PER_TOKEN_MAX;
        if has_own_max || all.len() >= SESSIONS_MAX {
            let candidates = all.iter().filter(|(_, other)| !has_own_max || is_own(other));
            let oldest = candidates.min_by_key(|(_, other)| other.used_at).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                all.remove(&oldest);
            }
        }
        all.insert(SessionId::from_cookie(&cookie), session);
        cookie
    }

    /// Returns the session with this id; `None` if it has ended, or its token has.
    pub(crate) async fn resume(
        &self,
        repository: &Repository,
        id: SessionId,
        now: Timestamp,
    ) -> Result<Option<ActiveSession>, Problem> {
        let token_id = {
            let mut all = self.lock();
            let Some(session) = all.get_mut(&id) else {
                return Ok(None);
            };
            if !session.is_alive(now) {
                all.remove(&id);
                return Ok(None);
            }
            session.used_at = now;
            if session.is_fresh(now) {
                return Ok(Some(session.active(id)));
            }
            session.token_id
        };
        let row = match repository.token(token_id).await {
            Err(RepositoryError::NotFound { .. }) => None,
            row => Some(row?),
        };
        let row = row
            .filter(|row| row.revoked_at.is_none() && row.expires_at.is_none_or(|end| now < end));
        let mut all = self.lock();
        let Some(row) = row else {
            all.remove(&id);
            return Ok(None);
        };
        // Somebody may have signed out meanwhile.
        Ok(all.get_mut(&id).map(|session| {
            session.actor = Arc::new(Actor::new(&row));
            (session.checked_at, session.expires_at) = (now, row.expires_at);
            session.active(id)
        }))
    }

    /// Signs out.
    pub(crate) fn end(&self, id: SessionId) {
        self.lock().remove(&id);
    }

    /// Sets the notice of the next page.
    pub(crate) fn set_notice(&self, id: SessionId, notice: impl Into<String>) {
        if let Some(session) = self.lock().get_mut(&id) {
            session.notice = Some(notice.into());
        }
    }

    /// Takes the notice of the next page.
    pub(crate) fn take_notice(&self, id: SessionId) -> Option<String> {
        self.lock().get_mut(&id)?.notice.take()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveSession {
    /// True where a form was written for this session. Compared by hashes, which takes the same time
    /// wherever they differ.
    pub(crate) fn has_csrf_token(&self, csrf: &str) -> bool {
        blake3::hash(self.csrf.as_bytes()) == blake3::hash(csrf.as_bytes())
    }
}

impl Session {
    fn is_alive(&self, now: Timestamp) -> bool {
        now < self.began_at.after(LIVES_FOR) && now < self.used_at.after(IDLE_FOR)
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        now >= self.checked_at
            && now < self.checked_at.after(CHECKED_FOR)
            && self.expires_at.is_none_or(|end| now < end)
    }

    fn active(&self, id: SessionId) -> ActiveSession {
        ActiveSession { id, actor: Arc::clone(&self.actor), csrf: self.csrf.clone() }
    }
}

/// 256 bits, in hexadecimal digits.
fn random() -> String {
    hex::encode(rand::random::<[u8; 32]>())
}

#[cfg(test)]
mod tests;
