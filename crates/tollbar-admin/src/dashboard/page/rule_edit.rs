//! A rule is changed in two steps: a form, or YAML, and then a page that says what would be different and
//! who would be denied. Only the second changes anything.

use askama::Template;
use hyper::StatusCode;
use tollbar_rules::admin::to_yaml;
use tollbar_rules::{Conditions, Rule, Test};

use super::super::rule_text::{FieldDiff, changes, read};
use super::rule::{ViewedRule, warning_lines};
use super::rule_fields::{RuleField, has_more, to_rule};
use crate::dashboard::page::rule_fields::{self};
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::panel::overview::rule_href;
use crate::dashboard::response;
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::{UntrustedText, escape_invisible};
use crate::operations::auth::access::{Permission, Reach};
use crate::operations::precondition::{IfMatch, etag};
use crate::operations::proposal::{DryRun, NewDenial};
use crate::operations::rule_json::RuleForm;
use crate::operations::rules::{self, ChangeResult, Rollback};
use tollbar_daemon::problem::Problem;

#[derive(Debug, Template)]
#[template(path = "rule_edit.html")]
struct RuleEditPage {
    layout: Layout,
    title: String,
    name: UntrustedText,
    /// The rule's page; nothing for a new one.
    href: Option<String>,
    form_href: String,
    yaml_href: String,
    action: String,
    version: String,
    is_yaml: bool,
    yaml: String,
    fields: Vec<RuleField>,
    has_more: bool,
}

#[derive(Debug, Template)]
#[template(path = "rule_review.html")]
struct RuleReviewPage {
    layout: Layout,
    title: String,
    name: UntrustedText,
    href: Option<String>,
    action: String,
    edit_action: Option<String>,
    button: &'static str,
    is_dangerous: bool,
    hidden_fields: Vec<(String, String)>,
    fields: Vec<FieldDiff>,
    unchanged: usize,
    starts_fresh: Vec<UntrustedText>,
    newly_denied: Vec<NewDenialRow>,
    examined: usize,
    warnings: Vec<UntrustedText>,
}

#[derive(Debug)]
struct NewDenialRow {
    subject: UntrustedText,
    limit: UntrustedText,
    until: String,
}

/// The empty form.
pub(crate) fn new(context: &PageContext<'_>) -> PageResult {
    context.actor().reach(Permission::Change)?;
    // A tenant's rules are its own, and named after it.
    let mut start = Rule::new("");
    if let Reach::Tenant(tenant) = context.actor().reach(Permission::Change)? {
        start = Rule::new(&format!("{tenant}/"));
        start.conditions = Conditions::new().and("tenant", Test::equal(tenant));
    }
    let is_yaml = context.query.text("as") == "yaml";
    let yaml = "name: \nmatch: { path: \"/v1/**\" }\nlimit: 100/min\n".to_owned();
    let fields = rule_fields::from_rule(&start);
    show_form(context, None, is_yaml, RuleEditForm { yaml, fields }, None)
}

/// The form, filled with what the rule says.
pub(crate) async fn edit(context: &PageContext<'_>, id: &str) -> PageResult {
    let viewed = find_changeable(context, id).await?;
    let yaml = to_yaml(&viewed.rule);
    let fields = rule_fields::from_rule(&viewed.rule);
    show_form(
        context,
        Some((id, &viewed)),
        context.query.text("as") == "yaml",
        RuleEditForm { yaml, fields },
        None,
    )
}

/// The form again, filled with what was sent.
pub(crate) async fn edit_again(context: &PageContext<'_>, id: Option<&str>) -> PageResult {
    let viewed = find_existing(context, id).await?;
    show_form_again(context, id.zip(viewed.as_ref()), None)
}

/// What would become of a rule, or of a new one, by what was sent.
pub(crate) async fn review(context: &PageContext<'_>, id: Option<&str>) -> PageResult {
    let viewed = find_existing(context, id).await?;
    let of = id.zip(viewed.as_ref());
    match submit(context, of, true).await {
        Ok(ChangeResult::DryRun(dry_run)) => {
            let href = id.map(rule_href);
            let place = href.clone().unwrap_or_else(|| "/rules".to_owned());
            let name = dry_run.rule.as_ref().map_or("", |json| &json.rule.name).to_owned();
            let before = viewed.as_ref().map(|viewed| &viewed.rule);
            let verb = if id.is_some() { "Change" } else { "Create" };
            let page = RuleReviewPage {
                title: format!("{verb} {}?", escape_invisible(&name)),
                name: UntrustedText::new(name),
                edit_action: Some(format!("{place}/edit")),
                button: if id.is_some() { "Save" } else { "Create" },
                hidden_fields: context.form.without_csrf(),
                ..RuleReviewPage::new(context, href, place, before, &dry_run)
            };
            PageContext::page(&page)
        }
        Ok(ChangeResult::Done(_)) => Err(without_review()),
        Err(problem) => show_refusal(context, of, problem),
    }
}

/// Makes the change.
pub(crate) async fn save(context: &PageContext<'_>, id: Option<&str>) -> PageResult {
    let viewed = find_existing(context, id).await?;
    let of = id.zip(viewed.as_ref());
    match submit(context, of, false).await {
        Ok(ChangeResult::Done(rule)) => {
            let notice = if id.is_some() { "Saved." } else { "Created." };
            context.redirect_with_notice(notice, &rule_href(rule.id()))
        }
        Ok(ChangeResult::DryRun(_)) => Err(Problem::unavailable("the change was only tried")),
        Err(problem) => show_refusal(context, of, problem),
    }
}

/// What would be gone.
pub(crate) async fn review_delete(context: &PageContext<'_>, id: &str) -> PageResult {
    let viewed = find_changeable(context, id).await?;
    let version = viewed.version.unwrap_or_default();
    let if_match = expected_version(version);
    let expect_dry_run = rules::delete(context.admin, context.actor(), id, &if_match, true).await?;
    let dry_run = expect_dry_run.ok_or_else(without_review)?;
    let href = rule_href(id);
    let action = format!("{href}/delete");
    PageContext::page(&RuleReviewPage {
        title: format!("Delete {}?", escape_invisible(viewed.name())),
        name: UntrustedText::new(viewed.name()),
        button: "Delete",
        is_dangerous: true,
        hidden_fields: vec![("version".to_owned(), version.to_string())],
        ..RuleReviewPage::new(context, Some(href), action, Some(&viewed.rule), &dry_run)
    })
}

pub(crate) async fn delete(context: &PageContext<'_>, id: &str) -> PageResult {
    let if_match = expected_version(context.form.number("version")?);
    rules::delete(context.admin, context.actor(), id, &if_match, false).await?;
    context.redirect_with_notice("Deleted. Its history stays.", "/rules")
}

/// What would be put back.
pub(crate) async fn review_rollback(context: &PageContext<'_>, id: &str) -> PageResult {
    let viewed = ViewedRule::find(context, id).await?;
    let (version, to) = (viewed.version.unwrap_or_default(), context.query.number("version")?);
    let rollback = Rollback { version: to };
    let if_match = expected_version(version);
    let outcome =
        rules::roll_back(context.admin, context.actor(), id, &if_match, &rollback, true).await?;
    let dry_run = expect_dry_run(outcome)?;
    let before = Some(&viewed.rule).filter(|_| !viewed.is_gone);
    let href = rule_href(id);
    let action = format!("{href}/rollback");
    PageContext::page(&RuleReviewPage {
        title: format!("Roll {} back to version {to}?", escape_invisible(viewed.name())),
        name: UntrustedText::new(viewed.name()),
        button: "Roll back",
        hidden_fields: vec![
            ("version".to_owned(), version.to_string()),
            ("to".to_owned(), to.to_string()),
        ],
        ..RuleReviewPage::new(context, Some(href), action, before, &dry_run)
    })
}

pub(crate) async fn roll_back(context: &PageContext<'_>, id: &str) -> PageResult {
    let if_match = expected_version(context.form.number("version")?);
    let rollback = Rollback { version: context.form.number("to")? };
    rules::roll_back(context.admin, context.actor(), id, &if_match, &rollback, false).await?;
    context.redirect_with_notice("Rolled back.", &rule_href(id))
}

/// The values of the form: as YAML, and field by field.
struct RuleEditForm {
    yaml: String,
    fields: Vec<RuleField>,
}

/// The rule, if it may be changed here.
async fn find_changeable(context: &PageContext<'_>, id: &str) -> Result<ViewedRule, Problem> {
    context.actor().reach(Permission::Change)?;
    let viewed = ViewedRule::find(context, id).await?;
    if viewed.is_file {
        return Err(Problem::read_only(id));
    }
    if viewed.is_gone {
        return Err(Problem::not_found("rule: it was deleted"));
    }
    if viewed.is_of_others(context) {
        return Err(rules::operators_rule(viewed.name()));
    }
    Ok(viewed)
}

async fn find_existing(
    context: &PageContext<'_>,
    id: Option<&str>,
) -> Result<Option<ViewedRule>, Problem> {
    context.actor().reach(Permission::Change)?;
    match id {
        Some(id) => find_changeable(context, id).await.map(Some),
        None => Ok(None),
    }
}

/// Asks for what was sent to be done, or tried.
async fn submit(
    context: &PageContext<'_>,
    of: Option<(&str, &ViewedRule)>,
    is_dry_run: bool,
) -> Result<ChangeResult, Problem> {
    let rule = if context.form.text("as") == "yaml" {
        read(context.form.text("yaml"))?
    } else {
        to_rule(of.map(|(_, viewed)| &viewed.rule), &context.form)?
    };
    let rule = RuleForm(Ok(rule));
    let (admin, actor) = (context.admin, context.actor());
    match of {
        None => rules::create(admin, actor, &rule, is_dry_run).await,
        Some((id, _)) => {
            let if_match = expected_version(context.form.number("version")?);
            rules::replace(admin, actor, id, &if_match, &rule, is_dry_run).await
        }
    }
}

/// Returns the precondition for the version that somebody has looked at.
fn expected_version(version: u64) -> IfMatch {
    IfMatch::OneOf(vec![etag(version)])
}

/// What people can mend is told on the form; the rest on a page of its own.
fn show_refusal(
    context: &PageContext<'_>,
    of: Option<(&str, &ViewedRule)>,
    problem: Problem,
) -> PageResult {
    let is_theirs = matches!(problem.status.as_u16(), 400 | 403 | 409 | 422);
    if is_theirs { show_form_again(context, of, Some(&problem)) } else { Err(problem) }
}

fn show_form_again(
    context: &PageContext<'_>,
    of: Option<(&str, &ViewedRule)>,
    problem: Option<&Problem>,
) -> PageResult {
    let form_values = RuleEditForm {
        yaml: context.form.text("yaml").to_owned(),
        fields: rule_fields::from_form(&context.form, problem),
    };
    show_form(context, of, context.form.text("as") == "yaml", form_values, problem)
}

#[expect(clippy::unnecessary_wraps, reason = "every page ends with one of these")]
fn show_form(
    context: &PageContext<'_>,
    of: Option<(&str, &ViewedRule)>,
    is_yaml: bool,
    form_values: RuleEditForm,
    problem: Option<&Problem>,
) -> PageResult {
    let href = of.map(|(id, _)| rule_href(id));
    let place = href.clone().unwrap_or_else(|| "/rules".to_owned());
    let edit = if of.is_some() { format!("{place}/edit") } else { "/rules/new".to_owned() };
    let version = of.and_then(|(_, viewed)| viewed.version);
    let sent = context.form.non_empty("version").map(str::to_owned);
    let name = of.map_or("", |(_, viewed)| viewed.name());
    let page = RuleEditPage {
        layout: context.layout_with(NavItem::Rules, problem),
        title: match of {
            Some(_) => format!("Edit {}", escape_invisible(name)),
            None => "New rule".to_owned(),
        },
        name: UntrustedText::new(name),
        yaml_href: format!("{edit}?as=yaml"),
        form_href: edit,
        action: format!("{place}/review"),
        // The one that was read, so that nobody's change is lost unseen.
        version: sent.or(version.map(|version| version.to_string())).unwrap_or_default(),
        is_yaml,
        yaml: form_values.yaml,
        fields: form_values.fields,
        has_more: of.is_some_and(|(_, viewed)| has_more(&viewed.rule)),
        href,
    };
    Ok(response::render_page(problem.map_or(StatusCode::OK, |problem| problem.status), &page))
}

/// Returns what a change would do.
fn expect_dry_run(outcome: ChangeResult) -> Result<Box<DryRun>, Problem> {
    match outcome {
        ChangeResult::DryRun(dry_run) => Ok(dry_run),
        ChangeResult::Done(_) => Err(without_review()),
    }
}

fn without_review() -> Problem {
    Problem::unavailable("the change was made without a review")
}

impl RuleReviewPage {
    fn new(
        context: &PageContext<'_>,
        href: Option<String>,
        action: String,
        before: Option<&Rule>,
        dry_run: &DryRun,
    ) -> Self {
        let denied = |denial: &NewDenial| NewDenialRow {
            subject: UntrustedText::new(&*denial.subject),
            limit: UntrustedText::new(&*denial.limit_text),
            until: denial.reset_at.text().as_str()[..19].replace('T', " "),
        };
        let fresh = dry_run.diff.changed.iter().flat_map(|diff| &diff.starts_fresh);
        Self {
            layout: context.layout(NavItem::Rules),
            title: String::new(),
            name: UntrustedText::new(""),
            href,
            action,
            edit_action: None,
            button: "Save",
            is_dangerous: false,
            hidden_fields: Vec::new(),
            fields: changes(before, dry_run.rule.as_ref().map(|json| &json.rule)),
            unchanged: dry_run.diff.unchanged,
            starts_fresh: fresh.map(|limit| UntrustedText::new(&**limit)).collect(),
            newly_denied: dry_run.newly_denied.iter().map(denied).collect(),
            examined: dry_run.examined_keys,
            warnings: dry_run
                .rule
                .as_ref()
                .map_or_else(Vec::new, |json| warning_lines(&json.warnings)),
        }
    }
}
