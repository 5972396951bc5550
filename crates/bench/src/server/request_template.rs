//! The request that is sent over each protocol, and what a good answer to it is.

use std::fmt::Write as _;
use std::io::Write as _;

/// A request, and how a good answer to it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestTemplate {
    /// The request up to its key.
    before: Vec<u8>,
    /// The rest of it; `None` where it has no key.
    behind: Option<Vec<u8>>,
    good: &'static str,
    is_http: bool,
}

/// Where the key stands in a request.
const KEY: &str = "KEY";

/// Of all keys: a letter and ten digits.
const KEY_BYTES: usize = 11;

impl RequestTemplate {
    /// A command of the Redis protocol.
    pub(super) fn resp(words: &str, good: &'static str) -> Self {
        let words: Vec<&str> = words.split(' ').collect();
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            let bytes = if word == KEY { KEY_BYTES } else { word.len() };
            // Writing to memory does not fail.
            let _ = write!(text, "${bytes}\r\n{word}\r\n");
        }
        Self::new(&text, good, false)
    }

    /// A check by the daemon's rules, allowed: thirteen fields, each with its name.
    pub(super) fn by_rules() -> Self {
        Self::resp("TB.CHECK GET / WITH user KEY", "*26\r\n$7\r\nallowed\r\n:1")
    }

    pub(super) fn get(path: &str) -> Self {
        Self::new(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"), "HTTP/1.1 200 ", true)
    }

    pub(super) fn post(path: &str, body: &str) -> Self {
        let bytes = body.replace(KEY, &"k".repeat(KEY_BYTES)).len();
        let text = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: \
             {bytes}\r\n\r\n{body}"
        );
        Self::new(&text, "HTTP/1.1 200 ", true)
    }

    fn new(text: &str, good: &'static str, is_http: bool) -> Self {
        let (before, behind) = match text.split_once(KEY) {
            Some((before, behind)) => (before, Some(behind.into())),
            None => (text, None),
        };
        Self { before: before.into(), behind, good, is_http }
    }

    /// Writes the request for key number `key` behind what is in `output`.
    pub(super) fn write(&self, key: u64, output: &mut Vec<u8>) {
        output.extend_from_slice(&self.before);
        if let Some(behind) = &self.behind {
            // Writing to memory does not fail.
            let _ = write!(output, "k{key:010}");
            output.extend_from_slice(behind);
        }
    }

    /// How many bytes the answer has that `input` begins with; `None` where it is not whole.
    /// An error where it is not a good one.
    pub(super) fn answer(&self, input: &[u8]) -> Result<Option<usize>, String> {
        let good = &self.good.as_bytes()[..self.good.len().min(input.len())];
        let bytes = if !input.starts_with(good) {
            Err(())
        } else if self.is_http {
            response(input)
        } else {
            reply(input, 0)
        };
        bytes.map_err(|()| {
            let request = String::from_utf8_lossy(&self.before);
            let text = String::from_utf8_lossy(&input[..input.len().min(200)]);
            format!("{request:?} was answered with {text:?}")
        })
    }
}

/// Where the reply ends that starts at `start`.
fn reply(input: &[u8], start: usize) -> Result<Option<usize>, ()> {
    let Some(rest) = input.get(start..).filter(|rest| !rest.is_empty()) else {
        return Ok(None);
    };
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
        return Ok(None);
    };
    let length = || -> Result<usize, ()> {
        str::from_utf8(&rest[1..end - 1]).map_err(|_| ())?.parse().map_err(|_| ())
    };
    let end = start + end + 1;
    match rest[0] {
        b'+' | b':' => Ok(Some(end)),
        // The null of version 2.
        b'$' if rest.starts_with(b"$-1\r") => Ok(Some(end)),
        b'$' => {
            let end = end + length()? + 2;
            Ok((end <= input.len()).then_some(end))
        }
        b'*' => {
            let mut at = end;
            for _ in 0..length()? {
                match reply(input, at)? {
                    Some(end) => at = end,
                    None => return Ok(None),
                }
            }
            Ok(Some(at))
        }
        _ => Err(()),
    }
}

fn response(input: &[u8]) -> Result<Option<usize>, ()> {
    let Some(head) = input.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = str::from_utf8(&input[..head]).map_err(|_| ())?;
    let is_length = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
    let length = text.lines().find(is_length).ok_or(())?;
    let body: usize = length["content-length:".len()..].trim().parse().map_err(|_| ())?;
    let end = head + 4 + body;
    Ok((end <= input.len()).then_some(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_carry_their_key() {
        let mut output = Vec::new();
        RequestTemplate::resp("CL.THROTTLE KEY 1", "*5").write(7, &mut output);
        assert_eq!(output, b"*3\r\n$11\r\nCL.THROTTLE\r\n$11\r\nk0000000007\r\n$1\r\n1\r\n");
        output.clear();
        RequestTemplate::post("/v1", "{KEY}").write(7, &mut output);
        assert!(output.ends_with(b"content-length: 13\r\n\r\n{k0000000007}"));
        output.clear();
        RequestTemplate::get("/?key=KEY").write(7, &mut output);
        assert!(output.starts_with(b"GET /?key=k0000000007 HTTP/1.1\r\n"));
    }

    #[test]
    fn only_whole_and_good_answers_are_answers() {
        for (good, begins) in [
            ("+PONG\r\n", "+PONG"),
            (":1\r\n", ":"),
            ("$2\r\nab\r\n", "$"),
            ("*2\r\n$-1\r\n:1\r\n", "*2"),
            ("*5\r\n:0\r\n:1\r\n:1\r\n:1\r\n:1\r\n", "*5\r\n:0"),
        ] {
            let template = RequestTemplate::resp("PING", begins);
            assert_eq!(template.answer(good.as_bytes()), Ok(Some(good.len())), "{good}");
            for end in 0..good.len() {
                assert_eq!(template.answer(&good.as_bytes()[..end]), Ok(None), "{good}");
            }
            for bad in ["-ERR\r\n", "*5\r\n:1\r\n:1\r\n:0\r\n:1\r\n:1\r\n"] {
                assert!(template.answer(bad.as_bytes()).is_err(), "{bad}");
            }
        }
        let http = RequestTemplate::get("/");
        let good = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab";
        assert_eq!(http.answer(good.as_bytes()), Ok(Some(good.len())));
        assert_eq!(http.answer(&good.as_bytes()[..good.len() - 1]), Ok(None));
        assert!(http.answer(b"HTTP/1.1 429 \r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
