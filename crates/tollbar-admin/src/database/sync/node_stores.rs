//! Whether the nodes of one database count in one place. Nodes that do not share their counters each admit the
//! whole limit of every rule.

use std::sync::{Arc, Mutex, PoisonError};

use tollbar::Timestamp;

use crate::database::NodeRow;
use tollbar_daemon::health::{Health, HealthPart};

/// Whether the nodes of the database count in one place.
pub const NODES: HealthPart = HealthPart {
    name: "nodes",
    degraded: "nodes of one database count in different places: each admits the whole limit",
    recovered: "all nodes of the database count in one place again",
};

/// A node that has not reported for so long does not count: three reports are missing.
const SILENCE_MAX_US: u64 = 30_000_000;

/// The most nodes that are named.
const NAMED_MAX: usize = 4;

/// A node, and where it counts: `memory`, `redis` or `redis:NAMESPACE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStore {
    pub name: String,
    pub store: String,
}

/// Which other nodes count elsewhere, as far as the last report knows.
#[derive(Debug, Default)]
pub struct NodesApart(Mutex<Option<Arc<str>>>);

impl NodesApart {
    pub(crate) fn update(&self, own: &NodeStore, rows: &[NodeRow], now: Timestamp) {
        let found: Option<Arc<str>> = describe(own, rows, now).map(Into::into);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    pub fn health(&self) -> Health {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        found.map_or(Health::Ok, |why| Health::Degraded { why })
    }
}

/// True if every node that counts where `own` does knows loans. A node that does not say where it counts is of an older
/// version. Whichever has not been silent for long counts: it may still serve.
pub(crate) fn all_know_loans(own: &NodeStore, rows: &[NodeRow]) -> bool {
    let counts_here = |row: &&NodeRow| row.store.as_ref().is_none_or(|store| *store == own.store);
    rows.iter().filter(counts_here).all(|row| row.knows_loans)
}

fn describe(own: &NodeStore, rows: &[NodeRow], now: Timestamp) -> Option<String> {
    let is_live =
        |row: &&NodeRow| now.as_micros().saturating_sub(row.seen_at.as_micros()) <= SILENCE_MAX_US;
    let others: Vec<String> = rows
        .iter()
        .filter(is_live)
        .filter(|row| row.node != own.name)
        .filter_map(|row| {
            Some((&row.node, row.store.as_deref().filter(|store| *store != own.store)?))
        })
        .map(|(node, store)| format!("{node} in {store}"))
        .collect();
    if others.is_empty() {
        return None;
    }
    let more = match others.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = others[..others.len().min(NAMED_MAX)].join(", ");
    let NodeStore { name, store } = own;
    Some(format!(
        "{name} counts in {store}, and {named}{more}: give all of them the same --store and --store-namespace"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn row(node: &str, store: Option<&str>, silent_us: u64) -> NodeRow {
        let seen_at = Timestamp::from_micros(NOW.as_micros() - silent_us);
        let (node, store) = (node.to_owned(), store.map(str::to_owned));
        NodeRow { node, revision: 1, seen_at, store, knows_loans: true }
    }

    fn told(rows: &[NodeRow]) -> Option<String> {
        let own = NodeStore { name: "a".to_owned(), store: "redis:shop".to_owned() };
        describe(&own, rows, NOW)
    }

    #[test]
    fn a_live_node_that_counts_elsewhere_is_named_and_others_are_not() {
        // This node under its old namespace, one that agrees, one that is silent, and one that does not say.
        let fine = [
            row("a", Some("redis"), 0),
            row("b", Some("redis:shop"), 0),
            row("c", Some("redis:bar"), SILENCE_MAX_US + 1),
            row("d", None, 0),
        ];
        assert_eq!(told(&fine), None);
        let apart = [&fine[..], &[row("e", Some("memory"), SILENCE_MAX_US)]].concat();
        let text = told(&apart).unwrap();
        assert!(text.starts_with("a counts in redis:shop, and e in memory: give all"), "{text}");
    }

    #[test]
    fn one_old_node_over_the_same_store_keeps_all_from_lending() {
        let own = NodeStore { name: "a".to_owned(), store: "redis:shop".to_owned() };
        let old = |store| NodeRow { knows_loans: false, ..row("b", store, 200_000_000) };
        let new = row("a", Some("redis:shop"), 0);
        assert!(all_know_loans(&own, &[new.clone(), old(Some("redis")), old(Some("memory"))]));
        assert!(!all_know_loans(&own, &[new.clone(), old(Some("redis:shop"))]));
        assert!(!all_know_loans(&own, &[new, old(None)]));
    }

    #[test]
    fn a_crowd_is_counted_and_not_listed() {
        let crowd: Vec<NodeRow> =
            (0..100).map(|number| row(&format!("n{number}"), Some("memory"), 0)).collect();
        assert!(told(&crowd).unwrap().contains("n3 in memory and 96 more: "));
    }

    #[test]
    fn nodes_that_agree_again_are_well() {
        let own = NodeStore { name: "a".to_owned(), store: "redis".to_owned() };
        let apart = NodesApart::default();
        assert_eq!(apart.health(), Health::Ok);
        apart.update(&own, &[row("b", Some("redis:x"), 0)], NOW);
        assert_ne!(apart.health(), Health::Ok);
        apart.update(&own, &[row("b", Some("redis"), 0)], NOW);
        assert_eq!(apart.health(), Health::Ok);
    }
}
