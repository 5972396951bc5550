//! Limits that people change while requests are checked: rules, exemptions, bans and boosts, tokens, and
//! what was used.
//!
//! Each noun has a file of operations: plain functions of an [`Admin`], an [`Actor`](access::Actor) and what was
//! sent, which ask first whether that actor may. The JSON of [`wire`] and pages for people call the
//! same ones. What is kept, the repository keeps; what is enforced comes from there.

pub(crate) mod access;
pub(crate) mod audit;
mod body;
pub(crate) mod counters;
pub(crate) mod credential;
pub(crate) mod exemptions;
pub(crate) mod export;
mod flags;
pub(crate) mod gate;
mod instant;
pub(crate) mod keys;
mod openapi;
mod page;
pub(crate) mod paging;
pub(crate) mod precondition;
pub(crate) mod problem;
pub(crate) mod proposal;
mod query;
mod route;
pub(crate) mod rule_json;
pub(crate) mod rules;
mod sub_limit;
mod text;
pub(crate) mod tokens;
pub(crate) mod usage;
pub(crate) mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tollbar::Timestamp;
use tollbar_rules::RuleSet;

use crate::api::Api;
use crate::daemon::Daemon;
use crate::repository::Repository;

pub(crate) use body::BODY_BYTES_MAX;
pub(crate) use flags::AdminFlags;
pub(crate) use openapi::document;
pub(crate) use query::Format;

/// How long somebody who changed something waits for it to be enforced here.
const ENFORCED_WITHIN: Duration = Duration::from_secs(2);

/// What every operation works on.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) repository: Repository,
    pub(crate) daemon: Arc<Daemon>,
    gate: gate::Gate,
    /// For explanations, which are the same everywhere.
    api: Api,
}

impl Admin {
    pub(crate) fn new(repository: Repository, daemon: Arc<Daemon>) -> Self {
        let api = Api::new(Arc::clone(&daemon));
        Self { repository, daemon, gate: gate::Gate::new(), api }
    }

    /// The time by which tokens and records end.
    pub(crate) fn now(&self) -> Timestamp {
        self.repository.now()
    }

    /// The rules of the file.
    pub(crate) fn file_rules(&self) -> Arc<RuleSet> {
        self.daemon.live.file_rules()
    }

    /// Returns when this node enforces what was just written, or after a while: what was written stays
    /// written.
    pub(crate) async fn enforced(&self) {
        let enforced = async {
            if let Ok(revisions) = self.repository.revisions().await {
                self.daemon.live.enforced(revisions.rules).await;
            }
        };
        let _ = timeout(ENFORCED_WITHIN, enforced).await;
    }

    fn is_database_well(&self) -> bool {
        self.daemon.live.status().away.is_none()
    }
}
