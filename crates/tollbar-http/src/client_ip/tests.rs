//! Everything one can try in order to be somebody else.

use http::HeaderValue;
use proptest::prelude::*;

use super::*;

const PROXIES: [&str; 3] = ["10.0.0.0/8", "192.168.1.1", "2001:db8:f::/48"];

fn behind_proxies() -> ClientIp {
    ClientIp::behind_proxies(PROXIES.map(|proxy| proxy.parse().unwrap()))
}

fn trusted_hops(count: u32) -> ClientIp {
    ClientIp::trusted_hops(NonZeroU32::new(count).unwrap())
}

fn headers(name: &'static str, lines: &[&[u8]]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(name, HeaderValue::from_bytes(line).unwrap());
    }
    headers
}

fn ip(text: &str) -> Option<IpAddr> {
    (text != "-").then(|| text.parse().unwrap())
}

/// A peer, the lines that arrive, and who the client is.
type Row<'r> = (&'r str, &'r [&'r [u8]], &'r str);

fn holds(client_ip: &ClientIp, name: &'static str, table: &[Row<'_>]) {
    for (peer, lines, client) in table {
        let found = client_ip.of(ip(peer), &headers(name, lines));
        let shown: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
        assert_eq!(found, ip(client), "{name} {shown:?} from {peer}");
    }
}

#[test]
fn without_proxies_no_header_is_believed() {
    let table: &[Row<'_>] = &[
        ("203.0.113.7", &[], "203.0.113.7"),
        ("203.0.113.7", &[b"1.2.3.4"], "203.0.113.7"),
        ("::ffff:203.0.113.7", &[b"1.2.3.4"], "203.0.113.7"),
        ("-", &[b"1.2.3.4"], "-"),
    ];
    holds(&ClientIp::peer(), "x-forwarded-for", table);
    holds(&ClientIp::peer().by_forwarded(), "forwarded", table);
    // Being nobody's proxy does not depend on where one is.
    assert!(!ClientIp::peer().trusts(ip("127.0.0.1")));
}

#[test]
fn behind_proxies_the_client_is_whom_they_have_seen() {
    let table: &[Row<'_>] = &[
        // Honest.
        ("10.0.0.1", &[b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", &[b"203.0.113.7:5555"], "203.0.113.7"),
        ("10.0.0.1", &[b"2001:db8::7"], "2001:db8::7"),
        ("10.0.0.1", &[b"[2001:db8::7]"], "2001:db8::7"),
        ("10.0.0.1", &[b"[2001:db8::7]:443"], "2001:db8::7"),
        // The largest port, after the longest address too.
        ("10.0.0.1", &[b"203.0.113.7:65535"], "203.0.113.7"),
        ("10.0.0.1", &[b"[2001:db8::7]:10000"], "2001:db8::7"),
        (
            "10.0.0.1",
            &[b"[0000:0000:0000:0000:0000:ffff:203.101.113.107]:65535"],
            "203.101.113.107",
        ),
        ("2001:db8:f::1", &[b"203.0.113.7"], "203.0.113.7"),
        // Going around the proxy.
        ("203.0.113.7", &[b"1.2.3.4"], "203.0.113.7"),
        ("203.0.113.7", &[b"10.0.0.1"], "203.0.113.7"),
        ("192.168.1.2", &[b"1.2.3.4"], "192.168.1.2"),
        // Claims of the client's own stand to the left.
        ("10.0.0.1", &[b"1.2.3.4, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"10.0.0.9, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"127.0.0.1,10.0.0.3,203.0.113.7,10.0.0.2"], "203.0.113.7"),
        // On lines of their own, before or after: the last line is the last.
        ("10.0.0.1", &[b"1.2.3.4", b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"1.2.3.4", b"5.6.7.8, 203.0.113.7", b"10.0.0.2"], "203.0.113.7"),
        // In IPv6 clothes: neither a client nor a proxy becomes another one.
        ("::ffff:10.0.0.1", &[b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"::ffff:203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"1.2.3.4, ::ffff:203.0.113.7, ::ffff:10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", &[b"[::ffff:cb00:7107]:80"], "203.0.113.7"),
        // Rubbish to the left of the client is not looked at.
        ("10.0.0.1", &[b"\xff\xfe, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"\"203.0.113.9, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b",,, ,203.0.113.7,, ,"], "203.0.113.7"),
        ("10.0.0.1", &[b"\t203.0.113.7 \t"], "203.0.113.7"),
        // Rubbish where an address is due: the last who is known.
        ("10.0.0.1", &[b"unknown"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", &[b"\xff"], "10.0.0.1"),
        ("10.0.0.1", &[b""], "10.0.0.1"),
        ("10.0.0.1", &[b"010.0.0.1"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4.5"], "10.0.0.1"),
        ("10.0.0.1", &[b"0x7f.1"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4:"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4:99999"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4:65536"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4:000080"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4:+80"], "10.0.0.1"),
        ("10.0.0.1", &[b"[2001:db8::7]:65536"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4:80:80"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4 5.6.7.8"], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4/8"], "10.0.0.1"),
        ("10.0.0.1", &[b"\"1.2.3.4\""], "10.0.0.1"),
        ("10.0.0.1", &[b"fe80::1%eth0"], "10.0.0.1"),
        ("10.0.0.1", &[b"[2001:db8::7"], "10.0.0.1"),
        ("10.0.0.1", &[b"[2001:db8::7]443"], "10.0.0.1"),
        ("10.0.0.1", &[b"[1.2.3.4]"], "10.0.0.1"),
        ("10.0.0.1", &[b"for=1.2.3.4"], "10.0.0.1"),
        // Only proxies: the first of them has asked by itself.
        ("10.0.0.1", &[b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", &[], "10.0.0.1"),
        // A peer without an address is no proxy unless it is said.
        ("-", &[b"1.2.3.4"], "-"),
    ];
    holds(&behind_proxies(), "x-forwarded-for", table);
    let nameless: &[Row<'_>] =
        &[("-", &[b"1.2.3.4, 203.0.113.7"], "203.0.113.7"), ("-", &[], "-"), ("-", &[b"x"], "-")];
    holds(&behind_proxies().trusting_nameless_peers(), "x-forwarded-for", nameless);
}

#[test]
fn behind_so_many_hops_the_client_is_so_many_from_the_right() {
    let one: &[Row<'_>] = &[
        ("10.0.0.1", &[b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"1.2.3.4, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"1.2.3.4", b"203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4, unknown"], "10.0.0.1"),
        ("-", &[b"1.2.3.4, 203.0.113.7"], "203.0.113.7"),
    ];
    holds(&trusted_hops(1), "x-forwarded-for", one);
    let two: &[Row<'_>] = &[
        ("10.0.0.1", &[b"1.2.3.4, 203.0.113.7, 172.16.0.1"], "203.0.113.7"),
        ("10.0.0.1", &[b"1.2.3.4", b"203.0.113.7", b"172.16.0.1"], "203.0.113.7"),
        ("10.0.0.1", &[b"1.2.3.4, 203.0.113.7, unknown"], "203.0.113.7"),
        ("10.0.0.1", &[b"1.2.3.4, unknown, 172.16.0.1"], "172.16.0.1"),
        // It came by one proxy only: whom that has seen.
        ("10.0.0.1", &[b"203.0.113.7"], "203.0.113.7"),
    ];
    holds(&trusted_hops(2), "x-forwarded-for", two);
}

#[test]
fn forwarded_is_read_where_it_is_asked_for_and_only_it() {
    let table: &[Row<'_>] = &[
        ("10.0.0.1", &[b"for=203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"For=203.0.113.7;proto=https;by=10.0.0.1"], "203.0.113.7"),
        ("10.0.0.1", &[b"proto=http ; for=203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"for=\"203.0.113.7:80\""], "203.0.113.7"),
        ("10.0.0.1", &[b"for=\"[2001:db8::7]:443\""], "2001:db8::7"),
        ("10.0.0.1", &[b"for=[2001:db8::7]"], "2001:db8::7"),
        ("10.0.0.1", &[b"for=\"[::ffff:203.0.113.7]\""], "203.0.113.7"),
        ("10.0.0.1", &[b"for=1.2.3.4, for=203.0.113.7, for=10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", &[b"for=1.2.3.4", b"for=203.0.113.7"], "203.0.113.7"),
        // A quote that the client opens does not swallow what the proxy appends.
        ("10.0.0.1", &[b"for=\", for=203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", &[b"host=\"a\\\", for=203.0.113.7"], "203.0.113.7"),
        // The proxy quotes a host that the client has made up: the part after the comma is none.
        ("10.0.0.1", &[b"for=203.0.113.7;host=\"a,for=1.2.3.4\""], "10.0.0.1"),
        ("10.0.0.1", &[b"for=203.0.113.7;host=\"a,for=1.2.3.4;x=\\\"\""], "10.0.0.1"),
        ("10.0.0.1", &[b"for=203.0.113.7;host=\"a,for=1.2.3.4;x=\";by=\"y\""], "10.0.0.1"),
        // Two, none, hidden ones, and no syntax at all.
        ("10.0.0.1", &[b"for=1.2.3.4;for=203.0.113.7"], "10.0.0.1"),
        ("10.0.0.1", &[b"by=203.0.113.7"], "10.0.0.1"),
        ("10.0.0.1", &[b"for=unknown"], "10.0.0.1"),
        ("10.0.0.1", &[b"for=_hidden"], "10.0.0.1"),
        ("10.0.0.1", &[b"for=\"1.2.3.4"], "10.0.0.1"),
        ("10.0.0.1", &[b"for=\"1.2.3.4\\"], "10.0.0.1"),
        ("10.0.0.1", &[b"for=1.2.3.4;"], "10.0.0.1"),
        ("10.0.0.1", &[b"for =1.2.3.4"], "10.0.0.1"),
        ("10.0.0.1", &[b"for="], "10.0.0.1"),
        ("10.0.0.1", &[b"1.2.3.4"], "10.0.0.1"),
        ("203.0.113.7", &[b"for=1.2.3.4"], "203.0.113.7"),
    ];
    holds(&behind_proxies().by_forwarded(), "forwarded", table);
    // The header that is not read may say what it likes.
    let other: &[Row<'_>] = &[("10.0.0.1", &[b"1.2.3.4"], "10.0.0.1")];
    holds(&behind_proxies().by_forwarded(), "x-forwarded-for", other);
    holds(&behind_proxies(), "forwarded", other);
}

/// Thousands of entries, all of them proxies, so that none ends the search.
#[test]
fn a_header_bomb_is_looked_at_for_a_bounded_time() {
    let bomb = "10.0.0.2,".repeat(10_000);
    let lines: Vec<&[u8]> = vec![bomb.as_bytes(); 100];
    let headers = headers("x-forwarded-for", &lines);
    assert_eq!(entries(&headers, &X_FORWARDED_FOR).count(), ENTRIES_MAX - 1);
    assert_eq!(behind_proxies().of(ip("10.0.0.1"), &headers), ip("10.0.0.2"));
    let long = "1".repeat(100_000);
    let headers = self::headers("x-forwarded-for", &[long.as_bytes()]);
    assert_eq!(behind_proxies().of(ip("10.0.0.1"), &headers), ip("10.0.0.1"));
}

/// What a client may put into a header: bytes, and what looks like the header.
fn claim() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..8),
        "(for=|FOR=)?\"?(10\\.0\\.0\\.[0-9]|1\\.2\\.3\\.4|\\[?::ffff:10\\.0\\.0\\.1\\]?)?[\",;\\\\ :]{0,3}"
            .prop_map(String::into_bytes),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// However the client fills the header, the proxy appends who it is, and that is who it is.
    #[test]
    fn no_claim_outweighs_what_a_proxy_has_appended(
        claims in prop::collection::vec(claim(), 0..4),
        on_same_line: bool,
        by_forwarded: bool,
        hops: bool,
        client in prop::sample::select(vec!["203.0.113.7", "2001:db8::7", "11.0.0.1"]),
    ) {
        let (name, appended) = match (by_forwarded, client.contains(':')) {
            (true, true) => ("forwarded", format!("for=\"[{client}]\"")),
            (true, false) => ("forwarded", format!("for={client};proto=https")),
            (false, _) => ("x-forwarded-for", client.to_owned()),
        };
        let mut lines = claims;
        match lines.last_mut() {
            Some(last) if on_same_line => last.extend_from_slice(format!(", {appended}").as_bytes()),
            _ => lines.push(appended.into_bytes()),
        }
        let mut headers = HeaderMap::new();
        for line in lines {
            match HeaderValue::from_bytes(&line) {
                Ok(value) => headers.append(name, value),
                // A server refuses such a request before anybody looks at it.
                Err(_) => return Ok(()),
            };
        }
        let client_ip = if hops { trusted_hops(1) } else { behind_proxies() };
        let client_ip = if by_forwarded { client_ip.by_forwarded() } else { client_ip };
        prop_assert_eq!(client_ip.of(ip("10.0.0.1"), &headers), ip(client));
        // And who comes around the proxy is himself, unless proxies are counted only.
        let around = client_ip.of(ip("198.51.100.1"), &headers);
        prop_assert!(hops || around == ip("198.51.100.1"));
    }
}
