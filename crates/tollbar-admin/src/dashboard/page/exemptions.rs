//! Who is not counted: the list of all, and the forms that make and end one.

use std::collections::HashMap;

use askama::Template;
use tollbar_rules::admin::SubjectType;

use super::rule;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::panel::overview::{expiry_text, rule_href};
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::{UntrustedText, escape_invisible};
use crate::operations::exemptions::{self, Exemption, NewExemption};
use tollbar_daemon::problem::Problem;

/// Exemptions of a page.
const ROWS: u32 = 100;

#[derive(Debug, Template)]
#[template(path = "exemptions.html")]
struct ExemptionsPage {
    layout: Layout,
    rows: Vec<ExemptionListRow>,
    next: Option<String>,
}

/// An exemption in a table.
#[derive(Debug)]
pub(crate) struct ExemptionListRow {
    pub(crate) id: i64,
    pub(crate) kind: &'static str,
    pub(crate) subject: UntrustedText,
    pub(crate) label: String,
    pub(crate) rule: UntrustedText,
    pub(crate) rule_href: String,
    pub(crate) reason: UntrustedText,
    pub(crate) until: String,
    pub(crate) by: UntrustedText,
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

pub(crate) async fn list(context: &PageContext<'_>) -> PageResult {
    let paged =
        exemptions::list(context.admin, context.actor(), &context.page_request(ROWS)).await?;
    let rules = context.admin.daemon.engine.rules();
    let names: HashMap<&str, &str> =
        rules.rules().iter().map(|rule| (&**rule.identity(), &*rule.name)).collect();
    let row = |exemption: &Exemption| {
        let name = names.get(exemption.rule_id.as_str()).copied();
        ExemptionListRow::new(exemption, name.unwrap_or(&exemption.rule_id))
    };
    let rows = paged.rows.iter().map(row).collect();
    let next = PageContext::next_href("/exemptions", paged.next);
    PageContext::page(&ExemptionsPage { layout: context.layout(NavItem::Exemptions), rows, next })
}

/// Exempts somebody from a rule.
pub(crate) async fn create(context: &PageContext<'_>, rule: &str) -> PageResult {
    let sent = &context.form;
    let form = ExemptForm {
        is_open: true,
        kind: sent.text("subjectType").to_owned(),
        value: sent.text("subjectValue").to_owned(),
        reason: sent.text("reason").to_owned(),
    };
    match create_exemption(context, rule, &form).await {
        Ok(_) => {
            let back = sent.local_path("back").map_or_else(|| rule_href(rule), str::to_owned);
            context.redirect_with_notice("Exempt from now on.", &back)
        }
        // A rule that is not there has no page to tell it on.
        Err(problem) if problem.status == 404 => Err(problem),
        Err(problem) => rule::show_with(context, rule, form, Some(&problem)).await,
    }
}

async fn create_exemption(
    context: &PageContext<'_>,
    rule: &str,
    form: &ExemptForm,
) -> Result<Exemption, Problem> {
    let unknown = || Problem::invalid_field("subjectType", "choose one of those there are");
    let subject_type = SubjectType::of_name(&form.kind).ok_or_else(unknown)?;
    let sent = NewExemption {
        subject_type,
        subject_value: form.value.trim().to_owned(),
        reason: context.form.non_empty_owned("reason"),
        expires_at: context.expiry(),
    };
    exemptions::create(context.admin, context.actor(), rule, &sent).await
}

/// Ends one.
pub(crate) async fn delete(context: &PageContext<'_>, id: &str) -> PageResult {
    exemptions::delete(context.admin, context.actor(), id).await?;
    context.redirect_with_notice(
        "The exemption has ended.",
        context.form.local_path("back").unwrap_or("/exemptions"),
    )
}

impl ExemptionListRow {
    pub(crate) fn new(exemption: &Exemption, rule: &str) -> Self {
        let kind = KINDS.iter().find(|kind| kind.0 == exemption.subject_type);
        Self {
            id: exemption.exemption_id,
            kind: kind.map_or(exemption.subject_type, |kind| kind.1),
            subject: UntrustedText::new(&*exemption.subject_value),
            label: escape_invisible(&exemption.subject_value),
            rule: UntrustedText::new(rule),
            rule_href: rule_href(&exemption.rule_id),
            reason: UntrustedText::new(exemption.reason.as_deref().unwrap_or("–")),
            until: expiry_text(exemption.expires_at.map(|end| end.0)),
            by: UntrustedText::new(&*exemption.created_by),
        }
    }
}
