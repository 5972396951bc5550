//! One set of rules out of the file's and the database's.
//!
//! The file's rules are always in it: whoever can write files has the last word. A row that does not fit
//! is left out and told of, and takes no other with it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use tollbar_rules::{Effect, Override, Rule, RuleProblem, RuleSet, RuleSetError};

use crate::database::sync::contents::{DatabaseContents, RuleDelta, SkippedRow};
use crate::database::{ExemptionRow, KeyEffect, KeyRow, RuleId, RuleRow};

/// The most rules of a set.
const RULES_MAX: usize = 100_000;

/// The most bans and boosts.
const OVERRIDES_MAX: usize = 100_000;

/// The most different factors of boosts under every rule.
const FACTORS_MAX: usize = 64;

/// The rules of the file and the database, merged.
#[derive(Debug)]
pub(crate) struct MergedRules {
    pub(crate) rules: RuleSet,
    pub(crate) skipped: Vec<SkippedRow>,
    pub(crate) void_replaces: Vec<VoidReplaces>,
}

/// A rule of the database that replaces a rule which is not in force. It is in force itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoidReplaces {
    /// The rule's id.
    pub id: String,
    /// The rule's name.
    pub name: String,
    /// The name of the rule that is not in force.
    pub replaced: String,
}

impl fmt::Display for VoidReplaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replaced, .. } = self;
        write!(f, "there is no rule `{replaced}` in force, so there is nothing to replace")
    }
}

/// Rules that the store cannot count, by their ids, and why.
pub(crate) type UnsupportedRules = HashMap<String, String>;

/// Rules by id as the last merge built them. One whose row and exemptions have not changed is used again.
pub(crate) type BuiltRules = HashMap<RuleId, BuiltRule>;

/// A rule, and the rows it was built from.
#[derive(Debug)]
pub(crate) struct BuiltRule {
    row: Arc<RuleRow>,
    exemptions: Arc<[ExemptionRow]>,
    rule: Arc<Rule>,
    /// False where an exemption was left out: it is to be told of each time.
    is_whole: bool,
}

pub(crate) fn merge(
    file: &RuleSet,
    contents: &DatabaseContents,
    built: &mut BuiltRules,
    unsupported: &UnsupportedRules,
) -> MergedRules {
    let mut skipped = contents.bad.clone();
    let names: HashSet<&str> = file.rules().iter().map(|rule| &*rule.name).collect();
    let mut rules: Vec<(&RuleRow, Arc<Rule>)> = Vec::with_capacity(contents.rules.len());
    let mut before = std::mem::take(built);
    for row in &contents.rules {
        if names.contains(&*row.rule.name) {
            let why =
                "the file has a rule of that name, which goes before it: give it another name";
            skipped.push(skipped_rule(row, why.to_owned()));
            continue;
        }
        if let Some(why) = unsupported.get(&row.id.to_string()) {
            skipped.push(skipped_rule(row, why.clone()));
            continue;
        }
        if file.len() + rules.len() >= RULES_MAX {
            skipped.push(skipped_rule(row, format!("there are {RULES_MAX} rules already")));
            continue;
        }
        let exemptions = contents.exemptions_of(row.id);
        let kept =
            before.remove(&row.id).filter(|built_rule| built_rule.is_built_from(row, &exemptions));
        let built_rule = kept.unwrap_or_else(|| BuiltRule::new(row, exemptions, &mut skipped));
        rules.push((row, Arc::clone(&built_rule.rule)));
        built.insert(row.id, built_rule);
    }
    let overrides = overrides(&contents.keys, &mut skipped);
    let mut void_replaces = Vec::new();
    let rules = keep_fitting(file, rules, &mut skipped, &mut void_replaces);
    let rules = rules.with_node_count(file.node_count()).with_accuracy(file.accuracy());
    let rules = rules.with_path_options(file.path_options());
    let rules = rules.with_overrides(overrides);
    MergedRules { rules, skipped, void_replaces }
}

/// Merges changes into rules that all fitted together before; `None` if they no longer do. The caller then merges
/// everything.
pub(crate) fn merge_changes(
    before: &RuleSet,
    contents: &DatabaseContents,
    delta: &RuleDelta,
    built: &mut BuiltRules,
) -> Option<RuleSet> {
    let mut skipped = Vec::new();
    let mut with = Vec::with_capacity(delta.current.len());
    for id in &delta.removed {
        built.remove(id);
    }
    for row in &delta.current {
        let built_rule = BuiltRule::new(row, contents.exemptions_of(row.id), &mut skipped);
        with.push(Arc::clone(&built_rule.rule));
        built.insert(row.id, built_rule);
    }
    if with.iter().any(|rule| rule.has_unleased_permits()) {
        return None;
    }
    let without: Vec<String> = delta.removed.iter().map(ToString::to_string).collect();
    let without: Vec<&str> = without.iter().map(String::as_str).collect();
    let mut rules = before.changed(&without, with).ok()?;
    if delta.has_keys {
        rules = rules.with_overrides(overrides(&contents.keys, &mut skipped));
    }
    skipped.is_empty().then_some(rules)
}

impl BuiltRule {
    /// An exemption that is none is left out and told of.
    fn new(
        row: &Arc<RuleRow>,
        exemptions: Arc<[ExemptionRow]>,
        skipped: &mut Vec<SkippedRow>,
    ) -> Self {
        let mut rule = row.rule.clone();
        // Whatever it is called: its counters stay.
        rule.id = Some(row.id.to_string().into());
        let skipped_before = skipped.len();
        for exemption_row in &*exemptions {
            match exemption_row.form.exemption() {
                Ok(exemption) => rule.exemptions.push(exemption),
                Err(error) => {
                    let (id, name) =
                        (exemption_row.id.to_string(), exemption_row.form.subject_value.clone());
                    skipped.push(SkippedRow {
                        what: "exemption",
                        id,
                        name,
                        why: error.to_string(),
                    });
                }
            }
        }
        let is_whole = skipped.len() == skipped_before;
        Self { row: Arc::clone(row), exemptions, rule: Arc::new(rule), is_whole }
    }

    /// True where it would be made of these again, and nobody would have to be told of anything.
    fn is_built_from(&self, row: &Arc<RuleRow>, exemptions: &Arc<[ExemptionRow]>) -> bool {
        let is_same_row = Arc::ptr_eq(&self.row, row) || self.row.rule == row.rule;
        self.is_whole && is_same_row && self.exemptions == *exemptions
    }
}

/// The file's rules and as many of the others as fit together with them. A rule that replaces one which is
/// not in force stays: it has nothing to replace.
fn keep_fitting(
    file: &RuleSet,
    mut rows: Vec<(&RuleRow, Arc<Rule>)>,
    skipped: &mut Vec<SkippedRow>,
    void_replaces: &mut Vec<VoidReplaces>,
) -> RuleSet {
    loop {
        if rows.is_empty() {
            return file.clone();
        }
        let all = file.rules().iter().chain(rows.iter().map(|(_, rule)| rule));
        let wrong: HashMap<usize, String> = match RuleSet::of_shared(all.cloned().collect()) {
            Ok(rules) => match rules.rule_with_unleased_permits() {
                None => return rules,
                Some(rule) => {
                    let is_it = |(_, other): &(&RuleRow, Arc<Rule>)| other.name == rule.name;
                    let why = "lease: what is in flight needs one, such as \"30s\"".to_owned();
                    rows.iter().position(is_it).map(|at| (at, why)).into_iter().collect()
                }
            },
            Err(error) => {
                if leave_out_replaces(&error, file.len(), &mut rows, void_replaces) {
                    continue;
                }
                let of_row = |rule_error: tollbar_rules::RuleError| {
                    let at = rule_error.rule.checked_sub(file.len())?;
                    Some((at, format!("{}: {}", rule_error.field, rule_error.problem)))
                };
                error.errors.into_iter().filter_map(of_row).collect()
            }
        };
        // A file is checked before it gets here, so what is wrong is wrong with a row.
        if wrong.is_empty() {
            let why = "it does not fit together with the rules of the file";
            skipped.extend(rows.iter().map(|(row, _)| skipped_rule(row, why.to_owned())));
            return file.clone();
        }
        let mut at = 0;
        rows.retain(|(row, _)| {
            let why = wrong.get(&at);
            at += 1;
            skipped.extend(why.map(|why| skipped_rule(row, why.clone())));
            why.is_none()
        });
    }
}

/// Takes the names of rules that are not there out of the `replaces` of rows. Returns false if there are none.
fn leave_out_replaces(
    error: &RuleSetError,
    file_len: usize,
    rows: &mut [(&RuleRow, Arc<Rule>)],
    void_replaces: &mut Vec<VoidReplaces>,
) -> bool {
    let mut has_changed = false;
    for rule_error in &error.errors {
        let RuleProblem::UnknownReplaced { name: replaced } = &rule_error.problem else {
            continue;
        };
        let Some((row, rule)) =
            rule_error.rule.checked_sub(file_len).and_then(|at| rows.get_mut(at))
        else {
            continue;
        };
        Arc::make_mut(rule).replaces.retain(|name| **name != **replaced);
        void_replaces.push(VoidReplaces {
            id: row.id.to_string(),
            name: row.rule.name.to_string(),
            replaced: replaced.clone(),
        });
        has_changed = true;
    }
    has_changed
}

fn overrides(rows: &[Arc<KeyRow>], skipped: &mut Vec<SkippedRow>) -> Vec<Override> {
    let mut overrides = Vec::with_capacity(rows.len().min(OVERRIDES_MAX));
    let mut factors = BTreeSet::new();
    for row in rows {
        let mut skip = |why: String| {
            let (id, name) = (row.id.to_string(), row.record.subject.clone());
            skipped.push(SkippedRow { what: "key record", id, name, why });
        };
        if overrides.len() >= OVERRIDES_MAX {
            skip(format!("there are {OVERRIDES_MAX} bans and boosts already"));
            continue;
        }
        let effect = match row.record.effect {
            KeyEffect::Ban => Effect::Ban,
            KeyEffect::Boost { factor_percent } => Effect::Boost { factor_percent },
        };
        if let (Effect::Boost { factor_percent }, None) = (effect, &row.record.rule) {
            if factors.len() >= FACTORS_MAX && !factors.contains(&factor_percent) {
                skip(format!(
                    "boosts under every rule have {FACTORS_MAX} factors already: use one of them"
                ));
                continue;
            }
            factors.insert(factor_percent);
        }
        let mut key_override = Override::new(&row.record.subject, effect);
        key_override.rule = row.record.rule.as_deref().map(Into::into);
        key_override.reason = row.record.reason.as_deref().map(Into::into);
        key_override.until = row.record.expires_at;
        overrides.push(key_override);
    }
    overrides
}

fn skipped_rule(row: &RuleRow, why: String) -> SkippedRow {
    SkippedRow { what: "rule", id: row.id.to_string(), name: row.rule.name.to_string(), why }
}

#[cfg(test)]
mod tests;
