//! The flag of the admin API.

use clap::Args;

use crate::endpoint::Endpoint;

/// Where the admin API listens.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Admin API")]
pub(crate) struct AdminFlags {
    /// Where to listen for the admin API, which needs --database: an address and a port (0 takes any
    /// free one), unix:PATH, or off
    #[arg(long, env = "TOLLBAR_ADMIN", value_name = "ENDPOINT", default_value = "127.0.0.1:8082")]
    admin: Endpoint,
}

impl AdminFlags {
    /// Where it listens: nowhere without a database.
    pub(crate) fn endpoint(&self, has_database: bool) -> Endpoint {
        if has_database { self.admin.clone() } else { Endpoint::Off }
    }
}
