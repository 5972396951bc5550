//! Paths in one normal form, so that no spelling of a path goes around its rule.
//!
//! Percent-decoding once, `.` and `..`, `//`, the slash at the end, and nothing of the query. What servers make
//! of case and of `;` differs: a file of rules says it ([`PathOptions`]), and the path is folded accordingly when it is
//! checked. A path with `\` or a NUL, which no two servers read alike, is refused unless the file allows it.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::InvalidRequest;

/// The longest path, without its query.
pub(crate) const PATH_BYTES_MAX: usize = 8_192;

/// The most segments a path has once it is normal.
pub(crate) const PATH_SEGMENTS_MAX: usize = 256;

/// A path in its normal form: begins with `/`, has no empty segment and no dots, does not end with
/// `/` unless that is all of it.
///
/// `%2F` is read in two ways by the world's servers: as a slash, or as a character of its segment.
/// Such a path has both readings, and a rule applies to it if it applies to either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NormalPath<'a> {
    /// Everything decoded, encoded slashes too.
    pub(crate) decoded: Cow<'a, str>,
    /// With encoded slashes left as `%2F`, where there were any.
    pub(crate) with_slashes_kept: Option<Box<str>>,
    /// True with a `\` or a NUL in it.
    pub(crate) is_ambiguous: bool,
}

/// How paths are compared, by what the server behind makes of them. By default `/Login` and `/login;x` are other paths
/// than `/login`, and a path with a backslash or a NUL is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathOptions {
    /// `/Login` is `/login`.
    pub ignores_case: bool,
    /// `/login;x` is `/login`.
    pub strips_matrix: bool,
    /// A backslash or a NUL in a path is a character like any other.
    pub allows_ambiguous: bool,
}

impl PathOptions {
    /// True where some paths are compared in another form than their normal one.
    #[inline]
    pub(crate) fn folds(self) -> bool {
        self.ignores_case || self.strips_matrix
    }

    /// Folds a segment of a path or of a pattern.
    pub(crate) fn fold(self, segment: &str) -> Cow<'_, str> {
        let end = segment.find(';').filter(|_| self.strips_matrix).unwrap_or(segment.len());
        let segment = &segment[..end];
        let is_lower = |character: char| character.to_lowercase().eq([character]);
        if self.ignores_case && !segment.chars().all(is_lower) {
            return Cow::Owned(segment.chars().flat_map(char::to_lowercase).collect());
        }
        Cow::Borrowed(segment)
    }

    /// Folds a normal path. What was `..;x` is `..` then, so it is resolved once more.
    fn fold_path(self, path: &str) -> String {
        let mut folded = String::with_capacity(path.len());
        for segment in segments(path) {
            folded.push('/');
            folded.push_str(&self.fold(segment));
        }
        // It has no more segments than before.
        resolve(&folded).unwrap_or(folded)
    }
}

impl NormalPath<'_> {
    /// The path as rules with these options compare it.
    pub(crate) fn folded(&self, options: PathOptions) -> NormalPath<'static> {
        let kept = self.with_slashes_kept.as_deref();
        NormalPath {
            decoded: Cow::Owned(options.fold_path(&self.decoded)),
            with_slashes_kept: kept.map(|path| options.fold_path(path).into()),
            is_ambiguous: self.is_ambiguous,
        }
    }
}

/// The normal form of `raw`, which is borrowed where it is normal already.
#[inline]
pub(crate) fn normalise(raw: &str) -> Result<NormalPath<'_>, InvalidRequest> {
    // A query does not make a path too long: it is no part of it.
    let raw = if raw.len() > PATH_BYTES_MAX { without_query(raw) } else { raw };
    if raw.len() > PATH_BYTES_MAX {
        return Err(InvalidRequest::PathTooLong { bytes: raw.len() });
    }
    match segments_if_normal(raw) {
        Some(0..=PATH_SEGMENTS_MAX) => {
            let (decoded, with_slashes_kept) = (Cow::Borrowed(raw), None);
            Ok(NormalPath { decoded, with_slashes_kept, is_ambiguous: false })
        }
        Some(segments) => Err(InvalidRequest::TooManySegments { segments }),
        None => rewrite(raw),
    }
}

/// How many segments a path has that is normal; `None` where it is not, or may not be.
///
/// Without a branch for each byte: every request has a path, and few are not normal.
#[inline]
fn segments_if_normal(raw: &str) -> Option<usize> {
    let bytes = raw.as_bytes();
    let (mut segments, mut is_odd, mut previous) = (0, 0, 0);
    for &byte in bytes {
        let class = CLASSES[usize::from(byte)];
        is_odd |= class & (ODD | previous << 1);
        segments += usize::from(class & SLASH);
        previous = class & SLASH;
    }
    let begins = bytes.first() == Some(&b'/');
    let ends = previous == 0 || bytes.len() == 1;
    (begins && ends && is_odd == 0).then_some(segments)
}

/// What a byte of a path may be, in bits.
const SLASH: u8 = 1;
/// May not follow a slash. `/.well-known` is normal, but is decided by the slow way, which knows whole
/// segments.
const NOT_BEHIND_SLASH: u8 = SLASH << 1;
/// Is in no path that is normal.
const ODD: u8 = 4;

static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    classes[b'/' as usize] = SLASH | NOT_BEHIND_SLASH;
    classes[b'.' as usize] = NOT_BEHIND_SLASH;
    classes[b'%' as usize] = ODD;
    classes[b'?' as usize] = ODD;
    classes[b'#' as usize] = ODD;
    classes[b'\\' as usize] = ODD;
    classes[0] = ODD;
    classes
};

#[cold]
fn rewrite(raw: &str) -> Result<NormalPath<'_>, InvalidRequest> {
    let path = without_origin(raw);
    let path = without_query(path);
    let decoded = resolve(&decode(path, Slashes::Decode))?;
    let has_encoded_slash = path
        .as_bytes()
        .windows(3)
        .any(|bytes| bytes.eq_ignore_ascii_case(ENCODED_SLASH.as_bytes()));
    let with_slashes_kept = if has_encoded_slash {
        Some(resolve(&decode(path, Slashes::Keep))?.into_boxed_str())
    } else {
        None
    };
    let is_ambiguous = decoded.contains(['\\', '\0']);
    Ok(NormalPath { decoded: Cow::Owned(decoded), with_slashes_kept, is_ambiguous })
}

fn without_query(path: &str) -> &str {
    &path[..path.find(['?', '#']).unwrap_or(path.len())]
}

/// `http://host/path`, the form in which proxies are asked, becomes `/path`.
fn without_origin(raw: &str) -> &str {
    match raw.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            rest.find(['/', '?', '#']).map_or("", |at| &rest[at..])
        }
        _ => raw,
    }
}

/// What becomes of an encoded slash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slashes {
    Decode,
    Keep,
}

const ENCODED_SLASH: &str = "%2F";

/// Decodes once. A `%`, encoded or not, becomes `%25`, so that what was encoded twice is not taken
/// for what was encoded once; bytes that are no UTF-8 stay encoded, in capitals. What comes out
/// comes out the same if it is put in again.
pub(crate) fn decode(path: &str, slashes: Slashes) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let Some(byte) = encoded_byte(rest) else {
            match first {
                b'%' => bytes.extend_from_slice(b"%25"),
                first => bytes.push(*first),
            }
            rest = after;
            continue;
        };
        match byte {
            b'%' => bytes.extend_from_slice(b"%25"),
            b'/' if slashes == Slashes::Keep => {
                bytes.extend_from_slice(ENCODED_SLASH.as_bytes());
            }
            byte => bytes.push(byte),
        }
        rest = &rest[3..];
    }
    let mut decoded = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        decoded.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            write!(decoded, "%{byte:02X}").unwrap_or_default();
        }
    }
    decoded
}

/// The byte that `%41` stands for, if the bytes begin so.
fn encoded_byte(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = bytes else {
        return None;
    };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

/// Without empty segments and dots. `..` at the root stays there.
fn resolve(decoded: &str) -> Result<String, InvalidRequest> {
    let mut kept: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    if kept.len() > PATH_SEGMENTS_MAX {
        return Err(InvalidRequest::TooManySegments { segments: kept.len() });
    }
    Ok(format!("/{}", kept.join("/")))
}

/// The segments of a path that is normal.
#[inline]
pub(crate) fn segments(normal: &str) -> impl Iterator<Item = &str> {
    normal.split('/').skip(1).filter(|segment| !segment.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn readings(raw: &str) -> (String, Option<String>) {
        let path = normalise(raw).expect("a path within bounds");
        (path.decoded.into_owned(), path.with_slashes_kept.map(String::from))
    }

    #[test]
    fn a_path_has_one_normal_form() {
        let table = [
            ("/", "/"),
            ("", "/"),
            ("*", "/*"),
            ("/v1/login", "/v1/login"),
            ("v1/login", "/v1/login"),
            ("/v1//login", "/v1/login"),
            ("/v1/login/", "/v1/login"),
            ("//v1///login/", "/v1/login"),
            ("/v1/./login/.", "/v1/login"),
            ("/v1/x/../login", "/v1/login"),
            ("/../../v1/login", "/v1/login"),
            ("/v1/%6cogin", "/v1/login"),
            ("/v1/%6Cogin", "/v1/login"),
            ("/%2e%2E/v1/%2e/login", "/v1/login"),
            ("/v1/login?next=/../x", "/v1/login"),
            ("/v1/login#top", "/v1/login"),
            ("http://api.example:80/v1/login", "/v1/login"),
            ("http://api.example", "/"),
            ("/v1/LOGIN", "/v1/LOGIN"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a..b/...", "/a..b/..."),
            // Encoded twice is not encoded once.
            ("/%252e%252e/v1", "/%252e%252e/v1"),
            ("/100%", "/100%25"),
            ("/%zz/%4", "/%25zz/%254"),
            // Found by fuzzing: the lone `%` and the decoded `2` once made an escape together.
            ("/%%32f", "/%252f"),
            ("/caf%c3%a9", "/café"),
            ("/%ff%FE", "/%FF%FE"),
            ("/a b", "/a b"),
        ];
        for (raw, normal) in table {
            assert_eq!(readings(raw), (normal.to_owned(), None), "{raw}");
        }
    }

    #[test]
    fn an_encoded_slash_is_read_both_ways() {
        let both = |a: &str, b: &str| (a.to_owned(), Some(b.to_owned()));
        assert_eq!(readings("/v1%2flogin"), both("/v1/login", "/v1%2Flogin"));
        assert_eq!(readings("/static/..%2Flogin"), both("/login", "/static/..%2Flogin"));
    }

    #[test]
    fn a_path_is_folded_as_the_server_behind_reads_it() {
        let fold = |raw: &str, ignores_case, strips_matrix| {
            let options = PathOptions { ignores_case, strips_matrix, ..PathOptions::default() };
            let folded = normalise(raw).unwrap().folded(options);
            assert_eq!(folded.folded(options), folded, "twice is as once");
            folded.decoded.into_owned()
        };
        assert_eq!(fold("/LOGIN;x/%C3%89", true, false), "/login;x/é");
        assert_eq!(fold("/LOGIN;x", false, true), "/LOGIN");
        assert_eq!(fold("/a;b=1/..;/;x/Login%3Bx/;", true, true), "/login");
        assert_eq!(fold("/..;/..;x", true, true), "/");
        let both = PathOptions { ignores_case: true, strips_matrix: true, allows_ambiguous: false };
        let kept = normalise("/A;x%2FLogin").unwrap().folded(both);
        assert_eq!((&*kept.decoded, kept.with_slashes_kept.as_deref()), ("/a/login", Some("/a")));
        for raw in ["/a\\b", "/a%5cb", "/a%00", "/a\0", "/%2F%5C"] {
            assert!(normalise(raw).unwrap().is_ambiguous, "{raw}");
        }
        assert!(!normalise("/a%2Fb;c?\\%00").unwrap().is_ambiguous);
    }

    #[test]
    fn long_paths_are_refused_and_not_cut() {
        let long = "a".repeat(PATH_BYTES_MAX);
        assert!(normalise(&long).is_ok());
        let error = normalise(&format!("/{long}")).unwrap_err();
        assert_eq!(error, InvalidRequest::PathTooLong { bytes: PATH_BYTES_MAX + 1 });
        for many in ["/a".repeat(300), "/%61".repeat(300)] {
            let error = normalise(&many).unwrap_err();
            assert_eq!(error, InvalidRequest::TooManySegments { segments: 300 });
        }
        // A query is cut off before the path is measured: a client could otherwise choose not to be read.
        for tail in [format!("?pad={long}"), format!("#{long}")] {
            assert_eq!(normalise(&format!("/login{tail}")).unwrap().decoded, "/login");
            assert_eq!(normalise(&format!("http://x/login{tail}")).unwrap().decoded, "/login");
            let error = normalise(&format!("/{long}{tail}")).unwrap_err();
            assert_eq!(error, InvalidRequest::PathTooLong { bytes: PATH_BYTES_MAX + 1 });
        }
        assert!(normalise(&"/a".repeat(PATH_SEGMENTS_MAX)).is_ok());
        assert!(normalise(&"/%61".repeat(PATH_SEGMENTS_MAX)).is_ok());
    }

    proptest! {
        #[test]
        fn the_normal_form_is_normal(raw in "[/.%a2fF5?#é:]{0,24}") {
            let path = normalise(&raw).unwrap();
            for reading in [Some(&*path.decoded), path.with_slashes_kept.as_deref()].into_iter().flatten() {
                prop_assert!(reading.starts_with('/') && !reading.contains("//"), "{reading}");
                prop_assert!(reading == "/" || !reading.ends_with('/'), "{reading}");
                let is_plain = segments(reading).all(|segment| segment != "." && segment != "..");
                prop_assert!(is_plain, "{reading}");
                prop_assert_eq!(decode(reading, Slashes::Keep), reading);
            }
        }

        #[test]
        fn what_looks_normal_is_left_alone(raw in "[/a]{0,6}|/[/a.]{0,4}|/[a%?#]{0,3}|(/[a-z.]{1,4}){1,6}") {
            if let Some(segments) = segments_if_normal(&raw) {
                prop_assert_eq!(&*rewrite(&raw).unwrap().decoded, raw.as_str());
                prop_assert_eq!(super::segments(&raw).count().max(1), segments);
            }
        }
    }
}
