//! Who changed what, and which node enforces which revision. Read only: changes write it themselves.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::Admin;
use super::access::{Actor, Need};
use super::paging::{Asked, Paged};
use super::problem::Problem;
use crate::repository::{AuditAction, AuditFilter, AuditKind, AuditRow};
use crate::rfc3339::Instant;

/// One change.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "clients know it by this name")]
pub(crate) struct Change {
    pub(crate) change_id: i64,
    /// What was changed.
    pub(crate) kind: Kind,
    /// The rule, where it was one or belongs to one.
    pub(crate) rule_id: Option<String>,
    pub(crate) action: Action,
    /// The rule's version after a change of a rule.
    pub(crate) version: Option<u64>,
    /// What it was; null where it was not.
    pub(crate) before: Option<Value>,
    /// What it is since; null where it is no more.
    pub(crate) after: Option<Value>,
    /// Who did it.
    pub(crate) actor: String,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) at: Instant,
}

/// What kind of thing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ChangeKind")]
pub(crate) enum Kind {
    Rule,
    Exemption,
    Token,
    Key,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ChangeAction")]
pub(crate) enum Action {
    Insert,
    Update,
    Delete,
    Enable,
    Disable,
}

/// The nodes, and how far they are.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Nodes {
    /// The revision of the database: a node that enforces it enforces every change.
    pub(crate) revision: u64,
    pub(crate) items: Vec<Node>,
}

/// One node.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "clients know it by this name")]
pub(crate) struct Node {
    /// What it calls itself.
    pub(crate) node: String,
    /// The revision that it enforces.
    pub(crate) revision: u64,
    /// When it said so last.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) seen_at: Instant,
}

/// A page of changes, the newest first; of one rule where that is asked for.
pub(crate) async fn list(
    admin: &Admin,
    actor: &Actor,
    rule: Option<&str>,
    asked: &Asked,
) -> Result<Paged<Change>, Problem> {
    actor.reach(Need::SeeAll)?;
    let rule = rule.map(|it| it.parse().map_err(|_| Problem::not_found("rule"))).transpose()?;
    let filter = AuditFilter { rule, ..AuditFilter::default() };
    Ok(Paged::of(admin.repository.audit(&filter, &asked.page()).await?, Change::of))
}

/// The nodes of the fleet.
pub(crate) async fn nodes(admin: &Admin, actor: &Actor) -> Result<Nodes, Problem> {
    actor.reach(Need::SeeAll)?;
    let revision = admin.repository.revisions().await?.rules;
    let rows = admin.repository.nodes().await?.into_iter();
    let items =
        rows.map(|it| Node { node: it.node, revision: it.revision, seen_at: Instant(it.seen_at) });
    Ok(Nodes { revision, items: items.collect() })
}

impl Change {
    pub(crate) fn of(row: AuditRow) -> Self {
        Self {
            change_id: row.id,
            kind: match row.kind {
                AuditKind::Rule => Kind::Rule,
                AuditKind::Exemption => Kind::Exemption,
                AuditKind::Token => Kind::Token,
                AuditKind::Key => Kind::Key,
            },
            rule_id: row.rule.map(|it| it.to_string()),
            action: match row.action {
                AuditAction::Insert => Action::Insert,
                AuditAction::Update => Action::Update,
                AuditAction::Delete => Action::Delete,
                AuditAction::Enable => Action::Enable,
                AuditAction::Disable => Action::Disable,
            },
            version: row.version,
            before: row.old_row,
            after: row.new_row,
            actor: row.actor,
            at: Instant(row.created_at),
        }
    }
}
