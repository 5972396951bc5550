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
        Self { path, clock, repository, authenticator: Authenticator::new() }
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

#[tokio::test]
async fn failures_are_counted_by_address_and_known_tokens_get_in() {
    let test = TestAuthenticator::new("failures").await;
    let (_, cached) = test.token("read", None).await;
    let (_, unseen) = test.token("read", None).await;
    assert_eq!(test.status(&cached).await, 200);
    let wrong = Credential::random();
    let statuses = async |count: usize, peer: &str| {
        let mut statuses = Vec::new();
        for _ in 0..count {
            let problem = test.authenticate(wrong.reveal(), peer).await.unwrap_err();
            statuses.push(problem.status.as_u16());
        }
        statuses
    };
    assert_eq!(statuses(11, "203.0.113.7:1").await, [&[401; 10][..], &[429]].concat());
    assert_eq!(test.status(&cached).await, 200, "it is in use");
    assert_eq!(test.status(&unseen).await, 429, "it could be a guess");
    assert_eq!(statuses(1, "203.0.113.8:1").await, [401], "another address");
    // One customer has a whole network of IPv6 addresses.
    assert_eq!(statuses(10, "[2001:db8:1:2::1]:1").await, [401; 10]);
    assert_eq!(statuses(1, "[2001:db8:1:2:ffff::9]:1").await, [429]);
    assert_eq!(statuses(1, "[2001:db8:1:3::1]:1").await, [401]);
    let mapped = test.authenticate(wrong.reveal(), "[::ffff:203.0.113.7]:1").await.unwrap_err();
    assert_eq!(mapped.status.as_u16(), 429, "the same address in other clothes");
}

#[tokio::test]
async fn what_is_remembered_is_bounded() {
    let test = TestAuthenticator::new("bounded").await;
    for _ in 0..CACHED_MAX + 10 {
        let (_, token) = test.token("read", None).await;
        assert_eq!(test.status(&token).await, 200);
    }
    assert_eq!(test.authenticator.cached.lock().unwrap().len(), CACHED_MAX);
    test.clock.advance(CACHED_FOR);
    let (_, token) = test.token("read", None).await;
    assert_eq!(test.status(&token).await, 200);
    assert_eq!(
        test.authenticator.cached.lock().unwrap().len(),
        1,
        "who was not seen lately makes room"
    );
}

#[tokio::test]
async fn a_scope_of_a_newer_version_allows_nothing() {
    let test = TestAuthenticator::new("scope").await;
    let (_, token) = test.token("superuser", None).await;
    let actor = test.authenticate(token.reveal(), "203.0.113.7:1").await.unwrap();
    assert_eq!(actor.scopes, []);
    assert!(actor.reach(super::super::access::Permission::See).is_err());
}
