//! The reference service's files: YAML in, [`Domains`] or everything that is wrong with them out.
//!
//! A file that the reference reads is read the same way. What is not known, or known and not done here,
//! is refused by name with its place; nothing is passed over.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tollbar_rules::FileError;
use tollbar_rules::yaml::{self, Field, Reader, Value};

use super::domains::{DescriptorNode, Domains, EnforcementMode, EnvoyRule, join_entry};
use super::limit::EnvoyLimit;
use super::window_unit::WindowUnit;

/// The most files of one directory.
const FILES_MAX: usize = 1_000;

const WHAT: &str = "`domain:` and `descriptors:`";

/// Domains that were read, and what their writer should know all the same.
#[derive(Debug)]
pub(crate) struct EnvoyFiles {
    pub(crate) domains: Domains,
    pub(crate) warnings: Vec<String>,
}

impl EnvoyFiles {
    /// The file at `path`, or all files of the directory there whose names end in `.yaml` or `.yml`.
    pub(crate) fn read(path: &Path) -> Result<Self, FileError> {
        let mut files = Self { domains: Domains::default(), warnings: Vec::new() };
        for path in paths(path)? {
            let add = |reader: &mut Reader, top: &Field<'_>| files.domains.add(reader, top);
            let ((), warnings) = yaml::read_file(&path, WHAT, add)?;
            let file = path.display();
            files.warnings.extend(warnings.iter().map(|warning| format!("{file}:{warning}")));
        }
        Ok(files)
    }
}

impl Domains {
    /// The one domain of a file; `file` is its name in messages.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, FileError> {
        let mut domains = Self::default();
        yaml::read_text(file, text, WHAT, |reader, top| domains.add(reader, top))?;
        Ok(domains)
    }

    fn add(&mut self, reader: &mut Reader, top: &Field<'_>) -> Option<()> {
        let mut fields = reader.fields(top, WHAT)?;
        let domain = fields.take("domain");
        let mut node = DescriptorNode::default();
        if let Some(list) = fields.take("descriptors") {
            read_descriptors(reader, &list, &mut node);
        }
        fields.finish(reader);
        let Some(domain) = domain else {
            reader.error(top.node.at, "domain", "there is no domain here: write `domain: NAME`");
            return None;
        };
        let name = optional_text(reader, &domain);
        if name.is_empty() {
            reader.refuse(&domain, "a domain has a name: write `domain: NAME`");
        } else if self.has(name) {
            reader.refuse(
                &domain,
                format!("another file has the domain `{name}` already: write both in one file"),
            );
        } else {
            self.0.insert(name.into(), node);
        }
        Some(())
    }
}

/// The files to be read, in the order of their names.
pub(super) fn paths(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    let failed = |source: std::io::Error| FileError::Read {
        file: path.display().to_string(),
        source: Arc::new(source),
    };
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut paths = Vec::new();
    for entry in path.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?.path();
        let is_hidden =
            entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_yaml =
            entry.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if is_yaml && !is_hidden {
            paths.push(entry);
        }
    }
    let other = |message: String| failed(std::io::Error::other(message));
    match paths.len() {
        0 => Err(other("there is no file of the name *.yaml in it".to_owned())),
        count if count > FILES_MAX => {
            Err(other(format!("{count} files are too many: write at most {FILES_MAX}")))
        }
        _ => {
            paths.sort();
            Ok(paths)
        }
    }
}

fn read_descriptors(reader: &mut Reader, list: &Field<'_>, into: &mut DescriptorNode) {
    match &list.node.value {
        Value::Null => {}
        Value::List(_) => {
            for item in list.items() {
                read_descriptor(reader, &item, into);
            }
        }
        value => {
            reader
                .refuse(list, format!("this is {}: write a list of descriptors", value.describe()));
        }
    }
}

fn read_descriptor(reader: &mut Reader, item: &Field<'_>, into: &mut DescriptorNode) {
    let Some(mut fields) = reader.fields(item, "a descriptor such as `- key: NAME`") else {
        return;
    };
    let key = fields.take("key");
    let name = key.as_ref().map_or("", |field| optional_text(reader, field));
    if name.is_empty() {
        let (at, path) = (key.map_or(item.node.at, |field| field.node.at), fields.path_of("key"));
        reader.error(at, &path, "a descriptor has a key: write `key: NAME`");
    }
    let value = fields.take("value");
    let value = value.map_or("", |field| optional_text(reader, &field));
    let whole = if value.is_empty() { name.to_owned() } else { join_entry(name, value) };

    let shadow = flag(reader, fields.take("shadow_mode"));
    let quota = flag(reader, fields.take("quota_mode"));
    // About metrics: they change no decision.
    flag(reader, fields.take("detailed_metric"));
    flag(reader, fields.take("value_to_metric"));
    let mode = match (shadow, quota) {
        // A limit in shadow never reports that it was exceeded, so its quota never is.
        (true, _) => EnforcementMode::Shadow,
        (false, true) => EnforcementMode::Quota,
        (false, false) => EnforcementMode::Enforce,
    };
    let mut node = DescriptorNode::default();
    if let Some(limit) = fields.take("rate_limit")
        && !matches!(limit.node.value, Value::Null)
    {
        node.rule = read_limit(reader, &limit, mode);
    }
    let wildcard = whole.strip_suffix('*');
    if let Some(field) = fields.take("share_threshold")
        && flag(reader, Some(field.clone()))
    {
        if wildcard.is_some() {
            node.shared_value = Some(if value.is_empty() { name } else { value }.into());
        } else {
            reader.refuse(
                &field,
                "values share a counter only below a wildcard: end `value` with `*`, or take this out",
            );
        }
    }
    if let Some(field) = fields.take("metadata") {
        reader.refuse(&field, "metadata of descriptors is not sent by this daemon: take it out");
    }
    if let Some(list) = fields.take("descriptors") {
        read_descriptors(reader, &list, &mut node);
    }
    fields.finish(reader);
    if into.below.contains_key(&*whole) {
        let message =
            format!("the descriptor `{whole}` was written before at this level: keep one of them");
        reader.error(item.node.at, &item.path, message);
        return;
    }
    into.wildcards.extend(wildcard.map(Into::into));
    into.below.insert(whole.into(), node);
}

fn read_limit(reader: &mut Reader, limit: &Field<'_>, mode: EnforcementMode) -> Option<EnvoyRule> {
    let mut fields = reader.fields(limit, "`unit` and `requests_per_unit`")?;
    let unlimited = flag(reader, fields.take("unlimited"));
    let count_field = fields.take("requests_per_unit");
    let requests_per_unit = count_field.as_ref().and_then(|field| {
        let count = reader.number(field)?;
        let count = u32::try_from(count).ok();
        if count.is_none() {
            reader.refuse(field, format!("this is too large: write at most {}", u32::MAX));
        }
        count
    });
    let unit_field = fields.take("unit");
    let name = fields.take("name");
    let name = name.map_or("", |field| optional_text(reader, &field));
    let replaces = fields.take("replaces");
    let replaces = replaces.map_or_else(Vec::new, |list| read_replaces(reader, &list, name));
    let (path, at) = (fields.path.clone(), fields.at);
    fields.finish(reader);

    let unit_text = unit_field.as_ref().map_or("", |field| optional_text(reader, field));
    let unit = WindowUnit::from_name(unit_text);
    let limit = match (unlimited, unit) {
        (true, None) => None,
        (true, Some(_)) => {
            reader.error(
                at,
                &path,
                "what is unlimited has no unit: take `unit` or `unlimited` out",
            );
            return None;
        }
        (false, None) => {
            let at = unit_field.map_or(at, |field| field.node.at);
            let message = format!(
                "`{unit_text}` is no unit: write `unit: second`, `minute`, `hour`, `day`, `week`, `month` \
                 or `year`"
            );
            reader.error(at, &format!("{path}.unit"), message);
            return None;
        }
        (false, Some(unit)) => {
            if count_field.is_none() {
                reader.warn(at, &path, "there is no `requests_per_unit`, so nothing passes");
            }
            match EnvoyLimit::new(requests_per_unit.unwrap_or(0), unit) {
                Ok(limit) => Some(limit),
                Err(error) => {
                    reader.error(
                        count_field.map_or(at, |field| field.node.at),
                        &path,
                        error.to_string(),
                    );
                    return None;
                }
            }
        }
    };
    Some(EnvoyRule { name: name.into(), replaces, limit, mode, standalone: OnceLock::new() })
}

fn read_replaces(reader: &mut Reader, list: &Field<'_>, own_name: &str) -> Vec<Box<str>> {
    let mut names = Vec::new();
    if !matches!(list.node.value, Value::List(_) | Value::Null) {
        reader.refuse(list, "write a list of names, such as `- name: OTHER`");
    }
    for item in list.items() {
        let Some(mut fields) = reader.fields(&item, "`name: OTHER`") else {
            continue;
        };
        let name = fields.take("name").map_or("", |field| optional_text(reader, &field));
        fields.finish(reader);
        if name.is_empty() {
            reader.refuse(&item, "a limit is replaced by its name: write `name: OTHER`");
        } else if name == own_name {
            reader.refuse(&item, "a limit does not replace itself: name another one");
        } else {
            names.push(name.into());
        }
    }
    names
}

/// A text; the empty one where nothing is written.
fn optional_text<'n>(reader: &mut Reader, field: &Field<'n>) -> &'n str {
    match &field.node.value {
        Value::Null => "",
        _ => reader.text(field, "a text").unwrap_or_default(),
    }
}

/// A switch, by any word that the reference's YAML 1.1 takes for one; off where it is absent.
fn flag(reader: &mut Reader, field: Option<Field<'_>>) -> bool {
    let Some(field) = field else {
        return false;
    };
    match optional_text(reader, &field) {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => true,
        "" | "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n"
        | "N" => false,
        _ => {
            reader.refuse(&field, "this is neither `true` nor `false`: write one of them");
            false
        }
    }
}
