//! What is left to the token's own subject.

use std::collections::BTreeMap;

use askama::Template;
use hyper::StatusCode;

use super::keys::LimitRow;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::{UntrustedText, escape_invisible};
use crate::operations::usage;

#[derive(Debug, Template)]
#[template(path = "me.html")]
struct OwnUsagePage {
    layout: Layout,
    subject: UntrustedText,
    has_tiers: bool,
    limits: Vec<LimitRow>,
    /// Rules that count by more than the subject, and what they count by.
    incomplete: Vec<String>,
}

pub(crate) async fn show(context: &PageContext<'_>) -> PageResult {
    let (limits, incomplete) =
        match usage::get_own(context.admin, context.actor(), BTreeMap::new()).await {
            Ok(usages) => {
                let incomplete = usages.incomplete.iter().map(|rule| rule.message().to_owned());
                (LimitRow::from_usages(&usages), incomplete.collect())
            }
            Err(problem) if problem.status == StatusCode::NOT_FOUND => (Vec::new(), Vec::new()),
            Err(problem) if problem.status == StatusCode::UNPROCESSABLE_ENTITY => {
                (Vec::new(), vec![escape_invisible(&problem.detail)])
            }
            Err(problem) => return Err(problem),
        };
    let subject = UntrustedText::new(context.actor().subject.clone().unwrap_or_default());
    PageContext::page(&OwnUsagePage {
        layout: context.layout(NavItem::OwnUsage),
        subject,
        has_tiers: limits.iter().any(|limit| limit.tier.is_some()),
        limits,
        incomplete,
    })
}
