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
    cells: Vec<Cell>,
    nodes: Vec<NodeStatus>,
}

#[derive(Debug)]
struct Cell {
    name: &'static str,
    value: String,
    note: String,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
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

impl State {
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
    pub(crate) fn of(
        snapshot: &MetricsSnapshot,
        lately: &TrafficPanel,
        nodes: Option<(Vec<NodeRow>, u64)>,
        now: Timestamp,
    ) -> Self {
        let store = &snapshot.store;
        let sum = lately.chart.sum();
        let checks = sum.allowed + sum.denied + sum.shadow_denied + sum.degraded;
        let degraded = Share { part: sum.degraded, whole: checks };
        let mut cells = vec![
            Cell {
                name: "Store",
                value: if store.is_up { "up" } else { "down" }.to_owned(),
                note: match &store.memory {
                    Some(memory) => format!("memory, {} keys", Count(memory.live_keys as u64)),
                    None => format!("{}, {} errors", store.kind, Count(store.redis.errors.total())),
                },
                state: if store.is_up { State::Good } else { State::Bad },
            },
            Cell {
                name: "Store p99",
                value: match &store.memory {
                    Some(_) => "in process".to_owned(),
                    None => Latency(store.percentile_us(99)).to_string(),
                },
                note: match &store.memory {
                    Some(memory) => format!("{} evicted", Count(memory.forced_evictions)),
                    None => format!("median {}", Latency(store.percentile_us(50))),
                },
                state: State::Plain,
            },
            Cell {
                name: "Breaker",
                value: if store.is_up { "closed" } else { "open" }.to_owned(),
                note: format!("opened {} times", Count(store.breaker_opened)),
                state: if store.is_up { State::Good } else { State::Bad },
            },
            Cell {
                name: "Degraded",
                value: degraded.to_string(),
                note: "of the last 15 min".to_owned(),
                state: if sum.degraded > 0 { State::Warn } else { State::Good },
            },
            Cell {
                name: "Checks",
                value: format!("{}/s", Rate { count: checks, seconds: lately.known_s }),
                note: format!("p99 {}", Latency(snapshot.check_p99_us)),
                state: State::Plain,
            },
            Cell {
                name: "Rules here",
                value: format!("v{}", snapshot.rules_version),
                note: match snapshot.rules_loaded_at {
                    Some(then) => format!("loaded {}", RelativeTime { then, now }),
                    None => format!("{} failed reloads", snapshot.reload_failures),
                },
                state: State::Plain,
            },
        ];
        let (fleet, nodes) = fleet(nodes, now);
        cells.push(fleet);
        Self { cells, nodes }
    }
}

/// Which node enforces which revision.
fn fleet(nodes: Option<(Vec<NodeRow>, u64)>, now: Timestamp) -> (Cell, Vec<NodeStatus>) {
    let Some((rows, revision)) = nodes else {
        let (value, note) = ("away".to_owned(), "checks go on".to_owned());
        return (Cell { name: "Database", value, note, state: State::Bad }, Vec::new());
    };
    let is_late = |seen: Timestamp| now.as_micros().saturating_sub(seen.as_micros()) > NODE_LATE_US;
    let nodes: Vec<NodeStatus> = rows
        .into_iter()
        .map(|it| NodeStatus {
            name: UntrustedText::new(it.node),
            revision: it.revision,
            is_current: it.revision >= revision && !is_late(it.seen_at),
            seen: RelativeTime { then: it.seen_at, now },
        })
        .collect();
    let behind = nodes.iter().filter(|it| !it.is_current).count();
    let cell = Cell {
        name: "Fleet",
        value: format!("rev {revision}"),
        note: match (nodes.len(), behind) {
            (0, _) => "no node has reported".to_owned(),
            (1, 0) => "1 node, current".to_owned(),
            (count, 0) => format!("{count} nodes, all current"),
            (count, behind) => format!("{behind} of {count} nodes behind"),
        },
        state: if behind > 0 { State::Warn } else { State::Good },
    };
    (cell, nodes)
}
