//! What was used, day by day and tenant by tenant, and the same as CSV.

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
use crate::database::{PAGE_ROWS_MAX, PageRequest, UsageFilter};
use crate::operations::usage;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::rfc3339::Date;

/// Lines that a page adds up. There may be millions; the CSV has all of them.
const ROWS_MAX: usize = 100_000;

/// Days of a chart.
const DAYS_MAX: i32 = 92;
const DAYS_DEFAULT: i32 = 30;

/// Tenants and keys of a page.
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
    tenants: Vec<TenantRow>,
    subjects: Vec<SubjectRow>,
}

#[derive(Debug)]
struct TenantRow {
    name: UntrustedText,
    href: Option<String>,
    admitted: Count,
    denied: Count,
    share: Share,
    meter: Meter,
}

#[derive(Debug)]
struct SubjectRow {
    name: UntrustedText,
    rule: UntrustedText,
    admitted: Count,
    denied: Count,
}

/// What passed and what did not.
#[derive(Debug, Clone, Copy, Default)]
struct UsageSum {
    admitted: u64,
    denied: u64,
}

/// Everything that was used, added up by whatever it is looked at.
#[derive(Debug, Default)]
struct UsageSums {
    all: UsageSum,
    days: BTreeMap<i32, UsageSum>,
    tenants: BTreeMap<String, UsageSum>,
    subjects: BTreeMap<(String, String), UsageSum>,
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
    let sums = UsageSums::load(context, (from, to)).await?;
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
            let UsageSum { admitted, denied } = sums.days.get(&day).copied().unwrap_or_default();
            let (day, passed, not) = (Date(day), Count(admitted), Count(denied));
            DayBar { title: format!("{day}: {passed} admitted, {not} denied"), admitted, denied }
        })
        .collect();
    let label = format!(
        "Usage from {from} to {to}: {} admitted, {} denied",
        sums.all.admitted, sums.all.denied
    );
    let bars = BarChart { days, label };
    let middle = Date(from.0 + (to.0 - from.0) / 2);
    let ticks = if from == to { vec![from] } else { vec![from, middle, to] };
    PageContext::page(&UsagePage {
        layout: context.layout(NavItem::Usage),
        tenant: context.query.text("tenant").to_owned(),
        csv: format!("/usage.csv?{}", query(context.query.non_empty("tenant"))),
        admitted: Count(sums.all.admitted),
        denied: Count(sums.all.denied),
        top: ShortCount(bars.top()),
        ticks: ticks.iter().map(ToString::to_string).collect(),
        is_empty: sums.days.is_empty(),
        is_cut: sums.is_cut,
        rows_max: Count(ROWS_MAX as u64),
        tenants: sums.tenants(|tenant| format!("/usage?{}", query(Some(tenant)))),
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
    let response = usage_export::stream(admin, actor, filter(context, days), Format::Csv).await?;
    let name = format!("attachment; filename=\"usage-{}-{}.csv\"", days.0, days.1);
    Ok(with_header(response, hyper::header::CONTENT_DISPOSITION, &name))
}

impl UsageSum {
    fn add(&mut self, other: Self) {
        self.admitted = self.admitted.saturating_add(other.admitted);
        self.denied = self.denied.saturating_add(other.denied);
    }

    fn total(self) -> u64 {
        self.admitted.saturating_add(self.denied)
    }
}

impl UsageSums {
    async fn load(context: &PageContext<'_>, days: (Date, Date)) -> Result<Self, Problem> {
        let mut sums = Self::default();
        let mut of = PageRequest::first(PAGE_ROWS_MAX);
        let mut row_count = 0;
        loop {
            let filter = filter(context, days);
            let page = usage::list_rows(context.admin, context.actor(), filter, &of).await?;
            row_count += page.rows.len();
            for row in page.rows {
                let sum = UsageSum { admitted: row.admitted_cost, denied: row.denied_cost };
                sums.all.add(sum);
                sums.days.entry(row.day).or_default().add(sum);
                sums.tenants.entry(row.tenant).or_default().add(sum);
                sums.subjects.entry((row.subject, row.rule)).or_default().add(sum);
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

    fn tenants(&self, href: impl Fn(&str) -> String) -> Vec<TenantRow> {
        let mut all: Vec<(&String, UsageSum)> =
            self.tenants.iter().map(|entry| (entry.0, *entry.1)).collect();
        all.sort_by_key(|entry| std::cmp::Reverse(entry.1.total()));
        let row = |(tenant, sum): (&String, UsageSum)| {
            let share = Share { part: sum.denied, whole: sum.total() };
            TenantRow {
                name: UntrustedText::new(if tenant.is_empty() { "no tenant" } else { tenant }),
                href: (!tenant.is_empty()).then(|| href(tenant)),
                admitted: Count(sum.admitted),
                denied: Count(sum.denied),
                share,
                meter: Meter { percent: share.percent(), class: "denied" },
            }
        };
        all.into_iter().take(LISTED_MAX).map(row).collect()
    }

    fn subjects(&self, context: &PageContext<'_>) -> Vec<SubjectRow> {
        let rules = context.admin.daemon.engine.rules();
        let name = |id: &str| {
            let rule = rules.rules().iter().find(|rule| **rule.identity() == *id);
            rule.map_or_else(|| id.to_owned(), |rule| rule.name.to_string())
        };
        let mut all: Vec<_> = self.subjects.iter().map(|entry| (entry.0, *entry.1)).collect();
        all.sort_by_key(|entry| std::cmp::Reverse(entry.1.total()));
        let row = |((subject, rule), sum): (&(String, String), UsageSum)| SubjectRow {
            name: UntrustedText::new(&**subject),
            rule: UntrustedText::new(name(rule)),
            admitted: Count(sum.admitted),
            denied: Count(sum.denied),
        };
        all.into_iter().take(LISTED_MAX).map(row).collect()
    }
}
