//! What has to change for a daemon's rules to be those of a file.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use tollbar_rules::admin::{FieldChange, changed_fields};
use tollbar_rules::{Rule, RuleSet};

use super::remote::limits_of;
use crate::command::table::visible;
use tollbar_admin::operations::rule_json::RuleJson;

/// One change.
#[derive(Debug)]
pub(super) enum Change {
    Add { rule: Rule },
    Update { before: Box<RuleJson>, rule: Rule, fields: Vec<FieldChange> },
    Delete { before: Box<RuleJson> },
}

/// All of them.
#[derive(Debug)]
pub(super) struct Changes {
    pub(super) list: Vec<Change>,
    unchanged: usize,
    /// Rules that are not in the file and stay.
    kept: Vec<String>,
}

impl Changes {
    /// Returns the changes from the rules of a daemon to `wanted`. What is not in `wanted` goes if `prune`
    /// says so.
    pub(super) fn between(
        remote: &[RuleJson],
        wanted: &RuleSet,
        prune: bool,
    ) -> Result<Self, String> {
        let mut changes = Self { list: Vec::new(), unchanged: 0, kept: Vec::new() };
        let by_name: HashMap<&str, &RuleJson> =
            remote.iter().map(|rule| (&*rule.rule.name, rule)).collect();
        let wanted_names: HashSet<&str> = wanted.rules().iter().map(|rule| &*rule.name).collect();
        for rule in wanted.rules() {
            changes.compare(by_name.get(&*rule.name).copied(), rule)?;
        }
        let is_own =
            |rule: &&RuleJson| rule.version.is_some() && !wanted_names.contains(&*rule.rule.name);
        for rule in remote.iter().filter(is_own) {
            if prune {
                changes.list.push(Change::Delete { before: rule.clone().into() });
            } else {
                changes.kept.push(rule.rule.name.to_string());
            }
        }
        Ok(changes)
    }

    fn compare(&mut self, before: Option<&RuleJson>, rule: &Rule) -> Result<(), String> {
        let (name, rule) = (&rule.name, rule.clone());
        let Some(before) = before else {
            self.list.push(Change::Add { rule });
            return Ok(());
        };
        if before.version.is_none() {
            return Err(format!(
                "rule `{name}` is in the daemon's own file, which goes before: take it out of one of them"
            ));
        }
        let fields = changed_fields(&before.rule, &rule);
        if fields.is_empty() {
            self.unchanged += 1;
        } else {
            self.list.push(Change::Update { before: before.clone().into(), rule, fields });
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// A line each, and one that counts them.
    pub(super) fn text(&self) -> String {
        let mut lines: Vec<String> = self.list.iter().map(Change::text).collect();
        let ([added, changed, deleted], unchanged) = (self.counts(), self.unchanged);
        lines.push(format!(
            "{added} to add, {changed} to change, {deleted} to delete, {unchanged} unchanged"
        ));
        if !self.kept.is_empty() {
            let names = visible(&self.kept.join(", "));
            lines.push(format!("not in the file, and kept without --prune: {names}"));
        }
        lines.join("\n") + "\n"
    }

    fn counts(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        for change in &self.list {
            counts[match change {
                Change::Add { .. } => 0,
                Change::Update { .. } => 1,
                Change::Delete { .. } => 2,
            }] += 1;
        }
        counts
    }

    pub(super) fn json(&self) -> Value {
        let mut added = Vec::new();
        let mut changed = Vec::new();
        let mut deleted = Vec::new();
        for change in &self.list {
            match change {
                Change::Add { rule } => added.push(json!(&*rule.name)),
                Change::Delete { before } => deleted.push(json!(&*before.rule.name)),
                Change::Update { rule, fields, .. } => {
                    changed.push(json!({ "rule": &*rule.name, "fields": fields }));
                }
            }
        }
        json!({
            "added": added,
            "changed": changed,
            "deleted": deleted,
            "kept": self.kept,
            "unchanged": self.unchanged,
        })
    }
}

impl Change {
    fn text(&self) -> String {
        visible(&match self {
            Self::Add { rule } => format!("+ {}: {}", rule.name, limits_of(rule)),
            Self::Delete { before } => {
                format!("- {}: {}", before.rule.name, limits_of(&before.rule))
            }
            Self::Update { rule, fields, .. } => {
                let fields: Vec<String> = fields.iter().map(field_text).collect();
                format!("~ {}: {}", rule.name, fields.join(", "))
            }
        })
    }
}

/// Returns a field and what becomes of it.
pub(super) fn field_text(change: &FieldChange) -> String {
    format!("{} {} -> {}", change.field, change.before, change.after)
}
