//! Where the messages of a connection over HTTP/1.1 begin and end, read beside the parser that serves
//! them: it takes some in which others would see something else, and does not tell.
//!
//! Only what frames a message is looked at. Whether a line is a header at all, the parser says; what is
//! refused here is what it lets pass.

#[doc(hidden)]
pub(crate) mod differential;

use std::ops::{ControlFlow, Range};

use arrayvec::ArrayVec;

use crate::HeadBounds;
use crate::client::findings::HeadError;

/// How much is kept of a line that goes on in the next read: enough for names and lengths.
const LINE_START_BYTES: usize = 64;

/// The digits of the largest number, in base ten.
const DIGITS_MAX: usize = 20;

/// The longest line of a chunk's size, or of a trailer.
const CHUNK_LINE_BYTES_MAX: usize = 16 * 1_024;

/// How much more than allowed must be there before a head is cut off where it was allowed to go: a line
/// that ends soon is better seen whole.
const CUT_BYTES_MIN: usize = 64;

/// Follows messages through the bytes of a connection.
#[derive(Debug)]
pub(crate) struct Framing {
    bounds: HeadBounds,
    place: FramingState,
    /// The start of a line that is not over, where it began in an earlier read.
    line: ArrayVec<u8, LINE_START_BYTES>,
    line_bytes: usize,
    /// The byte before the next one.
    last: u8,
    head: HeadState,
    /// How many heads are over.
    pub(crate) head_count: u64,
    /// True behind the method of a request line.
    is_in_target: bool,
    /// Where the last read has targets with characters in them that [must be encoded](is_raw), up to the end of their lines.
    pub(crate) raw_targets: Vec<Range<usize>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramingState {
    /// Before the first line of a message, or in it.
    Start,
    Headers,
    Body {
        left: u64,
    },
    ChunkSize,
    Chunk {
        left: u64,
    },
    /// Between a chunk and the next one's size.
    ChunkEnd,
    Trailers,
    /// Behind a request to change the protocol: what follows may not be HTTP.
    Undecided {
        has_passed: bool,
    },
    /// What follows is not HTTP/1.1.
    Other,
}

/// What is known of a head.
#[derive(Debug, Default, Clone, Copy)]
struct HeadState {
    line_count: usize,
    bytes: usize,
    length: Option<u64>,
    is_chunked: bool,
    changes_protocol: bool,
    flaw: Option<HeadError>,
}

/// Why nothing more of a connection is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FramingEnd {
    /// The request of the last head is refused. Of the bytes, `taken` are handed on, and then `rest`,
    /// which makes a whole head of what was read of it.
    Refused { flaw: HeadError, taken: usize, rest: &'static [u8] },
    /// A body is not what it was announced to be.
    Broken,
}

impl Framing {
    pub(crate) fn new(bounds: HeadBounds) -> Self {
        Self {
            bounds,
            place: FramingState::Start,
            line: ArrayVec::new(),
            line_bytes: 0,
            last: 0,
            head: HeadState::default(),
            head_count: 0,
            is_in_target: false,
            raw_targets: Vec::new(),
        }
    }

    /// What follows is not HTTP.
    pub(crate) fn leave(&mut self) {
        self.place = FramingState::Other;
    }

    /// The last request was answered, and the protocol is what it was.
    pub(crate) fn stay(&mut self) {
        if self.place == (FramingState::Undecided { has_passed: false }) {
            self.place = FramingState::Start;
        }
    }

    pub(crate) fn is_undecided(&self) -> bool {
        matches!(self.place, FramingState::Undecided { .. })
    }

    /// Reads on.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> ControlFlow<FramingEnd> {
        let mut at = 0;
        self.raw_targets.clear();
        while at < bytes.len() {
            let rest = &bytes[at..];
            at += match self.place {
                FramingState::Other => rest.len(),
                FramingState::Undecided { .. } => {
                    // Were it HTTP after all, the next request would have no head that was seen.
                    self.place = FramingState::Undecided { has_passed: true };
                    rest.len()
                }
                FramingState::Body { left } => {
                    self.pass(rest, left, FramingState::Start, |left| FramingState::Body { left })
                }
                FramingState::Chunk { left } => {
                    self.pass(rest, left, FramingState::ChunkEnd, |left| FramingState::Chunk {
                        left,
                    })
                }
                _ => self.read_line(rest, at)?,
            };
        }
        ControlFlow::Continue(())
    }

    /// Passes over what is in a body; how much of `rest` that is.
    fn pass(
        &mut self,
        rest: &[u8],
        left: u64,
        then: FramingState,
        still: fn(u64) -> FramingState,
    ) -> usize {
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        let left = left - here as u64;
        self.place = if left == 0 { then } else { still(left) };
        here
    }

    /// A line, or what is here of it; how much of `rest` that is. `at` is where `rest` begins.
    fn read_line(&mut self, rest: &[u8], at: usize) -> ControlFlow<FramingEnd, usize> {
        let end = memchr::memchr(b'\n', rest);
        let here = end.map_or(rest.len(), |end| end + 1);
        self.line_bytes += here;
        if self.place == FramingState::Start {
            self.find_raw_target(&rest[..here], at);
        }
        self.check_bounds(at, here)?;
        let Some(end) = end else {
            let room = self.line.remaining_capacity().min(here);
            self.line.extend(rest[..room].iter().copied());
            self.last = rest[here - 1];
            return ControlFlow::Continue(here);
        };
        let before = if end == 0 { self.last } else { rest[end - 1] };
        let has_return = before == b'\r' && self.line_bytes > 1;
        let mut line = std::mem::take(&mut self.line);
        let text = if line.is_empty() {
            &rest[..end]
        } else {
            let room = line.remaining_capacity().min(end);
            line.extend(rest[..room].iter().copied());
            &line[..]
        };
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let is_empty = self.line_bytes == 1 + usize::from(has_return);
        let line_bytes = std::mem::take(&mut self.line_bytes);
        (self.last, self.is_in_target) = (b'\n', false);
        match self.place {
            FramingState::Start | FramingState::Headers => {
                if !has_return {
                    self.head.flaw.get_or_insert(HeadError::BareLineFeed);
                }
                self.head.bytes += line_bytes;
                self.take_head_line(text, is_empty, at + here)?;
            }
            _ if !has_return => return ControlFlow::Break(FramingEnd::Broken),
            _ => self.take_chunk_line(text, is_empty)?,
        }
        ControlFlow::Continue(here)
    }

    /// Looks for raw characters in a part of a request line, which begins at `at`. In the method they are an error, which the
    /// parser finds.
    fn find_raw_target(&mut self, part: &[u8], at: usize) {
        let method_bytes = match memchr::memchr(b' ', part) {
            _ if self.is_in_target => 0,
            Some(space) => space,
            None => return,
        };
        self.is_in_target = true;
        if part[method_bytes..].iter().any(|byte| is_raw(*byte)) {
            self.raw_targets.push(at + method_bytes..at + part.len());
        }
    }

    /// Cuts off a head that is too long. `here` more bytes of a line were just read, which begin at `at`.
    fn check_bounds(&mut self, at: usize, here: usize) -> ControlFlow<FramingEnd> {
        let HeadBounds { uri_bytes_max, header_bytes_max, .. } = self.bounds;
        let (bytes, bytes_max, flaw, rest) = match self.place {
            FramingState::Start => {
                let (bytes, bytes_max) = (self.line_bytes, line_bytes_max(uri_bytes_max));
                (bytes, bytes_max, HeadError::LongUri, &b" HTTP/1.1\r\n\r\n"[..])
            }
            FramingState::Headers => {
                let bytes = self.head.bytes + self.line_bytes;
                let bytes_max = headers_bytes_max(header_bytes_max);
                // Whether it is cut in a name or in a value, this ends it.
                (bytes, bytes_max, HeadError::LargeHeaders, &b": \r\n\r\n"[..])
            }
            _ if self.line_bytes > CHUNK_LINE_BYTES_MAX => {
                return ControlFlow::Break(FramingEnd::Broken);
            }
            _ => return ControlFlow::Continue(()),
        };
        if bytes <= bytes_max.saturating_add(CUT_BYTES_MIN) {
            return ControlFlow::Continue(());
        }
        let taken = here.saturating_sub(bytes - bytes_max);
        let is_line_begun = self.line_bytes - here + taken > 0;
        self.refuse(flaw, at + taken, if is_line_begun { rest } else { b"\r\n" })
    }

    fn refuse(
        &mut self,
        flaw: HeadError,
        taken: usize,
        rest: &'static [u8],
    ) -> ControlFlow<FramingEnd> {
        self.head_count += 1;
        self.place = FramingState::Other;
        ControlFlow::Break(FramingEnd::Refused { flaw, taken, rest })
    }

    fn take_head_line(
        &mut self,
        text: &[u8],
        is_empty: bool,
        taken: usize,
    ) -> ControlFlow<FramingEnd> {
        if self.place == FramingState::Start {
            self.head.bytes = 0;
            if text == b"PRI * HTTP/2.0" && self.head_count == 0 {
                self.place = FramingState::Other;
            } else if !is_empty {
                self.place = FramingState::Headers;
            }
            // Empty lines before a message are nothing.
            return ControlFlow::Continue(());
        }
        if is_empty {
            return self.end_head(taken);
        }
        let head = &mut self.head;
        head.line_count += 1;
        if head.line_count > self.bounds.header_count_max {
            return self.refuse(HeadError::LargeHeaders, taken, b"\r\n");
        }
        head.take(text);
        ControlFlow::Continue(())
    }

    fn end_head(&mut self, taken: usize) -> ControlFlow<FramingEnd> {
        let head = std::mem::take(&mut self.head);
        if let Some(flaw) = head.flaw() {
            return self.refuse(flaw, taken, b"");
        }
        self.head_count += 1;
        self.place = match head.length {
            _ if head.is_chunked => FramingState::ChunkSize,
            Some(left @ 1..) => FramingState::Body { left },
            _ if head.changes_protocol => FramingState::Undecided { has_passed: false },
            _ => FramingState::Start,
        };
        ControlFlow::Continue(())
    }

    fn take_chunk_line(&mut self, text: &[u8], is_empty: bool) -> ControlFlow<FramingEnd> {
        self.place = match self.place {
            FramingState::ChunkSize => match chunk_bytes(text) {
                None => return ControlFlow::Break(FramingEnd::Broken),
                Some(0) => FramingState::Trailers,
                Some(left) => FramingState::Chunk { left },
            },
            FramingState::ChunkEnd if is_empty => FramingState::ChunkSize,
            FramingState::Trailers if is_empty => FramingState::Start,
            FramingState::Trailers => FramingState::Trailers,
            _ => return ControlFlow::Break(FramingEnd::Broken),
        };
        ControlFlow::Continue(())
    }
}

impl HeadState {
    fn take(&mut self, line: &[u8]) {
        if let Some(value) = value(line, b"content-length") {
            let is_first = self.length.is_none();
            self.length = number(value, 10);
            if !is_first || self.length.is_none() {
                self.flaw.get_or_insert(HeadError::BadLength);
            }
        } else if value(line, b"transfer-encoding").is_some() {
            // Whether it is a coding that can be read, others say: they see this line.
            self.is_chunked = true;
        } else if value(line, b"upgrade").is_some() {
            self.changes_protocol = true;
        }
    }

    fn flaw(&self) -> Option<HeadError> {
        let is_both = self.is_chunked && self.length.is_some();
        self.flaw.or(is_both.then_some(HeadError::LengthAndChunks))
    }
}

/// True for a character that stands in no URI and that some clients send in queries nonetheless. hyper refuses it, and other
/// proxies let it pass.
pub(crate) fn is_raw(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'`')
}

/// The longest first line that is looked at whole.
pub(crate) fn line_bytes_max(uri_bytes_max: usize) -> usize {
    uri_bytes_max.saturating_mul(2).max(4 * 1_024)
}

/// The most bytes of headers that are looked at whole.
pub(crate) fn headers_bytes_max(header_bytes_max: usize) -> usize {
    header_bytes_max.saturating_mul(2).max(4 * 1_024)
}

/// What a line says, if this is its name.
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    let value = rest.strip_prefix(b":")?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

/// Digits, as many as there can be, and nothing else. Of a longer text the end may not be at hand.
fn number(text: &[u8], radix: u32) -> Option<u64> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= DIGITS_MAX)?;
    let has_digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    has_digits.then(|| u64::from_str_radix(text, radix).ok())?
}

/// The size that a chunk begins with, before what extends it.
fn chunk_bytes(line: &[u8]) -> Option<u64> {
    let size = line.split(|byte| *byte == b';').next()?;
    number(size.trim_ascii_end(), 16)
}

#[cfg(test)]
mod tests;
