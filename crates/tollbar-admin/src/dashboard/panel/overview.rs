//! Everything the overview shows, as it is now: gathered once for a page, and once a second for all who
//! watch. It names no person and holds no form, so that the same parts are everybody's.

use std::collections::{BTreeMap, HashMap};

use askama::Template;
use serde::{Deserialize, Serialize};

use super::health::HealthPanel;
use crate::dashboard::panel::traffic::{Range, TrafficPanel, sums};
use crate::dashboard::view::chart::{Meter, Sparkline};
use crate::dashboard::view::formatting::{ClockTime, Count, Rate, Share};
use crate::dashboard::view::untrusted_text::UntrustedText;
use crate::operations::Admin;
use tollbar::Timestamp;
use tollbar_daemon::decision_log::Denial;
use tollbar_daemon::metrics::MetricsSnapshot;

/// Rules, keys and denials that there is room for.
const RULES_MAX: usize = 12;
const KEYS_MAX: usize = 8;
const DENIALS_MAX: usize = 12;

/// Columns of a small chart.
const SPARK_COLUMNS: usize = 60;

/// The parts of the overview, each as HTML by the id of its place.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OverviewPanels {
    pub(crate) now: String,
    pub(crate) health: String,
    pub(crate) traffic: String,
    pub(crate) rules: String,
    pub(crate) keys: String,
    pub(crate) tail: String,
}

/// What the rules do.
#[derive(Debug, Template)]
#[template(path = "part/rules.html")]
struct RulesPanel {
    rows: Vec<RulesPanelRow>,
    more: usize,
}

#[derive(Debug)]
struct RulesPanelRow {
    href: String,
    name: UntrustedText,
    badges: Vec<&'static str>,
    figures: RuleTraffic,
    rate: Rate,
    denied: Share,
    meter: Meter,
    near: Share,
    spark: Sparkline,
}

/// What one rule did lately.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleTraffic {
    pub(crate) total: u64,
    pub(crate) denied: u64,
    pub(crate) near: u64,
    pub(crate) seconds: u64,
    pub(crate) denials: Vec<u64>,
}

/// Who is limited most.
#[derive(Debug, Template)]
#[template(path = "part/keys.html")]
pub(crate) struct KeysPanel {
    pub(crate) rows: Vec<KeysPanelRow>,
}

#[derive(Debug)]
pub(crate) struct KeysPanelRow {
    pub(crate) href: String,
    pub(crate) subject: UntrustedText,
    pub(crate) rule: UntrustedText,
    pub(crate) count: Count,
}

/// The latest denials.
#[derive(Debug, Template)]
#[template(path = "part/tail.html")]
struct DenialsPanel {
    rows: Vec<DenialsPanelRow>,
}

#[derive(Debug)]
struct DenialsPanelRow {
    href: String,
    at: ClockTime,
    rule: UntrustedText,
    request: UntrustedText,
    subject: UntrustedText,
}

/// A denied request, as the decision log keeps it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeniedRequest {
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) cost: u64,
    pub(crate) rule: Option<String>,
    pub(crate) subject: Option<String>,
}

impl OverviewPanels {
    /// As it is now. What the database cannot tell is left out.
    pub(crate) async fn gather(admin: &Admin, range: Range) -> Self {
        let (daemon, now) = (&admin.daemon, admin.daemon.now());
        let snapshot = daemon.metrics.snapshot(&daemon.engine, &daemon.counters, now);
        let traffic = TrafficPanel::of(&daemon.metrics.history(), None, range);
        let lately = match range {
            Range::Minutes => None,
            Range::Day => Some(TrafficPanel::of(&daemon.metrics.history(), None, Range::Minutes)),
        };
        let nodes = match (admin.repository.nodes().await, admin.repository.revisions().await) {
            (Ok(nodes), Ok(revisions)) => Some((nodes, revisions.rules)),
            _ => None,
        };
        let health = HealthPanel::of(&snapshot, lately.as_ref().unwrap_or(&traffic), nodes, now);
        Self {
            now: ClockTime(now).to_string(),
            health: render(&health),
            traffic: render(&traffic),
            rules: render(&RulesPanel::of(admin, &snapshot)),
            keys: render(&KeysPanel::of(admin, None, KEYS_MAX)),
            tail: render(&DenialsPanel::of(daemon.decision_log.latest(DENIALS_MAX))),
        }
    }
}

/// Renders a panel as HTML.
pub(crate) fn render(part: &impl Template) -> String {
    // Fails only where a number or a text does, and they do not.
    part.render().unwrap_or_default()
}

impl RuleTraffic {
    /// Of every rule that did something lately, by name.
    pub(crate) fn all(admin: &Admin) -> HashMap<String, Self> {
        let history = admin.daemon.metrics.history();
        let names: Vec<String> = history.rules().map(str::to_owned).collect();
        let figures = |name: String| {
            let series = history.seconds(Some(&name), tollbar_daemon::metrics::SECONDS_MAX)?;
            Some((name, Self::of(&series)))
        };
        names.into_iter().filter_map(figures).collect()
    }

    fn of(series: &tollbar_daemon::metrics::HistorySeries) -> Self {
        let mut figures = Self { seconds: series.points.len() as u64, ..Self::default() };
        for it in &series.points {
            let denied = u64::from(it.denied) + u64::from(it.shadow_denied);
            figures.total += u64::from(it.allowed) + u64::from(it.degraded) + denied;
            figures.denied += denied;
            figures.near += u64::from(it.near_limit);
        }
        figures.denials = sums(&series.points, SPARK_COLUMNS, |it| {
            u64::from(it.denied) + u64::from(it.shadow_denied)
        });
        figures
    }

    pub(crate) fn share_denied(&self) -> Share {
        Share { part: self.denied, whole: self.total }
    }

    pub(crate) fn share_near(&self) -> Share {
        Share { part: self.near, whole: self.total }
    }

    pub(crate) fn meter(&self) -> Meter {
        Meter { percent: self.share_denied().percent(), class: "denied" }
    }
}

impl RulesPanel {
    fn of(admin: &Admin, snapshot: &MetricsSnapshot) -> Self {
        let mut figures = RuleTraffic::all(admin);
        let rules = admin.daemon.engine.rules();
        let mut rows: Vec<RulesPanelRow> = Vec::new();
        for rule in rules.rules().iter().filter(|it| snapshot.limited.contains(&it.name)) {
            let figures = figures.remove(&*rule.name).unwrap_or_default();
            let mut badges = Vec::new();
            if rule.mode == tollbar_rules::Mode::Shadow {
                badges.push("shadow");
            }
            if !rule.candidate.is_empty() {
                badges.push("candidate");
            }
            rows.push(RulesPanelRow {
                href: rule_href(rule.identity()),
                name: UntrustedText::new(&*rule.name),
                badges,
                rate: Rate { count: figures.total, seconds: figures.seconds },
                denied: figures.share_denied(),
                meter: figures.meter(),
                near: figures.share_near(),
                spark: Sparkline(figures.denials.clone()),
                figures,
            });
        }
        rows.sort_by(|a, b| {
            let weight = |it: &RulesPanelRow| (it.figures.denied, it.figures.total);
            weight(b).cmp(&weight(a)).then_with(|| a.name.cmp(&b.name))
        });
        let more = rows.len().saturating_sub(RULES_MAX);
        rows.truncate(RULES_MAX);
        Self { rows, more }
    }
}

impl KeysPanel {
    /// Of all rules, or of one.
    pub(crate) fn of(admin: &Admin, rule: Option<&str>, count: usize) -> Self {
        let rules = admin.daemon.engine.rules();
        let mut rows: Vec<(u64, KeysPanelRow)> = Vec::new();
        for rule in rules.rules().iter().filter(|it| rule.is_none_or(|name| *it.name == *name)) {
            // One that is gone by now denies nobody.
            let handle = admin.daemon.engine.rule(&rule.name).ok();
            let limited = handle.map_or_else(Vec::new, |it| it.top_denied(count));
            rows.extend(limited.into_iter().map(|it| {
                let subject = UntrustedText::new(it.subject);
                let row = KeysPanelRow {
                    href: key_href(rule.identity(), &subject),
                    subject,
                    rule: UntrustedText::new(&*rule.name),
                    count: Count(it.count),
                };
                (it.count, row)
            }));
            // Kept small on the way: there may be many rules.
            rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.subject.cmp(&b.1.subject)));
            rows.truncate(count);
        }
        Self { rows: rows.into_iter().map(|(_, row)| row).collect() }
    }
}

impl DenialsPanel {
    fn of(denials: Vec<Denial>) -> Self {
        let row = |denial: Denial| {
            let request = DeniedRequest::of(&denial);
            DenialsPanelRow {
                href: format!("/explain?about={}", denial.id),
                at: ClockTime(denial.at),
                rule: UntrustedText::new(denial.verdict.rule().map_or("no rule", |it| &*it.name)),
                request: UntrustedText::new(request.description()),
                subject: UntrustedText::new(request.subject_text()),
            }
        };
        Self { rows: denials.into_iter().map(row).collect() }
    }
}

impl DeniedRequest {
    /// What was asked for; nothing is known of what was too long to be kept.
    pub(crate) fn of(denial: &Denial) -> Self {
        let request = denial.request.as_deref().and_then(|it| serde_json::from_str(it).ok());
        request.unwrap_or_default()
    }

    pub(crate) fn description(&self) -> String {
        match (&self.method, &self.path, &self.rule) {
            (Some(method), Some(path), _) => format!("{method} {path}"),
            (_, _, Some(rule)) => format!("a check of {rule}"),
            _ => "too long to be kept".to_owned(),
        }
    }

    pub(crate) fn subject_text(&self) -> String {
        if let Some(subject) = &self.subject {
            return subject.clone();
        }
        let client = [("api_key", "api"), ("user", "user"), ("ip", "ip")];
        let known = client.iter().find_map(|(name, prefix)| {
            self.attributes.get(*name).map(|value| format!("{prefix}:{value}"))
        });
        let first = || self.attributes.iter().next().map(|(name, value)| format!("{name}={value}"));
        known.or_else(first).unwrap_or_else(|| "–".to_owned())
    }
}

/// The page of a rule.
pub(crate) fn rule_href(id: &str) -> String {
    let id: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    format!("/rules/{}", id.replace('+', "%20"))
}

/// The page of a key.
pub(crate) fn key_href(rule: &str, subject: &UntrustedText) -> String {
    let rule: String = form_urlencoded::byte_serialize(rule.as_bytes()).collect();
    format!("/key?rule={rule}&subject={}", subject.in_query())
}

/// Returns the end of something that may have none.
pub(crate) fn expiry_text(instant: Option<Timestamp>) -> String {
    instant.map_or_else(
        || "without end".to_owned(),
        |it| crate::dashboard::view::formatting::DateTime(it).to_string(),
    )
}
