//! What clients of the Redis protocol get, in its second or third version, into one buffer.

use std::fmt::{self, Write as _};

/// Which types there are: the third version has maps, booleans and a null of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RespVersion {
    #[default]
    Two,
    Three,
}

/// Answers that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    bytes: Vec<u8>,
    pub(crate) version: RespVersion,
}

/// The most of a client's own words that an error repeats.
const EXCERPT_CHARS_MAX: usize = 64;

impl Replies {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets what was written, and gives back memory beyond `capacity_max`.
    pub(crate) fn clear(&mut self, capacity_max: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(capacity_max);
    }

    /// A text of ours, on one line.
    pub(crate) fn simple(&mut self, text: &'static str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end_line();
    }

    /// The first word of `error` is what programs look at. A line end within it, which would end the
    /// reply, is written as a space.
    pub(crate) fn error(&mut self, error: impl fmt::Display) {
        self.bytes.push(b'-');
        let start = self.bytes.len();
        self.bytes.extend_from_slice(error.to_string().as_bytes());
        for byte in &mut self.bytes[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.end_line();
    }

    pub(crate) fn integer(&mut self, number: impl itoa::Integer) {
        self.head(b':', number);
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.end_line();
    }

    /// The next `count` replies are its elements.
    pub(crate) fn array(&mut self, count: usize) {
        self.head(b'*', count);
    }

    /// The next `count` pairs of replies are its names and values; in version 2 they are one array.
    pub(crate) fn map(&mut self, count: usize) {
        match self.version {
            RespVersion::Two => self.head(b'*', 2 * count),
            RespVersion::Three => self.head(b'%', count),
        }
    }

    /// In version 2 a number, 1 or 0.
    pub(crate) fn boolean(&mut self, is_true: bool) {
        self.bytes.extend_from_slice(match (self.version, is_true) {
            (RespVersion::Two, false) => b":0\r\n",
            (RespVersion::Two, true) => b":1\r\n",
            (RespVersion::Three, false) => b"#f\r\n",
            (RespVersion::Three, true) => b"#t\r\n",
        });
    }

    pub(crate) fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            RespVersion::Two => b"$-1\r\n",
            RespVersion::Three => b"_\r\n",
        });
    }

    pub(crate) fn integer_or_null(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.integer(number),
            None => self.null(),
        }
    }

    pub(crate) fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    #[inline]
    fn head(&mut self, kind: u8, number: impl itoa::Integer) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.end_line();
    }

    #[inline]
    fn end_line(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// A client's own words within an error: visible, and not many of them.
pub(crate) struct Excerpt<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.0[..self.0.len().min(4 * EXCERPT_CHARS_MAX)]);
        for (at, c) in text.chars().enumerate() {
            match c {
                _ if at == EXCERPT_CHARS_MAX => return f.write_str(".."),
                c if c.is_control() => f.write_char('?')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: RespVersion, write: impl Fn(&mut Replies)) -> String {
        let mut replies = Replies { version, ..Replies::default() };
        write(&mut replies);
        String::from_utf8(replies.bytes).unwrap()
    }

    #[test]
    fn each_type_is_written_as_each_version_has_it() {
        let all = |replies: &mut Replies| {
            replies.simple("OK");
            replies.integer(-1_i64);
            replies.integer(u64::MAX);
            replies.bulk(b"a\r\nb");
            replies.array(0);
            replies.map(1);
            replies.boolean(true);
            replies.boolean(false);
            replies.null();
        };
        assert_eq!(
            written(RespVersion::Two, all),
            "+OK\r\n:-1\r\n:18446744073709551615\r\n$4\r\na\r\nb\r\n*0\r\n*2\r\n:1\r\n:0\r\n$-1\r\n"
        );
        assert_eq!(
            written(RespVersion::Three, all),
            "+OK\r\n:-1\r\n:18446744073709551615\r\n$4\r\na\r\nb\r\n*0\r\n%1\r\n#t\r\n#f\r\n_\r\n"
        );
    }

    #[test]
    fn an_error_is_one_line_whatever_is_in_it() {
        let error = |replies: &mut Replies| replies.error("ERR a\r\n+OK\r\n");
        assert_eq!(written(RespVersion::Two, error), "-ERR a  +OK  \r\n");
        assert_eq!(Excerpt(b"a\r\nb\xff").to_string(), "a??b\u{fffd}");
        let long = Excerpt(&[b'x'; 1_000]).to_string();
        assert_eq!(long, "x".repeat(64) + "..");
    }
}
