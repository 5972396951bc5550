//! By what each option was given: a flag, a variable, or a line of the file.

use std::collections::BTreeMap;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::OPTIONS;
use crate::config::file::ConfigFile;

/// By what each option was given. Those that nobody gave are not in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources(BTreeMap<&'static str, OptionSource>);

#[derive(Debug, Clone)]
struct OptionSource {
    origin: Origin,
    /// `--insecure=false` and `--grpc off` give an option, and switch it off.
    is_off: bool,
}

#[derive(Debug, Clone)]
enum Origin {
    Flag,
    Variable,
    /// The file and the line.
    File(String),
}

impl Sources {
    pub(crate) fn new(matches: &ArgMatches, file: Option<&ConfigFile>) -> Self {
        let origin_of = |id: &str| match matches.value_source(id)? {
            ValueSource::CommandLine => Some(Origin::Flag),
            ValueSource::EnvVariable => Some(Origin::Variable),
            // The file says what would be the default otherwise.
            _ => file?.place_of(id).map(Origin::File),
        };
        let given = OPTIONS.iter().filter_map(|row| {
            let origin = origin_of(row.id)?;
            let mut values = matches.get_raw(row.id)?;
            let is_off = values.all(|value| value == "off" || value == "false");
            Some((row.id, OptionSource { origin, is_off }))
        });
        Self(given.collect())
    }

    /// True where an option was given, even to switch something off.
    pub(crate) fn is_given(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// True where an option was given and not switched off.
    pub(super) fn is_on(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(|source| !source.is_off)
    }

    pub(super) fn is_in_file(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(|source| matches!(source.origin, Origin::File(_)))
    }

    /// True where a flag or a variable gave the option, whatever the file says.
    pub(super) fn goes_before_the_file(&self, id: &str) -> bool {
        let source = self.0.get(id);
        source.is_some_and(|source| !matches!(source.origin, Origin::File(_)))
    }

    /// The option as it was given: `--max-keys`, `TOLLBAR_MAX_KEYS` or `max_keys (config.yaml:3)`.
    pub(super) fn name_of(&self, id: &str) -> String {
        match self.0.get(id).map(|source| &source.origin) {
            None | Some(Origin::Flag) => flag(id),
            Some(Origin::Variable) => format!("TOLLBAR_{}", id.to_uppercase()),
            Some(Origin::File(place)) => format!("{id} ({place})"),
        }
    }
}

/// The flag of an option: `--max-keys`.
pub(super) fn flag(id: &str) -> String {
    format!("--{}", id.replace('_', "-"))
}
