//! Everything the overview shows, as it is now: gathered once for a page, and once a second for all who
//! watch. It names no person and holds no form, so that the same parts are everybody's.

use std::collections::{BTreeMap, HashMap};

use askama::Template;
use serde::{Deserialize, Serialize};

use super::health::HealthPanel;
use crate::dashboard::panel::traffic::{TimeRange, TrafficPanel, sums};
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
    pub(crate) async fn gather(admin: &Admin, range: TimeRange) -> Self {
        let (daemon, now) = (&admin.daemon, admin.daemon.now());
        let snapshot = daemon.metrics.snapshot(&daemon.engine, &daemon.counters, now);
        let traffic = TrafficPanel::new(&daemon.metrics.history(), None, range);
        let lately = match range {
            TimeRange::Minutes => None,
            TimeRange::Day => {
                Some(TrafficPanel::new(&daemon.metrics.history(), None, TimeRange::Minutes))
            }
        };
        let nodes = match (admin.repository.nodes().await, admin.repository.revisions().await) {
            (Ok(nodes), Ok(revisions)) => Some((nodes, revisions.rules)),
            _ => None,
        };
        let not_in_force = admin.live.status().skipped.len();
        let lately = lately.as_ref().unwrap_or(&traffic);
        let health = HealthPanel::new(&snapshot, lately, nodes, not_in_force, now);
        Self {
            now: ClockTime(now).to_string(),
            health: render(&health),
            traffic: render(&traffic),
            rules: render(&RulesPanel::new(admin, &snapshot)),
            keys: render(&KeysPanel::new(admin, None, KEYS_MAX)),
            tail: render(&DenialsPanel::new(daemon.decision_log.latest(DENIALS_MAX))),
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
            Some((name, Self::from_series(&series)))
        };
        names.into_iter().filter_map(figures).collect()
    }

    fn from_series(series: &tollbar_daemon::metrics::HistorySeries) -> Self {
        let mut figures = Self { seconds: series.points.len() as u64, ..Self::default() };
        for point in &series.points {
            let denied = u64::from(point.denied) + u64::from(point.shadow_denied);
            figures.total += u64::from(point.allowed) + u64::from(point.degraded) + denied;
            figures.denied += denied;
            figures.near += u64::from(point.near_limit);
        }
        figures.denials = sums(&series.points, SPARK_COLUMNS, |point| {
            u64::from(point.denied) + u64::from(point.shadow_denied)
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
    fn new(admin: &Admin, snapshot: &MetricsSnapshot) -> Self {
        let mut figures = RuleTraffic::all(admin);
        let rules = admin.daemon.engine.rules();
        let mut rows: Vec<RulesPanelRow> = Vec::new();
        for rule in rules.rules().iter().filter(|rule| snapshot.limited.contains(&rule.name)) {
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
            let weight = |row: &RulesPanelRow| (row.figures.denied, row.figures.total);
            weight(b).cmp(&weight(a)).then_with(|| a.name.cmp(&b.name))
        });
        let more = rows.len().saturating_sub(RULES_MAX);
        rows.truncate(RULES_MAX);
        Self { rows, more }
    }
}

impl KeysPanel {
    /// Of all rules, or of one.
    pub(crate) fn new(admin: &Admin, rule: Option<&str>, count: usize) -> Self {
        let rules = admin.daemon.engine.rules();
        let mut rows: Vec<(u64, KeysPanelRow)> = Vec::new();
        for rule in rules
            .rules()
            .iter()
            .filter(|candidate| rule.is_none_or(|name| *candidate.name == *name))
        {
            // One that is gone by now denies nobody.
            let handle = admin.daemon.engine.rule(&rule.name).ok();
            let limited = handle.map_or_else(Vec::new, |handle| handle.top_denied(count));
            rows.extend(limited.into_iter().map(|key| {
                let subject = UntrustedText::new(key.subject);
                let row = KeysPanelRow {
                    href: key_href(rule.identity(), &subject),
                    subject,
                    rule: UntrustedText::new(&*rule.name),
                    count: Count(key.count),
                };
                (key.count, row)
            }));
            // Kept small on the way: there may be many rules.
            rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.subject.cmp(&b.1.subject)));
            rows.truncate(count);
        }
        Self { rows: rows.into_iter().map(|(_, row)| row).collect() }
    }
}

impl DenialsPanel {
    fn new(denials: Vec<Denial>) -> Self {
        let row = |denial: Denial| {
            let request = DeniedRequest::from_denial(&denial);
            DenialsPanelRow {
                href: format!("/explain?about={}", denial.id),
                at: ClockTime(denial.at),
                rule: UntrustedText::new(denial.verdict.decided_by().unwrap_or("no rule")),
                request: UntrustedText::new(request.description()),
                subject: UntrustedText::new(request.subject_text()),
            }
        };
        Self { rows: denials.into_iter().map(row).collect() }
    }
}

impl DeniedRequest {
    /// What was asked for; nothing is known of what was too long to be kept.
    pub(crate) fn from_denial(denial: &Denial) -> Self {
        let request = denial.request.as_deref().and_then(|json| serde_json::from_str(json).ok());
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
        |instant| crate::dashboard::view::formatting::DateTime(instant).to_string(),
    )
}
