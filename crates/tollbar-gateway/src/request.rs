//! A client's request as the upstream gets it.

use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, Request, StatusCode, Uri, Version};
use http_body::Body;
use hyper::body::Incoming;

use crate::client::interim::InterimResponses;
use crate::forwarded::{self, ForwardedHeaders};
use crate::hop_by_hop;
use crate::problem::Problem;
use crate::upstream::body::{BodyBounds, BodyProgress, RequestBody};
use crate::upstream::options::UpstreamUrl;

/// A request that is ready to be sent, whatever the upstream speaks. In a box, since it goes through many
/// hands before that.
pub(crate) struct UpstreamRequest {
    parts: Parts,
    body: RequestBody,
    host: HeaderValue,
    /// What it wants to change to.
    pub(crate) upgrade: Option<HeaderValue>,
    /// How interim responses reach the client; `None` if they do not.
    interim: Option<Arc<InterimResponses>>,
}

/// What is the same for all requests.
#[derive(Debug)]
pub(crate) struct RequestSettings {
    pub(crate) url: UpstreamUrl,
    /// The upstream's own name.
    pub(crate) host: HeaderValue,
    pub(crate) rewrites_host: bool,
    pub(crate) body_bounds: BodyBounds,
    /// Headers that reach the upstream only from trusted proxies.
    pub(crate) trusted_headers: Arc<[HeaderName]>,
}

pub(crate) const AMBIGUOUS: Problem = Problem::new(
    StatusCode::BAD_REQUEST,
    "the request must name one host, such as example.com or example.com:8080",
);
const TOO_MANY_NAMES: Problem =
    Problem::new(StatusCode::BAD_REQUEST, "Connection names too many headers");

impl UpstreamRequest {
    pub(crate) fn new(
        request: Request<Incoming>,
        forwarded_headers: &ForwardedHeaders,
        terms: &RequestSettings,
        interim: Option<Arc<InterimResponses>>,
    ) -> Result<Box<Self>, Problem> {
        let (mut parts, body) = request.into_parts();
        let asked = forwarded::host(&parts.uri, &parts.headers).map_err(|_| AMBIGUOUS)?;
        let upgrade = hop_by_hop::upgrade(parts.version, &parts.headers);
        if !hop_by_hop::remove(&mut parts.headers) {
            return Err(TOO_MANY_NAMES);
        }
        // Whoever waits for it is told to go on when the upstream takes the body.
        parts.headers.remove(EXPECT);
        forwarded_headers.write(&mut parts.headers, asked.as_ref(), &terms.trusted_headers);
        let host = asked.filter(|_| !terms.rewrites_host).unwrap_or_else(|| terms.host.clone());
        if parts.version == Version::HTTP_2 {
            join_cookies(&mut parts.headers);
        }
        let body = RequestBody::new(body, &mut parts, terms.body_bounds, &terms.trusted_headers);
        Ok(Box::new(Self { parts, body, host, upgrade, interim }))
    }

    /// How far its body is.
    pub(crate) fn progress(&self) -> Option<Arc<BodyProgress>> {
        self.body.progress()
    }

    /// As HTTP/1.1 has it.
    pub(crate) fn for_http1(self) -> Request<RequestBody> {
        let Self { mut parts, mut body, host, upgrade, interim } = self;
        let is_http2 = std::mem::replace(&mut parts.version, Version::HTTP_11) == Version::HTTP_2;
        parts.uri = parts.uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
        parts.headers.insert(HOST, host);
        if let Some(protocol) = upgrade {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(UPGRADE, protocol);
        }
        // Over HTTP/2, trailers may follow a body of a known length. HTTP/1.1 has them behind chunks only.
        let has_trailers = is_http2 && parts.headers.contains_key(TRAILER);
        if !body.is_end_stream() && (has_trailers || body.size_hint().exact().is_none()) {
            // Said here, since a GET is otherwise taken to have no body.
            parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            parts.headers.remove(CONTENT_LENGTH);
            body.set_chunked();
        }
        let mut request = Request::from_parts(parts, body);
        if let Some(interim) = interim {
            hyper::ext::on_informational(&mut request, move |response| {
                interim.push(response.status(), response.headers());
            });
        }
        request
    }

    /// As HTTP/2 has it. `None` where the host is none.
    pub(crate) fn for_http2(self, url: &UpstreamUrl) -> Option<Request<RequestBody>> {
        let Self { mut parts, body, host, .. } = self;
        let authority = Authority::from_maybe_shared(host).ok()?;
        let path = parts.uri.path_and_query().cloned();
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(url.scheme());
        uri.authority = Some(authority);
        uri.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        parts.uri = Uri::from_parts(uri).ok()?;
        parts.version = Version::HTTP_2;
        parts.headers.remove(HOST);
        Some(Request::from_parts(parts, body))
    }
}

/// HTTP/2 may send cookies on several lines, HTTP/1.1 may not (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    let joined = lines.join(&b"; "[..]);
    // Of valid lines; were they not, they would go as they came.
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(COOKIE, joined);
    }
}
