//! TLS for listeners on TCP: certificates and revocation lists from files, read again while connections are served.
//!
//! The `--tls` flags are for all listeners, and each listener may have parts of its own (decision 0074). A handshake is done
//! by the task of its connection, never by the loop that accepts. Once an authority for clients is given, there is no way to
//! leave their certificates unchecked.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::{io, mem};

use arc_swap::ArcSwap;
use clap::Args;
use rustls::ServerConfig;
use rustls::server::VerifierBuilderError;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tollbar::Timestamp;
use tollbar_rules::admin::parse_instant;
use tollbar_tls::{Identity, Pem, PemError, RevocationList};

use super::endpoint::Endpoint;
use crate::files;
use crate::health::{Health, HealthPart};
use crate::rfc3339::Rfc3339;

/// The certificates and keys of all listeners, and what single listeners have otherwise.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsFlags {
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

    /// Rejects clients whose certificate is on a revocation list in this file, in PEM: one list for each authority
    #[arg(long, env = "TOLLBAR_TLS_CLIENT_CRL", value_name = "FILE")]
    tls_client_crl: Option<PathBuf>,

    /// TLS of --listen: off, or what it has in place of the --tls flags, such as cert=FILE,key=FILE or client-ca=FILE
    #[arg(long, env = "TOLLBAR_LISTEN_TLS", value_name = "TLS", value_delimiter = ',')]
    listen_tls: Vec<TlsPart>,

    /// TLS of --grpc: see --listen-tls
    #[arg(long, env = "TOLLBAR_GRPC_TLS", value_name = "TLS", value_delimiter = ',')]
    grpc_tls: Vec<TlsPart>,

    /// TLS of --resp: see --listen-tls
    #[arg(long, env = "TOLLBAR_RESP_TLS", value_name = "TLS", value_delimiter = ',')]
    resp_tls: Vec<TlsPart>,

    /// TLS of --proxy: see --listen-tls
    #[arg(long, env = "TOLLBAR_PROXY_TLS", value_name = "TLS", value_delimiter = ',')]
    proxy_tls: Vec<TlsPart>,

    /// TLS of --admin: see --listen-tls
    #[arg(long, env = "TOLLBAR_ADMIN_TLS", value_name = "TLS", value_delimiter = ',')]
    admin_tls: Vec<TlsPart>,
}

/// A part of what one listener has in place of the shared flags.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TlsPart {
    /// No TLS.
    Off,
    Cert(PathBuf),
    Key(PathBuf),
    /// `None` takes clients without a certificate.
    ClientCa(Option<PathBuf>),
    ClientCrl(Option<PathBuf>),
}

/// Why there can be no TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{given} is there and {missing} is not: give both, or neither")]
    Half { given: String, missing: &'static str },
    #[error(
        "{flag} needs a certificate: add cert=FILE,key=FILE to it, or give --tls-cert FILE and --tls-key FILE"
    )]
    NoCertificate { flag: &'static str },
    #[error("{flag}: {text} is there twice: give it once")]
    Twice { flag: &'static str, text: &'static str },
    #[error("{flag}: `off` excludes all else: leave one of them out")]
    OffAndMore { flag: &'static str },
    #[error("{flag} has no effect on {listener} {endpoint}, which speaks no TLS: leave it out")]
    NoTls { flag: &'static str, listener: &'static str, endpoint: Endpoint },
    #[error("{flag}: {source}")]
    File { flag: &'static str, source: PemError },
    #[error("{flag}: a revocation list in {} cannot be used: {source}", path.display())]
    RevocationList { flag: &'static str, path: PathBuf, source: VerifierBuilderError },
    #[error(
        "{flag}: a revocation list in {} ended at {}: put the authority's current list there and send SIGHUP",
        path.display(),
        Rfc3339(*ended_at).text().as_str()
    )]
    Outdated { flag: &'static str, path: PathBuf, ended_at: Timestamp },
    #[error("{flag}: {source}")]
    Unusable { flag: &'static str, source: rustls::Error },
}

/// The files of one listener, each with the flag that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListenerFiles {
    cert: NamedFile,
    key: NamedFile,
    client_ca: Option<NamedFile>,
    client_crl: Option<NamedFile>,
}

/// A file and the flag that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedFile {
    flag: &'static str,
    path: PathBuf,
}

/// What the files of a listener say.
#[derive(Debug, Clone)]
struct LoadedFiles {
    config: Arc<ServerConfig>,
    /// When the first of the revocation lists ends.
    list_end: Option<ListEnd>,
}

/// When a revocation list ends.
#[derive(Debug, Clone)]
struct ListEnd {
    file: NamedFile,
    at: Timestamp,
}

/// What is reported of the certificates of all listeners.
#[derive(Debug, Default)]
struct TlsStatus {
    /// Why the files were not taken when they were last read.
    reload_error: Option<Arc<str>>,
    list_ends: Vec<ListEnd>,
}

/// The certificates of all listeners.
#[derive(Debug)]
pub struct Tls {
    listeners: Vec<TlsListener>,
    status: Arc<ArcSwap<TlsStatus>>,
}

#[derive(Debug)]
struct TlsListener {
    /// The flag of the listener.
    flag: &'static str,
    files: ListenerFiles,
    tls: ListenerTls,
}

/// TLS as one listener offers it.
#[derive(Debug, Clone)]
pub(crate) struct ListenerTls {
    config: Arc<ArcSwap<ServerConfig>>,
    alpn: &'static [&'static [u8]],
}

/// Certificates, keys and revocation lists.
pub const CERTIFICATES: HealthPart = HealthPart {
    name: "certificates",
    degraded: "certificates and revocation lists stay as they were",
    recovered: "certificates and revocation lists are up to date",
};

impl FromStr for TlsPart {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "write off, or some of cert=FILE, key=FILE, client-ca=FILE and client-crl=FILE; \
                                client-ca=none takes clients without a certificate";
        let file = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path)).ok_or(EXPECTED);
        let optional = |path: &str| if path == "none" { Ok(None) } else { file(path).map(Some) };
        match text.split_once('=') {
            None if text == "off" => Ok(Self::Off),
            Some(("cert", path)) => file(path).map(Self::Cert),
            Some(("key", path)) => file(path).map(Self::Key),
            Some(("client-ca", path)) => optional(path).map(Self::ClientCa),
            Some(("client-crl", path)) => optional(path).map(Self::ClientCrl),
            _ => Err(EXPECTED),
        }
    }
}

impl TlsFlags {
    /// True if connections to the listener of this flag are encrypted.
    pub fn is_given(&self, listener: &str) -> bool {
        matches!(self.files_of(listener), Ok(Some(_)))
    }

    /// True if clients of the listener of this flag must show a certificate.
    pub fn authenticates(&self, listener: &str) -> bool {
        matches!(self.files_of(listener), Ok(Some(ListenerFiles { client_ca: Some(_), .. })))
    }

    /// Returns the flag of what a listener has of its own, and what that is.
    fn parts_of(&self, listener: &str) -> (&'static str, &[TlsPart]) {
        match listener {
            "--listen" => ("--listen-tls", &self.listen_tls),
            "--grpc" => ("--grpc-tls", &self.grpc_tls),
            "--resp" => ("--resp-tls", &self.resp_tls),
            "--proxy" => ("--proxy-tls", &self.proxy_tls),
            "--admin" => ("--admin-tls", &self.admin_tls),
            // What has no flag, such as --health, speaks no TLS.
            _ => ("", &[TlsPart::Off]),
        }
    }

    /// Returns the files of the listener of this flag; `None` if it speaks no TLS.
    fn files_of(&self, listener: &str) -> Result<Option<ListenerFiles>, TlsError> {
        let shared = |flag, path: &Option<PathBuf>| {
            path.as_ref().map(|path| NamedFile { flag, path: path.clone() })
        };
        let mut cert = shared("--tls-cert", &self.tls_cert);
        let mut key = shared("--tls-key", &self.tls_key);
        let mut client_ca = shared("--tls-client-ca", &self.tls_client_ca);
        let mut client_crl = shared("--tls-client-crl", &self.tls_client_crl);
        // Otherwise a listener without a certificate of its own would serve everybody in plain text.
        let half = |given: &str, missing| TlsError::Half { given: given.to_owned(), missing };
        match (&cert, &key, &client_ca, &client_crl) {
            (Some(_), None, ..) => return Err(half("--tls-cert", "--tls-key")),
            (None, Some(_), ..) => return Err(half("--tls-key", "--tls-cert")),
            (None, _, Some(_), _) => return Err(half("--tls-client-ca", "--tls-cert")),
            (_, _, None, Some(_)) => return Err(half("--tls-client-crl", "--tls-client-ca")),
            _ => {}
        }
        let (flag, parts) = self.parts_of(listener);
        for (at, part) in parts.iter().enumerate() {
            if *part == TlsPart::Off && parts.len() > 1 {
                return Err(TlsError::OffAndMore { flag });
            }
            let is_same = |other: &TlsPart| mem::discriminant(other) == mem::discriminant(part);
            if parts[..at].iter().any(is_same) {
                return Err(TlsError::Twice { flag, text: part.name() });
            }
        }
        let has = |name: &str| parts.iter().any(|part| part.name() == name);
        for (given, missing) in [("cert", "key"), ("key", "cert")] {
            if has(given) && !has(missing) {
                return Err(half(&format!("{given} of {flag}"), missing));
            }
        }
        if has("client-ca") {
            // Its lists are those of other authorities.
            client_crl = None;
        }
        for part in parts {
            let named = |path: &PathBuf| NamedFile { flag, path: path.clone() };
            match part {
                TlsPart::Off => return Ok(None),
                TlsPart::Cert(path) => cert = Some(named(path)),
                TlsPart::Key(path) => key = Some(named(path)),
                TlsPart::ClientCa(path) => client_ca = path.as_ref().map(named),
                TlsPart::ClientCrl(path) => client_crl = path.as_ref().map(named),
            }
        }
        match (cert, key) {
            (Some(_), Some(_)) if client_ca.is_none() && client_crl.is_some() => {
                Err(half(&format!("client-crl of {flag}"), "client-ca"))
            }
            (Some(cert), Some(key)) => Ok(Some(ListenerFiles { cert, key, client_ca, client_crl })),
            _ if parts.is_empty() => Ok(None),
            _ => Err(TlsError::NoCertificate { flag }),
        }
    }
}

impl TlsPart {
    fn name(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Cert(_) => "cert",
            Self::Key(_) => "key",
            Self::ClientCa(_) => "client-ca",
            Self::ClientCrl(_) => "client-crl",
        }
    }
}

impl NamedFile {
    fn read(&self) -> Result<Pem, TlsError> {
        Pem::read(&self.path).map_err(|source| self.error(source))
    }

    fn error(&self, source: PemError) -> TlsError {
        TlsError::File { flag: self.flag, source }
    }
}

impl ListenerFiles {
    fn load(&self, now: Timestamp) -> Result<LoadedFiles, TlsError> {
        let Self { cert, key, client_ca, client_crl } = self;
        let (chain, private) = (cert.read()?, key.read()?);
        let identity = Identity::new(&chain, &private).map_err(|source| match source {
            PemError::NoKey { .. } | PemError::Mismatch { .. } => key.error(source),
            _ => cert.error(source),
        })?;
        // After the key was found in the file: a certificate given by mistake is public.
        if private.is_readable_by_others() {
            files::warn_of_readers(&key.path);
        }
        let (mut clients, mut list_end) = (None, None);
        if let Some(ca) = client_ca {
            let authorities = ca.read()?.authorities().map_err(|source| ca.error(source))?;
            let lists = match client_crl {
                None => Vec::new(),
                Some(file) => {
                    file.read()?.revocation_lists().map_err(|source| file.error(source))?
                }
            };
            let named = client_crl.as_ref().unwrap_or(ca);
            list_end =
                lists.iter().filter_map(|list| ListEnd::new(named, list)).min_by_key(|end| end.at);
            if let Some(end) = &list_end {
                end.check(now)?;
            }
            let verifier = tollbar_tls::client_verifier(authorities, lists);
            clients = Some(verifier.map_err(|source| TlsError::RevocationList {
                flag: named.flag,
                path: named.path.clone(),
                source,
            })?);
        }
        let config = tollbar_tls::server_config(identity, clients)
            .map_err(|source| TlsError::Unusable { flag: cert.flag, source })?;
        Ok(LoadedFiles { config: Arc::new(config), list_end })
    }
}

impl ListEnd {
    /// Returns the end of a list in this file; `None` if it is too far away to be an instant.
    fn new(file: &NamedFile, list: &RevocationList) -> Option<Self> {
        parse_instant(list.next_update()).map(|at| Self { file: file.clone(), at })
    }

    fn check(&self, now: Timestamp) -> Result<(), TlsError> {
        if now < self.at {
            return Ok(());
        }
        let NamedFile { flag, path } = self.file.clone();
        Err(TlsError::Outdated { flag, path, ended_at: self.at })
    }
}

impl TlsStatus {
    fn health(&self, now: Timestamp) -> Health {
        let outdated = || self.list_ends.iter().find_map(|end| end.check(now).err());
        match &self.reload_error {
            Some(error) => Health::degraded(Arc::clone(error)),
            None => outdated().map_or(Health::Ok, |error| Health::degraded(error.to_string())),
        }
    }
}

impl Tls {
    /// Reads the files of these listeners, each by its flag; `None` if none of them speaks TLS.
    pub fn read(
        flags: &TlsFlags,
        listeners: &[(&'static str, &Endpoint)],
        now: Timestamp,
    ) -> Result<Option<Self>, TlsError> {
        let mut found = Vec::new();
        for (listener, endpoint) in listeners.iter().copied() {
            let files = flags.files_of(listener)?;
            let (flag, parts) = flags.parts_of(listener);
            match (files, endpoint) {
                (Some(files), Endpoint::Tcp(_)) => found.push((listener, files)),
                (Some(_), Endpoint::Unix(_)) if !parts.is_empty() => {
                    let endpoint = endpoint.clone();
                    return Err(TlsError::NoTls { flag, listener, endpoint });
                }
                _ => {}
            }
        }
        if found.is_empty() {
            return Ok(None);
        }
        let files: Vec<_> = found.iter().map(|(_, files)| files).collect();
        let (loaded, status) = load_all(&files, now)?;
        let listener = |((flag, files), loaded): ((_, _), LoadedFiles)| {
            let config = Arc::new(ArcSwap::new(loaded.config));
            TlsListener { flag, files, tls: ListenerTls { config, alpn: &[] } }
        };
        let listeners = found.into_iter().zip(loaded).map(listener).collect();
        Ok(Some(Self { listeners, status: Arc::new(ArcSwap::from_pointee(status)) }))
    }

    /// Returns the TLS of the listener of this flag, whose clients are offered these protocols; `None` if it speaks none.
    pub(crate) fn for_listener(
        &mut self,
        flag: &str,
        alpn: &'static [&'static [u8]],
    ) -> Option<ListenerTls> {
        let listener = self.listeners.iter_mut().find(|listener| listener.flag == flag)?;
        listener.tls.alpn = alpn;
        listener.tls.put(&listener.tls.config.load_full());
        Some(listener.tls.clone())
    }

    /// Returns the health of certificates and revocation lists at a time.
    pub fn health(&self) -> impl Fn(Timestamp) -> Health + Send + Sync + 'static {
        let status = Arc::clone(&self.status);
        move |now| status.load().health(now)
    }

    /// Reads the files again, for connections that come from now on. If one of them cannot be used, all listeners keep what
    /// they have.
    pub fn reload(&mut self, now: Timestamp) -> Result<(), TlsError> {
        let files: Vec<_> = self.listeners.iter().map(|listener| &listener.files).collect();
        let (loaded, status) = load_all(&files, now).inspect_err(|error| {
            let list_ends = self.status.load().list_ends.clone();
            let reload_error = Some(error.to_string().into());
            self.status.store(Arc::new(TlsStatus { reload_error, list_ends }));
        })?;
        for (listener, loaded) in self.listeners.iter().zip(loaded) {
            listener.tls.put(&loaded.config);
        }
        self.status.store(Arc::new(status));
        Ok(())
    }
}

/// Loads the files of each listener. Listeners with the same files share a configuration.
fn load_all(
    files: &[&ListenerFiles],
    now: Timestamp,
) -> Result<(Vec<LoadedFiles>, TlsStatus), TlsError> {
    let mut loaded: Vec<LoadedFiles> = Vec::new();
    for (at, own) in files.iter().enumerate() {
        let same = files[..at].iter().position(|other| other == own);
        loaded.push(same.map_or_else(|| own.load(now), |same| Ok(loaded[same].clone()))?);
    }
    let list_ends = loaded.iter().filter_map(|loaded| loaded.list_end.clone()).collect();
    Ok((loaded, TlsStatus { reload_error: None, list_ends }))
}

impl ListenerTls {
    /// Serves new connections by this configuration.
    fn put(&self, config: &ServerConfig) {
        self.config.store(with_alpn(config, self.alpn));
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.config.load_full()).accept(stream).await
    }
}

fn with_alpn(config: &ServerConfig, alpn: &[&[u8]]) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}
