//! What is left to the token's own subject.

use askama::Template;
use hyper::StatusCode;

use super::keys::LimitRow;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::UntrustedText;
use crate::operations::usage;

#[derive(Debug, Template)]
#[template(path = "me.html")]
struct OwnUsagePage {
    layout: Layout,
    subject: UntrustedText,
    limits: Vec<LimitRow>,
}

pub(crate) async fn show(context: &PageContext<'_>) -> PageResult {
    let limits = match usage::get_own(context.admin, context.actor()).await {
        Ok(usages) => usages.limits.iter().map(LimitRow::from_usage).collect(),
        Err(problem) if problem.status == StatusCode::NOT_FOUND => Vec::new(),
        Err(problem) => return Err(problem),
    };
    let subject = UntrustedText::new(context.actor().subject.clone().unwrap_or_default());
    PageContext::page(&OwnUsagePage { layout: context.layout(NavItem::OwnUsage), subject, limits })
}
