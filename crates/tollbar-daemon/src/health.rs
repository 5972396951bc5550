//! How the parts of the daemon are doing. Each part has a name, and the daemon is as well as its worst part.
//!
//! `/healthz`, the metrics and the [log](HealthLog) all read the same set. A new part is one call of
//! [`HealthParts::add`].

mod log;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

pub use log::HealthLog;

/// The health of one part, such as the store of counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    Ok,
    /// It does not do what it is for. The daemon goes on without it until it is back.
    Degraded {
        why: Arc<str>,
    },
}

/// A part of the daemon, and what is logged of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthPart {
    /// Its name in `/healthz`, in the metrics and in the log.
    pub name: &'static str,
    /// What is logged while it is degraded: what happens to requests, or what is lost.
    pub degraded: &'static str,
    /// What is logged when it is well again.
    pub recovered: &'static str,
}

/// Returns the health of a part, or `None` while there is nothing to report.
type HealthSource = dyn Fn() -> Option<Health> + Send + Sync;

/// Every part of the daemon that can be degraded.
#[derive(Default)]
pub struct HealthParts(Mutex<BTreeMap<&'static str, (HealthPart, Arc<HealthSource>)>>);

/// The health of every part at one moment.
#[derive(Debug, Default)]
pub struct HealthReport {
    /// In the order of their names.
    pub parts: Vec<(HealthPart, Health)>,
}

impl Health {
    pub fn degraded(why: impl Into<Arc<str>>) -> Self {
        Self::Degraded { why: why.into() }
    }

    /// One word for clients: why is told in the log, which knows addresses.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded { .. } => "degraded",
        }
    }

    pub fn is_ok(&self) -> bool {
        *self == Self::Ok
    }
}

impl HealthParts {
    /// Adds a part. `health` is called for every report, so it must be quick. A part of the same name is replaced.
    pub fn add(
        &self,
        part: HealthPart,
        health: impl Fn() -> Option<Health> + Send + Sync + 'static,
    ) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(part.name, (part, Arc::new(health)));
    }

    /// Asks every part.
    pub fn report(&self) -> HealthReport {
        // Sources are called without the lock: one may ask for a report itself, or take long.
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let parts = sources.into_values();
        HealthReport { parts: parts.filter_map(|(part, health)| Some((part, health()?))).collect() }
    }
}

impl HealthReport {
    /// Returns the word of the worst part.
    pub fn status(&self) -> &'static str {
        let is_degraded = self.parts.iter().any(|(_, health)| !health.is_ok());
        if is_degraded { "degraded" } else { "ok" }
    }

    /// Returns the word of each part, by its name.
    pub fn words(&self) -> BTreeMap<&'static str, &'static str> {
        self.parts.iter().map(|(part, health)| (part.name, health.word())).collect()
    }
}

impl fmt::Debug for HealthParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HealthParts").field(&self.report().words()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn part(name: &'static str) -> HealthPart {
        HealthPart { name, degraded: "it is gone", recovered: "it is back" }
    }

    #[test]
    fn the_daemon_is_as_well_as_its_worst_part_and_a_part_without_news_is_not_there() {
        let parts = HealthParts::default();
        assert_eq!((parts.report().status(), parts.report().words().len()), ("ok", 0));
        let is_lost = Arc::new(AtomicBool::new(false));
        let source = Arc::clone(&is_lost);
        parts.add(part("store"), || Some(Health::Ok));
        parts.add(part("database"), || None);
        parts.add(part("usage"), move || {
            let is_lost = source.load(Ordering::Relaxed);
            Some(if is_lost { Health::degraded("the disk is full") } else { Health::Ok })
        });
        let report = parts.report();
        assert_eq!(report.status(), "ok");
        assert_eq!(report.words(), [("store", "ok"), ("usage", "ok")].into());
        is_lost.store(true, Ordering::Relaxed);
        let report = parts.report();
        assert_eq!(report.status(), "degraded");
        assert_eq!(report.words(), [("store", "ok"), ("usage", "degraded")].into());
    }
}
