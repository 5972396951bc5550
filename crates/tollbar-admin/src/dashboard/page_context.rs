//! The context of a page: who is signed in, what they have sent, and the responses that a page can give.

use std::sync::Arc;

use askama::Template;
use hyper::StatusCode;

use super::form::FormFields;
use super::session::{ActiveSession, Sessions};
use crate::api::response::HttpResponse;
use crate::dashboard::live_updates::LiveUpdates;
use crate::dashboard::response;
use crate::dashboard::view::layout::{Layout, NavItem, Permissions, expiry_after};
use crate::database::{Cursor, PageRequest};
use crate::operations::Admin;
use crate::operations::auth::access::Actor;
use tollbar_daemon::problem::Problem;

/// One request of somebody who is signed in, with everything that a page needs.
#[derive(Debug)]
pub(crate) struct PageContext<'d> {
    pub(crate) admin: &'d Arc<Admin>,
    pub(crate) sessions: &'d Arc<Sessions>,
    pub(crate) live: &'d LiveUpdates,
    pub(crate) session: ActiveSession,
    /// Behind the `?`.
    pub(crate) query: FormFields,
    /// Of a form; empty where there is none.
    pub(crate) form: FormFields,
}

/// The response of a page. A problem is rendered as a page of its own.
pub(crate) type PageResult = Result<HttpResponse, Problem>;

impl PageContext<'_> {
    pub(crate) fn actor(&self) -> &Actor {
        &self.session.actor
    }

    pub(crate) fn permissions(&self) -> Permissions {
        Permissions::for_actor(self.actor())
    }

    /// Returns the layout of the page at `nav_item`, with the notice that waits for the next page.
    pub(crate) fn layout(&self, nav_item: NavItem) -> Layout {
        let notice = self.sessions.take_notice(self.session.id);
        Layout { notice, ..Layout::signed_in(&self.session, nav_item) }
    }

    /// Returns the page of a list that the query asks for.
    pub(crate) fn page_request(&self, rows_max: u32) -> PageRequest {
        PageRequest { after: self.query.non_empty("cursor").map(Cursor::of_text), rows_max }
    }

    /// Returns the address of the next page of a list at `path`.
    pub(crate) fn next_href(path: &str, cursor: Option<Cursor>) -> Option<String> {
        cursor.map(|cursor| {
            let cursor: String =
                form_urlencoded::byte_serialize(cursor.as_text().as_bytes()).collect();
            format!("{path}?cursor={cursor}")
        })
    }

    /// Returns the layout of the page at `nav_item`, with a problem if there is one.
    pub(crate) fn layout_with(&self, nav_item: NavItem, problem: Option<&Problem>) -> Layout {
        let layout = self.layout(nav_item);
        match problem {
            Some(problem) => layout.with_problem(problem),
            None => layout,
        }
    }

    /// Returns when the ban, boost, exemption or token that a form asks for ends.
    pub(crate) fn expiry(&self) -> Option<String> {
        expiry_after(self.form.text("for"), self.admin.now())
    }

    /// Responds with a page.
    #[expect(clippy::unnecessary_wraps, reason = "every page ends with one of these")]
    pub(crate) fn page(page: &impl Template) -> PageResult {
        Ok(response::render_page(StatusCode::OK, page))
    }

    /// Redirects to `path`, whose page shows `notice`.
    #[expect(clippy::unnecessary_wraps, reason = "every page ends with one of these")]
    pub(crate) fn redirect_with_notice(&self, notice: &str, path: &str) -> PageResult {
        self.sessions.set_notice(self.session.id, notice);
        Ok(response::redirect(path))
    }
}
