//! The daemon as a reverse proxy: the real binary between a client and an upstream.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::common::http::exchange;
use crate::common::{Daemon, Scratch, serve, status};

const OFF: [&str; 6] = ["--listen", "off", "--grpc", "off", "--resp", "off"];

/// What the header of a denial says, by which it can be asked about.
fn decision_of(response: &str) -> &str {
    let name = "x-tollbar-decision-id: ";
    response.lines().find_map(|it| it.strip_prefix(name)).unwrap_or_else(|| panic!("{response}"))
}

/// An upstream that answers each request with its head; where it asks for an upgrade, it becomes an
/// echo. Tells when a request has come, and answers those for `/slow` when it is told.
fn upstream() -> (String, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (come, has_come) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let come = come.clone();
            thread::spawn(move || answer(stream.unwrap(), &come));
        }
    });
    (url, has_come)
}

fn head_of(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

fn answer(mut stream: TcpStream, come: &std::sync::mpsc::Sender<()>) {
    while let Some(head) = head_of(&mut stream) {
        let _ = come.send(());
        if head.contains("upgrade: echo") {
            let head =
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            let mut back = stream.try_clone().unwrap();
            let _ = std::io::copy(&mut stream, &mut back);
            return;
        }
        let length = head.len();
        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{head}");
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn proxy(upstream: &str, flags: &[&str]) -> Daemon {
    let own = ["--proxy", "127.0.0.1:0", "--upstream", upstream];
    Daemon::start(&[&OFF, &own[..], flags].concat())
}

fn ask(daemon: &Daemon, before: &str, headers: &str) -> String {
    let stream = TcpStream::connect(daemon.address("proxy")).unwrap();
    exchange(
        stream,
        format!("{before}GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n"),
    )
}

#[test]
fn an_upstream_and_a_limit_make_a_proxy() {
    let (upstream, _) = upstream();
    let daemon = proxy(&upstream, &["--limit", "2/hour"]);
    let address = daemon.address("proxy");
    let greeting = daemon.greeting.join("\n");
    assert!(greeting.contains("rules: 2/hour for each client"), "{greeting}");
    assert!(greeting.ends_with(&format!("try: curl -i http://{address}/")), "{greeting}");
    let first = ask(&daemon, "", "");
    assert_eq!(status(&first), 200);
    assert!(first.contains("\r\nx-ratelimit-remaining: 1\r\n"), "{first}");
    assert!(first.contains("x-forwarded-for: 127.0.0.1\r\n"), "{first}");
    assert_eq!(status(&ask(&daemon, "", "x-forwarded-for: 192.0.2.1\r\n")), 200);
    assert_eq!(status(&ask(&daemon, "", "x-forwarded-for: 192.0.2.2\r\n")), 429);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn trusted_proxies_and_exempt_paths_are_as_told() {
    let (upstream, _) = upstream();
    let trusted = ["--limit", "1/hour", "--trusted-proxies", "127.0.0.0/8,::1"];
    let daemon = proxy(&upstream, &trusted);
    for (client, expected) in [("192.0.2.1", 200), ("192.0.2.1", 429), ("192.0.2.2", 200)] {
        let header = format!("x-forwarded-for: {client}\r\n");
        assert_eq!(status(&ask(&daemon, "", &header)), expected, "{client}");
    }
    let daemon = proxy(&upstream, &["--limit", "1/hour", "--exempt-paths", "/x"]);
    assert_eq!([ask(&daemon, "", ""), ask(&daemon, "", "")].map(|it| status(&it)), [200, 200]);
}

#[test]
fn rules_of_a_file_decide_about_the_proxy_too() {
    let (upstream, _) = upstream();
    let scratch = Scratch::new("gateway-rules");
    let rules = "rules: [{ name: x, match: { path: /x }, limit: 1/hour }]";
    let daemon = proxy(&upstream, &["--rules", &scratch.file("rules.yaml", rules)]);
    assert_eq!([ask(&daemon, "", ""), ask(&daemon, "", "")].map(|it| status(&it)), [200, 429]);
}

#[test]
fn proxy_headers_are_believed_of_trusted_peers_only() {
    let (upstream, _) = upstream();
    let (limit, asked) = (["--limit", "1/hour"], "--proxy-protocol");
    let trusting = [&limit[..], &[asked, "--trusted-proxies", "127.0.0.1/32"]].concat();
    let daemon = proxy(&upstream, &trusting);
    let told = |client: &str| format!("PROXY TCP4 {client} 192.0.2.9 1000 80\r\n");
    let first = ask(&daemon, &told("192.0.2.1"), "x-forwarded-for: 203.0.113.1\r\n");
    assert!(first.contains("x-forwarded-for: 192.0.2.1\r\n"), "{first}");
    assert_eq!(status(&ask(&daemon, &told("192.0.2.1"), "x-forwarded-for: 203.0.113.2\r\n")), 429);
    assert_eq!(status(&ask(&daemon, &told("192.0.2.2"), "")), 200);
    assert_eq!(ask(&daemon, "", ""), "", "a connection without the header is closed");
    let strangers = [&limit[..], &[asked, "--trusted-proxies", "192.0.2.0/24"]].concat();
    let daemon = proxy(&upstream, &strangers);
    assert_eq!(ask(&daemon, &told("192.0.2.1"), ""), "", "a stranger is not listened to");
}

#[test]
fn a_tunnel_has_the_time_to_end_by_itself() {
    let (upstream, has_come) = upstream();
    let mut daemon = proxy(&upstream, &["--limit", "9/hour"]);
    let mut stream = TcpStream::connect(daemon.address("proxy")).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .unwrap();
    assert_eq!(status(&head_of(&mut stream).unwrap()), 101);
    has_come.recv().unwrap();
    let address = daemon.address("proxy").to_owned();
    daemon.signal("TERM");
    // It has heard the signal when nobody listens any more.
    while TcpStream::connect(&address).is_ok() {}
    let mut echoed = [0; 5];
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"hello");
    drop(stream);
    assert_eq!(daemon.wait(), 0);
}

#[test]
#[ignore = "long: a minute for twenty thousand requests, one by one, on a busy machine"]
fn ten_thousand_connections_are_kept_alive() {
    const CONNECTIONS: usize = 10_000;
    let allowed = rlimit::increase_nofile_limit(CONNECTIONS as u64 + 2_000).unwrap();
    assert!(allowed > CONNECTIONS as u64 + 500, "only {allowed} files may be open");
    let (upstream, _has_come) = upstream();
    let daemon = proxy(
        &upstream,
        &["--limit", "1000000/s", "--max-connections", "10000", "--head-timeout", "10min"],
    );
    let address = daemon.address("proxy");
    assert_eq!(status(&ask(&daemon, "", "")), 200);
    let before_kib = daemon.rss_kib();
    let mut clients: Vec<_> =
        (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
    for _ in 0..2 {
        for client in &mut clients {
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
            let (mut answer, mut buffer) = (Vec::new(), [0; 2_048]);
            // The body is the head of the request, so that there are two empty lines in all.
            while answer.windows(4).filter(|it| it == b"\r\n\r\n").count() < 2 {
                let count = client.read(&mut buffer).unwrap();
                assert_ne!(count, 0, "it is kept");
                answer.extend_from_slice(&buffer[..count]);
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
        }
        let kib = daemon.rss_kib() - before_kib;
        println!("10,000 kept connections: {kib} KiB more than none");
        assert!(kib < CONNECTIONS * 40, "{kib} KiB: more than 40 KiB a connection");
    }
    drop(clients);
    assert_eq!(daemon.stop(), 0);
}

/// The status of the next answer; its body is read and forgotten.
fn next_status(stream: &mut BufReader<TcpStream>) -> u16 {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "it is kept");
        if let Some(told) = line.strip_prefix("content-length: ") {
            length = told.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    std::io::copy(&mut stream.take(length), &mut std::io::sink()).unwrap();
    status(&head)
}

#[test]
#[ignore = "long: ten minutes of traffic"]
fn memory_stays_what_it_is_for_ten_minutes() {
    let (upstream, has_come) = upstream();
    // Or what has come would be counted up here.
    drop(has_come);
    let daemon = proxy(&upstream, &["--limit", "100/min", "--trusted-proxies", "127.0.0.0/8"]);
    let is_over = AtomicBool::new(false);
    let counts = [const { AtomicU64::new(0) }; 2];
    let ask_on = || {
        let mut number = 0_usize;
        while !is_over.load(Ordering::Relaxed) {
            let stream = TcpStream::connect(daemon.address("proxy")).unwrap();
            let mut stream = BufReader::new(stream);
            for _ in 0..100 {
                number += 1;
                let client = number % 250;
                let head =
                    format!("GET /x HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.{client}\r\n");
                stream.get_mut().write_all(format!("{head}\r\n").as_bytes()).unwrap();
                let is_denied = next_status(&mut stream) == 429;
                counts[usize::from(is_denied)].fetch_add(1, Ordering::Relaxed);
            }
            // The answer to the last one finds nobody.
            stream.get_mut().write_all(b"GET /y HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        }
    };
    let (_going_on, minute) = channel::<()>();
    let minutes: Vec<usize> = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(ask_on);
        }
        let minutes = (0..10).map(|_| {
            let _ = minute.recv_timeout(Duration::from_mins(1));
            daemon.rss_kib()
        });
        let minutes = minutes.collect();
        is_over.store(true, Ordering::Relaxed);
        minutes
    });
    let [allowed, denied] = counts.map(AtomicU64::into_inner);
    println!("KiB after each minute: {minutes:?}; {allowed} allowed, {denied} denied");
    assert!(allowed > 10_000 && denied > 10_000, "{allowed} allowed, {denied} denied");
    // Clients, connections and denials that are remembered have their room after the first minute.
    assert!(minutes[9] < minutes[0] + minutes[0] / 10, "{minutes:?} KiB");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_write() {
    for (flags, advice) in [
        (&["--proxy", "127.0.0.1:0"][..], "--upstream"),
        (&["--upstream", "127.0.0.1:3000"], "such as http://127.0.0.1:3000"),
        (&["--upstream", "http://127.0.0.1:3000/path"], "no path behind it"),
        (&["--limit", "lots"], "--limit"),
        (&["--limit", "1/s", "--rules", "x.yaml"], "cannot be used with"),
        (&["--upstream", "http://127.0.0.1:1", "--proxy-protocol"], "--trusted-proxies"),
        (&["--upstream", "http://127.0.0.1:1", "--trusted-proxies", "everybody"], "everybody"),
        (
            &["--upstream", "https://127.0.0.1:1", "--upstream-ca", "/none"],
            "--upstream-ca: cannot read",
        ),
    ] {
        let output = serve(&[flags, &["--check-config"]].concat()).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {told}");
        assert!(told.contains(advice), "{flags:?}: {told}");
    }
}

#[test]
fn a_denial_can_be_asked_about() {
    let (upstream, _) = upstream();
    let flags = ["--proxy", "127.0.0.1:0", "--upstream", &upstream, "--limit", "1/hour"];
    let flags = [&flags[..], &["--trusted-proxies", "127.0.0.0/8"]].concat();
    let daemon = Daemon::start(&flags);
    let client = "x-forwarded-for: 192.0.2.1\r\n";
    let allowed = ask(&daemon, "", client);
    assert!(!allowed.contains("x-tollbar-decision-id"), "{allowed}");
    let denied = ask(&daemon, "", client);
    assert_eq!(status(&denied), 429);
    assert!(denied.contains("\r\nretry-after: "), "{denied}");
    let told = daemon.get_with(&format!("/v1/decisions/{}", decision_of(&denied)), "");
    assert_eq!(status(&told), 200, "{told}");
    for part in [r#""path":"/x""#, r#""ip":"192.0.2.1""#, r#""rule":"limit""#] {
        assert!(told.contains(part), "{part} in {told}");
    }
    let other = ask(&daemon, "", client);
    assert_ne!(decision_of(&other), decision_of(&denied));
    assert_eq!(daemon.stop(), 0);
}
