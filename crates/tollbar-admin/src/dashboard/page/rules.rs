//! The list of rules, with what each does.

use askama::Template;
use tollbar_rules::{Mode, Rule};

use super::super::rule_text::{applies_to, limit_line};
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::panel::overview::{RuleTraffic, rule_href};
use crate::dashboard::view::chart::{Meter, Sparkline};
use crate::dashboard::view::formatting::Share;
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::UntrustedText;
use crate::database::RuleFilter;
use crate::operations::rule_json::{RuleJson, Source};
use crate::operations::rules;

/// Rules of a page.
const ROWS: u32 = 100;

#[derive(Debug, Template)]
#[template(path = "rules.html")]
struct RulesPage {
    layout: Layout,
    name: String,
    enabled: String,
    rows: Vec<RuleListRow>,
    next: Option<String>,
}

#[derive(Debug)]
struct RuleListRow {
    href: String,
    name: UntrustedText,
    badges: Vec<&'static str>,
    is_enabled: bool,
    scope: UntrustedText,
    limit: UntrustedText,
    owner: UntrustedText,
    denied: Share,
    meter: Meter,
    near: Share,
    spark: Sparkline,
    version: String,
}

pub(crate) async fn list(context: &PageContext<'_>) -> PageResult {
    let query = &context.query;
    let enabled = match query.text("enabled") {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    };
    let filter =
        RuleFilter { enabled, name: query.non_empty_owned("name"), ..RuleFilter::default() };
    let paged =
        rules::list(context.admin, context.actor(), &filter, &context.page_request(ROWS)).await?;
    let figures = RuleTraffic::all(context.admin);
    let row = |json: RuleJson| {
        let RuleJson { rule_id, source, owner, version, rule, not_in_force, warnings, .. } = json;
        let figures = figures.get(&*rule.name).cloned().unwrap_or_default();
        RuleListRow {
            href: rule_href(&rule_id.unwrap_or_default()),
            badges: badges(&rule, source == Source::File, not_in_force.is_some())
                .into_iter()
                .chain((!warnings.is_empty()).then_some("warning"))
                .collect(),
            is_enabled: rule.enabled,
            scope: UntrustedText::new(applies_to(&rule)),
            limit: UntrustedText::new(limit_line(&rule)),
            owner: UntrustedText::new(owner.to_string()),
            denied: figures.share_denied(),
            meter: figures.meter(),
            near: figures.share_near(),
            spark: Sparkline(figures.denials),
            version: version.map_or_else(|| "–".to_owned(), |version| version.to_string()),
            name: UntrustedText::new(&*rule.name),
        }
    };
    let rows = paged.rows.into_iter().map(row).collect();
    let next = paged.next.map(|cursor| {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        for name in ["name", "enabled"] {
            if let Some(value) = query.non_empty(name) {
                pairs.append_pair(name, value);
            }
        }
        format!("/rules?{}", pairs.append_pair("cursor", cursor.as_text()).finish())
    });
    PageContext::page(&RulesPage {
        layout: context.layout(NavItem::Rules),
        name: query.text("name").to_owned(),
        enabled: query.text("enabled").to_owned(),
        rows,
        next,
    })
}

/// What is to be known of a rule at a glance.
pub(crate) fn badges(rule: &Rule, is_file: bool, is_not_in_force: bool) -> Vec<&'static str> {
    let all = [
        (is_not_in_force, "not in force"),
        (rule.mode == Mode::Shadow, "shadow"),
        (!rule.candidate.is_empty(), "candidate"),
        (!rule.enabled, "disabled"),
        (is_file, "file"),
    ];
    all.into_iter().filter(|badge| badge.0).map(|badge| badge.1).collect()
}
