//! What the second reader of a connection has found, for the service that answers its requests. Both sides number the
//! heads, so a head with an error is refused by its number.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;

use crate::problem::Problem;

/// What is wrong with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadError {
    LengthAndChunks,
    BadLength,
    BareLineFeed,
    LongUri,
    LargeHeaders,
    /// There is no such head.
    Unseen,
}

const FLAWS: [HeadError; 6] = [
    HeadError::LengthAndChunks,
    HeadError::BadLength,
    HeadError::BareLineFeed,
    HeadError::LongUri,
    HeadError::LargeHeaders,
    HeadError::Unseen,
];

/// The findings on one connection. One task writes and reads them, so relaxed atomics are enough.
#[derive(Debug)]
pub(crate) struct Findings {
    /// How many heads were read.
    heads: AtomicU64,
    /// How many requests came of them.
    requests: AtomicU64,
    /// How many of those are answered.
    answers: AtomicU64,
    /// The number of a head that is refused, and its flaw in the last three bits. Nothing follows it.
    refused: AtomicU64,
    is_tunnel: AtomicBool,
}

const NONE: u64 = u64::MAX;

impl Default for Findings {
    fn default() -> Self {
        Self {
            heads: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            refused: AtomicU64::new(NONE),
            is_tunnel: AtomicBool::new(false),
        }
    }
}

impl Findings {
    /// So many heads were read.
    pub(crate) fn read(&self, heads: u64) {
        self.heads.store(heads, Ordering::Relaxed);
    }

    /// The last of them is refused.
    pub(crate) fn refuse(&self, flaw: HeadError) {
        let number = self.heads.load(Ordering::Relaxed).saturating_sub(1);
        self.refused.store(number << 3 | flaw as u64, Ordering::Relaxed);
    }

    /// The next request came; what is wrong with it, if that is known. Over HTTP/2 nothing is.
    pub(crate) fn asked(&self, is_http1: bool) -> Option<HeadError> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if !is_http1 {
            return None;
        }
        let refused = self.refused.load(Ordering::Relaxed);
        if refused != NONE && number >= refused >> 3 {
            return FLAWS.get((refused & 7) as usize).copied();
        }
        (number >= self.heads.load(Ordering::Relaxed)).then_some(HeadError::Unseen)
    }

    /// True once a request has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    /// A request was answered; `is_tunnel` where the protocol is another one now.
    pub(crate) fn answered(&self, is_tunnel: bool) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        if is_tunnel {
            self.is_tunnel.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_tunnel(&self) -> bool {
        self.is_tunnel.load(Ordering::Relaxed)
    }

    /// True where every head that was read has its answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.answers.load(Ordering::Relaxed) >= self.heads.load(Ordering::Relaxed)
    }
}

impl HeadError {
    pub(crate) fn problem(self) -> Problem {
        match self {
            Self::LengthAndChunks => {
                Problem::new(StatusCode::BAD_REQUEST, "the request has both a length and chunks")
            }
            Self::BadLength => {
                Problem::new(StatusCode::BAD_REQUEST, "Content-Length is not one number")
            }
            Self::BareLineFeed => {
                Problem::new(StatusCode::BAD_REQUEST, "a line of the head does not end with CR LF")
            }
            Self::LongUri => {
                Problem::new(StatusCode::URI_TOO_LONG, "the path and the query are too long")
            }
            Self::LargeHeaders => Problem::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the headers of the request are too large",
            ),
            Self::Unseen => {
                Problem::new(StatusCode::BAD_REQUEST, "where the request begins is not clear")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_refused_by_its_number_and_so_is_what_follows() {
        for flaw in FLAWS {
            let findings = Findings::default();
            findings.read(3);
            findings.refuse(flaw);
            let found: Vec<_> = (0..4).map(|_| findings.asked(true)).collect();
            assert_eq!(found, [None, None, Some(flaw), Some(flaw)]);
        }
    }

    #[test]
    fn a_request_whose_head_was_not_seen_is_refused() {
        let findings = Findings::default();
        findings.read(1);
        assert_eq!([findings.asked(true), findings.asked(true)], [None, Some(HeadError::Unseen)]);
        assert_eq!(findings.asked(false), None, "over HTTP/2 others look");
    }
}
