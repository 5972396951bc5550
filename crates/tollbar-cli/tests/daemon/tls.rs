//! TLS as real clients see it: rustls here, and curl.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::authority::{Authority, Identity};
use crate::common::{Daemon, Scratch, request, serve, status};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const PATIENCE: Duration = Duration::from_secs(30);

/// What a client trusts, shows and offers.
pub(crate) struct TlsClient<'a> {
    pub(crate) trusts: &'a Authority,
    pub(crate) shows: Option<&'a Identity>,
    pub(crate) alpn: &'static [&'static [u8]],
}

pub(crate) type SecureStream = StreamOwned<ClientConnection, TcpStream>;

impl TlsClient<'_> {
    pub(crate) fn connect(&self, address: &str) -> SecureStream {
        Self::connect_as(&self.config(), address)
    }

    /// With sessions that earlier connections by this configuration have left.
    pub(crate) fn connect_as(config: &Arc<ClientConfig>, address: &str) -> SecureStream {
        let name = "localhost".try_into().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), stream)
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.trusts.pem().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.shows {
            None => builder.with_no_client_auth(),
            Some(Identity { cert, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = self.alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }

    /// The status of a check, or why there is none.
    fn check(&self, address: &str) -> Result<u16, std::io::Error> {
        let mut stream = self.connect(address);
        stream.write_all(request("/v1/check", "{}").as_bytes())?;
        let mut response = Vec::new();
        match stream.read_to_end(&mut response) {
            // A client that closes without a goodbye is no reason to doubt what was said before.
            Err(_) if response.starts_with(b"HTTP/1.1 ") => {}
            read => drop(read?),
        }
        Ok(status(&String::from_utf8_lossy(&response)))
    }
}

/// Files of an authority, and of a server with a certificate from it.
pub(crate) struct CertificateFiles {
    pub(crate) scratch: Scratch,
    pub(crate) authority: Authority,
    pub(crate) cert: String,
    pub(crate) key: String,
    pub(crate) client_ca: String,
}

impl CertificateFiles {
    pub(crate) fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let authority = Authority::new();
        let Identity { cert, key } = authority.issue("localhost");
        let cert = scratch.file("cert.pem", &cert);
        let key = scratch.secret("key.pem", &key);
        let client_ca = scratch.file("ca.pem", &authority.pem());
        Self { scratch, authority, cert, key, client_ca }
    }

    fn args(&self) -> Vec<&str> {
        vec!["--tls-cert", &self.cert, "--tls-key", &self.key]
    }

    pub(crate) fn mutual(&self) -> Vec<&str> {
        [&self.args()[..], &["--tls-client-ca", &self.client_ca]].concat()
    }

    pub(crate) fn client(&self) -> TlsClient<'_> {
        TlsClient { trusts: &self.authority, shows: None, alpn: &[] }
    }
}

#[test]
fn clients_who_trust_the_authority_are_served_and_others_turn_away() {
    let files = CertificateFiles::new("tls");
    let daemon = Daemon::start(&files.args());
    let address = daemon.address("https");
    assert_eq!(files.client().check(address).unwrap(), 200);
    let stranger = Authority::new();
    let error = TlsClient { trusts: &stranger, ..files.client() }.check(address).unwrap_err();
    assert!(error.to_string().starts_with("invalid peer certificate: "), "{error}");

    let port = address.rsplit_once(':').unwrap().1;
    let url = format!("https://localhost:{port}/healthz");
    let curl = Command::new("curl")
        .args(["-sS", "--noproxy", "*", "--cacert", &files.client_ca, &url])
        .args(["--resolve", &format!("localhost:{port}:127.0.0.1")])
        .output()
        .expect("curl, which the guide speaks of");
    let err = String::from_utf8(curl.stderr).unwrap();
    let body = String::from_utf8(curl.stdout).unwrap();
    assert!(body.starts_with(r#"{"status":"ok","parts":{"#), "{body} {err}");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn with_an_authority_for_clients_only_those_it_signed_for_are_served() {
    let files = CertificateFiles::new("mtls");
    let daemon = Daemon::start(&files.mutual());
    let address = daemon.address("https");
    let known = files.authority.issue("client");
    let unknown = Authority::new().issue("client");
    let client = |shows| TlsClient { shows, ..files.client() };
    assert_eq!(client(Some(&known)).check(address).unwrap(), 200);
    for shows in [None, Some(&unknown)] {
        assert!(client(shows).check(address).is_err());
    }
    assert_eq!(client(Some(&known)).check(address).unwrap(), 200);
    // It counts as asking who is there.
    let args = [&files.mutual()[..], &["--check-config", "--listen", "0.0.0.0:0"]].concat();
    assert!(serve(&args).output().unwrap().status.success());
    let args = [&files.args()[..], &["--check-config", "--listen", "0.0.0.0:0"]].concat();
    assert_eq!(serve(&args).output().unwrap().status.code(), Some(2));
}

#[test]
fn http_is_agreed_on_where_clients_ask() {
    let files = CertificateFiles::new("alpn");
    let daemon = Daemon::start(&files.args());
    let agreed = |alpn| {
        let mut stream = TlsClient { alpn, ..files.client() }.connect(daemon.address("https"));
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok::<_, std::io::Error>(stream.conn.alpn_protocol().map(<[u8]>::to_vec))
    };
    assert_eq!(agreed(&[b"h2", b"http/1.1"]).unwrap().unwrap(), b"http/1.1");
    assert_eq!(agreed(&[]).unwrap(), None);
    let error = agreed(&[b"h2"]).unwrap_err();
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
}

#[test]
fn plain_text_is_refused_and_half_a_handshake_ends() {
    let files = CertificateFiles::new("half");
    let args = [&files.args()[..], &["--handshake-timeout", "100ms", "--max-connections", "1"]];
    let daemon = Daemon::start(&args.concat());
    let address = daemon.address("https");
    let mut plain = TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(request("/v1/check", "{}").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // It takes the only place, says half a word, and must lose it.
    let mut half = TcpStream::connect(address).unwrap();
    half.set_read_timeout(Some(PATIENCE)).unwrap();
    half.write_all(&[0x16, 0x03, 0x01, 0x02]).unwrap();
    assert_eq!(files.client().check(address).unwrap(), 200);
    assert_eq!(half.read(&mut [0; 64]).unwrap_or_default(), 0);
}

#[test]
fn certificates_are_read_again_and_bad_ones_leave_the_old() {
    let files = CertificateFiles::new("renewal");
    let mut daemon = Daemon::start_logged(&files.args());
    let address = daemon.address("https").to_owned();
    assert_eq!(files.client().check(&address).unwrap(), 200);
    let mut kept = files.client().connect(&address);
    while kept.conn.is_handshaking() {
        kept.conn.complete_io(&mut kept.sock).unwrap();
    }

    files.scratch.file("cert.pem", "no certificate");
    daemon.signal("HUP");
    let told = daemon.logged("the certificates stay as they were");
    assert!(told.contains("--tls-cert: ") && told.contains("holds no certificate"), "{told}");
    assert_eq!(files.client().check(&address).unwrap(), 200);

    let next = Authority::new();
    let Identity { cert, key } = next.issue("localhost");
    files.scratch.file("cert.pem", &cert);
    files.scratch.file("key.pem", &key);
    daemon.signal("HUP");
    daemon.logged("certificates reloaded");
    assert!(files.client().check(&address).is_err(), "the old authority signed it no more");
    let renewed = TlsClient { trusts: &next, ..files.client() };
    assert_eq!(renewed.check(&address).unwrap(), 200);
    // Who was connected before goes on.
    kept.write_all(request("/v1/check", "{}").as_bytes()).unwrap();
    let mut first = [0; 12];
    kept.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
}

/// Kubernetes mounts secrets so that every user can read them, so it is no error.
#[test]
fn a_key_that_every_user_can_read_is_warned_of() {
    let files = CertificateFiles::new("readable");
    let told = |mode: u32| {
        fs::set_permissions(&files.key, fs::Permissions::from_mode(mode)).unwrap();
        let mut daemon = Daemon::start_logged(&files.args());
        daemon.signal("TERM");
        assert_eq!(daemon.wait(), 0);
        let log = daemon.rest_of_log();
        log.lines()
            .filter(|line| line.contains("can read this file") && line.contains("key.pem"))
            .count()
    };
    // Once, although three listeners have it.
    assert_eq!([told(0o600), told(0o640), told(0o644)], [0, 0, 1]);
}

#[test]
fn files_that_cannot_be_used_are_told_with_their_flag() {
    let files = CertificateFiles::new("tls-config");
    let other = files.scratch.secret("other.pem", &files.authority.issue("localhost").key);
    let empty = files.scratch.file("empty.pem", "");
    let (cert, key) = (&*files.cert, &*files.key);
    for (args, told) in [
        (
            &["--tls-cert", cert][..],
            "--tls-cert is there and --tls-key is not: give both".to_owned(),
        ),
        (&["--tls-key", key], "--tls-key is there and --tls-cert is not: give both".to_owned()),
        (&["--tls-client-ca", cert], "--tls-client-ca is there and --tls-cert is not".to_owned()),
        (
            &["--tls-cert", "/no/cert", "--tls-key", key],
            "--tls-cert: cannot read /no/cert: ".into(),
        ),
        (&["--tls-cert", cert, "--tls-key", "/no/key"], "--tls-key: cannot read /no/key: ".into()),
        (&["--tls-cert", key, "--tls-key", key], format!("--tls-cert: {key} holds no certificate")),
        (
            &["--tls-cert", cert, "--tls-key", cert],
            format!("--tls-key: {cert} holds no private key"),
        ),
        (
            &["--tls-cert", cert, "--tls-key", &other],
            format!("--tls-key: {other} is not the key of {cert}"),
        ),
        (
            &["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", &empty],
            format!("--tls-client-ca: {empty} holds no certificate"),
        ),
        (
            &["--tls-cert", "/dev/zero", "--tls-key", key],
            "--tls-cert: /dev/zero has more than".into(),
        ),
    ] {
        let output = serve(&["--check-config"]).args(args).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?} gave {err}");
        assert!(err.starts_with(&told), "{args:?} gave {err}");
    }
}
