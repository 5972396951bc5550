//! Every path of the admin API, in one table: it is what requests are sent by, what the document is
//! written from, and what says which tokens get where.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::access::Need;
use super::audit::{Change, Nodes};
use super::counters::{ClearAheadForm, ClearingAhead};
use super::exemptions::{self, Exemption};
use super::keys::{self, BanForm, BoostForm, Key, ResetKey};
use super::paging::Paged;
use super::proposal::DryRun;
use super::query::Parameter;
use super::rule_json::{RuleJson, RuleSent};
use super::rules::Rollback;
use super::tokens::{MadeToken, Token, TokenForm};
use super::usage::{Daily, Top, Usages};
use super::wire::Health;
use crate::api::{Explained, Explaining};

pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// One method of one path.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// With a name in braces for a segment that is anything.
    pub(crate) path: &'static str,
    pub(crate) what: What,
    pub(crate) summary: &'static str,
    /// What is asked of who asks; nothing where it is open to all.
    pub(crate) need: Option<Need>,
    pub(crate) query: &'static [Parameter],
    /// The body that is sent, and an example.
    pub(crate) body: Option<(SchemaOf, &'static str)>,
    pub(crate) answer: Answered,
    /// Whether `If-Match` is asked for.
    pub(crate) if_match: bool,
    /// Whether `?dryRun=true` only tells what would be.
    pub(crate) dry_run: bool,
    /// Statuses of its own, besides those that all have.
    pub(crate) errors: &'static [u16],
}

/// What a path answers when all goes well.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answered {
    /// 200 and JSON.
    Ok(SchemaOf),
    /// 201 and JSON.
    Created(SchemaOf),
    /// 204.
    Nothing,
    /// 200 and a text of one of these types.
    Text(&'static [&'static str]),
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    ListRules,
    CreateRule,
    GetRule,
    ReplaceRule,
    DeleteRule,
    RuleHistory,
    RollBackRule,
    RuleExemptions,
    CreateExemption,
    ListExemptions,
    DeleteExemption,
    Audit,
    Usage,
    UsageOfMe,
    DailyUsage,
    ExportUsage,
    TopKeys,
    PeekKey,
    ResetKey,
    ListKeys,
    BanKey,
    BoostKey,
    LiftKey,
    ClearingAhead,
    ClearAhead,
    Nodes,
    ListTokens,
    CreateToken,
    RevokeToken,
    OwnToken,
    Explain,
    Health,
    OpenApi,
    Page,
}

const CLEAR_AHEAD: &str = "/v1/rate-limit/counters/clear-ahead";
const PAGED: &[Parameter] = &[Parameter::Limit, Parameter::Cursor];
const RULE_EXAMPLE: &str =
    r#"{"name":"search","pathPattern":"/v1/search/**","maxRequests":100,"windowSeconds":60}"#;
const EXEMPTION_EXAMPLE: &str =
    r#"{"subjectType":"api_key","subjectValue":"internal","reason":"our own crawler"}"#;
const KEY_EXAMPLE: &str = r#"{"ruleId":"per_client","subject":"user:42"}"#;
const BAN_EXAMPLE: &str =
    r#"{"subject":"ip:203.0.113.7","reason":"abuse","expiresAt":"2027-01-01T00:00:00Z"}"#;
const BOOST_EXAMPLE: &str =
    r#"{"subject":"user:42","factorPercent":150,"expiresAt":"2027-01-01T00:00:00Z"}"#;
const TOKEN_EXAMPLE: &str = r#"{"name":"ci","scopes":["read"]}"#;

pub(crate) static ROUTES: [Route; 34] = [
    Route {
        query: &[
            Parameter::Tenant,
            Parameter::Scope,
            Parameter::Enabled,
            Parameter::Name,
            Parameter::Limit,
            Parameter::Cursor,
        ],
        ..get::<Paged<RuleJson>>(
            "/v1/rate-limit/rules",
            What::ListRules,
            "All rules, those of the file first",
            Need::See,
        )
    },
    Route {
        dry_run: true,
        errors: &[409],
        ..post::<RuleJson>(
            "/v1/rate-limit/rules",
            What::CreateRule,
            "Makes a rule",
            Need::Change,
            (schema_of::<RuleSent>, RULE_EXAMPLE),
        )
    },
    Route {
        errors: &[404],
        ..get::<RuleJson>("/v1/rate-limit/rules/{ruleId}", What::GetRule, "One rule", Need::See)
    },
    Route {
        method: "PUT",
        answer: Answered::Ok(schema_of::<RuleJson>),
        if_match: true,
        dry_run: true,
        errors: &[404, 409],
        ..post::<RuleJson>(
            "/v1/rate-limit/rules/{ruleId}",
            What::ReplaceRule,
            "Makes a rule say something else; its counters stay",
            Need::Change,
            (schema_of::<RuleSent>, RULE_EXAMPLE),
        )
    },
    Route {
        if_match: true,
        dry_run: true,
        errors: &[404],
        ..delete(
            "/v1/rate-limit/rules/{ruleId}",
            What::DeleteRule,
            "Deletes a rule; its history stays",
        )
    },
    Route {
        query: PAGED,
        errors: &[404],
        ..get::<Paged<Change>>(
            "/v1/rate-limit/rules/{ruleId}/history",
            What::RuleHistory,
            "Every change of a rule, the newest first",
            Need::See,
        )
    },
    Route {
        answer: Answered::Ok(schema_of::<RuleJson>),
        if_match: true,
        dry_run: true,
        errors: &[404, 409],
        ..post::<RuleJson>(
            "/v1/rate-limit/rules/{ruleId}/rollback",
            What::RollBackRule,
            "Makes a rule say what it said at a version; brings back one that was deleted",
            Need::Change,
            (schema_of::<Rollback>, r#"{"version":1}"#),
        )
    },
    Route {
        query: PAGED,
        errors: &[404],
        ..get::<Paged<Exemption>>(
            "/v1/rate-limit/rules/{ruleId}/exemptions",
            What::RuleExemptions,
            "Who is exempt from a rule",
            Need::See,
        )
    },
    Route {
        errors: &[404, 409],
        ..post::<Exemption>(
            "/v1/rate-limit/rules/{ruleId}/exemptions",
            What::CreateExemption,
            "Exempts somebody from a rule",
            Need::Change,
            (schema_of::<exemptions::Sent>, EXEMPTION_EXAMPLE),
        )
    },
    Route {
        query: PAGED,
        ..get::<Paged<Exemption>>(
            "/v1/rate-limit/exemptions",
            What::ListExemptions,
            "Who is exempt, from any rule",
            Need::SeeAll,
        )
    },
    Route {
        errors: &[404],
        ..delete(
            "/v1/rate-limit/exemptions/{exemptionId}",
            What::DeleteExemption,
            "Ends an exemption",
        )
    },
    Route {
        query: &[Parameter::RuleId, Parameter::Limit, Parameter::Cursor],
        errors: &[404],
        ..get::<Paged<Change>>(
            "/v1/rate-limit/audit",
            What::Audit,
            "Who changed what, the newest first",
            Need::SeeAll,
        )
    },
    Route {
        query: &[Parameter::SubjectType, Parameter::SubjectId, Parameter::RuleId],
        errors: &[404, 422],
        ..get::<Usages>(
            "/v1/rate-limit/usage",
            What::Usage,
            "What is left to a subject now",
            Need::See,
        )
    },
    Route {
        errors: &[404, 422],
        ..get::<Usages>(
            "/v1/rate-limit/usage/me",
            What::UsageOfMe,
            "What is left to the token's own subject now",
            Need::BeSubject,
        )
    },
    Route {
        query: &[
            Parameter::From,
            Parameter::To,
            Parameter::Tenant,
            Parameter::Subject,
            Parameter::RuleId,
            Parameter::Limit,
            Parameter::Cursor,
        ],
        ..get::<Paged<Daily>>(
            "/v1/rate-limit/usage/daily",
            What::DailyUsage,
            "What was used, day by day",
            Need::See,
        )
    },
    Route {
        query: &[Parameter::Format, Parameter::From, Parameter::To, Parameter::Tenant],
        answer: Answered::Text(&["text/csv", "application/jsonl"]),
        ..get::<Paged<Daily>>(
            "/v1/rate-limit/usage/export",
            What::ExportUsage,
            "All of what was used, as one stream",
            Need::See,
        )
    },
    Route {
        query: &[Parameter::RuleId, Parameter::Limit],
        errors: &[404],
        ..get::<Top>(
            "/v1/rate-limit/keys/top",
            What::TopKeys,
            "Who was denied most by this node since it started",
            Need::See,
        )
    },
    Route {
        answer: Answered::Ok(schema_of::<Usages>),
        errors: &[404],
        ..post::<Usages>(
            "/v1/rate-limit/keys/peek",
            What::PeekKey,
            "What is left to a key; charges nothing",
            Need::See,
            (schema_of::<Key>, KEY_EXAMPLE),
        )
    },
    Route {
        answer: Answered::Ok(schema_of::<ResetKey>),
        errors: &[404],
        ..post::<ResetKey>(
            "/v1/rate-limit/keys/reset",
            What::ResetKey,
            "Makes the counters of a key fresh",
            Need::Change,
            (schema_of::<Key>, KEY_EXAMPLE),
        )
    },
    Route {
        query: &[Parameter::RuleId, Parameter::Subject, Parameter::Limit, Parameter::Cursor],
        ..get::<Paged<keys::Told>>(
            "/v1/rate-limit/keys",
            What::ListKeys,
            "Bans and boosts",
            Need::SeeAll,
        )
    },
    Route {
        errors: &[404],
        ..post::<keys::Told>(
            "/v1/rate-limit/keys/ban",
            What::BanKey,
            "Denies somebody, under one rule or all",
            Need::Change,
            (schema_of::<BanForm>, BAN_EXAMPLE),
        )
    },
    Route {
        errors: &[404],
        ..post::<keys::Told>(
            "/v1/rate-limit/keys/boost",
            What::BoostKey,
            "Multiplies somebody's limits, under one rule or all",
            Need::ChangeAll,
            (schema_of::<BoostForm>, BOOST_EXAMPLE),
        )
    },
    Route {
        errors: &[404],
        ..delete("/v1/rate-limit/keys/{keyId}", What::LiftKey, "Ends a ban or a boost")
    },
    get::<ClearingAhead>(
        CLEAR_AHEAD,
        What::ClearingAhead,
        "Whether counters that are ahead of the clock are cleared, and how many were",
        Need::SeeAll,
    ),
    Route {
        answer: Answered::Ok(schema_of::<ClearingAhead>),
        ..post::<ClearingAhead>(
            CLEAR_AHEAD,
            What::ClearAhead,
            "Clears this node's counters that are ahead of the clock, each when its client is denied",
            Need::ChangeAll,
            (schema_of::<ClearAheadForm>, r#"{"forSeconds":600}"#),
        )
    },
    get::<Nodes>(
        "/v1/rate-limit/nodes",
        What::Nodes,
        "The nodes, and which revision each enforces",
        Need::SeeAll,
    ),
    Route {
        query: PAGED,
        ..get::<Paged<Token>>(
            "/v1/rate-limit/tokens",
            What::ListTokens,
            "All tokens, without what would let somebody use them",
            Need::ChangeAll,
        )
    },
    post::<MadeToken>(
        "/v1/rate-limit/tokens",
        What::CreateToken,
        "Makes a token, and shows it this once",
        Need::ChangeAll,
        (schema_of::<TokenForm>, TOKEN_EXAMPLE),
    ),
    Route {
        need: Some(Need::ChangeAll),
        errors: &[404],
        ..delete(
            "/v1/rate-limit/tokens/{tokenId}",
            What::RevokeToken,
            "Revokes a token, on all nodes within a second",
        )
    },
    get::<Token>("/v1/rate-limit/self", What::OwnToken, "The token that is sent", Need::BeKnown),
    Route {
        answer: Answered::Ok(schema_of::<Explained<'_>>),
        ..post::<Explained<'_>>(
            "/v1/rate-limit/explain",
            What::Explain,
            "What every rule makes of a request; charges nothing",
            Need::SeeAll,
            (Explaining::schema, Explaining::EXAMPLE),
        )
    },
    Route {
        need: None,
        ..get::<Health>("/healthz", What::Health, "200 while the daemon answers", Need::BeKnown)
    },
    Route {
        need: None,
        ..get::<serde_json::Map<String, serde_json::Value>>(
            "/openapi.json",
            What::OpenApi,
            "This document",
            Need::BeKnown,
        )
    },
    Route {
        need: None,
        answer: Answered::Text(&["text/html"]),
        ..get::<Health>("/docs", What::Page, "This document for people", Need::BeKnown)
    },
];

const fn get<T: JsonSchema>(
    path: &'static str,
    what: What,
    summary: &'static str,
    need: Need,
) -> Route {
    Route {
        method: "GET",
        path,
        what,
        summary,
        need: Some(need),
        query: &[],
        body: None,
        answer: Answered::Ok(schema_of::<T>),
        if_match: false,
        dry_run: false,
        errors: &[],
    }
}

const fn post<T: JsonSchema>(
    path: &'static str,
    what: What,
    summary: &'static str,
    need: Need,
    body: (SchemaOf, &'static str),
) -> Route {
    let answer = Answered::Created(schema_of::<T>);
    Route { method: "POST", body: Some(body), answer, ..get::<T>(path, what, summary, need) }
}

const fn delete(path: &'static str, what: What, summary: &'static str) -> Route {
    let route = get::<Health>(path, what, summary, Need::Change);
    Route { method: "DELETE", answer: Answered::Nothing, ..route }
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// What a change would do, for those that can be tried.
pub(crate) const DRY_RUN: SchemaOf = schema_of::<DryRun>;

impl Route {
    /// The routes of a path, and the segment that is anything. The more exact path goes first.
    pub(crate) fn of_path(path: &str) -> Vec<(&'static Self, &str)> {
        let matching = |it: &'static Self| Some((it, it.matched(path)?));
        let all: Vec<_> = ROUTES.iter().filter_map(matching).collect();
        let exact: Vec<_> = all.iter().filter(|(it, _)| it.path == path).copied().collect();
        if exact.is_empty() { all } else { exact }
    }

    /// What stands for the name in braces; empty where there is none.
    fn matched<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Some((before, rest)) = self.path.split_once('{') else {
            return (self.path == path).then_some("");
        };
        let after = rest.split_once('}').map_or("", |(_, after)| after);
        let id = path.strip_prefix(before)?.strip_suffix(after)?;
        (!id.is_empty() && !id.contains('/')).then_some(id)
    }

    /// The name in braces.
    pub(crate) fn id_name(&self) -> Option<&'static str> {
        self.path.split_once('{')?.1.split_once('}').map(|(name, _)| name)
    }
}
