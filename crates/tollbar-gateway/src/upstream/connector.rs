//! Connects to the upstream: TCP, and TLS where its URL says so. Who it is, is always verified.

use std::io;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::upstream::options::{UpstreamProtocol, UpstreamUrl};
use crate::upstream::stream::UpstreamStream;

pub(crate) struct Connector {
    url: UpstreamUrl,
    tls: Option<Tls>,
}

struct Tls {
    name: ServerName<'static>,
    any: TlsConnector,
    /// For what only HTTP/1.1 can do.
    http1: TlsConnector,
}

/// A connection, and what is to be spoken on it.
#[derive(Debug)]
pub(crate) struct NegotiatedStream {
    pub(crate) wire: UpstreamStream,
    pub(crate) is_http2: bool,
}

impl Connector {
    pub(crate) fn new(
        url: UpstreamUrl,
        protocol: UpstreamProtocol,
        roots: RootCertStore,
    ) -> Result<Self, rustls::Error> {
        if !url.is_secure {
            return Ok(Self { url, tls: None });
        }
        let invalid =
            |_| rustls::Error::General(format!("`{}` is no name of a server", url.host()));
        let name = ServerName::try_from(url.host().to_owned()).map_err(invalid)?;
        let mut config = tollbar_tls::client_config(roots)?;
        let (h2, http1) = (b"h2".to_vec(), b"http/1.1".to_vec());
        config.alpn_protocols = vec![http1.clone()];
        let only_http1 = TlsConnector::from(Arc::new(config.clone()));
        config.alpn_protocols = match protocol {
            UpstreamProtocol::Auto => vec![h2, http1],
            UpstreamProtocol::Http1 => vec![http1],
            UpstreamProtocol::Http2 => vec![h2],
        };
        let any = TlsConnector::from(Arc::new(config));
        Ok(Self { url, tls: Some(Tls { name, any, http1: only_http1 }) })
    }

    /// A new connection. It has all the time in the world: who calls this does not.
    pub(crate) async fn connect(
        &self,
        protocol: UpstreamProtocol,
        needs_http1: bool,
    ) -> io::Result<NegotiatedStream> {
        let stream = TcpStream::connect((self.url.host(), self.url.port)).await?;
        // Requests are one write each; waiting for more would only delay them.
        #[expect(
            clippy::let_underscore_must_use,
            reason = "without it the connection is slower, not wrong"
        )]
        let _ = stream.set_nodelay(true);
        let is_told = protocol == UpstreamProtocol::Http2 && !needs_http1;
        let Some(tls) = &self.tls else {
            return Ok(NegotiatedStream { wire: UpstreamStream::Tcp(stream), is_http2: is_told });
        };
        let connector = if needs_http1 { &tls.http1 } else { &tls.any };
        let stream = connector.connect(tls.name.clone(), stream).await?;
        let is_agreed = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(NegotiatedStream {
            wire: UpstreamStream::Tls(Box::new(stream)),
            is_http2: is_told || is_agreed,
        })
    }
}
