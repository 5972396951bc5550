//! Who is let in, by a clock that only these tests move.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tollbar::{Clock, ManualClock, Timestamp};

use super::super::credential::Credential;
use super::*;
use crate::database::{DatabaseLocation, NewToken};

/// A database and a clock, gone at the end.
struct TestAuthenticator {
    path: PathBuf,
    clock: ManualClock,
    repository: Repository,
    authenticator: Authenticator,
}

impl TestAuthenticator {
    async fn new(name: &str) -> Self {
        let name = format!("tollbar-gate-{}-{name}.sqlite", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        let place = DatabaseLocation::Sqlite(path.clone());
        let repository = Repository::open_with(&place, Arc::new(clock.clone())).await.unwrap();
        Self { path, clock, repository, authenticator: Authenticator::new(Arc::default()) }
    }

    async fn token(&self, scope: &str, expires_at: Option<Timestamp>) -> (i64, Credential) {
        let credential = Credential::random();
        let token = NewToken {
            hash: *credential.hash().bytes(),
            name: "t".to_owned(),
            scopes: vec![scope.to_owned()],
            subject: None,
            expires_at,
        };
        (self.repository.insert_token(&token, "test").await.unwrap().id, credential)
    }

    async fn authenticate(&self, token: &str, peer: &str) -> Result<Arc<Actor>, Problem> {
        let peer = Peer::Tcp(peer.parse::<SocketAddr>().unwrap());
        let presented =
            PresentedToken { token: Some(token.as_bytes()), peer, now: self.clock.now() };
        self.authenticator.authenticate(&self.repository, presented).await
    }

    async fn status(&self, token: &Credential) -> u16 {
        let admitted = self.authenticate(token.reveal(), "203.0.113.7:1").await;
        admitted.map_or_else(|problem| problem.status.as_u16(), |_| 200)
    }
}

impl Drop for TestAuthenticator {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.path.display()));
        }
    }
}

#[tokio::test]
async fn a_revoked_token_is_believed_for_half_a_second_and_no_longer() {
    let test = TestAuthenticator::new("revoked").await;
    let (id, token) = test.token("read", None).await;
    assert_eq!(test.status(&token).await, 200);
    test.repository.revoke_token(id, "test").await.unwrap();
    test.clock.advance(CACHED_FOR.saturating_sub(Duration::from_micros(1)));
    assert_eq!(test.status(&token).await, 200);
    test.clock.advance(Duration::from_micros(1));
    assert_eq!(test.status(&token).await, 401);
    assert!(CACHED_FOR < Duration::from_secs(1), "so it is promised");
}

#[tokio::test]
async fn a_token_ends_at_its_very_instant_also_while_it_is_believed() {
    let test = TestAuthenticator::new("expired").await;
    let end = test.clock.now().after(Duration::from_millis(100));
    let (_, token) = test.token("read", Some(end)).await;
    assert_eq!(test.status(&token).await, 200);
    test.clock.advance(Duration::from_micros(99_999));
    assert_eq!(test.status(&token).await, 200);
    test.clock.advance(Duration::from_micros(1));
    let problem = test.authenticate(token.reveal(), "203.0.113.7:1").await.unwrap_err();
    assert_eq!((problem.status.as_u16(), &*problem.detail), (401, EXPIRED));
}

/// Ten wrong tokens from an address locked out every token that had not been used in the last half second.
#[tokio::test]
async fn wrong_tokens_lock_out_no_token_that_worked_in_the_last_day() {
    let test = TestAuthenticator::new("failures").await;
    let (_, recent) = test.token("read", None).await;
    let (_, unseen) = test.token("read", None).await;
    assert_eq!(test.status(&recent).await, 200);
    test.clock.advance(RECENT_FOR.saturating_sub(Duration::from_micros(1)));
    let wrong = Credential::random();
    let mut statuses = Vec::new();
    for _ in 0..50 {
        statuses.push(test.status(&wrong).await);
    }
    assert_eq!(statuses, [&[401; 10][..], &[429; 40]].concat());
    assert_eq!(test.status(&unseen).await, 200, "it begins otherwise");
    assert_eq!(test.status(&recent).await, 200);
    let (_, late) = test.token("read", None).await;
    for _ in 0..300 {
        test.status(&Credential::random()).await;
    }
    assert_eq!(test.status(&late).await, 429, "it could be a guess");
    assert_eq!(test.status(&recent).await, 200);
    assert_eq!(test.status(&unseen).await, 200);
    test.clock.advance(RECENT_FOR);
    assert_eq!(test.status(&recent).await, 429, "it worked a day ago");
}

#[tokio::test]
async fn a_revoked_token_is_no_longer_exempt_from_the_limit_on_wrong_ones() {
    let test = TestAuthenticator::new("once").await;
    let (id, token) = test.token("read", None).await;
    assert_eq!(test.status(&token).await, 200);
    test.repository.revoke_token(id, "test").await.unwrap();
    test.clock.advance(CACHED_FOR);
    assert_eq!(test.status(&token).await, 401);
    assert!(test.authenticator.all_cached().is_empty());
}

#[tokio::test]
async fn what_is_remembered_is_bounded() {
    let test = TestAuthenticator::new("bounded").await;
    let (_, first) = test.token("read", None).await;
    assert_eq!(test.status(&first).await, 200);
    for _ in 0..CACHED_MAX {
        test.clock.advance(Duration::from_micros(1));
        let (_, token) = test.token("read", None).await;
        assert_eq!(test.status(&token).await, 200);
    }
    let all = test.authenticator.all_cached();
    assert_eq!(all.len(), CACHED_MAX);
    assert!(!all.contains_key(first.hash().bytes()), "the oldest makes room");
}

#[tokio::test]
async fn a_scope_of_a_newer_version_allows_nothing() {
    let test = TestAuthenticator::new("scope").await;
    let (_, token) = test.token("superuser", None).await;
    let actor = test.authenticate(token.reveal(), "203.0.113.7:1").await.unwrap();
    assert_eq!(actor.scopes, []);
    assert!(actor.reach(super::super::access::Permission::See).is_err());
}
