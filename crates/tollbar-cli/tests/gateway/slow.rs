//! Clients that hold connections of the gateway and are slow on purpose. Real time passes here: each wait is for an event,
//! and bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use tokio::net::TcpSocket;

use crate::common::http::exchange;
use crate::common::{Daemon, status};

const PATIENCE: Duration = Duration::from_mins(1);
const MOMENT: Duration = Duration::from_millis(20);

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// Starts an upstream that reads the whole body of each request, as long as `content-length` says, and answers 200. It never
/// answers `/held`, and becomes a tunnel where it is asked to.
fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer(stream.unwrap()));
        }
    });
    url
}

fn answer(mut stream: TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while stream.read_exact(&mut byte).is_ok() {
        head.push(byte[0]);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
        if text.starts_with("GET /held ") {
            // Until the gateway ends it.
            let _ = stream.read(&mut byte);
            return;
        }
        if text.contains("upgrade: echo") {
            let head =
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
            return;
        }
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.parse().unwrap());
        if std::io::copy(&mut (&mut stream).take(length), &mut std::io::sink()).unwrap_or(0)
            < length
        {
            return;
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}

/// Starts a daemon in front of an upstream. Only its clients end connections.
fn gateway(flags: &[&str]) -> Daemon {
    let upstream = upstream();
    let own = ["--upstream", &upstream, "--proxy", "127.0.0.1:0", "--grpc", "off", "--resp", "off"];
    Daemon::start(&[&own[..], &["--limit", "1000000/s", "--head-timeout", "24h"], flags].concat())
}

/// Connects to the gateway from an address of this machine: 127.0.0.`last`.
fn connect_from(daemon: &Daemon, last: u8) -> TcpStream {
    let address: SocketAddr = daemon.address("proxy").parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
        socket.connect(address).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Begins a request that does not end.
fn begin_head(mut stream: TcpStream) -> TcpStream {
    // A connection that was refused may be gone.
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx: ");
    stream
}

fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

fn refused(daemon: &Daemon, reason: &str) -> u64 {
    let series =
        format!("tollbar_connections_refused_total{{listener=\"proxy\",reason=\"{reason}\"}} ");
    let metrics = daemon.get_with("/metrics", "");
    metrics.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
}

/// Waits until so many connections were refused.
fn wait_for_refusals(daemon: &Daemon, reason: &str, count: u64) {
    let is_reached = (0..100_000).any(|_| refused(daemon, reason) >= count);
    assert!(is_reached, "{} were refused", refused(daemon, reason));
    assert_eq!(refused(daemon, reason), count);
}

/// 1,024 slow heads from one address took every connection: others were answered 30 s later, round after round.
#[test]
fn one_address_holds_a_quarter_of_the_connections() {
    rlimit::increase_nofile_limit(2_500).unwrap();
    let daemon = gateway(&[]);
    let held: Vec<_> = (0..1_024).map(|_| begin_head(connect_from(&daemon, 2))).collect();
    assert_eq!(status(&exchange(connect_from(&daemon, 3), GET)), 200);
    wait_for_refusals(&daemon, "address", 768);
    assert_eq!(held.iter().skip(256).filter(|stream| is_closed(stream)).count(), 768);
    // The slots of connections that have ended are free.
    drop(held);
    let is_served = || exchange(connect_from(&daemon, 2), GET).starts_with("HTTP/1.1 200");
    assert!((0..100_000).any(|_| is_served()));
}

#[test]
fn trusted_proxies_hold_any_number_and_the_clients_that_they_name_are_counted() {
    let bound = ["--max-connections-per-address", "2"];
    let daemon = gateway(&[&bound[..], &["--trusted-proxies", "127.0.0.2"]].concat());
    let held = [2, 2, 2, 3, 3].map(|last| begin_head(connect_from(&daemon, last)));
    assert_eq!(status(&exchange(connect_from(&daemon, 2), GET)), 200);
    assert!(is_closed(&connect_from(&daemon, 3)));
    assert_eq!(refused(&daemon, "address"), 1);
    drop(held);

    let named = ["--trusted-proxies", "127.0.0.0/8", "--proxy-protocol"];
    let daemon = gateway(&[&bound[..], &named].concat());
    let connect = |client: &str| {
        let mut stream = connect_from(&daemon, 2);
        let header = format!("PROXY TCP4 {client} 192.0.2.9 1000 80\r\n");
        stream.write_all(header.as_bytes()).unwrap();
        stream
    };
    let held = ["192.0.2.1", "192.0.2.1"].map(|client| begin_head(connect(client)));
    // Those two are read one after the other, in tasks of their own.
    assert!((0..500).any(|_| is_closed_soon(&begin_head(connect("192.0.2.1")))));
    assert_eq!(status(&exchange(connect("192.0.2.2"), GET)), 200);
    drop(held);
}

fn is_closed_soon(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(MOMENT)).unwrap();
    is_closed(stream)
}

/// Sends `piece` each moment until the gateway answers or so many pieces are sent; returns the answer.
fn upload(daemon: &Daemon, piece: &[u8], count: usize) -> String {
    let mut stream = connect_from(daemon, 2);
    let length = piece.len() * count;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(MOMENT)).unwrap();
    let mut answer = Vec::new();
    for _ in 0..count {
        let _ = stream.write_all(piece);
        match stream.read_to_end(&mut answer) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => return String::from_utf8(answer).unwrap(),
        }
    }
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// A body of one byte each 4 s held its connection forever: the time of an answer began again with each byte.
#[test]
fn a_body_that_trickles_is_ended_and_a_slow_upload_is_not() {
    let daemon = gateway(&["--body-timeout", "300ms", "--min-body-rate", "200"]);
    assert_eq!(status(&upload(&daemon, b"x", 3_000)), 408);
    assert_eq!(status(&upload(&daemon, &[b'x'; 400], 50)), 200);
}

#[test]
fn a_body_has_a_time_in_all() {
    let daemon = gateway(&["--request-time-max", "300ms"]);
    assert_eq!(status(&upload(&daemon, &[b'x'; 400], 3_000)), 408);
    assert_eq!(status(&upload(&daemon, &[b'x'; 400], 1)), 200);
}

/// Slow clients at many addresses keep every bound of an address, and took all connections together.
#[test]
fn the_slowest_connection_makes_room_when_all_are_taken() {
    let daemon = gateway(&["--max-connections", "8"]);
    // The share of one address is 2. One client waits for a response.
    let mut reader = connect_from(&daemon, 2);
    reader.write_all(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let held: Vec<_> = (3..10).map(|last| begin_head(connect_from(&daemon, last))).collect();
    // More come than there is room for, and each is served.
    for last in 20..25 {
        assert_eq!(status(&exchange(connect_from(&daemon, last), GET)), 200);
    }
    assert!(held.iter().any(is_closed_soon));
    assert!((1..=5).contains(&refused(&daemon, "evicted")));
    assert!(!is_closed_soon(&reader), "who waits for a response is never evicted");
}

/// A load balancer whose health checks are not answered takes the daemon out of service.
#[test]
fn health_checks_are_answered_while_all_connections_are_held() {
    let daemon = gateway(&["--max-connections", "4", "--health", "127.0.0.1:0"]);
    let connect = |listener: &str| TcpStream::connect(daemon.address(listener)).unwrap();
    let wait = b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut held: Vec<_> = (2..6).map(|last| connect_from(&daemon, last)).collect();
    for stream in &mut held {
        stream.write_all(wait).unwrap();
    }
    let heads: Vec<_> = (0..4).map(|_| begin_head(connect("http"))).collect();
    for mut late in [connect_from(&daemon, 9), connect("http")] {
        late.write_all(GET.as_bytes()).unwrap();
        late.set_read_timeout(Some(MOMENT * 10)).unwrap();
        assert!(late.read(&mut [0; 1]).is_err(), "it waits for a connection that ends");
    }
    for (path, expected) in [("/healthz", 200), ("/readyz", 200), ("/v1/check", 404)] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        assert_eq!(status(&exchange(connect("health"), request)), expected, "{path}");
    }
    drop(heads);
}

/// Tunnels in which nothing moves were kept for as long as their clients sent a byte now and then.
#[test]
fn an_idle_tunnel_makes_room_when_all_are_taken() {
    let daemon = gateway(&["--max-connections", "4"]);
    let tunnels = [2, 3, 4, 5].map(|last| {
        let mut stream = connect_from(&daemon, last);
        let upgrade = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(upgrade.as_bytes()).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 101");
        stream
    });
    assert_eq!(status(&exchange(connect_from(&daemon, 9), GET)), 200);
    assert_eq!(refused(&daemon, "evicted"), 1);
    drop(tunnels);
}

/// A frame of HTTP/2: its length, type, flags, stream and content.
fn http2_frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), content].concat()
}

/// Opens a connection that speaks HTTP/2 and sends nothing but its settings.
fn http2_connection(daemon: &Daemon, last: u8) -> TcpStream {
    let mut stream = connect_from(daemon, last);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&http2_frame(4, 0, 0, &[])).unwrap();
    stream
}

/// Each ping asks for an answer. A client that reads none of them would have the gateway keep all.
#[test]
fn a_flood_of_pings_takes_no_memory_and_holds_nobody_up() {
    let daemon = gateway(&["--max-connections", "8"]);
    assert_eq!(status(&exchange(connect_from(&daemon, 9), GET)), 200);
    let before = daemon.rss_kib();
    let pings = http2_frame(6, 0, 0, b"flooding").repeat(4_096);
    let mut sent = 0;
    let mut flooders: Vec<_> = (2..8).map(|last| http2_connection(&daemon, last)).collect();
    for stream in &mut flooders {
        stream.set_write_timeout(Some(MOMENT)).unwrap();
        // 256 MiB at most: whoever does not read is not read from either, or is closed.
        for _ in 0..4_096 {
            match stream.write(&pings) {
                Ok(count) => sent += count,
                Err(_) => break,
            }
        }
        assert_eq!(status(&exchange(connect_from(&daemon, 9), GET)), 200);
    }
    assert!(sent < 6 * 32 * 1024 * 1024, "{sent} bytes of pings were taken");
    let grown = daemon.rss_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB");
    // A flooder that reads gets its answers, and takes no other's turn.
    let mut stream = http2_connection(&daemon, 3);
    let mut reader = stream.try_clone().unwrap();
    let answers = thread::spawn(move || {
        let count = std::io::copy(&mut reader, &mut std::io::sink());
        count.unwrap_or_default()
    });
    for _ in 0..64 {
        stream.write_all(&pings).unwrap();
        assert_eq!(status(&exchange(connect_from(&daemon, 9), GET)), 200);
    }
    let grown = daemon.rss_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB");
    drop(flooders);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(answers.join().unwrap() > 64 * 4_096, "pings were answered");
    assert_eq!(daemon.stop(), 0);
}

/// A ping is no request. A connection that only pings waits for its client, however many bytes it moves.
#[test]
fn connections_that_only_ping_make_room_when_all_are_taken() {
    let daemon = gateway(&["--max-connections", "4"]);
    let ping = http2_frame(6, 0, 0, b"only one");
    let held: Vec<_> = (2..6)
        .map(|last| {
            let mut stream = http2_connection(&daemon, last);
            stream.write_all(&ping.repeat(100)).unwrap();
            stream
        })
        .collect();
    for last in 20..24 {
        assert_eq!(status(&exchange(connect_from(&daemon, last), GET)), 200);
    }
    assert!((1..=4).contains(&refused(&daemon, "evicted")));
    drop(held);
    assert_eq!(daemon.stop(), 0);
}
