//! Certificates and keys in PEM, and the configurations of rustls that are made of them.
//!
//! Every connection of Tollbar over TLS begins here: listeners, upstreams, Redis, PostgreSQL, the
//! command line, the gRPC client and the exporter of spans.
//! Cryptography is ring's, versions are 1.2 and 1.3, and the other side's certificate is always verified: there is
//! no way to switch that off.

#[cfg(feature = "connector")]
mod connector;

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

#[cfg(feature = "connector")]
pub use connector::Connector;

/// More is no file of certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A text in PEM, and what to call it in messages: the path of its file, for example.
#[derive(Clone)]
pub struct Pem {
    name: String,
    bytes: Vec<u8>,
}

/// Why a text in PEM cannot be used. The message names it and says what it should hold.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PemError {
    /// The file is not there, or may not be read.
    #[error("cannot read {name}: {source}")]
    Read {
        /// Which file.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// It cannot be a file of certificates.
    #[error("{name} has more than 1 MiB, which is no file of certificates")]
    TooLarge {
        /// Which file.
        name: String,
    },
    /// There is no certificate, or something that is none.
    #[error("{name} holds no certificate in PEM (`-----BEGIN CERTIFICATE-----`)")]
    NoCertificate {
        /// Which text.
        name: String,
    },
    /// There is no key, or one with a password.
    #[error(
        "{name} holds no private key in PEM without a password (`-----BEGIN PRIVATE KEY-----`)"
    )]
    NoKey {
        /// Which text.
        name: String,
    },
    /// A key of another certificate.
    #[error("{key} is not the key of {chain}")]
    Mismatch {
        /// Which key.
        key: String,
        /// Which certificate.
        chain: String,
    },
    /// A certificate or key that TLS has no use for.
    #[error("{name} cannot be used: {source}")]
    Unusable {
        /// Which text.
        name: String,
        /// Why.
        source: rustls::Error,
    },
}

/// A certificate, those up to its authority, and its key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Pem {
    /// A text that is called `name` in messages.
    #[must_use]
    pub fn new(name: &str, bytes: &[u8]) -> Self {
        Self { name: name.to_owned(), bytes: bytes.to_vec() }
    }

    /// The text of a file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PemError> {
        let name = path.as_ref().display().to_string();
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path.as_ref())
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Err(source) => Err(PemError::Read { name, source }),
            Ok(count) if count as u64 > FILE_BYTES_MAX => Err(PemError::TooLarge { name }),
            Ok(_) => Ok(Self { name, bytes }),
        }
    }

    /// The text.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All of its certificates: one at least.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, PemError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            _ => Err(PemError::NoCertificate { name: self.name.clone() }),
        }
    }

    /// Its certificates as the authorities to trust, and no others.
    pub fn authorities(&self) -> Result<RootCertStore, PemError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|source| self.unusable(source))?;
        }
        Ok(roots)
    }

    fn unusable(&self, source: rustls::Error) -> PemError {
        PemError::Unusable { name: self.name.clone(), source }
    }
}

impl Identity {
    /// The certificates of `chain`, the own one first, with its key.
    pub fn new(chain: &Pem, key: &Pem) -> Result<Self, PemError> {
        let certificates = chain.certificates()?;
        let private = PrivateKeyDer::from_pem_slice(&key.bytes)
            .map_err(|_| PemError::NoKey { name: key.name.clone() })?;
        let provider = ring::default_provider();
        CertifiedKey::from_der(certificates.clone(), private.clone_key(), &provider).map_err(
            |error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    PemError::Mismatch { key: key.name.clone(), chain: chain.name.clone() }
                }
                source => chain.unusable(source),
            },
        )?;
        Ok(Self { chain: certificates, key: private })
    }
}

/// The authorities that browsers trust.
#[must_use]
pub fn public_authorities() -> RootCertStore {
    webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect()
}

/// For a client that trusts servers of these authorities, and shows no certificate of its own.
pub fn client_config(authorities: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    client_config_as(authorities, None)
}

/// For a client that trusts servers of these authorities, and shows `identity` where there is one.
pub fn client_config_as(
    authorities: RootCertStore,
    identity: Option<Identity>,
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(authorities);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => builder.with_client_auth_cert(identity.chain, identity.key),
    }
}

/// For a server that shows `identity`. Where there are `client_authorities`, a client without a certificate of one
/// of them is turned away.
pub fn server_config(
    identity: Identity,
    client_authorities: Option<RootCertStore>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match client_authorities {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    builder.with_single_cert(identity.chain, identity.key)
}

impl fmt::Debug for Pem {
    /// Without its text, which may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A certificate of its own authority and its key.
    fn signed() -> (Pem, Pem) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let chain = params.self_signed(&key).unwrap().pem();
        (Pem::new("chain", chain.as_bytes()), Pem::new("key", key.serialize_pem().as_bytes()))
    }

    #[test]
    fn a_certificate_and_its_key_make_both_ends() {
        let (chain, key) = signed();
        let roots = chain.authorities().unwrap();
        assert_eq!((roots.len(), chain.certificates().unwrap().len()), (1, 1));
        let identity = Identity::new(&chain, &key).unwrap();
        server_config(identity, Some(roots.clone())).unwrap();
        client_config(roots).unwrap();
        assert!(public_authorities().len() > 100);
        assert_eq!(format!("{key:?}"), "Pem { name: \"key\", .. }");
    }

    #[test]
    fn what_cannot_be_used_is_told_by_name() {
        let ((chain, key), (_, other)) = (signed(), signed());
        let empty = Pem::new("empty", b"");
        let torn = Pem::new("torn", b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n");
        let wrong =
            Pem::new("wrong", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let no_certificate = "holds no certificate in PEM (`-----BEGIN CERTIFICATE-----`)";
        for (error, expected) in [
            (Pem::read("/no/file").unwrap_err(), "cannot read /no/file: ".to_owned()),
            (Pem::read("/dev/zero").unwrap_err(), "/dev/zero has more than 1 MiB".to_owned()),
            (empty.authorities().unwrap_err(), format!("empty {no_certificate}")),
            (torn.authorities().unwrap_err(), format!("torn {no_certificate}")),
            (key.authorities().unwrap_err(), format!("key {no_certificate}")),
            (wrong.authorities().unwrap_err(), "wrong cannot be used: ".to_owned()),
            (Identity::new(&chain, &chain).unwrap_err(), "chain holds no private key".to_owned()),
            (Identity::new(&chain, &other).unwrap_err(), "key is not the key of chain".to_owned()),
            (Identity::new(&wrong, &key).unwrap_err(), "wrong cannot be used: ".to_owned()),
        ] {
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
