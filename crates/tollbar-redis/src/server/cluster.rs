//! A cluster: a link to each of its masters, and which of them has which slot.
//!
//! Every master has connections and a circuit breaker of its own. One that dies takes down what it
//! served and nothing else, until a replica has taken over; checks of other slots do not notice. Who
//! serves what is learned in the background, whenever a node points elsewhere or cannot be asked: no
//! check waits for that. A check that is sent elsewhere goes there at once, within its own deadline.
//!
//! A cluster is well when every slot has a master that can be reached: one that is missing is a fault,
//! however many others answer.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use futures_util::future::{join_all, select_ok};
use redis::{Cmd, ConnectionInfo, ErrorKind, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tollbar::remote::{
    BreakerState, Exchange, Failure, Health, Link, backoff, describe, spawn_restarting, within,
};

use super::Connection;
use super::findings::{Findings, NodeReport, ServerCounters};
use super::node::{self, Node, SendMode};
use super::slot_map::{self, NodeAddress, Range, SLOT_COUNT, slot_of};
use super::tls::{self, Tls};
use crate::error::RedisStoreError;

/// How often a check may be sent on.
const REDIRECTIONS_MAX: usize = 5;

/// How long a check waits while two nodes hand over the very keys it asks for.
const HAND_OVER_PAUSE: Duration = Duration::from_millis(2);

/// So many are asked at once who serves what; the first that answers counts.
const ASKED_MAX: usize = 3;

/// The map is not asked for more often than that.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);

/// The most nodes: as many as a cluster is said to have at most.
const NODES_MAX: usize = 1_000;

/// Stands for the master of a slot that has none.
const NOBODY: u16 = u16::MAX;

/// So many tags are tried to find one in a slot of each master. A master with one slot is missed once in
/// 10<sup>26</sup> times.
const TAGS_TRIED_MAX: u32 = 1_000_000;

/// The cluster itself. Who refreshes its map ends with it.
pub(crate) struct Cluster {
    state: Arc<ClusterState>,
    refresher: AbortHandle,
}

/// The options of the links to its nodes.
pub(crate) struct LinkOptions {
    pub(crate) connect_timeout: Duration,
    pub(crate) failures_max: u32,
    pub(crate) runtime: Handle,
    pub(crate) counters: Arc<ServerCounters>,
}

struct ClusterState {
    seeds: Vec<ConnectionInfo>,
    link_options: LinkOptions,
    map: ArcSwap<SlotOwners>,
    /// All nodes there are links to; those of the map, and others that checks were sent to.
    nodes: Mutex<HashMap<NodeAddress, Arc<Member>>>,
    stale: Notify,
    turn: AtomicUsize,
    /// How often breakers opened of nodes that are gone.
    opened_before: AtomicU64,
    last_error: Mutex<Option<Arc<str>>>,
    /// What came of asking for the map.
    map_findings: Findings,
}

/// A node, and the link to it.
pub(crate) struct Member {
    address: NodeAddress,
    pub(crate) link: Link<Node>,
}

struct SlotOwners {
    masters: Vec<Arc<Member>>,
    /// The place of each slot's master among them.
    owners: Box<[u16]>,
}

/// Masters, and a hash tag in one of the slots of each.
pub(crate) type ProbeTargets = Vec<(Arc<Member>, u32)>;

impl Cluster {
    /// The cluster that the nodes at `urls` are part of; nothing is known of it yet.
    pub(crate) fn new(
        urls: &[String],
        tls: Option<&Tls>,
        link_options: LinkOptions,
    ) -> Result<Self, RedisStoreError> {
        let seeds: Vec<ConnectionInfo> =
            urls.iter().map(|url| tls::connection_info(url, tls)).collect::<Result<_, _>>()?;
        if seeds.is_empty() {
            return Err(RedisStoreError::NoAddress);
        }
        let nobody =
            SlotOwners { masters: Vec::new(), owners: vec![NOBODY; SLOT_COUNT.into()].into() };
        let map_findings = Findings::new(Arc::clone(&link_options.counters));
        let state = Arc::new(ClusterState {
            seeds,
            link_options,
            map: ArcSwap::from_pointee(nobody),
            nodes: Mutex::default(),
            stale: Notify::new(),
            turn: AtomicUsize::new(0),
            opened_before: AtomicU64::new(0),
            last_error: Mutex::new(Some("not connected yet".into())),
            map_findings,
        });
        let task_state = state.clone();
        let runtime = &state.link_options.runtime;
        let refresher = spawn_restarting(runtime, move || refresh(task_state.clone()));
        Ok(Self { state, refresher })
    }

    /// Until some master can be asked; an error if that does not work.
    pub(crate) async fn connect(&self) -> Result<(), RedisStoreError> {
        let connected = within(self.state.link_options.connect_timeout, async {
            self.state.learn().await?;
            let map = self.state.map.load_full();
            join_all(map.masters.iter().map(|master| master.link.wait_for_attempt())).await;
            let is_live = |master: &Arc<Member>| master.link.connection().is_some();
            match map.masters.iter().find(|master| !is_live(master)) {
                Some(master) if !map.masters.iter().any(is_live) => Err(master.link.disconnected()),
                None if map.masters.is_empty() => Err(self.state.unserved()),
                _ => Ok(()),
            }
        });
        connected.await.map_err(|error| tls::explain_timeout(error, &self.state.seeds[0]))
    }

    /// Connects in the background.
    pub(crate) fn connect_soon(&self) {
        self.state.stale.notify_one();
    }

    /// Asks whoever serves `slot`, in time.
    pub(crate) async fn ask(
        &self,
        exchange: &Exchange<'_>,
        slot: u16,
        command: &Cmd,
    ) -> Result<Value, RedisStoreError> {
        let state = &*self.state;
        let mut node = state.owner(slot)?;
        let mut mode = SendMode::Plain;
        let mut redirections = 0;
        while redirections < REDIRECTIONS_MAX {
            let answer = node::ask(&node.link, exchange, command, mode).await;
            let Err(error) = &answer else {
                return answer;
            };
            let Some(redirection) = Redirection::from_error(error, &node.address.host) else {
                if error.kind().is_of_connection() || is_of_cluster(error) {
                    state.stale.notify_one();
                }
                return answer;
            };
            let address = match redirection {
                Redirection::Wait => {
                    // As often as the deadline allows: nobody can say more about these keys.
                    exchange.pause(HAND_OVER_PAUSE).await?;
                    continue;
                }
                Redirection::To(address, next) => {
                    (mode, redirections) = (next, redirections + 1);
                    address
                }
            };
            state.stale.notify_one();
            node = state.node_at(&address)?;
            // Where it is new there is no connection yet. One that has failed is not waited for.
            exchange.in_time(node.link.wait_for_attempt().map(Ok::<_, RedisStoreError>)).await?;
        }
        Err(state.unserved())
    }

    /// The masters to be probed, once each has been tried. The map is read anew: a slot that has lost its
    /// master is found although no check asks for it.
    pub(crate) async fn probe_targets(&self) -> Result<ProbeTargets, RedisStoreError> {
        let state = &*self.state;
        if state.map.load().masters.is_empty() {
            state.try_learn().await?;
        } else {
            state.stale.notify_one();
        }
        let targets = state.map.load().probe_targets();
        join_all(targets.iter().map(|(master, _)| master.link.wait_for_attempt())).await;
        Ok(targets)
    }

    /// What is known of each master; and of the cluster, where it does not say who its masters are.
    pub(crate) fn reports(&self) -> Vec<NodeReport> {
        let (state, map) = (&*self.state, self.state.map.load());
        let masters = map.masters.iter().enumerate().map(|(place, master)| {
            let slots =
                slot_map::ranges_where(|slot| map.owners[usize::from(slot)] == place as u16);
            NodeReport { slots, ..node::report(&master.link) }
        });
        let mut reports: Vec<NodeReport> = masters.collect();
        let map_report = state.map_findings.report(state.name(), state.last_error().clone());
        if map_report.refusal.is_some() || reports.is_empty() {
            reports.push(map_report);
        }
        reports
    }

    /// The slots that no master serves; none while no map is known.
    pub(crate) fn unserved_slots(&self) -> Vec<RangeInclusive<u16>> {
        let map = self.state.map.load();
        if map.masters.is_empty() && self.state.last_error().is_some() {
            return Vec::new();
        }
        slot_map::ranges_where(|slot| map.owners[usize::from(slot)] == NOBODY)
    }

    /// The user that connects.
    pub(crate) fn user(&self) -> &str {
        self.state.seeds[0].redis_settings().username().unwrap_or("default")
    }

    pub(crate) fn health(&self) -> Health {
        let before = self.state.opened_before.load(Ordering::Relaxed);
        let add = |sum, node: &Arc<Member>| sum + node.link.health().opened;
        let opened = self.state.nodes().values().fold(before, add);
        let (reports, unserved) = (self.reports(), self.unserved_slots());
        let missing = reports.iter().filter(|report| report.down.is_some()).count();
        let breaker = match missing {
            0 if unserved.is_empty() => BreakerState::Closed,
            missing if missing == reports.len() => BreakerState::Open,
            _ => BreakerState::Partial,
        };
        let unserved = (!unserved.is_empty())
            .then(|| format!("no master serves slots {}", slot_map::describe_ranges(&unserved)));
        let last_error = reports.iter().find_map(NodeReport::describe_down).or(unserved);
        Health { breaker, opened, last_error: last_error.map(Into::into) }
    }
}

/// Where a node sends those it does not answer.
enum Redirection {
    To(NodeAddress, SendMode),
    /// The keys are on their way; nobody has all of them.
    Wait,
}

impl Redirection {
    fn from_error(error: &RedisStoreError, asked_host: &str) -> Option<Self> {
        let RedisStoreError::Server { source } = error else {
            return None;
        };
        let mode = match source.kind() {
            ErrorKind::Server(ServerErrorKind::TryAgain) => return Some(Self::Wait),
            ErrorKind::Server(ServerErrorKind::Ask) => SendMode::Asking,
            _ => SendMode::Plain,
        };
        let (address, _) = source.redirect_node()?;
        NodeAddress::parse(address, asked_host).map(|address| Self::To(address, mode))
    }
}

/// True where the node is well, and the cluster is not.
fn is_of_cluster(error: &RedisStoreError) -> bool {
    let RedisStoreError::Server { source } = error else {
        return false;
    };
    source.kind() == ErrorKind::Server(ServerErrorKind::ClusterDown)
}

/// Learns anew who serves what, as often as somebody finds that it is no longer so.
async fn refresh(state: Arc<ClusterState>) {
    let mut failures = 0;
    loop {
        state.stale.notified().await;
        if state.try_learn().await.is_ok() {
            failures = 0;
            tokio::time::sleep(REFRESH_PAUSE).await;
        } else {
            failures += 1;
            tokio::time::sleep(backoff::delay(failures)).await;
            // Nobody else may ask before there is something to be asked.
            state.stale.notify_one();
        }
    }
}

impl ClusterState {
    fn owner(&self, slot: u16) -> Result<Arc<Member>, RedisStoreError> {
        let map = self.map.load();
        let place = map.owners.get(usize::from(slot)).copied().unwrap_or(NOBODY);
        map.masters.get(usize::from(place)).cloned().ok_or_else(|| {
            self.stale.notify_one();
            self.unserved()
        })
    }

    /// The node at `address`, with a link that may not have connected yet.
    fn node_at(&self, address: &NodeAddress) -> Result<Arc<Member>, RedisStoreError> {
        let mut nodes = self.nodes();
        if let Some(node) = nodes.get(address) {
            return Ok(node.clone());
        }
        if nodes.len() >= NODES_MAX {
            return Err(self.unserved());
        }
        let info = tls::with_address(&self.seeds[0], address.host.clone(), address.port);
        let findings = Findings::new(Arc::clone(&self.link_options.counters));
        let node = Node::at(info, self.link_options.connect_timeout, findings);
        let link =
            Link::new(node, self.link_options.failures_max, &self.link_options.runtime, None);
        let member = Arc::new(Member { address: address.clone(), link });
        nodes.insert(address.clone(), member.clone());
        Ok(member)
    }

    /// Asks who serves what, in time, and notes what came of it.
    async fn try_learn(&self) -> Result<(), RedisStoreError> {
        let learned = within(self.link_options.connect_timeout, self.learn()).await;
        match &learned {
            Ok(()) => self.map_findings.record_success(),
            Err(error) => {
                self.map_findings.record_connect(error);
                *self.last_error() = Some(describe(error));
            }
        }
        learned
    }

    /// Asks who serves what.
    async fn learn(&self) -> Result<(), RedisStoreError> {
        let map = self.map.load_full();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let by_turns = map.masters.iter().cycle().skip(turn % map.masters.len().max(1));
        let live: Vec<_> = by_turns
            .take(map.masters.len())
            .filter_map(|master| Some((master.link.connection()?, &*master.address.host)))
            .take(ASKED_MAX)
            .map(|(connection, host)| Box::pin(slots(connection, host)))
            .collect();
        if !live.is_empty()
            && let Ok((ranges, _others)) = select_ok(live).await
        {
            return self.adopt(&ranges);
        }
        let seeds = self.seeds.iter().map(|seed| {
            Box::pin(async move {
                let host = host_of(seed);
                slots(Connection::to(seed).await?, &host).await
            })
        });
        let (ranges, _others) = select_ok(seeds).await?;
        self.adopt(&ranges)
    }

    fn adopt(&self, ranges: &[Range]) -> Result<(), RedisStoreError> {
        let mut masters: Vec<Arc<Member>> = Vec::new();
        let mut owners = vec![NOBODY; SLOT_COUNT.into()];
        for (slots, address) in ranges {
            let known = masters.iter().position(|master| master.address == *address);
            if known.is_none() {
                masters.push(self.node_at(address)?);
            }
            let place = known.unwrap_or(masters.len() - 1);
            owners[usize::from(*slots.start())..=usize::from(*slots.end())].fill(place as u16);
        }
        self.map.store(Arc::new(SlotOwners { masters: masters.clone(), owners: owners.into() }));
        *self.last_error() = None;
        // Those who serve nothing are kept while they can be asked: slots may be on their way to them.
        self.nodes().retain(|_, node| {
            let is_kept = masters.iter().any(|master| Arc::ptr_eq(master, node))
                || node.link.connection().is_some();
            if !is_kept {
                self.opened_before.fetch_add(node.link.health().opened, Ordering::Relaxed);
            }
            is_kept
        });
        Ok(())
    }

    fn unserved(&self) -> RedisStoreError {
        let cause = self.last_error().clone();
        let cause = cause.unwrap_or_else(|| "no node serves the slot".into());
        RedisStoreError::Disconnected { node: self.name(), cause }
    }

    fn name(&self) -> Arc<str> {
        format!("the cluster at {}", self.seeds[0].addr()).into()
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeAddress, Arc<Member>>> {
        // Nothing can go wrong halfway through adding one or leaving one out.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_error(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotOwners {
    /// Each master that serves a slot, with a tag in one of its slots.
    fn probe_targets(&self) -> ProbeTargets {
        let mut tags: Vec<Option<u32>> = vec![None; self.masters.len()];
        let mut missing = tags.len();
        for tag in 0..TAGS_TRIED_MAX {
            if missing == 0 {
                break;
            }
            let owner = usize::from(self.owners[usize::from(slot_of(tag.to_string().as_bytes()))]);
            if let Some(found @ None) = tags.get_mut(owner) {
                *found = Some(tag);
                missing -= 1;
            }
        }
        self.masters
            .iter()
            .cloned()
            .zip(tags)
            .filter_map(|(master, tag)| Some((master, tag?)))
            .collect()
    }
}

async fn slots(mut connection: Connection, host: &str) -> Result<Vec<Range>, RedisStoreError> {
    let answer = connection.ask(redis::cmd("CLUSTER").arg("SLOTS")).await?;
    slot_map::parse(&answer, host).ok_or(RedisStoreError::Garbled)
}

fn host_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        redis::ConnectionAddr::Tcp(host, _) | redis::ConnectionAddr::TcpTls { host, .. } => {
            host.clone()
        }
        _ => "localhost".to_owned(),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.refresher.abort();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Cluster")
            .field("name", &self.state.name())
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use redis::RedisError;

    use super::*;

    /// After such an error the slot map is read again.
    #[test]
    fn a_node_says_that_its_cluster_is_down() {
        let is_down = |kind: ServerErrorKind| {
            let error = RedisError::from((ErrorKind::Server(kind), "said by the server"));
            is_of_cluster(&error.into())
        };
        assert!(is_down(ServerErrorKind::ClusterDown));
        assert!(!is_down(ServerErrorKind::MasterDown) && !is_down(ServerErrorKind::NoScript));
    }
}
