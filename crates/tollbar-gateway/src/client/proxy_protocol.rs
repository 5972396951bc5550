//! The PROXY protocol, versions 1 and 2: who the client is, told by a balancer in front of all else
//! on a connection.
//!
//! Read exactly, never beyond its end: what follows may be TLS. Whether the peer may speak for others
//! is asked before this.

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};

/// What version 2 begins with; version 1 is never shorter.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The longest line of version 1, with its end.
const LINE_BYTES_MAX: usize = 107;

/// Addresses and what else version 2 tells: more than balancers send, also with certificates' names.
const BLOCK_BYTES_MAX: usize = 2_048;

/// Why a connection does not begin with the PROXY protocol.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProxyProtocolError {
    /// It ended, or broke.
    #[error("cannot read the PROXY header: {0}")]
    Read(#[from] io::Error),
    /// It begins with something else.
    #[error("the connection does not begin with a PROXY header: have the balancer send one")]
    Absent,
    /// It is no header of version 1.
    #[error(
        "the PROXY header of version 1 cannot be read: it must be such as `PROXY TCP4 192.0.2.1 192.0.2.2 5000 443`"
    )]
    Http1Connection,
    /// It is no header of version 2.
    #[error("the PROXY header of version 2 cannot be read")]
    Block,
    /// It is longer than any that is meant.
    #[error("the PROXY header has {bytes} bytes: send at most {BLOCK_BYTES_MAX}")]
    TooLong {
        /// How long it says it is.
        bytes: usize,
    },
}

/// Reads the header. `None` where it names no client: the peer speaks for itself, as it does when it
/// looks whether we are well.
///
/// Whoever calls this gives it a time, and has looked whether the peer is trusted.
pub async fn read_proxy_header(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<SocketAddr>, ProxyProtocolError> {
    let mut start = [0; SIGNATURE.len()];
    // One by one would do as well, but the shortest header of all has more.
    stream.read_exact(&mut start).await?;
    if start == SIGNATURE {
        return read_block(stream).await;
    }
    if !start.starts_with(b"PROXY ") {
        return Err(ProxyProtocolError::Absent);
    }
    let mut line = Vec::with_capacity(LINE_BYTES_MAX);
    line.extend_from_slice(&start);
    while !line.ends_with(b"\r\n") {
        if line.len() == LINE_BYTES_MAX {
            return Err(ProxyProtocolError::Http1Connection);
        }
        line.push(stream.read_u8().await?);
    }
    line.truncate(line.len() - 2);
    parse_line(&line).ok_or(ProxyProtocolError::Http1Connection)
}

/// `PROXY TCP4 SOURCE DESTINATION PORT PORT`, or `PROXY UNKNOWN` and anything. The outer `None` is an
/// error.
#[expect(clippy::option_option, reason = "private, and the caller names the error")]
fn parse_line(line: &[u8]) -> Option<Option<SocketAddr>> {
    let line = std::str::from_utf8(line).ok()?.strip_prefix("PROXY ")?;
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Some(None);
    }
    let mut words = line.split(' ');
    let address = match words.next()? {
        "TCP4" => |text: &str| Ipv4Addr::from_str(text).ok().map(IpAddr::from),
        "TCP6" => |text: &str| Ipv6Addr::from_str(text).ok().map(IpAddr::from),
        _ => return None,
    };
    let source = address(words.next()?)?;
    address(words.next()?)?;
    let source_port = port(words.next()?)?;
    port(words.next()?)?;
    words.next().is_none().then_some(Some(SocketAddr::new(source, source_port)))
}

/// Digits, without a sign and without zeros in front.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    (is_plain && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok())?
}

async fn read_block(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<SocketAddr>, ProxyProtocolError> {
    let [command, family, high, low] = {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        head
    };
    let bytes = usize::from(u16::from_be_bytes([high, low]));
    if bytes > BLOCK_BYTES_MAX {
        return Err(ProxyProtocolError::TooLong { bytes });
    }
    let mut block = vec![0; bytes];
    stream.read_exact(&mut block).await?;
    match command {
        // The balancer itself; whatever else it says is to be skipped.
        0x20 => Ok(None),
        0x21 => addresses(family, &block).ok_or(ProxyProtocolError::Block),
        _ => Err(ProxyProtocolError::Block),
    }
}

/// Source, destination and their ports, in this order; what follows is of no interest here.
#[expect(clippy::option_option, reason = "private, and the caller names the error")]
fn addresses(family: u8, block: &[u8]) -> Option<Option<SocketAddr>> {
    match family {
        // TCP over IPv4: 4 + 4 + 2 + 2 bytes.
        0x11 => {
            let source: [u8; 4] = block.get(..4)?.try_into().ok()?;
            let ports: [u8; 4] = block.get(8..12)?.try_into().ok()?;
            Some(Some(SocketAddr::new(source.into(), u16::from_be_bytes([ports[0], ports[1]]))))
        }
        // TCP over IPv6: 16 + 16 + 2 + 2 bytes.
        0x21 => {
            let source: [u8; 16] = block.get(..16)?.try_into().ok()?;
            let ports: [u8; 4] = block.get(32..36)?.try_into().ok()?;
            Some(Some(SocketAddr::new(source.into(), u16::from_be_bytes([ports[0], ports[1]]))))
        }
        // Unknown, or a Unix socket: no address that could be counted.
        0x00 | 0x31 => Some(None),
        _ => None,
    }
}
