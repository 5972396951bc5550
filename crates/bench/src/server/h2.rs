//! Those who ask over gRPC: HTTP/2 by hand, so that asking costs next to nothing. Every request is the
//! same bytes but for its stream and its key; an answer is a stream that ends with `grpc-status: 0`.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tollbar_bench::timer::Stopwatch;

use super::load::LoadResult;

/// How many connections there are.
const CONNECTIONS: usize = 50;

/// For the last answers to come.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

const FRAME_HEAD_BYTES: usize = 9;
/// Windows that never close: 2^31 - 1.
const WINDOW_MAX: u32 = 0x7fff_ffff;
const WINDOW_AT_FIRST: u32 = 65_535;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// A call: which method, and its message with the key somewhere in it.
#[derive(Debug, Clone)]
pub(super) struct CallTemplate {
    headers: Vec<u8>,
    message: Vec<u8>,
    key_at: usize,
}

/// Of all keys: a letter and ten digits.
pub(super) const KEY: &str = "k0000000000";

impl CallTemplate {
    /// `message` is encoded, and has [`KEY`] in it.
    pub(super) fn new(path: &str, message: &[u8]) -> io::Result<Self> {
        let key_at = message.windows(KEY.len()).position(|window| window == KEY.as_bytes());
        let key_at = key_at.ok_or_else(|| io::Error::other("the message has no key"))?;
        let mut headers = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "bench"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            // A literal that goes into no table: its lengths, in seven bits, and its bytes.
            headers.push(0);
            for text in [name, value] {
                headers.push(
                    u8::try_from(text.len()).ok().filter(|length| *length < 127).unwrap_or(126),
                );
                headers.extend_from_slice(text.as_bytes());
            }
        }
        Ok(Self { headers, message: message.to_vec(), key_at })
    }

    fn write(&self, stream: u32, key: u64, output: &mut Vec<u8>) {
        frame(output, HEADERS, END_HEADERS, stream, &self.headers);
        let length = (self.message.len() + 5) as u32;
        head(output, length, DATA, END_STREAM, stream);
        // gRPC's own head: not compressed, and its length.
        output.push(0);
        output.extend_from_slice(&(self.message.len() as u32).to_be_bytes());
        let start = output.len() + self.key_at;
        output.extend_from_slice(&self.message);
        // Writing into memory does not fail.
        let _ = write!(&mut output[start..start + KEY.len()], "k{key:010}");
    }
}

fn head(output: &mut Vec<u8>, length: u32, kind: u8, flags: u8, stream: u32) {
    output.extend_from_slice(&length.to_be_bytes()[1..]);
    output.extend_from_slice(&[kind, flags]);
    output.extend_from_slice(&stream.to_be_bytes());
}

fn frame(output: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    head(output, payload.len() as u32, kind, flags, stream);
    output.extend_from_slice(payload);
}

/// Connections to one server.
pub(super) struct Http2Load<'c> {
    call: &'c CallTemplate,
    connections: Vec<Http2Connection>,
    random: u64,
}

struct Http2Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    next_id: u32,
    in_flight: usize,
}

impl<'c> Http2Load<'c> {
    pub(super) fn connect(port: u16, call: &'c CallTemplate) -> io::Result<Self> {
        let connections =
            (0..CONNECTIONS).map(|_| Http2Connection::connect(port)).collect::<io::Result<_>>()?;
        Ok(Self { call, connections, random: 0x9e37_79b9_7f4a_7c15 })
    }

    /// Each connection has `in_flight` calls on their way at any time.
    pub(super) fn closed(
        &mut self,
        in_flight: usize,
        key_count: u64,
        duration: Duration,
    ) -> io::Result<LoadResult> {
        let watch = Stopwatch::start();
        let mut answers = 0_usize;
        let mut is_over = false;
        loop {
            let mut is_open = false;
            for connection in &mut self.connections {
                while connection.in_flight < in_flight && !is_over {
                    // xorshift: any key is as likely as any other.
                    self.random ^= self.random << 13;
                    self.random ^= self.random >> 7;
                    self.random ^= self.random << 17;
                    connection.ask(self.call, self.random % key_count);
                }
                answers += connection.turn()?;
                is_open |= connection.in_flight > 0;
            }
            if is_over && !is_open {
                break;
            }
            is_over = watch.elapsed() >= duration;
            if watch.elapsed() > duration + DRAIN_TIME_MAX {
                return Err(io::Error::other("the last answers do not come"));
            }
        }
        Ok(LoadResult { answers: answers as f64, elapsed_s: watch.elapsed().as_secs_f64() })
    }
}

impl Http2Connection {
    fn connect(port: u16) -> io::Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut output = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // The window of each stream, and no table for headers.
        let mut settings = vec![0, 4];
        settings.extend_from_slice(&WINDOW_MAX.to_be_bytes());
        settings.extend_from_slice(&[0, 1, 0, 0, 0, 0]);
        frame(&mut output, SETTINGS, 0, 0, &settings);
        let more = (WINDOW_MAX - WINDOW_AT_FIRST).to_be_bytes();
        frame(&mut output, WINDOW_UPDATE, 0, 0, &more);
        stream.write_all(&output)?;
        stream.set_nonblocking(true)?;
        output.clear();
        Ok(Self { stream, input: Vec::new(), output, next_id: 1, in_flight: 0 })
    }

    fn ask(&mut self, call: &CallTemplate, key: u64) {
        call.write(self.next_id, key, &mut self.output);
        self.next_id += 2;
        self.in_flight += 1;
    }

    /// Writes and reads what can be written and read now; how many answers came.
    fn turn(&mut self) -> io::Result<usize> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.input.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        }
        let mut answers = 0;
        let mut at = 0;
        while let Some((kind, flags, end)) = next_frame(&self.input[at..]) {
            let payload = &self.input[at + FRAME_HEAD_BYTES..at + end];
            match kind {
                HEADERS if flags & END_STREAM != 0 => {
                    if !has_status_ok(payload) {
                        return Err(io::Error::other("a call was not answered with OK"));
                    }
                    answers += 1;
                }
                SETTINGS if flags & ACK == 0 => frame(&mut self.output, SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => frame(&mut self.output, PING, ACK, 0, payload),
                RESET | GO_AWAY => return Err(io::Error::other("the server ended a call")),
                _ => {}
            }
            at += end;
        }
        self.input.drain(..at);
        self.in_flight -= answers;
        Ok(answers)
    }
}

/// The kind, the flags and the length of the frame that `input` begins with, if it is whole.
fn next_frame(input: &[u8]) -> Option<(u8, u8, usize)> {
    let [a, b, c, kind, flags, ..] = *input.get(..FRAME_HEAD_BYTES)? else {
        return None;
    };
    let end = FRAME_HEAD_BYTES + u32::from_be_bytes([0, a, b, c]) as usize;
    (input.len() >= end).then_some((kind, flags, end))
}

/// True where the trailers say `grpc-status: 0`: the value is written as it is, behind its name, which
/// may be compressed.
fn has_status_ok(trailers: &[u8]) -> bool {
    // A value of one byte that is `0`, as it is or by Huffman's code (five bits of zero, padded).
    trailers.windows(2).any(|pair| pair == [1, b'0'] || pair == [0x81, 0x07])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_two_frames_with_the_key_in_place() {
        let call = CallTemplate::new("/a/b", b"x-k0000000000-y").unwrap();
        let mut output = Vec::new();
        call.write(7, 42, &mut output);
        let (kind, flags, end) = next_frame(&output).unwrap();
        assert_eq!((kind, flags), (HEADERS, END_HEADERS));
        let (kind, flags, length) = next_frame(&output[end..]).unwrap();
        assert_eq!((kind, flags, end + length), (DATA, END_STREAM, output.len()));
        assert!(output.ends_with(b"\0\0\0\0\x0fx-k0000000042-y"));
        assert!(CallTemplate::new("/", b"no key").is_err());
    }
}
