//! Path patterns: `/v1/users/{id}/**`.
//!
//! A pattern is segments. `*` and `{name}` stand for any one segment, `**` at the end for whatever
//! follows, nothing included. Within a segment there are no wildcards, so that a router can look a
//! segment up and need not try patterns in turn.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use thiserror::Error;

use crate::message::shorten;
use crate::request::path::{self, PathOptions, Slashes};

/// The longest pattern.
pub(crate) const PATTERN_BYTES_MAX: usize = 1_024;

/// The most segments of a pattern.
pub(crate) const PATTERN_SEGMENTS_MAX: usize = 64;

/// Which paths: `/v1/users`, `/v1/users/{id}`, `/v1/**`.
///
/// ```
/// use tollbar_rules::PathPattern;
/// # fn main() -> Result<(), tollbar_rules::PatternError> {
/// let pattern: PathPattern = "/v1/users/{id}/**".parse()?;
/// assert!(pattern.matches("/v1/users/42") && pattern.matches("/v1/users/42/orders/7"));
/// assert!(!pattern.matches("/v1/users"));
/// # Ok(())
/// # }
/// ```
///
/// Two patterns are equal where they stand for the same paths, whatever their segments are called. A
/// pattern prints as it was written.
#[derive(Debug, Clone)]
pub struct PathPattern {
    segments: Box<[Segment]>,
    /// Ends with `**`.
    is_open: bool,
    text: Box<str>,
}

/// One part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Segment {
    Literal(Box<str>),
    Any,
}

/// Why a text is not a pattern. Says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// It does not begin at the root.
    #[error("a path pattern begins with `/`: write `/{pattern}`")]
    NoSlash {
        /// The whole pattern.
        pattern: String,
    },
    /// `**` before the end.
    #[error("`**` stands for the rest of a path: write it at the end, and `*` for one segment")]
    OpenBeforeEnd,
    /// A wildcard that is not a whole segment.
    #[error("`{segment}` has a wildcard in it: write `*` or `{{name}}` for a whole segment")]
    PartlyWild {
        /// The segment.
        segment: String,
    },
    /// A segment that no normal path has.
    #[error("no path has a segment `{segment}` once it is normal: write the path without it")]
    NotNormal {
        /// The segment.
        segment: String,
    },
    /// A query in it.
    #[error("a path has no `?` or `#`: leave out the query, which is not looked at")]
    Query,
    /// Too long.
    #[error(
        "the pattern is too long: write at most {PATTERN_BYTES_MAX} bytes and \
         {PATTERN_SEGMENTS_MAX} segments"
    )]
    TooLong,
}

impl PathPattern {
    /// True where the pattern stands for `path`, which is in its normal form.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        self.matches_folded(path, PathOptions::default())
    }

    /// True where the pattern stands for `path`, which was folded by `options`.
    pub(crate) fn matches_folded(&self, path: &str, options: PathOptions) -> bool {
        let mut parts = path::segments(path);
        for segment in &self.segments {
            match (segment, parts.next()) {
                (_, None) => return false,
                (Segment::Literal(literal), Some(part)) if options.fold(literal) != part => {
                    return false;
                }
                _ => {}
            }
        }
        self.is_open || parts.next().is_none()
    }

    /// True if no path matches both patterns, whichever [`PathOptions`] the rules are read with.
    pub(crate) fn is_disjoint_from(&self, other: &Self) -> bool {
        // Literals that are equal under some options are equal under all options together.
        let options =
            PathOptions { ignores_case: true, strips_matrix: true, ..PathOptions::default() };
        let mut pairs = self.segments.iter().zip(&other.segments);
        let has_difference = pairs.any(|pair| match pair {
            (Segment::Literal(own), Segment::Literal(other)) => {
                options.fold(own) != options.fold(other)
            }
            _ => false,
        });
        let (own, others) = (self.segments.len(), other.segments.len());
        has_difference || (own < others && !self.is_open) || (others < own && !other.is_open)
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// What a pattern means, without how it was written.
    fn meaning(&self) -> (&[Segment], bool) {
        (&self.segments, self.is_open)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// The last segment that is not a wildcard, for those who look for a login.
    pub(crate) fn last_literal(&self) -> Option<&str> {
        self.segments.iter().rev().find_map(|segment| match segment {
            Segment::Literal(literal) => Some(&**literal),
            Segment::Any => None,
        })
    }
}

impl FromStr for PathPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(PatternError::NoSlash { pattern: shorten(text) });
        };
        if text.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong);
        }
        if rest.contains(['?', '#']) {
            return Err(PatternError::Query);
        }
        let has_empty_start = rest.starts_with('/');
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (rest, is_open) = match rest.strip_suffix("**") {
            Some("") => ("", true),
            Some(before) if before.ends_with('/') => (&before[..before.len() - 1], true),
            _ => (rest, false),
        };
        let text = text.into();
        if rest.is_empty() && !(is_open && has_empty_start) {
            return Ok(Self { segments: Box::default(), is_open, text });
        }
        let segments: Box<[Segment]> =
            rest.split('/').map(Segment::parse).collect::<Result<_, _>>()?;
        if segments.len() > PATTERN_SEGMENTS_MAX {
            return Err(PatternError::TooLong);
        }
        Ok(Self { segments, is_open, text })
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Self, PatternError> {
        let is_name = |name: &str| {
            let mut bytes = name.bytes();
            !name.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        match text {
            "*" => return Ok(Self::Any),
            "**" => return Err(PatternError::OpenBeforeEnd),
            _ => {}
        }
        if text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).is_some_and(is_name) {
            return Ok(Self::Any);
        }
        if text.contains(['*', '{', '}']) {
            return Err(PatternError::PartlyWild { segment: shorten(text) });
        }
        let literal = path::decode(text, Slashes::Keep);
        match literal.as_str() {
            "" | "." | ".." => Err(PatternError::NotNormal { segment: shorten(text) }),
            _ => Ok(Self::Literal(literal.into())),
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        self.meaning() == other.meaning()
    }
}

impl Eq for PathPattern {}

impl PartialOrd for PathPattern {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PathPattern {
    fn cmp(&self, other: &Self) -> Ordering {
        self.meaning().cmp(&other.meaning())
    }
}

impl Hash for PathPattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.meaning().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> PathPattern {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn patterns_match_whole_paths() {
        let table: &[(&str, &[&str], &[&str])] = &[
            ("/", &["/"], &["/a"]),
            ("/**", &["/", "/a", "/a/b"], &[]),
            ("/v1", &["/v1"], &["/", "/v1/a", "/v", "/v12", "/V1"]),
            ("/v1/", &["/v1"], &["/v1/a"]),
            ("/v1/**", &["/v1", "/v1/a", "/v1/a/b"], &["/", "/v2", "/v12"]),
            ("/v1/*", &["/v1/a", "/v1/*"], &["/v1", "/v1/a/b"]),
            ("/v1/{id}/x", &["/v1/a/x"], &["/v1/x", "/v1/a/b/x", "/v1/a/y"]),
            ("/*/{b}/**", &["/a/b", "/a/b/c"], &["/a", "/"]),
            ("/caf%C3%A9", &["/café"], &["/cafe"]),
            ("/a%2fb", &["/a%2Fb"], &["/a/b"]),
        ];
        for (text, yes, no) in table {
            let pattern = pattern(text);
            for path in *yes {
                assert!(pattern.matches(path), "{text} should match {path}");
            }
            for path in *no {
                assert!(!pattern.matches(path), "{text} should not match {path}");
            }
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_what_to_write() {
        let table = [
            ("v1/users", "a path pattern begins with `/`: write `/v1/users`"),
            ("", "a path pattern begins with `/`: write `/`"),
            (
                "/a/**/b",
                "`**` stands for the rest of a path: write it at the end, and `*` for one segment",
            ),
            (
                "/files/*.png",
                "`*.png` has a wildcard in it: write `*` or `{name}` for a whole segment",
            ),
            ("/a/{b", "`{b` has a wildcard in it: write `*` or `{name}` for a whole segment"),
            ("/a/{}", "`{}` has a wildcard in it: write `*` or `{name}` for a whole segment"),
            ("/a//b", "no path has a segment `` once it is normal: write the path without it"),
            (
                "/a/%2e%2e",
                "no path has a segment `%2e%2e` once it is normal: write the path without it",
            ),
            ("/a?b=1", "a path has no `?` or `#`: leave out the query, which is not looked at"),
        ];
        for (text, message) in table {
            let error = text.parse::<PathPattern>().expect_err(text);
            assert_eq!(error.to_string(), message);
        }
        assert_eq!("/a".repeat(65).parse::<PathPattern>(), Err(PatternError::TooLong));
        let of_bytes = |bytes: usize| format!("/{}", "a".repeat(bytes - 1)).parse::<PathPattern>();
        assert_eq!(of_bytes(1_025), Err(PatternError::TooLong));
        assert_eq!(of_bytes(1_024).unwrap().to_string().len(), 1_024);
    }

    #[test]
    fn a_pattern_prints_as_it_was_written_and_is_compared_by_what_it_means() {
        for text in ["/v1/users/{id}/**", "/a b/%2A", "/v1/", "/", "/**", "/%"] {
            assert_eq!(pattern(text).to_string(), text);
        }
        assert_eq!(pattern("/v1/{id}"), pattern("/v1/*"));
        assert_eq!(pattern("/caf%C3%A9/"), pattern("/café"));
        assert_ne!(pattern("/v1/*"), pattern("/v1/**"));
    }

    #[test]
    fn patterns_that_share_no_path_are_known() {
        for (first, second, is_disjoint) in [
            ("/search", "/login", true),
            ("/v1/search", "/v1", true),
            ("/v1/**", "/v2/**", true),
            ("/v1/{id}/a", "/v1/*/b", true),
            ("/v1/*", "/v1/a/b", true),
            ("/", "/a", true),
            ("/search", "/search", false),
            ("/v1/**", "/v1", false),
            ("/v1/**", "/v1/a/b", false),
            ("/v1/*", "/v1/a", false),
            ("/*/a", "/b/*", false),
            ("/**", "/", false),
            // With `case: insensitive` or `matrix: strip` they match the same paths.
            ("/Search", "/search", false),
            ("/search;x", "/search", false),
        ] {
            let (first, second) = (pattern(first), pattern(second));
            assert_eq!(first.is_disjoint_from(&second), is_disjoint, "{first} {second}");
            assert_eq!(second.is_disjoint_from(&first), is_disjoint, "{second} {first}");
        }
    }

    proptest! {
        /// A pair that is called disjoint and shares a path would let a sub-limit above the operator's limit pass.
        #[test]
        fn patterns_that_match_one_path_are_not_disjoint(
            first in "(/([aAb]|a;x|\\*)){0,3}(/\\*\\*)?",
            second in "(/([aAb]|a;x|\\*)){0,3}(/\\*\\*)?",
            path in "(/([aAb]|a;x)){1,4}",
            ignores_case: bool,
            strips_matrix: bool,
        ) {
            let options = PathOptions { ignores_case, strips_matrix, ..PathOptions::default() };
            let parts: Vec<_> = path::segments(&path).map(|part| options.fold(part)).collect();
            let folded = format!("/{}", parts.join("/"));
            let patterns = [first, second].map(|text| text.parse::<PathPattern>());
            if let [Ok(first), Ok(second)] = patterns
                && first.matches_folded(&folded, options)
                && second.matches_folded(&folded, options)
            {
                prop_assert!(!first.is_disjoint_from(&second), "{} {} {}", first, second, path);
            }
        }

        #[test]
        fn a_printed_pattern_reads_as_the_same(text in "(/([a-c%2FA]{1,3}|\\*|\\{x\\})){0,5}(/\\*\\*)?") {
            if let Ok(pattern) = text.parse::<PathPattern>() {
                let again: PathPattern = pattern.to_string().parse().unwrap();
                prop_assert_eq!(again, pattern);
            }
        }
    }
}
