//! One screen for the operator: how everything is doing, and what to do about it.

use std::sync::Arc;

use askama::Template;

use crate::dashboard::page_context::{Came, Visit};
use crate::dashboard::panel::overview::Parts;
use crate::dashboard::panel::traffic::Range;
use crate::dashboard::response;
use crate::dashboard::view::layout::{Frame, Place};
use crate::operations::auth::access::Need;

#[derive(Debug, Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    ranges: [Choice; 2],
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
struct Choice {
    name: &'static str,
    href: &'static str,
    is_current: bool,
}

pub(crate) async fn show(visit: &Visit<'_>) -> Came {
    let can = visit.can();
    if !can.see_all {
        // Tenants have no fleet to look after.
        return Ok(response::see_other(can.home()));
    }
    let range = Range::of(visit.query.text("range"));
    let Parts { now, health, traffic, rules, keys, tail } = Parts::gather(visit.admin, range).await;
    let choice = |name, href, it| Choice { name, href, is_current: it == range };
    Visit::page(&Overview {
        frame: visit.frame(Place::Overview),
        ranges: [choice("15 min", "/", Range::Minutes), choice("24 h", "/?range=24h", Range::Day)],
        is_live_chart: range == Range::Minutes,
        now,
        health,
        traffic,
        rules,
        keys,
        tail,
    })
}

/// The same, as it changes.
pub(crate) fn watch(visit: &Visit<'_>) -> Came {
    visit.actor().reach(Need::SeeAll)?;
    let (admin, sessions) = (Arc::clone(visit.admin), Arc::clone(visit.sessions));
    visit.live.watch(admin, sessions, visit.entered.id)
}
