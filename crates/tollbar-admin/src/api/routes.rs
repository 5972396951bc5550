//! Every path of the admin API. The router that sends requests to operations is also what the document is
//! written from: an operation's arguments and answer say whom it lets in, what it reads and what it sends.

use std::future::{Ready, ready};
use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::{
    delete_with as delete, get_with as get, post_with as post, put_with as put,
};
use aide::openapi::OpenApi;
use aide::transform::TransformOperation;
use axum::Router;

use super::openapi;
use super::query::{
    AuditParameters, BoundsParameters, DailyParameters, DryRunParameters, ExportParameters,
    KeyParameters, OwnUsageParameters, PageParameters, RuleParameters, TopParameters,
    UsageParameters,
};
use crate::api::extract::{AuthorizedRequest, ExplainBody, JsonBody, PublicRequest, RequestBody};
use crate::api::response::{
    Bounds, ChangedRule, Created, CreatedRule, DeletedRule, Document, Explanation, Json, NoContent,
    Page, RuleResponse, UsageExport,
};
use crate::api::{docs_page, usage_export};
use crate::operations::auth::access::{Change, ChangeAll, See, SeeAll, SeeOwnToken, SeeOwnUsage};
use crate::operations::counters::ClearAheadForm;
use crate::operations::keys::{BanForm, BoostForm, Key};
use crate::operations::precondition::IfMatch;
use crate::operations::rule_json::RuleForm;
use crate::operations::rules::Rollback;
use crate::operations::tokens::TokenForm;
use crate::operations::{Admin, audit, bounds, counters, exemptions, keys, rules, tokens, usage};
use tollbar_daemon::openapi::refuse;
use tollbar_daemon::problem::Problem;

/// The end of the message for an unknown path. It follows "there is no such".
const UNKNOWN: &str = "path: `/docs` lists those there are";

/// Returns the router that answers for an [`Admin`].
pub(crate) fn router(admin: Arc<Admin>) -> Router {
    tollbar_daemon::openapi::begin();
    routes().finish_api(&mut OpenApi::default()).with_state(admin)
}

/// A router of operations: each has a method, a path, a name, a summary, the errors of its own, the arguments
/// that are read from a request, what is done with them, and how the outcome is answered.
macro_rules! routes {
    ($($method:ident $path:literal $name:literal $summary:literal $errors:tt
       |$($argument:ident: $type:ty),+| $operation:expr => $answer:expr;)+) => {
        ApiRouter::new()$(.api_route($path, $method(
            async |$($argument: $type),+| $operation.await.map($answer),
            |operation| describe(operation, $name, $summary, &$errors),
        )))+
    };
}

fn describe<'o>(
    operation: TransformOperation<'o>,
    name: &str,
    summary: &str,
    errors: &[u16],
) -> TransformOperation<'o> {
    let mut operation = operation.id(name).summary(summary);
    refuse(operation.inner_mut(), errors);
    operation
}

/// Returns the router without its [`Admin`], for the document.
#[rustfmt::skip]
pub(crate) fn routes() -> ApiRouter<Arc<Admin>> {
    let api = routes! {
        get "/rules" "ListRules" "All rules, those of the file first" []
            |request: AuthorizedRequest<See, RuleParameters>|
            rules::list(&request.admin, &request.actor, &request.query.rules(), &request.query.page()) => Json;
        post "/rules" "CreateRule" "Makes a rule" [409]
            |request: AuthorizedRequest<Change, DryRunParameters>, sent: JsonBody<RuleForm>|
            rules::create(&request.admin, &request.actor, &sent.0, request.query.dry_run) => CreatedRule;
        get "/rules/{ruleId}" "GetRule" "One rule" [404, 409]
            |request: AuthorizedRequest<See>| rules::get(&request.admin, &request.actor, &request.id) => RuleResponse;
        put "/rules/{ruleId}" "ReplaceRule" "Makes a rule say something else; its counters stay" [404, 409]
            |request: AuthorizedRequest<Change, DryRunParameters>, version: IfMatch, sent: JsonBody<RuleForm>|
            rules::replace(&request.admin, &request.actor, &request.id, &version, &sent.0, request.query.dry_run)
            => ChangedRule;
        delete "/rules/{ruleId}" "DeleteRule" "Deletes a rule; its history stays" [404, 409]
            |request: AuthorizedRequest<Change, DryRunParameters>, version: IfMatch|
            rules::delete(&request.admin, &request.actor, &request.id, &version, request.query.dry_run) => DeletedRule;
        get "/rules/{ruleId}/history" "RuleHistory" "Every change of a rule, the newest first" [404, 409]
            |request: AuthorizedRequest<See, PageParameters>|
            rules::history(&request.admin, &request.actor, &request.id, &request.query.page()) => Json;
        post "/rules/{ruleId}/rollback" "RollBackRule"
            "Makes a rule say what it said at a version; brings back one that was deleted" [404, 409]
            |request: AuthorizedRequest<Change, DryRunParameters>, version: IfMatch, sent: JsonBody<Rollback>|
            rules::roll_back(&request.admin, &request.actor, &request.id, &version, &sent.0, request.query.dry_run)
            => ChangedRule;
        get "/rules/{ruleId}/bounds" "RuleBounds" "What each limit of a rule admits at most and at least in any interval" [404, 409]
            |request: AuthorizedRequest<See, BoundsParameters>|
            bounds::of_rule(&request.admin, &request.actor, &request.id, &request.query.over.0) => Bounds;
        get "/rules/{ruleId}/exemptions" "RuleExemptions" "Who is exempt from a rule" [404, 409]
            |request: AuthorizedRequest<See, PageParameters>|
            exemptions::list_of_rule(&request.admin, &request.actor, &request.id, &request.query.page()) => Json;
        post "/rules/{ruleId}/exemptions" "CreateExemption" "Exempts somebody from a rule" [404, 409]
            |request: AuthorizedRequest<Change>, sent: JsonBody<exemptions::NewExemption>|
            exemptions::create(&request.admin, &request.actor, &request.id, &sent.0) => Created;
        get "/exemptions" "ListExemptions" "Who is exempt, from any rule" []
            |request: AuthorizedRequest<SeeAll, PageParameters>|
            exemptions::list(&request.admin, &request.actor, &request.query.page()) => Json;
        delete "/exemptions/{exemptionId}" "DeleteExemption" "Ends an exemption" [404, 409]
            |request: AuthorizedRequest<Change>| exemptions::delete(&request.admin, &request.actor, &request.id) => NoContent;
        get "/audit" "Audit" "Who changed what, the newest first" [404]
            |request: AuthorizedRequest<SeeAll, AuditParameters>|
            audit::list(&request.admin, &request.actor, request.query.rule_id.as_deref(), &request.query.page()) => Json;
        get "/usage" "Usage" "What is left to a subject now" [404, 422]
            |request: AuthorizedRequest<See, UsageParameters>|
            async { usage::get_of_subject(&request.admin, &request.actor, request.query.usage_subject()?).await } => Json;
        get "/usage/me" "UsageOfMe" "What is left to the token's own subject now" [404, 422]
            |request: AuthorizedRequest<SeeOwnUsage, OwnUsageParameters>|
            usage::get_own(&request.admin, &request.actor, request.query.attributes()) => Json;
        get "/usage/daily" "DailyUsage" "What was used, day by day" []
            |request: AuthorizedRequest<See, DailyParameters>|
            usage::list_daily(&request.admin, &request.actor, request.query.usage(), &request.query.page()) => Json;
        get "/usage/export" "ExportUsage" "All of what was used, as one stream" []
            |request: AuthorizedRequest<See, ExportParameters>|
            usage_export::stream(request.admin, request.actor, request.query.usage(), request.query.by, request.query.format)
            => UsageExport;
        get "/keys/top" "TopKeys" "Who was denied most by this node since it started" [404]
            |request: AuthorizedRequest<See, TopParameters>|
            ready(usage::list_top_denied(&request.admin, &request.actor, request.query.rule_id.as_deref(), request.query.count()))
            => Json;
        post "/keys/peek" "PeekKey" "What is left to a key; charges nothing" [404]
            |request: AuthorizedRequest<See>, key: JsonBody<Key>| keys::peek(&request.admin, &request.actor, &key.0) => Json;
        post "/keys/reset" "ResetKey" "Makes the counters of a key fresh" [404]
            |request: AuthorizedRequest<Change>, key: JsonBody<Key>| keys::reset(&request.admin, &request.actor, &key.0) => Json;
        get "/keys" "ListKeys" "Bans and boosts" []
            |request: AuthorizedRequest<SeeAll, KeyParameters>|
            keys::list(&request.admin, &request.actor, &request.query.keys(), &request.query.page()) => Json;
        post "/keys/ban" "BanKey" "Denies somebody, under one rule or all" [404, 409]
            |request: AuthorizedRequest<Change>, form: JsonBody<BanForm>|
            keys::ban(&request.admin, &request.actor, &form.0) => Created;
        post "/keys/boost" "BoostKey" "Multiplies somebody's limits, under one rule or all" [404, 409]
            |request: AuthorizedRequest<ChangeAll>, form: JsonBody<BoostForm>|
            keys::boost(&request.admin, &request.actor, &form.0) => Created;
        delete "/keys/{keyId}" "LiftKey" "Ends a ban or a boost" [404]
            |request: AuthorizedRequest<Change>| keys::lift(&request.admin, &request.actor, &request.id) => NoContent;
        get "/counters/clear-ahead" "ClearingAhead"
            "Whether counters that are ahead of the clock are cleared, and how many were" []
            |request: AuthorizedRequest<SeeAll>| ready(counters::clear_ahead_status(&request.admin, &request.actor)) => Json;
        post "/counters/clear-ahead" "ClearAhead"
            "Clears this node's counters that are ahead of the clock, each when its client is denied" []
            |request: AuthorizedRequest<ChangeAll>, form: JsonBody<ClearAheadForm>|
            counters::clear_ahead(&request.admin, &request.actor, &form.0) => Json;
        get "/nodes" "Nodes" "The nodes, and which revision each enforces" []
            |request: AuthorizedRequest<SeeAll>| audit::nodes(&request.admin, &request.actor) => Json;
        get "/tokens" "ListTokens" "All tokens, without what would let somebody use them" []
            |request: AuthorizedRequest<ChangeAll, PageParameters>|
            tokens::list(&request.admin, &request.actor, &request.query.page()) => Json;
        post "/tokens" "CreateToken" "Makes a token, and shows it this once" []
            |request: AuthorizedRequest<ChangeAll>, form: JsonBody<TokenForm>|
            tokens::create(&request.admin, &request.actor, &form.0) => Created;
        delete "/tokens/{tokenId}" "RevokeToken" "Revokes a token, on all nodes within a second" [404]
            |request: AuthorizedRequest<ChangeAll>| tokens::revoke(&request.admin, &request.actor, &request.id) => NoContent;
        get "/self" "OwnToken" "The token that is sent" []
            |request: AuthorizedRequest<SeeOwnToken>| tokens::get_own(&request.admin, &request.actor) => Json;
        post "/explain" "Explain" "What every rule makes of a request; charges nothing" []
            |request: AuthorizedRequest<SeeAll>, body: ExplainBody|
            async { request.admin.api.explain(&body.0).await.map_err(Problem::from) } => Explanation;
    };
    ApiRouter::new().nest("/v1/rate-limit", api).merge(open_routes()).fallback(async || Problem::not_found(UNKNOWN))
}

/// Returns the routes that need no token.
#[rustfmt::skip]
fn open_routes() -> ApiRouter<Arc<Admin>> {
    routes! {
        get "/healthz" "Health" "200 while the daemon answers" []
            |request: PublicRequest| always(request.admin.health()) => Json;
        get "/openapi.json" "OpenApi" "This document" []
            |_call: PublicRequest| always(openapi::document()) => Document;
        get "/docs" "Page" "This document for people" []
            |_call: PublicRequest| always(docs_page::html()) => Page;
    }
}

/// Returns a ready answer, for operations that cannot fail.
fn always<T>(value: T) -> Ready<Result<T, Problem>> {
    ready(Ok(value))
}

macro_rules! examples {
    ($($type:ty: $example:literal)*) => {
        $(impl RequestBody for $type {
            const EXAMPLE: &str = $example;
        })*
    };
}

examples! {
    RuleForm: r#"{"name":"search","pathPattern":"/v1/search/**","maxRequests":100,"windowSeconds":60}"#
    Rollback: r#"{"version":1}"#
    exemptions::NewExemption: r#"{"subjectType":"api_key","subjectValue":"internal","reason":"our own crawler"}"#
    Key: r#"{"ruleId":"per_client","subject":"user:42"}"#
    BanForm: r#"{"subject":"ip:203.0.113.7","reason":"abuse","expiresAt":"2027-01-01T00:00:00Z"}"#
    BoostForm: r#"{"subject":"user:42","factorPercent":150,"expiresAt":"2027-01-01T00:00:00Z"}"#
    ClearAheadForm: r#"{"forSeconds":600}"#
    TokenForm: r#"{"name":"ci","scopes":["read"]}"#
}
