//! Which database: what is written behind `--database`. Passwords in it are never printed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::{StringValueParser, TypedValueParser, ValueParserFactory};
use clap::error::ErrorKind;
use clap::{Arg, Command};
use thiserror::Error;

/// Where the database is.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseLocation {
    /// A file of SQLite, made where it is not there.
    Sqlite(PathBuf),
    /// A database of PostgreSQL, by its URL.
    Postgres(String),
}

/// Not a database. Does not repeat what was written, which may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "this is no database: write a file such as rules.sqlite (.sqlite, .sqlite3 or .db), sqlite://PATH, \
     or postgres://USER@HOST[:PORT]/DATABASE[?sslmode=verify-full]"
)]
pub struct DatabaseLocationError;

impl FromStr for DatabaseLocation {
    type Err = DatabaseLocationError;

    fn from_str(text: &str) -> Result<Self, DatabaseLocationError> {
        let file = |path: &str| {
            let is_path = !path.is_empty() && !path.contains(['?', '#', '\0']);
            is_path.then(|| Self::Sqlite(path.into())).ok_or(DatabaseLocationError)
        };
        match text.split_once("://") {
            Some(("sqlite", path)) => file(path),
            Some(("postgres" | "postgresql", rest)) if !rest.is_empty() => {
                Ok(Self::Postgres(text.to_owned()))
            }
            Some(_) => Err(DatabaseLocationError),
            None => {
                let extension =
                    Path::new(text).extension().and_then(|extension| extension.to_str());
                let is_file = matches!(extension, Some("sqlite" | "sqlite3" | "db"));
                if is_file { file(text) } else { Err(DatabaseLocationError) }
            }
        }
    }
}

/// As a flag: one that is none is not repeated, as others are.
#[derive(Debug, Clone, Copy)]
pub struct DatabaseLocationParser;

impl ValueParserFactory for DatabaseLocation {
    type Parser = DatabaseLocationParser;

    fn value_parser() -> DatabaseLocationParser {
        DatabaseLocationParser
    }
}

impl TypedValueParser for DatabaseLocationParser {
    type Value = DatabaseLocation;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<DatabaseLocation, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, argument, value)?;
        text.parse().map_err(|error: DatabaseLocationError| {
            let flag = argument.and_then(Arg::get_long).unwrap_or("database");
            clap::Error::raw(ErrorKind::ValueValidation, format!("--{flag}: {error}\n"))
        })
    }
}

/// Without passwords.
impl fmt::Display for DatabaseLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "{}", path.display()),
            Self::Postgres(url) => {
                // What follows a question mark may hold a password too.
                let url = url.split(['?', '#']).next().unwrap_or_default();
                let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
                match rest.rsplit_once('@') {
                    Some((_, host)) => write!(f, "postgres://..@{host}"),
                    None => write!(f, "postgres://{rest}"),
                }
            }
        }
    }
}

impl fmt::Debug for DatabaseLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_file_or_a_url() {
        let table = [
            ("rules.sqlite", Some("rules.sqlite")),
            ("/var/lib/tollbar/rules.db", Some("/var/lib/tollbar/rules.db")),
            ("sqlite://rules", Some("rules")),
            ("sqlite:///var/rules.sqlite3", Some("/var/rules.sqlite3")),
            ("postgres://db.internal/limits", Some("postgres://db.internal/limits")),
            ("postgresql://a:secret@db/limits?password=secret", Some("postgres://..@db/limits")),
            ("postgres:///limits?host=/run&user=secret", Some("postgres:///limits")),
            ("postgres://a:sec@ret@db:5432/x", Some("postgres://..@db:5432/x")),
            ("postgres://a:secret@", Some("postgres://..@")),
            ("postgres://", None),
            ("sqlite://", None),
            ("sqlite://a.db?mode=ro", None),
            ("mysql://db/limits", None),
            ("rules", None),
            ("rules.yaml", None),
            (".sqlite", None),
            ("", None),
        ];
        for (text, shown) in table {
            let place = text.parse::<DatabaseLocation>();
            assert_eq!(place.as_ref().ok().map(ToString::to_string).as_deref(), shown, "{text}");
            assert!(!format!("{place:?}").contains("sec"), "{place:?}");
        }
    }
}
