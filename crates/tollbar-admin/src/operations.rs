//! Limits that people change while requests are checked: rules, exemptions, bans and boosts, tokens, and
//! what was used.
//!
//! Each noun has a file of operations: plain functions of an [`Admin`], an [`Actor`] and what was
//! sent, which ask first whether that actor may. The JSON of [`api`](crate::api) and pages for people call the
//! same ones. What is kept, the repository keeps; what is enforced comes from there.
//!
//! | module | what it has |
//! |---|---|
//! | [`auth`] | tokens as texts, whose token a request bears, and what it may do |
//! | `rules`, `rule_json`, `proposal`, `precondition`, `sub_limit`, `tenant_writes` | rules: changes, dry runs, versions, limits of tenants |
//! | `exemptions`, `keys`, [`tokens`], `usage`, `counters`, `audit` | one module per noun |
//! | `text_fields`, `instant` | checks of what people send |

pub(crate) mod audit;
pub mod auth;
pub(crate) mod bounds;
pub(crate) mod counters;
pub(crate) mod exemptions;
mod instant;
pub(crate) mod keys;
pub(crate) mod precondition;
pub(crate) mod proposal;
pub mod rule_json;
pub(crate) mod rules;
mod sub_limit;
mod tenant_writes;
pub(crate) mod text_fields;
pub mod tokens;
pub(crate) mod usage;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;
use tollbar::Timestamp;
use tollbar_rules::RuleSet;

use crate::database::{LiveRules, Repository};
use auth::access::{Actor, Permission, Reach};
pub use tenant_writes::TenantWriteLimit;
use tenant_writes::TenantWrites;
use tollbar_daemon::daemon::Daemon;
use tollbar_daemon::net::Peer;
use tollbar_daemon::net::endpoint::Endpoint;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::protocol::http::{Api, HealthResponse};

/// How long somebody who changed something waits for it to be enforced here.
const ENFORCED_WITHIN: Duration = Duration::from_secs(2);

/// Where the admin API listens.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Admin API")]
pub struct AdminFlags {
    /// Where to listen for the admin API, which needs --database: an address and a port (0 takes any
    /// free one), unix:PATH, or off
    #[arg(long, env = "TOLLBAR_ADMIN", value_name = "ENDPOINT", default_value = "127.0.0.1:8082")]
    admin: Endpoint,

    /// How often each tenant may write through the admin API of this node; operators may always
    #[arg(long, env = "TOLLBAR_TENANT_WRITES", value_name = "RATE", default_value = "60/min")]
    pub tenant_writes: TenantWriteLimit,
}

impl AdminFlags {
    /// Where it listens: nowhere without a database.
    pub fn endpoint(&self, has_database: bool) -> Endpoint {
        if has_database { self.admin.clone() } else { Endpoint::Off }
    }
}

/// What every operation works on.
#[derive(Debug)]
pub struct Admin {
    pub repository: Repository,
    pub(crate) daemon: Arc<Daemon>,
    /// The rules in force.
    pub(crate) live: Arc<LiveRules>,
    authenticator: auth::authentication::Authenticator,
    tenant_writes: TenantWrites,
    /// For explanations, which are the same everywhere.
    pub api: Api,
}

/// How the daemon and its database are doing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdminHealth {
    #[serde(flatten)]
    health: HealthResponse,
    /// How many rules, exemptions and keys of the database the node that answers does not enforce.
    not_in_force: usize,
}

impl Admin {
    pub fn new(
        repository: Repository,
        daemon: Arc<Daemon>,
        live: Arc<LiveRules>,
        writes: TenantWriteLimit,
    ) -> Self {
        let api = Api::new(Arc::clone(&daemon));
        let failures = Arc::clone(&daemon.auth_failures);
        let authenticator = auth::authentication::Authenticator::new(failures);
        let tenant_writes = TenantWrites::new(writes);
        Self { repository, daemon, live, authenticator, tenant_writes, api }
    }

    /// Returns how far the actor may change things. Every operation that changes something calls this once, and a tenant
    /// is charged for one write.
    pub(crate) fn authorize_change<'a>(&self, actor: &'a Actor) -> Result<Reach<'a>, Problem> {
        let reach = actor.reach(Permission::Change)?;
        if let Reach::Tenant(tenant) = reach {
            self.tenant_writes.charge(tenant)?;
        }
        Ok(reach)
    }

    /// The time by which tokens and records end.
    pub(crate) fn now(&self) -> Timestamp {
        self.repository.now()
    }

    /// The rules of the file.
    pub(crate) fn file_rules(&self) -> Arc<RuleSet> {
        self.live.file_rules()
    }

    /// Waits until this node enforces what was just written, or for a while: what was written stays written.
    pub(crate) async fn wait_until_enforced(&self) {
        let enforced = async {
            if let Ok(revisions) = self.repository.revisions().await {
                self.live.wait_until_enforced(revisions.rules).await;
            }
        };
        #[expect(
            clippy::let_underscore_must_use,
            reason = "the change is stored; the response says what is in force so far"
        )]
        let _ = timeout(ENFORCED_WITHIN, enforced).await;
    }

    /// Returns the actor whose token a request bears.
    pub(crate) async fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Peer,
    ) -> Result<Arc<Actor>, Problem> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (first, second) = (values.next(), values.next());
        // Of two that are sent, which one is meant would be a guess.
        let token = first.filter(|_| second.is_none()).map(HeaderValue::as_bytes);
        let token = token.and_then(|value| {
            let (scheme, token) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
        });
        let presented = auth::authentication::PresentedToken { token, peer, now: self.now() };
        self.authenticator.authenticate(&self.repository, presented).await
    }

    pub fn health(&self) -> AdminHealth {
        let not_in_force = self.live.status().skipped.len();
        AdminHealth { health: HealthResponse::new(&self.daemon), not_in_force }
    }
}
