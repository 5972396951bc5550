//! What a store trusts, and what it shows of itself, where its URL says `rediss://`.
//!
//! Certificates are always checked: there is no way to switch that off.

use std::fmt;
use std::path::Path;

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates,
};
use rustls::crypto::{CryptoProvider, ring};
use tollbar_tls::{Identity, Pem, PemError};

use crate::error::RedisStoreError;

/// Certificates for a connection over TLS: `rediss://` in the URL, one letter more.
///
/// Without it, a server is trusted whose certificate one of the public authorities has signed.
///
/// ```no_run
/// use tollbar_redis::{FleetSecret, KeyNames, RedisStore, Tls};
///
/// # fn make(secret: [u8; 32]) -> Result<(), tollbar_redis::RedisStoreError> {
/// let tls = Tls::new().ca_file("ca.pem")?.client_files("client.pem", "client-key.pem")?;
/// let builder = RedisStore::builder("rediss://redis.internal", KeyNames::Hashed(FleetSecret::new(secret))).tls(tls);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    ca_pem: Option<Vec<u8>>,
    client: Option<ClientTlsConfig>,
}

impl Tls {
    /// The public authorities, and no certificate of our own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities whose certificates are in `pem`, and no others.
    pub fn ca_pem(self, pem: &[u8]) -> Result<Self, RedisStoreError> {
        self.ca(&Pem::new("the authority's certificate", pem))
    }

    /// Trusts the authorities whose certificates are in a file of PEM, and no others.
    pub fn ca_file(self, path: impl AsRef<Path>) -> Result<Self, RedisStoreError> {
        self.ca(&Pem::read(path)?)
    }

    /// Shows a certificate to servers that ask for one: its chain, the own one first, and its key.
    pub fn client_pem(self, chain: &[u8], key: &[u8]) -> Result<Self, RedisStoreError> {
        let chain = Pem::new("the client's certificate", chain);
        self.client(&chain, &Pem::new("the client's key", key))
    }

    /// Shows a certificate from a file of PEM, and its key from another, to servers that ask for one.
    pub fn client_files(
        self,
        chain: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, RedisStoreError> {
        self.client(&Pem::read(chain)?, &Pem::read(key)?)
    }

    fn ca(self, pem: &Pem) -> Result<Self, RedisStoreError> {
        pem.authorities()?;
        Ok(Self { ca_pem: Some(pem.bytes().to_vec()), ..self })
    }

    fn client(self, chain: &Pem, key: &Pem) -> Result<Self, RedisStoreError> {
        Identity::new(chain, key)?;
        let (client_cert, client_key) = (chain.bytes().to_vec(), key.bytes().to_vec());
        Ok(Self { client: Some(ClientTlsConfig { client_cert, client_key }), ..self })
    }

    /// In the client's own words.
    fn certificates(self) -> TlsCertificates {
        TlsCertificates { client_tls: self.client, root_cert: self.ca_pem }
    }
}

/// Where `url` leads, and with which certificates.
pub(crate) fn connection_info(
    url: &str,
    tls: Option<&Tls>,
) -> Result<ConnectionInfo, RedisStoreError> {
    let info = url.into_connection_info()?;
    match (info.addr(), tls) {
        (ConnectionAddr::TcpTls { insecure: true, .. }, _) => Err(unusable(
            "certificates are always checked: take `#insecure` from the URL, and give the server's \
             authority by `Tls::ca_file`"
                .to_owned(),
        )),
        (ConnectionAddr::TcpTls { .. }, tls) => {
            choose_provider();
            let certificates = tls.cloned().unwrap_or_default().certificates();
            Ok(Client::build_with_tls(info, certificates)?.get_connection_info().clone())
        }
        (_, Some(_)) => Err(unusable(
            "there are certificates, and the URL does not ask for TLS: write `rediss://`".to_owned(),
        )),
        (_, None) => Ok(info),
    }
}

/// The same at another address: as the same user, and as secure.
pub(crate) fn with_address(info: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

/// The client takes the cryptography of the process: what the program has chosen, or else ring's.
fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Somebody else may have been faster, which is as good.
        #[expect(
            clippy::let_underscore_must_use,
            reason = "another part of the process may have installed one before"
        )]
        let _ = ring::default_provider().install_default();
    }
}

fn unusable(detail: String) -> RedisStoreError {
    RedisStoreError::Certificate { detail }
}

impl From<PemError> for RedisStoreError {
    fn from(error: PemError) -> Self {
        unusable(error.to_string())
    }
}

/// Says of a handshake that nobody answered what that may be: a server that knows no TLS takes it for
/// the beginning of a line, and waits for the rest.
pub(crate) fn explain_timeout(error: RedisStoreError, info: &ConnectionInfo) -> RedisStoreError {
    match error {
        RedisStoreError::DeadlineMissed { deadline }
            if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) =>
        {
            RedisStoreError::NoHandshake { deadline }
        }
        error => error,
    }
}

impl fmt::Debug for Tls {
    /// Without the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tls")
            .field("has_ca", &self.ca_pem.is_some())
            .field("has_client", &self.client.is_some())
            .finish()
    }
}
