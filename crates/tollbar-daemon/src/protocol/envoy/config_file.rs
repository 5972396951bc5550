//! The reference service's files: YAML in, [`Domains`] or everything that is wrong with them out.
//!
//! A file that the reference loads is loaded, and means the same. What it rejects is rejected with its place and what
//! to write instead. A field that has no effect is warned of.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tollbar_rules::FileError;
use tollbar_rules::yaml::{self, Field, Fields, Reader, Value};

use super::domains::{DescriptorNode, Domains, EnforcementMode, EnvoyRule, join_entry};
use super::limit::EnvoyLimit;
use super::metadata;
use super::window_unit::WindowUnit;

/// The most files of one directory.
const FILES_MAX: usize = 1_000;

const WHAT: &str = "`domain:` and `descriptors:`";

/// Every field of the files. The reference accepts each of them anywhere, and ignores it where it means nothing.
const FIELDS: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// Why a field has no effect.
const NO_LIMIT: &str = "this descriptor has no `rate_limit`";
const UNLIMITED: &str = "this is unlimited";

/// How files are read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileOptions {
    /// Whether two files may have one domain, as with the reference's `MERGE_DOMAIN_CONFIG`.
    pub(crate) merges_domains: bool,
    /// Whether dynamic metadata is sent.
    pub(crate) sends_metadata: bool,
}

/// Domains that were read, and what their writer should know all the same.
#[derive(Debug)]
pub(crate) struct EnvoyFiles {
    pub(crate) domains: Domains,
    pub(crate) warnings: Vec<String>,
}

impl EnvoyFiles {
    /// The file at `path`, or all files of the directory there whose names end in `.yaml` or `.yml`.
    pub(crate) fn read(path: &Path, options: FileOptions) -> Result<Self, FileError> {
        let mut files = Self { domains: Domains::default(), warnings: Vec::new() };
        for path in paths(path)? {
            let add =
                |reader: &mut Reader, top: &Field<'_>| files.domains.add(reader, top, options);
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
        let options = FileOptions { merges_domains: false, sends_metadata: true };
        yaml::read_text(file, text, WHAT, |reader, top| domains.add(reader, top, options))?;
        Ok(domains)
    }

    fn add(&mut self, reader: &mut Reader, top: &Field<'_>, options: FileOptions) -> Option<()> {
        let mut fields = reader.fields(top, WHAT)?;
        let domain = fields.take("domain");
        let descriptors = fields.take("descriptors");
        finish(fields, reader);
        let name = domain.as_ref().map_or("", |field| optional_text(reader, field));
        let is_known = self.has(name);
        match &domain {
            Some(domain) if name.is_empty() => {
                reader.refuse(domain, "a domain has a name: write `domain: NAME`");
            }
            Some(domain) if is_known && !options.merges_domains => reader.refuse(
                domain,
                format!(
                    "another file has the domain `{name}` already: write both in one file, or start the daemon \
                     with --envoy-merge-domains"
                ),
            ),
            Some(_) => {}
            None => {
                let message = "there is no domain here: write `domain: NAME`";
                reader.error(top.node.at, "domain", message);
            }
        }
        // What is wrong with the descriptors is reported also if the domain is wrong.
        let mut node = match self.0.remove(name) {
            Some(node) if options.merges_domains => node,
            _ => DescriptorNode::default(),
        };
        if let Some(list) = descriptors {
            read_descriptors(reader, &list, &mut node, options);
        }
        self.0.insert(name.into(), node);
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

fn read_descriptors(
    reader: &mut Reader,
    list: &Field<'_>,
    into: &mut DescriptorNode,
    options: FileOptions,
) {
    match &list.node.value {
        Value::Null => {}
        Value::List(_) => {
            for item in list.items() {
                read_descriptor(reader, &item, into, options);
            }
        }
        value => {
            reader
                .refuse(list, format!("this is {}: write a list of descriptors", value.describe()));
        }
    }
}

fn read_descriptor(
    reader: &mut Reader,
    item: &Field<'_>,
    into: &mut DescriptorNode,
    options: FileOptions,
) {
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

    let (shadow_field, quota_field) = (fields.take("shadow_mode"), fields.take("quota_mode"));
    let shadow = flag(reader, shadow_field.as_ref());
    let quota = flag(reader, quota_field.as_ref());
    for name in ["detailed_metric", "value_to_metric"] {
        if let Some(field) = fields.take(name)
            && flag(reader, Some(&field))
        {
            no_effect(reader, &field, "metrics here have no label for a descriptor's values");
        }
    }
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
    } else {
        let idle = [shadow_field.filter(|_| shadow), quota_field.filter(|_| quota)];
        idle.iter().flatten().for_each(|field| no_effect(reader, field, NO_LIMIT));
    }
    let is_wildcard = whole.contains('*');
    if let Some(field) = fields.take("share_threshold")
        && flag(reader, Some(&field))
    {
        node.shares_counter = is_wildcard;
        if !is_wildcard {
            reader.refuse(
                &field,
                "values share a counter only below a wildcard: write a `*` in `value`, or take this out",
            );
        }
    }
    if let Some(field) = fields.take("metadata") {
        let metadata = metadata::from_yaml(reader, &field);
        match &mut node.rule {
            _ if !options.sends_metadata => {
                no_effect(reader, &field, "start the daemon with --envoy-metadata to send it");
            }
            None => no_effect(reader, &field, NO_LIMIT),
            Some(rule) if rule.limit.is_none() => no_effect(reader, &field, UNLIMITED),
            Some(rule) => rule.metadata = metadata.map(Arc::new),
        }
    }
    if let Some(list) = fields.take("descriptors") {
        read_descriptors(reader, &list, &mut node, options);
    }
    finish(fields, reader);
    if into.below.contains_key(&*whole) {
        let message =
            format!("the descriptor `{whole}` was written before at this level: keep one of them");
        reader.error(item.node.at, &item.path, message);
        return;
    }
    if is_wildcard {
        into.wildcards.push((*whole).into());
    }
    into.below.insert(whole.into(), node);
}

fn read_limit(reader: &mut Reader, limit: &Field<'_>, mode: EnforcementMode) -> Option<EnvoyRule> {
    let mut fields = reader.fields(limit, "`unit` and `requests_per_unit`")?;
    let unlimited = flag(reader, fields.take("unlimited").as_ref());
    let count_field = fields.take("requests_per_unit");
    let requests_per_unit = count_field.as_ref().and_then(|field| read_count(reader, field));
    let unit_field = fields.take("unit");
    let name = fields.take("name");
    let name = name.map_or("", |field| optional_text(reader, &field));
    let replaces = fields.take("replaces");
    let replaces = replaces.map_or_else(Vec::new, |list| read_replaces(reader, &list, name));
    let (path, at) = (fields.path.clone(), fields.at);
    finish(fields, reader);

    let unit_text = unit_field.as_ref().map_or("", |field| optional_text(reader, field));
    let unit = WindowUnit::from_name(unit_text);
    let limit = match (unlimited, unit) {
        (true, None) => {
            let idle = [&count_field, &unit_field].into_iter().flatten();
            idle.for_each(|field| no_effect(reader, field, UNLIMITED));
            None
        }
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
    let (name, metadata, standalone) = (name.into(), None, OnceLock::new());
    Some(EnvoyRule { name, replaces, limit, mode, metadata, standalone })
}

/// A number of requests. One that begins with 0 is octal to the reference's YAML 1.1, and decimal to others.
fn read_count(reader: &mut Reader, field: &Field<'_>) -> Option<u32> {
    let text = optional_text(reader, field);
    if text.len() > 1 && text.starts_with('0') {
        reader.refuse(field, "this may be read as octal: write the number without the leading 0");
        return None;
    }
    let count = u32::try_from(reader.number(field)?).ok();
    if count.is_none() {
        reader.refuse(field, format!("this is too large: write at most {}", u32::MAX));
    }
    count
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
        finish(fields, reader);
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

/// Warns of fields that mean nothing in their place, as in the reference, and reports those that are unknown.
fn finish(mut fields: Fields<'_>, reader: &mut Reader) {
    for name in FIELDS {
        if let Some(field) = fields.take_unlisted(name) {
            no_effect(reader, &field, "it belongs elsewhere");
        }
    }
    fields.finish(reader);
}

/// Warns of a field without an effect.
fn no_effect(reader: &mut Reader, field: &Field<'_>, why: &str) {
    let message = format!("this has no effect: {why}");
    reader.warn(field.node.at, &field.path, message);
}

/// A text; the empty one where nothing is written.
fn optional_text<'n>(reader: &mut Reader, field: &Field<'n>) -> &'n str {
    match &field.node.value {
        Value::Null => "",
        _ => reader.text(field, "a text").unwrap_or_default(),
    }
}

/// A switch, by any word that the reference's YAML 1.1 takes for one; off where it is absent.
fn flag(reader: &mut Reader, field: Option<&Field<'_>>) -> bool {
    let Some(field) = field else {
        return false;
    };
    match optional_text(reader, field) {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => true,
        "" | "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n"
        | "N" => false,
        _ => {
            reader.refuse(field, "this is neither `true` nor `false`: write one of them");
            false
        }
    }
}
