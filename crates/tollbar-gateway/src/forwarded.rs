//! `X-Forwarded-*`: what the upstream is told about the client.
//!
//! Headers that say who asks are removed from every request, because an upstream may believe any of them. A trusted
//! proxy keeps those that are named to the gateway, and `X-Forwarded-*`, which is continued. Trailers keep none of them.

use std::borrow::Cow;
use std::net::IpAddr;

use bytes::{BufMut, BytesMut};
use http::header::{HOST, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, Uri};
use smallvec::SmallVec;
use tollbar_http::{ClientIp, Identity};

use crate::ConnectionInfo;
use crate::hop_by_hop;

static FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static HOST_SEEN: HeaderName = HeaderName::from_static("x-forwarded-host");
static PORT: HeaderName = HeaderName::from_static("x-forwarded-port");

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

    /// Removes claims about the client and writes what is known. `host` is what the client has asked for,
    /// `trusted_headers` are those that only trusted proxies may set.
    pub(crate) fn write(
        &self,
        headers: &mut HeaderMap,
        host: Option<&HeaderValue>,
        trusted_headers: &[HeaderName],
    ) {
        let mut found: SmallVec<[HeaderName; 4]> = SmallVec::new();
        let is_kept = |name: &HeaderName| self.is_trusted && trusted_headers.contains(name);
        let is_claim = |name: &&HeaderName| is_claim(name, trusted_headers) && !is_kept(name);
        found.extend(headers.keys().filter(is_claim).cloned());
        for name in found {
            headers.remove(name);
        }
        // What was removed is not looked for.
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

/// Returns the headers that pass from trusted proxies: those that are named, and `X-Forwarded-*`. Of `X-Forwarded-For`
/// and `Forwarded` only the one that the proxies write passes; the other is their client's.
pub(crate) fn trusted_headers(identity: &Identity, client_ip: &ClientIp) -> Vec<HeaderName> {
    let forwarding = [client_ip.header(), &PROTO, &HOST_SEEN, &PORT];
    forwarding.into_iter().chain(identity.trusted_headers()).cloned().collect()
}

/// Returns the trailers that pass. A server may merge trailers into the headers of their request, so none passes that frames,
/// routes, authenticates or changes the request (RFC 9110, 6.5.1), or says who the client is.
pub(crate) fn passing_trailers(
    mut trailers: HeaderMap,
    trusted_headers: &[HeaderName],
) -> HeaderMap {
    let is_forbidden = |name: &HeaderName| {
        let text = name.as_str();
        hop_by_hop::is_of_connection(name)
            || is_claim(name, trusted_headers)
            || ["content-", "if-", "proxy-", "sec-"].iter().any(|start| text.starts_with(start))
            || matches!(
                text,
                "authorization"
                    | "cache-control"
                    | "cookie"
                    | "expect"
                    | "host"
                    | "max-forwards"
                    | "pragma"
                    | "range"
                    | "set-cookie"
                    | "trailer"
                    | "www-authenticate"
                    | "x-api-key"
            )
    };
    let forbidden: Vec<HeaderName> =
        trailers.keys().filter(|name| is_forbidden(name)).cloned().collect();
    for name in forbidden {
        trailers.remove(name);
    }
    trailers
}

/// True for an identity header, and for a trusted header under any spelling.
fn is_claim(name: &HeaderName, trusted_headers: &[HeaderName]) -> bool {
    let spelling = dashed(name.as_str());
    let is_spelt_alike =
        |trusted: &str| trusted.len() == spelling.len() && dashed(trusted) == spelling;
    is_identity_header(&spelling)
        || trusted_headers.iter().any(|trusted| is_spelt_alike(trusted.as_str()))
}

/// Returns the name with a dash for every sign that is no letter and no digit. Servers that hand headers to programs as
/// `HTTP_X_USER_ID` make no difference between such signs.
fn dashed(name: &str) -> Cow<'_, str> {
    let is_sign = |byte: u8| !byte.is_ascii_alphanumeric() && byte != b'-';
    if !name.bytes().any(is_sign) {
        return name.into();
    }
    // The names of headers are ASCII.
    name.bytes().map(|byte| if is_sign(byte) { '-' } else { char::from(byte) }).collect()
}

/// True for a header by which some proxy or some upstream is told who asks. The list is in `docs/guides/gateway.md`.
fn is_identity_header(name: &str) -> bool {
    let Some(name) = name.strip_prefix("x-") else {
        return name.starts_with("ssl-client-")
            || matches!(
                name,
                "cf-connecting-ip"
                    | "cf-connecting-ipv6"
                    | "client-cert"
                    | "client-cert-chain"
                    | "client-ip"
                    | "fastly-client-ip"
                    | "forwarded"
                    | "proxy-client-ip"
                    | "remote-email"
                    | "remote-groups"
                    | "remote-name"
                    | "remote-user"
                    | "true-client-ip"
                    | "wl-proxy-client-ip"
            );
    };
    FAMILIES.iter().any(|family| name.starts_with(family))
        || matches!(
            name,
            "appengine-user-ip"
                | "azure-clientip"
                | "client-cert"
                | "client-ip"
                | "cluster-client-ip"
                | "envoy-external-address"
                | "original-forwarded-for"
                | "original-host"
                | "original-url"
                | "proxyuser-ip"
                | "real-ip"
                | "remote-user"
                | "rewrite-url"
                | "user-id"
                | "webauth-user"
        )
}

/// How the names of identity headers begin behind `x-` where a proxy has several.
const FAMILIES: [&str; 8] = [
    "amzn-oidc-",
    "auth-request-",
    "authentik-",
    "consumer-",
    "forwarded",
    "goog-authenticated-user-",
    "ms-client-principal",
    "ssl-client-",
];

/// The host that a client has asked for, by the URI, the header or both.
///
/// `Err` if they say different things, or no host. The URI alone would count (RFC 9112, 3.2.2), but not everybody who
/// reads the request goes by that.
pub(crate) fn host(uri: &Uri, headers: &HeaderMap) -> Result<Option<HeaderValue>, AmbiguousHost> {
    let mut lines = headers.get_all(HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(AmbiguousHost);
    }
    if line.is_some_and(|host| !is_host(host)) {
        return Err(AmbiguousHost);
    }
    let Some(authority) = uri.authority().map(Authority::as_str) else {
        return Ok(line.cloned());
    };
    let is_same =
        line.is_none_or(|host| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()));
    match HeaderValue::from_str(authority) {
        Ok(host) if is_same && is_host(&host) => Ok(Some(host)),
        _ => Err(AmbiguousHost),
    }
}

/// True for one host, perhaps with a port. A list is none: one server would read its first name, another its last. Nor
/// is a user and a host, since a user can look like a host.
fn is_host(host: &HeaderValue) -> bool {
    !host.as_bytes().iter().any(|byte| matches!(byte, b',' | b'@'))
        && Authority::try_from(host.as_bytes()).is_ok()
}

/// A request that does not name one host.
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
        let peer = ConnectionInfo::from_peer(peer.parse().unwrap());
        let connection_info = ConnectionInfo { is_secure: true, ..peer };
        let host = HeaderValue::from_static("a.example");
        let identity = Identity::new().trusted_header("user", "x-user-id").unwrap();
        let trusted_headers = trusted_headers(&identity, &ClientIp::peer());
        let forwarded_headers = ForwardedHeaders::new(connection_info, is_trusted);
        forwarded_headers.write(&mut headers, Some(&host), &trusted_headers);
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

    /// Every name of the guide's list, with dashes, underscores and dots.
    #[test]
    fn identity_headers_pass_only_if_they_are_named_and_only_from_trusted_proxies() {
        let guide = include_str!("../../../docs/guides/gateway.md");
        let (_, list) = guide.split_once("<!-- identity headers -->").unwrap();
        let (list, _) = list.split_once("<!-- end -->").unwrap();
        let names = list.split('`').skip(1).step_by(2).map(|name| name.replace('*', "x"));
        let names: Vec<String> = names.map(|name| name.to_lowercase()).collect();
        assert!(names.len() > 20, "{names:?}");
        for name in &names {
            for spelling in [name.clone(), name.replace('-', "_"), name.replacen('-', ".", 1)] {
                let header = HeaderName::from_bytes(spelling.as_bytes()).unwrap();
                let passes = |is_trusted, trusted_headers: &[HeaderName]| {
                    let mut headers = HeaderMap::new();
                    headers.insert(&header, HeaderValue::from_static("claim"));
                    let peer = ConnectionInfo::from_peer("10.0.0.1".parse().unwrap());
                    let forwarded_headers = ForwardedHeaders::new(peer, is_trusted);
                    forwarded_headers.write(&mut headers, None, trusted_headers);
                    headers.get(&header).is_some_and(|value| value.as_bytes().starts_with(b"claim"))
                };
                let trusted = [HeaderName::from_bytes(name.as_bytes()).unwrap()];
                assert!(!passes(false, &[]), "{spelling} of a stranger");
                assert!(!passes(false, &trusted), "{spelling} of a stranger, named");
                assert!(!passes(true, &[]), "{spelling} of a proxy, not named");
                assert_eq!(
                    passes(true, &trusted),
                    spelling == *name,
                    "{spelling} of a proxy, named"
                );
            }
        }
    }

    #[test]
    fn of_two_forwarding_headers_the_one_that_proxies_write_passes() {
        for (client_ip, kept) in
            [(ClientIp::peer(), "x-forwarded-for"), (ClientIp::peer().by_forwarded(), "forwarded")]
        {
            let headers = trusted_headers(&Identity::new(), &client_ip);
            let both = ["x-forwarded-for", "forwarded"];
            for name in both {
                assert_eq!(headers.iter().any(|header| header == name), name == kept, "{name}");
            }
        }
    }

    #[test]
    fn other_spellings_of_a_trusted_header_are_removed() {
        let claimed =
            [("x_user_id", "1"), ("x-user_id", "2"), ("x-user-id", "3"), ("x-other", "4")];
        let kept = |is_trusted| {
            let told = told(&claimed, is_trusted, "10.0.0.1");
            let names = told.iter().map(|(name, _)| name.as_str());
            names.filter(|name| !name.starts_with("x-forwarded")).map(str::to_owned).collect()
        };
        let (trusted, stranger): (Vec<String>, Vec<String>) = (kept(true), kept(false));
        assert_eq!(
            (trusted, stranger),
            (vec!["x-other".into(), "x-user-id".into()], vec!["x-other".into()])
        );
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

    #[test]
    fn a_host_is_one_name_with_or_without_a_port() {
        for (line, is_host) in [
            ("a.example", true),
            ("a_b.example:8080", true),
            ("[2001:db8::1]:80", true),
            ("", false),
            ("a.example, b.example", false),
            ("a.example,b.example", false),
            ("a.example b.example", false),
            ("user@a.example", false),
            ("a.example/path", false),
            ("a.example?x", false),
            ("a.example\\b", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(line));
            assert_eq!(host(&Uri::from_static("/"), &headers).is_ok(), is_host, "{line:?}");
        }
    }
}
