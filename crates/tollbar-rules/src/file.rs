//! Rules in a file: YAML in, a [`RuleSet`] or everything that is wrong with it out.
//!
//! A file is taken whole or not at all. What it looks like is in `docs/reference/rules.md`.

mod conditions;
mod limits;
pub(crate) mod node;
pub(crate) mod reader;
mod rule;
#[doc(hidden)]
pub mod yaml;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use node::Value;
use reader::{Field, Reader};

use crate::request::path::PathOptions;
use crate::rule::accuracy::NODES_MAX;
use crate::{Rule, RuleSet, RuleSetError};

#[cfg(feature = "admin")]
pub(crate) use conditions::route;
pub use node::Position;
pub use reader::Finding;

/// Rules that were read, and what their writer should know all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleFile {
    /// The rules.
    pub rules: RuleSet,
    /// What is allowed and probably not meant: the [warnings](Rule::warnings) of each rule and, under the
    /// field `rules`, why [nothing is limited](RuleSet::idle_reason).
    pub warnings: Vec<Finding>,
}

/// Why a file gave no rules.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// Its name.
        file: String,
        /// Why not.
        #[source]
        source: Arc<io::Error>,
    },
    /// It is no UTF-8.
    #[error("{file}:{line}: this is not UTF-8: save the file in that encoding")]
    Encoding {
        /// Its name.
        file: String,
        /// The line of the first byte that is not.
        line: usize,
    },
    /// The store cannot count some of its rules.
    #[error("{file}: {source}")]
    Unsupported {
        /// Its name.
        file: String,
        /// Which rules, and what to write instead.
        source: RuleSetError,
    },
    /// Some of what it says cannot be used.
    #[error("{}", FindingList { file, findings })]
    Findings {
        /// Its name.
        file: String,
        /// What is wrong, in the order of the file; at least one.
        findings: Vec<Finding>,
    },
}

impl RuleFile {
    /// The rules in `text`; `file` is its name in messages.
    ///
    /// ```
    /// use tollbar_rules::RuleFile;
    /// let error = RuleFile::parse("rules.yaml", "rules:\n  - { name: a, limits: 10/s }").unwrap_err();
    /// assert!(error.to_string().starts_with(
    ///     "rules.yaml:2:16: rules[0].limits: there is no field `limits` here: did you mean `limit`?"
    /// ));
    /// ```
    pub fn parse(file: &str, text: &str) -> Result<Self, FileError> {
        let (rules, warnings) = read_text(file, text, WHAT, read_document)?;
        Ok(Self { rules, warnings })
    }

    /// The rules in bytes that may be anything.
    pub fn parse_bytes(file: &str, bytes: &[u8]) -> Result<Self, FileError> {
        let (rules, warnings) = read_bytes(file, bytes, WHAT, read_document)?;
        Ok(Self { rules, warnings })
    }

    /// The rules in the file at `path`.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let file = path.display().to_string();
        let bytes = read_bounded(path)
            .map_err(|error| FileError::Read { file: file.clone(), source: Arc::new(error) })?;
        Self::parse_bytes(&file, &bytes)
    }
}

/// What a file of rules says.
const WHAT: &str = "`rules:` and a list of rules";

/// What `read` makes of a document in YAML, with what it warns of, or all that is wrong with it.
/// `file` is its name in messages, `what` what to write where there is nothing.
pub(crate) fn read_text<T>(
    file: &str,
    text: &str,
    what: &str,
    read: impl FnOnce(&mut Reader, &Field<'_>) -> Option<T>,
) -> Result<(T, Vec<Finding>), FileError> {
    let refuse = |findings| FileError::Findings { file: file.to_owned(), findings };
    let document = node::parse(text, what).map_err(|malformed| {
        let node::SyntaxError { at: position, message } = malformed;
        refuse(vec![Finding { position, field: String::new(), message }])
    })?;
    let mut reader = Reader::default();
    let top = Field { node: &document, path: String::new() };
    match read(&mut reader, &top) {
        Some(read) if reader.errors.is_empty() => {
            let mut warnings = reader.warnings;
            warnings.sort_by_key(|finding| finding.position);
            Ok((read, warnings))
        }
        _ => {
            reader.errors.sort_by_key(|finding| finding.position);
            Err(refuse(reader.errors))
        }
    }
}

/// As [`read_text`], of bytes that may be anything.
pub(crate) fn read_bytes<T>(
    file: &str,
    bytes: &[u8],
    what: &str,
    read: impl FnOnce(&mut Reader, &Field<'_>) -> Option<T>,
) -> Result<(T, Vec<Finding>), FileError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => read_text(file, text, what, read),
        Err(error) => {
            let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
            Err(FileError::Encoding { file: file.to_owned(), line })
        }
    }
}

/// At most one byte more than is allowed, by which [`RuleFile::parse`] knows that it is too much.
pub(crate) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    io::Read::read_to_end(&mut io::Read::take(file, node::FILE_BYTES_MAX as u64 + 1), &mut bytes)?;
    Ok(bytes)
}

/// Reads one rule in YAML, by itself or as the only one of a file; `file` is its name in messages.
///
/// # Errors
///
/// Everything that is wrong with it, each with its line and column.
#[cfg(feature = "admin")]
pub fn from_yaml(file: &str, text: &str) -> Result<Rule, FileError> {
    let read = |reader: &mut Reader, document: &Field<'_>| {
        let mut rule = document.clone();
        if let Value::Map(fields) = &document.node.value
            && let Some((_, rules)) = fields.iter().find(|(key, _)| &*key.text == "rules")
        {
            let rules = Field { node: rules, path: "rules".to_owned() };
            let Ok([only]) = <[Field<'_>; 1]>::try_from(rules.items()) else {
                reader.refuse(&rules, "this is no single rule: write one rule here");
                return None;
            };
            rule = only;
        }
        rule::read(reader, &rule).map(|(rule, _)| rule)
    };
    read_text(file, text, rule::RULE_WHAT, read).map(|(rule, _)| rule)
}

/// Reads one rule from the tree of a JSON object, in which other fields were read before; or returns
/// everything that is wrong with it.
#[cfg(feature = "admin")]
pub(crate) fn read_rule(
    node: &node::Node,
    read_before: &'static [&'static str],
) -> Result<Rule, Vec<Finding>> {
    let mut reader = Reader { case: reader::Case::Camel, read_before, ..Reader::default() };
    let rule = rule::read(&mut reader, &Field { node, path: String::new() });
    match rule {
        Some((rule, _)) if reader.errors.is_empty() => Ok(rule),
        _ => Err(reader.errors),
    }
}

fn read_document(reader: &mut Reader, document: &Field<'_>) -> Option<RuleSet> {
    let mut fields = reader.fields(document, WHAT)?;
    let nodes = fields.take("nodes");
    let node_count = nodes.as_ref().and_then(|field| reader.number(field));
    if let (Some(field), Some(count)) = (&nodes, node_count)
        && !(1..=NODES_MAX).contains(&count)
    {
        let message =
            format!("a fleet has 1 to {NODES_MAX} nodes: write how many share the limits");
        reader.refuse(field, message);
    }
    let accuracy = fields.take("accuracy").and_then(|field| rule::accuracy(reader, &field));
    let path_options = fields.take("paths").and_then(|field| read_paths(reader, &field));
    let rules_field = fields.take("rules");
    let mut read: Vec<(Rule, rule::FieldPositions)> = Vec::new();
    match &rules_field {
        None => {
            let message = "there is no `rules` here: write `rules:` and a list, `[]` for none";
            reader.error(document.node.at, "rules", message);
        }
        Some(field) if matches!(field.node.value, Value::List(_)) => {
            read.extend(field.items().iter().filter_map(|item| rule::read(reader, item)));
        }
        Some(field) => {
            let what = field.node.value.describe();
            reader.refuse(field, format!("this is {what}: write a list of rules, `[]` for none"));
        }
    }
    fields.finish(reader);
    if !reader.errors.is_empty() {
        return None;
    }
    let (rules, positions): (Vec<Rule>, Vec<rule::FieldPositions>) = read.into_iter().unzip();
    match RuleSet::of_nodes(rules, node_count.unwrap_or(1)) {
        Ok(rules) => {
            if let (Some(reason), Some(field)) = (rules.idle_reason(), &rules_field) {
                reader.warn(field.node.at, &field.path, reason);
            }
            let rules = rules.with_accuracy(accuracy.unwrap_or_default());
            Some(rules.with_path_options(path_options))
        }
        Err(wrong) => {
            for error in wrong.errors {
                let place = &positions[error.rule];
                let at = place.fields.get(error.field).copied().unwrap_or(place.rule);
                let field = format!("{}.{}", place.path, error.field);
                reader.error(at, &field, error.problem.to_string());
            }
            None
        }
    }
}

/// Reads how paths are compared.
fn read_paths(reader: &mut Reader, field: &Field<'_>) -> Option<PathOptions> {
    let mut fields = reader.fields(field, "a mapping such as `{ case: insensitive }`")?;
    let mut choice = |name, words: [(&'static str, bool); 2]| {
        let field = fields.take(name)?;
        reader.choice(&field, &words)
    };
    let ignores_case = choice("case", [("sensitive", false), ("insensitive", true)]);
    let strips_matrix = choice("matrix", [("keep", false), ("strip", true)]);
    let allows_ambiguous = choice("ambiguous", [("reject", false), ("allow", true)]);
    fields.finish(reader);
    Some(PathOptions {
        ignores_case: ignores_case.unwrap_or(false),
        strips_matrix: strips_matrix.unwrap_or(false),
        allows_ambiguous: allows_ambiguous.unwrap_or(false),
    })
}

/// The findings of a file, a line each.
struct FindingList<'a> {
    file: &'a str,
    findings: &'a [Finding],
}

impl fmt::Display for FindingList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, finding) in self.findings.iter().enumerate() {
            write!(f, "{}{}:{finding}", if at == 0 { "" } else { "\n" }, self.file)?;
        }
        Ok(())
    }
}
