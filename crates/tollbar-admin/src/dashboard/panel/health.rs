//! How everything is doing, in a strip of figures: the store, its breaker, what was decided without it,
//! and which node enforces which rules.

use askama::Template;
use tollbar::Timestamp;

use crate::dashboard::panel::traffic::TrafficPanel;
use crate::dashboard::view::formatting::{Count, Latency, Rate, RelativeTime, Share};
use crate::dashboard::view::untrusted_text::UntrustedText;
use crate::database::NodeRow;
use tollbar_daemon::metrics::MetricsSnapshot;

/// A node that has not been heard of for so long is told apart.
const NODE_LATE_US: u64 = 10_000_000;

/// How everything is doing.
#[derive(Debug, Template)]
#[template(path = "part/health.html")]
pub(crate) struct HealthPanel {
    cells: Vec<HealthCell>,
    nodes: Vec<NodeStatus>,
}

#[derive(Debug)]
struct HealthCell {
    name: &'static str,
    value: String,
    note: String,
    state: HealthState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthState {
    Plain,
    Good,
    Warn,
    Bad,
}

#[derive(Debug)]
struct NodeStatus {
    pub name: UntrustedText,
    revision: u64,
    is_current: bool,
    seen: RelativeTime,
}

impl HealthState {
    fn class(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Good => "good",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

impl HealthPanel {
    /// As the daemon counts, and as the database has heard from the nodes, if it can be asked.
    pub(crate) fn new(
        snapshot: &MetricsSnapshot,
        lately: &TrafficPanel,
        nodes: Option<(Vec<NodeRow>, u64)>,
        not_in_force: usize,
        now: Timestamp,
    ) -> Self {
        let store = &snapshot.store;
        let sum = lately.chart.sum();
        let checks = sum.allowed + sum.denied + sum.shadow_denied + sum.degraded;
        let degraded = Share { part: sum.degraded, whole: checks };
        let mut cells = vec![
            HealthCell {
                name: "Store",
                value: if store.is_up { "up" } else { "down" }.to_owned(),
                note: match &store.memory {
                    Some(memory) => format!("memory, {} keys", Count(memory.live_keys as u64)),
                    None => format!("{}, {} errors", store.kind, Count(store.redis.errors.total())),
                },
                state: if store.is_up { HealthState::Good } else { HealthState::Bad },
            },
            HealthCell {
                name: "Store p99",
                value: match &store.memory {
                    Some(_) => "in process".to_owned(),
                    None => Latency(store.percentile_us(99)).to_string(),
                },
                note: match &store.memory {
                    Some(memory) => format!("{} evicted", Count(memory.forced_evictions)),
                    None => format!("median {}", Latency(store.percentile_us(50))),
                },
                state: HealthState::Plain,
            },
            HealthCell {
                name: "Breaker",
                value: if store.is_closed { "closed" } else { "open" }.to_owned(),
                note: format!("opened {} times", Count(store.breaker_opened)),
                state: if store.is_closed { HealthState::Good } else { HealthState::Bad },
            },
            HealthCell {
                name: "Degraded",
                value: degraded.to_string(),
                note: "of the last 15 min".to_owned(),
                state: if sum.degraded > 0 { HealthState::Warn } else { HealthState::Good },
            },
            HealthCell {
                name: "Checks",
                value: format!("{}/s", Rate { count: checks, seconds: lately.known_s }),
                note: format!("p99 {}", Latency(snapshot.check_p99_us)),
                state: HealthState::Plain,
            },
            HealthCell {
                name: "Rules here",
                value: format!("v{}", snapshot.rules_version),
                note: match snapshot.rules_loaded_at {
                    Some(then) => format!("loaded {}", RelativeTime { then, now }),
                    None => format!("{} failed reloads", snapshot.reload_failures),
                },
                state: HealthState::Plain,
            },
        ];
        let (fleet, nodes) = fleet(nodes, now);
        cells.push(fleet);
        if not_in_force > 0 {
            cells.push(HealthCell {
                name: "Not in force",
                value: format!("{} rows", Count(not_in_force as u64)),
                note: "of the database; the log says why".to_owned(),
                state: HealthState::Bad,
            });
        }
        Self { cells, nodes }
    }
}

/// Which node enforces which revision.
fn fleet(nodes: Option<(Vec<NodeRow>, u64)>, now: Timestamp) -> (HealthCell, Vec<NodeStatus>) {
    let Some((rows, revision)) = nodes else {
        let (value, note) = ("away".to_owned(), "checks go on".to_owned());
        return (HealthCell { name: "Database", value, note, state: HealthState::Bad }, Vec::new());
    };
    let is_late = |seen: Timestamp| now.as_micros().saturating_sub(seen.as_micros()) > NODE_LATE_US;
    let nodes: Vec<NodeStatus> = rows
        .into_iter()
        .map(|row| NodeStatus {
            name: UntrustedText::new(row.node),
            revision: row.revision,
            is_current: row.revision >= revision && !is_late(row.seen_at),
            seen: RelativeTime { then: row.seen_at, now },
        })
        .collect();
    let behind = nodes.iter().filter(|node| !node.is_current).count();
    let cell = HealthCell {
        name: "Fleet",
        value: format!("rev {revision}"),
        note: match (nodes.len(), behind) {
            (0, _) => "no node has reported".to_owned(),
            (1, 0) => "1 node, current".to_owned(),
            (count, 0) => format!("{count} nodes, all current"),
            (count, behind) => format!("{behind} of {count} nodes behind"),
        },
        state: if behind > 0 { HealthState::Warn } else { HealthState::Good },
    };
    (cell, nodes)
}
