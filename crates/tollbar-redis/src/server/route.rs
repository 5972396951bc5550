//! Which server a command goes to: the only one, or the one of a cluster that has its slot.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::{Cmd, Value};
use tokio::time::Instant;
use tollbar::remote::{Deadlines, Exchange, Health, Link, RemoteCounters};

use super::cluster::Cluster;
use super::findings::{LastSeen, NodeReport, ServerCounters};
use super::node::{self, Node, SendMode};
use super::slot_map::slot_of;
use crate::error::RedisStoreError;

/// The way to the counters, and the time there is for it.
pub(crate) struct Route {
    pub(crate) deadlines: Deadlines,
    pub(crate) topology: Topology,
    pub(crate) counters: RemoteCounters,
    pub(crate) server_counters: Arc<ServerCounters>,
    /// More checks at once than may be under way.
    pub(crate) overload: LastSeen,
}

pub(crate) enum Topology {
    Server(Link<Node>),
    Cluster(Cluster),
}

impl Route {
    pub(crate) fn begin(&self) -> Result<Exchange<'_>, RedisStoreError> {
        let begun = self.deadlines.begin().inspect_err(|error| {
            self.counters.failed(error);
            self.overload.record();
        });
        Ok(begun?)
    }

    /// Asks about `key`, and whatever else is in its slot.
    pub(crate) async fn ask(
        &self,
        exchange: &Exchange<'_>,
        key: &[u8],
        command: &Cmd,
    ) -> Result<Value, RedisStoreError> {
        let asked_at = Instant::now();
        let answer = self.send(exchange, key, command).await;
        match &answer {
            Err(error) if !error.is_unknown_script() => self.counters.failed(error),
            // That a script has to be sent again is an answer too.
            _ => self.counters.answered(asked_at.elapsed()),
        }
        answer
    }

    /// Asks about `key` without counting it: for what is no check.
    pub(crate) async fn send(
        &self,
        exchange: &Exchange<'_>,
        key: &[u8],
        command: &Cmd,
    ) -> Result<Value, RedisStoreError> {
        match &self.topology {
            Topology::Server(link) => node::ask(link, exchange, command, SendMode::Plain).await,
            Topology::Cluster(cluster) => cluster.ask(exchange, slot_of(key), command).await,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// What is known of each server that has counters. Asks nobody.
    pub(crate) fn reports(&self) -> Vec<NodeReport> {
        match &self.topology {
            Topology::Server(link) => vec![node::report(link)],
            Topology::Cluster(cluster) => cluster.reports(),
        }
    }

    /// The slots of a cluster that no master serves.
    pub(crate) fn unserved_slots(&self) -> Vec<RangeInclusive<u16>> {
        match &self.topology {
            Topology::Server(_) => Vec::new(),
            Topology::Cluster(cluster) => cluster.unserved_slots(),
        }
    }

    /// The user that connects.
    pub(crate) fn user(&self) -> &str {
        match &self.topology {
            Topology::Server(link) => link.server().user(),
            Topology::Cluster(cluster) => cluster.user(),
        }
    }

    pub(crate) fn health(&self) -> Health {
        match &self.topology {
            Topology::Server(link) => link.health(),
            Topology::Cluster(cluster) => cluster.health(),
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.topology {
            Topology::Server(link) => link.fmt(formatter),
            Topology::Cluster(cluster) => cluster.fmt(formatter),
        }
    }
}
