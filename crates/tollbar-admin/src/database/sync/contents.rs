//! Everything that nodes enforce, read at one instant together with its revision; or, of a revision that
//! is known, what has changed since.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollbar::Timestamp;

use crate::database::queries::changes::ChangedRowKind;
use crate::database::queries::changes::{self};
use crate::database::queries::{exemptions, keys, nodes, rules};
use crate::database::sql::Sql;
use crate::database::{BrokenRule, ExemptionRow, KeyRow, Result, Revisions, RuleId, RuleRow};

/// What the database says is to be enforced.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DatabaseContents {
    /// As of when.
    pub revisions: Revisions,
    /// Rules that are enabled, in the order in which they were made.
    pub rules: Vec<Arc<RuleRow>>,
    /// Exemptions from them.
    pub exemptions: BTreeMap<RuleId, Arc<[ExemptionRow]>>,
    /// Bans and boosts that have not ended, in that order too.
    pub keys: Vec<Arc<KeyRow>>,
    /// Rows that say nothing that could be enforced.
    pub bad: Vec<SkippedRow>,
    /// What tells the revision from another of the same number, where anything does.
    pub(crate) mark: Option<i64>,
}

/// A row that is not enforced. The others are, all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedRow {
    /// What it was meant to be: `rule`, `exemption` or `key record`.
    pub what: &'static str,
    /// Its id.
    pub id: String,
    /// Its name, where it has one.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
}

/// A revision that is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownRevision {
    pub(crate) revision: u64,
    pub(crate) mark: i64,
}

/// What has become of some rows since a revision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowChanges {
    pub(crate) revisions: Revisions,
    pub(crate) mark: i64,
    /// By the numbers of their rows: what is to be enforced, and none where nothing is any more.
    pub(crate) rules: Vec<(i64, Option<RuleWithExemptions>)>,
    pub(crate) keys: Vec<(i64, Option<KeyRow>)>,
    /// When they were read.
    pub(crate) now: Timestamp,
}

/// A rule and all exemptions from it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RuleWithExemptions {
    pub(crate) row: RuleRow,
    pub(crate) exemptions: Vec<ExemptionRow>,
}

/// The rules that changes have removed and put in.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RuleDelta {
    /// Rules that are not there any more, or not as they were.
    pub(crate) removed: Vec<RuleId>,
    /// Rules as they are.
    pub(crate) current: Vec<Arc<RuleRow>>,
    pub(crate) has_keys: bool,
}

pub(crate) async fn load<S: Sql>(sql: &S) -> Result<DatabaseContents> {
    let revisions = nodes::revisions(sql).await?;
    let mark = changes::read_mark(sql, revisions.rules).await?;
    let mut contents = DatabaseContents { revisions, mark, ..DatabaseContents::default() };
    for row in rules::list_enabled(sql).await? {
        match row {
            Ok(row) => contents.rules.push(Arc::new(row)),
            Err(BrokenRule { id, name, why, .. }) => {
                contents.bad.push(SkippedRow { what: "rule", id, name, why });
            }
        }
    }
    let bad = |what, why: String| SkippedRow { what, id: String::new(), name: String::new(), why };
    let mut exemptions: BTreeMap<RuleId, Vec<ExemptionRow>> = BTreeMap::new();
    for row in exemptions::list_in_force(sql).await? {
        match row {
            Ok(row) => exemptions.entry(row.rule).or_default().push(row),
            Err(error) => contents.bad.push(bad("exemption", error.to_string())),
        }
    }
    contents.exemptions = exemptions.into_iter().map(|(rule, rows)| (rule, rows.into())).collect();
    for row in keys::list_in_force(sql).await? {
        match row {
            Ok(row) => contents.keys.push(Arc::new(row)),
            Err(error) => contents.bad.push(bad("key record", error.to_string())),
        }
    }
    Ok(contents)
}

/// What has changed since; `None` where that cannot be told, and where a row that has changed is one
/// that cannot be enforced. Then everything is to be read.
pub(crate) async fn changes_since<S: Sql>(
    sql: &S,
    known_revision: KnownRevision,
) -> Result<Option<RowChanges>> {
    let revisions = nodes::revisions(sql).await?;
    let Some(changed_rows) = changes::changed_since(sql, known_revision, revisions.rules).await?
    else {
        return Ok(None);
    };
    let (mark, now) = (changed_rows.mark, sql.now());
    let mut changes = RowChanges { revisions, mark, rules: Vec::new(), keys: Vec::new(), now };
    for (kind, at) in changed_rows.rows {
        match kind {
            ChangedRowKind::Rule => {
                let row = match rules::find_enabled_at(sql, at).await? {
                    Some(Err(_)) => return Ok(None),
                    row => row.and_then(std::result::Result::ok),
                };
                let exemptions = match row {
                    None => Vec::new(),
                    Some(_) => exemptions::list_in_force_of(sql, at).await?,
                };
                let Ok(exemptions) = exemptions.into_iter().collect() else {
                    return Ok(None);
                };
                changes.rules.push((at, row.map(|row| RuleWithExemptions { row, exemptions })));
            }
            ChangedRowKind::Key => match keys::find_in_force_at(sql, at).await? {
                Some(Err(_)) => return Ok(None),
                row => changes.keys.push((at, row.and_then(std::result::Result::ok))),
            },
        }
    }
    Ok(Some(changes))
}

impl DatabaseContents {
    /// Returns the revision of these contents, if the database knows the changes since and no row was bad.
    pub(crate) fn known_revision(&self) -> Option<KnownRevision> {
        let mark = self.mark.filter(|_| self.bad.is_empty())?;
        Some(KnownRevision { revision: self.revisions.rules, mark })
    }

    pub(crate) fn exemptions_of(&self, rule: RuleId) -> Arc<[ExemptionRow]> {
        self.exemptions.get(&rule).cloned().unwrap_or_default()
    }

    /// Puts changes in their places, so that it is what would be loaded now. Whoever is done with them
    /// sets their mark.
    pub(crate) fn apply(&mut self, changes: RowChanges) -> RuleDelta {
        let RowChanges { revisions, rules, keys, now, .. } = changes;
        (self.revisions, self.mark) = (revisions, None);
        let mut delta = RuleDelta { has_keys: !keys.is_empty(), ..RuleDelta::default() };
        for (at, _) in &rules {
            if let Ok(place) = self.rules.binary_search_by_key(at, |rule| rule.row) {
                let gone = self.rules.remove(place).id;
                self.exemptions.remove(&gone);
                delta.removed.push(gone);
            }
        }
        for (_, rule) in rules {
            let Some(RuleWithExemptions { row, exemptions }) = rule else {
                continue;
            };
            let row = Arc::new(row);
            let place = self.rules.partition_point(|rule| rule.row < row.row);
            if !exemptions.is_empty() {
                self.exemptions.insert(row.id, exemptions.into());
            }
            delta.current.push(Arc::clone(&row));
            self.rules.insert(place, row);
        }
        for (at, key) in keys {
            // Whatever has ended meanwhile goes too.
            let is_on = |row: &KeyRow| row.record.expires_at.is_none_or(|end| now < end);
            self.keys.retain(|row| row.id != at && is_on(row));
            let place = self.keys.partition_point(|row| row.id < at);
            self.keys.splice(place..place, key.map(Arc::new));
        }
        delta
    }
}
