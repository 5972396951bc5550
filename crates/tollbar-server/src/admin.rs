//! Limits that people change while requests are checked: rules, exemptions, bans and boosts, tokens, and
//! what was used.
//!
//! Each noun has a file of operations: plain functions of an [`Admin`], an [`Actor`](access::Actor) and what was
//! sent, which ask first whether that actor may. The JSON of [`route`] and pages for people call the
//! same ones. What is kept, the repository keeps; what is enforced comes from there.

pub(crate) mod access;
pub(crate) mod audit;
mod body;
mod call;
pub(crate) mod counters;
pub(crate) mod credential;
pub(crate) mod exemptions;
pub(crate) mod export;
pub(crate) mod gate;
mod instant;
pub(crate) mod keys;
mod openapi;
mod page;
pub(crate) mod precondition;
pub(crate) mod proposal;
mod query;
mod route;
pub(crate) mod rule_json;
pub(crate) mod rules;
mod sub_limit;
pub(crate) mod text;
pub(crate) mod tokens;
pub(crate) mod usage;
pub(crate) mod wire;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;
use tollbar::Timestamp;
use tollbar_rules::RuleSet;

use crate::ahead::AheadOfClock;
use crate::api::Api;
use crate::daemon::Daemon;
use crate::endpoint::Endpoint;
use crate::listener::Peer;
pub(crate) use crate::problem;
use crate::problem::Problem;
use crate::repository::Repository;
use access::Actor;

pub(crate) use body::BODY_BYTES_MAX;
pub(crate) use openapi::document;
pub(crate) use query::Format;
pub(crate) use route::router;

/// How long somebody who changed something waits for it to be enforced here.
const ENFORCED_WITHIN: Duration = Duration::from_secs(2);

/// Where the admin API listens.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Admin API")]
pub(crate) struct AdminFlags {
    /// Where to listen for the admin API, which needs --database: an address and a port (0 takes any
    /// free one), unix:PATH, or off
    #[arg(long, env = "TOLLBAR_ADMIN", value_name = "ENDPOINT", default_value = "127.0.0.1:8082")]
    admin: Endpoint,
}

impl AdminFlags {
    /// Where it listens: nowhere without a database.
    pub(crate) fn endpoint(&self, has_database: bool) -> Endpoint {
        if has_database { self.admin.clone() } else { Endpoint::Off }
    }
}

/// What every operation works on.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) repository: Repository,
    pub(crate) daemon: Arc<Daemon>,
    gate: gate::Gate,
    /// For explanations, which are the same everywhere.
    api: Api,
}

/// How the daemon and its database are doing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "AdminHealth")]
struct Health {
    /// `ok`, or `degraded` while the store of counters does not answer.
    status: &'static str,
    /// `ok`, or `unavailable`: requests are checked all the same.
    database: &'static str,
    /// Denials by counters that owe more than their policy can, where there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead_of_clock: Option<AheadOfClock>,
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

    /// Returns whose token a request bears.
    pub(crate) async fn who(&self, headers: &HeaderMap, peer: Peer) -> Result<Arc<Actor>, Problem> {
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let (first, second) = (sent.next(), sent.next());
        // Of two that are sent, which one is meant would be a guess.
        let token = first.filter(|_| second.is_none()).map(HeaderValue::as_bytes);
        let token = token.and_then(|it| {
            let (scheme, token) = it.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
        });
        let shown = gate::Shown { token, peer, now: self.now() };
        self.gate.admit(&self.repository, shown).await
    }

    fn health(&self) -> Health {
        let is_database_well = self.daemon.live.status().away.is_none();
        let database = if is_database_well { "ok" } else { "unavailable" };
        let ahead_of_clock = AheadOfClock::of(&self.daemon.engine);
        Health { status: self.daemon.health().word(), database, ahead_of_clock }
    }
}
