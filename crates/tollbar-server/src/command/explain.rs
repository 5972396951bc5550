//! `tollbar explain`: what the rules of a daemon make of a request, by its counters of this moment.

use clap::Args;
use serde_json::{Map, Value, json};

use super::client::{Call, ServerFlags};
use super::rules::RequestFlags;
use super::table::{cell, visible};
use super::{EXIT_CODES, Ending};

#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Explain {
    #[command(flatten)]
    request: RequestFlags,

    #[command(flatten)]
    server: ServerFlags,
}

const EXAMPLE: &str = "\
Example:
  tollbar explain --request 'GET /v1/users/7' -a user=42 -a ip=203.0.113.7";

impl Explain {
    pub(crate) fn run(self) -> Ending {
        let RequestFlags { request: (method, path), attributes, cost, criticality } = &self.request;
        let attributes: Map<String, Value> =
            attributes.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let question = json!({
            "method": method,
            "path": path,
            "attributes": attributes,
            "cost": cost,
            "criticality": criticality.name(),
        });
        self.server.run(async |client| {
            let call = Call::post("/v1/rate-limit/explain", question);
            let explained = client.send(call).await?;
            Ok(client.show(&explained, || text(&explained)))
        })
    }
}

/// As `tollbar rules explain` writes it.
fn text(explained: &Value) -> String {
    let said = |value: &Value| visible(&cell(value));
    let mut text = format!("{} {}\n", said(&explained["method"]), said(&explained["path"]));
    text += &format!("{}\n", said(&explained["summary"]));
    if let Some(error) = explained["storeError"].as_str() {
        text += &format!("the counters could not be read: {}\n", visible(error));
    }
    for rule in explained["rules"].as_array().into_iter().flatten() {
        let mark = match rule["fate"].as_str() {
            Some("applied") => "x",
            Some("unlimited" | "exempt") => "o",
            Some("denied") => "!",
            _ => " ",
        };
        text += &format!("\n[{mark}] {}: {}\n", said(&rule["name"]), said(&rule["why"]));
        let limits = rule["limits"].as_array().map_or(&[][..], Vec::as_slice);
        if limits.is_empty() {
            continue;
        }
        let subject = rule["subject"].as_str().unwrap_or("nobody");
        text += &format!("    counts {} at a cost of {}", visible(subject), rule["cost"]);
        if let Some(tier) = rule["tier"].as_str() {
            text += &format!(", tier {}", visible(tier));
        }
        text.push('\n');
        for limit in limits {
            text += &format!("    {}\n", limit_text(limit));
        }
    }
    text
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
        (_, false) => ", denies",
    };
    let binds = if limit["binds"] == true { ", binds" } else { "" };
    let text = visible(&cell(&limit["text"]));
    format!("{text} ({}): {left}{would}{binds}", cell(&limit["algorithm"]))
}
