//! Tokens: made, listed, revoked. What a new one says is shown once, on the page that made it.

use askama::Template;
use hyper::StatusCode;

use super::super::form::FormFields;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::panel::overview::expiry_text;
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
    new_token: Option<String>,
    name: String,
    scope: String,
    owner: String,
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
    owner: String,
}

/// What tokens may do, and what people call that.
const SCOPES: [(&str, &str); 4] = [
    ("read", "see everything"),
    ("admin", "do everything"),
    ("tenant", "see and change one tenant's limits"),
    ("usage:me", "see what is left to one subject"),
];

pub(crate) async fn list(context: &PageContext<'_>) -> PageResult {
    show_with(context, TokenFormValues::default(), Ok(None)).await
}

/// Makes one, and shows it.
pub(crate) async fn create(context: &PageContext<'_>) -> PageResult {
    let sent = &context.form;
    let values = TokenFormValues {
        name: sent.text("name").to_owned(),
        scope: sent.text("scope").to_owned(),
        owner: sent.text("whose").to_owned(),
    };
    match create_token(context, &values).await {
        Ok(new_token) => {
            show_with(context, TokenFormValues::default(), Ok(Some(new_token.token))).await
        }
        Err(problem) => show_with(context, values, Err(problem)).await,
    }
}

async fn create_token(
    context: &PageContext<'_>,
    values: &TokenFormValues,
) -> Result<CreatedToken, Problem> {
    let owner = values.owner.trim();
    let (scope, subject) = match values.scope.as_str() {
        "tenant" => (format!("tenant:{owner}"), None),
        "usage:me" => {
            ("usage:me".to_owned(), Some(owner.to_owned()).filter(|owner| !owner.is_empty()))
        }
        _ if !owner.is_empty() => {
            let detail = "only a token of one tenant or one subject has this: leave it empty";
            return Err(Problem::invalid_field("whose", detail));
        }
        scope => (scope.to_owned(), None),
    };
    let form = TokenForm {
        name: values.name.trim().to_owned(),
        scopes: vec![scope],
        subject,
        expires_at: context.expiry(),
    };
    tokens::create(context.admin, context.actor(), &form).await
}

async fn show_with(
    context: &PageContext<'_>,
    values: TokenFormValues,
    new_token: Result<Option<String>, Problem>,
) -> PageResult {
    // The page behind a form has the first of the list.
    let page_request = if context.form == FormFields::default() {
        context.page_request(ROWS)
    } else {
        PageRequest::first(ROWS)
    };
    let paged = tokens::list(context.admin, context.actor(), &page_request).await?;
    let rows = paged.rows.into_iter().map(|row| TokenListRow::new(context, row)).collect();
    let next = PageContext::next_href("/tokens", paged.next);
    let layout = context.layout(NavItem::Tokens);
    let (layout, new_token, status) = match new_token {
        Ok(new_token) => (layout, new_token, StatusCode::OK),
        Err(problem) => (layout.with_problem(&problem), None, problem.status),
    };
    let TokenFormValues { name, scope, owner } = values;
    Ok(response::render_page(
        status,
        &TokensPage { layout, new_token, name, scope, owner, scopes: SCOPES, rows, next },
    ))
}

/// Makes one worth nothing.
pub(crate) async fn revoke(context: &PageContext<'_>, id: &str) -> PageResult {
    tokens::revoke(context.admin, context.actor(), id).await?;
    context.redirect_with_notice("The token is worth nothing from now on.", "/tokens")
}

impl TokenListRow {
    fn new(context: &PageContext<'_>, row: TokenRow) -> Self {
        let now = context.admin.now();
        let is_expired = row.expires_at.is_some_and(|end| end <= now);
        let scopes = match &row.subject {
            Some(subject) => format!("{} of {subject}", row.scopes.join(" ")),
            None => row.scopes.join(" "),
        };
        Self {
            id: row.id,
            label: escape_invisible(&row.name),
            name: UntrustedText::new(row.name),
            scopes: UntrustedText::new(scopes),
            made: DateTime(row.created_at),
            by: UntrustedText::new(row.created_by),
            used: match row.last_used_at {
                Some(then) => RelativeTime { then, now }.to_string(),
                None => "never".to_owned(),
            },
            ends: match row.revoked_at {
                Some(at) => format!("revoked {}", DateTime(at)),
                None if is_expired => format!("ended {}", expiry_text(row.expires_at)),
                None => expiry_text(row.expires_at),
            },
            is_own: row.id == context.actor().token_id,
            is_over: row.revoked_at.is_some() || is_expired,
        }
    }
}
