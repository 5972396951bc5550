//! Connections to gRPC servers over TLS, for tonic's channels (feature `connector`).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

/// Connects to the host of an address, whatever its scheme, and speaks HTTP/2 over TLS with it.
///
/// Give tonic an endpoint of scheme `http` whose origin has scheme `https`. tonic refuses `https` with a connector
/// of somebody else's as soon as any crate of the program switches its own TLS on.
#[derive(Clone)]
pub struct Connector(TlsConnector);

impl Connector {
    /// Connects with these settings.
    #[must_use]
    pub fn new(mut config: ClientConfig) -> Self {
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self(TlsConnector::from(Arc::new(config)))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.0.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let port = uri.port_u16().unwrap_or(443);
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            let stream = tls.connect(name, stream).await?;
            if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                return Err(io::Error::other(
                    "the server does not speak HTTP/2: is it another port?",
                ));
            }
            Ok(TokioIo::new(stream))
        })
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}
