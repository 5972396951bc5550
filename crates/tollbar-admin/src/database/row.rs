//! What the repository keeps, a struct for each kind of row. Rows are serialized as the admin API sends them,
//! and as the audit keeps them. No SQL here.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollbar::Timestamp;
use tollbar_rules::admin::{ExemptionForm, Scope};
use tollbar_rules::{Rule, UsageAmounts};

use super::RuleId;
use tollbar_daemon::rfc3339::{self, Rfc3339};

/// A rule of the database.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleRow {
    /// Its name for programs and counters, which never changes.
    pub id: RuleId,
    /// What it says. Its own `id` is absent: its counters are kept under the row's.
    pub rule: Rule,
    /// 1 at first, and one more with every change: its `ETag`.
    pub version: u64,
    /// Who made it.
    pub owner: Owner,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was changed last.
    pub updated_at: Timestamp,
    /// When it was deleted, if it was.
    pub deleted_at: Option<Timestamp>,
    /// Its place in lists.
    pub(crate) row: i64,
}

/// Who made a rule. Operators change every rule, and a tenant changes those that it owns.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Owner {
    /// An operator, by a token of scope `admin`, a file or SQL.
    #[default]
    Operator,
    /// The tenant of this id, by a token of scope `tenant:<id>`.
    Tenant(String),
}

/// Reads `tenant:<id>`. Every other text is the operator's, so that no tenant changes what it should not.
impl From<String> for Owner {
    fn from(text: String) -> Self {
        match text.strip_prefix("tenant:") {
            Some(tenant) => Self::Tenant(tenant.to_owned()),
            None => Self::Operator,
        }
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> Self {
        owner.to_string()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => f.write_str("operator"),
            Self::Tenant(tenant) => write!(f, "tenant:{tenant}"),
        }
    }
}

/// A row that somebody wrote by hand and that says no rule. It is not enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRule {
    /// Its id, which may be none.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
    /// Its version; 0 where that is none.
    pub version: u64,
    /// What it says, whatever that is.
    pub(crate) spec: Value,
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
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Change")]
pub struct AuditRow {
    /// Counts up.
    #[serde(rename = "changeId")]
    pub id: i64,
    /// What was changed.
    pub kind: AuditKind,
    /// The rule, where it was one or belongs to one.
    #[serde(rename = "ruleId")]
    pub rule: Option<RuleId>,
    /// What was done.
    pub action: AuditAction,
    /// The rule's version after a change of a rule.
    pub version: Option<u64>,
    /// What it was; null where it was not.
    #[schemars(with = "Option<Value>")]
    pub before: Option<AuditState>,
    /// What it is since; null where it is no more.
    #[schemars(with = "Option<Value>")]
    pub after: Option<AuditState>,
    /// Who did it.
    pub actor: String,
    /// When.
    #[serde(rename = "at", serialize_with = "rfc3339::write")]
    #[schemars(with = "Rfc3339")]
    pub created_at: Timestamp,
}

/// The state of something before or after a change, as the audit has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AuditState {
    /// A rule.
    Rule(Box<AuditedRule>),
    /// Something that is only shown: an exemption, a token, a ban, or a row that was no rule.
    Other(Value),
}

/// A rule at one of its versions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditedRule {
    /// Its id.
    pub rule_id: RuleId,
    /// Which version.
    pub version: u64,
    /// Who made it. Versions from before rules had owners are the operator's here.
    #[serde(default)]
    pub owner: Owner,
    /// When it was deleted, if it was.
    pub(crate) deleted_at: Option<Rfc3339>,
    /// What it said.
    #[serde(flatten)]
    pub rule: Rule,
}

/// What kind of thing was changed: a rule, an exemption from one, a token (without its hash), or a ban or boost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ChangeKind")]
#[expect(missing_docs, reason = "a described value is no plain `enum` in the document")]
pub enum AuditKind {
    Rule,
    Exemption,
    Token,
    Key,
}

/// What was done. A rule that is put back to what it was is updated; a token that is revoked is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ChangeAction")]
#[expect(missing_docs, reason = "a described value is no plain `enum` in the document")]
pub enum AuditAction {
    Insert,
    Update,
    Delete,
    Enable,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Token")]
pub struct TokenRow {
    /// Its name for programs.
    #[serde(rename = "tokenId")]
    pub id: i64,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Whose usage it sees, where that is what it is for.
    pub subject: Option<String>,
    /// Who made it.
    pub created_by: String,
    /// When.
    #[serde(serialize_with = "rfc3339::write")]
    #[schemars(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// From when on it is worth nothing.
    #[serde(serialize_with = "rfc3339::write_option")]
    #[schemars(with = "Option<Rfc3339>")]
    pub expires_at: Option<Timestamp>,
    /// When it was used last, to the minute.
    #[serde(serialize_with = "rfc3339::write_option")]
    #[schemars(with = "Option<Rfc3339>")]
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    #[serde(serialize_with = "rfc3339::write_option")]
    #[schemars(with = "Option<Rfc3339>")]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "KeyRecord")]
pub struct KeyRow {
    /// Its name for programs.
    #[serde(rename = "keyId")]
    pub id: i64,
    /// What it says.
    #[serde(flatten)]
    pub record: KeyRecord,
    /// Who made it.
    pub created_by: String,
    /// When.
    #[serde(serialize_with = "rfc3339::write")]
    #[schemars(with = "Rfc3339")]
    pub created_at: Timestamp,
}

/// What a ban or a boost says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRecord {
    /// Under which rule, by its id, or of a file's rule by its `id` or name; null is under all.
    #[serde(rename = "ruleId")]
    pub rule: Option<String>,
    /// Whom, as rules count them: `user:42`, `api:abc`, `ip:203.0.113.7`.
    pub subject: String,
    /// What becomes of them.
    #[serde(flatten)]
    pub effect: KeyEffect,
    /// Why, for people.
    pub reason: Option<String>,
    /// Until when; null is for good.
    #[serde(serialize_with = "rfc3339::write_option")]
    #[schemars(with = "Option<Rfc3339>")]
    pub expires_at: Option<Timestamp>,
}

/// What becomes of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(into = "EffectFields")]
pub enum KeyEffect {
    /// It is denied.
    Ban,
    /// Its limits are multiplied.
    Boost {
        /// By so much: 150 is one and a half times. 1 to 100,000.
        factor_percent: u32,
    },
}

/// An effect as JSON and tables have it.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EffectFields {
    /// What becomes of the subject.
    pub(crate) kind: KeyKind,
    /// By how much limits are multiplied: 150 is one and a half times; null of a ban.
    pub(crate) factor_percent: Option<u32>,
}

/// What becomes of a subject.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyKind {
    Ban,
    Boost,
}

impl KeyKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ban => "ban",
            Self::Boost => "boost",
        }
    }
}

impl From<KeyEffect> for EffectFields {
    fn from(effect: KeyEffect) -> Self {
        match effect {
            KeyEffect::Ban => Self { kind: KeyKind::Ban, factor_percent: None },
            KeyEffect::Boost { factor_percent } => {
                Self { kind: KeyKind::Boost, factor_percent: Some(factor_percent) }
            }
        }
    }
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

/// By what usage is added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum UsageGroup {
    /// The tenant.
    Tenant,
    /// The client: an API key, a user or an address.
    Client,
    /// The rule.
    Rule,
    /// The tier.
    Tier,
}

impl UsageGroup {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Tenant, Self::Client, Self::Rule, Self::Tier];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Client => "client",
            Self::Rule => "rule",
            Self::Tier => "tier",
        }
    }
}

/// What was used by one tenant, client, rule or tier, under one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageTotal {
    /// The tenant, client, rule or tier; empty where there is none.
    pub group: String,
    /// The rule, by its identity.
    pub rule: String,
    /// How much.
    pub amounts: UsageAmounts,
}

/// Which usage a list has. Ordered by day, tenant, subject, rule, client and tier.
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

/// What became of a batch of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchOutcome {
    /// It was added.
    Added,
    /// It had been added before, and nothing was done.
    AlreadyAdded,
}

/// A node, and what it enforces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Node")]
pub struct NodeRow {
    /// What it calls itself.
    pub node: String,
    /// The revision that it enforces.
    pub revision: u64,
    /// When it said so last.
    #[serde(serialize_with = "rfc3339::write")]
    #[schemars(with = "Rfc3339")]
    pub seen_at: Timestamp,
    /// Where it counts: `memory`, `redis` or `redis:NAMESPACE`. Nodes of older versions do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// True if it knows loans. Nodes of older versions do not.
    #[serde(skip)]
    pub knows_loans: bool,
}

/// Numbers that grow with every change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Revisions {
    /// Of what nodes enforce: rules, exemptions, bans and boosts.
    pub rules: u64,
    /// Of tokens: made, changed or revoked, but not used.
    pub tokens: u64,
}
