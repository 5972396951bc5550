//! What is known of one server beside its connection: why it refuses, and whether it evicts.
//!
//! A refusal is found by checks and by the probe. It is over when a probe succeeds that would have met
//! it, or when it has not been met for a while.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tollbar::remote::describe;

use super::info::ServerInfo;
use super::slot_map::describe_ranges;
use crate::error::RedisStoreError;
use crate::fault::{RefusalCounters, RefusalReason, server_words};

/// For so long no check may be refused, until a refusal is over that the probe cannot meet: that of one
/// key, for example. It is the same for an overload.
const QUIET: Duration = Duration::from_secs(10);

/// What is counted of all servers together.
#[derive(Debug, Default)]
pub(crate) struct ServerCounters {
    pub(crate) refusals: RefusalCounters,
    evicted_keys: AtomicU64,
}

/// When something was seen last that only checks can see.
#[derive(Debug, Default)]
pub(crate) struct LastSeen(Mutex<Option<Instant>>);

/// What is known of one server.
#[derive(Debug)]
pub(crate) struct Findings {
    counters: Arc<ServerCounters>,
    refusal: Mutex<Option<Refusal>>,
    /// Why the last probe found no connection. A connection that was made since says that the server is
    /// there, and not that it counts.
    lost: Mutex<Option<Arc<str>>>,
    eviction: Mutex<Eviction>,
}

/// A server that says no.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) reason: RefusalReason,
    /// Its own words.
    pub(crate) words: Arc<str>,
    /// Whether the probe meets it, so that a probe that succeeds says that it is over.
    is_probed: bool,
    met_at: Instant,
}

/// How a server makes room.
#[derive(Debug, Clone, Default)]
pub(crate) struct Eviction {
    /// The policy, where it evicts counters.
    pub(crate) policy: Option<Arc<str>>,
    /// How many keys it has evicted since it was first asked.
    pub(crate) evicted: u64,
    /// What it said when it was last asked.
    said: Option<u64>,
}

/// A server, its slots and what is known of it.
#[derive(Debug, Clone)]
pub(crate) struct NodeReport {
    pub(crate) name: Arc<str>,
    /// In a cluster.
    pub(crate) slots: Vec<RangeInclusive<u16>>,
    /// Why there is no connection, where there is none.
    pub(crate) down: Option<Arc<str>>,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) eviction: Eviction,
}

impl NodeReport {
    /// Why it cannot be reached, where it cannot, and what it serves.
    pub(crate) fn describe_down(&self) -> Option<String> {
        let cause = self.down.as_ref()?;
        Some(format!("{} cannot be reached ({cause})", self.describe()))
    }

    /// Its name, and in a cluster its slots.
    pub(crate) fn describe(&self) -> String {
        match &self.slots[..] {
            [] => self.name.to_string(),
            slots => format!("{} with slots {}", self.name, describe_ranges(slots)),
        }
    }
}

impl ServerCounters {
    /// How many keys were evicted while this process watched.
    pub(crate) fn evicted_keys(&self) -> u64 {
        self.evicted_keys.load(Ordering::Relaxed)
    }
}

impl LastSeen {
    pub(crate) fn record(&self) {
        *lock(&self.0) = Some(Instant::now());
    }

    /// True until it has not been seen for 10 seconds.
    pub(crate) fn is_recent(&self) -> bool {
        lock(&self.0).is_some_and(|seen_at| seen_at.elapsed() < QUIET)
    }
}

impl Findings {
    pub(crate) fn new(counters: Arc<ServerCounters>) -> Self {
        let (refusal, lost, eviction) = Default::default();
        Self { counters, refusal, lost, eviction }
    }

    /// Notes an error of a check, where it is a refusal. Another reason than the one that is known is
    /// counted, and waits until that is over: two that take turns are not news each time.
    pub(crate) fn record(&self, error: &RedisStoreError) {
        let Some(reason) = RefusalReason::from_error(error) else {
            return;
        };
        self.counters.refusals.count(reason);
        let mut known = lock(&self.refusal);
        match &mut *known {
            Some(refusal) if refusal.reason == reason => refusal.met_at = Instant::now(),
            Some(_) => {}
            None => *known = Some(Refusal::new(reason, error)),
        }
    }

    /// Notes that the probe, or an attempt to connect, ended in `error`.
    pub(crate) fn record_probe(&self, error: &RedisStoreError) {
        if let RedisStoreError::Disconnected { cause, .. } = error {
            *lock(&self.lost) = Some(Arc::clone(cause));
        }
        let Some(reason) = RefusalReason::from_error(error) else {
            return;
        };
        let mut known = lock(&self.refusal);
        match &mut *known {
            Some(refusal) if refusal.reason == reason => refusal.is_probed = true,
            _ => *known = Some(Refusal { is_probed: true, ..Refusal::new(reason, error) }),
        }
    }

    /// Notes that an attempt to connect failed. A server that cannot be reached does not refuse.
    pub(crate) fn record_connect(&self, error: &RedisStoreError) {
        match RefusalReason::from_error(error) {
            Some(reason) => {
                self.counters.refusals.count(reason);
                self.record_probe(error);
            }
            None => *lock(&self.refusal) = None,
        }
    }

    /// Notes that the probe wrote, read and deleted.
    pub(crate) fn record_success(&self) {
        *lock(&self.lost) = None;
        let mut known = lock(&self.refusal);
        known.take_if(|refusal| refusal.is_probed || refusal.met_at.elapsed() >= QUIET);
    }

    /// Notes what the server says of itself.
    pub(crate) fn record_info(&self, info: &ServerInfo) {
        let mut eviction = lock(&self.eviction);
        let more = match eviction.said {
            None => 0,
            // Started anew: it counts from 0 again.
            Some(before) if info.evicted_keys < before => info.evicted_keys,
            Some(before) => info.evicted_keys - before,
        };
        self.counters.evicted_keys.fetch_add(more, Ordering::Relaxed);
        eviction.said = Some(info.evicted_keys);
        eviction.evicted += more;
        if eviction.policy.as_deref() != info.evicts_by.as_deref() {
            eviction.policy = info.evicts_by.as_deref().map(Into::into);
        }
    }

    pub(crate) fn report(&self, name: Arc<str>, down: Option<Arc<str>>) -> NodeReport {
        let (refusal, eviction) = (lock(&self.refusal).clone(), lock(&self.eviction).clone());
        let down = down.or_else(|| lock(&self.lost).clone());
        NodeReport { name, slots: Vec::new(), down, refusal, eviction }
    }
}

impl Refusal {
    fn new(reason: RefusalReason, error: &RedisStoreError) -> Self {
        let words = match error {
            RedisStoreError::Server { source } => server_words(source).into(),
            error => describe(error),
        };
        Self { reason, words, is_probed: false, met_at: Instant::now() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values are replaced whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, RedisError};

    use super::*;

    fn refusal(words: &'static str) -> RedisStoreError {
        RedisError::from((ErrorKind::Extension, words)).into()
    }

    fn reason(findings: &Findings) -> Option<RefusalReason> {
        findings.report("node".into(), None).refusal.map(|refusal| refusal.reason)
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_the_probe_meets_is_over_when_the_probe_succeeds() {
        let findings = Findings::new(Arc::default());
        findings.record(&refusal("OOM"));
        findings.record_probe(&refusal("OOM"));
        assert_eq!(reason(&findings), Some(RefusalReason::OutOfMemory));
        findings.record_success();
        assert_eq!(reason(&findings), None);
    }

    /// A key of another type: the probe has a key of its own, and finds nothing wrong.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_only_checks_meet_is_over_after_a_while_without_one() {
        let findings = Findings::new(Arc::default());
        findings.record(&refusal("WRONGTYPE"));
        tokio::time::advance(QUIET.saturating_sub(Duration::from_millis(1))).await;
        findings.record_success();
        assert_eq!(reason(&findings), Some(RefusalReason::WrongType));
        findings.record(&refusal("WRONGTYPE"));
        tokio::time::advance(Duration::from_millis(1)).await;
        findings.record_success();
        assert_eq!(reason(&findings), Some(RefusalReason::WrongType));
        tokio::time::advance(QUIET).await;
        findings.record_success();
        assert_eq!(reason(&findings), None);
    }

    #[tokio::test(start_paused = true)]
    async fn two_reasons_that_take_turns_are_one_change_and_both_are_counted() {
        let findings = Findings::new(Arc::default());
        for _ in 0..3 {
            findings.record(&refusal("WRONGTYPE"));
            findings.record(&refusal("NOREPLICAS"));
            assert_eq!(reason(&findings), Some(RefusalReason::WrongType));
        }
        // The probe knows better: this one concerns every key.
        findings.record_probe(&refusal("NOREPLICAS"));
        findings.record(&refusal("WRONGTYPE"));
        assert_eq!(reason(&findings), Some(RefusalReason::NoReplicas));
        let counts = findings.counters.refusals.read();
        let count = |reason| counts.iter().find(|(counted, _)| *counted == reason).map(|of| of.1);
        assert_eq!(count(RefusalReason::WrongType), Some(4));
        assert_eq!(count(RefusalReason::NoReplicas), Some(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_gone_refuses_no_more() {
        let findings = Findings::new(Arc::default());
        findings.record_connect(&refusal("NOAUTH"));
        assert_eq!(reason(&findings), Some(RefusalReason::NotAuthenticated));
        findings.record_connect(&RedisError::from((ErrorKind::Io, "gone")).into());
        assert_eq!(reason(&findings), None);
    }

    /// A master that was started again used to be well as soon as it was connected to, and refused.
    #[test]
    fn a_server_that_was_lost_is_down_until_a_probe_has_written_there() {
        let findings = Findings::new(Arc::default());
        let down = || findings.report("node".into(), None).down;
        let (node, cause) = ("node".into(), "connection refused".into());
        findings.record_probe(&RedisStoreError::Disconnected { node, cause });
        assert_eq!(down().as_deref(), Some("connection refused"));
        findings.record_success();
        assert_eq!(down(), None);
    }

    #[test]
    fn evictions_are_counted_from_the_first_look_and_across_a_restart() {
        let findings = Findings::new(Arc::default());
        for (said, total) in [(100, 0), (107, 7), (3, 10), (3, 10)] {
            findings.record_info(&ServerInfo { evicted_keys: said, ..ServerInfo::default() });
            assert_eq!(findings.counters.evicted_keys(), total);
        }
        assert_eq!(findings.report("node".into(), None).eviction.evicted, 10);
    }
}
