//! What `tollbar serve` is told: by flags; where a flag is absent, by the environment; where that is
//! silent too, by the [`file`]. Where each option has an effect is in the table of [`options`].

pub(crate) mod file;
pub(crate) mod options;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgAction, Args};
use thiserror::Error;
use tollbar::Timestamp;
use tollbar_rules::{FileError, OnOutage, Rule, RuleAccuracy, RuleFile, RuleSet, RuleSetError};
use tracing::warn;

use tollbar_admin::database::flags::DatabaseFlags;
use tollbar_admin::operations::AdminFlags;
use tollbar_admin::usage::MeteringFlags;
use tollbar_daemon::count_flag::count;
use tollbar_daemon::files::secret::{self, SecretError};
use tollbar_daemon::files::{self, file_error_text};
use tollbar_daemon::header_flags::HeaderFlags;
use tollbar_daemon::net::Bounds;
use tollbar_daemon::net::endpoint::Endpoint;
use tollbar_daemon::net::open_files::{self, TooFewFiles};
use tollbar_daemon::net::tls::{Tls, TlsError, TlsFlags};
use tollbar_daemon::protocol::envoy::{self, EnvoyFlags};
use tollbar_daemon::protocol::forward_auth::{ProxyFlags, ProxyFlagsError};
use tollbar_daemon::protocol::http::AllowedHost;
use tollbar_daemon::protocol::proxy::{GatewayFlags, GatewayFlagsError};
use tollbar_daemon::store::{StoreFlags, StoreFlagsError};
use tollbar_daemon::telemetry::{DenialFlags, LogFlags, TraceFlags};
use tollbar_daemon::token::Tokens;
use tollbar_daemon::wait_flags::WaitFlags;

use options::{OptionError, Sources};

/// The flags of the daemon.
#[derive(Debug, Clone, Args)]
pub(crate) struct Config {
    /// HTTP listen address, such as 127.0.0.1:8080 (port 0 picks a free port), unix:PATH, or off; with --upstream it is off
    /// unless it is given
    #[arg(long, env = "TOLLBAR_LISTEN", value_name = "ENDPOINT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: Endpoint,

    /// Names under which clients may ask --listen on loopback, besides localhost and addresses of loopback
    #[arg(long, env = "TOLLBAR_ALLOWED_HOSTS", value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<AllowedHost>,

    /// gRPC listen address: an endpoint as above; with --upstream it is off unless it is given
    #[arg(long, env = "TOLLBAR_GRPC", value_name = "ENDPOINT", default_value = "127.0.0.1:8081")]
    pub(crate) grpc: Endpoint,

    /// Listen address of the Redis protocol, CL.THROTTLE of redis-cell included: an endpoint as above; with --upstream it is
    /// off unless it is given
    #[arg(long, env = "TOLLBAR_RESP", value_name = "ENDPOINT", default_value = "127.0.0.1:6380")]
    pub(crate) resp: Endpoint,

    /// Where /healthz and /readyz are answered while clients hold all connections of the other listeners: an endpoint as
    /// above, without TLS and tokens
    #[arg(long, env = "TOLLBAR_HEALTH", value_name = "ENDPOINT", default_value = "off")]
    pub(crate) health: Endpoint,

    /// The file of rules, put in force again when it changes and on SIGHUP; without it, 5 requests per
    /// 10 s pass for each client
    #[arg(long, env = "TOLLBAR_RULES", value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,

    /// Looks at the files of rules on SIGHUP only
    #[arg(long, env = "TOLLBAR_NO_WATCH", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false, value_name = "BOOL",
          action = ArgAction::Set)]
    pub(crate) no_watch: bool,

    #[command(flatten)]
    pub(crate) store: StoreFlags,

    /// The secret under which receipts and leases are given out: 64 hexadecimal digits. Daemons over
    /// one Redis that have the same one take each other's, and one with a snapshot its own after a
    /// restart; without it, it is another at each start
    #[arg(long, env = "TOLLBAR_RECEIPT_SECRET_FILE", value_name = "FILE")]
    pub(crate) receipt_secret_file: Option<PathBuf>,

    /// How often a request with an id is answered again for one charge, up to 255 times. After that it is
    /// charged again
    #[arg(long, env = "TOLLBAR_REQUEST_ID_REPLAYS", value_name = "COUNT", default_value_t = 8,
          value_parser = count::<u8>(0..=u8::MAX.into()))]
    pub(crate) request_id_replays: u8,

    /// Takes only requests that bear a token in this file, one a line, but for /healthz and /readyz;
    /// read again on SIGHUP
    #[arg(long, env = "TOLLBAR_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) tls: TlsFlags,

    /// Listens beyond loopback without asking who is there
    #[arg(long, env = "TOLLBAR_INSECURE", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false, value_name = "BOOL",
          action = ArgAction::Set)]
    pub(crate) insecure: bool,

    #[command(flatten)]
    pub(crate) bounds: Bounds,

    #[command(flatten)]
    pub(crate) waits: WaitFlags,

    #[command(flatten)]
    pub(crate) headers: HeaderFlags,

    #[command(flatten)]
    pub(crate) envoy: EnvoyFlags,

    #[command(flatten)]
    pub(crate) proxies: ProxyFlags,

    #[command(flatten)]
    pub(crate) gateway: GatewayFlags,

    #[command(flatten)]
    pub(crate) database: DatabaseFlags,

    #[command(flatten)]
    pub(crate) admin: AdminFlags,

    #[command(flatten)]
    pub(crate) metering: MeteringFlags,

    #[command(flatten)]
    pub(crate) log: LogFlags,

    #[command(flatten)]
    pub(crate) denials: DenialFlags,

    #[command(flatten)]
    pub(crate) traces: TraceFlags,

    /// Reads what no flag and no variable says from this file: the same names, in YAML
    #[arg(id = "config", long = "config", env = "TOLLBAR_CONFIG", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// By what each option was given.
    #[arg(skip)]
    pub(crate) sources: Sources,

    /// What of the command line and of the file of --config cannot be used. Such options are at their defaults.
    #[arg(skip)]
    pub(crate) unusable: Vec<Unusable>,
}

/// Options that cannot be used.
#[derive(Debug, Clone, Error)]
pub(crate) enum Unusable {
    #[error("{0}")]
    Flag(String),
    #[error("--config: {}", file_error_text(.0))]
    File(FileError),
}

/// Everything that is wrong with what the daemon was told, one a line.
#[derive(Debug, Default)]
pub(crate) struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Takes what was read, or notes why it cannot be used.
    pub(crate) fn take<T>(&mut self, read: Result<T, impl Into<ConfigError>>) -> Option<T> {
        read.map_err(|error| self.0.push(error.into())).ok()
    }

    pub(crate) fn extend(&mut self, errors: impl IntoIterator<Item = impl Into<ConfigError>>) {
        self.0.extend(errors.into_iter().map(Into::into));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the flags of the store are among the errors, so that it cannot be looked at.
    pub(crate) fn has_store(&self) -> bool {
        self.0.iter().any(|error| matches!(error, ConfigError::Store(_)))
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("\n"))
    }
}

/// What is wrong with what the daemon was told.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    Unusable(#[from] Unusable),
    #[error(
        "{flag} {endpoint} is beyond loopback, where anybody could spend your clients' tokens: add \
         --token-file FILE or --tls-client-ca FILE, or --insecure if the network keeps strangers out"
    )]
    Exposed { flag: &'static str, endpoint: Endpoint },
    #[error(
        "--allowed-hosts has no effect on --listen {endpoint}, which takes every name: leave it out, or listen on an \
         address of loopback"
    )]
    AllowedHosts { endpoint: Endpoint },
    #[error(
        "--admin {endpoint} is beyond loopback, where tokens could be read on their way: add --tls-cert \
         FILE and --tls-key FILE, or --insecure if the network keeps strangers out"
    )]
    AdminExposed { endpoint: Endpoint },
    #[error("--token-file: cannot read {}: {source}", path.display())]
    TokenFile { path: PathBuf, source: std::io::Error },
    #[error(
        "--token-file: {} holds no tokens of 16 to 1024 visible ASCII characters: write one a line, at \
         most 256, such as `openssl rand -hex 32` prints",
        path.display()
    )]
    Token { path: PathBuf },
    #[error("--rules: {}", file_error_text(.0))]
    Rules(#[from] FileError),
    #[error("--rules: {0}")]
    Unsupported(#[from] RuleSetError),
    #[error("--envoy-config: {}", file_error_text(.0))]
    Envoy(#[source] FileError),
    #[error(
        "--rules: {}: rule `{rule}` limits what is in flight, and a client that dies would hold its \
         permit for good: write `lease: 30s`, after which one that is not renewed comes back",
        path.display()
    )]
    Permits { path: PathBuf, rule: String },
    #[error(transparent)]
    Proxies(#[from] ProxyFlagsError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Store(#[from] StoreFlagsError),
    #[error(transparent)]
    Gateway(#[from] GatewayFlagsError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    OpenFiles(#[from] TooFewFiles),
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error(
        "every listener is off, so that nothing could be asked: give one of --listen, --grpc, --resp, --upstream or \
         --database an endpoint"
    )]
    NothingListens,
}

/// Something that rules say and that has no effect.
#[derive(Debug)]
pub(crate) struct IdleField {
    pub(crate) why: &'static str,
    /// The names of the rules that say it.
    pub(crate) rules: Vec<Arc<str>>,
}

impl IdleField {
    /// Logs a warning, if there is such a rule.
    pub(crate) fn log(&self) {
        if !self.rules.is_empty() {
            warn!(rules = self.rules.join(" "), "{}", self.why);
        }
    }
}

/// The rules where no file is given.
const EXAMPLE_RULES: &str = "rules: [{ name: example, limit: 5/10s }]";

impl Config {
    /// Closes the listeners that nobody asked for, if there is a proxy. Its upstream may have the ports that are their
    /// defaults.
    pub(crate) fn close_unrequested_listeners(&mut self) {
        if self.gateway.endpoint() == Endpoint::Off {
            return;
        }
        let listeners =
            [("listen", &mut self.listen), ("grpc", &mut self.grpc), ("resp", &mut self.resp)];
        for (id, endpoint) in listeners {
            if !self.sources.is_given(id) {
                *endpoint = Endpoint::Off;
            }
        }
    }

    /// Every place it listens on, by its flag.
    pub(crate) fn endpoints(&self) -> [(&'static str, &Endpoint); 3] {
        [("--listen", &self.listen), ("--grpc", &self.grpc), ("--resp", &self.resp)]
    }

    /// Where the admin API listens.
    pub(crate) fn admin_endpoint(&self) -> Endpoint {
        self.admin.endpoint(self.database.database.is_some())
    }

    /// Returns what rules say that has no effect on this daemon, or none on calls of Envoy. No error: a file of rules
    /// may be shared with other daemons.
    pub(crate) fn idle_fields(&self, rules: &RuleSet) -> Vec<IdleField> {
        let names = |is_idle: fn(&Rule) -> bool| {
            let idle = rules.rules().iter().filter(|rule| rule.enabled && is_idle(rule));
            idle.map(|rule| Arc::clone(&rule.name)).collect()
        };
        let mut found = Vec::new();
        if self.store.is_memory() {
            found.push(IdleField {
                why: "`on_store_failure` has no effect over --store memory, which has no outages",
                rules: names(|rule| rule.on_store_failure != OnOutage::Allow),
            });
            let is_inexact = |rule: &Rule| rule.accuracy.unwrap_or_default() != RuleAccuracy::Exact;
            found.push(IdleField {
                why: "`accuracy` has no effect over --store memory, whose counters are exact",
                rules: names(is_inexact),
            });
        }
        if self.grpc != Endpoint::Off {
            let envoy = envoy::EnvoyConfig::new(&self.envoy, self.has_rules());
            let with_permits = envoy::rules_with_permits(envoy, rules);
            let has_queue = |rule: &Rule| {
                rule.all_limits().any(|limit| limit.policy().queue_length().is_some())
            };
            found.push(IdleField {
                why: "`queue` holds no request of Envoy: what it admits passes at once",
                rules: names(has_queue),
            });
            found.push(IdleField {
                why: "these limit what is in flight, and Envoy gives nothing back: such limits do not apply to its \
                      calls, and all others do",
                rules: with_permits.map(|rule| Arc::clone(&rule.name)).collect(),
            });
        }
        found
    }

    /// Returns true if rules are given, in whichever way: those in force are more than the example.
    pub(crate) fn has_rules(&self) -> bool {
        self.rules.is_some() || self.gateway.limit.is_some() || self.database.database.is_some()
    }

    /// The secret for receipts, where one is given.
    pub(crate) fn read_receipt_secret(&self) -> Result<Option<[u8; 32]>, ConfigError> {
        let path = self.receipt_secret_file.as_ref();
        Ok(path.map(|path| secret::read("--receipt-secret-file", path)).transpose()?)
    }

    /// The rules to be put in force, and what their writer should know.
    pub(crate) fn read_rules(&self) -> Result<RuleFile, ConfigError> {
        match (&self.rules, &self.gateway.limit) {
            // An example would stand in the way of the database's rules.
            (None, None) if self.database.database.is_some() => {
                Ok(RuleFile::parse("the built-in rules", "rules: []")?)
            }
            (None, None) => Ok(RuleFile::parse("the built-in rules", EXAMPLE_RULES)?),
            (None, Some(limit)) => {
                let rules = format!("rules: [{{ name: limit, limit: \"{limit}\" }}]");
                Ok(RuleFile::parse("--limit", &rules)?)
            }
            (Some(path), _) => self.check_usable(RuleFile::read(path)?),
        }
    }

    /// Rules that were read, unless the daemon cannot serve by them.
    pub(crate) fn check_usable(&self, file: RuleFile) -> Result<RuleFile, ConfigError> {
        match file.rules.rule_with_unleased_permits() {
            Some(rule) => Err(ConfigError::Permits {
                path: self.rules.clone().unwrap_or_default(),
                rule: rule.name.to_string(),
            }),
            None => Ok(file),
        }
    }

    /// The tokens that requests must bear one of, where one is asked for.
    pub(crate) fn read_tokens(&self) -> Result<Option<Arc<Tokens>>, ConfigError> {
        let Some(path) = &self.token_file else {
            return Ok(None);
        };
        let text = files::read_to_string(path)
            .map_err(|source| ConfigError::TokenFile { path: path.clone(), source })?;
        let tokens = Tokens::parse(&text);
        let tokens = tokens.ok_or_else(|| ConfigError::Token { path: path.clone() })?;
        Ok(Some(Arc::new(tokens)))
    }

    /// Refuses options that have no effect or exclude each other, and warns of those that a shared file gives.
    pub(crate) fn check_options(&self) -> Result<(), Vec<OptionError>> {
        for warning in options::check(self)? {
            warn!("{warning}");
        }
        Ok(())
    }

    /// Refuses a daemon that listens nowhere.
    pub(crate) fn check_listeners(&self) -> Result<(), ConfigError> {
        let (proxy, admin) = (self.gateway.endpoint(), self.admin_endpoint());
        let endpoints = self.endpoints().map(|(_, endpoint)| endpoint);
        if endpoints.into_iter().chain([&proxy, &admin]).all(|endpoint| *endpoint == Endpoint::Off)
        {
            return Err(ConfigError::NothingListens);
        }
        Ok(())
    }

    /// True if clients of the listener of this flag must show a token or a certificate.
    pub(crate) fn asks_who(&self, listener: &str) -> bool {
        self.token_file.is_some() || self.tls.authenticates(listener)
    }

    /// Reads the certificates of every listener.
    pub(crate) fn read_tls(&self, now: Timestamp) -> Result<Option<Tls>, ConfigError> {
        let (proxy, admin) = (self.gateway.endpoint(), self.admin_endpoint());
        let others = [("--proxy", &proxy), ("--admin", &admin)];
        let listeners: Vec<_> = self.endpoints().into_iter().chain(others).collect();
        Ok(Tls::read(&self.tls, &listeners, now)?)
    }

    /// Returns every listener that anybody could ask, unless it is said that this is meant.
    pub(crate) fn exposures(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        if !self.insecure {
            let is_exposed = |(flag, endpoint): &(&'static str, &Endpoint)| {
                !endpoint.is_local() && !self.asks_who(flag)
            };
            let exposed = self.endpoints().into_iter().filter(is_exposed);
            errors.extend(exposed.map(|(flag, endpoint)| {
                let endpoint = endpoint.clone();
                ConfigError::Exposed { flag, endpoint }
            }));
        }
        let is_loopback = self.listen.is_local() && matches!(self.listen, Endpoint::Tcp(_));
        if !self.allowed_hosts.is_empty() && !is_loopback {
            errors.push(ConfigError::AllowedHosts { endpoint: self.listen.clone() });
        }
        // The admin API always asks who is there; what is asked for must not be read on its way.
        let admin = self.admin_endpoint();
        if !admin.is_local() && !self.tls.is_given("--admin") && !self.insecure {
            errors.push(ConfigError::AdminExposed { endpoint: admin });
        }
        errors
    }

    /// Sees to it that there can be as many connections as are allowed.
    pub(crate) fn allow_open_files(&self) -> Result<(), ConfigError> {
        let (proxy, admin) = (self.gateway.endpoint(), self.admin_endpoint());
        let endpoints = self.endpoints().into_iter().map(|(_, endpoint)| endpoint);
        let endpoints = endpoints.chain([&proxy, &admin, &self.health]);
        let listeners = endpoints.filter(|endpoint| **endpoint != Endpoint::Off).count();
        let to_upstream = self.gateway.upstream_connections_max(self.bounds);
        Ok(open_files::raise_limit(self.bounds.max_connections, listeners, to_upstream)?)
    }
}
