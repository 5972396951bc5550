//! Which requests a listener on loopback answers: those that name this machine, and no page of another site. A web
//! page can send requests to loopback, also under a name of its own that it has pointed there. Tokens are the
//! daemon's business.

use std::net::IpAddr;
use std::str::FromStr;

use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN};
use thiserror::Error;

use super::api::RequestHead;
use super::refusal::Refusal;
use crate::net::endpoint::Endpoint;

/// A name under which clients may ask, besides those of loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost(Box<str>);

#[derive(Debug, Error)]
#[error(
    "`{text}` is no name of a host: write it as clients do and without a port, such as tollbar.internal"
)]
pub struct AllowedHostError {
    text: String,
}

/// Decides which requests are answered by their `Host`, `Origin` and `Sec-Fetch-Site`.
#[derive(Debug)]
pub struct Callers {
    /// Only on loopback is it known which names clients use.
    is_loopback: bool,
    allowed: Vec<AllowedHost>,
}

impl FromStr for AllowedHost {
    type Err = AllowedHostError;

    fn from_str(text: &str) -> Result<Self, AllowedHostError> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if text.is_empty() || !text.bytes().all(is_name) {
            return Err(AllowedHostError { text: text.to_owned() });
        }
        Ok(Self(text.trim_end_matches('.').into()))
    }
}

impl Callers {
    /// Returns the callers of a listener, which may use the names of `allowed` too.
    pub fn new(endpoint: &Endpoint, allowed: Vec<AllowedHost>) -> Self {
        let is_loopback = matches!(endpoint, Endpoint::Tcp(_)) && endpoint.is_local();
        Self { is_loopback, allowed }
    }

    /// Refuses a request under a foreign name, or by a page of another site.
    pub(super) fn check(&self, head: &RequestHead<'_>) -> Result<(), Refusal> {
        if !self.is_loopback {
            return Ok(());
        }
        let target = head.uri.authority().map(|authority| authority.as_str().as_bytes());
        let hosts = head.headers.get_all(HOST).iter().map(HeaderValue::as_bytes).chain(target);
        let mut hosts = hosts.map(|host| std::str::from_utf8(host).unwrap_or_default());
        if !hosts.all(|host| self.is_allowed(host)) {
            return Err(Refusal::foreign(
                "`Host` names another machine, and this listener is on loopback: ask 127.0.0.1 or localhost, or \
                 start the daemon with --allowed-hosts and the name",
            ));
        }
        if self.is_foreign_page(head.headers) {
            return Err(Refusal::foreign(
                "a web page of another site has sent this: pages have no business with this listener",
            ));
        }
        Ok(())
    }

    fn is_allowed(&self, host: &str) -> bool {
        let name = without_port(host);
        name.eq_ignore_ascii_case("localhost")
            || self.is_listed(name)
            || name.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
    }

    fn is_listed(&self, name: &str) -> bool {
        self.allowed.iter().any(|allowed| allowed.0.eq_ignore_ascii_case(name))
    }

    /// Browsers say which page a request is from. Programs that are no browsers say nothing.
    fn is_foreign_page(&self, headers: &HeaderMap) -> bool {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let origin = text(ORIGIN.as_str()).map(|origin| match origin.split_once("://") {
            Some((_, authority)) => authority,
            None => origin,
        });
        let is_own = |origin: &str| {
            let host = text(HOST.as_str()).unwrap_or_default();
            origin.eq_ignore_ascii_case(host) || self.is_listed(without_port(origin))
        };
        let is_foreign = |site: &str| !matches!(site, "same-origin" | "none");
        origin.is_some_and(|origin| !is_own(origin))
            || text("sec-fetch-site").is_some_and(is_foreign)
    }
}

/// Returns true if the body is said to be JSON. A page cannot say so of a form without asking first.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// Returns the name or the address of `host:port`, `[::1]:port` or `host`.
fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;
    use hyper::{Method, Uri};

    use super::*;
    use crate::net::Peer;

    fn status(
        callers: &Callers,
        uri: &'static str,
        headers: &[(&'static str, &'static str)],
    ) -> u16 {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let (uri, headers) = (Uri::from_static(uri), headers.collect());
        let head =
            RequestHead { method: &Method::POST, uri: &uri, headers: &headers, peer: Peer::Unix };
        callers.check(&head).map_or_else(|refusal| refusal.status().as_u16(), |()| 200)
    }

    fn callers(endpoint: &str, allowed: &[&str]) -> Callers {
        let allowed = allowed.iter().map(|name| name.parse().unwrap()).collect();
        Callers::new(&endpoint.parse().unwrap(), allowed)
    }

    #[test]
    fn only_names_of_loopback_and_listed_ones_are_served() {
        let loopback = callers("127.0.0.1:8080", &["Tollbar.internal."]);
        for (host, expected) in [
            ("localhost", 200),
            ("LocalHost.:8080", 200),
            ("127.0.0.1:8080", 200),
            ("127.9.9.9", 200),
            ("[::1]:8080", 200),
            ("tollbar.INTERNAL:8080", 200),
            ("evil.example", 403),
            ("evil.example:8080", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost.evil.example", 403),
            ("evil.localhost", 403),
            ("0.0.0.0:8080", 403),
            ("10.0.0.1", 403),
            ("", 403),
        ] {
            assert_eq!(status(&loopback, "/v1/reset", &[("host", host)]), expected, "{host}");
        }
        assert_eq!(status(&loopback, "/v1/reset", &[]), 200, "browsers always send it");
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(status(&loopback, "/v1/reset", &two), 403);
        let host = [("host", "localhost")];
        assert_eq!(status(&loopback, "http://evil.example/v1/reset", &host), 403);
        let evil = [("host", "evil.example"), ("origin", "http://evil.example")];
        assert_eq!(
            status(&callers("0.0.0.0:8080", &[]), "/", &evil),
            200,
            "names are unknown there"
        );
        assert_eq!(status(&callers("unix:/x", &[]), "/", &evil), 200, "no page can connect");
    }

    #[test]
    fn pages_of_other_sites_are_not_served() {
        let loopback = callers("[::1]:8080", &["tollbar.internal"]);
        for (name, value, expected) in [
            ("origin", "http://localhost:8080", 200),
            ("origin", "https://tollbar.internal", 200),
            ("origin", "http://localhost:3000", 403),
            ("origin", "https://evil.example", 403),
            ("origin", "null", 403),
            ("sec-fetch-site", "same-origin", 200),
            ("sec-fetch-site", "none", 200),
            ("sec-fetch-site", "same-site", 403),
            ("sec-fetch-site", "cross-site", 403),
        ] {
            let headers = [("host", "localhost:8080"), (name, value)];
            assert_eq!(status(&loopback, "/v1/check", &headers), expected, "{name}: {value}");
        }
    }

    #[test]
    fn what_is_no_name_is_told_so() {
        for text in ["", "a:80", "http://a", "*.a", "a b", "[::1]"] {
            assert!(text.parse::<AllowedHost>().is_err(), "{text}");
        }
    }
}
