//! Certificates of clients: revocation lists, and listeners that each ask for something else.

use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::ClientConfig;

use crate::common::authority::{Authority, Identity};
use crate::common::{Daemon, serve};
use crate::tls::{CertificateFiles, TlsClient};

const HTTP: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
/// The preface of HTTP/2 and an empty SETTINGS frame.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Every listener that speaks TLS: what a client says first, and how the answer begins.
const LISTENERS: [(&str, &[u8], &[u8]); 5] = [
    ("https", HTTP, b"HTTP/1.1 200"),
    ("grpcs", HTTP2, b"\0\0"),
    ("resps", b"*1\r\n$4\r\nPING\r\n", b"+PONG"),
    // There is no upstream: 502, or 503 once the breaker knows.
    ("proxys", HTTP, b"HTTP/1.1 50"),
    ("admins", HTTP, b"HTTP/1.1 200"),
];

/// Asks a listener as its protocol begins. An error if the client is turned away.
fn ask(daemon: &Daemon, listener: &str, config: &Arc<ClientConfig>) -> io::Result<()> {
    let (_, hello, expected) = LISTENERS.into_iter().find(|(name, ..)| *name == listener).unwrap();
    let mut stream = TlsClient::connect_as(config, daemon.address(listener));
    stream.write_all(hello)?;
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer)?;
    assert_eq!(answer, expected, "{listener}");
    Ok(())
}

/// Runs every listener with these flags beside those of the shared certificate.
fn start(files: &CertificateFiles, flags: &[&str]) -> Daemon {
    let database = files.scratch.path("rules.sqlite");
    let own =
        ["--database", &database, "--upstream", "http://127.0.0.1:1", "--proxy", "127.0.0.1:0"];
    Daemon::start_logged(&[&files.mutual()[..], &own, flags].concat())
}

fn health(files: &CertificateFiles, daemon: &Daemon, shows: &Identity) -> String {
    let client = TlsClient { shows: Some(shows), ..files.client() };
    let mut stream = client.connect(daemon.address("https"));
    stream.write_all(HTTP).unwrap();
    let mut answer = Vec::new();
    // A close without a goodbye changes nothing about what was said.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn a_revoked_client_is_refused_on_every_listener() {
    let files = CertificateFiles::new("revoked");
    let [first, second, third] =
        [1, 2, 3].map(|serial| files.authority.issue_numbered("client", serial));
    let put = |lists: &str| files.scratch.file("crl.pem", lists);
    let crl = put(&files.authority.revocation_list(&[2], 2099));
    let mut daemon = start(&files, &["--tls-client-crl", &crl]);
    // Each keeps its sessions, which it may try to resume.
    let [first_client, second_client, third_client] = [&first, &second, &third]
        .map(|shows| TlsClient { shows: Some(shows), ..files.client() }.config());
    for (listener, ..) in LISTENERS {
        ask(&daemon, listener, &first_client).unwrap_or_else(|error| panic!("{listener}: {error}"));
        ask(&daemon, listener, &second_client).expect_err(listener);
        ask(&daemon, listener, &files.client().config()).expect_err(listener);
    }

    // A client that is revoked later cannot resume what it had begun.
    put(&files.authority.revocation_list(&[1, 2], 2099));
    daemon.signal("HUP");
    daemon.logged("certificates reloaded");
    for (listener, ..) in LISTENERS {
        ask(&daemon, listener, &first_client).expect_err(listener);
        ask(&daemon, listener, &third_client).unwrap_or_else(|error| panic!("{listener}: {error}"));
    }
    assert!(health(&files, &daemon, &third).contains(r#""certificates":"ok""#));

    // A list that is out of date, or none, leaves the last good one in force, and is a fault.
    for (lists, told) in [
        (files.authority.revocation_list(&[], 2020), "ended at 2020-12-31T00:00:00.000Z"),
        ("no list".to_owned(), "holds no certificate revocation list"),
        // The file of another authority would let everybody through, or nobody.
        (files.authority.pem(), "holds no certificate revocation list"),
    ] {
        put(&lists);
        daemon.signal("HUP");
        let line = daemon.logged("the certificates stay as they were");
        assert!(line.contains("--tls-client-crl: ") && line.contains(told), "{line}");
        for (listener, ..) in LISTENERS {
            ask(&daemon, listener, &first_client).expect_err(listener);
            ask(&daemon, listener, &third_client).unwrap();
        }
        let health = health(&files, &daemon, &third);
        assert!(health.contains(r#""certificates":"degraded""#), "{health}");
    }
    put(&files.authority.revocation_list(&[2], 2099));
    daemon.signal("HUP");
    daemon.logged("certificates reloaded");
    ask(&daemon, "https", &first_client).unwrap();
    assert!(health(&files, &daemon, &third).contains(r#""certificates":"ok""#));
}

#[test]
fn a_client_whose_authority_has_no_list_is_refused() {
    let files = CertificateFiles::new("uncovered");
    let other = Authority::named("another authority");
    let both = [files.authority.pem(), other.pem()].concat();
    files.scratch.file("ca.pem", &both);
    let crl = files.scratch.file("crl.pem", &files.authority.revocation_list(&[], 2099));
    let daemon = start(&files, &["--tls-client-crl", &crl]);
    let client = |shows: &Identity| TlsClient { shows: Some(shows), ..files.client() }.config();
    ask(&daemon, "https", &client(&files.authority.issue("client"))).unwrap();
    ask(&daemon, "https", &client(&other.issue("client"))).expect_err("its status is unknown");
    drop(daemon);
    let lists = [files.authority.revocation_list(&[], 2099), other.revocation_list(&[], 2099)];
    files.scratch.file("crl.pem", &lists.concat());
    let daemon = start(&files, &["--tls-client-crl", &crl]);
    ask(&daemon, "https", &client(&other.issue("client"))).unwrap();
}

#[test]
fn each_listener_may_have_tls_of_its_own() {
    let files = CertificateFiles::new("own");
    let other = Authority::named("another authority");
    let Identity { cert, key } = other.issue("localhost");
    let cert = files.scratch.file("other-cert.pem", &cert);
    let key = files.scratch.secret("other-key.pem", &key);
    let ca = files.scratch.file("other-ca.pem", &other.pem());
    let crl = files.scratch.file("crl.pem", &files.authority.revocation_list(&[], 2099));
    let (pair, ca) = (format!("cert={cert},key={key}"), format!("client-ca={ca}"));
    let both = format!("{pair},{ca}");
    let flags = ["--tls-client-crl", &crl, "--listen-tls", "off", "--grpc-tls", "client-ca=none"];
    let more = ["--resp-tls", &pair, "--proxy-tls", &both, "--admin-tls", &ca];
    let daemon = start(&files, &[&flags[..], &more].concat());
    assert_eq!(daemon.check("42"), 200, "plain text");

    let (of_shared, of_other) = (files.authority.issue("client"), other.issue("client"));
    // By listener: whose certificate it shows, and what a client must show.
    let shared = &files.authority;
    for (listener, [server, stranger], shows_none, shows_shared, shows_other) in [
        ("grpcs", [shared, &other], true, true, true),
        ("resps", [&other, shared], false, true, false),
        ("proxys", [&other, shared], false, false, true),
        ("admins", [shared, &other], false, false, true),
    ] {
        for (shows, is_served) in
            [(None, shows_none), (Some(&of_shared), shows_shared), (Some(&of_other), shows_other)]
        {
            let client = TlsClient { trusts: server, shows, ..files.client() };
            let served = ask(&daemon, listener, &client.config());
            assert_eq!(served.is_ok(), is_served, "{listener}: {served:?}");
        }
        let client = TlsClient { trusts: stranger, shows: Some(&of_other), ..files.client() };
        ask(&daemon, listener, &client.config()).expect_err(listener);
    }
    // A session from a listener that asks nothing is worth nothing at one that does.
    let client = files.client().config();
    ask(&daemon, "grpcs", &client).unwrap();
    ask(&daemon, "admins", &client).expect_err("no certificate was shown");
}

#[test]
fn tls_of_one_listener_that_cannot_be_meant_is_told() {
    let files = CertificateFiles::new("own-config");
    let (cert, key, ca) = (&*files.cert, &*files.key, &*files.client_ca);
    let old = files.scratch.file("old.pem", &files.authority.revocation_list(&[], 2020));
    let shared = ["--tls-cert", cert, "--tls-key", key];
    let mutual = [&shared[..], &["--tls-client-ca", ca]].concat();
    let pair = format!("cert={cert},key={key}");
    let twice = format!("{pair},cert={cert}");
    let (half, ca) = (format!("cert={cert}"), format!("client-ca={ca}"));
    let (off, crl) = (format!("off,{half}"), format!("client-crl={old}"));
    let table: &[(&[&str], &[&str], &str)] = &[
        (&[], &["--grpc-tls", &half], "cert of --grpc-tls is there and key is not: give both"),
        (&[], &["--grpc-tls", &ca], "--grpc-tls needs a certificate: add cert=FILE,key=FILE to it"),
        (&[], &["--grpc-tls", &off], "--grpc-tls: `off` excludes all else"),
        (&[], &["--grpc-tls", &twice], "--grpc-tls: cert is there twice"),
        (
            &[],
            &["--grpc-tls", "cert"],
            "error: invalid value 'cert' for '--grpc-tls <TLS>': write off, or",
        ),
        (&[], &["--grpc-tls", "cert=/no,key=/no"], "--grpc-tls: cannot read /no: "),
        (
            &[],
            &["--grpc", "unix:/no/socket", "--grpc-tls", &pair],
            "--grpc-tls has no effect on --grpc unix:/no/socket, which speaks no TLS: leave it out",
        ),
        (&[], &["--grpc", "off", "--grpc-tls", &pair], "--grpc-tls has no effect without a --grpc"),
        (&shared, &["--grpc-tls", &crl], "client-crl of --grpc-tls is there and client-ca is not"),
        (&mutual, &["--grpc-tls", &crl], "--grpc-tls: a revocation list in "),
        (&mutual, &["--tls-client-crl", &old], "--tls-client-crl: a revocation list in "),
        (
            &shared,
            &["--tls-client-crl", &old],
            "--tls-client-crl has no effect without --tls-client-ca",
        ),
        // A listener that asks nobody is not excused by others that do.
        (
            &mutual,
            &["--listen", "0.0.0.0:0", "--listen-tls", "client-ca=none"],
            "--listen 0.0.0.0:0 is beyond loopback",
        ),
        (
            &mutual,
            &["--database", "/no/db.sqlite", "--admin", "0.0.0.0:0", "--admin-tls", "off"],
            "--admin 0.0.0.0:0 is beyond loopback",
        ),
        (
            &shared,
            &["--resp", "0.0.0.0:0", "--grpc-tls", &ca],
            "--resp 0.0.0.0:0 is beyond loopback",
        ),
    ];
    for (first, second, told) in table {
        let output = serve(&["--check-config"]).args(*first).args(*second).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{second:?} gave {err}");
        assert!(err.starts_with(told), "{second:?} gave {err}");
    }
    for flags in [
        &["--resp", "0.0.0.0:0", "--resp-tls", &ca][..],
        &["--database", "/no/db.sqlite", "--admin", "0.0.0.0:0"],
    ] {
        let output = serve(&["--check-config"]).args(shared).args(flags).output().unwrap();
        assert!(output.status.success(), "{flags:?}: {output:?}");
    }
}
