//! Who is at the other end of a connection.

use std::net::IpAddr;

/// Who is at the other end of a connection, and whether others can listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visitor {
    /// The address; `None` behind a Unix socket.
    pub peer: Option<IpAddr>,
    /// Whether the connection is encrypted, which the upstream is told.
    pub is_secure: bool,
}

impl Visitor {
    /// Somebody at this address, over a connection that is not encrypted.
    #[must_use]
    pub fn at(peer: IpAddr) -> Self {
        Self { peer: Some(peer), is_secure: false }
    }
}
