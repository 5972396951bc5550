//! `X-Forwarded-*`: what the upstream is told about the client.
//!
//! What a trusted proxy has written is kept and continued. What anybody else has written is removed,
//! also under the names that other proxies use, and under those that say who asks: an upstream may believe
//! any of them.

use std::net::IpAddr;

use bytes::{BufMut, BytesMut};
use http::header::{FORWARDED, HOST, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, Uri};
use smallvec::SmallVec;

use crate::ConnectionInfo;

static FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static HOST_SEEN: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Who is at the other end of a connection, as the upstream is told with each of its requests.
#[derive(Debug, Clone)]
pub(crate) struct ForwardedHeaders {
    address: Option<HeaderValue>,
    scheme: &'static str,
    /// The peer is a proxy of ours.
    is_trusted: bool,
}

impl ForwardedHeaders {
    pub(crate) fn new(connection_info: ConnectionInfo, is_trusted: bool) -> Self {
        // Digits, dots and colons: always a value.
        let value = |peer: IpAddr| HeaderValue::try_from(peer.to_canonical().to_string()).ok();
        let scheme = if connection_info.is_secure { "https" } else { "http" };
        Self { address: connection_info.peer.and_then(value), scheme, is_trusted }
    }

    /// Tells the upstream. `host` is what the client has asked for, `trusted_headers` are those that only trusted
    /// proxies may set.
    pub(crate) fn write(
        &self,
        headers: &mut HeaderMap,
        host: Option<&HeaderValue>,
        trusted_headers: &[HeaderName],
    ) {
        if !self.is_trusted {
            forget(headers);
            for name in trusted_headers {
                headers.remove(name);
            }
        }
        // What was forgotten is not looked for.
        let has = |headers: &HeaderMap, name| self.is_trusted && headers.contains_key(name);
        if let Some(address) = &self.address {
            let is_first = !has(headers, &FOR);
            let chain = if is_first { Some(address.clone()) } else { chain(headers, address) };
            if let Some(chain) = chain {
                headers.insert(&FOR, chain);
            }
        }
        if !has(headers, &PROTO) {
            headers.insert(&PROTO, HeaderValue::from_static(self.scheme));
        }
        if !has(headers, &HOST_SEEN)
            && let Some(host) = host
        {
            headers.insert(&HOST_SEEN, host.clone());
        }
    }
}

/// What the chain was, and behind it who has sent it, on one line.
fn chain(headers: &HeaderMap, address: &HeaderValue) -> Option<HeaderValue> {
    let mut chain = BytesMut::with_capacity(48);
    for line in headers.get_all(&FOR) {
        chain.put_slice(line.as_bytes());
        chain.put_slice(b", ");
    }
    chain.put_slice(address.as_bytes());
    HeaderValue::from_maybe_shared(chain.freeze()).ok()
}

/// Removes everything that speaks about clients.
fn forget(headers: &mut HeaderMap) {
    let mut found: SmallVec<[HeaderName; 4]> = SmallVec::new();
    found.extend(headers.keys().filter(|name| speaks_of_clients(name)).cloned());
    for name in found {
        headers.remove(name);
    }
}

fn speaks_of_clients(name: &HeaderName) -> bool {
    let text = name.as_str();
    *name == FORWARDED
        || text.starts_with("x-forwarded")
        || matches!(
            text,
            "x-real-ip"
                | "x-client-ip"
                | "x-cluster-client-ip"
                | "x-original-forwarded-for"
                | "x-original-host"
                | "x-original-url"
                | "x-rewrite-url"
                | "true-client-ip"
                | "client-ip"
        )
}

/// The host that a client has asked for, by the URI, the header or both.
///
/// `Err` where they say different things. The URI alone would count (RFC 9112, 3.2.2), but not everybody who
/// reads the request goes by that.
pub(crate) fn host(uri: &Uri, headers: &HeaderMap) -> Result<Option<HeaderValue>, AmbiguousHost> {
    let mut lines = headers.get_all(HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(AmbiguousHost);
    }
    let Some(authority) = uri.authority().map(Authority::as_str) else {
        return Ok(line.cloned());
    };
    let is_same =
        line.is_none_or(|host| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()));
    // Whoever names a user in a URI wants it to look like a host.
    if !is_same || authority.contains('@') {
        return Err(AmbiguousHost);
    }
    HeaderValue::from_str(authority).map(Some).map_err(|_| AmbiguousHost)
}

/// A request that names more than one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AmbiguousHost;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(
        lines: &[(&'static str, &'static str)],
        is_trusted: bool,
        peer: &str,
    ) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let connection_info = ConnectionInfo { peer: Some(peer.parse().unwrap()), is_secure: true };
        let host = HeaderValue::from_static("a.example");
        let user = [HeaderName::from_static("x-user-id")];
        ForwardedHeaders::new(connection_info, is_trusted).write(&mut headers, Some(&host), &user);
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let mut told: Vec<_> = headers.iter().map(|(n, v)| (n.to_string(), text(v))).collect();
        told.sort();
        told
    }

    fn expected(addresses: &str, host: &str, proto: &str) -> Vec<(String, String)> {
        let lines = [("for", addresses), ("host", host), ("proto", proto)];
        lines.map(|(name, value)| (format!("x-forwarded-{name}"), value.to_owned())).to_vec()
    }

    #[test]
    fn a_proxy_of_ours_is_continued_and_a_stranger_is_not() {
        let claimed = [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-for", "192.0.2.2, 192.0.2.3"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "b.example"),
        ];
        assert_eq!(
            told(&claimed, true, "10.0.0.1"),
            expected("192.0.2.1, 192.0.2.2, 192.0.2.3, 10.0.0.1", "b.example", "http")
        );
        assert_eq!(told(&claimed, false, "10.0.0.1"), expected("10.0.0.1", "a.example", "https"));
        assert_eq!(told(&[], true, "::ffff:10.0.0.1"), expected("10.0.0.1", "a.example", "https"));
    }

    #[test]
    fn a_stranger_speaks_of_clients_under_no_name() {
        let claimed = [
            ("forwarded", "for=192.0.2.1"),
            ("x-forwarded-port", "1"),
            ("x-forwarded", "for=192.0.2.1"),
            ("x-real-ip", "192.0.2.1"),
            ("true-client-ip", "192.0.2.1"),
            ("x-original-url", "/admin"),
            ("x-user-id", "somebody-else"),
        ];
        assert_eq!(told(&claimed, false, "10.0.0.1"), told(&[], false, "10.0.0.1"));
        let user = told(&claimed[6..], true, "10.0.0.1");
        assert!(user.contains(&("x-user-id".to_owned(), "somebody-else".to_owned())), "{user:?}");
    }

    #[test]
    fn two_hosts_are_refused_wherever_they_stand() {
        let mut headers = HeaderMap::new();
        headers.append(HOST, HeaderValue::from_static("a.example"));
        let found = host(&Uri::from_static("/"), &headers).unwrap().unwrap();
        assert_eq!(found, "a.example");
        let found = host(&Uri::from_static("http://A.example/"), &headers).unwrap().unwrap();
        assert_eq!(found, "A.example");
        for other in ["http://b.example/", "http://a.example:80/", "http://u@a.example/"] {
            assert_eq!(host(&Uri::from_static(other), &headers), Err(AmbiguousHost), "{other}");
        }
        let found = host(&Uri::from_static("http://b.example/"), &HeaderMap::new());
        assert_eq!(found.unwrap().unwrap(), "b.example");
        headers.append(HOST, HeaderValue::from_static("a.example"));
        assert_eq!(host(&Uri::from_static("/"), &headers), Err(AmbiguousHost));
    }
}
