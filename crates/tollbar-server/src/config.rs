//! What `tollbar serve` is told: by flags, or by the environment where a flag is absent.

use std::path::PathBuf;

use clap::Args;
use thiserror::Error;
use tollbar_rules::{FileError, RuleFile};

use crate::endpoint::Endpoint;
use crate::token::Token;

/// The flags of the daemon.
#[derive(Debug, Clone, Args)]
pub(crate) struct Config {
    /// Where to listen for HTTP: an address and a port (0 takes any free one), unix:PATH, or off
    #[arg(long, env = "TOLLBAR_LISTEN", value_name = "ENDPOINT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: Endpoint,

    /// The file of rules, read again on SIGHUP; without it, 5 requests per 10 s pass for each client
    #[arg(long, env = "TOLLBAR_RULES", value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,

    /// Keeps the counters in this file over a restart: read at the start, written every minute and
    /// at the end
    #[arg(long, env = "TOLLBAR_SNAPSHOT", value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,

    /// Takes only requests that bear the token in this file, but for /healthz and /readyz
    #[arg(long, env = "TOLLBAR_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Listens beyond loopback without a token
    #[arg(long)]
    pub(crate) insecure: bool,

    /// How many keys the store has room for, at 32 bytes each
    #[arg(long, env = "TOLLBAR_MAX_KEYS", value_name = "COUNT", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) max_keys: u64,

    /// How many connections are served at once; more wait to be accepted
    #[arg(long, env = "TOLLBAR_MAX_CONNECTIONS", value_name = "COUNT", default_value_t = 1_024,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_connections: u32,
}

/// What is wrong with what the daemon was told.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error(
        "{flag} {endpoint} is beyond loopback, where anybody could spend your clients' tokens: add \
         --token-file FILE, or --insecure if the network keeps strangers out"
    )]
    Exposed { flag: &'static str, endpoint: Endpoint },
    #[error("--token-file: cannot read {}: {source}", path.display())]
    TokenFile { path: PathBuf, source: std::io::Error },
    #[error(
        "--token-file: {} has no token of 16 to 1024 visible ASCII characters: write one line, such \
         as `openssl rand -hex 32` prints",
        path.display()
    )]
    Token { path: PathBuf },
    #[error("--rules: {}", told(.0))]
    Rules(#[from] FileError),
    #[error(
        "--rules: {}: rule `{rule}` limits what is in flight, and a client that dies would hold its \
         permit for good: write `lease: 30s`, after which one that is not renewed comes back",
        path.display()
    )]
    Permits { path: PathBuf, rule: String },
}

/// The errors of a file do not repeat their source; here it is the last word.
fn told(error: &FileError) -> String {
    match error {
        FileError::Read { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

/// The rules where no file is given.
const EXAMPLE_RULES: &str = "rules: [{ name: example, limit: 5/10s }]";

impl Config {
    /// The rules to be put in force, and how many warnings their file has.
    pub(crate) fn read_rules(&self) -> Result<RuleFile, ConfigError> {
        let Some(path) = &self.rules else {
            return Ok(RuleFile::parse("the built-in rules", EXAMPLE_RULES)?);
        };
        let file = RuleFile::read(path)?;
        match file.rules.rule_with_unleased_permits() {
            Some(rule) => {
                Err(ConfigError::Permits { path: path.clone(), rule: rule.name.to_string() })
            }
            None => Ok(file),
        }
    }

    /// Every place it listens on, by its flag.
    pub(crate) fn endpoints(&self) -> [(&'static str, &Endpoint); 1] {
        [("--listen", &self.listen)]
    }

    /// The token that requests must bear, where one is asked for.
    pub(crate) fn read_token(&self) -> Result<Option<Token>, ConfigError> {
        let Some(path) = &self.token_file else {
            let exposed = self.endpoints().into_iter().find(|(_, it)| !it.is_local());
            return match exposed {
                Some((flag, endpoint)) if !self.insecure => {
                    Err(ConfigError::Exposed { flag, endpoint: endpoint.clone() })
                }
                _ => Ok(None),
            };
        };
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::TokenFile { path: path.clone(), source })?;
        let token = Token::parse(&text).ok_or_else(|| ConfigError::Token { path: path.clone() })?;
        Ok(Some(token))
    }
}
