//! The dashboard: pages for the operator, on the admin listener.
//!
//! Pages are written here, in Rust; what they need is in the binary, and no other host is asked for
//! anything. They do what the admin API does by the same operations, for whoever has signed in with a
//! token, and nothing besides.
//!
//! | module | what it has |
//! |---|---|
//! | `page` | one module per page |
//! | `page_context`, `form` | what a page gets: the session, the query and the form that was sent |
//! | `panel` | panels that pages share: health, traffic, the parts of the overview |
//! | `view` | layout, charts, numbers, texts of others, static files |
//! | `response` | pages as HTTP responses |
//! | `session`, `same_origin` | who is signed in; whether a form was sent by a page of this server |
//! | `live_updates` | the overview as server-sent events |
//! | `rule_text` | a rule as YAML, and the fields that differ |

mod form;
mod live_updates;
mod page;
mod page_context;
mod panel;
mod response;
mod rule_text;
mod same_origin;
mod session;
mod view;

use std::sync::Arc;

use askama::Template;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};
use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

use crate::api::response::{HttpResponse, with_header};
use crate::operations::Admin;
use crate::origin::Origin;
use form::{FORM_BYTES_MAX, FormFields};
use live_updates::LiveUpdates;
use page::{exemptions, explain, keys, overview, own_usage, rule, rule_edit, rules, tokens, usage};
use page_context::PageContext;
use response::{cookie_name, redirect, with_cookie};
use session::{ActiveSession, SessionId, Sessions};
use tollbar_daemon::problem::Problem;
use tollbar_daemon::shutdown::ShutdownSignal;
use view::assets::ASSETS;
use view::layout::{Layout, NavItem, Permissions};

/// Reads a rule as the form of a rule is read, and fills the form with what is wrong if it is none. For fuzzers.
#[doc(hidden)]
pub fn fuzz_form(sent: &[u8]) -> Option<tollbar_rules::Rule> {
    let form = FormFields::read(sent).ok()?;
    page::rule_fields::to_rule(None, &form)
        .map_err(|problem| page::rule_fields::from_form(&form, Some(&problem)))
        .ok()
}

/// The pages, and who looks at them.
#[derive(Debug)]
pub struct Dashboard {
    admin: Arc<Admin>,
    sessions: Arc<Sessions>,
    live: LiveUpdates,
    /// Whether browsers come by TLS.
    is_secure: bool,
}

/// The form for a token.
#[derive(Debug, Template)]
#[template(path = "login.html")]
struct LoginPage {
    layout: Layout,
    /// The page to go to after signing in.
    to: String,
}

/// A request that passed [`check_session`]: the session that it belongs to, and what was sent.
#[derive(Debug, Clone)]
struct CheckedRequest {
    /// `None` for `/login` only.
    session: Option<ActiveSession>,
    query: FormFields,
    form: FormFields,
}

/// A request of somebody who is signed in.
#[derive(Debug)]
struct SessionRequest {
    dashboard: Arc<Dashboard>,
    session: ActiveSession,
    query: FormFields,
    form: FormFields,
    /// The segment of the path that is in braces; empty where there is none.
    id: String,
}

/// A handler that shows a page for a [`PageContext`], or a page that says what went wrong.
macro_rules! page {
    (|$context:ident $(, $id:ident)?| $page:expr) => {
        async |request: SessionRequest| {
            let SessionRequest { dashboard, session, query, form, id: _id } = request;
            let Dashboard { admin, sessions, live, .. } = &*dashboard;
            let layout = Layout::signed_in(&session, NavItem::Other);
            let $context = &PageContext { admin, sessions, live, session, query, form };
            $(let $id = _id.as_str();)?
            $page.await.unwrap_or_else(|problem| response::render_problem(layout, &problem))
        }
    };
}

/// Defines the pages: the method and the path of each, and what shows it.
macro_rules! pages {
    ($($method:ident $path:literal |$context:ident $(, $id:ident)?| $page:expr;)+) => {
        /// The paths of pages.
        const PATHS: &[&str] = &[$($path),+];

        fn pages() -> Router<Arc<Dashboard>> {
            Router::new()$(.route($path, $method(page!(|$context $(, $id)?| $page))))+
        }
    };
}

pages! {
    get "/" |context| overview::show(context);
    get "/live" |context| async { overview::watch(context) };
    get "/me" |context| own_usage::show(context);
    get "/explain" |context| explain::show(context);
    get "/usage" |context| usage::show(context);
    get "/usage.csv" |context| usage::csv(context);
    get "/tokens" |context| tokens::list(context);
    post "/tokens" |context| tokens::create(context);
    post "/tokens/{id}/revoke" |context, id| tokens::revoke(context, id);
    get "/exemptions" |context| exemptions::list(context);
    post "/exemptions/{id}/delete" |context, id| exemptions::delete(context, id);
    get "/keys" |context| keys::list(context);
    post "/keys/{id}/lift" |context, id| keys::lift(context, id);
    get "/key" |context| keys::show(context);
    post "/key/{what}" |context, what| keys::act(context, what);
    get "/rules" |context| rules::list(context);
    post "/rules" |context| rule_edit::save(context, None);
    get "/rules/new" |context| async { rule_edit::new(context) };
    // Rules may have these two names as well, and are shown under them.
    get "/rules/review" |context| rule::show(context, "review");
    get "/rules/edit" |context| rule::show(context, "edit");
    post "/rules/review" |context| rule_edit::review(context, None);
    post "/rules/edit" |context| rule_edit::edit_again(context, None);
    get "/rules/{id}" |context, id| rule::show(context, id);
    post "/rules/{id}" |context, id| rule_edit::save(context, Some(id));
    get "/rules/{id}/edit" |context, id| rule_edit::edit(context, id);
    post "/rules/{id}/edit" |context, id| rule_edit::edit_again(context, Some(id));
    post "/rules/{id}/review" |context, id| rule_edit::review(context, Some(id));
    get "/rules/{id}/delete" |context, id| rule_edit::review_delete(context, id);
    post "/rules/{id}/delete" |context, id| rule_edit::delete(context, id);
    get "/rules/{id}/rollback" |context, id| rule_edit::review_rollback(context, id);
    post "/rules/{id}/rollback" |context, id| rule_edit::roll_back(context, id);
    post "/rules/{id}/exemptions" |context, id| exemptions::create(context, id);
}

/// Paths that begin like these are the dashboard's as well.
const OTHER_PATHS: [&str; 3] = ["/assets", "/login", "/logout"];

/// Returns the router of all pages. Everything passes [`check_session`] first.
pub(crate) fn router(dashboard: Dashboard) -> Router {
    let dashboard = Arc::new(dashboard);
    let not_found = page!(|_context| async { Err(Problem::not_found("page")) });
    pages()
        .route("/login", get(show_login).post(sign_in))
        .route("/logout", post(sign_out))
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .layer(from_fn_with_state(Arc::clone(&dashboard), check_session))
        .with_state(dashboard)
}

/// Lets a request in whose sender is signed in, and whose form was written for that session. Anybody may go
/// to `/login`, and fetch what pages are made of.
async fn check_session(
    State(dashboard): State<Arc<Dashboard>>,
    request: Request,
    next: Next,
) -> HttpResponse {
    if let Some(asset) = ASSETS.find(request.uri().path()) {
        return response::serve_asset(asset);
    }
    let (mut parts, body) = request.into_parts();
    let body = match parts.method {
        Method::POST => Origin::from_extensions(&parts.extensions).read(body, FORM_BYTES_MAX).await,
        _ => Ok(Bytes::new()),
    };
    let body = match body {
        Ok(body) => body,
        Err(unread) => return Problem::from(unread).into_response(),
    };
    let session = match dashboard.find_session(&parts.headers).await {
        Ok(session) => session,
        Err(problem) => return response::render_problem(Layout::signed_out(), &problem),
    };
    let layout = session.as_ref().map(|session| Layout::signed_in(session, NavItem::Other));
    match CheckedRequest::new(&parts, session, &body) {
        Ok(Some(checked)) => {
            parts.extensions.insert(checked);
            next.run(Request::from_parts(parts, Body::empty())).await
        }
        Ok(None) => {
            let path = parts.uri.path();
            let to: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
            let login = format!("/login?to={to}");
            redirect(if path == "/" { "/login" } else { &login })
        }
        Err(problem) => {
            response::render_problem(layout.unwrap_or_else(Layout::signed_out), &problem)
        }
    }
}

impl CheckedRequest {
    /// Returns the request, or why it is refused; `None` if its sender has to sign in first.
    fn new(
        parts: &Parts,
        session: Option<ActiveSession>,
        body: &[u8],
    ) -> Result<Option<Self>, Problem> {
        let query = FormFields::read(parts.uri.query().unwrap_or_default().as_bytes())?;
        let is_post = parts.method == Method::POST;
        let form = match parts.method {
            Method::GET | Method::HEAD => FormFields::default(),
            Method::POST if same_origin::is_same_origin(&parts.headers) => FormFields::read(body)?,
            Method::POST => {
                return Err(Problem::forbidden(
                    "this form was sent by another site: open the page here and send it again",
                ));
            }
            _ => return Err(Problem::wrong_method("GET, HEAD, POST".to_owned())),
        };
        if parts.uri.path() != "/login" {
            match &session {
                None if !is_post => return Ok(None),
                // What was typed into a form is gone, and that is said.
                None => {
                    return Err(Problem::unauthorized(
                        "you are not signed in any more: sign in, and do it again",
                    ));
                }
                Some(session) if is_post && !session.has_csrf_token(form.text("csrf")) => {
                    return Err(Problem::forbidden(
                        "this form was not written for you: open the page again and send it anew",
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(Some(Self { session, query, form }))
    }
}

impl FromRequestParts<Arc<Dashboard>> for SessionRequest {
    type Rejection = HttpResponse;

    async fn from_request_parts(
        parts: &mut Parts,
        dashboard: &Arc<Dashboard>,
    ) -> Result<Self, HttpResponse> {
        let checked = parts.extensions.remove::<CheckedRequest>();
        let Some(CheckedRequest { session: Some(session), query, form }) = checked else {
            return Err(redirect("/login"));
        };
        let Ok(path) = RawPathParams::from_request_parts(parts, &()).await else {
            let layout = Layout::signed_in(&session, NavItem::Other);
            return Err(response::render_problem(layout, &Problem::not_found("page")));
        };
        let id = path.iter().next().map_or_else(String::new, |(_, value)| value.to_owned());
        Ok(Self { dashboard: Arc::clone(dashboard), session, query, form, id })
    }
}

/// Shows the form for a token, or the first page to those who are signed in.
async fn show_login(Extension(checked): Extension<CheckedRequest>) -> HttpResponse {
    if let Some(session) = &checked.session {
        return redirect(Permissions::for_actor(&session.actor).home());
    }
    let to = checked.query.local_path("to").unwrap_or("/").to_owned();
    response::render_page(StatusCode::OK, &LoginPage { layout: Layout::signed_out(), to })
}

/// Lets somebody in who shows a token, as the admin API would. Wrong ones are counted there.
async fn sign_in(
    State(dashboard): State<Arc<Dashboard>>,
    Extension(origin): Extension<Origin>,
    Extension(CheckedRequest { form, .. }): Extension<CheckedRequest>,
) -> HttpResponse {
    let Dashboard { admin, sessions, is_secure, .. } = &*dashboard;
    let to = form.local_path("to").unwrap_or("/").to_owned();
    let bearer = HeaderValue::from_str(&format!("Bearer {}", form.text("token").trim()));
    let headers = bearer.into_iter().map(|value| (AUTHORIZATION, value)).collect::<HeaderMap>();
    let session = match admin.authenticate(&headers, origin.peer).await {
        Ok(actor) => {
            let home = Permissions::for_actor(&actor).home();
            Ok((sessions.begin(actor, admin.now()), home))
        }
        Err(problem) if problem.status == StatusCode::UNAUTHORIZED => Err(Problem::unauthorized(
            "this token is not known, was revoked or has expired: paste another one",
        )),
        Err(problem) => Err(problem),
    };
    match session {
        Ok((session, home)) => {
            let place = if to == "/" { home } else { &to };
            with_cookie(redirect(place), Some(&session), *is_secure)
        }
        Err(problem) => {
            let layout = Layout::signed_out().with_problem(&problem);
            let page = response::render_page(problem.status, &LoginPage { layout, to });
            match problem.retry_after_s {
                Some(seconds) => with_header(page, RETRY_AFTER, &seconds.to_string()),
                None => page,
            }
        }
    }
}

async fn sign_out(SessionRequest { dashboard, session, .. }: SessionRequest) -> HttpResponse {
    dashboard.sessions.end(session.id);
    with_cookie(redirect("/login"), None, dashboard.is_secure)
}

impl Dashboard {
    /// Watches until the daemon stops.
    pub fn start(admin: Arc<Admin>, is_secure: bool, stopped: &ShutdownSignal) -> Self {
        let live = LiveUpdates::start(Arc::clone(&admin), stopped);
        Self { admin, sessions: Arc::default(), live, is_secure }
    }

    /// True where a path begins like one of the dashboard's. The others are the admin API's.
    pub(crate) fn has_path(path: &str) -> bool {
        let first = path.split('/').nth(1);
        let mut paths = PATHS.iter().chain(&OTHER_PATHS);
        first.is_some() && paths.any(|known| known.split('/').nth(1) == first)
    }

    /// Returns the session of the cookie in `headers`; `None` if nobody is signed in.
    async fn find_session(&self, headers: &HeaderMap) -> Result<Option<ActiveSession>, Problem> {
        let Some(cookie) = cookie(headers, cookie_name(self.is_secure)) else {
            return Ok(None);
        };
        self.sessions
            .resume(&self.admin.repository, SessionId::from_cookie(cookie), self.admin.now())
            .await
    }
}

/// The value of a cookie.
fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';'));
    pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|pair| pair.0 == name)
        .map(|pair| pair.1)
}
