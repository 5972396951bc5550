//! What the repository keeps, a struct for each kind of row. No SQL and no JSON of an API here.

use serde_json::Value;
use tollbar::Timestamp;
use tollbar_rules::Rule;
use tollbar_rules::admin::{ExemptionForm, Scope};

use super::RuleId;

/// A rule of the database.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleRow {
    /// Its name for programs and counters, which never changes.
    pub id: RuleId,
    /// What it says. Its own `id` is absent: its counters are kept under the row's.
    pub rule: Rule,
    /// 1 at first, and one more with every change: its `ETag`.
    pub version: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was changed last.
    pub updated_at: Timestamp,
    /// When it was deleted, if it was.
    pub deleted_at: Option<Timestamp>,
    /// Its place in lists.
    pub(crate) row: i64,
}

/// Which rules a list has; all that are not deleted where nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleFilter {
    /// Those of this tenant.
    pub tenant: Option<String>,
    /// Those of this scope.
    pub scope: Option<Scope>,
    /// Those that are enabled, or those that are not.
    pub enabled: Option<bool>,
    /// The one of this name.
    pub name: Option<String>,
}

/// An exemption from a rule of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExemptionRow {
    /// Its name for programs.
    pub id: i64,
    /// From which rule.
    pub rule: RuleId,
    /// Whom, why and until when.
    pub form: ExemptionForm,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
}

/// A change, as it was written down with it.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRow {
    /// Counts up.
    pub id: i64,
    /// What was changed.
    pub kind: AuditKind,
    /// The rule, where it was one or belongs to one.
    pub rule: Option<RuleId>,
    /// What was done.
    pub action: AuditAction,
    /// The rule's version after a change of a rule.
    pub version: Option<u64>,
    /// What it was before; none where it was not.
    pub old_row: Option<Value>,
    /// What it is since; none where it is no more.
    pub new_row: Option<Value>,
    /// Who did it.
    pub actor: String,
    /// When.
    pub created_at: Timestamp,
}

/// What kind of thing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditKind {
    /// A rule.
    Rule,
    /// An exemption from one.
    Exemption,
    /// A token. Its hash is not written down.
    Token,
    /// A ban or a boost.
    Key,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditAction {
    /// It was made.
    Insert,
    /// It was changed, or put back to what it was.
    Update,
    /// It was deleted, or revoked.
    Delete,
    /// It was enabled.
    Enable,
    /// It was disabled.
    Disable,
}

/// Which changes a list has; all where nothing is said. The newest come first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Those of this rule and what belongs to it.
    pub rule: Option<RuleId>,
    /// Those of rules of this tenant.
    pub tenant: Option<String>,
    /// Those of this kind.
    pub kind: Option<AuditKind>,
}

/// A token, without what would let somebody use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// Its name for programs.
    pub id: i64,
    /// What people call it.
    pub name: String,
    /// What it may do, as texts of the admin API.
    pub scopes: Vec<String>,
    /// Whose usage it may see, where that is what it is for.
    pub subject: Option<String>,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
    /// From when on it is worth nothing.
    pub expires_at: Option<Timestamp>,
    /// When it was used last, more or less.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
}

/// A token to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// The hash by which it is found.
    pub hash: [u8; 32],
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Whose usage it may see.
    pub subject: Option<String>,
    /// From when on it is worth nothing.
    pub expires_at: Option<Timestamp>,
}

/// A ban or a boost of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Its name for programs.
    pub id: i64,
    /// What it says.
    pub record: KeyRecord,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
}

/// What a ban or a boost says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Under which rule, by [`Rule::identity`](tollbar_rules::Rule::identity): the id of a rule of
    /// the database, the `id` or name of a file's. All rules where there is none.
    pub rule: Option<String>,
    /// Whom, as `check_subject` and `readable` write it: `user:42`, `api:abc`, `ip:203.0.113.7`.
    pub subject: String,
    /// What becomes of them.
    pub effect: KeyEffect,
    /// Why, for people.
    pub reason: Option<String>,
    /// Until when; for good where there is none.
    pub expires_at: Option<Timestamp>,
}

/// What becomes of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEffect {
    /// It is denied.
    Ban,
    /// Its limits are multiplied.
    Boost {
        /// By so much: 150 is one and a half times. 1 to 100,000.
        factor_percent: u32,
    },
}

/// Which records a list has; all that have not ended where nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyFilter {
    /// Those under this rule, by its identity; not those under all rules.
    pub rule: Option<String>,
    /// Those of this subject.
    pub subject: Option<String>,
    /// Those that have ended as well.
    pub with_expired: bool,
}

/// What a subject was admitted and denied under a rule in a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// The day in UTC, by days since 1970-01-01.
    pub day: i32,
    /// The tenant; empty where there is none.
    pub tenant: String,
    /// Whom the rule counted.
    pub subject: String,
    /// The rule, by its identity.
    pub rule: String,
    /// What passed.
    pub admitted_cost: u64,
    /// What was turned away.
    pub denied_cost: u64,
}

/// Which usage a list has. Ordered by day, tenant, subject and rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageFilter {
    /// From this day on.
    pub first_day: Option<i32>,
    /// Up to this day, which is included.
    pub last_day: Option<i32>,
    /// Of this tenant; empty is of none.
    pub tenant: Option<String>,
    /// Of this subject.
    pub subject: Option<String>,
    /// Of this rule.
    pub rule: Option<String>,
}

/// Whether a batch of usage was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It was.
    Now,
    /// It had been before, and nothing was done.
    Before,
}

/// A node, and what it enforces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    /// What it calls itself.
    pub node: String,
    /// The revision that it enforces.
    pub revision: u64,
    /// When it said so last.
    pub seen_at: Timestamp,
}

/// Numbers that grow with every change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Revisions {
    /// Of what nodes enforce: rules, exemptions, bans and boosts.
    pub rules: u64,
    /// Of tokens: made, changed or revoked, but not used.
    pub tokens: u64,
}
