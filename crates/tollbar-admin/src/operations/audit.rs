//! Who changed what, and which node enforces which revision. Read only: changes write it themselves.

use schemars::JsonSchema;
use serde::Serialize;

use super::Admin;
use crate::database::{AuditFilter, AuditRow, NodeRow, Page, PageRequest};
use crate::operations::auth::access::{Actor, Permission};
use tollbar_daemon::problem::Problem;

/// The nodes, and how far they are.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Nodes {
    /// The revision of the database: a node that enforces it enforces every change.
    pub(crate) revision: u64,
    pub(crate) items: Vec<NodeRow>,
}

/// A page of changes, the newest first; of one rule where that is asked for.
pub(crate) async fn list(
    admin: &Admin,
    actor: &Actor,
    rule: Option<&str>,
    page: &PageRequest,
) -> Result<Page<AuditRow>, Problem> {
    actor.reach(Permission::SeeAll)?;
    let rule = rule.map(|id| id.parse().map_err(|_| Problem::not_found("rule"))).transpose()?;
    let filter = AuditFilter { rule, ..AuditFilter::default() };
    Ok(admin.repository.audit(&filter, page).await?)
}

/// The nodes of the fleet.
pub(crate) async fn nodes(admin: &Admin, actor: &Actor) -> Result<Nodes, Problem> {
    actor.reach(Permission::SeeAll)?;
    let revision = admin.repository.revisions().await?.rules;
    Ok(Nodes { revision, items: admin.repository.nodes().await? })
}
