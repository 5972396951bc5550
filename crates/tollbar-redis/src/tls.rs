//! What a store trusts, and what it shows of itself, where its URL says `rediss://`.
//!
//! Certificates are always checked: there is no way to switch that off.

use std::fmt;
use std::fs;
use std::path::Path;

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError,
    TlsCertificates,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::error::RedisStoreError;

/// Certificates for a connection over TLS: `rediss://` in the URL, one letter more.
///
/// Without it, a server is trusted whose certificate one of the public authorities has signed.
///
/// ```no_run
/// use tollbar_redis::{RedisStore, Subjects, Tls};
///
/// # fn make(secret: [u8; 32]) -> Result<(), tollbar_redis::RedisStoreError> {
/// let tls = Tls::new().ca_file("ca.pem")?.client_files("client.pem", "client-key.pem")?;
/// let builder = RedisStore::builder("rediss://redis.internal", Subjects::Hashed(secret)).tls(tls);
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
        certificates(pem, "the authority's certificate")?;
        Ok(Self { ca_pem: Some(pem.to_vec()), ..self })
    }

    /// The same from a file.
    pub fn ca_file(self, path: impl AsRef<Path>) -> Result<Self, RedisStoreError> {
        let path = path.as_ref();
        certificates(&read(path)?, &format!("`{}`", path.display()))?;
        self.ca_pem(&read(path)?)
    }

    /// Shows a certificate to servers that ask for one: its chain, the own one first, and its key.
    pub fn client_pem(self, chain: &[u8], key: &[u8]) -> Result<Self, RedisStoreError> {
        self.client_named(chain, key, ["the client's certificate", "the client's key"])
    }

    /// The same from files.
    pub fn client_files(
        self,
        chain: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, RedisStoreError> {
        let paths = [chain.as_ref(), key.as_ref()];
        let names = paths.map(|path| format!("`{}`", path.display()));
        let [chain, key] = [read(paths[0])?, read(paths[1])?];
        self.client_named(&chain, &key, [&names[0], &names[1]])
    }

    fn client_named(
        self,
        chain: &[u8],
        key: &[u8],
        [chain_name, key_name]: [&str; 2],
    ) -> Result<Self, RedisStoreError> {
        let certificates = certificates(chain, chain_name)?;
        let parsed = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            unusable(format!("{key_name} holds no private key in PEM without a password ({error})"))
        })?;
        CertifiedKey::from_der(certificates, parsed, &ring::default_provider()).map_err(
            |error| unusable(format!("{key_name} is not the key of {chain_name} ({error})")),
        )?;
        let client = ClientTlsConfig { client_cert: chain.to_vec(), client_key: key.to_vec() };
        Ok(Self { client: Some(client), ..self })
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
pub(crate) fn moved_to(info: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
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
        let _ = ring::default_provider().install_default();
    }
}

fn certificates(pem: &[u8], name: &str) -> Result<Vec<CertificateDer<'static>>, RedisStoreError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(format!("{name} is no PEM ({error})")))?;
    if certificates.is_empty() {
        let advice = "it needs a block that begins with `-----BEGIN CERTIFICATE-----`";
        return Err(unusable(format!("{name} holds no certificate: {advice}")));
    }
    Ok(certificates)
}

fn read(path: &Path) -> Result<Vec<u8>, RedisStoreError> {
    fs::read(path).map_err(|error| unusable(format!("cannot read `{}` ({error})", path.display())))
}

fn unusable(detail: String) -> RedisStoreError {
    RedisStoreError::Certificate { detail }
}

/// What to do about a server that does not speak TLS.
pub(crate) const PLAIN: &str =
    "it does not speak TLS at this port: write `redis://`, or the port where it does";

/// Says of a handshake that nobody answered what that may be: a server that knows no TLS takes it for
/// the beginning of a line, and waits for the rest.
pub(crate) fn explained(error: RedisStoreError, info: &ConnectionInfo) -> RedisStoreError {
    match error {
        RedisStoreError::DeadlineMissed { deadline }
            if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) =>
        {
            RedisStoreError::NoHandshake { deadline }
        }
        error => error,
    }
}

/// What to do about a connection that could not be secured; `None` where it failed otherwise.
pub(crate) fn advice(error: &RedisError) -> Option<&'static str> {
    const AUTHORITY: &str =
        "nobody who is trusted here signed its certificate: give its authority by `Tls::ca_file`";
    const NAME: &str = "its certificate is for another name: write that in the URL, or add this one to the certificate";
    const ADVICE: [(&str, &str); 8] = [
        ("UnknownIssuer", AUTHORITY),
        // Of an authority that is called like one that is trusted.
        ("BadSignature", AUTHORITY),
        ("not valid for name", NAME),
        ("NotValidForName", NAME),
        ("certificate expired", "its certificate has expired"),
        ("InvalidContentType", PLAIN),
        (
            "CertificateRequired",
            "it asks for a certificate of ours: give one by `Tls::client_files`",
        ),
        (
            "UnknownCA",
            "it does not trust our certificate: give one of its authority by `Tls::client_files`",
        ),
    ];
    let text = error.to_string();
    ADVICE.iter().find(|(said, _)| text.contains(said)).map(|(_, advice)| *advice)
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
