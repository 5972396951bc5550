//! Tokens: made, listed, revoked. What a new one says is shown once, on the page that made it.

use askama::Template;
use hyper::StatusCode;

use super::super::form::Fields;
use crate::dashboard::page_context::{Came, Visit};
use crate::dashboard::panel::overview::until;
use crate::dashboard::response;
use crate::dashboard::view::formatting::{Ago, Moment};
use crate::dashboard::view::layout::{Frame, Place};
use crate::dashboard::view::untrusted_text::{Shown, spelled};
use crate::database::{PageOf, TokenRow};
use crate::operations::tokens::{self, MadeToken, TokenForm};
use tollbar_daemon::problem::Problem;

/// Tokens of a page.
const ROWS: u32 = 100;

#[derive(Debug, Template)]
#[template(path = "tokens.html")]
struct Tokens {
    frame: Frame,
    made: Option<String>,
    name: String,
    scope: String,
    whose: String,
    scopes: [(&'static str, &'static str); 4],
    rows: Vec<Row>,
    next: Option<String>,
}

#[derive(Debug)]
struct Row {
    id: i64,
    name: Shown,
    label: String,
    scopes: Shown,
    made: Moment,
    by: Shown,
    used: String,
    ends: String,
    is_own: bool,
    is_over: bool,
}

/// What a token is for.
#[derive(Debug, Default)]
struct Filled {
    name: String,
    scope: String,
    whose: String,
}

/// What tokens may do, and what people call that.
const SCOPES: [(&str, &str); 4] = [
    ("read", "see everything"),
    ("admin", "do everything"),
    ("tenant", "see and change one tenant's limits"),
    ("usage:me", "see what is left to one subject"),
];

pub(crate) async fn list(visit: &Visit<'_>) -> Came {
    shown(visit, Filled::default(), Ok(None)).await
}

/// Makes one, and shows it.
pub(crate) async fn create(visit: &Visit<'_>) -> Came {
    let sent = &visit.sent;
    let filled = Filled {
        name: sent.text("name").to_owned(),
        scope: sent.text("scope").to_owned(),
        whose: sent.text("whose").to_owned(),
    };
    match made(visit, &filled).await {
        Ok(made) => shown(visit, Filled::default(), Ok(Some(made.token))).await,
        Err(problem) => shown(visit, filled, Err(problem)).await,
    }
}

async fn made(visit: &Visit<'_>, filled: &Filled) -> Result<MadeToken, Problem> {
    let whose = filled.whose.trim();
    let (scope, subject) = match filled.scope.as_str() {
        "tenant" => (format!("tenant:{whose}"), None),
        "usage:me" => ("usage:me".to_owned(), Some(whose.to_owned()).filter(|it| !it.is_empty())),
        _ if !whose.is_empty() => {
            let detail = "only a token of one tenant or one subject has this: leave it empty";
            return Err(Problem::invalid_field("whose", detail));
        }
        scope => (scope.to_owned(), None),
    };
    let form = TokenForm {
        name: filled.name.trim().to_owned(),
        scopes: vec![scope],
        subject,
        expires_at: visit.end(),
    };
    tokens::create(visit.admin, visit.actor(), &form).await
}

async fn shown(visit: &Visit<'_>, filled: Filled, made: Result<Option<String>, Problem>) -> Came {
    // The page behind a form has the first of the list.
    let asked =
        if visit.sent == Fields::default() { visit.paging(ROWS) } else { PageOf::first(ROWS) };
    let paged = tokens::list(visit.admin, visit.actor(), &asked).await?;
    let rows = paged.rows.into_iter().map(|it| Row::of(visit, it)).collect();
    let next = Visit::next("/tokens", paged.next);
    let frame = visit.frame(Place::Tokens);
    let (frame, made, status) = match made {
        Ok(made) => (frame, made, StatusCode::OK),
        Err(problem) => (frame.with_trouble(&problem), None, problem.status),
    };
    let Filled { name, scope, whose } = filled;
    Ok(response::page(
        status,
        &Tokens { frame, made, name, scope, whose, scopes: SCOPES, rows, next },
    ))
}

/// Makes one worth nothing.
pub(crate) async fn revoke(visit: &Visit<'_>, id: &str) -> Came {
    tokens::revoke(visit.admin, visit.actor(), id).await?;
    visit.done("The token is worth nothing from now on.", "/tokens")
}

impl Row {
    fn of(visit: &Visit<'_>, it: TokenRow) -> Self {
        let now = visit.admin.now();
        let is_expired = it.expires_at.is_some_and(|end| end <= now);
        let scopes = match &it.subject {
            Some(subject) => format!("{} of {subject}", it.scopes.join(" ")),
            None => it.scopes.join(" "),
        };
        Self {
            id: it.id,
            label: spelled(&it.name),
            name: Shown::new(it.name),
            scopes: Shown::new(scopes),
            made: Moment(it.created_at),
            by: Shown::new(it.created_by),
            used: match it.last_used_at {
                Some(then) => Ago { then, now }.to_string(),
                None => "never".to_owned(),
            },
            ends: match it.revoked_at {
                Some(at) => format!("revoked {}", Moment(at)),
                None if is_expired => format!("ended {}", until(it.expires_at)),
                None => until(it.expires_at),
            },
            is_own: it.id == visit.actor().token_id,
            is_over: it.revoked_at.is_some() || is_expired,
        }
    }
}
