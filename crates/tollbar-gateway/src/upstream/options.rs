//! Which upstream, how it is spoken to and how long is waited for it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use http::header::HeaderValue;
use http::uri::{Authority, Scheme};
use thiserror::Error;

use crate::BreakerOptions;

/// Where the upstream is: `http://127.0.0.1:3000`, `https://api.example`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamUrl {
    pub(crate) is_secure: bool,
    pub(crate) authority: Authority,
    pub(crate) port: u16,
}

/// Why something is no URL of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{text}` is no upstream: write http:// or https://, a host and perhaps a port, such as \
     http://127.0.0.1:3000, and no path behind it"
)]
pub struct UpstreamUrlError {
    text: String,
}

/// What is spoken to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpstreamProtocol {
    /// HTTP/1.1; over TLS, what the two agree on.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without asking first where there is no TLS.
    Http2,
}

/// How the upstream is treated.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamOptions {
    /// What is spoken.
    pub protocol: UpstreamProtocol,
    /// To connect, TLS included, and to get a turn where too many ask at once.
    pub connect_time_max: Duration,
    /// From the last byte of a request to the first of its answer.
    pub first_byte_time_max: Duration,
    /// Without a byte in the middle of an answer.
    pub idle_time_max: Duration,
    /// How many requests may be under way at once; more wait for [`connect_time_max`](Self::connect_time_max).
    pub exchanges_max: usize,
    /// How many connections are kept for the next request.
    pub kept_max: usize,
    /// How long each is kept: shorter than the upstream keeps them, so that it never closes one just
    /// as a request is sent. Node.js keeps them for 5 s.
    pub kept_time_max: Duration,
    /// Tells the upstream its own name as `Host`, and not the one that the client has asked for.
    pub rewrites_host: bool,
    /// When it is taken for down, and how long it is left alone.
    pub breaker: BreakerOptions,
}

impl Default for UpstreamOptions {
    fn default() -> Self {
        Self {
            protocol: UpstreamProtocol::Auto,
            connect_time_max: Duration::from_secs(5),
            first_byte_time_max: Duration::from_secs(30),
            idle_time_max: Duration::from_mins(1),
            exchanges_max: 1_024,
            kept_max: 256,
            kept_time_max: Duration::from_secs(4),
            rewrites_host: false,
            breaker: BreakerOptions::default(),
        }
    }
}

impl UpstreamUrl {
    /// True where the upstream is spoken to over TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Without the brackets of IPv6.
    pub(crate) fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// As `Host` has it. `None` never: an authority is visible ASCII.
    pub(crate) fn host_header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(self.authority.as_str()).ok()
    }

    pub(crate) fn scheme(&self) -> Scheme {
        if self.is_secure { Scheme::HTTPS } else { Scheme::HTTP }
    }
}

impl FromStr for UpstreamUrl {
    type Err = UpstreamUrlError;

    fn from_str(text: &str) -> Result<Self, UpstreamUrlError> {
        parse(text).ok_or_else(|| UpstreamUrlError { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<UpstreamUrl> {
    let uri: Uri = text.parse().ok()?;
    let is_secure = match uri.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let is_bare = uri.path_and_query().is_none_or(|target| target.as_str() == "/");
    let authority = uri.authority()?.clone();
    if !is_bare || authority.as_str().contains('@') || authority.host().is_empty() {
        return None;
    }
    // Behind the host there is nothing, or a colon and a port; `port()` is silent about bad ones.
    let port = match authority.as_str().get(authority.host().len()..)? {
        "" if is_secure => 443,
        "" => 80,
        port => port.strip_prefix(':')?.parse().ok().filter(|port| *port != 0)?,
    };
    Some(UpstreamUrl { is_secure, authority, port })
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_hosts_and_ports_and_nothing_more() {
        for (text, host, port) in [
            ("http://127.0.0.1:3000", "127.0.0.1", 3_000),
            ("http://127.0.0.1:3000/", "127.0.0.1", 3_000),
            ("https://api.example", "api.example", 443),
            ("http://[::1]", "::1", 80),
        ] {
            let url: UpstreamUrl = text.parse().unwrap();
            assert_eq!((url.host(), url.port), (host, port));
            assert_eq!(url.to_string(), text.trim_end_matches('/'));
        }
        for text in [
            "",
            "127.0.0.1:3000",
            "ftp://a.example",
            "http://",
            "http://a.example/path",
            "http://a.example/?query",
            "http://user@a.example",
            "http://a.example:0",
            "http://a.example:70000",
            "http://a.example:",
        ] {
            let error = text.parse::<UpstreamUrl>().expect_err(text);
            assert!(error.to_string().contains("such as http://127.0.0.1:3000"), "{text}");
        }
    }
}
