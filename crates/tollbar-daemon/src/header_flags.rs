//! The flags about the headers that tell clients of their limits.

use clap::Args;
use tollbar_http::{HeaderStyle, RetryJitter};

/// The flags about headers.
#[derive(Debug, Clone, Copy, Args)]
pub struct HeaderFlags {
    /// Which headers tell clients of their limits: x (X-RateLimit-Limit, -Remaining, -Reset), ietf (RateLimit-Policy,
    /// `RateLimit`), split (RateLimit-Limit, -Remaining, -Reset), several of them with commas between, or none. If it is
    /// absent, x,ietf over HTTP and none through Envoy
    #[arg(long, env = "TOLLBAR_HEADERS", value_name = "WHICH")]
    headers: Option<HeaderStyle>,

    /// By how much headers lengthen the wait of denied clients, so that not all come back at once: aligned (up to a
    /// tenth of a window that ends for all clients at once, at most 30s), off, or the most that is added to any wait
    #[arg(long, env = "TOLLBAR_RETRY_JITTER", value_name = "TIME", default_value = "aligned")]
    retry_jitter: RetryJitter,
}

/// What clients are told in headers.
#[derive(Debug, Clone, Copy)]
pub struct ClientHeaders {
    /// Which headers responses over HTTP have: to checks, to proxies that ask, and of the gateway.
    pub(crate) http: HeaderStyle,
    /// Which headers Envoy is told to add.
    pub(crate) envoy: HeaderStyle,
    /// By how much the wait of a denied client is lengthened.
    pub(crate) jitter: RetryJitter,
}

impl HeaderFlags {
    /// Returns what the flags say.
    #[must_use]
    pub fn client_headers(self) -> ClientHeaders {
        ClientHeaders {
            http: self.headers.unwrap_or_default(),
            // As from the reference service, and Envoy can write headers by itself.
            envoy: self.headers.unwrap_or(HeaderStyle::none()),
            jitter: self.retry_jitter,
        }
    }
}

#[cfg(test)]
impl ClientHeaders {
    /// Tells clients exactly how long to wait.
    pub(crate) fn exact() -> Self {
        Self { jitter: RetryJitter::Off, ..Self::default() }
    }
}

impl Default for ClientHeaders {
    fn default() -> Self {
        HeaderFlags { headers: None, retry_jitter: RetryJitter::default() }.client_headers()
    }
}
