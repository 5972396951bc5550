//! What is left to the token's own subject.

use askama::Template;
use hyper::StatusCode;

use super::keys::LimitRow;
use crate::dashboard::page_context::{Came, Visit};
use crate::dashboard::view::layout::{Frame, Place};
use crate::dashboard::view::untrusted_text::Shown;
use crate::operations::usage;

#[derive(Debug, Template)]
#[template(path = "me.html")]
struct Me {
    frame: Frame,
    subject: Shown,
    limits: Vec<LimitRow>,
}

pub(crate) async fn show(visit: &Visit<'_>) -> Came {
    let limits = match usage::of_me(visit.admin, visit.actor()).await {
        Ok(usages) => usages.limits.iter().map(LimitRow::of).collect(),
        Err(problem) if problem.status == StatusCode::NOT_FOUND => Vec::new(),
        Err(problem) => return Err(problem),
    };
    let subject = Shown::new(visit.actor().subject.clone().unwrap_or_default());
    Visit::page(&Me { frame: visit.frame(Place::Me), subject, limits })
}
