//! Which store the daemon counts in: what is written behind `--store`, and the flags that go with it.

pub mod ahead_of_clock;
pub mod counters;
pub mod loans;
mod memory;
pub mod snapshot;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use thiserror::Error;
use tollbar::SnapshotError;
pub use tollbar_redis::{FaultKind, StoreFault};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore, RedisStoreBuilder, RedisStoreError, Tls};
use tollbar_tls::Pem;

use crate::duration_flag::DurationFlag;
use crate::files;
use crate::files::secret::{self, SecretError};
use crate::store::counters::Counters;
use crate::store::loans::{Loans, LoansMode};
use crate::store::snapshot::{SnapshotFlags, snapshot_error_text};
use memory::MemoryFlags;

/// The least time that a probe has for each question where nobody waits for it: a server that is slow is
/// no finding.
const PROBE_DEADLINE_MIN: Duration = Duration::from_secs(1);

/// Where counters are, and how they are reached.
#[derive(Debug, Clone, Args)]
pub struct StoreFlags {
    /// Where to count: memory, `redis://HOST`, `rediss://HOST`, `unix:///PATH`,
    /// `redis+cluster://HOST,HOST` or `redis+sentinel://HOST,HOST/MASTER`
    #[arg(
        long,
        env = "TOLLBAR_STORE",
        value_name = "STORE",
        default_value = "memory",
        hide_env_values = true
    )]
    store: StoreAddress,

    /// The secret under which clients' keys are hashed in Redis, the same for the whole fleet: 64
    /// hexadecimal digits, such as `openssl rand -hex 32` prints
    #[arg(long, env = "TOLLBAR_STORE_SECRET_FILE", value_name = "FILE")]
    store_secret_file: Option<PathBuf>,

    /// Trusts a Redis over TLS whose certificate an authority in this file has signed, in PEM, in place
    /// of those that are built in
    #[arg(long, env = "TOLLBAR_STORE_CA", value_name = "FILE")]
    store_ca: Option<PathBuf>,

    /// The certificate to show to Redis over TLS, and those up to its authority, in PEM
    #[arg(long, env = "TOLLBAR_STORE_CERT", value_name = "FILE")]
    store_cert: Option<PathBuf>,

    /// Its key, in PEM without a password
    #[arg(long, env = "TOLLBAR_STORE_KEY", value_name = "FILE")]
    store_key: Option<PathBuf>,

    /// Clients' keys stand in Redis as they are, for all to read who can read there
    #[arg(long, env = "TOLLBAR_STORE_RAW_KEYS", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false, value_name = "BOOL",
          action = clap::ArgAction::Set)]
    store_raw_keys: bool,

    /// Keeps counters in Redis apart from those of other namespaces
    #[arg(long, env = "TOLLBAR_STORE_NAMESPACE", value_name = "NAME")]
    store_namespace: Option<String>,

    /// How long Redis may take for a check, before rules say what to answer without it
    #[arg(long, env = "TOLLBAR_STORE_DEADLINE", value_name = "TIME", default_value = "25ms")]
    store_deadline: DurationFlag,

    /// Whether hot keys of rules with an accuracy are paid from tokens borrowed from Redis: on, off, or auto, which is
    /// on while every daemon of --database knows loans, and off without one
    #[arg(long, env = "TOLLBAR_LOANS", value_name = "MODE", default_value = "auto", value_enum)]
    loans: LoansMode,

    #[command(flatten)]
    memory: MemoryFlags,

    #[command(flatten)]
    pub snapshot: SnapshotFlags,
}

/// What a probe of the store has found.
#[derive(Debug, Default)]
pub struct StoreProbe {
    /// What is wrong with its servers.
    pub faults: Vec<StoreFault>,
    /// What kept the probe from its end. It may be no fault, such as a deadline that was missed.
    pub error: Option<RedisStoreError>,
}

/// What is written behind `--store`.
#[derive(Clone, PartialEq, Eq)]
enum StoreAddress {
    Memory,
    Server(String),
    Cluster(Vec<String>),
    Sentinels { urls: Vec<String>, master: String },
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "this is no store: write memory, redis://HOST[:PORT][/DATABASE] (rediss:// for TLS), unix:///PATH, \
     redis+cluster://HOST,HOST or redis+sentinel://HOST,HOST/MASTER[/DATABASE]"
)]
pub(crate) struct StoreAddressError;

/// Why there is no store.
#[derive(Debug, Error)]
pub enum StoreFlagsError {
    #[error(
        "--store: Redis is read by many, and keys name your clients: add --store-secret-file FILE \
         (`openssl rand -hex 32` makes one, the same for the whole fleet), or --store-raw-keys"
    )]
    NoSecret,
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(
        "--store-cert and --store-key go together: name the certificate in the one and its key in the \
         other"
    )]
    HalfCertificate,
    #[error("--store-namespace: `{0}` is no namespace: write 1 to 32 letters, digits, `-` or `_`")]
    Namespace(String),
    #[error("--store: {}", with_source(.0))]
    Redis(#[from] RedisStoreError),
    #[error("cannot set up threads: {0}")]
    Runtime(io::Error),
    #[error("--snapshot: {}: {}{}", path.display(), snapshot_error_text(source), advice(source, *is_required))]
    Snapshot { path: PathBuf, source: SnapshotError, is_required: bool },
}

/// What to do about a snapshot that the daemon does not start without.
fn advice(error: &SnapshotError, is_required: bool) -> &'static str {
    match error {
        SnapshotError::Missing { .. }
        | SnapshotError::Corrupt { .. }
        | SnapshotError::NotASnapshot
            if is_required =>
        {
            "; leave --snapshot-required out to start with fresh counters, as on a first start"
        }
        _ => "",
    }
}

fn with_source(error: &RedisStoreError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

impl StoreFlags {
    /// True where counters are in this process.
    pub fn is_memory(&self) -> bool {
        self.store == StoreAddress::Memory
    }

    /// Says whether there can be such a store. Reads no counters and asks nobody.
    pub fn check(&self) -> Result<(), StoreFlagsError> {
        let Some(redis) = self.redis()? else {
            return Ok(());
        };
        // The store makes its connections on a runtime. This one ends before it makes any.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(StoreFlagsError::Runtime)?;
        let _on_runtime = runtime.enter();
        redis.connect_in_background()?;
        Ok(())
    }

    /// Where counters are: `memory`, `redis` or `redis:NAMESPACE`. Names no server: one has several names.
    pub fn counting_place(&self) -> String {
        match (&self.store, &self.store_namespace) {
            (StoreAddress::Memory, _) => "memory".to_owned(),
            (_, None) => "redis".to_owned(),
            (_, Some(namespace)) => format!("redis:{namespace}"),
        }
    }

    /// Writes, reads and expires a key at every server of the store, and returns what is wrong with them.
    pub fn probe(&self) -> Result<StoreProbe, StoreFlagsError> {
        let Some(redis) = self.redis()? else {
            return Ok(StoreProbe::default());
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(StoreFlagsError::Runtime)?.block_on(async {
            let deadline = self.store_deadline.0.max(PROBE_DEADLINE_MIN);
            let store = redis.timeout(deadline).connect_in_background()?;
            let error = store.probe().await.err();
            Ok(StoreProbe { faults: store.faults(), error })
        })
    }

    /// The store in Redis in the making; `None` where counters are in memory.
    fn redis(&self) -> Result<Option<RedisStoreBuilder>, StoreFlagsError> {
        if self.is_memory() {
            return Ok(None);
        }
        let key_names = self.key_names()?;
        let builder = match &self.store {
            StoreAddress::Memory => return Ok(None),
            StoreAddress::Server(url) => RedisStore::builder(url, key_names),
            StoreAddress::Cluster(urls) => {
                let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
                RedisStore::cluster_builder(&urls, key_names)
            }
            StoreAddress::Sentinels { urls, master } => {
                let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
                RedisStore::sentinel_builder(&urls, master, key_names)
            }
        };
        let builder = builder.timeout(self.store_deadline.0);
        let builder = match self.tls()? {
            Some(tls) => builder.tls(tls),
            None => builder,
        };
        Ok(Some(match &self.store_namespace {
            None => builder,
            Some(name) if is_namespace(name) => builder.namespace(name),
            Some(name) => return Err(StoreFlagsError::Namespace(name.clone())),
        }))
    }

    /// The store. A Redis that is not there yet is waited for in the background: until then rules
    /// say what to answer. Needs a runtime.
    pub fn open(&self) -> Result<Counters, StoreFlagsError> {
        if let Some(redis) = self.redis()? {
            let store = Arc::new(redis.connect_in_background()?);
            let loans = Loans::new(Arc::clone(&store) as _, self.loans);
            return Ok(Counters::Redis(store, Arc::new(loans)));
        }
        let restored = self.snapshot.restore(|| self.memory.builder());
        let store = restored.map_err(|source| {
            let path = self.snapshot.snapshot.clone().unwrap_or_default();
            let is_required = self.snapshot.snapshot_required;
            StoreFlagsError::Snapshot { path, source, is_required }
        })?;
        Ok(Counters::Memory(Arc::new(store)))
    }

    /// Whom to trust and what to show over TLS, where that is not the default.
    fn tls(&self) -> Result<Option<Tls>, StoreFlagsError> {
        let Self { store_ca, store_cert, store_key, .. } = self;
        let tls = match store_ca {
            Some(path) => Tls::new().ca_file(path)?,
            None => Tls::new(),
        };
        match (store_cert, store_key) {
            (Some(cert), Some(key)) => {
                let tls = tls.client_files(cert, key)?;
                // After the key was found in the file: a certificate given by mistake is public.
                if Pem::read(key).is_ok_and(|pem| pem.is_readable_by_others()) {
                    files::warn_of_readers(key);
                }
                Ok(Some(tls))
            }
            (None, None) => Ok(store_ca.is_some().then_some(tls)),
            _ => Err(StoreFlagsError::HalfCertificate),
        }
    }

    fn key_names(&self) -> Result<KeyNames, StoreFlagsError> {
        let Some(path) = &self.store_secret_file else {
            return if self.store_raw_keys {
                Ok(KeyNames::Raw)
            } else {
                Err(StoreFlagsError::NoSecret)
            };
        };
        Ok(KeyNames::Hashed(FleetSecret::new(secret::read("--store-secret-file", path)?)))
    }
}

/// What can be part of a name in Redis and of a slot's tag.
fn is_namespace(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=32).contains(&name.len()) && name.chars().all(is_plain)
}

impl FromStr for StoreAddress {
    type Err = StoreAddressError;

    fn from_str(text: &str) -> Result<Self, StoreAddressError> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        let (scheme, rest) = text.split_once("://").ok_or(StoreAddressError)?;
        if rest.is_empty() {
            return Err(StoreAddressError);
        }
        match scheme {
            "redis" | "rediss" => Ok(Self::Server(text.to_owned())),
            "unix" | "redis+unix" => Ok(Self::Server(format!("redis+unix://{rest}"))),
            "redis+cluster" => Ok(Self::Cluster(urls("redis", rest, "")?)),
            "rediss+cluster" => Ok(Self::Cluster(urls("rediss", rest, "")?)),
            "redis+sentinel" | "rediss+sentinel" => {
                let (hosts, master) = rest.split_once('/').ok_or(StoreAddressError)?;
                let (master, database) = match master.split_once('/') {
                    Some((master, database)) => (master, format!("/{database}")),
                    None => (master, String::new()),
                };
                if master.is_empty() {
                    return Err(StoreAddressError);
                }
                let scheme = scheme.trim_end_matches("+sentinel");
                let urls = urls(scheme, hosts, &database)?;
                Ok(Self::Sentinels { urls, master: master.to_owned() })
            }
            _ => Err(StoreAddressError),
        }
    }
}

/// A URL for each of the hosts, all with the user and the password that stand before the first.
fn urls(scheme: &str, hosts: &str, database: &str) -> Result<Vec<String>, StoreAddressError> {
    let (user, hosts) = match hosts.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), hosts),
    };
    let hosts = hosts.split(',').map(|host| {
        let is_host = !host.is_empty() && !host.contains('/');
        is_host.then(|| format!("{scheme}://{user}{host}{database}")).ok_or(StoreAddressError)
    });
    hosts.collect()
}

/// Without passwords.
impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &str| match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://..@{host}"),
            _ => url.to_owned(),
        };
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Server(url) => f.write_str(&shown(url)),
            Self::Cluster(urls) => {
                write!(
                    f,
                    "cluster of {}",
                    urls.iter().map(|url| shown(url)).collect::<Vec<_>>().join(", ")
                )
            }
            Self::Sentinels { urls, master } => {
                let urls: Vec<_> = urls.iter().map(|url| shown(url)).collect();
                write!(f, "{master} by sentinels {}", urls.join(", "))
            }
        }
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StoreFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[cfg(test)]
mod tests;
