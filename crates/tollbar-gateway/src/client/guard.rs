//! What no request may be, whatever the rules say: too long, or to be read in two ways.

use http::header::{HOST, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Request, StatusCode, Version};

use crate::problem::Problem;

/// How much the head of a request may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadBounds {
    /// Path and query. What is longer gets 414.
    pub uri_bytes_max: usize,
    /// All names and values. What is more gets 431.
    pub header_bytes_max: usize,
    /// How many lines. What is more gets 431.
    pub header_count_max: usize,
}

impl Default for HeadBounds {
    fn default() -> Self {
        // With the line that is too much, what hyper keeps without asking for memory.
        Self { uri_bytes_max: 8_192, header_bytes_max: 32 * 1_024, header_count_max: 99 }
    }
}

impl HeadBounds {
    /// Why a request is refused, if it is.
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let (uri, headers) = (request.uri(), request.headers());
        if request.method() == Method::CONNECT || request.method() == Method::TRACE {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "CONNECT and TRACE are not served here");
        }
        let target = uri.path_and_query().map_or("", |target| target.as_str());
        if target.len() > self.uri_bytes_max {
            return refuse(StatusCode::URI_TOO_LONG, "the path and the query are too long");
        }
        if headers.len() > self.header_count_max || bytes(headers) > self.header_bytes_max {
            return refuse(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the headers of the request are too large",
            );
        }
        let is_plain = match headers.get(TRANSFER_ENCODING) {
            None => true,
            Some(coding) => {
                coding.as_bytes().eq_ignore_ascii_case(b"chunked")
                    && headers.get_all(TRANSFER_ENCODING).iter().count() == 1
            }
        };
        if !is_plain {
            return refuse(
                StatusCode::NOT_IMPLEMENTED,
                "of transfer codings only chunked is known",
            );
        }
        let has_host = uri.authority().is_some() || headers.contains_key(HOST);
        if !has_host && request.version() != Version::HTTP_10 {
            return refuse(StatusCode::BAD_REQUEST, "the request names no host");
        }
        Ok(())
    }
}

fn refuse(status: StatusCode, detail: &'static str) -> Result<(), Problem> {
    Err(Problem::new(status, detail))
}

fn bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}
