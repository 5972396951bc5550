//! The client against the real daemon: as many callers as there are, and everything that can happen to a
//! connection. Time passes only where something is broken on purpose.

use std::time::Duration;

use crate::common::{Daemon, Scratch, serve};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use tollbar_proto::client::{CheckError, Client, ClientBuilder, FailurePolicy};
use tollbar_proto::v1::CheckRequest;

/// Long enough for a machine that has other things to do.
const PATIENCE: Duration = Duration::from_mins(1);

const ROOMY: &str = "rules: [{ name: roomy, limit: 1000000/day, burst: 1000000 }]";

fn builder(daemon: &Daemon) -> ClientBuilder {
    let address = daemon.address("grpc");
    let uri = match address.strip_prefix("unix:") {
        Some(_) => address.to_owned(),
        None => format!("http://{address}"),
    };
    Client::builder(uri).deadline(PATIENCE)
}

fn request(user: &str) -> CheckRequest {
    let attributes = [("user".to_owned(), user.to_owned())].into();
    CheckRequest { path: "/".to_owned(), attributes, ..CheckRequest::default() }
}

/// Asks until there is an answer.
async fn answered(client: &Client) {
    let mut tries = interval(Duration::from_millis(5));
    let trying = async {
        while client.check(request("again")).await.is_err() {
            tries.tick().await;
        }
    };
    timeout(PATIENCE, trying).await.expect("the client does not recover");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_at_once_are_limited_exactly() {
    let scratch = Scratch::new("grpc-thousand");
    let rules = scratch.file("rules.yaml", "rules: [{ name: a, limit: 300/day, burst: 300 }]");
    let daemon = Daemon::start(&["--rules", &rules]);
    let client = builder(&daemon).connect().unwrap();
    let mut callers = JoinSet::new();
    for _ in 0..1_000 {
        let client = client.clone();
        callers.spawn(async move { client.check(request("7")).await.unwrap() });
    }
    let answers = callers.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.allowed).count(), 300);
    let mut left: Vec<u64> = answers
        .iter()
        .filter(|answer| answer.allowed)
        .map(|answer| answer.remaining.unwrap())
        .collect();
    left.sort_unstable();
    assert_eq!(left, (0..300).collect::<Vec<u64>>(), "each of them was told its own");
    drop(client);
    assert_eq!(daemon.stop(), 0);
}

#[tokio::test]
async fn each_caller_gets_its_own_answer_and_a_mistake_is_its_makers_alone() {
    let scratch = Scratch::new("grpc-own");
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", ROOMY)]);
    let client = builder(&daemon).connect().unwrap();
    let mut callers = JoinSet::new();
    for number in 0..300_u64 {
        let client = client.clone();
        callers.spawn(async move {
            // Every caller is a subject of its own, and pays its own price.
            let mut asked = request(&number.to_string());
            asked.cost = Some(number);
            if number % 3 == 0 {
                asked.attributes.insert("path".to_owned(), "/".to_owned());
            }
            (number, client.check(asked).await)
        });
    }
    for (number, answer) in callers.join_all().await {
        match answer {
            Ok(answer) if number % 3 != 0 => {
                assert_eq!(answer.remaining, Some(1_000_000 - number));
            }
            Err(CheckError::Refused { code, message }) if number % 3 == 0 => {
                assert_eq!(code, tonic::Code::InvalidArgument);
                assert!(message.starts_with("`path` is not an attribute"), "{message}");
            }
            other => panic!("{number} gave {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_daemon_that_was_killed_is_told_of_at_once_and_found_again() {
    let scratch = Scratch::new("grpc-killed");
    let socket = format!("unix:{}", scratch.path("socket"));
    let args = ["--grpc", &socket, "--rules", &scratch.file("rules.yaml", ROOMY)];
    let mut daemon = Daemon::start(&args);
    let client = builder(&daemon).connect().unwrap();
    assert!(client.check(request("1")).await.unwrap().allowed);
    daemon.process.kill().unwrap();
    daemon.process.wait().unwrap();
    // Until the client has seen that the connection is gone, what it sends is lost with it.
    let told = timeout(PATIENCE, async {
        loop {
            match client.check(request("1")).await {
                Err(CheckError::Unavailable { reason }) => return reason,
                Err(CheckError::Lost { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    assert_ne!(told.await.expect("nobody was told"), "");
    let allowed = client.check_or(request("1"), FailurePolicy::Allow).await.unwrap();
    assert!(allowed.allowed && allowed.degraded);
    let denied = client.check_or(request("1"), FailurePolicy::Deny).await.unwrap();
    assert!(!denied.allowed && denied.degraded);

    let daemon = Daemon::start(&args);
    answered(&client).await;
    drop(client);
    assert_eq!(daemon.stop(), 0);
}

#[tokio::test]
async fn a_client_may_be_there_before_the_daemon() {
    let scratch = Scratch::new("grpc-before");
    let socket = format!("unix:{}", scratch.path("socket"));
    let client = Client::builder(socket.clone()).deadline(PATIENCE).connect().unwrap();
    let first = client.check(request("1")).await.unwrap_err();
    assert!(matches!(first, CheckError::Unavailable { .. }), "{first}");
    let _daemon = Daemon::start(&["--grpc", &socket]);
    answered(&client).await;
}

#[tokio::test]
async fn callers_that_go_away_leave_nothing_behind() {
    let scratch = Scratch::new("grpc-cancel");
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", ROOMY)]);
    let client = builder(&daemon).max_waiting(64).connect().unwrap();
    for round in 0..300_u32 {
        let mut callers = JoinSet::new();
        for _ in 0..64 {
            let client = client.clone();
            callers.spawn(async move { client.check(request("7")).await });
        }
        // Some are queued, some sent, some answered when they go.
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        callers.abort_all();
        while let Some(ended) = callers.join_next().await {
            match ended {
                // Those who were sent in the last round have their places until they are answered.
                Ok(Ok(_) | Err(CheckError::Overloaded { .. })) => {}
                Ok(Err(error)) => panic!("{error}"),
                Err(gone) => assert!(gone.is_cancelled()),
            }
        }
    }
    // One that waits its turn behind all of those: now nobody has a place but who is here.
    answered(&client).await;
    let mut callers = JoinSet::new();
    for _ in 0..64 {
        let client = client.clone();
        callers.spawn(async move { client.check(request("7")).await });
    }
    assert!(callers.join_all().await.iter().all(Result::is_ok), "a place was lost");
}

#[tokio::test]
async fn a_daemon_that_hangs_holds_nobody_longer_than_the_deadline() {
    let scratch = Scratch::new("grpc-hangs");
    let daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", ROOMY)]);
    let client = builder(&daemon)
        .deadline(Duration::from_millis(200))
        .connect_timeout(Duration::from_millis(300))
        .idle_timeout(Duration::from_millis(500))
        .max_waiting(100)
        .connect()
        .unwrap();
    answered(&client).await;
    daemon.signal("STOP");
    let mut callers = JoinSet::new();
    for _ in 0..1_000 {
        let client = client.clone();
        callers.spawn(async move { client.check(request("7")).await.unwrap_err() });
    }
    let errors = timeout(PATIENCE, callers.join_all()).await.expect("somebody waits for ever");
    let full =
        errors.iter().filter(|error| matches!(error, CheckError::Overloaded { max_waiting: 100 }));
    assert_eq!(full.count(), 900, "only as many wait as may");
    // The daemon says nothing, so the client looks for another connection, and callers are told.
    let told = timeout(PATIENCE, async {
        let mut tries = interval(Duration::from_millis(5));
        while !matches!(client.check(request("7")).await, Err(CheckError::Unavailable { .. })) {
            tries.tick().await;
        }
    });
    told.await.expect("the silence was not noticed");
    daemon.signal("CONT");
    answered(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_stops_answers_everything_that_was_sent() {
    let scratch = Scratch::new("grpc-stop");
    let mut daemon = Daemon::start(&["--rules", &scratch.file("rules.yaml", ROOMY)]);
    let client = builder(&daemon).connect().unwrap();
    answered(&client).await;
    let mut callers = JoinSet::new();
    for _ in 0..200 {
        let client = client.clone();
        callers.spawn(async move {
            let mut answers = 0;
            loop {
                match client.check(request("7")).await {
                    Ok(_) => answers += 1,
                    Err(error) => return (answers, error),
                }
            }
        });
    }
    // In the middle of it.
    for _ in 0..100 {
        client.check(request("8")).await.unwrap();
    }
    daemon.signal("TERM");
    for (answers, error) in timeout(PATIENCE, callers.join_all()).await.unwrap() {
        assert!(answers > 0);
        // Nothing was lost: each was answered, or never sent.
        assert!(matches!(error, CheckError::Unavailable { .. }), "{error}");
    }
    assert_eq!(daemon.wait(), 0);
}

#[tokio::test]
async fn a_daemon_with_a_token_answers_those_who_have_it() {
    let scratch = Scratch::new("grpc-token");
    let token = scratch.file("token", "0123456789abcdef\n");
    let daemon = Daemon::start(&["--token-file", &token]);
    let client = builder(&daemon).token("0123456789abcdef").connect().unwrap();
    assert!(client.check(request("1")).await.unwrap().allowed);
    assert!(client.calls().check(request("1")).await.unwrap().get_ref().allowed);
    for stranger in [builder(&daemon), builder(&daemon).token("0123456789abcdeX")] {
        let (reports, mut reported) = tokio::sync::mpsc::unbounded_channel();
        let on_fault = move |error: &CheckError| reports.send(error.to_string()).unwrap();
        let stranger = stranger.on_fault(on_fault).connect().unwrap();
        let error = stranger.check(request("1")).await.unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, CheckError::Refused { .. }), "{told}");
        assert!(told.contains("Unauthenticated: the token is missing or wrong"), "{told}");
        // No failure policy makes an answer of it, however often the client has tried again.
        for _ in 0..20 {
            let answer = stranger.check_or(request("1"), FailurePolicy::Allow).await;
            assert!(matches!(answer, Err(CheckError::Refused { .. })), "{answer:?}");
        }
        assert_eq!(timeout(PATIENCE, reported.recv()).await.unwrap(), Some(told));
        assert!(reported.try_recv().is_err(), "a fault that stays is reported once");
        let status = stranger.calls().check(request("1")).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unauthenticated);
    }
    let answer = client.check(request("1")).await.unwrap();
    assert_eq!(answer.remaining, Some(2), "strangers charge nothing");
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_told() {
    let told = |builder: ClientBuilder| builder.connect().unwrap_err().to_string();
    let at = |uri: &str| Client::builder(uri);
    for (builder, expected) in [
        (at("127.0.0.1:8081"), "`127.0.0.1:8081` is no address: write http://HOST:PORT"),
        (at("http://"), "`http://` is no address"),
        (at("ftp://x"), "`ftp://x` is no address"),
        (at("https://x:1"), "`https://x:1` asks for TLS: give the certificate"),
        (
            at("https://x:1").ca_certificate("no"),
            "the certificate, its authority or the key cannot",
        ),
        (at("http://x:1").token("two words"), "the token cannot be sent"),
        (at("http://x:1").token(""), "the token cannot be sent"),
        (at("http://x:1").deadline(Duration::ZERO), "`deadline` cannot be kept: use more than 0"),
        (at("http://x:1").max_waiting(0), "`max_waiting` cannot be kept: use 1 to 1,000,000"),
    ] {
        let told = told(builder);
        assert!(told.starts_with(expected), "{told}");
    }
    let outside = std::thread::spawn(|| Client::connect("http://x:1").unwrap_err().to_string());
    assert!(outside.join().unwrap().starts_with("there is no runtime"));
}

#[test]
fn a_client_that_is_gone_holds_no_daemon_up() {
    let mut command = serve(&[]);
    command.env("TOLLBAR_GRPC", "127.0.0.1:0");
    let daemon = Daemon::spawn(command);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = builder(&daemon).connect().unwrap();
        assert!(client.check(request("1")).await.unwrap().allowed);
        drop(client);
        assert_eq!(daemon.stop(), 0);
    });
}

#[tokio::test]
async fn a_client_and_a_daemon_that_vouch_for_each_other_talk() {
    let authority = authority();
    let scratch = Scratch::new("grpc-tls");
    let (cert, key) = issue(&authority, "localhost");
    let daemon = Daemon::start(&[
        "--tls-cert",
        &scratch.file("cert.pem", &cert),
        "--tls-key",
        &scratch.file("key.pem", &key),
        "--tls-client-ca",
        &scratch.file("ca.pem", &authority.pem()),
    ]);
    let port = daemon.address("grpcs").rsplit_once(':').unwrap().1;
    let at = || Client::builder(format!("https://localhost:{port}")).deadline(PATIENCE);
    let (cert, key) = issue(&authority, "a client");
    let client = at().ca_certificate(authority.pem()).identity(cert, key).connect().unwrap();
    assert!(client.check(request("1")).await.unwrap().allowed);

    let (cert, key) = issue(&authority, "a client");
    let stranger = self::authority();
    for (builder, who) in [
        (at().ca_certificate(authority.pem()), "shows no certificate"),
        (at().ca_certificate(stranger.pem()).identity(cert, key), "trusts another"),
        (Client::builder(format!("http://localhost:{port}")).deadline(PATIENCE), "is not secure"),
    ] {
        let error = builder.connect().unwrap().check(request("1")).await.unwrap_err();
        assert!(matches!(error, CheckError::Unavailable { .. }), "who {who}: {error}");
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, in PEM.
fn issue(authority: &CertifiedIssuer<'static, KeyPair>, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}
