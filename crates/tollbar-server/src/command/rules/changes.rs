//! What has to change for a daemon's rules to be those of a file.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use tollbar_rules::admin::RuleForm;
use tollbar_rules::{Rule, RuleSet};

use super::known::{Known, limits_of};
use crate::command::table::visible;

/// One change.
#[derive(Debug)]
pub(super) enum Change {
    Add { form: RuleForm, limits: String },
    Update { known: Known, form: RuleForm, fields: Vec<Field> },
    Delete { known: Known },
}

/// A field that becomes another.
#[derive(Debug)]
pub(super) struct Field {
    name: String,
    before: Value,
    after: Value,
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
    /// From `known` to `wanted`. What is not in `wanted` goes if `prune` says so.
    pub(super) fn between(known: &[Known], wanted: &RuleSet, prune: bool) -> Result<Self, String> {
        let mut it = Self { list: Vec::new(), unchanged: 0, kept: Vec::new() };
        let by_name: HashMap<&str, &Known> = known.iter().map(|it| (&*it.name, it)).collect();
        let wanted_names: HashSet<&str> = wanted.rules().iter().map(|it| &*it.name).collect();
        for rule in wanted.rules() {
            it.compare(by_name.get(&*rule.name).copied(), rule)?;
        }
        let is_own = |rule: &&Known| rule.version.is_some() && !wanted_names.contains(&*rule.name);
        for rule in known.iter().filter(is_own) {
            if prune {
                it.list.push(Change::Delete { known: rule.clone() });
            } else {
                it.kept.push(rule.name.clone());
            }
        }
        Ok(it)
    }

    fn compare(&mut self, known: Option<&Known>, rule: &Rule) -> Result<(), String> {
        let name = &rule.name;
        let form = RuleForm::of(rule).ok_or_else(|| format!("rule `{name}` cannot be sent"))?;
        let Some(known) = known else {
            let limits = limits_of(rule);
            self.list.push(Change::Add { form, limits });
            return Ok(());
        };
        if known.version.is_none() {
            return Err(format!(
                "rule `{name}` is in the daemon's own file, which goes before: take it out of one of them"
            ));
        }
        // The same rule can be said in more than one way; compared is what is meant.
        let meant = known.form.as_ref().and_then(|it| RuleForm::of(&it.rule().ok()?));
        let before = meant.map_or_else(|| known.json.clone(), |it| it.to_json());
        let fields = fields_between(&before, &form.to_json());
        if fields.is_empty() {
            self.unchanged += 1;
        } else {
            self.list.push(Change::Update { known: known.clone(), form, fields });
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
                Change::Add { form, .. } => added.push(json!(form.name)),
                Change::Delete { known } => deleted.push(json!(known.name)),
                Change::Update { form, fields, .. } => {
                    let field = |it: &Field| json!({ "field": it.name, "before": it.before, "after": it.after });
                    let fields: Vec<Value> = fields.iter().map(field).collect();
                    changed.push(json!({ "rule": form.name, "fields": fields }));
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
            Self::Add { form, limits } => format!("+ {}: {limits}", form.name),
            Self::Delete { known } => format!("- {}: {}", known.name, known.limits()),
            Self::Update { form, fields, .. } => {
                let field = |it: &Field| format!("{} {} -> {}", it.name, it.before, it.after);
                let fields: Vec<String> = fields.iter().map(field).collect();
                format!("~ {}: {}", form.name, fields.join(", "))
            }
        })
    }
}

fn fields_between(before: &Value, after: &Value) -> Vec<Field> {
    let names = |it: &Value| it.as_object().into_iter().flatten().map(|it| it.0.clone()).collect();
    let mut all: Vec<String> = names(before);
    all.extend(names(after));
    all.sort();
    all.dedup();
    let field = |name: String| {
        let (before, after) = (before[&*name].clone(), after[&*name].clone());
        (before != after).then_some(Field { name, before, after })
    };
    all.into_iter().filter_map(field).collect()
}
