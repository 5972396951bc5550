//! The file behind `--config`: what flags say, in YAML.
//!
//! It knows no setting by name. What a field may say is what the flag of its name takes, and it becomes
//! that flag's default: so a flag or a variable goes before it, and a new flag is a new field.
//!
//! `tls: { cert: a.pem }` and `tls_cert: a.pem` are the same.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use tollbar_daemon::files;
use tollbar_rules::FileError;
use tollbar_rules::yaml::{self, Field, Position, Reader, Value, nearest};

/// What a command line says about itself, and not about the daemon.
const NO_FIELDS: [&str; 4] = ["config", "check_config", "help", "version"];

const WHAT: &str = "the names of flags and what they take, such as `listen: 127.0.0.1:8080`";

/// A file that was read: what it says, and where.
pub(crate) struct ConfigFile {
    path: PathBuf,
    /// What it says that can be used.
    defaults: Vec<FlagDefault>,
    /// Everything else.
    pub(crate) error: Option<FileError>,
}

impl ConfigFile {
    /// Reads what the file says to the flags of `command`.
    pub(crate) fn read(command: &Command, path: &Path) -> Self {
        let arguments = arguments(command);
        let mut settings = ConfigReader { arguments: &arguments, defaults: BTreeMap::new() };
        let read = |reader: &mut Reader, top: &Field<'_>| settings.read(reader, top, "");
        let error = match files::check_config_file(path) {
            Ok(()) => yaml::read_file(path, WHAT, read).err(),
            Err(error) => {
                let file = path.display().to_string();
                Some(FileError::Read { file, source: Arc::new(error) })
            }
        };
        let defaults = settings.defaults.into_values().collect();
        Self { path: path.to_owned(), defaults, error }
    }

    /// `command`, whose flags have what the file says as their defaults.
    pub(crate) fn apply(&self, command: Command) -> Command {
        self.defaults.iter().fold(command, |command, FlagDefault { id, values, .. }| {
            let values = values.clone();
            command.mut_arg(id, |argument| argument.default_values(values))
        })
    }

    /// Where the file says something to the flag of this id: its name and the line.
    pub(crate) fn place_of(&self, id: &str) -> Option<String> {
        let default = self.defaults.iter().find(|default| default.id == id)?;
        Some(format!("{}:{}", self.path.display(), default.at.line))
    }
}

/// Flags by the names of their fields.
pub(super) fn arguments(command: &Command) -> BTreeMap<String, &Arg> {
    let named = command
        .get_arguments()
        .filter_map(|argument| Some((argument.get_long()?.replace('-', "_"), argument)));
    named.filter(|(name, _)| !NO_FIELDS.contains(&name.as_str())).collect()
}

/// A value from the file, which becomes the default of its flag.
struct FlagDefault {
    id: String,
    at: Position,
    values: Vec<String>,
}

struct ConfigReader<'a> {
    arguments: &'a BTreeMap<String, &'a Arg>,
    defaults: BTreeMap<String, FlagDefault>,
}

impl ConfigReader<'_> {
    /// Reads a mapping whose fields' names begin with `prefix`.
    fn read(&mut self, reader: &mut Reader, mapping: &Field<'_>, prefix: &str) -> Option<()> {
        for (key, field) in reader.fields(mapping, WHAT)?.rest() {
            let name = format!("{prefix}{}", key.text);
            let group = format!("{name}_");
            let is_group =
                self.arguments.keys().any(|argument_name| argument_name.starts_with(&group));
            match self.arguments.get(&name) {
                _ if is_group && matches!(field.node.value, Value::Map(_)) => {
                    self.read(reader, &field, &group)?;
                }
                Some(argument) => self.add_default(reader, &field, &name, argument),
                None => {
                    let meant = nearest(&name, self.arguments.keys().map(String::as_str));
                    let advice = match meant {
                        Some(meant) => format!("did you mean `{meant}`?"),
                        None => {
                            "the names are those of the flags; see `tollbar serve --help`".into()
                        }
                    };
                    let message = format!("there is no such setting: {advice}");
                    reader.error(key.at, &field.path, message);
                }
            }
        }
        Some(())
    }

    fn add_default(&mut self, reader: &mut Reader, field: &Field<'_>, name: &str, argument: &Arg) {
        let takes_many = matches!(argument.get_action(), ArgAction::Append);
        let items = if takes_many { field.one_or_many() } else { vec![field.clone()] };
        let mut values = Vec::new();
        for item in items {
            let Some(text) = reader.text(&item, "a single value") else { return };
            if let Some(refusal) = refusal(argument, text) {
                return reader.refuse(&item, refusal);
            }
            values.push(text.to_owned());
        }
        let (id, at) = (argument.get_id().to_string(), field.node.at);
        if let Some(FlagDefault { at: Position { line, .. }, .. }) = self.defaults.get(name) {
            return reader.refuse(field, format!("line {line} says this already: write it once"));
        }
        self.defaults.insert(name.to_owned(), FlagDefault { id, at, values });
    }
}

/// What the flag itself would say to this value, if it does not take it.
fn refusal(argument: &Arg, value: &str) -> Option<String> {
    let probe = Command::new("probe").no_binary_name(true).arg(argument.clone());
    let flag = format!("--{}={value}", argument.get_long()?);
    let error = probe.try_get_matches_from([flag]).err()?;
    Some(match (error.kind(), error.source()) {
        (ErrorKind::ValueValidation, Some(source)) => source.to_string(),
        // Of a flag that does not repeat its value, which may be a secret.
        (ErrorKind::ValueValidation, None) => {
            let message = error.to_string();
            message.trim_start_matches("error: ").trim_end().to_owned()
        }
        _ => match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(valid)) => format!("write one of {}", valid.join(", ")),
            _ => "this is no value for it; see `tollbar serve --help`".to_owned(),
        },
    })
}

#[cfg(test)]
mod tests;
