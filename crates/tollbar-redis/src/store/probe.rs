//! The probe: writes, reads and expires a key at every server that has counters, asks how the server
//! makes room, and finds out whether others count in the namespace under another secret.
//!
//! A server that answers may still refuse to write: a replica, one that is full, one that does not grant
//! the permission. So nothing less than a write is asked for, by a script, as checks do.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tollbar::remote::Link;
use tollbar::{Entry, Policy};

use crate::error::RedisStoreError;
use crate::fault::{AdviceContext, FaultKind, RefusalReason, StoreFault};
use crate::script::call::ScriptCall;
use crate::server::findings::NodeReport;
use crate::server::node::{self, Node};
use crate::server::route::Topology;
use crate::server::slot_map::describe_ranges;
use crate::store::RedisStore;
use crate::store::recovery::RecoveryTask;

/// The key of the probe lives for 1 ms. It is looked for after so long.
const EXPIRY_PAUSE: Duration = Duration::from_millis(5);

/// The most counters that are looked at again.
const SUSPECTS_MAX: usize = 64;

/// The most servers that a fault names.
const NAMED_MAX: usize = 4;

/// What every command needs that checks and the probe send.
const PERMISSIONS: &str = "+evalsha +eval +get +set +del +time +info";

/// What a cluster needs besides.
const CLUSTER_PERMISSIONS: &str =
    "+cluster|slots +asking +hget +hset +hdel +hlen +zadd +zrem +zrangebyscore";

/// What is needed behind sentinels besides.
const SENTINEL_PERMISSIONS: &str = "+role";

/// What the probe has found that belongs to no single server.
#[derive(Debug, Default)]
pub(crate) struct ProbeState {
    /// True where the namespace belongs to another secret.
    has_other_secret: AtomicBool,
    /// The counters of the last check that was refused because of a counter.
    suspects: Mutex<Vec<(Vec<u8>, Policy)>>,
}

impl RedisStore {
    /// Writes, reads and expires a key at every server that has counters, by a script, as checks do. What
    /// was found is in [`faults`](Self::faults). Call it at start and every second or so: it finds
    /// faults where no check asks, and finds that they are over. It needs a tokio runtime, and
    /// takes a few round trips, each within the deadline of a check. An error that is no fault, such as
    /// a deadline that was missed once, is returned and nothing else.
    pub async fn probe(&self) -> Result<(), RedisStoreError> {
        let probed = match &self.route.topology {
            Topology::Server(link) => {
                link.wait_for_attempt().await;
                self.probe_node(link, 0).await
            }
            Topology::Cluster(cluster) => {
                let targets = cluster.probe_targets().await?;
                let probes =
                    targets.iter().map(|(master, tag)| self.probe_node(&master.link, *tag));
                join_all(probes).await.into_iter().collect()
            }
        };
        self.probe_suspects().await;
        probed.and(self.claim_namespace().await)
    }

    /// What is wrong with the servers, as checks and probes have found it; nothing where all is well.
    /// Asks nobody.
    #[must_use]
    pub fn faults(&self) -> Vec<StoreFault> {
        let reports = self.route.reports();
        let mut faults = Vec::new();
        // A server that refuses connections says more than that there is none.
        let down = |report: &NodeReport| report.down.is_some() && report.refusal.is_none();
        faults.extend(fault(&reports, FaultKind::Unreachable, down, |report| {
            report.describe_down().unwrap_or_default()
        }));
        faults.extend(unserved(&self.route.unserved_slots()));
        for reason in RefusalReason::ALL {
            let words = |report: &NodeReport| {
                let refusal = report.refusal.as_ref().filter(|refusal| refusal.reason == reason);
                refusal.map(|refusal| Arc::clone(&refusal.words))
            };
            let refused = fault(
                &reports,
                FaultKind::Refused(reason),
                |report| words(report).is_some(),
                |report| {
                    format!("{} refuses: {}", report.describe(), words(report).unwrap_or_default())
                },
            );
            faults.extend(refused.map(|fault| StoreFault { advice: self.advice(reason), ..fault }));
        }
        faults.extend(fault(
            &reports,
            FaultKind::Evicts,
            |report| report.eviction.policy.is_some(),
            describe_eviction,
        ));
        faults.extend(self.other_secret());
        faults.extend(self.overload());
        faults.extend(self.recovery.as_ref().and_then(RecoveryTask::fault));
        faults
    }

    /// How often servers have refused, by reason.
    #[must_use]
    pub fn refusals(&self) -> [(RefusalReason, u64); RefusalReason::ALL.len()] {
        self.route.server_counters.refusals.read()
    }

    /// How many keys the servers have evicted while they were probed, ours and those of other programs.
    #[must_use]
    pub fn evicted_keys(&self) -> u64 {
        self.route.server_counters.evicted_keys()
    }

    /// The permissions that the user of this store needs, as `ACL SETUSER` takes them.
    #[must_use]
    pub fn permissions(&self) -> String {
        let more = match &self.route.topology {
            Topology::Cluster(_) => Some(CLUSTER_PERMISSIONS),
            Topology::Server(link) if link.server().has_sentinels() => Some(SENTINEL_PERMISSIONS),
            Topology::Server(_) => None,
        };
        let more = more.map(|more| format!(" {more}")).unwrap_or_default();
        format!("{PERMISSIONS}{more} ~{}*", self.names.prefix())
    }

    /// Notes the counters of a check that ended in `error`, where a counter is to blame: the probe looks
    /// at them again.
    pub(crate) fn suspect(&self, error: &RedisStoreError, entries: &[Entry<'_>]) {
        if RefusalReason::from_error(error).is_some_and(RefusalReason::is_of_key) {
            let mut suspects = self.suspects();
            if suspects.is_empty() {
                let entries = entries.iter().take(SUSPECTS_MAX);
                suspects
                    .extend(entries.map(|entry| (entry.key().to_vec(), entry.policy().clone())));
            }
        }
    }

    async fn probe_node(&self, link: &Link<Node>, tag: u32) -> Result<(), RedisStoreError> {
        let probe = async {
            self.probe_write(link, tag).await?;
            node::ask_info(link, &self.route.begin()?).await
        };
        let probed = probe.await;
        let findings = &link.server().findings;
        match &probed {
            Ok(()) => findings.record_success(),
            Err(error) => findings.record_probe(error),
        }
        probed
    }

    /// Writes a key, reads it, and finds that it has expired.
    async fn probe_write(&self, link: &Link<Node>, tag: u32) -> Result<(), RedisStoreError> {
        let lost = |detail| Err(RedisStoreError::LostWrite { node: link.name(), detail });
        // Of this store alone, so that nobody else writes it meanwhile.
        let id = rand::random();
        if !self.ask(&ScriptCall::probe_write(&self.names, tag, id)).await?.is_empty() {
            return lost("does not have it");
        }
        tokio::time::sleep(EXPIRY_PAUSE).await;
        let is_cluster = self.route.is_cluster();
        let expiry = ScriptCall::probe_expiry(&self.names, tag, id, is_cluster);
        if !self.ask(&expiry).await?.is_empty() {
            return lost("keeps it longer than it was told to");
        }
        Ok(())
    }

    /// Asks again what remains of counters that a check could not use. What came of it is noted where
    /// the server was asked.
    async fn probe_suspects(&self) {
        let suspects = self.suspects().clone();
        for (key, policy) in suspects {
            let Ok(call) = ScriptCall::one(&self.names, &key, &policy, 0) else { continue };
            match self.ask(&call).await {
                Err(error) if RefusalReason::from_error(&error).is_some() => return,
                _ => {}
            }
        }
        self.suspects().clear();
    }

    /// Claims the namespace for our secret, or finds that it belongs to another one.
    async fn claim_namespace(&self) -> Result<(), RedisStoreError> {
        let owner = self.ask(&ScriptCall::claim(&self.names)).await?;
        let has_other_secret = owner != self.names.secret_fingerprint();
        self.probe_state.has_other_secret.store(has_other_secret, Ordering::Relaxed);
        Ok(())
    }

    fn other_secret(&self) -> Option<StoreFault> {
        self.probe_state.has_other_secret.load(Ordering::Relaxed).then(|| StoreFault {
            kind: FaultKind::OtherSecret,
            nodes: Vec::new(),
            detail: format!(
                "another process counts in this namespace (keys that begin with `{}`) under another \
                 secret: each of the two admits the whole limit",
                self.names.prefix()
            ),
            advice: "give all processes the same secret, or each fleet a namespace of its own".to_owned(),
        })
    }

    fn overload(&self) -> Option<StoreFault> {
        self.route.overload.is_recent().then(|| StoreFault {
            kind: FaultKind::Overloaded,
            nodes: Vec::new(),
            detail: format!(
                "more than {} checks were under way at once: those above are not counted",
                self.route.deadlines.in_flight_max()
            ),
            advice: "find the clients that flood it, or the server that is slow; spread the load over more \
                     processes, or choose another failure policy than `allow`"
                .to_owned(),
        })
    }

    fn advice(&self, reason: RefusalReason) -> String {
        let context = AdviceContext {
            user: self.route.user(),
            permissions: &self.permissions(),
            prefix: self.names.prefix(),
        };
        reason.advice(&context)
    }

    fn suspects(&self) -> MutexGuard<'_, Vec<(Vec<u8>, Policy)>> {
        // It is filled and cleared whole.
        self.probe_state.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fault of those servers that have it; `None` where there are none.
fn fault(
    reports: &[NodeReport],
    kind: FaultKind,
    has_it: impl Fn(&NodeReport) -> bool,
    describe: impl Fn(&NodeReport) -> String,
) -> Option<StoreFault> {
    let found: Vec<&NodeReport> = reports.iter().filter(|report| has_it(report)).collect();
    if found.is_empty() {
        return None;
    }
    let mut detail: Vec<String> =
        found.iter().take(NAMED_MAX).map(|report| describe(report)).collect();
    if let more @ 1.. = found.len().saturating_sub(NAMED_MAX) {
        detail.push(format!("and {more} more servers"));
    }
    let advice = match kind {
        FaultKind::Evicts => {
            "set `maxmemory-policy noeviction`, or give counters a server of their own"
        }
        _ => "bring the server back",
    };
    let nodes = found.iter().map(|report| Arc::clone(&report.name)).collect();
    Some(StoreFault { kind, nodes, detail: detail.join("; "), advice: advice.to_owned() })
}

fn unserved(slots: &[RangeInclusive<u16>]) -> Option<StoreFault> {
    (!slots.is_empty()).then(|| StoreFault {
        kind: FaultKind::Unserved,
        nodes: Vec::new(),
        detail: format!("no master of the cluster serves slots {}", describe_ranges(slots)),
        advice: "assign them to a master: redis-cli --cluster fix".to_owned(),
    })
}

fn describe_eviction(report: &NodeReport) -> String {
    let policy = report.eviction.policy.as_deref().unwrap_or_default();
    let name = &report.name;
    match report.eviction.evicted {
        0 => format!("{name} may evict counters to make room (maxmemory-policy {policy})"),
        _ => format!(
            "{name} evicts keys to make room (maxmemory-policy {policy}): counters are forgotten"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script that sends a command the probe does not send could be refused while the probe succeeds,
    /// and the permissions would lack it.
    #[test]
    fn the_probe_sends_every_command_that_scripts_send() {
        let probe = [include_str!("../lua/prelude.lua"), include_str!("../lua/probe.lua")].concat();
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lua");
        let mut commands = std::collections::BTreeSet::new();
        for file in std::fs::read_dir(directory).unwrap() {
            let file = file.unwrap();
            // The coordinator runs in clusters only, and so does the part of the probe that sends its commands.
            let is_of_clusters =
                ["intent.lua", "probe.lua"].iter().any(|name| file.file_name() == *name);
            let text = std::fs::read_to_string(file.path()).unwrap();
            let called =
                text.split("redis.call(").skip(1).chain(text.split("redis.pcall(").skip(1));
            for call in called {
                let name = call.split('\'').nth(1).expect("a command is written out");
                commands.insert((name.to_owned(), is_of_clusters));
            }
        }
        for expected in [("SET", false), ("HSET", true)] {
            let (name, is_of_clusters) = expected;
            assert!(commands.contains(&(name.to_owned(), is_of_clusters)), "{commands:?}");
        }
        for (command, is_of_clusters) in commands {
            assert!(probe.contains(&format!("'{command}'")), "the probe does not send {command}");
            let permission = format!("+{}", command.to_lowercase());
            let more = if is_of_clusters { CLUSTER_PERMISSIONS } else { "" };
            let mut granted = PERMISSIONS.split(' ').chain(more.split(' '));
            assert!(granted.any(|granted| granted == permission), "{permission}");
        }
    }
}
