//! One set of rules out of the file's and the database's.
//!
//! The file's rules are always in it: whoever can write files has the last word. A row that does not fit
//! is left out and told of, and takes no other with it.

use std::collections::{BTreeSet, HashMap, HashSet};

use tollbar_rules::admin::RuleForm;
use tollbar_rules::{Effect, Override, Rule, RuleSet};

use super::load::{Loaded, Skipped};
use super::{KeyEffect, KeyRow, RuleId, RuleRow};

/// The most rules of a set.
const RULES_MAX: usize = 100_000;

/// The most bans and boosts.
const OVERRIDES_MAX: usize = 100_000;

/// The most different factors of boosts under every rule.
const FACTORS_MAX: usize = 64;

/// What came of it.
#[derive(Debug)]
pub(crate) struct Composed {
    pub(crate) rules: RuleSet,
    pub(crate) skipped: Vec<Skipped>,
}

/// Rules as they were read before: a form that has not changed need not be read again.
pub(crate) type Known = HashMap<RuleId, (RuleForm, Rule)>;

pub(crate) fn compose(file: &RuleSet, loaded: &Loaded, known: &mut Known) -> Composed {
    let mut skipped = loaded.bad.clone();
    let names: HashSet<&str> = file.rules().iter().map(|it| &*it.name).collect();
    let mut places: HashMap<RuleId, usize> = HashMap::with_capacity(loaded.rules.len());
    let mut rules: Vec<(&RuleRow, Rule)> = Vec::with_capacity(loaded.rules.len());
    let mut before = std::mem::take(known);
    for row in &loaded.rules {
        if names.contains(row.form.name.as_str()) {
            let why =
                "the file has a rule of that name, which goes before it: give it another name";
            skipped.push(of_rule(row, why.to_owned()));
            continue;
        }
        if file.len() + rules.len() >= RULES_MAX {
            skipped.push(of_rule(row, format!("there are {RULES_MAX} rules already")));
            continue;
        }
        let kept = before.remove(&row.id).filter(|(form, _)| *form == row.form);
        let read = kept.map_or_else(|| row.form.rule(), |(_, rule)| Ok(rule));
        match read {
            Ok(mut rule) => {
                // Whatever it is called: its counters stay.
                rule.id = Some(row.id.to_string().into());
                known.insert(row.id, (row.form.clone(), rule.clone()));
                places.insert(row.id, rules.len());
                rules.push((row, rule));
            }
            Err(error) => skipped.push(of_rule(row, error.to_string())),
        }
    }
    for row in &loaded.exemptions {
        let Some(at) = places.get(&row.rule) else {
            continue;
        };
        match row.form.exemption() {
            Ok(exemption) => rules[*at].1.exemptions.push(exemption),
            Err(error) => {
                let (id, name) = (row.id.to_string(), row.form.subject_value.clone());
                skipped.push(Skipped { what: "exemption", id, name, why: error.to_string() });
            }
        }
    }
    let overrides = overrides(&loaded.keys, &mut skipped);
    let rules = fitting(file, rules, &mut skipped);
    let rules = rules.with_node_count(file.node_count()).with_overrides(overrides);
    Composed { rules, skipped }
}

/// The file's rules and as many of the others as fit together with them.
fn fitting(file: &RuleSet, mut rows: Vec<(&RuleRow, Rule)>, skipped: &mut Vec<Skipped>) -> RuleSet {
    loop {
        if rows.is_empty() {
            return file.clone();
        }
        let all = file.rules().iter().chain(rows.iter().map(|(_, rule)| rule));
        let wrong: HashMap<usize, String> = match RuleSet::new(all.cloned().collect()) {
            Ok(rules) => match rules.rule_with_unleased_permits() {
                None => return rules,
                Some(rule) => {
                    let is_it = |(_, it): &(&RuleRow, Rule)| it.name == rule.name;
                    let why = "lease: what is in flight needs one, such as \"30s\"".to_owned();
                    rows.iter().position(is_it).map(|at| (at, why)).into_iter().collect()
                }
            },
            Err(error) => {
                let of_row = |it: tollbar_rules::RuleError| {
                    let at = it.rule.checked_sub(file.len())?;
                    Some((at, format!("{}: {}", it.field, it.problem)))
                };
                error.errors.into_iter().filter_map(of_row).collect()
            }
        };
        // A file is checked before it gets here, so what is wrong is wrong with a row.
        if wrong.is_empty() {
            let why = "it does not fit together with the rules of the file";
            skipped.extend(rows.iter().map(|(row, _)| of_rule(row, why.to_owned())));
            return file.clone();
        }
        let mut at = 0;
        rows.retain(|(row, _)| {
            let why = wrong.get(&at);
            at += 1;
            skipped.extend(why.map(|why| of_rule(row, why.clone())));
            why.is_none()
        });
    }
}

fn overrides(rows: &[KeyRow], skipped: &mut Vec<Skipped>) -> Vec<Override> {
    let mut overrides = Vec::with_capacity(rows.len().min(OVERRIDES_MAX));
    let mut factors = BTreeSet::new();
    for row in rows {
        let mut skip = |why: String| {
            let (id, name) = (row.id.to_string(), row.record.subject.clone());
            skipped.push(Skipped { what: "key record", id, name, why });
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
        let mut it = Override::new(&row.record.subject, effect);
        it.rule = row.record.rule.as_deref().map(Into::into);
        it.reason = row.record.reason.as_deref().map(Into::into);
        it.until = row.record.expires_at;
        overrides.push(it);
    }
    overrides
}

fn of_rule(row: &RuleRow, why: String) -> Skipped {
    Skipped { what: "rule", id: row.id.to_string(), name: row.form.name.clone(), why }
}

#[cfg(test)]
mod tests;
