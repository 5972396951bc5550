//! Sessions end when they must, over a real database.

use std::path::PathBuf;

use tollbar::ManualClock;

use super::*;
use crate::database::{DatabaseLocation, NewToken};
use crate::operations::auth::access::Scope;

/// A database with a token in it, gone at the end.
struct TokenDatabase {
    path: PathBuf,
    repository: Repository,
    token_id: i64,
}

impl TokenDatabase {
    async fn new(name: &str) -> Self {
        let name = format!("tollbar-session-{}-{name}.sqlite", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let place = DatabaseLocation::Sqlite(path.clone());
        let clock = Arc::new(ManualClock::at(at(0)));
        let repository = Repository::open_with(&place, clock).await.unwrap();
        let token = NewToken {
            hash: [7; 32],
            name: "ci".to_owned(),
            scopes: vec!["read".to_owned(), "of a newer version".to_owned()],
            subject: None,
            expires_at: None,
        };
        let token_id = repository.insert_token(&token, "test").await.unwrap().id;
        Self { path, repository, token_id }
    }
}

impl Drop for TokenDatabase {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let mut path = self.path.clone().into_os_string();
            path.push(end);
            let _ = std::fs::remove_file(path);
        }
    }
}

fn begun(sessions: &Sessions, token_id: i64, now: Timestamp) -> SessionId {
    let actor = Actor { token_id, name: String::new(), scopes: Vec::new(), subject: None };
    SessionId::from_cookie(&sessions.begin(Arc::new(actor), now))
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + ms * 1_000)
}

#[tokio::test]
async fn a_session_is_its_tokens_and_ends_within_a_second_of_it() {
    let database = TokenDatabase::new("token").await;
    let (repository, token_id) = (&database.repository, database.token_id);
    let sessions = Sessions::default();
    let id = begun(&sessions, token_id, at(0));
    let active = sessions.resume(repository, id, at(0)).await.unwrap().unwrap();
    assert_eq!(active.actor.name, "ci");
    assert_eq!(active.actor.scopes, [Scope::Read]);
    repository.revoke_token(token_id, "test").await.unwrap();
    assert!(sessions.resume(repository, id, at(499)).await.unwrap().is_some());
    assert!(sessions.resume(repository, id, at(999)).await.unwrap().is_none());
    assert!(sessions.resume(repository, id, at(0)).await.unwrap().is_none(), "it is gone for good");
}

#[tokio::test]
async fn sessions_end_by_themselves_and_by_signing_out() {
    let database = TokenDatabase::new("ends").await;
    let (repository, token_id) = (&database.repository, database.token_id);
    let sessions = Sessions::default();
    let hour = 3_600_000;
    let idle = begun(&sessions, token_id, at(0));
    assert!(sessions.resume(repository, idle, at(2 * hour)).await.unwrap().is_none());
    let used = begun(&sessions, token_id, at(0));
    for hours in 1..12 {
        assert!(sessions.resume(repository, used, at(hours * hour)).await.unwrap().is_some());
    }
    assert!(sessions.resume(repository, used, at(12 * hour)).await.unwrap().is_none());
    let out = begun(&sessions, token_id, at(0));
    sessions.end(out);
    assert!(sessions.resume(repository, out, at(0)).await.unwrap().is_none());
    assert!(
        sessions
            .resume(repository, SessionId::from_cookie("guessed"), at(0))
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn there_are_at_most_so_many_and_the_idle_make_room() {
    let database = TokenDatabase::new("bound").await;
    let (repository, token_id) = (&database.repository, database.token_id);
    let sessions = Sessions::default();
    let first = begun(&sessions, token_id, at(0));
    let second = begun(&sessions, token_id, at(1));
    for ms in 2..=SESSIONS_MAX as u64 {
        let other = i64::try_from(ms).unwrap() + token_id;
        begun(&sessions, other, at(ms));
    }
    assert_eq!(sessions.lock().len(), SESSIONS_MAX);
    assert!(sessions.resume(repository, first, at(5_000)).await.unwrap().is_none());
    assert!(sessions.resume(repository, second, at(5_000)).await.unwrap().is_some());
}

/// 1,030 logins of the weakest token signed everybody out.
#[tokio::test]
async fn a_token_signs_out_itself_and_nobody_else() {
    let database = TokenDatabase::new("per-token").await;
    let (repository, token_id) = (&database.repository, database.token_id);
    let sessions = Sessions::default();
    let operator = begun(&sessions, token_id, at(0));
    let ids: Vec<_> = (1..=1_030).map(|ms| begun(&sessions, token_id + 1, at(ms))).collect();
    assert_eq!(sessions.lock().len(), 1 + SESSIONS_PER_TOKEN_MAX);
    assert!(sessions.resume(repository, operator, at(2_000)).await.unwrap().is_some());
    let kept = ids.iter().rev().take(SESSIONS_PER_TOKEN_MAX);
    assert!(kept.into_iter().all(|id| sessions.lock().contains_key(id)), "the latest stay");
}

#[tokio::test]
async fn a_form_of_another_session_is_none_of_ours_and_a_notice_is_told_once() {
    let database = TokenDatabase::new("csrf").await;
    let (repository, token_id) = (&database.repository, database.token_id);
    let sessions = Sessions::default();
    let (one, other) = (begun(&sessions, token_id, at(0)), begun(&sessions, token_id, at(0)));
    let one = sessions.resume(repository, one, at(0)).await.unwrap().unwrap();
    let other = sessions.resume(repository, other, at(0)).await.unwrap().unwrap();
    assert!(one.has_csrf_token(&one.csrf));
    assert!(!one.has_csrf_token(&other.csrf) && !one.has_csrf_token(""));
    sessions.set_notice(one.id, "done");
    assert_eq!(sessions.take_notice(other.id), None);
    assert_eq!(sessions.take_notice(one.id).as_deref(), Some("done"));
    assert_eq!(sessions.take_notice(one.id), None);
}
