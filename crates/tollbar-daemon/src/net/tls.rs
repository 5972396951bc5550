//! TLS for listeners on TCP: certificates from files, read again while connections are served.
//!
//! A handshake is done by the task of its connection, never by the loop that accepts. There is no way
//! to leave clients' certificates unchecked once an authority for them is given.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use clap::Args;
use rustls::ServerConfig;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tollbar_tls::{Identity, Pem, PemError};

/// Where certificates and keys are.
#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_field_names, reason = "they are the flags' names")]
pub struct TlsFiles {
    /// The certificate shown to clients, and those up to its authority, in PEM; every listener on TCP
    /// speaks TLS then
    #[arg(long, env = "TOLLBAR_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// The key of the certificate, in PEM without a password
    #[arg(long, env = "TOLLBAR_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Takes only clients whose certificate an authority in this file has signed, in PEM
    #[arg(long, env = "TOLLBAR_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
}

/// Why there can be no TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{given} is there and {missing} is not: give both, or neither")]
    Half { given: &'static str, missing: &'static str },
    #[error("{flag}: {source}")]
    File { flag: &'static str, source: PemError },
    #[error("--tls-cert: {0}")]
    Unusable(#[from] rustls::Error),
}

/// The certificates of all listeners.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    listeners: Vec<ListenerTls>,
}

/// TLS as one listener offers it.
#[derive(Debug, Clone)]
pub(crate) struct ListenerTls {
    config: Arc<ArcSwap<ServerConfig>>,
    alpn: &'static [&'static [u8]],
}

impl TlsFiles {
    /// True where connections are encrypted.
    pub fn is_given(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// True where clients show who they are by a certificate.
    pub fn authenticates(&self) -> bool {
        self.tls_client_ca.is_some()
    }

    fn read(&self) -> Result<Option<ServerConfig>, TlsError> {
        let (cert, key) = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => (cert, key),
            (None, None) if self.tls_client_ca.is_some() => {
                return Err(TlsError::Half { given: "--tls-client-ca", missing: "--tls-cert" });
            }
            (None, None) => return Ok(None),
            (Some(_), None) => {
                return Err(TlsError::Half { given: "--tls-cert", missing: "--tls-key" });
            }
            (None, Some(_)) => {
                return Err(TlsError::Half { given: "--tls-key", missing: "--tls-cert" });
            }
        };
        let of_flag = |flag| move |source| TlsError::File { flag, source };
        let read = |flag, path| Pem::read(path).map_err(of_flag(flag));
        let (cert, key) = (read("--tls-cert", cert)?, read("--tls-key", key)?);
        let identity = Identity::new(&cert, &key).map_err(|source| match source {
            PemError::NoKey { .. } | PemError::Mismatch { .. } => of_flag("--tls-key")(source),
            _ => of_flag("--tls-cert")(source),
        })?;
        let clients = match &self.tls_client_ca {
            None => None,
            Some(path) => {
                let pem = read("--tls-client-ca", path)?;
                Some(pem.authorities().map_err(of_flag("--tls-client-ca"))?)
            }
        };
        Ok(Some(tollbar_tls::server_config(identity, clients)?))
    }
}

impl Tls {
    /// What the files say; `None` where there are none.
    pub fn read(files: &TlsFiles) -> Result<Option<Self>, TlsError> {
        let config = files.read()?;
        Ok(config.map(|config| Self {
            files: files.clone(),
            config: Arc::new(config),
            listeners: Vec::new(),
        }))
    }

    /// For a listener whose clients are offered these protocols, where they ask.
    pub(crate) fn for_listener(&mut self, alpn: &'static [&'static [u8]]) -> ListenerTls {
        let config = Arc::new(ArcSwap::from(with_alpn(&self.config, alpn)));
        let listener = ListenerTls { config, alpn };
        self.listeners.push(listener.clone());
        listener
    }

    /// Reads the files again, for connections that come from now on. If they cannot be used, all is as
    /// it was.
    pub fn reload(&mut self) -> Result<(), TlsError> {
        // The flags have not changed, so that there are files.
        let Some(config) = self.files.read()? else {
            return Ok(());
        };
        self.config = Arc::new(config);
        for listener in &self.listeners {
            listener.config.store(with_alpn(&self.config, listener.alpn));
        }
        Ok(())
    }
}

impl ListenerTls {
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.config.load_full()).accept(stream).await
    }
}

fn with_alpn(config: &ServerConfig, alpn: &[&[u8]]) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}
