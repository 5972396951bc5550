//! The client's side: who a connection is from, a stream that reads along with the parser and refuses what could be read
//! in two ways, interim responses, the bounds of a request's head, the PROXY header of a load balancer, and whether a client
//! waits for a response.

pub(crate) mod activity;
pub(crate) mod checked_stream;
pub(crate) mod findings;
pub(crate) mod framing;
pub(crate) mod guard;
pub(crate) mod interim;
pub(crate) mod proxy_protocol;

use std::net::IpAddr;

/// The peer of a connection, and whether the connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The address; `None` behind a Unix socket.
    pub peer: Option<IpAddr>,
    /// Whether the connection is encrypted, which the upstream is told.
    pub is_secure: bool,
    /// Whether the peer may be a trusted proxy. False if a load balancer did not say who the client is (`PROXY UNKNOWN`):
    /// the address is the balancer's then, but what the connection says is the client's.
    pub may_be_proxy: bool,
}

impl ConnectionInfo {
    /// Describes a connection from this address that is not encrypted.
    #[must_use]
    pub fn from_peer(peer: IpAddr) -> Self {
        Self { peer: Some(peer), is_secure: false, may_be_proxy: true }
    }
}
