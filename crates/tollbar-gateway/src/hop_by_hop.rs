//! Headers of one connection as HTTP/1.1 writes them, and those that are about the connection and go no further: those of RFC 9110, 7.6.1, and those that
//! `Connection` names.

use http::header::{CONNECTION, HeaderName, HeaderValue, TE, UPGRADE};
use http::{HeaderMap, Version};
use smallvec::SmallVec;

/// The most names that `Connection` may have; who sends more is up to something.
const NAMES_MAX: usize = 32;

/// The longest name of a protocol to change to.
const UPGRADE_BYTES_MAX: usize = 64;

/// Removes them. `TE: trailers` stays, since what follows can pass trailers on.
///
/// False where `Connection` names more than anybody would.
pub(crate) fn remove(headers: &mut HeaderMap) -> bool {
    // Most have one such header or none: to go over all names takes less than to look each up.
    let of_connection = headers.keys().filter(|name| is_of_connection(name));
    let mut named: SmallVec<[HeaderName; 4]> = of_connection.cloned().collect();
    if named.is_empty() {
        return true;
    }
    let names_max = named.len() + NAMES_MAX;
    for line in headers.get_all(CONNECTION) {
        for name in line.as_bytes().split(|byte| *byte == b',') {
            let name = name.trim_ascii();
            if name.is_empty()
                || name.eq_ignore_ascii_case(b"close")
                || name.eq_ignore_ascii_case(b"keep-alive")
                || name.eq_ignore_ascii_case(b"upgrade")
                || name.eq_ignore_ascii_case(b"te")
            {
                continue;
            }
            if named.len() == names_max {
                return false;
            }
            named.extend(HeaderName::from_bytes(name));
        }
    }
    let takes_trailers = headers.get_all(TE).iter().any(names_trailers);
    for name in &named {
        headers.remove(name);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    true
}

/// Writes headers as lines of HTTP/1.1.
pub(crate) fn write_lines(headers: &HeaderMap, text: &mut Vec<u8>) {
    for (name, value) in headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            text.extend_from_slice(part);
        }
    }
}

/// True for a header that is about one connection, whether `Connection` names it or not.
pub(crate) fn is_of_connection(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

fn names_trailers(line: &HeaderValue) -> bool {
    let mut names = line.as_bytes().split(|byte| *byte == b',');
    names.any(|name| name.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// The protocol that whoever sent these headers wants to change to, or has changed to.
///
/// Not another version of HTTP and not TLS: requests on those would pass by the rules unseen.
pub(crate) fn upgrade(version: Version, headers: &HeaderMap) -> Option<HeaderValue> {
    let mut values = headers.get_all(UPGRADE).iter();
    let protocol = values.next()?;
    let is_asked = headers.get_all(CONNECTION).iter().any(|line| {
        let mut names = line.as_bytes().split(|byte| *byte == b',');
        names.any(|name| name.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    });
    let text = protocol.as_bytes();
    let has_prefix = |prefix: &[u8]| {
        text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    let passes = version == Version::HTTP_11
        && is_asked
        && values.next().is_none()
        && (1..=UPGRADE_BYTES_MAX).contains(&text.len())
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"/.-_".contains(byte))
        && ![&b"h2"[..], b"http", b"tls"].into_iter().any(has_prefix);
    passes.then(|| protocol.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn what_is_about_the_connection_goes_and_the_rest_stays() {
        let mut found = headers(&[
            ("connection", "close, X-Secret"),
            ("connection", "x-other"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic eA=="),
            ("te", "gzip, Trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("x-secret", "1"),
            ("x-other", "2"),
            ("x-kept", "3"),
            ("host", "a.example"),
        ]);
        assert!(remove(&mut found));
        let kept = headers(&[("x-kept", "3"), ("host", "a.example"), ("te", "trailers")]);
        assert_eq!(found, kept);
    }

    #[test]
    fn a_hundred_names_are_refused() {
        let mut many = HeaderMap::new();
        many.insert(CONNECTION, HeaderValue::from_str(&"x,".repeat(100)).unwrap());
        assert!(!remove(&mut many));
    }

    #[test]
    fn other_protocols_pass_and_other_versions_of_http_do_not() {
        for (protocol, passes) in [
            ("websocket", true),
            ("WebSocket", true),
            ("irc/6.9", true),
            ("h2c", false),
            ("H2C", false),
            ("HTTP/2.0", false),
            ("TLS/1.0", false),
            ("websocket, h2c", false),
            ("", false),
        ] {
            let asked = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", protocol)]);
            assert_eq!(upgrade(Version::HTTP_11, &asked).is_some(), passes, "{protocol}");
            assert_eq!(upgrade(Version::HTTP_2, &asked), None);
            assert_eq!(upgrade(Version::HTTP_11, &headers(&[("upgrade", protocol)])), None);
        }
        let twice =
            headers(&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")]);
        assert_eq!(upgrade(Version::HTTP_11, &twice), None);
    }
}
