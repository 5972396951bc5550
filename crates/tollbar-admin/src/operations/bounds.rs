//! What the limits of a rule admit in any interval, as numbers.

use std::time::Duration;

use tollbar_rules::{LimitBounds, Rule, RuleAccuracy, RuleSet};

use super::Admin;
use super::rules::{RuleRecord, find};
use crate::operations::auth::access::{Actor, Permission};
use tollbar_daemon::problem::Problem;

/// The bounds of each limit of a rule, with as many nodes as there are now.
pub(crate) async fn of_rule(
    admin: &Admin,
    actor: &Actor,
    id: &str,
    lengths: &[Duration],
) -> Result<Vec<LimitBounds>, Problem> {
    let record = find(admin, actor.reach(Permission::See)?, id).await?;
    let (rules, file) = (admin.daemon.engine.rules(), admin.file_rules());
    let of_file = || file.rules().iter().find(|rule| **rule.identity() == *id);
    let rule = match &record {
        RuleRecord::Database(row) => &row.rule,
        RuleRecord::File(_) => of_file().ok_or_else(|| Problem::not_found("rule"))?,
    };
    if admin.daemon.engine.answers_at_once() {
        return Ok(of_one_process(rules, rule, lengths));
    }
    Ok(rules.bounds_of(rule, lengths))
}

/// The bounds of a process that has all counters of its own: it counts exactly, and shares with nobody.
fn of_one_process(rules: RuleSet, rule: &Rule, lengths: &[Duration]) -> Vec<LimitBounds> {
    let mut rule = rule.clone();
    rule.accuracy = Some(RuleAccuracy::Exact);
    rules.with_node_count(1).bounds_of(&rule, lengths)
}
