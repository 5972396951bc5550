//! What `tollbar serve` is told about Envoy.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

use super::config_file::FileOptions;

/// The flags of Envoy's protocol.
#[derive(Debug, Clone, Args)]
pub struct EnvoyFlags {
    /// The limits of Envoy's reference service: its YAML, a file or a directory, put in force
    /// again when it changes and on SIGHUP. Rules that are given apply besides, to all domains
    #[arg(long, env = "TOLLBAR_ENVOY_CONFIG", value_name = "PATH")]
    pub envoy_config: Option<PathBuf>,

    /// Merges files of --envoy-config that have one domain, as the reference service does on request. Without it a
    /// second file of a domain is an error
    #[arg(long, env = "TOLLBAR_ENVOY_MERGE_DOMAINS", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false, value_name = "BOOL",
          action = ArgAction::Set)]
    pub(crate) envoy_merge_domains: bool,

    /// How the descriptors of one call are charged: each by itself, denied hits too, or all or none
    #[arg(long, env = "TOLLBAR_ENVOY_CHARGE", value_name = "HOW", default_value = "independent")]
    pub(crate) envoy_charge: ChargeBy,

    /// Sends the call back as dynamic metadata, and the `metadata` of limits that are not exceeded, for other filters and
    /// logs of Envoy
    #[arg(long, env = "TOLLBAR_ENVOY_METADATA", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value_t = false, value_name = "BOOL",
          action = ArgAction::Set)]
    pub(crate) envoy_metadata: bool,
}

impl EnvoyFlags {
    pub(super) fn file_options(&self) -> FileOptions {
        let (merges_domains, sends_metadata) = (self.envoy_merge_domains, self.envoy_metadata);
        FileOptions { merges_domains, sends_metadata }
    }
}

/// How the descriptors of one call are charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChargeBy {
    /// Each by itself, as the reference does.
    Independent,
    /// All, or none where one is denied.
    AllOrNone,
}
