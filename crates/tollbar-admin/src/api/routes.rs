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
    AuditParameters, DailyParameters, DryRunParameters, ExportParameters, KeyParameters,
    PageParameters, RuleParameters, TopParameters, UsageParameters,
};
use crate::api::extract::{AuthorizedRequest, ExplainBody, JsonBody, PublicRequest, RequestBody};
use crate::api::response::{
    ChangedRule, Created, CreatedRule, DeletedRule, Document, Explanation, Json, NoContent, Page,
    RuleResponse, UsageExport,
};
use crate::api::{docs_page, usage_export};
use crate::operations::auth::access::{Change, ChangeAll, See, SeeAll, SeeOwnToken, SeeOwnUsage};
use crate::operations::counters::ClearAheadForm;
use crate::operations::keys::{BanForm, BoostForm, Key};
use crate::operations::precondition::IfMatch;
use crate::operations::rule_json::RuleForm;
use crate::operations::rules::Rollback;
use crate::operations::tokens::TokenForm;
use crate::operations::{Admin, audit, counters, exemptions, keys, rules, tokens, usage};
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
            |call: AuthorizedRequest<See, RuleParameters>|
            rules::list(&call.admin, &call.actor, &call.query.rules(), &call.query.page()) => Json;
        post "/rules" "CreateRule" "Makes a rule" [409]
            |call: AuthorizedRequest<Change, DryRunParameters>, sent: JsonBody<RuleForm>|
            rules::create(&call.admin, &call.actor, &sent.0, call.query.dry_run) => CreatedRule;
        get "/rules/{ruleId}" "GetRule" "One rule" [404, 409]
            |call: AuthorizedRequest<See>| rules::get(&call.admin, &call.actor, &call.id) => RuleResponse;
        put "/rules/{ruleId}" "ReplaceRule" "Makes a rule say something else; its counters stay" [404, 409]
            |call: AuthorizedRequest<Change, DryRunParameters>, version: IfMatch, sent: JsonBody<RuleForm>|
            rules::replace(&call.admin, &call.actor, &call.id, &version, &sent.0, call.query.dry_run)
            => ChangedRule;
        delete "/rules/{ruleId}" "DeleteRule" "Deletes a rule; its history stays" [404, 409]
            |call: AuthorizedRequest<Change, DryRunParameters>, version: IfMatch|
            rules::delete(&call.admin, &call.actor, &call.id, &version, call.query.dry_run) => DeletedRule;
        get "/rules/{ruleId}/history" "RuleHistory" "Every change of a rule, the newest first" [404, 409]
            |call: AuthorizedRequest<See, PageParameters>|
            rules::history(&call.admin, &call.actor, &call.id, &call.query.page()) => Json;
        post "/rules/{ruleId}/rollback" "RollBackRule"
            "Makes a rule say what it said at a version; brings back one that was deleted" [404, 409]
            |call: AuthorizedRequest<Change, DryRunParameters>, version: IfMatch, sent: JsonBody<Rollback>|
            rules::roll_back(&call.admin, &call.actor, &call.id, &version, &sent.0, call.query.dry_run)
            => ChangedRule;
        get "/rules/{ruleId}/exemptions" "RuleExemptions" "Who is exempt from a rule" [404, 409]
            |call: AuthorizedRequest<See, PageParameters>|
            exemptions::of_rule(&call.admin, &call.actor, &call.id, &call.query.page()) => Json;
        post "/rules/{ruleId}/exemptions" "CreateExemption" "Exempts somebody from a rule" [404, 409]
            |call: AuthorizedRequest<Change>, sent: JsonBody<exemptions::NewExemption>|
            exemptions::create(&call.admin, &call.actor, &call.id, &sent.0) => Created;
        get "/exemptions" "ListExemptions" "Who is exempt, from any rule" []
            |call: AuthorizedRequest<SeeAll, PageParameters>|
            exemptions::list(&call.admin, &call.actor, &call.query.page()) => Json;
        delete "/exemptions/{exemptionId}" "DeleteExemption" "Ends an exemption" [404, 409]
            |call: AuthorizedRequest<Change>| exemptions::delete(&call.admin, &call.actor, &call.id) => NoContent;
        get "/audit" "Audit" "Who changed what, the newest first" [404]
            |call: AuthorizedRequest<SeeAll, AuditParameters>|
            audit::list(&call.admin, &call.actor, call.query.rule_id.as_deref(), &call.query.page()) => Json;
        get "/usage" "Usage" "What is left to a subject now" [404, 422]
            |call: AuthorizedRequest<See, UsageParameters>|
            async { usage::of_subject(&call.admin, &call.actor, call.query.whose()?).await } => Json;
        get "/usage/me" "UsageOfMe" "What is left to the token's own subject now" [404, 422]
            |call: AuthorizedRequest<SeeOwnUsage>| usage::of_me(&call.admin, &call.actor) => Json;
        get "/usage/daily" "DailyUsage" "What was used, day by day" []
            |call: AuthorizedRequest<See, DailyParameters>|
            usage::daily(&call.admin, &call.actor, call.query.usage(), &call.query.page()) => Json;
        get "/usage/export" "ExportUsage" "All of what was used, as one stream" []
            |call: AuthorizedRequest<See, ExportParameters>|
            usage_export::stream(call.admin, call.actor, call.query.usage(), call.query.format) => UsageExport;
        get "/keys/top" "TopKeys" "Who was denied most by this node since it started" [404]
            |call: AuthorizedRequest<See, TopParameters>|
            ready(usage::top(&call.admin, &call.actor, call.query.rule_id.as_deref(), call.query.count()))
            => Json;
        post "/keys/peek" "PeekKey" "What is left to a key; charges nothing" [404]
            |call: AuthorizedRequest<See>, key: JsonBody<Key>| keys::peek(&call.admin, &call.actor, &key.0) => Json;
        post "/keys/reset" "ResetKey" "Makes the counters of a key fresh" [404]
            |call: AuthorizedRequest<Change>, key: JsonBody<Key>| keys::reset(&call.admin, &call.actor, &key.0) => Json;
        get "/keys" "ListKeys" "Bans and boosts" []
            |call: AuthorizedRequest<SeeAll, KeyParameters>|
            keys::list(&call.admin, &call.actor, &call.query.keys(), &call.query.page()) => Json;
        post "/keys/ban" "BanKey" "Denies somebody, under one rule or all" [404, 409]
            |call: AuthorizedRequest<Change>, form: JsonBody<BanForm>|
            keys::ban(&call.admin, &call.actor, &form.0) => Created;
        post "/keys/boost" "BoostKey" "Multiplies somebody's limits, under one rule or all" [404, 409]
            |call: AuthorizedRequest<ChangeAll>, form: JsonBody<BoostForm>|
            keys::boost(&call.admin, &call.actor, &form.0) => Created;
        delete "/keys/{keyId}" "LiftKey" "Ends a ban or a boost" [404]
            |call: AuthorizedRequest<Change>| keys::lift(&call.admin, &call.actor, &call.id) => NoContent;
        get "/counters/clear-ahead" "ClearingAhead"
            "Whether counters that are ahead of the clock are cleared, and how many were" []
            |call: AuthorizedRequest<SeeAll>| ready(counters::clearing_ahead(&call.admin, &call.actor)) => Json;
        post "/counters/clear-ahead" "ClearAhead"
            "Clears this node's counters that are ahead of the clock, each when its client is denied" []
            |call: AuthorizedRequest<ChangeAll>, form: JsonBody<ClearAheadForm>|
            ready(counters::clear_ahead(&call.admin, &call.actor, &form.0)) => Json;
        get "/nodes" "Nodes" "The nodes, and which revision each enforces" []
            |call: AuthorizedRequest<SeeAll>| audit::nodes(&call.admin, &call.actor) => Json;
        get "/tokens" "ListTokens" "All tokens, without what would let somebody use them" []
            |call: AuthorizedRequest<ChangeAll, PageParameters>|
            tokens::list(&call.admin, &call.actor, &call.query.page()) => Json;
        post "/tokens" "CreateToken" "Makes a token, and shows it this once" []
            |call: AuthorizedRequest<ChangeAll>, form: JsonBody<TokenForm>|
            tokens::create(&call.admin, &call.actor, &form.0) => Created;
        delete "/tokens/{tokenId}" "RevokeToken" "Revokes a token, on all nodes within a second" [404]
            |call: AuthorizedRequest<ChangeAll>| tokens::revoke(&call.admin, &call.actor, &call.id) => NoContent;
        get "/self" "OwnToken" "The token that is sent" []
            |call: AuthorizedRequest<SeeOwnToken>| tokens::own(&call.admin, &call.actor) => Json;
        post "/explain" "Explain" "What every rule makes of a request; charges nothing" []
            |call: AuthorizedRequest<SeeAll>, body: ExplainBody|
            async { call.admin.api.explain(&body.0).await.map_err(Problem::from) } => Explanation;
    };
    let open = routes! {
        get "/healthz" "Health" "200 while the daemon answers" []
            |call: PublicRequest| always(call.admin.health()) => Json;
        get "/openapi.json" "OpenApi" "This document" []
            |_call: PublicRequest| always(openapi::document()) => Document;
        get "/docs" "Page" "This document for people" []
            |_call: PublicRequest| always(docs_page::html()) => Page;
    };
    ApiRouter::new().nest("/v1/rate-limit", api).merge(open).fallback(async || Problem::not_found(UNKNOWN))
}

/// Returns a ready answer, for operations that cannot fail.
fn always<T>(it: T) -> Ready<Result<T, Problem>> {
    ready(Ok(it))
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
