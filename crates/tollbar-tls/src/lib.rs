//! Certificates and keys in PEM, and the configurations of rustls that are made of them.
//!
//! Every connection of Tollbar over TLS begins here: listeners, upstreams, Redis, PostgreSQL, the
//! command line, the gRPC client and the exporter of spans.
//! Cryptography is ring's, versions are 1.2 and 1.3, and the other side's certificate is always verified: there is
//! no way to switch that off.

#[cfg(feature = "connector")]
mod connector;
mod revocation;

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

#[cfg(feature = "connector")]
pub use connector::Connector;
pub use revocation::RevocationList;

/// More is no file of certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A text in PEM, and what to call it in messages: the path of its file, for example.
#[derive(Clone)]
pub struct Pem {
    name: String,
    bytes: Vec<u8>,
    is_readable_by_others: bool,
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
    /// Everybody can change it.
    #[error("every user of this machine can write {name}: run `chmod o-w` on it")]
    Writable {
        /// Which file.
        name: String,
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
    /// There is no revocation list, or something that is none.
    #[error("{name} holds no certificate revocation list in PEM (`-----BEGIN X509 CRL-----`)")]
    NoRevocationList {
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
        Self { name: name.to_owned(), bytes: bytes.to_vec(), is_readable_by_others: false }
    }

    /// Reads a file. One that every user can write is rejected: they could put a certificate of their own there.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PemError> {
        let name = path.as_ref().display().to_string();
        let mut bytes = Vec::new();
        let read = File::open(path.as_ref()).and_then(|file| {
            let mode = mode_of(&file.metadata()?);
            file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            Ok(mode)
        });
        match read {
            Err(source) => Err(PemError::Read { name, source }),
            Ok(mode) if mode & 0o002 != 0 => Err(PemError::Writable { name }),
            Ok(_) if bytes.len() as u64 > FILE_BYTES_MAX => Err(PemError::TooLarge { name }),
            Ok(mode) => Ok(Self { name, bytes, is_readable_by_others: mode & 0o004 != 0 }),
        }
    }

    /// True if it was read from a file that every user can read, which a key should not be.
    #[must_use]
    pub fn is_readable_by_others(&self) -> bool {
        self.is_readable_by_others
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

    /// All of its revocation lists: one at least.
    pub fn revocation_lists(&self) -> Result<Vec<RevocationList>, PemError> {
        let lists = RevocationList::parse_all(&self.bytes).filter(|lists| !lists.is_empty());
        lists.ok_or_else(|| PemError::NoRevocationList { name: self.name.clone() })
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

/// Returns the permissions of a file. Others have none where the system knows no such thing, and on a pipe, such as a
/// shell makes.
fn mode_of(metadata: &Metadata) -> u32 {
    #[cfg(unix)]
    if metadata.is_file() {
        return std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    }
    let _ = metadata;
    0
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

/// Returns a verifier that accepts clients whose certificate one of `authorities` has signed.
///
/// If there are revocation lists, every certificate up to the authority must be covered by a list and not be on it: a
/// certificate whose issuer has no list is rejected. A list counts after its time too, because whatever it revokes stays
/// revoked; the caller reports that it is out of date.
pub fn client_verifier(
    authorities: RootCertStore,
    lists: Vec<RevocationList>,
) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let provider = Arc::new(ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider)
        .with_crls(lists.into_iter().map(RevocationList::into_der))
        .build()
}

/// Returns the configuration of a server that shows `identity` and, if there is a verifier, rejects clients that do not
/// pass it. Sessions are resumed under this configuration only, so a client that a newer one rejects cannot resume.
pub fn server_config(
    identity: Identity,
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
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
        let clients = client_verifier(roots.clone(), Vec::new()).unwrap();
        server_config(identity, Some(clients)).unwrap();
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
        let no_list =
            Pem::new("no_list", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
        let no_certificate = "holds no certificate in PEM (`-----BEGIN CERTIFICATE-----`)";
        for (error, expected) in [
            (Pem::read("/no/file").unwrap_err(), "cannot read /no/file: ".to_owned()),
            (Pem::read("/dev/zero").unwrap_err(), "/dev/zero has more than 1 MiB".to_owned()),
            (empty.authorities().unwrap_err(), format!("empty {no_certificate}")),
            (torn.authorities().unwrap_err(), format!("torn {no_certificate}")),
            (key.authorities().unwrap_err(), format!("key {no_certificate}")),
            (wrong.authorities().unwrap_err(), "wrong cannot be used: ".to_owned()),
            (
                chain.revocation_lists().unwrap_err(),
                "chain holds no certificate revocation".to_owned(),
            ),
            (
                no_list.revocation_lists().unwrap_err(),
                "no_list holds no certificate rev".to_owned(),
            ),
            (Identity::new(&chain, &chain).unwrap_err(), "chain holds no private key".to_owned()),
            (Identity::new(&chain, &other).unwrap_err(), "key is not the key of chain".to_owned()),
            (Identity::new(&wrong, &key).unwrap_err(), "wrong cannot be used: ".to_owned()),
        ] {
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
