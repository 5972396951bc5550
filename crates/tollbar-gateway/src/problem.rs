//! What clients are told when there is no answer from the upstream, or their request is refused:
//! RFC 9457. Why exactly is for the log: nothing here names an address, a file or an error's text.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use tollbar_http::retry_after_s;

const TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A response that is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) detail: &'static str,
    pub(crate) retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) const fn new(status: StatusCode, detail: &'static str) -> Self {
        Self { status, detail, retry_after: None }
    }

    pub(crate) fn response(self) -> Response<Bytes> {
        let title = self.status.canonical_reason().unwrap_or("Error");
        // Titles and details are ours, and have nothing in them that JSON would escape.
        let body = format!(
            "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{},\"detail\":\"{}\"}}\n",
            self.status.as_u16(),
            self.detail
        );
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, TYPE);
        if let Some(wait) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after_s(wait)));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_happened_and_when_to_come_back() {
        let wait = Some(Duration::from_millis(1_001));
        let problem = Problem { retry_after: wait, ..Problem::new(StatusCode::BAD_GATEWAY, "no") };
        let response = problem.response();
        assert_eq!(response.status(), 502);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(
            *response.body(),
            "{\"type\":\"about:blank\",\"title\":\"Bad Gateway\",\"status\":502,\"detail\":\"no\"}\n"
        );
    }
}
