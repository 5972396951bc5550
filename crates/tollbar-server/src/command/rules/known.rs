//! The rules of a daemon, as it tells them.

use serde_json::Value;
use tollbar_rules::Rule;
use tollbar_rules::admin::RuleForm;

use super::RULES;
use crate::command::client::{CallError, Client, Query, segment};

/// What a daemon adds to a rule.
const ADDED: [&str; 5] = ["ruleId", "source", "version", "createdAt", "updatedAt"];

/// A rule of a daemon.
#[derive(Debug, Clone)]
pub(in crate::command) struct Known {
    pub(in crate::command) id: String,
    pub(super) name: String,
    /// None where it is one of the daemon's own file.
    pub(super) version: Option<u64>,
    pub(super) is_enabled: bool,
    /// As it was told.
    pub(super) json: Value,
    /// What it says; none where this program is too old to read it.
    pub(super) form: Option<RuleForm>,
}

impl Known {
    pub(super) fn of(json: Value) -> Self {
        let mut fields = json.clone();
        if let Value::Object(fields) = &mut fields {
            fields.retain(|name, _| !ADDED.contains(&name.as_str()));
        }
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        Self {
            id: text("ruleId"),
            name: text("name"),
            version: json["version"].as_u64(),
            is_enabled: json["enabled"].as_bool().unwrap_or(true),
            form: RuleForm::from_json(&fields).ok(),
            json,
        }
    }

    /// The path of the rule.
    pub(in crate::command) fn path(&self) -> String {
        format!("{RULES}/{}", segment(&self.id))
    }

    /// Its version, by which others' changes are noticed.
    pub(super) fn version(&self) -> Result<u64, CallError> {
        self.version.ok_or_else(|| {
            let name = &self.name;
            CallError::Misused(format!(
                "rule `{name}` is in the daemon's own file: change it there, and it is put in force"
            ))
        })
    }

    /// Its limits, in the words of a file.
    pub(super) fn limits(&self) -> String {
        match self.form.as_ref().and_then(|it| it.rule().ok()) {
            Some(rule) => limits_of(&rule),
            None => "?".to_owned(),
        }
    }
}

/// The limits of a rule, in the words of a file.
pub(super) fn limits_of(rule: &Rule) -> String {
    if rule.unlimited {
        return "unlimited".to_owned();
    }
    let limits: Vec<&str> = rule.limits.iter().map(tollbar_rules::Limit::text).collect();
    let tiers = rule.tiers.limits.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
    match (limits.is_empty(), tiers.is_empty()) {
        (_, true) => limits.join(", "),
        (true, false) => format!("by tier: {tiers}"),
        (false, false) => format!("{}; by tier: {tiers}", limits.join(", ")),
    }
}

/// All rules that `query` leaves.
pub(super) async fn all(client: &Client, query: &Query) -> Result<Vec<Known>, CallError> {
    Ok(client.items(RULES, query).await?.into_iter().map(Known::of).collect())
}

/// The rule of that name, or else of that id.
pub(in crate::command) async fn find(client: &Client, named: &str) -> Result<Known, CallError> {
    let mut of_name = all(client, &Query::default().and("name", Some(named))).await?;
    of_name.retain(|it| it.name == named);
    match of_name.pop() {
        Some(known) => Ok(known),
        None => Ok(Known::of(client.get(&format!("{RULES}/{}", segment(named))).await?)),
    }
}

/// The path of the rule of that name; where there is none, of that id, whether or not it is there still.
pub(super) async fn path_even_of_deleted(
    client: &Client,
    named: &str,
) -> Result<String, CallError> {
    match find(client, named).await {
        Ok(known) => Ok(known.path()),
        Err(CallError::Refused(refused)) if refused.status == 404 => {
            Ok(format!("{RULES}/{}", segment(named)))
        }
        Err(error) => Err(error),
    }
}
