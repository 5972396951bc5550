//! `tollbar explain`: what the rules of a daemon make of a request, by its counters of this moment.

use clap::Args;
use serde_json::{Map, Value, json};

use super::client::{ApiRequest, ServerFlags};
use super::rules::RequestFlags;
use super::table::{cell, visible};
use super::{EXIT_CODES, ExitStatus};

#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    request: RequestFlags,

    #[command(flatten)]
    server: ServerFlags,
}

const EXAMPLE: &str = "\
Example:
  tollbar explain --request 'GET /v1/users/7' -a user=42 -a ip=203.0.113.7";

impl ExplainArgs {
    pub(crate) fn run(self) -> ExitStatus {
        let RequestFlags { request: (method, path), attributes, cost, criticality } = &self.request;
        let attributes: Map<String, Value> =
            attributes.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let mut body = json!({
            "method": method,
            "path": path,
            "attributes": attributes,
            "cost": cost,
        });
        if let Some(criticality) = criticality {
            body["criticality"] = json!(criticality.name());
        }
        self.server.run(async |client| {
            let request = ApiRequest::post("/v1/rate-limit/explain", body);
            let explanation = client.send(request).await?;
            Ok(client.show(&explanation, || text(&explanation)))
        })
    }
}

/// As `tollbar rules explain` writes it.
fn text(explanation: &Value) -> String {
    let said = |value: &Value| visible(&cell(value));
    let mut lines = vec![
        format!("{} {}", said(&explanation["method"]), said(&explanation["path"])),
        said(&explanation["summary"]),
    ];
    let (criticality, why) = (&explanation["criticality"], &explanation["criticalityWhy"]);
    if criticality != "normal" || why != "by default" {
        lines.push(format!("{}: {}", said(criticality), said(why)));
    }
    if let Some(error) = explanation["storeError"].as_str() {
        lines.push(format!("the counters could not be read: {}", visible(error)));
    }
    for rule in explanation["rules"].as_array().into_iter().flatten() {
        let mark = match rule["fate"].as_str() {
            Some("applied") => "x",
            Some("unlimited" | "exempt") => "o",
            Some("denied" | "banned") => "!",
            _ => " ",
        };
        lines.push(format!("\n[{mark}] {}: {}", said(&rule["name"]), said(&rule["why"])));
        let limits = rule["limits"].as_array().map_or(&[][..], Vec::as_slice);
        if !limits.is_empty() {
            let subject = visible(rule["subject"].as_str().unwrap_or("nobody"));
            let tier = rule["tier"].as_str().map(|tier| format!(", tier {}", visible(tier)));
            let (cost, tier) = (&rule["cost"], tier.unwrap_or_default());
            lines.push(format!("    counts {subject} at a cost of {cost}{tier}"));
        }
        lines.extend(limits.iter().map(|limit| format!("    {}", limit_text(limit))));
    }
    lines.join("\n") + "\n"
}

fn limit_text(limit: &Value) -> String {
    let left = match &limit["remaining"] {
        Value::Null => "not known".to_owned(),
        remaining => format!("{remaining} of {} left", limit["limit"]),
    };
    let would_pass = limit["wouldPass"] == true;
    let would = match (limit["capacity"].as_str(), would_pass) {
        (Some("shadow"), true) => ", in the shadow",
        (Some("shadow"), false) => ", would deny were it not in the shadow",
        (Some("candidate"), true) => ", a candidate",
        (Some("candidate"), false) => ", would deny were it not a candidate",
        (_, true) => "",
        (_, false) if limit["alternative"].is_number() => ", does not allow",
        (_, false) => ", denies",
    };
    let pays = if limit["wouldPay"] == true { ", pays" } else { "" };
    let binds = if limit["binds"] == true { ", binds" } else { "" };
    let reserved = match limit["reserved"].as_u64() {
        Some(tokens) if tokens > 0 => format!(", {tokens} reserved for more critical requests"),
        _ => String::new(),
    };
    let text = visible(&cell(&limit["text"]));
    let alternative = match &limit["alternative"] {
        Value::Number(number) => format!("alternative {number}: "),
        _ => String::new(),
    };
    let counts = limit["subject"].as_str().map(|subject| format!(", counts {}", visible(subject)));
    let (algorithm, counts) = (cell(&limit["algorithm"]), counts.unwrap_or_default());
    format!("{alternative}{text} ({algorithm}{counts}): {left}{would}{reserved}{pays}{binds}")
}
