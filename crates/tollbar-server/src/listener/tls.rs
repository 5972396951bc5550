//! TLS for listeners on TCP: certificates from files, read again while connections are served.
//!
//! A handshake is done by the task of its connection, never by the loop that accepts. There is no way
//! to leave clients' certificates unchecked once an authority for them is given.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use clap::Args;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// More is no file of certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where certificates and keys are.
#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_field_names, reason = "they are the flags' names")]
pub(crate) struct TlsFiles {
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
pub(crate) enum TlsError {
    #[error("{given} is there and {missing} is not: give both, or neither")]
    Half { given: &'static str, missing: &'static str },
    #[error("{flag}: cannot read {}: {source}", path.display())]
    Read { flag: &'static str, path: PathBuf, source: io::Error },
    #[error("{flag}: {} has more than 1 MiB, which is no file of certificates", path.display())]
    TooLarge { flag: &'static str, path: PathBuf },
    #[error(
        "{flag}: {} holds no certificate in PEM (`-----BEGIN CERTIFICATE-----`)", path.display()
    )]
    NoCertificate { flag: &'static str, path: PathBuf },
    #[error(
        "--tls-key: {} holds no private key in PEM without a password (`-----BEGIN PRIVATE KEY-----`)",
        path.display()
    )]
    NoKey { path: PathBuf },
    #[error("--tls-key: {} is not the key of --tls-cert {}", key.display(), cert.display())]
    Mismatch { cert: PathBuf, key: PathBuf },
    #[error("{flag}: {} cannot be used: {source}", path.display())]
    Unusable { flag: &'static str, path: PathBuf, source: rustls::Error },
    #[error("--tls-client-ca: {} cannot be used: {reason}", path.display())]
    ClientCa { path: PathBuf, reason: String },
}

/// The certificates of all listeners.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    ports: Vec<TlsPort>,
}

/// TLS as one listener offers it.
#[derive(Debug, Clone)]
pub(crate) struct TlsPort {
    config: Arc<ArcSwap<ServerConfig>>,
    alpn: &'static [&'static [u8]],
}

impl TlsFiles {
    /// True where connections are encrypted.
    pub(crate) fn is_given(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// True where clients show who they are by a certificate.
    pub(crate) fn authenticates(&self) -> bool {
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
        let chain = certificates("--tls-cert", cert)?;
        let pem = read("--tls-key", key)?;
        let private = PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|_| TlsError::NoKey { path: key.clone() })?;
        let unusable = |flag, path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::Unusable { flag, path, source }
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unusable("--tls-cert", cert))?;
        let builder = match &self.tls_client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let refuse = |reason: String| TlsError::ClientCa { path: path.clone(), reason };
                let mut roots = RootCertStore::empty();
                for root in certificates("--tls-client-ca", path)? {
                    roots.add(root).map_err(|error| refuse(error.to_string()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|it| refuse(it.to_string()))?)
            }
        };
        let config = builder.with_single_cert(chain, private).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                TlsError::Mismatch { cert: cert.clone(), key: key.clone() }
            }
            error => unusable("--tls-cert", cert)(error),
        })?;
        Ok(Some(config))
    }
}

impl Tls {
    /// What the files say; `None` where there are none.
    pub(crate) fn read(files: &TlsFiles) -> Result<Option<Self>, TlsError> {
        let config = files.read()?;
        Ok(config.map(|it| Self { files: files.clone(), config: Arc::new(it), ports: Vec::new() }))
    }

    /// For a listener whose clients are offered these protocols, where they ask.
    pub(crate) fn port(&mut self, alpn: &'static [&'static [u8]]) -> TlsPort {
        let config = Arc::new(ArcSwap::from(with_alpn(&self.config, alpn)));
        let port = TlsPort { config, alpn };
        self.ports.push(port.clone());
        port
    }

    /// Reads the files again, for connections that come from now on. If they cannot be used, all is as
    /// it was.
    pub(crate) fn reload(&mut self) -> Result<(), TlsError> {
        // The flags have not changed, so that there are files.
        let Some(config) = self.files.read()? else {
            return Ok(());
        };
        self.config = Arc::new(config);
        for port in &self.ports {
            port.config.store(with_alpn(&self.config, port.alpn));
        }
        Ok(())
    }
}

impl TlsPort {
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.config.load_full()).accept(stream).await
    }
}

fn with_alpn(config: &ServerConfig, alpn: &[&[u8]]) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.alpn_protocols = alpn.iter().map(|it| it.to_vec()).collect();
    Arc::new(config)
}

fn certificates(flag: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(flag, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError::NoCertificate { flag, path: path.to_owned() }),
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|source| TlsError::Read { flag, path: path.to_owned(), source })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(TlsError::TooLarge { flag, path: path.to_owned() });
    }
    Ok(bytes)
}
