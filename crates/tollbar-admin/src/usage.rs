//! Who has used how much, day by day: counted where the daemon answers, and written to the database
//! every so often. Without a database nothing is counted. Bills nobody.

pub(crate) mod format;
pub mod node;
pub(crate) mod totals;
pub mod writer;

use clap::Args;

use tollbar_daemon::count_flag::count;
use tollbar_daemon::duration_flag::DurationFlag;
use tollbar_daemon::usage::Tally;

/// How usage is counted.
#[derive(Debug, Clone, Args)]
pub struct MeteringFlags {
    /// What this daemon is called among those over one database; each has a name of its own. Without
    /// it, the host's name and a random part that is kept beside the database or its cache
    #[arg(long, env = "TOLLBAR_NODE", value_name = "NAME", value_parser = node::parse)]
    pub node: Option<String>,

    /// How often usage is written to the database: what a crash may lose
    #[arg(long, env = "TOLLBAR_USAGE_FLUSH", value_name = "TIME", default_value = "10s")]
    pub usage_flush: DurationFlag,

    /// How many accounts of a tenant, a subject and a rule are counted apart between two writes; who
    /// comes beyond that counts as `(other)`
    #[arg(long, env = "TOLLBAR_USAGE_ENTRIES", value_name = "COUNT", default_value_t = 100_000,
          value_parser = count::<u32>(1..=10_000_000))]
    pub(crate) usage_entries: u32,
}

impl MeteringFlags {
    /// Accounts with nothing in them.
    pub fn tally(&self) -> Tally {
        Tally::new(self.usage_entries as usize)
    }
}
