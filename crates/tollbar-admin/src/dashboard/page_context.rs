//! One request of somebody who is signed in: who they are, what they have sent, and what comes back.

use std::sync::Arc;

use askama::Template;
use hyper::StatusCode;

use super::form::Fields;
use super::session::{Entered, Sessions};
use crate::api::response::Answer;
use crate::dashboard::live_updates::Live;
use crate::dashboard::response;
use crate::dashboard::view::layout::{Can, Frame, Place, end_of};
use crate::database::{Cursor, PageOf};
use crate::operations::Admin;
use crate::operations::auth::access::Actor;
use tollbar_daemon::problem::Problem;

/// A visit.
#[derive(Debug)]
pub(crate) struct Visit<'d> {
    pub(crate) admin: &'d Arc<Admin>,
    pub(crate) sessions: &'d Arc<Sessions>,
    pub(crate) live: &'d Live,
    pub(crate) entered: Entered,
    /// Behind the `?`.
    pub(crate) query: Fields,
    /// Of a form; empty where there is none.
    pub(crate) sent: Fields,
}

/// What came of it.
pub(crate) type Came = Result<Answer, Problem>;

impl Visit<'_> {
    pub(crate) fn actor(&self) -> &Actor {
        &self.entered.actor
    }

    pub(crate) fn can(&self) -> Can {
        Can::of(self.actor())
    }

    /// What is around the page at `place`. What was to be told is told there.
    pub(crate) fn frame(&self, place: Place) -> Frame {
        let notice = self.sessions.take_notice(self.entered.id);
        Frame { notice, ..Frame::inside(&self.entered, place) }
    }

    /// The page of a list that is asked for.
    pub(crate) fn paging(&self, rows_max: u32) -> PageOf {
        PageOf { after: self.query.filled("cursor").map(Cursor::of_text), rows_max }
    }

    /// The address of the next page of a list at `path`.
    pub(crate) fn next(path: &str, cursor: Option<Cursor>) -> Option<String> {
        cursor.map(|it| {
            let cursor: String = form_urlencoded::byte_serialize(it.as_text().as_bytes()).collect();
            format!("{path}?cursor={cursor}")
        })
    }

    /// What is around the page at `place`, with what was wrong.
    pub(crate) fn frame_with(&self, place: Place, problem: Option<&Problem>) -> Frame {
        let frame = self.frame(place);
        match problem {
            Some(problem) => frame.with_trouble(problem),
            None => frame,
        }
    }

    /// When what is asked for by a form ends.
    pub(crate) fn end(&self) -> Option<String> {
        end_of(self.sent.text("for"), self.admin.now())
    }

    /// A page.
    #[expect(clippy::unnecessary_wraps, reason = "every page ends with one of these")]
    pub(crate) fn page(page: &impl Template) -> Came {
        Ok(response::page(StatusCode::OK, page))
    }

    /// Something was done: it is told on the next page.
    #[expect(clippy::unnecessary_wraps, reason = "every page ends with one of these")]
    pub(crate) fn done(&self, notice: &str, place: &str) -> Came {
        self.sessions.note(self.entered.id, notice);
        Ok(response::see_other(place))
    }
}
