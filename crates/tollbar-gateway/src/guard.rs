//! What no request may be, whatever the rules say: too long, or to be read in two ways.

use http::header::{HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, Version};

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
        Self { uri_bytes_max: 8_192, header_bytes_max: 32 * 1_024, header_count_max: 100 }
    }
}

impl HeadBounds {
    /// Why a request is refused, if it is.
    pub(crate) fn check(&self, parts: &Parts) -> Result<(), Problem> {
        if parts.method == Method::CONNECT || parts.method == Method::TRACE {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "CONNECT and TRACE are not served here");
        }
        let target = parts.uri.path_and_query().map_or("", |it| it.as_str());
        if target.len() > self.uri_bytes_max {
            return refuse(StatusCode::URI_TOO_LONG, "the path and the query are too long");
        }
        if parts.headers.len() > self.header_count_max
            || bytes(&parts.headers) > self.header_bytes_max
        {
            return refuse(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the headers of the request are too large",
            );
        }
        let is_plain = match parts.headers.get(TRANSFER_ENCODING) {
            None => true,
            Some(coding) => {
                coding.as_bytes().eq_ignore_ascii_case(b"chunked")
                    && parts.headers.get_all(TRANSFER_ENCODING).iter().count() == 1
            }
        };
        if !is_plain {
            return refuse(
                StatusCode::NOT_IMPLEMENTED,
                "of transfer codings only chunked is known",
            );
        }
        let has_host = parts.uri.authority().is_some() || parts.headers.contains_key(HOST);
        if !has_host && parts.version != Version::HTTP_10 {
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
