//! The last rules that the database said, in a file: for a start without it.
//!
//! One line that says what the file is, how long and with which checksum, then JSON. It is written whole
//! or not at all, and read whole or not at all. Whoever can write it can change rules, as with any file of
//! rules.

mod serialized_rows;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;
use tollbar::Timestamp;
use tollbar_rules::admin::{ExemptionForm, from_json, to_json};

use serialized_rows::SerializedRows;

use crate::database::sync::contents::DatabaseContents;
use crate::database::{
    DatabaseLocation, ExemptionRow, KeyEffect, KeyRecord, KeyRow, Owner, Revisions, RuleId, RuleRow,
};

/// What the first line begins with.
const MAGIC: &str = "tollbar-rules-cache";

/// The form that this version writes and reads.
const FORM: u64 = 1;

/// A file that is longer is none of ours.
const BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Where it is, and of which database it is.
#[derive(Debug, Clone)]
pub struct Cache {
    path: PathBuf,
    database: String,
    written: Arc<Mutex<SerializedTables>>,
}

/// The rows that were written last, with their JSON.
#[derive(Debug, Default)]
struct SerializedTables {
    rules: SerializedRows<RuleRow>,
    /// Those from one rule together.
    exemptions: SerializedRows<[ExemptionRow]>,
    keys: SerializedRows<KeyRow>,
}

/// Why there are no rules in the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// It cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// Where it is.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is no cache of rules: remove it, or name another file by --rules-cache", path.display())]
    NotACache {
        /// Where it is.
        path: PathBuf,
    },
    /// A newer version of this program wrote it.
    #[error(
        "{} has form {found}, and this version knows form {FORM}: start the version that wrote it, or \
         remove it and start with the database",
        path.display()
    )]
    Newer {
        /// Where it is.
        path: PathBuf,
        /// Its form.
        found: u64,
    },
    /// A part of it is missing or was changed.
    #[error(
        "{} is torn or was changed ({why}): remove it and start with the database",
        path.display()
    )]
    Corrupt {
        /// Where it is.
        path: PathBuf,
        /// How that is known.
        why: String,
    },
    /// It is of another database.
    #[error(
        "{} has the rules of {found}, and not of {expected}: remove it, or name another file by \
         --rules-cache",
        path.display()
    )]
    OtherDatabase {
        /// Where it is.
        path: PathBuf,
        /// The database whose rules these are.
        found: String,
        /// The one that is asked for.
        expected: String,
    },
}

impl Cache {
    pub(crate) fn new(path: &Path, location: &DatabaseLocation) -> Self {
        let (path, database) = (path.to_owned(), location.to_string());
        Self { path, database, written: Arc::default() }
    }

    /// Puts what was loaded in the place of what was there.
    pub(crate) fn write(&self, contents: &DatabaseContents) -> Result<(), CacheError> {
        let io = |source| CacheError::Io { path: self.path.clone(), source };
        let body = self.json(contents);
        let sum = crc32fast::hash(body.as_bytes());
        let head = format!("{MAGIC} {FORM} {} {sum:08x}\n", body.len());
        let mut beside = self.path.clone().into_os_string();
        beside.push(format!(".{}.tmp", std::process::id()));
        let beside = PathBuf::from(beside);
        let written = write_new(&beside, &[head.as_bytes(), body.as_bytes()])
            .and_then(|()| fs::rename(&beside, &self.path));
        if written.is_err() {
            // What went wrong is told; that the remains could not be removed either adds nothing.
            #[expect(
                clippy::let_underscore_must_use,
                reason = "the error that made the file useless is reported"
            )]
            let _ = fs::remove_file(&beside);
        }
        written.map_err(io)
    }

    /// What was written last; `None` where there is no such file.
    pub(crate) fn read(&self) -> Result<Option<DatabaseContents>, CacheError> {
        let io = |source| CacheError::Io { path: self.path.clone(), source };
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(io)?,
        };
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(io)?;
        let json = self.check(&bytes)?;
        let found = json["database"].as_str().unwrap_or_default();
        if found != self.database {
            let (path, expected) = (self.path.clone(), self.database.clone());
            return Err(CacheError::OtherDatabase { path, found: found.to_owned(), expected });
        }
        let wrong = || self.corrupt("its rows cannot be read");
        parse_contents(&json).ok_or_else(wrong).map(Some)
    }

    /// What is behind the first line, if that is what it says.
    fn check(&self, bytes: &[u8]) -> Result<Value, CacheError> {
        let not_a_cache = || CacheError::NotACache { path: self.path.clone() };
        let end = bytes.iter().take(128).position(|byte| *byte == b'\n').ok_or_else(not_a_cache)?;
        let head = str::from_utf8(&bytes[..end]).map_err(|_| not_a_cache())?;
        let mut words = head.split(' ');
        let (Some(MAGIC), Some(Ok(form))) = (words.next(), words.next().map(str::parse::<u64>))
        else {
            return Err(not_a_cache());
        };
        if form != FORM {
            return Err(CacheError::Newer { path: self.path.clone(), found: form });
        }
        let body = &bytes[end + 1..];
        if words.next().and_then(|word| word.parse::<usize>().ok()) != Some(body.len()) {
            return Err(self.corrupt("its length is another"));
        }
        let sum = format!("{:08x}", crc32fast::hash(body));
        if words.next() != Some(&*sum) {
            return Err(self.corrupt("its checksum is another"));
        }
        serde_json::from_slice(body).map_err(|_| self.corrupt("it is no JSON"))
    }

    fn corrupt(&self, why: &str) -> CacheError {
        CacheError::Corrupt { path: self.path.clone(), why: why.to_owned() }
    }

    fn json(&self, contents: &DatabaseContents) -> String {
        let Revisions { rules, tokens } = contents.revisions;
        let database = Value::from(&*self.database);
        let mut body =
            format!(r#"{{"database":{database},"revision":{rules},"tokens":{tokens},"rules":"#);
        // Whoever panicked with it has left texts of rows that are as they were.
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.rules.append(contents.rules.iter(), |rule| vec![rule_json(rule)], &mut body);
        body.push_str(r#","exemptions":"#);
        // One that cannot be enforced would keep the whole file from being read.
        let is_one = |row: &&ExemptionRow| row.form.exemption().is_ok();
        let json = |rows: &[ExemptionRow]| {
            rows.iter().filter(is_one).map(exemption_json).collect::<Vec<_>>()
        };
        written.exemptions.append(contents.exemptions.values(), json, &mut body);
        body.push_str(r#","keys":"#);
        written.keys.append(contents.keys.iter(), |key| vec![key_json(key)], &mut body);
        body.push('}');
        body
    }
}

fn write_new(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}

fn rule_json(RuleRow { id, row, version, rule, .. }: &RuleRow) -> Value {
    json!({ "id": id.to_string(), "row": row, "version": version, "form": to_json(rule) })
}

fn exemption_json(ExemptionRow { id, rule, form, .. }: &ExemptionRow) -> Value {
    json!({ "id": id, "rule": rule.to_string(), "form": form })
}

fn key_json(KeyRow { id, record, .. }: &KeyRow) -> Value {
    let factor = match record.effect {
        KeyEffect::Ban => None,
        KeyEffect::Boost { factor_percent } => Some(factor_percent),
    };
    json!({
        "id": id, "rule": record.rule, "subject": record.subject, "factorPercent": factor,
        "reason": record.reason, "expiresAtUs": record.expires_at.map(Timestamp::as_micros),
    })
}

fn parse_contents(json: &Value) -> Option<DatabaseContents> {
    let rows = |name: &str| json[name].as_array();
    let revisions =
        Revisions { rules: json["revision"].as_u64()?, tokens: json["tokens"].as_u64()? };
    let rule = |json| parse_rule(json).map(Arc::new);
    let key = |json| parse_key(json).map(Arc::new);
    let mut exemptions: BTreeMap<RuleId, Vec<ExemptionRow>> = BTreeMap::new();
    for json in rows("exemptions")? {
        let row = parse_exemption(json)?;
        exemptions.entry(row.rule).or_default().push(row);
    }
    Some(DatabaseContents {
        revisions,
        rules: rows("rules")?.iter().map(rule).collect::<Option<_>>()?,
        exemptions: exemptions.into_iter().map(|(rule, rows)| (rule, rows.into())).collect(),
        keys: rows("keys")?.iter().map(key).collect::<Option<_>>()?,
        ..DatabaseContents::default()
    })
}

/// When something was made, and by whom, is not in the file: nothing that is enforced hangs on it.
fn parse_rule(json: &Value) -> Option<RuleRow> {
    Some(RuleRow {
        id: json["id"].as_str()?.parse().ok()?,
        rule: from_json(json["form"].clone()).ok()?,
        version: json["version"].as_u64()?,
        owner: Owner::default(),
        created_at: Timestamp::ZERO,
        updated_at: Timestamp::ZERO,
        deleted_at: None,
        row: json["row"].as_i64()?,
    })
}

fn parse_exemption(json: &Value) -> Option<ExemptionRow> {
    Some(ExemptionRow {
        id: json["id"].as_i64()?,
        rule: json["rule"].as_str()?.parse().ok()?,
        form: ExemptionForm::deserialize(&json["form"]).ok()?,
        created_by: String::new(),
        created_at: Timestamp::ZERO,
    })
}

fn parse_key(json: &Value) -> Option<KeyRow> {
    let fields: &Map<String, Value> = json.as_object()?;
    let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    let effect = match fields.get("factorPercent")?.as_u64() {
        None => KeyEffect::Ban,
        Some(factor) => KeyEffect::Boost { factor_percent: u32::try_from(factor).ok()? },
    };
    let expires_at = fields.get("expiresAtUs")?.as_u64().map(Timestamp::from_micros);
    let record = KeyRecord {
        rule: text("rule"),
        subject: text("subject")?,
        effect,
        reason: text("reason"),
        expires_at,
    };
    let (created_by, created_at) = (String::new(), Timestamp::ZERO);
    Some(KeyRow { id: fields.get("id")?.as_i64()?, record, created_by, created_at })
}

#[cfg(test)]
mod tests;
