//! How the parts of the daemon are doing.

use std::fmt;
use std::sync::Arc;

/// The health of one part, such as the store of counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    Ok,
    /// It does not answer. The daemon goes on without it until it is back.
    Degraded {
        why: Arc<str>,
    },
}

/// A part that the daemon does not own, such as the database of rules.
pub trait HealthSource: fmt::Debug + Send + Sync {
    /// Returns its health, or `None` while there is nothing to report.
    fn health(&self) -> Option<Health>;
}

impl Health {
    /// One word for clients: why is told in the log, which knows addresses.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded { .. } => "degraded",
        }
    }
}
