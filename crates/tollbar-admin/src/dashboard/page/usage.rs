//! What was used, day by day and by tenant, client, rule or tier, and the same as CSV.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;

use crate::api::query::Format;
use crate::api::response::with_header;
use crate::api::usage_export;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::view::chart::{BarChart, DayBar, Meter};
use crate::dashboard::view::formatting::{Count, Share, ShortCount};
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::UntrustedText;
use crate::database::{PAGE_ROWS_MAX, PageRequest, UsageFilter, UsageGroup};
use crate::operations::usage;
use crate::usage::format::name_of_rule;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::rfc3339::Date;
use tollbar_daemon::usage::UsageRow;
use tollbar_rules::UsageAmounts;

/// Lines that a page adds up. There may be millions; the CSV has all of them.
const ROWS_MAX: usize = 100_000;

/// Days of a chart.
const DAYS_MAX: i32 = 92;
const DAYS_DEFAULT: i32 = 30;

/// Groups and keys of a page.
const LISTED_MAX: usize = 25;

#[derive(Debug, Template)]
#[template(path = "usage.html")]
struct UsagePage {
    layout: Layout,
    from: Date,
    to: Date,
    tenant: String,
    csv: String,
    admitted: Count,
    denied: Count,
    bars: BarChart,
    top: ShortCount,
    ticks: Vec<String>,
    is_empty: bool,
    is_cut: bool,
    rows_max: Count,
    groupings: Vec<Grouping>,
    by: &'static str,
    groups: Vec<GroupRow>,
    subjects: Vec<SubjectRow>,
}

/// A way to add usage up that can be chosen.
#[derive(Debug)]
struct Grouping {
    name: &'static str,
    is_chosen: bool,
}

/// The requests of one tenant, client or tier, or the tokens of one rule.
#[derive(Debug)]
struct GroupRow {
    name: UntrustedText,
    href: Option<String>,
    admitted: Count,
    denied: Count,
    share: Share,
    meter: Meter,
    /// The tokens, rule by rule.
    tokens: UntrustedText,
}

#[derive(Debug)]
struct SubjectRow {
    name: UntrustedText,
    rule: UntrustedText,
    admitted: Count,
    denied: Count,
}

/// Everything that was used, added up by whatever it is looked at.
#[derive(Debug, Default)]
struct UsageSums {
    all: UsageAmounts,
    days: BTreeMap<i32, UsageAmounts>,
    /// By group and rule.
    groups: BTreeMap<String, BTreeMap<String, UsageAmounts>>,
    subjects: BTreeMap<(String, String), UsageAmounts>,
    is_cut: bool,
}

/// The days that are asked for: a month where nothing is said, and no more than a chart has room for.
fn days(context: &PageContext<'_>) -> Result<(Date, Date), Problem> {
    let today = Date((context.admin.now().as_micros() / 86_400_000_000) as i32);
    let day = |name: &str| match context.query.non_empty(name) {
        None => Ok(None),
        Some(text) => {
            text.parse().map(Some).map_err(|error: tollbar_daemon::rfc3339::DateError| {
                Problem::bad_parameter(name, error.to_string())
            })
        }
    };
    let to = day("to")?.unwrap_or(today);
    let from = day("from")?.unwrap_or(Date((to.0 - DAYS_DEFAULT + 1).max(0)));
    if from > to {
        return Err(Problem::bad_parameter("from", "this is after `to`: swap them"));
    }
    Ok((from, to))
}

fn filter(context: &PageContext<'_>, (from, to): (Date, Date)) -> UsageFilter {
    UsageFilter {
        first_day: Some(from.0),
        last_day: Some(to.0),
        tenant: context.query.non_empty_owned("tenant"),
        ..UsageFilter::default()
    }
}

pub(crate) async fn show(context: &PageContext<'_>) -> PageResult {
    let (from, to) = days(context)?;
    if to.0 - from.0 >= DAYS_MAX {
        let detail = format!("a page has at most {DAYS_MAX} days: ask for fewer, or take the CSV");
        return Err(Problem::bad_parameter("from", detail));
    }
    let by = grouping(context)?;
    let sums = UsageSums::load(context, (from, to), by).await?;
    let query = |tenant: Option<&str>| {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        pairs.append_pair("from", &from.to_string()).append_pair("to", &to.to_string());
        if let Some(tenant) = tenant {
            pairs.append_pair("tenant", tenant);
        }
        pairs.finish()
    };
    let days: Vec<DayBar> = (from.0..=to.0)
        .map(|day| {
            let sum = sums.days.get(&day).copied().unwrap_or_default();
            let [admitted, denied] = [sum.admitted_requests, sum.denied_requests].map(count);
            let title = format!("{}: {admitted} requests admitted, {denied} denied", Date(day));
            DayBar { title, admitted: admitted.0, denied: denied.0 }
        })
        .collect();
    let [admitted, denied] = [sums.all.admitted_requests, sums.all.denied_requests].map(count);
    let label = format!("Usage from {from} to {to}: {admitted} requests admitted, {denied} denied");
    let bars = BarChart { days, label };
    let middle = Date(from.0 + (to.0 - from.0) / 2);
    let ticks = if from == to { vec![from] } else { vec![from, middle, to] };
    PageContext::page(&UsagePage {
        layout: context.layout(NavItem::Usage),
        tenant: context.query.text("tenant").to_owned(),
        csv: format!("/usage.csv?{}", query(context.query.non_empty("tenant"))),
        admitted,
        denied,
        top: ShortCount(bars.top()),
        ticks: ticks.iter().map(ToString::to_string).collect(),
        is_empty: sums.days.is_empty(),
        is_cut: sums.is_cut,
        rows_max: Count(ROWS_MAX as u64),
        groupings: UsageGroup::ALL
            .map(|group| Grouping { name: group.name(), is_chosen: group == by })
            .into(),
        by: by.name(),
        groups: sums.groups(context, by, |tenant| format!("/usage?{}", query(Some(tenant)))),
        subjects: sums.subjects(context),
        bars,
        from,
        to,
    })
}

/// The same as a file.
pub(crate) async fn csv(context: &PageContext<'_>) -> PageResult {
    let days = days(context)?;
    let (admin, actor) = (Arc::clone(context.admin), Arc::clone(&context.session.actor));
    let filter = filter(context, days);
    let response = usage_export::stream(admin, actor, filter, None, Format::Csv).await?;
    let name = format!("attachment; filename=\"usage-{}-{}.csv\"", days.0, days.1);
    Ok(with_header(response, hyper::header::CONTENT_DISPOSITION, &name))
}

/// What the page adds usage up by: tenants where nothing is said.
fn grouping(context: &PageContext<'_>) -> Result<UsageGroup, Problem> {
    let name = context.query.non_empty("by").unwrap_or("tenant");
    let known = UsageGroup::ALL.into_iter().find(|group| group.name() == name);
    known.ok_or_else(|| Problem::bad_parameter("by", "send tenant, client, rule or tier"))
}

/// A number of a page. Sums of corrections alone, whose charges were lost, are shown as nothing.
fn count(number: i64) -> Count {
    Count(u64::try_from(number).unwrap_or(0))
}

/// How much a row is about, by which the largest come first.
fn size(sum: &UsageAmounts) -> (i64, i64) {
    (
        sum.admitted_requests.saturating_add(sum.denied_requests),
        sum.admitted.saturating_add(sum.denied),
    )
}

impl UsageSums {
    async fn load(
        context: &PageContext<'_>,
        days: (Date, Date),
        by: UsageGroup,
    ) -> Result<Self, Problem> {
        let mut sums = Self::default();
        let mut of = PageRequest::first(PAGE_ROWS_MAX);
        let mut row_count = 0;
        loop {
            let filter = filter(context, days);
            let page = usage::list_rows(context.admin, context.actor(), filter, &of).await?;
            row_count += page.rows.len();
            for row in page.rows {
                let sum = row.amounts();
                let UsageRow { day, tenant, subject, rule, client, tier, .. } = row;
                let group = match by {
                    UsageGroup::Tenant => tenant,
                    UsageGroup::Client => client,
                    UsageGroup::Rule => rule.clone(),
                    UsageGroup::Tier => tier,
                };
                sums.all.add(sum);
                sums.days.entry(day).or_default().add(sum);
                let of_group = sums.groups.entry(group).or_default();
                of_group.entry(rule.clone()).or_default().add(sum);
                sums.subjects.entry((subject, rule)).or_default().add(sum);
            }
            match page.next {
                Some(_) if row_count >= ROWS_MAX => {
                    sums.is_cut = true;
                    return Ok(sums);
                }
                Some(next) => of = PageRequest::after(next, PAGE_ROWS_MAX),
                None => return Ok(sums),
            }
        }
    }

    fn groups(
        &self,
        context: &PageContext<'_>,
        by: UsageGroup,
        href: impl Fn(&str) -> String,
    ) -> Vec<GroupRow> {
        let rules = context.admin.daemon.engine.rules();
        let sum_of = |of_rules: &BTreeMap<String, UsageAmounts>| {
            let mut all = UsageAmounts::default();
            for sum in of_rules.values() {
                all.add(*sum);
            }
            all
        };
        let mut all: Vec<_> =
            self.groups.iter().map(|(name, of_rules)| (name, of_rules, sum_of(of_rules))).collect();
        all.sort_by_key(|entry| std::cmp::Reverse(size(&entry.2)));
        let row = |(name, of_rules, sum): (&String, &BTreeMap<_, _>, UsageAmounts)| {
            let is_rule = by == UsageGroup::Rule;
            let sums = if is_rule {
                [sum.admitted, sum.denied]
            } else {
                [sum.admitted_requests, sum.denied_requests]
            };
            let [admitted, denied] = sums.map(count);
            let share = Share { part: denied.0, whole: admitted.0.saturating_add(denied.0) };
            let tokens = |(rule, sum): (&String, &UsageAmounts)| {
                format!("{}: {}", name_of_rule(rule, &rules), count(sum.admitted))
            };
            let text = match &**name {
                "" => format!("no {}", by.name()),
                id if is_rule => name_of_rule(id, &rules),
                name => name.to_owned(),
            };
            let has_page = by == UsageGroup::Tenant && !name.is_empty();
            GroupRow {
                name: UntrustedText::new(text),
                href: has_page.then(|| href(name)),
                admitted,
                denied,
                share,
                meter: Meter { percent: share.percent(), class: "denied" },
                tokens: UntrustedText::new(
                    of_rules.iter().take(LISTED_MAX).map(tokens).collect::<Vec<_>>().join(", "),
                ),
            }
        };
        all.into_iter().take(LISTED_MAX).map(row).collect()
    }

    fn subjects(&self, context: &PageContext<'_>) -> Vec<SubjectRow> {
        let rules = context.admin.daemon.engine.rules();
        let mut all: Vec<_> = self.subjects.iter().map(|entry| (entry.0, *entry.1)).collect();
        all.sort_by_key(|entry| std::cmp::Reverse(size(&entry.1).1));
        let row = |((subject, rule), sum): (&(String, String), UsageAmounts)| SubjectRow {
            name: UntrustedText::new(&**subject),
            rule: UntrustedText::new(name_of_rule(rule, &rules)),
            admitted: count(sum.admitted),
            denied: count(sum.denied),
        };
        all.into_iter().take(LISTED_MAX).map(row).collect()
    }
}
