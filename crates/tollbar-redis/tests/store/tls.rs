//! Over TLS: who is trusted, who is not, and what those are told who got it wrong. Real servers.

use std::error::Error;
use std::fs;
use std::time::Duration;

use crate::support::authority::{Authority, Identity};
use crate::support::{Patient, RUNTIME};
use tollbar::{Batch, Entry, Policy, Store};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, RedisStoreBuilder, RedisStoreError, Tls};
use tollbar_testkit::redis::cluster::RedisCluster;
use tollbar_testkit::redis::launch::{Launch, TlsFiles};
use tollbar_testkit::redis::process::RedisProcess;

const HERE: &str = "127.0.0.1";
const LATER: i32 = 2_100;

/// How long a server may say nothing: that is real time.
const SILENCE: Duration = Duration::from_millis(300);

/// An authority, a server that it has signed, and a client.
struct TlsFixture {
    authority: Authority,
    client: Identity,
    server: RedisProcess,
}

impl TlsFixture {
    fn new(asks_clients: bool) -> Self {
        let authority = Authority::new();
        let files = files(&authority, asks_clients);
        let server = RedisProcess::launch(Launch::secured(files));
        Self { client: authority.identity("client", LATER), authority, server }
    }

    fn tls(&self) -> Tls {
        Tls::new().ca_file(self.authority.ca()).unwrap()
    }

    fn tls_of_client(&self) -> Tls {
        self.tls().client_files(&self.client.certificate, &self.client.key).unwrap()
    }
}

fn files(authority: &Authority, asks_clients: bool) -> TlsFiles {
    authority.files(&authority.identity(HERE, LATER), asks_clients)
}

fn builder(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url, KeyNames::Hashed(FleetSecret::new([7; 32])))
        .patient()
        .connect_timeout(Duration::from_secs(5))
}

fn connect(builder: RedisStoreBuilder) -> Result<RedisStore, RedisStoreError> {
    RUNTIME.block_on(builder.connect())
}

fn counts(store: &RedisStore) {
    let policy = Policy::fixed_window("10/day").unwrap();
    for left in (7..10).rev() {
        assert_eq!(store.check(b"key", &policy, 1).wait().unwrap().remaining().unwrap(), left);
    }
}

/// What a user reads who is refused, who was to be.
#[track_caller]
fn refused(builder: RedisStoreBuilder, advice: &str) {
    let error = connect(builder).expect_err("this must not connect");
    let is_insecure = matches!(error, RedisStoreError::Insecure { .. });
    assert!(is_insecure && error.to_string().contains(advice), "{error}: {:?}", error.source());
    assert!(error.source().is_some());
}

#[test]
fn a_server_is_trusted_by_its_authority() {
    let fixture = TlsFixture::new(false);
    counts(&connect(builder(&fixture.server.url()).tls(fixture.tls())).unwrap());
}

#[test]
fn a_server_that_asks_for_a_certificate_gets_it() {
    let fixture = TlsFixture::new(true);
    counts(&connect(builder(&fixture.server.url()).tls(fixture.tls_of_client())).unwrap());
    refused(builder(&fixture.server.url()).tls(fixture.tls()), "Tls::client_files");
}

#[test]
fn a_server_is_not_trusted_without_its_authority_or_by_another_one() {
    let fixture = TlsFixture::new(false);
    refused(builder(&fixture.server.url()), "Tls::ca_file");
    let other = Authority::new();
    let tls = Tls::new().ca_file(other.ca()).unwrap();
    refused(builder(&fixture.server.url()).tls(tls), "Tls::ca_file");
}

#[test]
fn a_certificate_for_another_name_or_another_time_is_not_enough() {
    let authority = Authority::new();
    for (name, year, advice) in [("elsewhere", LATER, "another name"), (HERE, 2_020, "expired")] {
        let files = authority.files(&authority.identity(name, year), false);
        let server = RedisProcess::launch(Launch::secured(files));
        let tls = Tls::new().ca_file(authority.ca()).unwrap();
        refused(builder(&server.url()).tls(tls), advice);
    }
}

#[test]
fn a_port_without_tls_is_told_and_one_with_it_is_not_talked_to_in_the_open() {
    let fixture = TlsFixture::new(false);
    let plain = RedisProcess::start();
    let url = plain.url().replace("redis://", "rediss://");
    let error = connect(builder(&url).connect_timeout(SILENCE).tls(fixture.tls())).unwrap_err();
    assert!(matches!(error, RedisStoreError::NoHandshake { .. }), "{error:?}");
    assert!(error.to_string().contains("write `redis://`"), "{error}");
    let error = connect(builder(&fixture.server.url().replace("rediss://", "redis://")));
    assert!(matches!(error, Err(RedisStoreError::Server { .. })), "{error:?}");
}

#[test]
fn certificates_and_urls_that_do_not_fit_are_refused_with_advice() {
    let fixture = TlsFixture::new(false);
    let url = fixture.server.url();
    let message = |builder: RedisStoreBuilder| connect(builder).unwrap_err().to_string();
    let plain = builder(&url.replace("rediss://", "redis://")).tls(fixture.tls());
    assert!(message(plain).contains("write `rediss://`"));
    let careless = builder(&format!("{url}/#insecure"));
    assert!(message(careless).contains("always checked"));

    let key = fs::read(&fixture.client.key).unwrap();
    let certificate = fs::read(&fixture.client.certificate).unwrap();
    let other = fixture.authority.identity("other", LATER);
    let cases = [
        (Tls::new().ca_file("no-such-file.pem"), "cannot read no-such-file.pem: "),
        (Tls::new().ca_pem(b""), "-----BEGIN CERTIFICATE-----"),
        (Tls::new().ca_file(&fixture.client.key), "holds no certificate"),
        (Tls::new().client_pem(&certificate, &certificate), "holds no private key"),
        (Tls::new().client_pem(&key, &key), "holds no certificate"),
        (Tls::new().client_files(&fixture.client.certificate, &other.key), "is not the key of"),
    ];
    for (tls, said) in cases {
        let error = tls.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let secret = String::from_utf8(key).unwrap();
    assert!(!format!("{:?}", fixture.tls_of_client()).contains(secret.lines().nth(1).unwrap()));
}

#[test]
fn a_cluster_is_reached_by_tls_at_all_its_nodes() {
    let authority = Authority::new();
    let cluster = RedisCluster::launch(&Launch::secured(files(&authority, true)));
    let client = authority.identity("client", LATER);
    let tls = Tls::new().ca_file(authority.ca()).unwrap();
    let urls = cluster.urls();
    let builder = || {
        RedisStore::cluster_builder(&[&urls[0]], KeyNames::Hashed(FleetSecret::new([7; 32])))
            .patient()
            .connect_timeout(Duration::from_secs(5))
    };
    refused(builder().tls(tls.clone()), "Tls::client_files");
    refused(builder(), "Tls::ca_file");
    let tls = tls.client_files(&client.certificate, &client.key).unwrap();
    let store = connect(builder().tls(tls)).unwrap();
    let policy = Policy::fixed_window("10/day").unwrap();
    let keys: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let mut entries: Vec<Entry<'_>> = keys.iter().map(|key| Entry::new(key, &policy)).collect();
    store.decide(Batch::all_or_none(&mut entries)).wait().unwrap();
    assert!(entries.iter().all(|entry| entry.decision().unwrap().remaining().unwrap() == 9));
}

#[test]
fn sentinels_and_their_master_are_reached_by_tls() {
    let fixture = TlsFixture::new(true);
    let sentinel = RedisProcess::start_sentinel(&fixture.server, "limits");
    let builder = |tls| {
        RedisStore::sentinel_builder(
            &[&sentinel.url()],
            "limits",
            KeyNames::Hashed(FleetSecret::new([7; 32])),
        )
        .patient()
        .connect_timeout(Duration::from_secs(5))
        .tls(tls)
    };
    counts(&connect(builder(fixture.tls_of_client())).unwrap());
    refused(builder(fixture.tls()), "Tls::client_files");
}
