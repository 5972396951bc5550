//! The dashboard: pages for the operator, on the admin listener.
//!
//! Pages are written here, in Rust; what they need is in the binary, and no other host is asked for
//! anything. They do what the admin API does by the same operations, for whoever has signed in with a
//! token, and nothing besides.

mod answer;
mod asset;
mod chart;
mod figure;
mod form;
mod frame;
mod guard;
mod health;
mod live;
mod page;
mod picture;
mod rule_text;
mod series;
mod session;
mod shown;
mod visit;

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;

use crate::admin::Admin;
use crate::admin::problem::Problem;
use crate::admin::wire::{Answer, Head};
use crate::listener::Stopped;
use answer::{cookie_name, see_other, with_cookie};
use asset::ASSETS;
pub(crate) use form::FORM_BYTES_MAX;
use form::Fields;
use frame::{Can, Frame, Place};
use live::Live;
use page::{exemptions, explain, keys, me, overview, rule, rule_edit, rules, tokens, usage};
use session::{Entered, Id, Sessions};
use visit::{Came, Visit};

/// What the paths of pages begin with. The others on the listener are the admin API's.
const PLACES: [&str; 14] = [
    "",
    "assets",
    "exemptions",
    "explain",
    "key",
    "keys",
    "live",
    "login",
    "logout",
    "me",
    "rules",
    "tokens",
    "usage",
    "usage.csv",
];

/// The pages, and who looks at them.
#[derive(Debug)]
pub(crate) struct Dashboard {
    admin: Arc<Admin>,
    sessions: Arc<Sessions>,
    live: Live,
    /// Whether browsers come by TLS.
    is_secure: bool,
}

impl Dashboard {
    /// Watches until the daemon stops.
    pub(crate) fn start(admin: Arc<Admin>, is_secure: bool, stopped: Stopped) -> Self {
        let live = Live::start(Arc::clone(&admin), stopped);
        Self { admin, sessions: Arc::default(), live, is_secure }
    }

    /// True where a path is one of the dashboard's.
    pub(crate) fn has(path: &str) -> bool {
        let first = path.strip_prefix('/').map(|it| it.split_once('/').map_or(it, |it| it.0));
        first.is_some_and(|it| PLACES.contains(&it))
    }

    /// The answer to a request, whose body is a form.
    pub(crate) async fn answer(&self, head: Head<'_>, body: &[u8]) -> Answer {
        if let Some(asset) = ASSETS.find(head.path) {
            return answer::asset(asset);
        }
        let entered = match self.entered(head.headers).await {
            Ok(entered) => entered,
            Err(problem) => return answer::problem(Frame::outside(), &problem),
        };
        let frame = entered.as_ref().map(|it| Frame::inside(it, Place::Elsewhere));
        let answered = match self.read(head, body) {
            Err(problem) => Err(problem),
            Ok((query, sent)) => self.enter(head, entered, query, sent).await,
        };
        answered.unwrap_or_else(|problem| {
            answer::problem(frame.unwrap_or_else(Frame::outside), &problem)
        })
    }

    /// What was sent, if a page of ours has sent it.
    fn read(&self, head: Head<'_>, body: &[u8]) -> Result<(Fields, Fields), Problem> {
        let query = Fields::read(head.query.as_bytes())?;
        match head.method {
            "GET" | "HEAD" => Ok((query, Fields::default())),
            "POST" if guard::is_ours(head.headers) => Ok((query, Fields::read(body)?)),
            "POST" => Err(Problem::forbidden(
                "this form was sent by another site: open the page here and send it again",
            )),
            _ => Err(Problem::wrong_method("GET, HEAD, POST")),
        }
    }

    async fn enter(
        &self,
        head: Head<'_>,
        entered: Option<Entered>,
        query: Fields,
        sent: Fields,
    ) -> Came {
        let is_post = head.method == "POST";
        match (head.path, is_post, entered) {
            ("/login", true, _) => self.sign_in(head, &sent).await,
            ("/login", false, Some(entered)) => Ok(see_other(Can::of(&entered.actor).home())),
            ("/login", false, None) => {
                let to = query.place("to").unwrap_or("/").to_owned();
                Visit::page(&page::login::Login { frame: Frame::outside(), to })
            }
            // What was typed into a form is gone, and that is said.
            (_, true, None) => Err(Problem::unauthorized(
                "you are not signed in any more: sign in, and do it again",
            )),
            (path, false, None) => {
                let to: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
                Ok(see_other(&if path == "/" {
                    "/login".to_owned()
                } else {
                    format!("/login?to={to}")
                }))
            }
            (_, true, Some(entered)) if !entered.has_written(sent.text("csrf")) => {
                Err(Problem::forbidden(
                    "this form was not written for you: open the page again and send it anew",
                ))
            }
            ("/logout", true, Some(entered)) => {
                self.sessions.end(entered.id);
                Ok(with_cookie(see_other("/login"), None, self.is_secure))
            }
            (path, _, Some(entered)) => {
                let Self { admin, sessions, live, .. } = self;
                let visit = Visit { admin, sessions, live, entered, query, sent };
                shown(&visit, path, is_post).await
            }
        }
    }

    /// Who is signed in.
    async fn entered(&self, headers: &HeaderMap) -> Result<Option<Entered>, Problem> {
        let Some(cookie) = cookie(headers, cookie_name(self.is_secure)) else {
            return Ok(None);
        };
        self.sessions.enter(&self.admin.repository, Id::of(cookie), self.admin.now()).await
    }

    /// Lets somebody in who shows a token, as the admin API would. Wrong ones are counted there.
    async fn sign_in(&self, head: Head<'_>, sent: &Fields) -> Came {
        let to = sent.place("to").unwrap_or("/").to_owned();
        let shown = format!("Bearer {}", sent.text("token").trim());
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_str(&shown) {
            headers.insert(AUTHORIZATION, value);
        }
        let actor = match self.admin.who(Head { headers: &headers, ..head }).await {
            Ok(actor) => actor,
            Err(problem) => {
                let problem = match problem.status {
                    StatusCode::UNAUTHORIZED => Problem::unauthorized(
                        "this token is not known, was revoked or has expired: paste another one",
                    ),
                    _ => problem,
                };
                let frame = Frame::outside().with_trouble(&problem);
                let page = answer::page(problem.status, &page::login::Login { frame, to });
                return Ok(match problem.retry_after_s {
                    Some(it) => answer::with(page, hyper::header::RETRY_AFTER, &it.to_string()),
                    None => page,
                });
            }
        };
        let can = Can::of(&actor);
        let place = if to == "/" { can.home().to_owned() } else { to };
        let session = self.sessions.begin(actor, self.admin.now())?;
        Ok(with_cookie(see_other(&place), Some(&session), self.is_secure))
    }
}

/// The page of a path, or what its form does.
async fn shown(visit: &Visit<'_>, path: &str, is_post: bool) -> Came {
    let parts: Option<Vec<String>> = path
        .split('/')
        .skip(1)
        .map(|it| percent_decode_str(it).decode_utf8().ok().map(Into::into))
        .collect();
    let parts = parts.ok_or_else(|| Problem::not_found("page"))?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (is_post, parts.as_slice()) {
        (false, [""]) => overview::show(visit).await,
        (false, ["live"]) => overview::watch(visit),
        (false, ["me"]) => me::show(visit).await,
        (false, ["explain"]) => explain::show(visit).await,
        (false, ["usage"]) => usage::show(visit).await,
        (false, ["usage.csv"]) => usage::csv(visit).await,
        (false, ["tokens"]) => tokens::list(visit).await,
        (true, ["tokens"]) => tokens::create(visit).await,
        (true, ["tokens", id, "revoke"]) => tokens::revoke(visit, id).await,
        (false, ["exemptions"]) => exemptions::list(visit).await,
        (true, ["exemptions", id, "delete"]) => exemptions::delete(visit, id).await,
        (false, ["keys"]) => keys::list(visit).await,
        (false, ["key"]) => keys::show(visit).await,
        (true, ["key", what]) => keys::act(visit, what).await,
        (true, ["keys", id, "lift"]) => keys::lift(visit, id).await,
        (_, ["rules", rest @ ..]) => of_rules(visit, rest, is_post).await,
        _ => Err(Problem::not_found("page")),
    }
}

async fn of_rules(visit: &Visit<'_>, rest: &[&str], is_post: bool) -> Came {
    match (is_post, rest) {
        (false, []) => rules::list(visit).await,
        (true, []) => rule_edit::save(visit, None).await,
        (false, ["new"]) => rule_edit::new(visit),
        (true, ["review"]) => rule_edit::review(visit, None).await,
        (true, ["edit"]) => rule_edit::edit_again(visit, None).await,
        (false, [id]) => rule::show(visit, id).await,
        (true, [id]) => rule_edit::save(visit, Some(id)).await,
        (false, [id, "edit"]) => rule_edit::edit(visit, id).await,
        (true, [id, "edit"]) => rule_edit::edit_again(visit, Some(id)).await,
        (true, [id, "review"]) => rule_edit::review(visit, Some(id)).await,
        (false, [id, "delete"]) => rule_edit::review_delete(visit, id).await,
        (true, [id, "delete"]) => rule_edit::delete(visit, id).await,
        (false, [id, "rollback"]) => rule_edit::review_rollback(visit, id).await,
        (true, [id, "rollback"]) => rule_edit::roll_back(visit, id).await,
        (true, [id, "exemptions"]) => exemptions::create(visit, id).await,
        _ => Err(Problem::not_found("page")),
    }
}

/// The value of a cookie.
fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|it| it.to_str().ok());
    let pairs = lines.flat_map(|it| it.split(';'));
    pairs.filter_map(|it| it.trim().split_once('=')).find(|it| it.0 == name).map(|it| it.1)
}
