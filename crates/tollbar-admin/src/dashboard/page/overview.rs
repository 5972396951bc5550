//! One screen for the operator: how everything is doing, and what to do about it.

use std::sync::Arc;

use askama::Template;

use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::panel::overview::OverviewPanels;
use crate::dashboard::panel::traffic::TimeRange;
use crate::dashboard::response;
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::operations::auth::access::Permission;

#[derive(Debug, Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    layout: Layout,
    ranges: [RangeChoice; 2],
    /// The chart of the last minutes changes by itself.
    is_live_chart: bool,
    now: String,
    health: String,
    traffic: String,
    rules: String,
    keys: String,
    tail: String,
}

/// A range to choose.
#[derive(Debug)]
struct RangeChoice {
    name: &'static str,
    href: &'static str,
    is_current: bool,
}

pub(crate) async fn show(context: &PageContext<'_>) -> PageResult {
    let can = context.permissions();
    if !can.see_all {
        // Tenants have no fleet to look after.
        return Ok(response::redirect(can.home()));
    }
    let range = TimeRange::from_name(context.query.text("range"));
    let OverviewPanels { now, health, traffic, rules, keys, tail } =
        OverviewPanels::gather(context.admin, range).await;
    let choice =
        |name, href, link_range| RangeChoice { name, href, is_current: link_range == range };
    PageContext::page(&OverviewPage {
        layout: context.layout(NavItem::Overview),
        ranges: [
            choice("15 min", "/", TimeRange::Minutes),
            choice("24 h", "/?range=24h", TimeRange::Day),
        ],
        is_live_chart: range == TimeRange::Minutes,
        now,
        health,
        traffic,
        rules,
        keys,
        tail,
    })
}

/// The same, as it changes.
pub(crate) fn watch(context: &PageContext<'_>) -> PageResult {
    context.actor().reach(Permission::SeeAll)?;
    let (admin, sessions) = (Arc::clone(context.admin), Arc::clone(context.sessions));
    context.live.watch(admin, sessions, &context.session)
}
