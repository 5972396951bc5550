//! The rules of a daemon, as its admin interface sends them.

use std::collections::BTreeMap;

use serde_json::Value;
use tollbar_rules::{Rule, RuleWarning};

use super::RULES;
use crate::command::client::{ApiError, Client, Query, segment};
use crate::command::table::visible;
use tollbar_admin::operations::rule_json::RuleJson;

/// Returns the path of a rule.
pub(in crate::command) fn path_of(rule: &RuleJson) -> String {
    format!("{RULES}/{}", segment(rule.id()))
}

/// Returns the version by which changes of others are noticed.
pub(super) fn version_to_change(rule: &RuleJson) -> Result<u64, ApiError> {
    rule.version.ok_or_else(|| {
        let name = &rule.rule.name;
        ApiError::InvalidInput(format!(
            "rule `{name}` is in the daemon's own file: change it there, and it is put in force"
        ))
    })
}

/// Says on standard error which rules are not in force although they are enabled, and what in rules is
/// probably not meant.
pub(super) fn warn_of(rules: &[RuleJson]) {
    for RuleJson { rule, not_in_force, warnings, .. } in rules {
        let name = visible(&rule.name);
        if let Some(why) = not_in_force {
            eprintln!("error: rule `{name}` is enabled and not in force: {}", visible(why));
        }
        for RuleWarning { field, message, .. } in warnings {
            eprintln!("warning: rule `{name}`: {}: {}", visible(field), visible(message));
        }
    }
}

/// Returns the limits of a rule, in the words of a file.
pub(super) fn limits_of(rule: &Rule) -> String {
    if rule.unlimited {
        return "unlimited".to_owned();
    }
    let alternatives = rule
        .limits
        .chunk_by(|a, b| a.alternative().is_some() && a.alternative() == b.alternative());
    let text = |limits: &[tollbar_rules::Limit]| {
        limits.iter().map(tollbar_rules::Limit::text).collect::<Vec<_>>().join(" and ")
    };
    let limits: Vec<String> = alternatives.map(text).collect();
    let is_any_of = rule.limits.iter().any(|limit| limit.alternative().is_some());
    let separator = if is_any_of { ", else " } else { ", " };
    let tiers = rule.tiers.limits.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
    match (limits.is_empty(), tiers.is_empty()) {
        (_, true) => limits.join(separator),
        (true, false) => format!("by tier: {tiers}"),
        (false, false) => format!("{}; by tier: {tiers}", limits.join(separator)),
    }
}

/// Reads a rule from a response.
pub(super) fn read(client: &Client, json: Value) -> Result<RuleJson, ApiError> {
    serde_json::from_value(json).map_err(|error| {
        client.unexpected_response(format!("a rule that this version does not know: {error}"))
    })
}

/// Returns all rules that match `query`.
pub(super) async fn all(client: &Client, query: &Query) -> Result<Vec<RuleJson>, ApiError> {
    let items = client.items(RULES, query).await?;
    items.into_iter().map(|item| read(client, item)).collect()
}

/// Returns the rule of that name, or else of that id.
pub(in crate::command) async fn find(client: &Client, named: &str) -> Result<RuleJson, ApiError> {
    let mut of_name = all(client, &Query::default().and("name", Some(named))).await?;
    of_name.retain(|rule| *rule.rule.name == *named);
    match of_name.pop() {
        Some(rule) => Ok(rule),
        None => read(client, client.get(&format!("{RULES}/{}", segment(named))).await?),
    }
}

/// Returns the id of the rule of that name or id, where one is named.
pub(in crate::command) async fn id_of(
    client: &Client,
    named: Option<&str>,
) -> Result<Option<String>, ApiError> {
    match named {
        Some(named) => find(client, named).await.map(|rule| Some(rule.id().to_owned())),
        None => Ok(None),
    }
}

/// Returns records of the admin API with the name of each one's rule as `rule`, for people. A rule that is gone is called
/// by its id.
pub(in crate::command) async fn with_rule_names(
    client: &Client,
    mut records: Vec<Value>,
) -> Result<Vec<Value>, ApiError> {
    let has_rules = records.iter().any(|record| record["ruleId"].is_string());
    let rules = if has_rules { all(client, &Query::default()).await? } else { Vec::new() };
    let names: BTreeMap<_, _> = rules.iter().map(|rule| (rule.id(), &*rule.rule.name)).collect();
    for record in &mut records {
        let name = match record["ruleId"].as_str() {
            None => "(all)",
            Some(id) => names.get(id).copied().unwrap_or(id),
        };
        record["rule"] = Value::from(name);
    }
    Ok(records)
}

/// Returns the path of the rule of that name; where there is none, of that id, whether or not it is there
/// still.
pub(super) async fn path_even_of_deleted(client: &Client, named: &str) -> Result<String, ApiError> {
    match find(client, named).await {
        Ok(rule) => Ok(path_of(&rule)),
        Err(ApiError::Refused(refused)) if refused.status == 404 => {
            Ok(format!("{RULES}/{}", segment(named)))
        }
        Err(error) => Err(error),
    }
}
