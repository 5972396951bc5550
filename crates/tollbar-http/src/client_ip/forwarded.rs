//! One element of `Forwarded` (RFC 7239): `for="[2001:db8::7]:1234";proto=https`.
//!
//! Read strictly: an element was cut at a comma, which may have stood in somebody's quotes, and what
//! is left of such a thing must not pass for an address.

use std::net::IpAddr;

/// The address of `for`. `None` where there is none, or two, or anything is not as it should be.
pub(super) fn address(element: &[u8]) -> Option<IpAddr> {
    let mut rest = element;
    let mut node = None;
    loop {
        let name_len = rest.iter().position(|byte| !is_token(*byte))?;
        let (name, after) = rest.split_at(name_len);
        let value;
        (value, rest) = value_of(after.strip_prefix(b"=")?)?;
        if name.eq_ignore_ascii_case(b"for") && node.replace(value).is_some() {
            return None;
        }
        match rest.trim_ascii_start() {
            [] => break,
            [b';', after @ ..] => rest = after.trim_ascii_start(),
            _ => return None,
        }
    }
    super::address(node?)
}

/// A value, without its quotes, and what comes after it.
fn value_of(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        // Colons and brackets should be quoted, and are often not.
        let is_value = |byte: u8| is_token(byte) || matches!(byte, b':' | b'[' | b']');
        let len = text.iter().position(|byte| !is_value(*byte)).unwrap_or(text.len());
        return (len > 0).then(|| text.split_at(len));
    };
    let mut at = 0;
    loop {
        match quoted.get(at)? {
            b'"' => return Some((&quoted[..at], &quoted[at + 1..])),
            // An address with a backslash in it is none, so it need not be taken out.
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
