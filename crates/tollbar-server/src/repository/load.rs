//! Everything that nodes enforce, read at one instant together with its revision.

use super::operation::rules::BadRule;
use super::operation::{exemptions, keys, nodes, rules};
use super::sql::Sql;
use super::{ExemptionRow, KeyRow, Result, Revisions, RuleRow};

/// What the database says is to be enforced.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Loaded {
    /// As of when.
    pub revisions: Revisions,
    /// Rules that are enabled.
    pub rules: Vec<RuleRow>,
    /// Exemptions from them.
    pub exemptions: Vec<ExemptionRow>,
    /// Bans and boosts that have not ended.
    pub keys: Vec<KeyRow>,
    /// Rows that say nothing that could be enforced.
    pub bad: Vec<Skipped>,
}

/// A row that is not enforced. The others are, all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// What it was meant to be: `rule`, `exemption` or `key record`.
    pub what: &'static str,
    /// Its id.
    pub id: String,
    /// Its name, where it has one.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
}

pub(super) async fn load<S: Sql>(sql: &S) -> Result<Loaded> {
    let mut loaded = Loaded { revisions: nodes::revisions(sql).await?, ..Loaded::default() };
    for row in rules::enabled(sql).await? {
        match row {
            Ok(row) => loaded.rules.push(row),
            Err(BadRule { id, name, why, .. }) => {
                loaded.bad.push(Skipped { what: "rule", id, name, why });
            }
        }
    }
    let bad = |what, why: String| Skipped { what, id: String::new(), name: String::new(), why };
    for row in exemptions::in_force(sql).await? {
        match row {
            Ok(row) => loaded.exemptions.push(row),
            Err(error) => loaded.bad.push(bad("exemption", error.to_string())),
        }
    }
    for row in keys::in_force(sql).await? {
        match row {
            Ok(row) => loaded.keys.push(row),
            Err(error) => loaded.bad.push(bad("key record", error.to_string())),
        }
    }
    Ok(loaded)
}
