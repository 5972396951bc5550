//! The admin API over HTTP: which operation a request means, and what it is answered with. Connections
//! are the listener's business, and what is allowed the operations'.

use std::io;
use std::sync::Arc;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::Serialize;

use super::access::Actor;
use super::body::parse;
use super::gate::Shown;
use super::openapi;
use super::page;
use super::precondition::{IfMatch, etag};
use super::problem::Problem;
use super::query::{Parameter, Query};
use super::route::{Route, What};
use super::rule_json::RuleJson;
use super::rules::{Found, Outcome, Wanted};
use super::{Admin, audit, counters, exemptions, export, keys, rules, tokens, usage};
use crate::ahead::AheadOfClock;
use crate::listener::Peer;
use crate::repository::{KeyFilter, UsageFilter};

/// What stands behind the head of an answer.
pub(crate) type Payload = UnsyncBoxBody<Bytes, io::Error>;
pub(crate) type Answer = Response<Payload>;

/// How the daemon and its database are doing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "AdminHealth")]
pub(crate) struct Health {
    /// `ok`, or `degraded` while the store of counters does not answer.
    status: &'static str,
    /// `ok`, or `unavailable`: requests are checked all the same.
    database: &'static str,
    /// Denials by counters that owe more than their policy can, where there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead_of_clock: Option<AheadOfClock>,
}

/// A request that may be answered, but for its body.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) route: &'static Route,
    id: String,
    query: Query,
    if_match: Option<IfMatch>,
    /// Nobody where the path is open to all.
    actor: Option<Arc<Actor>>,
}

/// The head of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) peer: Peer,
}

/// What an operation came to, before it is written.
type Reply = Result<Answer, Problem>;

impl Admin {
    /// The operation that a head means, if whoever sent it may have it: who is turned away here has
    /// not sent a body.
    pub(crate) async fn admit(&self, head: Head<'_>) -> Result<Admitted, Box<Answer>> {
        let (route, id) = route_of(head)?;
        self.admitted(route, id, head).await.map_err(|problem| Box::new(refused(&problem)))
    }

    async fn admitted(
        &self,
        route: &'static Route,
        id: &str,
        head: Head<'_>,
    ) -> Result<Admitted, Problem> {
        let actor = match route.need {
            None => None,
            Some(need) => {
                let actor = self.who(head).await?;
                actor.reach(need)?;
                Some(actor)
            }
        };
        let id = percent_decode_str(id).decode_utf8();
        let id = id.map_err(|_| Problem::not_found(route.id_name().unwrap_or("path")))?;
        let mut known = route.query.to_vec();
        if route.dry_run {
            known.push(Parameter::DryRun);
        }
        let query = Query::read(head.query, &known)?;
        let if_match = route.if_match.then(|| IfMatch::read(head.headers)).transpose()?;
        Ok(Admitted { route, id: id.into(), query, if_match, actor })
    }

    /// Who sends this, by the token that it bears.
    pub(crate) async fn who(&self, head: Head<'_>) -> Result<Arc<Actor>, Problem> {
        let mut sent = head.headers.get_all(AUTHORIZATION).iter();
        let (first, second) = (sent.next(), sent.next());
        // Of two that are sent, which one is meant would be a guess.
        let token = first.filter(|_| second.is_none()).map(HeaderValue::as_bytes);
        let token = token.and_then(|it| {
            let (scheme, token) = it.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
        });
        let shown = Shown { token, peer: head.peer, now: self.now() };
        self.gate.admit(&self.repository, shown).await
    }

    /// The answer to what was admitted.
    pub(crate) async fn answer(self: &Arc<Self>, admitted: &Admitted, body: &[u8]) -> Answer {
        let answered = match &admitted.actor {
            Some(actor) => self.done(admitted, actor, body).await,
            None => Ok(self.open(admitted.route.what)),
        };
        answered.unwrap_or_else(|problem| refused(&problem))
    }

    fn open(&self, what: What) -> Answer {
        match what {
            What::OpenApi => text("application/json", openapi::document()),
            What::Page => text("text/html; charset=utf-8", page::html()),
            _ => json(StatusCode::OK, &self.health()),
        }
    }

    async fn done(self: &Arc<Self>, asked: &Admitted, actor: &Arc<Actor>, body: &[u8]) -> Reply {
        let Admitted { route, id, query, .. } = asked;
        let example = route.body.map_or("", |(_, example)| example);
        let is_dry_run = query.flag(Parameter::DryRun)?.unwrap_or(false);
        // Paths without pages have no such parameters, and this is the first page then.
        let paging = query.paging()?;
        let if_match = || asked.if_match.as_ref().ok_or_else(Problem::precondition_required);
        Ok(match route.what {
            What::ListRules => {
                let wanted = Wanted {
                    tenant: query.owned(Parameter::Tenant),
                    scope: query.scope()?,
                    enabled: query.flag(Parameter::Enabled)?,
                    name: query.owned(Parameter::Name),
                };
                ok(&rules::list(self, actor, &wanted, &paging).await?)
            }
            What::CreateRule => {
                let sent = parse(body, example)?;
                rule(StatusCode::CREATED, rules::create(self, actor, &sent, is_dry_run).await?)
            }
            What::GetRule => match rules::get(self, actor, id).await? {
                Found::Database(row) => rule(StatusCode::OK, Outcome::Done(row)),
                Found::File(file) => ok(&file),
            },
            What::ReplaceRule => {
                let sent = parse(body, example)?;
                let done = rules::replace(self, actor, id, if_match()?, &sent, is_dry_run);
                rule(StatusCode::OK, done.await?)
            }
            What::DeleteRule => {
                match rules::delete(self, actor, id, if_match()?, is_dry_run).await? {
                    Outcome::Done(_) => nothing(),
                    outcome @ Outcome::DryRun(_) => rule(StatusCode::OK, outcome),
                }
            }
            What::RollBackRule => {
                let rollback = parse(body, example)?;
                let done = rules::roll_back(self, actor, id, if_match()?, &rollback, is_dry_run);
                rule(StatusCode::OK, done.await?)
            }
            What::RuleHistory => ok(&rules::history(self, actor, id, &paging).await?),
            What::RuleExemptions => ok(&exemptions::of_rule(self, actor, id, &paging).await?),
            What::CreateExemption => {
                created(&exemptions::create(self, actor, id, &parse(body, example)?).await?)
            }
            What::ListExemptions => ok(&exemptions::list(self, actor, &paging).await?),
            What::DeleteExemption => {
                exemptions::delete(self, actor, id).await?;
                nothing()
            }
            What::Audit => {
                ok(&audit::list(self, actor, query.text(Parameter::RuleId), &paging).await?)
            }
            What::Nodes => ok(&audit::nodes(self, actor).await?),
            What::ClearAhead => ok(&counters::clear_ahead(self, actor, &parse(body, example)?)?),
            What::ClearingAhead => ok(&counters::clearing_ahead(self, actor)?),
            What::PeekKey => ok(&keys::peek(self, actor, &parse(body, example)?).await?),
            What::ResetKey => ok(&keys::reset(self, actor, &parse(body, example)?).await?),
            What::BanKey => created(&keys::ban(self, actor, &parse(body, example)?).await?),
            What::BoostKey => created(&keys::boost(self, actor, &parse(body, example)?).await?),
            What::ListKeys => {
                let filter = KeyFilter {
                    rule: query.owned(Parameter::RuleId),
                    subject: query.owned(Parameter::Subject),
                    with_expired: false,
                };
                ok(&keys::list(self, actor, &filter, &paging).await?)
            }
            What::LiftKey => {
                keys::lift(self, actor, id).await?;
                nothing()
            }
            What::ListTokens => ok(&tokens::list(self, actor, &paging).await?),
            What::CreateToken => {
                created(&tokens::create(self, actor, &parse(body, example)?).await?)
            }
            What::RevokeToken => {
                tokens::revoke(self, actor, id).await?;
                nothing()
            }
            What::OwnToken => ok(&tokens::own(self, actor).await?),
            What::Explain => {
                let answer = self.api.explain(body).await?;
                answer.map(|it| Full::new(it).map_err(|never| match never {}).boxed_unsync())
            }
            What::Usage
            | What::UsageOfMe
            | What::DailyUsage
            | What::ExportUsage
            | What::TopKeys => {
                return self.usage(asked, actor).await;
            }
            What::Health | What::OpenApi | What::Page => self.open(route.what),
        })
    }

    async fn usage(self: &Arc<Self>, asked: &Admitted, actor: &Arc<Actor>) -> Reply {
        let Admitted { route, query, .. } = asked;
        let filter = || -> Result<UsageFilter, Problem> {
            Ok(UsageFilter {
                first_day: query.day(Parameter::From)?,
                last_day: query.day(Parameter::To)?,
                tenant: query.owned(Parameter::Tenant),
                subject: query.owned(Parameter::Subject),
                rule: query.owned(Parameter::RuleId),
            })
        };
        let paging = query.paging()?;
        let rule = query.text(Parameter::RuleId);
        Ok(match route.what {
            What::TopKeys => ok(&usage::top(self, actor, rule, paging.limit as usize)?),
            What::DailyUsage => ok(&usage::daily(self, actor, filter()?, &paging).await?),
            What::ExportUsage => {
                export::stream(Arc::clone(self), Arc::clone(actor), filter()?, query.format()?)
                    .await?
            }
            What::UsageOfMe => ok(&usage::of_me(self, actor).await?),
            _ => {
                let whose = usage::Whose {
                    subject_type: query.text(Parameter::SubjectType).unwrap_or_default(),
                    subject_id: query.text(Parameter::SubjectId).unwrap_or_default(),
                    rule,
                };
                ok(&usage::of_subject(self, actor, whose).await?)
            }
        })
    }

    fn health(&self) -> Health {
        let database = if self.is_database_well() { "ok" } else { "unavailable" };
        let ahead_of_clock = AheadOfClock::of(&self.daemon.engine);
        Health { status: self.daemon.health().word(), database, ahead_of_clock }
    }
}

/// The route of a head and what stands for its id.
fn route_of(head: Head<'_>) -> Result<(&'static Route, &str), Box<Answer>> {
    let routes = Route::of_path(head.path);
    let is_meant =
        |method: &str| method == head.method || (method == "GET" && head.method == "HEAD");
    if let Some(found) = routes.iter().find(|(it, _)| is_meant(it.method)) {
        return Ok(*found);
    }
    let allow = allowed(routes.iter().map(|(it, _)| *it));
    Err(Box::new(match allow {
        None => refused(&Problem::not_found("path: `/docs` lists those there are")),
        Some(allow) if head.method == "OPTIONS" => with(nothing(), ALLOW, allow),
        Some(allow) => refused(&Problem::wrong_method(allow)),
    }))
}

/// The methods of a path, as the header `Allow` has them.
fn allowed(routes: impl Iterator<Item = &'static Route>) -> Option<&'static str> {
    let mut methods: Vec<&str> = routes.map(|it| it.method).collect();
    methods.sort_unstable();
    methods.dedup();
    Some(match methods.as_slice() {
        [] => return None,
        ["GET"] => "GET, HEAD, OPTIONS",
        ["POST"] => "POST, OPTIONS",
        ["DELETE"] => "DELETE, OPTIONS",
        ["GET", "POST"] => "GET, HEAD, POST, OPTIONS",
        _ => "GET, HEAD, PUT, DELETE, OPTIONS",
    })
}

/// A rule that was changed, with its version as `ETag`; or what a change would do.
fn rule(status: StatusCode, outcome: Outcome) -> Answer {
    match outcome {
        Outcome::DryRun(dry_run) => json(StatusCode::OK, &dry_run),
        Outcome::Done(row) => {
            let answer = json(status, &RuleJson::of_row(&row));
            let answer = with(answer, ETAG, &etag(row.version));
            if status != StatusCode::CREATED {
                return answer;
            }
            with(answer, LOCATION, &format!("/v1/rate-limit/rules/{}", row.id))
        }
    }
}

fn ok(it: &impl Serialize) -> Answer {
    json(StatusCode::OK, it)
}

fn created(it: &impl Serialize) -> Answer {
    json(StatusCode::CREATED, it)
}

/// A problem as an answer.
pub(crate) fn refused(problem: &Problem) -> Answer {
    let mut answer = json(problem.status, &problem.told());
    let problem_json = HeaderValue::from_static("application/problem+json");
    answer.headers_mut().insert(CONTENT_TYPE, problem_json);
    if problem.status == StatusCode::UNAUTHORIZED {
        answer = with(answer, WWW_AUTHENTICATE, "Bearer");
    }
    if let Some(seconds) = problem.retry_after_s {
        answer = with(answer, RETRY_AFTER, &seconds.to_string());
    }
    if let Some(allow) = problem.allow {
        answer = with(answer, ALLOW, allow);
    }
    if problem.ends_connection {
        answer = with(answer, CONNECTION, "close");
    }
    answer
}

fn json(status: StatusCode, it: &impl Serialize) -> Answer {
    // Fails only for maps whose keys are no texts, and there are none.
    let mut bytes = serde_json::to_vec(it).unwrap_or_default();
    bytes.push(b'\n');
    whole(status, "application/json", bytes.into())
}

fn text(kind: &'static str, text: &'static str) -> Answer {
    whole(StatusCode::OK, kind, Bytes::from_static(text.as_bytes()))
}

fn nothing() -> Answer {
    let mut answer = whole(StatusCode::NO_CONTENT, "", Bytes::new());
    answer.headers_mut().remove(CONTENT_TYPE);
    answer
}

fn whole(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    streamed(status, kind, Full::new(body).map_err(|never| match never {}).boxed_unsync())
}

/// An answer with a body that comes bit by bit.
pub(crate) fn streamed(status: StatusCode, kind: &'static str, body: Payload) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // What a token may see is nobody else's business, and a cache would not ask for it.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    answer
}

fn with(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
    answer
}
