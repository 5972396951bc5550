//! Who is not counted: the list of all, and the forms that make and end one.

use std::collections::HashMap;

use askama::Template;
use tollbar_rules::admin::SubjectType;

use super::rule;
use crate::dashboard::page_context::{Came, Visit};
use crate::dashboard::panel::overview::{rule_href, until};
use crate::dashboard::view::layout::{Frame, Place};
use crate::dashboard::view::untrusted_text::{Shown, spelled};
use crate::operations::exemptions::{self, Exemption, Sent};
use tollbar_daemon::problem::Problem;

/// Exemptions of a page.
const ROWS: u32 = 100;

#[derive(Debug, Template)]
#[template(path = "exemptions.html")]
struct Exemptions {
    frame: Frame,
    rows: Vec<Row>,
    next: Option<String>,
}

/// An exemption in a table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) kind: &'static str,
    pub(crate) subject: Shown,
    pub(crate) label: String,
    pub(crate) rule: Shown,
    pub(crate) rule_href: String,
    pub(crate) reason: Shown,
    pub(crate) until: String,
    pub(crate) by: Shown,
}

/// The form for a new one.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExemptForm {
    pub(crate) is_open: bool,
    pub(crate) kind: String,
    pub(crate) value: String,
    pub(crate) reason: String,
}

/// Kinds of subjects, and what people call them.
pub(crate) const KINDS: [(&str, &str); 4] = [
    ("api_key", "API key"),
    ("user", "User"),
    ("ip_cidr", "Address or block"),
    ("service_account", "Service account"),
];

pub(crate) async fn list(visit: &Visit<'_>) -> Came {
    let paged = exemptions::list(visit.admin, visit.actor(), &visit.paging(ROWS)).await?;
    let rules = visit.admin.daemon.engine.rules();
    let names: HashMap<&str, &str> =
        rules.rules().iter().map(|it| (&**it.identity(), &*it.name)).collect();
    let row = |it: &Exemption| {
        let name = names.get(it.rule_id.as_str()).copied();
        Row::of(it, name.unwrap_or(&it.rule_id))
    };
    let rows = paged.rows.iter().map(row).collect();
    let next = Visit::next("/exemptions", paged.next);
    Visit::page(&Exemptions { frame: visit.frame(Place::Exemptions), rows, next })
}

/// Exempts somebody from a rule.
pub(crate) async fn create(visit: &Visit<'_>, rule: &str) -> Came {
    let sent = &visit.sent;
    let form = ExemptForm {
        is_open: true,
        kind: sent.text("subjectType").to_owned(),
        value: sent.text("subjectValue").to_owned(),
        reason: sent.text("reason").to_owned(),
    };
    match made(visit, rule, &form).await {
        Ok(_) => {
            let back = sent.place("back").map_or_else(|| rule_href(rule), str::to_owned);
            visit.done("Exempt from now on.", &back)
        }
        // A rule that is not there has no page to tell it on.
        Err(problem) if problem.status == 404 => Err(problem),
        Err(problem) => rule::show_with(visit, rule, form, Some(&problem)).await,
    }
}

async fn made(visit: &Visit<'_>, rule: &str, form: &ExemptForm) -> Result<Exemption, Problem> {
    let unknown = || Problem::invalid_field("subjectType", "choose one of those there are");
    let subject_type = SubjectType::of_name(&form.kind).ok_or_else(unknown)?;
    let sent = Sent {
        subject_type,
        subject_value: form.value.trim().to_owned(),
        reason: visit.sent.owned("reason"),
        expires_at: visit.end(),
    };
    exemptions::create(visit.admin, visit.actor(), rule, &sent).await
}

/// Ends one.
pub(crate) async fn delete(visit: &Visit<'_>, id: &str) -> Came {
    exemptions::delete(visit.admin, visit.actor(), id).await?;
    visit.done("The exemption has ended.", visit.sent.place("back").unwrap_or("/exemptions"))
}

impl Row {
    pub(crate) fn of(it: &Exemption, rule: &str) -> Self {
        let kind = KINDS.iter().find(|kind| kind.0 == it.subject_type);
        Self {
            id: it.exemption_id,
            kind: kind.map_or(it.subject_type, |kind| kind.1),
            subject: Shown::new(&*it.subject_value),
            label: spelled(&it.subject_value),
            rule: Shown::new(rule),
            rule_href: rule_href(&it.rule_id),
            reason: Shown::new(it.reason.as_deref().unwrap_or("–")),
            until: until(it.expires_at.map(|it| it.0)),
            by: Shown::new(&*it.created_by),
        }
    }
}
