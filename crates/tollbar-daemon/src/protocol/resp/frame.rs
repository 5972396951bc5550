//! What clients of the Redis protocol send: arrays of bulk strings, and plain lines.
//!
//! Bytes in, arguments out. Nothing is copied and nothing allocated: arguments are where they were
//! read. What is announced larger than the bounds is refused at the announcement. What the arguments
//! mean is not known here.

use arrayvec::ArrayVec;
use thiserror::Error;

/// The longest frame, with its lengths and line ends.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// The most arguments of a frame, the command's name included.
pub const ARGUMENTS_MAX: usize = 128;

/// The longest command that is a line. Such lines are typed by people.
pub const LINE_BYTES_MAX: usize = 4 * 1024;

/// More digits than any length within the bounds has.
const DIGITS_MAX: usize = 10;

/// The words of one command, its name first. None for what asks for nothing: an empty line.
pub type Arguments<'b> = ArrayVec<&'b [u8], ARGUMENTS_MAX>;

/// Why bytes are no frame. Nothing that follows can be understood.
///
/// The texts begin as those of Redis do, for clients that know them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// No number, or a line that does not end in CR LF.
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    /// More arguments than are taken.
    #[error("Protocol error: invalid multibulk length: send at most {ARGUMENTS_MAX} arguments")]
    TooManyArguments,
    /// No number, a negative one, or a line that does not end in CR LF.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// More bytes than are taken.
    #[error("Protocol error: invalid bulk length: send at most {FRAME_BYTES_MAX} bytes a command")]
    FrameTooLong,
    /// Something else than a bulk string in an array.
    #[error("Protocol error: expected '$', got '{}'", .got.escape_ascii())]
    NoBulk {
        /// How it begins.
        got: u8,
    },
    /// A bulk string that is longer than it was announced.
    #[error("Protocol error: expected CR LF where the bulk string ends")]
    BulkEnd,
    /// A line of too many bytes.
    #[error("Protocol error: too big inline request: send at most {LINE_BYTES_MAX} bytes a line")]
    LineTooLong,
    /// A quote that does not end, or one that does not stand around a word.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// Escapes would have to be copied.
    #[error("Protocol error: escapes in a line: send an array of bulk strings instead")]
    Escape,
}

/// Reads the frame that `input` begins with into `arguments`, and answers how many bytes it has.
/// `None` where more bytes are needed; then `arguments` holds nothing of use.
pub fn parse<'b>(
    input: &'b [u8],
    arguments: &mut Arguments<'b>,
) -> Result<Option<usize>, FrameError> {
    arguments.clear();
    match input.first() {
        None => Ok(None),
        Some(b'*') => array(input, arguments),
        Some(_) => line(input, arguments),
    }
}

fn array<'b>(input: &'b [u8], arguments: &mut Arguments<'b>) -> Result<Option<usize>, FrameError> {
    let Some((count, mut at)) = length(input, 1).map_err(|()| FrameError::ArrayLength)? else {
        return Ok(None);
    };
    // An array of nothing, which clients send as 0 or -1, asks for nothing.
    let count = usize::try_from(count).unwrap_or(0);
    if count > ARGUMENTS_MAX {
        return Err(FrameError::TooManyArguments);
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(got) => return Err(FrameError::NoBulk { got: *got }),
        }
        let Some((bytes, start)) = length(input, at + 1).map_err(|()| FrameError::BulkLength)?
        else {
            return Ok(None);
        };
        let bytes = usize::try_from(bytes).map_err(|_| FrameError::BulkLength)?;
        // Neither sum can overflow: a length has ten digits.
        let end = start + bytes;
        if end + 2 > FRAME_BYTES_MAX {
            return Err(FrameError::FrameTooLong);
        }
        let Some(line_end) = input.get(end..end + 2) else {
            return Ok(None);
        };
        if line_end != b"\r\n" {
            return Err(FrameError::BulkEnd);
        }
        arguments.push(&input[start..end]);
        at = end + 2;
    }
    Ok(Some(at))
}

/// The number from `start` to the end of its line, and where the next line starts; `None` where the
/// line is not whole.
fn length(input: &[u8], start: usize) -> Result<Option<(i64, usize)>, ()> {
    let mut at = start;
    let is_negative = input.get(at) == Some(&b'-');
    at += usize::from(is_negative);
    let first_digit = at;
    let mut number = 0_i64;
    loop {
        match input.get(at) {
            None => return Ok(None),
            Some(digit @ b'0'..=b'9') if at - first_digit < DIGITS_MAX => {
                number = number * 10 + i64::from(digit - b'0');
                at += 1;
            }
            Some(b'\r') if at > first_digit => break,
            Some(_) => return Err(()),
        }
    }
    match input.get(at + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((if is_negative { -number } else { number }, at + 2))),
        Some(_) => Err(()),
    }
}

/// Words with spaces between them; quotes hold words together that have spaces in them.
fn line<'b>(input: &'b [u8], arguments: &mut Arguments<'b>) -> Result<Option<usize>, FrameError> {
    let within = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
        return if within.len() < LINE_BYTES_MAX { Ok(None) } else { Err(FrameError::LineTooLong) };
    };
    let mut rest = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    loop {
        rest = rest.trim_ascii_start();
        let Some(first) = rest.first() else {
            return Ok(Some(end + 1));
        };
        let (word, after) = if let quote @ (b'"' | b'\'') = first {
            quoted(&rest[1..], *quote)?
        } else {
            rest.split_at(rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len()))
        };
        arguments.try_push(word).map_err(|_| FrameError::TooManyArguments)?;
        rest = after;
    }
}

fn quoted(rest: &[u8], quote: u8) -> Result<(&[u8], &[u8]), FrameError> {
    let end = rest.iter().position(|byte| *byte == quote).ok_or(FrameError::Quotes)?;
    let (word, after) = (&rest[..end], &rest[end + 1..]);
    if word.contains(&b'\\') {
        return Err(FrameError::Escape);
    }
    match after.first() {
        Some(next) if !next.is_ascii_whitespace() => Err(FrameError::Quotes),
        _ => Ok((word, after)),
    }
}

#[cfg(test)]
mod tests;
