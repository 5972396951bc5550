//! Who asks: from a request to the attributes that rules look at.
//!
//! A fact counts only if whoever has told it can be believed. What anybody may claim about himself
//! is an attribute only where it is asked for by name. Everything is bounded in length; what is
//! longer is as good as absent.

mod api_key;
#[cfg(feature = "jwt")]
mod jwt;
mod term_headers;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayString;
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, header};
use smallvec::SmallVec;
use thiserror::Error;
use tollbar::Timestamp;

use crate::ClientIp;

pub use api_key::ApiKeys;
#[cfg(feature = "jwt")]
pub use jwt::{Jwt, JwtAlgorithm, JwtKey};
pub use term_headers::{TermHeaderError, TermHeaders};

/// The longest value of an attribute.
const VALUE_BYTES_MAX: usize = 1_024;

/// The longest name of an attribute, as rules have it.
const NAME_BYTES_MAX: usize = 128;

/// The most attributes of a request, as rules have it.
const ATTRIBUTES_MAX: usize = 64;

/// What a request knows by itself.
const RESERVED: [&str; 3] = ["method", "path", "client"];

type PeerOf = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;

/// How attributes are read from requests.
///
/// By itself it reads `ip`, the client's address, and no header that names a user: name such headers with
/// [`trusted_header`](Self::trusted_header). Rules then count a client by its API key, else by its user, else by
/// its address.
///
/// ```
/// use tollbar_http::{ApiKeys, ClientIp, Identity};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let identity = Identity::new()
///     .client_ip(ClientIp::behind_proxies(["10.0.0.0/8".parse()?]))
///     .api_keys(ApiKeys::known([("partner", "k-8f3a")]).bearer())
///     .trusted_header("user", "x-user-id")?
///     .trusted_header("tenant", "x-tenant-id")?
///     .untrusted_header("client_version", "x-client-version")?;
/// # let _ = identity;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Identity {
    client_ip: ClientIp,
    peer: Option<Arc<PeerOf>>,
    api_keys: Option<Arc<ApiKeys>>,
    #[cfg(feature = "jwt")]
    jwt: Option<Arc<Jwt>>,
    headers: Vec<HeaderAttribute>,
    terms: TermHeaders,
    has_content_length: bool,
}

/// An attribute that a header tells.
#[derive(Debug, Clone)]
struct HeaderAttribute {
    attribute: Box<str>,
    header: HeaderName,
    /// Whether it counts only from trusted proxies.
    is_trusted: bool,
}

/// Attributes that a layer in front of ours has found out, such as whom a session belongs to. They
/// are believed, and come before anything that is read here.
///
/// ```
/// # let mut request = http::Request::new(());
/// use tollbar_http::Attributes;
/// request.extensions_mut().insert(Attributes::new().with("user", "42").with("tier", "premium"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes(Vec<(Box<str>, Box<str>)>);

/// The peer's address, put into a request's extensions by a server that has its own way to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// In a request's extensions: its peer is no trusted proxy, whatever its address. For servers behind a load balancer that
/// did not say who the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UntrustedPeer;

/// Why an attribute cannot be read from a header.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The header's name.
    #[error("`{header}` is not the name of a header: write one such as `x-tenant-id`")]
    Header {
        /// What was written.
        header: String,
    },
    /// The attribute's name.
    #[error(
        "`{attribute}` cannot be read from a header: write a name of 1 to {NAME_BYTES_MAX} bytes \
         other than method, path, client, ip and api_key"
    )]
    Attribute {
        /// What was written.
        attribute: String,
    },
}

/// Attribute values that are not in the request as they are.
#[derive(Debug, Default)]
pub(crate) struct DerivedValues<'i> {
    is_from_proxy: bool,
    ip: Option<ArrayString<39>>,
    api_key: Option<api_key::Subject>,
    claims: SmallVec<[(&'i str, String); 2]>,
}

/// Names and values, in the form that rules take.
pub(crate) type Pairs<'a> = SmallVec<[(&'a str, &'a str); 8]>;

impl Identity {
    /// Reads the peer's address and nothing else. No header names a user until it is asked for: a proxy such as
    /// nginx passes on what clients send, so a header counts only if the operator knows that the proxy sets it.
    #[must_use]
    pub fn new() -> Self {
        Self {
            client_ip: ClientIp::peer(),
            peer: None,
            api_keys: None,
            #[cfg(feature = "jwt")]
            jwt: None,
            headers: Vec::new(),
            terms: TermHeaders::default(),
            has_content_length: false,
        }
    }

    /// Which proxies are trusted.
    #[must_use]
    pub fn client_ip(self, client_ip: ClientIp) -> Self {
        Self { client_ip, ..self }
    }

    /// Where the peer's address is found, if not where [`Peer`], axum and tonic leave it.
    #[must_use]
    pub fn peer(
        self,
        peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        Self { peer: Some(Arc::new(peer)), ..self }
    }

    /// Reads `api_key`.
    #[must_use]
    pub fn api_keys(self, api_keys: ApiKeys) -> Self {
        Self { api_keys: Some(Arc::new(api_keys)), ..self }
    }

    /// Reads attributes from the claims of a token that is verified here.
    #[cfg(feature = "jwt")]
    #[must_use]
    pub fn jwt(self, jwt: Jwt) -> Self {
        Self { jwt: Some(Arc::new(jwt)), ..self }
    }

    /// Reads `attribute` from a header that trusted proxies set. From anybody else it says nothing,
    /// nor if it is there twice: a proxy that appends has left what the client wrote.
    pub fn trusted_header(self, attribute: &str, header: &str) -> Result<Self, IdentityError> {
        self.header(attribute, header, true)
    }

    /// Reads `attribute` from a header that anybody may set to anything.
    ///
    /// A rule per such an attribute counts whatever the client chooses to be: have another rule, per
    /// client, beside it.
    pub fn untrusted_header(self, attribute: &str, header: &str) -> Result<Self, IdentityError> {
        self.header(attribute, header, false)
    }

    /// Reads cost, request id and criticality from headers that trusted proxies set. From anybody else they say
    /// nothing, except that a request may be less critical than the rules make it.
    #[must_use]
    pub fn terms(self, terms: TermHeaders) -> Self {
        Self { terms, ..self }
    }

    /// The headers that count from trusted proxies only. A proxy that passes requests on removes them where
    /// anybody else has sent them: what is behind it may believe them.
    pub fn trusted_headers(&self) -> impl Iterator<Item = &HeaderName> {
        let attributes = self.headers.iter().filter(|header| header.is_trusted);
        attributes.map(|header| &header.header).chain(self.terms.names())
    }

    /// Reads `content_length`, the number of bytes that the request says its body has.
    #[must_use]
    pub fn content_length(self) -> Self {
        Self { has_content_length: true, ..self }
    }

    fn header(
        mut self,
        attribute: &str,
        header: &str,
        is_trusted: bool,
    ) -> Result<Self, IdentityError> {
        let quoted = |text: &str| text.chars().take(64).collect();
        let Ok(header) = HeaderName::try_from(header) else {
            return Err(IdentityError::Header { header: quoted(header) });
        };
        if !is_name(attribute) || matches!(attribute, "ip" | "api_key") {
            return Err(IdentityError::Attribute { attribute: quoted(attribute) });
        }
        // Told anew, it replaces what was told before, so that `user` can come from elsewhere.
        self.headers.retain(|header| *header.attribute != *attribute);
        self.headers.push(HeaderAttribute { attribute: attribute.into(), header, is_trusted });
        Ok(self)
    }

    /// Derives the values that are not in the request as they are. `known` is who is at the other end, where
    /// the request does not say.
    pub(crate) fn derive(
        &self,
        known: Option<IpAddr>,
        extensions: &Extensions,
        headers: &HeaderMap,
        now: impl Fn() -> Timestamp,
    ) -> DerivedValues<'_> {
        let peer = match &self.peer {
            Some(peer) => peer(extensions),
            None => known.or_else(|| peer_of(extensions)),
        };
        let is_untrusted = extensions.get::<UntrustedPeer>().is_some();
        let ip = match peer {
            peer if is_untrusted => peer.map(|peer| peer.to_canonical()),
            peer => self.client_ip.of(peer, headers),
        };
        DerivedValues {
            is_from_proxy: !is_untrusted && self.client_ip.trusts(peer),
            ip: ip.map(text_of),
            api_key: self.api_keys.as_ref().and_then(|api_keys| api_keys.subject(headers)),
            claims: self.claims(headers, now),
        }
    }

    #[cfg(feature = "jwt")]
    fn claims(
        &self,
        headers: &HeaderMap,
        now: impl Fn() -> Timestamp,
    ) -> SmallVec<[(&str, String); 2]> {
        self.jwt.as_ref().map_or_else(SmallVec::new, |jwt| jwt.claims(headers, now()))
    }

    #[cfg(not(feature = "jwt"))]
    #[expect(clippy::unused_self, reason = "with the feature `jwt` it is used")]
    fn claims(&self, _: &HeaderMap, _: impl Fn() -> Timestamp) -> SmallVec<[(&str, String); 2]> {
        SmallVec::new()
    }

    /// The attributes: those of earlier layers, then those of tokens, then those of headers. Of two
    /// of one name the first counts.
    #[inline]
    pub(crate) fn pairs<'a>(
        &'a self,
        extensions: &'a Extensions,
        headers: &'a HeaderMap,
        derived: &'a DerivedValues<'_>,
        pairs: &mut Pairs<'a>,
    ) {
        if let Some(Attributes(told)) = extensions.get() {
            for (name, value) in told.iter().filter(|(name, _)| is_name(name)) {
                push(pairs, name, value);
            }
        }
        if let Some(api_key) = &derived.api_key {
            push(pairs, "api_key", api_key.as_str());
        }
        for (name, value) in derived.claims.iter().filter(|(name, _)| is_name(name)) {
            push(pairs, name, value);
        }
        for header in &self.headers {
            if (derived.is_from_proxy || !header.is_trusted)
                && let Some(value) = only(headers, &header.header)
            {
                push(pairs, &header.attribute, value);
            }
        }
        if let Some(ip) = &derived.ip {
            push(pairs, "ip", ip);
        }
        if self.has_content_length
            && let Some(length) = only(headers, &header::CONTENT_LENGTH)
            && length.bytes().all(|byte| byte.is_ascii_digit())
        {
            push(pairs, "content_length", length);
        }
    }

    /// Says of a request what trusted proxies say of it.
    #[inline]
    pub(crate) fn describe<'a>(
        &self,
        headers: &'a HeaderMap,
        derived: &DerivedValues<'_>,
        request: &mut tollbar_rules::Request<'a>,
    ) -> Result<(), TermHeaderError> {
        if derived.is_from_proxy {
            return self.terms.describe(headers, request);
        }
        self.terms.describe_untrusted(headers, request);
        Ok(())
    }

    /// The attributes of a request, for tests of one's own and for looking at.
    ///
    /// ```
    /// use tollbar_http::{Identity, Peer};
    /// let mut request = http::Request::new(());
    /// request.extensions_mut().insert(Peer("203.0.113.7".parse().unwrap()));
    /// let (parts, ()) = request.into_parts();
    /// let attributes = Identity::new().attributes(&parts, tollbar::Timestamp::ZERO);
    /// assert_eq!(attributes.get("ip"), Some("203.0.113.7"));
    /// ```
    #[must_use]
    pub fn attributes(&self, parts: &Parts, now: Timestamp) -> Attributes {
        let derived = self.derive(None, &parts.extensions, &parts.headers, || now);
        let mut pairs = Pairs::new();
        self.pairs(&parts.extensions, &parts.headers, &derived, &mut pairs);
        Attributes(pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("client_ip", &self.client_ip)
            .field("api_keys", &self.api_keys)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

impl Attributes {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// These and one more. Of two of one name the first counts.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The value of one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
    }
}

/// The peer's address, where somebody has left it.
fn peer_of(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) =
        extensions.get::<axum::extract::ConnectInfo<std::net::SocketAddr>>()
    {
        return Some(peer.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr().map(|peer| peer.ip());
    }
    extensions.get::<Peer>().map(|peer| peer.0)
}

/// An address as text, as the standard library writes it. Its formatter takes 80 ns for the four numbers
/// of IPv4, where this takes 20.
fn text_of(address: IpAddr) -> ArrayString<39> {
    let mut text = ArrayString::new();
    match address {
        IpAddr::V4(address) => {
            let mut digits = itoa::Buffer::new();
            for (at, number) in address.octets().into_iter().enumerate() {
                if at > 0 {
                    text.push('.');
                }
                text.push_str(digits.format(number));
            }
        }
        IpAddr::V6(address) => {
            // Never in IPv4's clothes, so the longest is eight groups of four digits.
            write!(text, "{address}").unwrap_or_default();
        }
    }
    text
}

/// Adds a pair unless its name, one that rules accept, is taken, or its value too long.
#[inline]
fn push<'a>(pairs: &mut Pairs<'a>, name: &'a str, value: &'a str) {
    let is_taken = pairs.iter().any(|(known, _)| *known == name);
    let is_value = (1..=VALUE_BYTES_MAX).contains(&value.len());
    if is_value && !is_taken && pairs.len() < ATTRIBUTES_MAX {
        pairs.push((name, value));
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !RESERVED.contains(&name)
}

/// The value of a header that is there once. Of two it would be a guess which one counts.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => std::str::from_utf8(line.as_bytes()).ok(),
        _ => None,
    }
}

/// The token of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = only(headers, &header::AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
