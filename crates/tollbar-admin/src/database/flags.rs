//! The flags of the database: where it is, and where its rules are kept for a start without it.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;

use super::DatabaseLocation;
use crate::database::sync::cache::Cache;

/// What the daemon is told of its database.
#[derive(Debug, Clone, Args)]
pub struct DatabaseFlags {
    /// Rules that are changed while the daemon serves, tokens, the audit and usage: a file of SQLite such
    /// as rules.sqlite, or `postgres://USER@HOST/DATABASE`, which a fleet shares. The rules of --rules stay
    /// in force beside them
    #[arg(long, env = "TOLLBAR_DATABASE", value_name = "DATABASE", hide_env_values = true)]
    pub database: Option<DatabaseLocation>,

    /// Keeps the last rules of the database in this file, for a start while it does not answer; off keeps
    /// none. By default beside a file of SQLite, else in the directory for state
    #[arg(long, env = "TOLLBAR_RULES_CACHE", value_name = "FILE")]
    pub(crate) rules_cache: Option<PathBuf>,
}

impl DatabaseFlags {
    /// Where the rules of the database are kept, if they are.
    pub fn cache(&self) -> Option<Cache> {
        let location = self.database.as_ref()?;
        match &self.rules_cache {
            Some(path) if path == Path::new("off") => None,
            Some(path) => Some(Cache::new(path, location)),
            None => Some(Cache::new(&with_end(&self.state_path()?, ".cache"), location)),
        }
    }

    /// The file beside which this node keeps what it has to know of the database: the database itself,
    /// the cache that is named, or one in the directory for state, where that can be made.
    pub fn state_path(&self) -> Option<PathBuf> {
        let location = self.database.as_ref()?;
        let path = match (location, &self.rules_cache) {
            (DatabaseLocation::Sqlite(path), _) => path.clone(),
            (DatabaseLocation::Postgres(_), Some(path)) if path != Path::new("off") => path.clone(),
            (DatabaseLocation::Postgres(_), _) => state_directory()?.join("database"),
        };
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let is_there = directory.is_none_or(|directory| match location {
            // Whoever opens the file tells of it better.
            DatabaseLocation::Sqlite(_) => directory.is_dir(),
            DatabaseLocation::Postgres(_) => std::fs::create_dir_all(directory).is_ok(),
        });
        is_there.then_some(path)
    }
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

/// Where systemd says, else where the desktop's rules say.
fn state_directory() -> Option<PathBuf> {
    let given = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The first, where systemd names several.
    let of_systemd = env::var("STATE_DIRECTORY").ok().and_then(|directories| {
        directories.split(':').next().filter(|first| !first.is_empty()).map(PathBuf::from)
    });
    of_systemd
        .or_else(|| Some(given("XDG_STATE_HOME")?.join("tollbar")))
        .or_else(|| Some(given("HOME")?.join(".local/state/tollbar")))
}
