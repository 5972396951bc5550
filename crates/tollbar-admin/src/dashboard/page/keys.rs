//! Keys: who is limited most, who is banned or boosted, and one key with all that can be done to it.

use askama::Template;
use hyper::StatusCode;

use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::panel::overview::{
    KeysPanel, KeysPanelRow, expiry_text, key_href, render, rule_href,
};
use crate::dashboard::view::chart::Meter;
use crate::dashboard::view::formatting::{Count, DateTime, Share};
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::{UntrustedText, escape_invisible};
use crate::database::{KeyEffect, KeyFilter, KeyRow, PageRequest, RuleFilter, RuleId};
use crate::operations::auth::access::Permission;
use crate::operations::keys::{self, BanForm, BoostForm, Key};
use crate::operations::usage::{self, LimitUsage, Usages};
use tollbar_daemon::problem::Problem;
use tollbar_rules::{Per, Rule};

/// Records of a page, and keys of the list of those limited most.
const ROWS: u32 = 100;
const TOP: usize = 25;

/// Rules to choose from; the address of a key takes any.
const CHOICES_MAX: usize = 500;

#[derive(Debug, Template)]
#[template(path = "keys.html")]
struct KeysPage {
    layout: Layout,
    rules: Vec<(String, String)>,
    top: String,
    /// Those who may not see them all have no list of them.
    records: Option<Vec<KeyRecordRow>>,
    next: Option<String>,
}

#[derive(Debug, Template)]
#[template(path = "key.html")]
struct KeyPage {
    layout: Layout,
    title: String,
    href: String,
    subject: UntrustedText,
    rule: UntrustedText,
    rule_id: String,
    rule_href: String,
    why_not: Option<String>,
    has_tiers: bool,
    limits: Vec<LimitRow>,
    records: Vec<KeyRecordRow>,
    factor: String,
    /// As what, and whom, an exemption would be made; only of rules of the database.
    exempt: Option<(&'static str, String)>,
}

/// A ban or a boost in a table.
#[derive(Debug)]
struct KeyRecordRow {
    id: i64,
    kind: &'static str,
    factor: String,
    subject: UntrustedText,
    label: String,
    rule: UntrustedText,
    reason: UntrustedText,
    until: String,
    by: UntrustedText,
}

/// What is left of a limit.
#[derive(Debug)]
pub(crate) struct LimitRow {
    pub(crate) rule: UntrustedText,
    pub(crate) tier: Option<UntrustedText>,
    pub(crate) text: UntrustedText,
    pub(crate) remaining: Count,
    pub(crate) limit: Count,
    pub(crate) used: Share,
    pub(crate) meter: Meter,
    pub(crate) reset: DateTime,
}

pub(crate) async fn list(context: &PageContext<'_>) -> PageResult {
    let (admin, actor) = (context.admin, context.actor());
    let top = usage::list_top_denied(admin, actor, None, TOP)?;
    let row = |denied: usage::DeniedSubject| {
        let subject = UntrustedText::new(denied.subject);
        KeysPanelRow {
            href: key_href(&denied.rule_id, &subject),
            subject,
            rule: UntrustedText::new(denied.rule),
            count: Count(denied.count),
        }
    };
    let top = render(&KeysPanel { rows: top.items.into_iter().map(row).collect() });
    let filter = RuleFilter::default();
    let page_request = PageRequest::first(CHOICES_MAX as u32);
    let rules = crate::operations::rules::list(admin, actor, &filter, &page_request).await?;
    let rules = rules.rows.into_iter();
    let rules =
        rules.map(|rule| (rule.rule_id.unwrap_or_default(), escape_invisible(&rule.rule.name)));
    let (mut records, mut next) = (None, None);
    if context.permissions().see_all {
        let filter = KeyFilter::default();
        let paged = keys::list(admin, actor, &filter, &context.page_request(ROWS)).await?;
        records = Some(paged.rows.into_iter().map(|row| KeyRecordRow::new(context, row)).collect());
        next = PageContext::next_href("/keys", paged.next);
    }
    let rules = rules.collect();
    PageContext::page(&KeysPage {
        layout: context.layout(NavItem::Keys),
        rules,
        top,
        records,
        next,
    })
}

/// One key.
pub(crate) async fn show(context: &PageContext<'_>) -> PageResult {
    let (rule, subject) = (context.query.text("rule"), context.query.text("subject"));
    show_with(context, rule, subject, None).await
}

async fn show_with(
    context: &PageContext<'_>,
    rule_id: &str,
    subject: &str,
    problem: Option<&Problem>,
) -> PageResult {
    let (admin, actor) = (context.admin, context.actor());
    let rule = keys::find_in_force(admin, actor.reach(Permission::See)?, rule_id)?;
    let subject = &prefixed_subject(&rule, subject);
    let (limits, why_not) = match keys::peek(admin, actor, &counter_key(&rule, subject)).await {
        Ok(usages) => (LimitRow::from_usages(&usages), None),
        Err(problem) if problem.status == StatusCode::SERVICE_UNAVAILABLE => return Err(problem),
        Err(problem) => (Vec::new(), Some(escape_invisible(&problem.detail))),
    };
    let mut records = Vec::new();
    if context.permissions().see_all {
        let filter = KeyFilter { subject: Some(subject.clone()), ..KeyFilter::default() };
        let paged = keys::list(admin, actor, &filter, &context.page_request(ROWS)).await?;
        let holds =
            |row: &KeyRow| row.record.rule.as_deref().is_none_or(|id| *id == **rule.identity());
        records.extend(
            paged.rows.into_iter().filter(holds).map(|row| KeyRecordRow::new(context, row)),
        );
    }
    let subject_text = UntrustedText::new(subject);
    let page = KeyPage {
        layout: context.layout_with(NavItem::Keys, problem),
        title: format!("{} under {}", escape_invisible(subject), rule.name),
        href: key_href(rule.identity(), &subject_text),
        subject: subject_text,
        rule: UntrustedText::new(&*rule.name),
        rule_id: rule.identity().to_string(),
        rule_href: rule_href(rule.identity()),
        why_not,
        has_tiers: limits.iter().any(|limit| limit.tier.is_some()),
        limits,
        records,
        factor: context.form.non_empty("factorPercent").unwrap_or("200").to_owned(),
        exempt: exemption_target(&rule, subject)
            .filter(|_| rule.identity().parse::<RuleId>().is_ok()),
    };
    let status = problem.map_or(StatusCode::OK, |problem| problem.status);
    Ok(crate::dashboard::response::render_page(status, &page))
}

/// Does something to a key: `reset`, `ban` or `boost`.
pub(crate) async fn act(context: &PageContext<'_>, what: &str) -> PageResult {
    let sent = &context.form;
    let (rule, subject) = (sent.text("rule"), sent.text("subject"));
    let notice = match apply_action(context, what, rule, subject).await {
        Ok(notice) => notice,
        Err(problem) if problem.status == StatusCode::UNPROCESSABLE_ENTITY => {
            return show_with(context, rule, subject, Some(&problem)).await;
        }
        Err(problem) => return Err(problem),
    };
    context.redirect_with_notice(notice, &key_href(rule, &UntrustedText::new(subject)))
}

async fn apply_action(
    context: &PageContext<'_>,
    what: &str,
    rule: &str,
    subject: &str,
) -> Result<&'static str, Problem> {
    let (admin, actor, sent) = (context.admin, context.actor(), &context.form);
    let (rule_id, subject_text) = (Some(rule.to_owned()), subject.to_owned());
    match what {
        "reset" => {
            let rule = keys::find_in_force(admin, actor.reach(Permission::Change)?, rule)?;
            keys::reset(admin, actor, &counter_key(&rule, subject)).await?;
            Ok("The counters are fresh.")
        }
        "ban" => {
            let (reason, expires_at) = (sent.non_empty_owned("reason"), context.expiry());
            let form = BanForm { rule_id, subject: subject_text, reason, expires_at };
            keys::ban(admin, actor, &form).await?;
            Ok("Banned from now on.")
        }
        "boost" => {
            let form = BoostForm {
                rule_id,
                subject: subject_text,
                factor_percent: sent.number("factorPercent")?,
                reason: sent.non_empty_owned("reason"),
                expires_at: context.expiry(),
            };
            keys::boost(admin, actor, &form).await?;
            Ok("Boosted from now on.")
        }
        _ => Err(Problem::not_found("page")),
    }
}

/// Ends a ban or a boost.
pub(crate) async fn lift(context: &PageContext<'_>, id: &str) -> PageResult {
    keys::lift(context.admin, context.actor(), id).await?;
    context
        .redirect_with_notice("It has ended.", context.form.local_path("back").unwrap_or("/keys"))
}

/// A subject as people read it, which is how bans and boosts know it: addresses say that they are.
fn prefixed_subject(rule: &Rule, subject: &str) -> String {
    let is_bare = counts_addresses(rule) && !subject.starts_with("ip:");
    if is_bare { format!("ip:{subject}") } else { subject.to_owned() }
}

/// The same as counters know it: where all are addresses, by itself.
fn counter_key(rule: &Rule, subject: &str) -> Key {
    let bare = subject.strip_prefix("ip:").filter(|_| counts_addresses(rule));
    let subject = bare.unwrap_or(subject).to_owned();
    Key { rule_id: rule.identity().to_string(), subject: Some(subject), attributes: None }
}

fn counts_addresses(rule: &Rule) -> bool {
    matches!(rule.per.as_slice(), [Per::Attribute(name)] if **name == *"ip")
}

/// Of what kind a subject is, where the rule or the subject itself says so.
fn exemption_target(rule: &Rule, subject: &str) -> Option<(&'static str, String)> {
    let kinds = [("api", "api_key", "api_key"), ("user", "user", "user"), ("ip", "ip", "ip_cidr")];
    let (prefix, value) = subject.split_once(':').unwrap_or_default();
    let prefix_kind = kinds.iter().find(|kind| kind.0 == prefix);
    match (rule.per.as_slice(), prefix_kind) {
        ([Per::Client], Some((.., kind))) => Some((kind, value.to_owned())),
        ([Per::Attribute(name)], prefix_kind) => {
            let (.., kind) = kinds.iter().find(|kind| kind.1 == &**name)?;
            // Some subjects are told with what they are, some without.
            let value = prefix_kind.filter(|kind| kind.1 == &**name).map_or(subject, |_| value);
            Some((kind, value.to_owned()))
        }
        _ => None,
    }
}

impl LimitRow {
    pub(crate) fn from_usages(usages: &Usages) -> Vec<Self> {
        usages.limits.iter().map(Self::from_usage).collect()
    }

    fn from_usage(usage: &LimitUsage) -> Self {
        let used = Share { part: usage.limit.saturating_sub(usage.remaining), whole: usage.limit };
        Self {
            rule: UntrustedText::new(&*usage.rule),
            tier: usage.tier.as_deref().map(UntrustedText::new),
            text: UntrustedText::new(&*usage.limit_text),
            remaining: Count(usage.remaining),
            limit: Count(usage.limit),
            used,
            meter: Meter {
                percent: used.percent(),
                class: if usage.remaining == 0 { "denied" } else { "used" },
            },
            reset: DateTime(usage.reset_at.0),
        }
    }
}

impl KeyRecordRow {
    fn new(context: &PageContext<'_>, row: KeyRow) -> Self {
        let rules = context.admin.daemon.engine.rules();
        let name = |id: &str| {
            let rule = rules.rules().iter().find(|rule| **rule.identity() == *id);
            rule.map_or_else(|| id.to_owned(), |rule| rule.name.to_string())
        };
        let record = row.record;
        let (kind, factor) = match record.effect {
            KeyEffect::Ban => ("ban", String::new()),
            KeyEffect::Boost { factor_percent } => ("boost", format!("to {factor_percent}%")),
        };
        Self {
            id: row.id,
            kind,
            factor,
            label: escape_invisible(&record.subject),
            subject: UntrustedText::new(record.subject),
            rule: UntrustedText::new(
                record.rule.as_deref().map_or_else(|| "all rules".to_owned(), name),
            ),
            reason: UntrustedText::new(record.reason.as_deref().unwrap_or("–")),
            until: expiry_text(record.expires_at),
            by: UntrustedText::new(row.created_by),
        }
    }
}
