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
    response
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_else(|| panic!("{response}"))
}

/// An upstream that answers each request with its head; where it asks for an upgrade, it becomes an
/// echo. Tells when a request has come, and answers those for `/slow` when it is told.
pub(crate) fn upstream() -> (String, Receiver<()>) {
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
    assert_eq!(
        [ask(&daemon, "", ""), ask(&daemon, "", "")].map(|answer| status(&answer)),
        [200, 200]
    );
}

#[test]
fn rules_of_a_file_decide_about_the_proxy_too() {
    let (upstream, _) = upstream();
    let scratch = Scratch::new("gateway-rules");
    let rules = "rules: [{ name: x, match: { path: /x }, limit: 1/hour }]";
    let daemon = proxy(&upstream, &["--rules", &scratch.file("rules.yaml", rules)]);
    assert_eq!(
        [ask(&daemon, "", ""), ask(&daemon, "", "")].map(|answer| status(&answer)),
        [200, 429]
    );
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
    // The balancer does not say who the client is: its own address counts, and the client's word does not.
    let unknown = ["PROXY UNKNOWN\r\n", "PROXY UNKNOWN\r\n"].map(|header| {
        let response = ask(&daemon, header, "x-forwarded-for: 203.0.113.3\r\n");
        assert!(!response.contains("203.0.113.3"), "{response}");
        status(&response)
    });
    assert_eq!(unknown, [200, 429]);
    assert_eq!(status(&ask(&daemon, "PROXY UNKNOWN\r\n", "x-forwarded-for: 203.0.113.4\r\n")), 429);
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
fn a_tunnel_that_does_not_end_is_cut_off_after_its_time() {
    let (upstream, _) = upstream();
    let mut daemon = proxy(&upstream, &["--limit", "9/hour", "--drain-timeout", "100ms"]);
    let mut stream = TcpStream::connect(daemon.address("proxy")).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .unwrap();
    assert_eq!(status(&head_of(&mut stream).unwrap()), 101);
    daemon.signal("TERM");
    // Without the flag it would take ten seconds.
    stream.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    let ended = stream.read(&mut [0]).map_err(|error| error.kind());
    assert_ne!(ended, Err(std::io::ErrorKind::WouldBlock), "it is not cut off");
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
        &[
            "--limit",
            "1000000/s",
            "--max-connections",
            "10000",
            "--max-connections-per-address",
            "10000",
            "--head-timeout",
            "10min",
        ],
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
            while answer.windows(4).filter(|window| window == b"\r\n\r\n").count() < 2 {
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

/// `--api-keys` and `--trusted-headers` were ignored here: every client was counted by its address.
#[test]
fn clients_of_the_gateway_are_counted_by_key_then_user_then_address() {
    let (upstream, _) = upstream();
    let scratch = Scratch::new("gateway-identity");
    let keys = scratch.file("keys", "partner 0123456789abcdef\nother fedcba9876543210\n");
    let flags = ["--limit", "2/hour", "--api-keys", &keys, "--trusted-headers", "user=X-User-Id"];
    let mut daemon = {
        let own = ["--proxy", "127.0.0.1:0", "--upstream", &upstream];
        let trusted = ["--trusted-proxies", "127.0.0.0/8"];
        Daemon::start_logged(&[&OFF, &own[..], &flags, &trusted].concat())
    };
    let spend = |daemon: &Daemon, client: &str, headers: &str| {
        let lines = format!("x-forwarded-for: {client}\r\n{headers}");
        [0; 3].map(|_| status(&ask(daemon, "", &lines)))
    };
    let (fresh, used_up) = ([200, 200, 429], [429; 3]);
    let [one, two] = ["192.0.2.1", "192.0.2.2"];
    assert_eq!(spend(&daemon, one, ""), fresh, "by address");
    assert_eq!(spend(&daemon, one, "x-api-key: none-of-the-keys\r\n"), used_up, "by address still");
    assert_eq!(spend(&daemon, one, "x-user-id: 7\r\n"), fresh, "by user");
    assert_eq!(spend(&daemon, two, "x-user-id: 7\r\n"), used_up, "by user, wherever from");
    let key = "x-api-key: 0123456789abcdef\r\nx-user-id: 7\r\n";
    assert_eq!(spend(&daemon, one, key), fresh, "by key");
    let bearer = "authorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(spend(&daemon, two, bearer), used_up, "by key, wherever from");
    // Keys are read again here as they are for proxies that ask.
    scratch.file("keys", "fourth 4444444444444444\n");
    daemon.signal("HUP");
    daemon.logged("API keys reloaded");
    assert_eq!(spend(&daemon, one, "x-api-key: 4444444444444444\r\n"), fresh, "a new key");
    assert_eq!(spend(&daemon, one, "x-api-key: fedcba9876543210\r\n"), used_up, "a key no more");
    daemon.signal("TERM");
    assert!(!daemon.rest_of_log().contains("4444444444444444"), "a key is in the log");
}

/// A daemon with one queue for each client, that answers both as a gateway and for forward-auth.
fn queue_daemon(scratch: &Scratch, upstream: &str, limit: &str, flags: &[&str]) -> Daemon {
    let rules = format!("rules: [{{ name: queue, limit: {limit} }}]");
    let rules = scratch.file("rules.yaml", &rules);
    let own = ["--proxy", "127.0.0.1:0", "--upstream", upstream, "--rules", &rules];
    let off = ["--grpc", "off", "--resp", "off", "--trusted-proxies", "127.0.0.0/8"];
    Daemon::start(&[&own[..], &off, flags].concat())
}

/// Sends a request of `client` to the gateway or to forward-auth, and returns the connection.
fn send(daemon: &Daemon, listener: &str, client: &str) -> TcpStream {
    let mut stream = TcpStream::connect(daemon.address(listener)).unwrap();
    // A response that takes longer has waited in a queue.
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (path, name) = match listener {
        "proxy" => ("/x", "x-forwarded-for"),
        _ => ("/v1/forward-auth/envoy/x", "x-real-ip"),
    };
    let lines = format!("host: a\r\nconnection: close\r\n{name}: {client}\r\n");
    write!(stream, "GET {path} HTTP/1.1\r\n{lines}\r\n").unwrap();
    stream
}

fn answered(mut stream: TcpStream) -> String {
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response without a wait");
    response
}

fn retry_after_s(response: &str) -> u64 {
    let (_, rest) =
        response.split_once("\r\nretry-after: ").unwrap_or_else(|| panic!("{response}"));
    rest.split_once('\r').unwrap().0.parse().unwrap()
}

/// Asks for the metrics until one has this value.
fn wait_for_metric(daemon: &Daemon, line: &str) {
    let line = format!("\n{line}\n");
    // Each turn waits for as long as it takes to ask: a minute and more, all in all.
    let mut scrapes = (0..20_000).map(|_| daemon.get_with("/metrics", ""));
    assert!(scrapes.any(|scrape| scrape.contains(&line)), "never {line}");
}

#[test]
fn an_operators_queue_of_an_hour_holds_nobody_beyond_the_cap() {
    let (upstream, _) = upstream();
    let scratch = Scratch::new("gateway-queue-cap");
    let limit = "1/h, queue: 5, max_wait: 5h";
    let daemon = queue_daemon(&scratch, &upstream, limit, &["--max-wait", "5s"]);
    for (listener, client) in [("proxy", "192.0.2.1"), ("http", "192.0.2.2")] {
        assert_eq!(status(&answered(send(&daemon, listener, client))), 200, "{listener}");
        for _ in 0..3 {
            let denied = answered(send(&daemon, listener, client));
            assert_eq!(status(&denied), 429, "{listener}");
            // The second turn is an hour after the first, 5 s of which may be waited. A charge would make it two hours.
            let seconds = retry_after_s(&denied);
            assert!((3_500..=3_600).contains(&seconds), "{listener}: {seconds} s");
        }
    }
    // By default the cap is 10 s; a shorter wait is waited for.
    let daemon = queue_daemon(&scratch, &upstream, "20/s, queue: 5", &[]);
    for (listener, client) in [("proxy", "192.0.2.1"), ("http", "192.0.2.2")] {
        let sent = [(); 3].map(|()| send(&daemon, listener, client));
        assert_eq!(sent.map(|stream| status(&answered(stream))), [200; 3], "{listener}");
    }
    wait_for_metric(&daemon, "tollbar_waiters 0");
    assert_eq!(daemon.stop(), 0);
}

/// The gateway and forward-auth share the places of a rule. A client that hangs up gives its place back.
#[test]
fn no_more_wait_than_have_a_place_and_others_charge_nothing() {
    let (upstream, _) = upstream();
    let scratch = Scratch::new("gateway-queue-places");
    let flags = ["--max-wait", "24h", "--max-waiters", "2"];
    let daemon = queue_daemon(&scratch, &upstream, "1/h, queue: 5", &flags);
    let listeners = ["proxy", "http"];
    let waiting = listeners.map(|listener| {
        let client = format!("192.0.2.{}", listener.len());
        assert_eq!(status(&answered(send(&daemon, listener, &client))), 200);
        send(&daemon, listener, &client)
    });
    wait_for_metric(&daemon, "tollbar_waiters 2");
    for (listener, client) in listeners.into_iter().zip(["192.0.2.11", "192.0.2.12"]) {
        // A client whose queue is empty needs no place.
        assert_eq!(status(&answered(send(&daemon, listener, client))), 200, "{listener}");
        for _ in 0..3 {
            let denied = answered(send(&daemon, listener, client));
            assert_eq!(status(&denied), 429, "{listener}");
            let seconds = retry_after_s(&denied);
            assert!((3_500..=3_600).contains(&seconds), "{listener}: {seconds} s, charged");
        }
    }
    wait_for_metric(&daemon, "tollbar_waits_refused_total 6");
    drop(waiting);
    wait_for_metric(&daemon, "tollbar_waiters 0");
    let _waits = listeners.map(|listener| send(&daemon, listener, "192.0.2.11"));
    wait_for_metric(&daemon, "tollbar_waiters 2");
}

/// A client behind nginx, which passes on what clients send: 200 of 200 requests passed a limit of 3 by changing
/// `X-User-Id`.
#[test]
fn a_header_that_is_not_named_names_nobody_even_from_a_trusted_proxy() {
    let (upstream, _) = upstream();
    let trusted = ["--limit", "3/hour", "--trusted-proxies", "127.0.0.0/8"];
    let daemon = proxy(&upstream, &trusted);
    let mut allowed = 0;
    for turn in 0..200 {
        let lines =
            ["x-user-id", "x_user_id", "x-remote-user", "cf-connecting-ip", "x_forwarded_for"];
        let lines = lines.map(|name| format!("{name}: claim-{turn}\r\n")).concat();
        let lines = format!("x-forwarded-for: 192.0.2.1\r\n{lines}");
        let response = ask(&daemon, "", &lines);
        assert!(!response.contains("claim-"), "the upstream is told: {response}");
        allowed += usize::from(status(&response) == 200);
    }
    assert_eq!(allowed, 3);
    let named = ["--trusted-headers", "edge_ip=CF-Connecting-IP"];
    let daemon = proxy(&upstream, &[&trusted[..], &named].concat());
    let lines = "cf-connecting-ip: 192.0.2.1\r\ncf_connecting_ip: 192.0.2.2\r\n";
    let response = ask(&daemon, "", lines);
    assert!(response.contains("\r\ncf-connecting-ip: 192.0.2.1\r\n"), "{response}");
    assert!(!response.contains("192.0.2.2"), "{response}");
}

/// 31 of 32 spellings of `/login` reached an upstream that ignores case, past a limit of 3.
#[test]
fn no_spelling_of_a_path_gets_past_the_gateway() {
    let (upstream, asked) = upstream();
    let scratch = Scratch::new("gateway-spellings");
    let rules = "paths: { case: insensitive, matrix: strip }
rules: [{ name: guesses, match: { path: /login }, limit: 3/h }]";
    let daemon = proxy(&upstream, &["--rules", &scratch.file("rules.yaml", rules)]);
    let get = |path: &str| {
        let stream = TcpStream::connect(daemon.address("proxy")).unwrap();
        status(&exchange(
            stream,
            format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
        ))
    };
    for path in ["/login%00", "/x%5C..%5Clogin"] {
        assert_eq!(get(path), 400, "{path}");
    }
    let endings = ["", ";x", "/", "%3Bx", "/..;/login"];
    let statuses: Vec<u16> = (0..32_u32)
        .zip(endings.iter().cycle())
        .map(|(bits, ending)| {
            let spell = |(at, letter): (usize, char)| match bits >> at & 1 {
                0 => letter,
                _ => letter.to_ascii_uppercase(),
            };
            let login: String = "login".chars().enumerate().map(spell).collect();
            get(&format!("/{login}{ending}"))
        })
        .collect();
    assert_eq!(statuses, [vec![200; 3], vec![429; 29]].concat());
    assert_eq!(asked.try_iter().count(), 3);
    assert_eq!(get("/elsewhere"), 200);
}

#[test]
fn headers_of_clients_count_for_nothing_and_do_not_reach_the_upstream() {
    let (upstream, _) = upstream();
    let trusted = ["--trusted-headers", "user=X-User-Id", "--trusted-proxies", "10.0.0.0/8"];
    let terms = ["--cost-header", "X-Cost", "--request-id-header", "X-Request-Id"];
    let daemon = proxy(&upstream, &[&["--limit", "2/hour"][..], &trusted, &terms].concat());
    let claimed = "x-user-id: 7\r\nx-cost: 0\r\nx-request-id: r\r\nx-other: kept\r\n";
    let first = ask(&daemon, "", claimed);
    assert_eq!(status(&first), 200);
    for (header, is_passed) in [
        ("x-user-id: ", false),
        ("x-cost: ", false),
        ("x-request-id: ", false),
        ("x-other: ", true),
    ] {
        assert_eq!(first.contains(header), is_passed, "{header} in {first}");
    }
    let claimed = |user: &str| format!("x-user-id: {user}\r\nx-cost: 0\r\nx-request-id: r\r\n");
    assert_eq!(["8", "9"].map(|user| status(&ask(&daemon, "", &claimed(user)))), [200, 429]);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn the_gateway_reads_cost_and_request_id_of_trusted_proxies_only() {
    let (upstream, _) = upstream();
    let terms = ["--cost-header", "X-Cost", "--request-id-header", "X-Request-Id"];
    let trusted = ["--limit", "5/hour", "--trusted-proxies", "127.0.0.0/8"];
    let daemon = proxy(&upstream, &[&trusted[..], &terms].concat());
    let asked = |lines: &str| {
        let response = ask(&daemon, "", &format!("x-forwarded-for: 192.0.2.1\r\n{lines}"));
        let remaining = "\r\nx-ratelimit-remaining: ";
        let left = response.split_once(remaining).map(|(_, rest)| rest[..1].to_owned());
        (status(&response), left.unwrap_or_default())
    };
    let costly = "x-cost: 3\r\nx-request-id: r-1\r\n";
    assert_eq!(asked(costly), (200, "2".to_owned()));
    assert_eq!(asked(costly), (200, "2".to_owned()), "an id is charged once");
    assert_eq!(asked("x-cost: 3\r\n"), (429, "2".to_owned()));
    assert_eq!(asked("x-cost: 0\r\n"), (200, "2".to_owned()), "a peek");
    assert_eq!(asked(""), (200, "1".to_owned()));
    assert_eq!(asked("x-cost: lots\r\n").0, 400);
    assert_eq!(asked("x-cost: 0\r\nx-cost: 0\r\n").0, 400);
    assert_eq!(asked(""), (200, "0".to_owned()), "what was refused was not charged");
    assert_eq!(daemon.stop(), 0);
}

/// During an outage of the store, a rule that sheds lets those pass that matter most.
#[test]
fn the_criticality_that_a_trusted_proxy_sets_decides_who_is_shed() {
    let (upstream, _) = upstream();
    let scratch = Scratch::new("gateway-criticality");
    let rules = "rules: [{ name: a, limit: 9/s, on_store_failure: shed }]";
    let rules = scratch.file("rules.yaml", rules);
    let own = ["--proxy", "127.0.0.1:0", "--upstream", &upstream, "--rules", &rules];
    let store = ["--store", "redis://127.0.0.1:1", "--store-raw-keys"];
    let trusted = ["--trusted-proxies", "127.0.0.0/8", "--criticality-header", "X-Criticality"];
    let daemon = Daemon::start(&[&own[..], &store, &trusted].concat());
    for (lines, expected) in [
        ("", 429),
        ("x-criticality: low\r\n", 429),
        ("x-criticality: critical\r\n", 200),
        ("x-criticality: urgent\r\n", 400),
    ] {
        let forwarded = format!("x-forwarded-for: 192.0.2.1\r\n{lines}");
        assert_eq!(status(&ask(&daemon, "", &forwarded)), expected, "the gateway, {lines:?}");
        let original = "x-original-method: GET\r\nx-original-uri: /x\r\nx-real-ip: 192.0.2.1\r\n";
        let response = daemon.get_with("/v1/forward-auth/haproxy", &format!("{original}{lines}"));
        assert_eq!(status(&response), expected, "forward-auth, {lines:?}");
    }
    assert_eq!(daemon.stop(), 0);
}

/// A client may say that nobody waits for its request, and not that it goes before others.
#[test]
fn a_client_of_the_gateway_can_only_lower_its_criticality() {
    let (upstream, _) = upstream();
    let scratch = Scratch::new("gateway-lowered");
    let rules = scratch.file(
        "rules.yaml",
        "rules:
  - { name: pay, match: { path: /pay }, criticality: critical }
  - { name: all, limit: 9/s, on_store_failure: shed }",
    );
    let own = ["--proxy", "127.0.0.1:0", "--upstream", &upstream, "--rules", &rules];
    let store = ["--store", "redis://127.0.0.1:1", "--store-raw-keys"];
    // The test's own address is not among the trusted proxies.
    let others = ["--trusted-proxies", "192.0.2.0/24", "--criticality-header", "X-Criticality"];
    let daemon = Daemon::start(&[&own[..], &store, &others].concat());
    let ask = |path: &str, line: &str| {
        let stream = TcpStream::connect(daemon.address("proxy")).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{line}\r\n");
        status(&exchange(stream, head))
    };
    for (path, line, expected) in [
        ("/x", "", 429),
        ("/x", "x-criticality: critical\r\n", 429),
        ("/pay", "", 200),
        ("/pay", "x-criticality: critical\r\n", 200),
        ("/pay", "x-criticality: low\r\n", 429),
        // What is no criticality says nothing.
        ("/pay", "x-criticality: lowest\r\n", 200),
        ("/pay", "x-criticality: low\r\nx-criticality: low\r\n", 200),
    ] {
        assert_eq!(ask(path, line), expected, "{path} {line:?}");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn the_upstream_is_treated_as_the_flags_say() {
    let (upstream, _) = upstream();
    let daemon = proxy(&upstream, &["--limit", "9/s", "--upstream-host"]);
    let host = upstream.strip_prefix("http://").unwrap();
    let answer = ask(&daemon, "", "");
    assert!(answer.contains(&format!("\r\nhost: {host}\r\n")), "{answer}");

    // One that takes connections and says nothing, and one that says half of its answer. Each is under the one
    // timeout that ends it: half an answer may take a busy machine longer than the other timeout.
    for (said, timeout, expected) in [
        ("", "--upstream-answer-timeout", 504),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", "--upstream-idle-timeout", 200),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let streams: Vec<TcpStream> = listener
                .incoming()
                .map(|stream| {
                    let mut stream = stream.unwrap();
                    head_of(&mut stream);
                    stream.write_all(said.as_bytes()).unwrap();
                    stream
                })
                .collect();
            drop(streams);
        });
        let daemon = proxy(&silent, &["--limit", "9/s", timeout, "50ms"]);
        let mut stream = TcpStream::connect(daemon.address("proxy")).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        // Without the flags it would take half a minute and more.
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[9..], expected.to_string().as_bytes());
        if expected == 200 {
            // What was begun is broken off.
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest).map_err(|error| error.kind());
            assert_ne!(ended, Err(std::io::ErrorKind::WouldBlock), "it is not broken off");
            assert!(rest.ends_with(b"half"), "{}", String::from_utf8_lossy(&rest));
        }
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_write() {
    for (flags, advice) in [
        (&["--proxy", "127.0.0.1:0"][..], "--upstream"),
        (&["--upstream", "127.0.0.1:3000"], "such as http://127.0.0.1:3000"),
        (&["--upstream", "http://127.0.0.1:3000/path"], "no path behind it"),
        (&["--limit", "lots"], "--limit"),
        // Was reported as a mistake of --rules, which nobody had given.
        (&["--limit", "0/min"], "invalid value '0/min' for '--limit <RATE>': the limit is 0"),
        (&["--limit", "1/s", "--rules", "x.yaml"], "--limit and --rules exclude each other"),
        (&["--upstream", "http://127.0.0.1:1", "--exempt-paths", "health"], "begin it with `/`"),
        (&["--upstream", "http://127.0.0.1:1", "--exempt-paths", "/a/*"], "`unlimited: true`"),
        (
            &["--upstream", "http://127.0.0.1:1", "--cost-header", "x-c"],
            "--trusted-proxies 10.0.0.0/8",
        ),
        (&["--upstream", "http://127.0.0.1:1", "--upstream-ca", "/none"], "write an https:// URL"),
        (&["--upstream", "http://127.0.0.1:1", "--proxy-protocol"], "--trusted-proxies"),
        (
            &["--trusted-headers", "user=X-A,tenant=X-T,user=X-B"],
            "--trusted-headers reads `user` from X-A and from X-B, and only one can count",
        ),
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
    let flags = ["--proxy", "127.0.0.1:0", "--upstream", &upstream, "--limit", "5/hour"];
    let trusted = ["--trusted-proxies", "127.0.0.0/8", "--cost-header", "X-Cost"];
    let daemon = Daemon::start(&[&flags[..], &trusted].concat());
    let client = "x-forwarded-for: 192.0.2.1\r\nx-cost: 3\r\n";
    let allowed = ask(&daemon, "", client);
    assert!(!allowed.contains("x-tollbar-decision-id"), "{allowed}");
    let denied = ask(&daemon, "", client);
    assert_eq!(status(&denied), 429);
    assert!(denied.contains("\r\nretry-after: "), "{denied}");
    let told = daemon.get_with(&format!("/v1/decisions/{}", decision_of(&denied)), "");
    assert_eq!(status(&told), 200, "{told}");
    for part in [r#""path":"/x""#, r#""ip":"192.0.2.1""#, r#""rule":"limit""#, r#""cost":3"#] {
        assert!(told.contains(part), "{part} in {told}");
    }
    let other = ask(&daemon, "", client);
    assert_ne!(decision_of(&other), decision_of(&denied));
    assert_eq!(daemon.stop(), 0);
}

/// Everything that a denial was made from can be read again: long values, both readings of an encoded slash, how critical
/// the request was.
#[test]
fn an_explanation_has_everything_that_the_denial_was_made_from() {
    let (upstream, _) = upstream();
    let flags = ["--proxy", "127.0.0.1:0", "--upstream", &upstream, "--limit", "1/hour"];
    let trusted = ["--trusted-proxies", "127.0.0.0/8", "--criticality-header", "X-Crit"];
    let names: Vec<String> = (0..9).map(|at| format!("a{at}=X-A{at}")).collect();
    let headers = format!("user=X-User-Id,{}", names.join(","));
    let daemon = Daemon::start(&[&flags[..], &trusted, &["--trusted-headers", &headers]].concat());
    let long = "\"".repeat(500);
    let lines = (0..9).map(|at| format!("x-a{at}: {long}\r\n")).collect::<Vec<_>>().concat();
    let ask = || {
        let stream = TcpStream::connect(daemon.address("proxy")).unwrap();
        let head = format!(
            "GET /a%2Fb/c%3Fd?e=f HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-user-id: 42\r\n\
             {lines}x-crit: high\r\n\r\n"
        );
        exchange(stream, head)
    };
    assert_eq!(status(&ask()), 200);
    let denied = ask();
    assert_eq!(status(&denied), 429);
    let told = daemon.get_with(&format!("/v1/decisions/{}", decision_of(&denied)), "");
    let (_, body) = told.split_once("\r\n\r\n").unwrap();
    let told: serde_json::Value = serde_json::from_str(body).unwrap();
    let request = &told["request"];
    assert_eq!(request["attributes"]["user"], "42", "{told}");
    assert_eq!(request["attributes"]["a8"], *long, "{told}");
    assert_eq!(request["attributes"]["ip"], "127.0.0.1", "{told}");
    assert_eq!(
        (&request["criticality"], &request["path"]),
        (&"high".into(), &"/a%2Fb/c%3Fd".into())
    );
    assert_eq!(told["now"]["path"], "/a/b/c?d", "{told}");
    assert_eq!(told["now"]["allowed"], false, "{told}");
    // It can be asked again, as it is.
    let again = daemon.post("/v1/explain", &request.to_string().replace("\"cost\":1,", ""));
    assert_eq!(status(&again), 200, "{again}");
    assert_eq!(daemon.stop(), 0);
}

/// Port 8080 was taken by the very service that the proxy was to stand in front of.
#[test]
fn beside_an_upstream_other_listeners_open_only_on_request() {
    let (upstream, _) = upstream();
    let proxy = |args: &[&str], variable: Option<(&str, &str)>| {
        let own = ["--proxy", "127.0.0.1:0", "--upstream", &upstream, "--limit", "9/s"];
        let mut command = serve(&[&own, args].concat());
        for listener in ["TOLLBAR_LISTEN", "TOLLBAR_GRPC", "TOLLBAR_RESP"] {
            command.env_remove(listener);
        }
        command.envs(variable);
        Daemon::spawn(command)
    };
    let names = |daemon: &Daemon| daemon.addresses().keys().cloned().collect::<Vec<_>>().join(" ");
    let daemon = proxy(&[], None);
    assert_eq!(names(&daemon), "proxy");
    let greeting = daemon.greeting.join("\n");
    let advice = "for health, metrics and why requests were denied: add --listen 127.0.0.1:8080";
    assert!(greeting.contains(advice), "{greeting}");
    assert_eq!(daemon.stop(), 0);

    let daemon = proxy(&["--listen", "127.0.0.1:0"], None);
    assert_eq!(names(&daemon), "http proxy");
    assert!(!daemon.greeting.join("\n").contains("add --listen"));
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(status(&daemon.get_with(path, "")), 200, "{path}");
    }
    assert_eq!(daemon.stop(), 0);

    let scratch = Scratch::new("gateway-listeners");
    let file = scratch.file("config.yaml", "grpc: 127.0.0.1:0\n");
    let daemon = proxy(&["--config", &file], Some(("TOLLBAR_RESP", "127.0.0.1:0")));
    assert_eq!(names(&daemon), "grpc proxy resp");
    assert_eq!(daemon.stop(), 0);

    // What needs one of them says which.
    let output = serve(&["--upstream", &upstream, "--allowed-hosts", "a.example"])
        .env_remove("TOLLBAR_LISTEN")
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("--allowed-hosts has no effect without a --listen that is not off"),
        "{error}"
    );
}

/// The first who learned that the URL was wrong were clients, and the log said nothing of 502.
#[test]
fn an_upstream_that_fails_is_logged_at_the_start_once_and_when_it_is_back() {
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let url = format!("http://{address}");
    let own = ["--proxy", "127.0.0.1:0", "--upstream", &url, "--limit", "1000/s"];
    let mut daemon = Daemon::start_logged(&[&OFF, &own[..]].concat());
    let first = daemon.logged("the upstream fails: cannot connect: ");
    assert!(first.contains("WARN") && first.contains(&url), "{first}");
    let failed = [0; 10].map(|_| status(&ask(&daemon, "", "")));
    assert!(failed.iter().all(|status| [502, 503].contains(status)), "{failed:?}");
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer(stream.unwrap(), &channel().0));
        }
    });
    // The breaker tries again by itself.
    assert!((0..100_000).any(|_| status(&ask(&daemon, "", "")) == 200));
    daemon.logged("the upstream answers again");
    daemon.signal("TERM");
    assert_eq!(daemon.wait(), 0);
    let rest = daemon.rest_of_log();
    assert!(!rest.contains("the upstream"), "{rest}");
}
