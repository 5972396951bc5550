//! Tokens: made, listed, revoked. What a new one says is shown once, on the page that made it.

use askama::Template;
use hyper::StatusCode;

use super::super::form::FormFields;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::panel::overview::until;
use crate::dashboard::response;
use crate::dashboard::view::formatting::{DateTime, RelativeTime};
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::{UntrustedText, escape_invisible};
use crate::database::{PageRequest, TokenRow};
use crate::operations::tokens::{self, CreatedToken, TokenForm};
use tollbar_daemon::problem::Problem;

/// Tokens of a page.
const ROWS: u32 = 100;

#[derive(Debug, Template)]
#[template(path = "tokens.html")]
struct TokensPage {
    layout: Layout,
    made: Option<String>,
    name: String,
    scope: String,
    whose: String,
    scopes: [(&'static str, &'static str); 4],
    rows: Vec<TokenListRow>,
    next: Option<String>,
}

#[derive(Debug)]
struct TokenListRow {
    id: i64,
    name: UntrustedText,
    label: String,
    scopes: UntrustedText,
    made: DateTime,
    by: UntrustedText,
    used: String,
    ends: String,
    is_own: bool,
    is_over: bool,
}

/// What a token is for.
#[derive(Debug, Default)]
struct TokenFormValues {
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

pub(crate) async fn list(context: &PageContext<'_>) -> PageResult {
    shown(context, TokenFormValues::default(), Ok(None)).await
}

/// Makes one, and shows it.
pub(crate) async fn create(context: &PageContext<'_>) -> PageResult {
    let sent = &context.sent;
    let filled = TokenFormValues {
        name: sent.text("name").to_owned(),
        scope: sent.text("scope").to_owned(),
        whose: sent.text("whose").to_owned(),
    };
    match made(context, &filled).await {
        Ok(made) => shown(context, TokenFormValues::default(), Ok(Some(made.token))).await,
        Err(problem) => shown(context, filled, Err(problem)).await,
    }
}

async fn made(
    context: &PageContext<'_>,
    filled: &TokenFormValues,
) -> Result<CreatedToken, Problem> {
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
        expires_at: context.end(),
    };
    tokens::create(context.admin, context.actor(), &form).await
}

async fn shown(
    context: &PageContext<'_>,
    filled: TokenFormValues,
    made: Result<Option<String>, Problem>,
) -> PageResult {
    // The page behind a form has the first of the list.
    let asked = if context.sent == FormFields::default() {
        context.paging(ROWS)
    } else {
        PageRequest::first(ROWS)
    };
    let paged = tokens::list(context.admin, context.actor(), &asked).await?;
    let rows = paged.rows.into_iter().map(|it| TokenListRow::of(context, it)).collect();
    let next = PageContext::next("/tokens", paged.next);
    let layout = context.layout(NavItem::Tokens);
    let (layout, made, status) = match made {
        Ok(made) => (layout, made, StatusCode::OK),
        Err(problem) => (layout.with_trouble(&problem), None, problem.status),
    };
    let TokenFormValues { name, scope, whose } = filled;
    Ok(response::page(
        status,
        &TokensPage { layout, made, name, scope, whose, scopes: SCOPES, rows, next },
    ))
}

/// Makes one worth nothing.
pub(crate) async fn revoke(context: &PageContext<'_>, id: &str) -> PageResult {
    tokens::revoke(context.admin, context.actor(), id).await?;
    context.done("The token is worth nothing from now on.", "/tokens")
}

impl TokenListRow {
    fn of(context: &PageContext<'_>, it: TokenRow) -> Self {
        let now = context.admin.now();
        let is_expired = it.expires_at.is_some_and(|end| end <= now);
        let scopes = match &it.subject {
            Some(subject) => format!("{} of {subject}", it.scopes.join(" ")),
            None => it.scopes.join(" "),
        };
        Self {
            id: it.id,
            label: escape_invisible(&it.name),
            name: UntrustedText::new(it.name),
            scopes: UntrustedText::new(scopes),
            made: DateTime(it.created_at),
            by: UntrustedText::new(it.created_by),
            used: match it.last_used_at {
                Some(then) => RelativeTime { then, now }.to_string(),
                None => "never".to_owned(),
            },
            ends: match it.revoked_at {
                Some(at) => format!("revoked {}", DateTime(at)),
                None if is_expired => format!("ended {}", until(it.expires_at)),
                None => until(it.expires_at),
            },
            is_own: it.id == context.actor().token_id,
            is_over: it.revoked_at.is_some() || is_expired,
        }
    }
}
