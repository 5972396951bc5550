//! The list of rules, with what each does.

use askama::Template;
use serde_json::Value;

use super::super::chart::{Meter, Sparkline};
use super::super::figure::Share;
use super::super::frame::{Frame, Place};
use super::super::picture::{RuleFigures, rule_href};
use super::super::rule_text::RuleText;
use super::super::shown::Shown;
use super::super::visit::{Came, Visit};
use crate::admin::rules::{self, Wanted};

/// Rules of a page.
const ROWS: u32 = 100;

#[derive(Debug, Template)]
#[template(path = "rules.html")]
struct Rules {
    frame: Frame,
    name: String,
    enabled: String,
    rows: Vec<Row>,
    next: Option<String>,
}

#[derive(Debug)]
struct Row {
    href: String,
    name: Shown,
    badges: Vec<&'static str>,
    is_enabled: bool,
    scope: Shown,
    limit: Shown,
    denied: Share,
    meter: Meter,
    near: Share,
    spark: Sparkline,
    version: String,
}

pub(crate) async fn list(visit: &Visit<'_>) -> Came {
    let query = &visit.query;
    let enabled = match query.text("enabled") {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    };
    let wanted = Wanted { enabled, name: query.owned("name"), ..Wanted::default() };
    let paged = rules::list(visit.admin, visit.actor(), &wanted, &visit.paging(ROWS)).await?;
    let figures = RuleFigures::all(visit.admin);
    let row = |json: Value| {
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        let name = text("name");
        let figures = figures.get(&name).cloned().unwrap_or_default();
        let says = RuleText::of_json(&json);
        Row {
            href: rule_href(&text("ruleId")),
            badges: badges(&json),
            is_enabled: json["enabled"] != false,
            scope: Shown::new(says.applies_to()),
            limit: Shown::new(limit(&says)),
            denied: figures.share_denied(),
            meter: figures.meter(),
            near: figures.share_near(),
            spark: Sparkline(figures.denials),
            version: json["version"].as_u64().map_or_else(|| "–".to_owned(), |it| it.to_string()),
            name: Shown::new(name),
        }
    };
    // Fails only for maps whose keys are no texts, and there are none.
    let json = |it| serde_json::to_value(it).unwrap_or_default();
    let rows = paged.items.into_iter().map(json).map(row).collect();
    let next = paged.next_cursor.map(|cursor| {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        for name in ["name", "enabled"] {
            if let Some(value) = query.filled(name) {
                pairs.append_pair(name, value);
            }
        }
        format!("/rules?{}", pairs.append_pair("cursor", &cursor).finish())
    });
    Visit::page(&Rules {
        frame: visit.frame(Place::Rules),
        name: query.text("name").to_owned(),
        enabled: query.text("enabled").to_owned(),
        rows,
        next,
    })
}

/// What is to be known of a rule at a glance.
pub(crate) fn badges(json: &Value) -> Vec<&'static str> {
    let all = [
        (json["mode"] == "shadow", "shadow"),
        (!json["candidate"].is_null(), "candidate"),
        (json["enabled"] == false, "disabled"),
        (json["source"] == "file", "file"),
    ];
    all.into_iter().filter(|it| it.0).map(|it| it.1).collect()
}

/// What a rule allows, in a line.
fn limit(says: &RuleText) -> String {
    let of = |name: &str| says.line(name);
    let limit = of("limit")
        .or_else(|| of("tiers"))
        .or_else(|| of("unlimited").map(|_| "unlimited".to_owned()));
    let limit = limit.unwrap_or_else(|| "–".to_owned());
    let burst = of("burst").map_or_else(String::new, |it| format!(", burst {it}"));
    let per = of("per").map_or_else(String::new, |it| match it.trim_matches(['[', ']']) {
        "" => " for all together".to_owned(),
        per => format!(" per {per}"),
    });
    format!("{limit}{burst}{per}")
}
