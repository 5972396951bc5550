//! At whose end of the connection a request was sent from, as servers leave it with the request.

use std::net::IpAddr;

use http::Extensions;

/// The peer's address, put into a request's extensions by a server that has its own way to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// The peer's address, where somebody has left it.
pub(super) fn of(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) =
        extensions.get::<axum::extract::ConnectInfo<std::net::SocketAddr>>()
    {
        return Some(peer.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr().map(|peer| peer.ip());
    }
    extensions.get::<Peer>().map(|peer| peer.0)
}
