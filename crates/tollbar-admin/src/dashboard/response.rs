//! Pages as HTTP responses, with the headers that keep other sites out of them.

use askama::Template;
use axum::body::Body;
use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION,
    REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

use crate::api::response::{HttpResponse, with_header};
use crate::dashboard::view::assets::Asset;
use crate::dashboard::view::layout::Layout;
use crate::dashboard::view::untrusted_text::escape_invisible;
use tollbar_daemon::problem::Problem;

/// A page loads what is served here, sends forms to here, and runs nothing that is written in it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Assets are cached for good: their address changes with their content.
const CACHE_FOREVER: &str = "public, max-age=31536000, immutable";

/// Something went wrong.
#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    layout: Layout,
    status: u16,
    title: &'static str,
    detail: String,
    back: &'static str,
    back_text: &'static str,
}

/// Responds with a page.
pub(crate) fn render_page(status: StatusCode, page: &impl Template) -> HttpResponse {
    // Fails only where a part of it does, and those are numbers and texts.
    let html = page.render().unwrap_or_else(|error| {
        tracing::error!(%error, "a page cannot be written");
        String::new()
    });
    respond(status, "text/html; charset=utf-8", html.into())
}

/// Responds with a page about what went wrong.
pub(crate) fn render_problem(layout: Layout, problem: &Problem) -> HttpResponse {
    let (back, back_text) = match problem.status {
        StatusCode::UNAUTHORIZED => ("/login", "Sign in"),
        _ if layout.owner.is_none() => ("/login", "Sign in"),
        _ => (layout.permissions.home(), "Back to the start"),
    };
    let status = problem.status;
    let page = ProblemPage {
        status: status.as_u16(),
        title: title(status),
        detail: escape_invisible(&problem.detail),
        back,
        back_text,
        layout,
    };
    let response = render_page(status, &page);
    match problem.retry_after_s {
        Some(seconds) => with_header(response, RETRY_AFTER, &seconds.to_string()),
        None => response,
    }
}

/// What a status means to somebody at a page.
fn title(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "Please sign in",
        403 => "That is not allowed",
        404 => "There is no such thing",
        405 => "That cannot be done here",
        409 | 412 => "Somebody else was faster",
        413 => "That is too much",
        429 => "Too many attempts",
        503 => "Not available right now",
        500.. => "Something broke",
        _ => "That did not work",
    }
}

/// Sends the browser to `path`, by GET.
pub(crate) fn redirect(path: &str) -> HttpResponse {
    with_header(
        respond(StatusCode::SEE_OTHER, "text/html; charset=utf-8", Body::empty()),
        LOCATION,
        path,
    )
}

/// Responds with a static file.
pub(crate) fn serve_asset(asset: &'static Asset) -> HttpResponse {
    with_header(
        respond(StatusCode::OK, asset.kind, asset.text.into()),
        CACHE_CONTROL,
        CACHE_FOREVER,
    )
}

/// Returns a response with the headers that keep other sites out of it.
pub(crate) fn respond(status: StatusCode, kind: &'static str, body: Body) -> HttpResponse {
    let mut response = HttpResponse::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The name of the cookie. Under TLS it is one that only this very host can set.
pub(crate) fn cookie_name(is_secure: bool) -> &'static str {
    if is_secure { "__Host-tollbar" } else { "tollbar_session" }
}

/// Has the browser hold a session, or let go of it.
pub(crate) fn with_cookie(
    response: HttpResponse,
    session: Option<&str>,
    is_secure: bool,
) -> HttpResponse {
    let name = cookie_name(is_secure);
    let secure = if is_secure { "; Secure" } else { "" };
    let (value, age) = session.map_or(("", "; Max-Age=0"), |session| (session, ""));
    let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{age}");
    with_header(response, SET_COOKIE, &cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_held_by_the_browser_alone() {
        let cookie = |session, is_secure| {
            let response = with_cookie(redirect("/"), session, is_secure);
            response.headers()[SET_COOKIE].to_str().unwrap().to_owned()
        };
        assert_eq!(
            cookie(Some("ab"), true),
            "__Host-tollbar=ab; Path=/; HttpOnly; SameSite=Strict; Secure"
        );
        assert_eq!(
            cookie(Some("ab"), false),
            "tollbar_session=ab; Path=/; HttpOnly; SameSite=Strict"
        );
        assert!(cookie(None, false).ends_with("Max-Age=0"));
    }

    #[test]
    fn every_answer_forbids_what_it_does_not_need() {
        let problem = Problem::forbidden("no <b>");
        for response in [redirect("/"), super::render_problem(Layout::signed_out(), &problem)] {
            let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        }
    }
}
