//! A rule is changed in two steps: a form, or YAML, and then a page that says what would be different and
//! who would be denied. Only the second changes anything.

use askama::Template;
use hyper::StatusCode;
use tollbar_rules::admin::to_yaml;
use tollbar_rules::{Conditions, Rule, Test};

use super::super::rule_text::{FieldDiff, changes, read};
use super::rule::ViewedRule;
use super::rule_fields::{Field, has_more, rule_of};
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
    fields: Vec<Field>,
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
    carried: Vec<(String, String)>,
    fields: Vec<FieldDiff>,
    unchanged: usize,
    starts_fresh: Vec<UntrustedText>,
    newly_denied: Vec<NewDenialRow>,
    examined: usize,
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
    let fields = rule_fields::of_rule(&start);
    form(context, None, is_yaml, RuleEditForm { yaml, fields }, None)
}

/// The form, filled with what the rule says.
pub(crate) async fn edit(context: &PageContext<'_>, id: &str) -> PageResult {
    let seen = changeable(context, id).await?;
    let yaml = to_yaml(&seen.rule);
    let fields = rule_fields::of_rule(&seen.rule);
    form(
        context,
        Some((id, &seen)),
        context.query.text("as") == "yaml",
        RuleEditForm { yaml, fields },
        None,
    )
}

/// The form again, filled with what was sent.
pub(crate) async fn edit_again(context: &PageContext<'_>, id: Option<&str>) -> PageResult {
    let seen = existing(context, id).await?;
    again(context, id.zip(seen.as_ref()), None)
}

/// What would become of a rule, or of a new one, by what was sent.
pub(crate) async fn review(context: &PageContext<'_>, id: Option<&str>) -> PageResult {
    let seen = existing(context, id).await?;
    let of = id.zip(seen.as_ref());
    match sent(context, of, true).await {
        Ok(ChangeResult::DryRun(dry_run)) => {
            let href = id.map(rule_href);
            let place = href.clone().unwrap_or_else(|| "/rules".to_owned());
            let name = dry_run.rule.as_ref().map_or("", |it| &it.rule.name).to_owned();
            let before = seen.as_ref().map(|it| &it.rule);
            let verb = if id.is_some() { "Change" } else { "Create" };
            let page = RuleReviewPage {
                title: format!("{verb} {}?", escape_invisible(&name)),
                name: UntrustedText::new(name),
                edit_action: Some(format!("{place}/edit")),
                button: if id.is_some() { "Save" } else { "Create" },
                carried: context.sent.carried(),
                ..RuleReviewPage::of(context, href, place, before, &dry_run)
            };
            PageContext::page(&page)
        }
        Ok(ChangeResult::Done(_)) => Err(untried()),
        Err(problem) => refused(context, of, problem),
    }
}

/// Makes the change.
pub(crate) async fn save(context: &PageContext<'_>, id: Option<&str>) -> PageResult {
    let seen = existing(context, id).await?;
    let of = id.zip(seen.as_ref());
    match sent(context, of, false).await {
        Ok(ChangeResult::Done(row)) => {
            let notice = if id.is_some() { "Saved." } else { "Created." };
            context.done(notice, &rule_href(&row.id.to_string()))
        }
        Ok(ChangeResult::DryRun(_)) => Err(Problem::unavailable("the change was only tried")),
        Err(problem) => refused(context, of, problem),
    }
}

/// What would be gone.
pub(crate) async fn review_delete(context: &PageContext<'_>, id: &str) -> PageResult {
    let seen = changeable(context, id).await?;
    let version = seen.version.unwrap_or_default();
    let if_match = meant(version);
    let tried = rules::delete(context.admin, context.actor(), id, &if_match, true).await?;
    let dry_run = tried.ok_or_else(untried)?;
    let href = rule_href(id);
    let action = format!("{href}/delete");
    PageContext::page(&RuleReviewPage {
        title: format!("Delete {}?", escape_invisible(seen.name())),
        name: UntrustedText::new(seen.name()),
        button: "Delete",
        is_dangerous: true,
        carried: vec![("version".to_owned(), version.to_string())],
        ..RuleReviewPage::of(context, Some(href), action, Some(&seen.rule), &dry_run)
    })
}

pub(crate) async fn delete(context: &PageContext<'_>, id: &str) -> PageResult {
    let if_match = meant(context.sent.number("version")?);
    rules::delete(context.admin, context.actor(), id, &if_match, false).await?;
    context.done("Deleted. Its history stays.", "/rules")
}

/// What would be put back.
pub(crate) async fn review_rollback(context: &PageContext<'_>, id: &str) -> PageResult {
    let seen = ViewedRule::find(context, id).await?;
    let (version, to) = (seen.version.unwrap_or_default(), context.query.number("version")?);
    let rollback = Rollback { version: to };
    let if_match = meant(version);
    let outcome =
        rules::roll_back(context.admin, context.actor(), id, &if_match, &rollback, true).await?;
    let dry_run = tried(outcome)?;
    let before = Some(&seen.rule).filter(|_| !seen.is_gone);
    let href = rule_href(id);
    let action = format!("{href}/rollback");
    PageContext::page(&RuleReviewPage {
        title: format!("Roll {} back to version {to}?", escape_invisible(seen.name())),
        name: UntrustedText::new(seen.name()),
        button: "Roll back",
        carried: vec![
            ("version".to_owned(), version.to_string()),
            ("to".to_owned(), to.to_string()),
        ],
        ..RuleReviewPage::of(context, Some(href), action, before, &dry_run)
    })
}

pub(crate) async fn roll_back(context: &PageContext<'_>, id: &str) -> PageResult {
    let if_match = meant(context.sent.number("version")?);
    let rollback = Rollback { version: context.sent.number("to")? };
    rules::roll_back(context.admin, context.actor(), id, &if_match, &rollback, false).await?;
    context.done("Rolled back.", &rule_href(id))
}

/// What stands in the form.
struct RuleEditForm {
    yaml: String,
    fields: Vec<Field>,
}

/// The rule, if it may be changed here.
async fn changeable(context: &PageContext<'_>, id: &str) -> Result<ViewedRule, Problem> {
    context.actor().reach(Permission::Change)?;
    let seen = ViewedRule::find(context, id).await?;
    if seen.is_file {
        return Err(Problem::read_only(id));
    }
    if seen.is_gone {
        return Err(Problem::not_found("rule: it was deleted"));
    }
    Ok(seen)
}

async fn existing(
    context: &PageContext<'_>,
    id: Option<&str>,
) -> Result<Option<ViewedRule>, Problem> {
    context.actor().reach(Permission::Change)?;
    match id {
        Some(id) => changeable(context, id).await.map(Some),
        None => Ok(None),
    }
}

/// Asks for what was sent to be done, or tried.
async fn sent(
    context: &PageContext<'_>,
    of: Option<(&str, &ViewedRule)>,
    is_dry_run: bool,
) -> Result<ChangeResult, Problem> {
    let rule = if context.sent.text("as") == "yaml" {
        read(context.sent.text("yaml"))?
    } else {
        rule_of(of.map(|(_, seen)| &seen.rule), &context.sent)?
    };
    let rule = RuleForm(Ok(rule));
    let (admin, actor) = (context.admin, context.actor());
    match of {
        None => rules::create(admin, actor, &rule, is_dry_run).await,
        Some((id, _)) => {
            let if_match = meant(context.sent.number("version")?);
            rules::replace(admin, actor, id, &if_match, &rule, is_dry_run).await
        }
    }
}

/// The version that somebody has looked at.
fn meant(version: u64) -> IfMatch {
    IfMatch::OneOf(vec![etag(version)])
}

/// What people can mend is told on the form; the rest on a page of its own.
fn refused(
    context: &PageContext<'_>,
    of: Option<(&str, &ViewedRule)>,
    problem: Problem,
) -> PageResult {
    let is_theirs = matches!(problem.status.as_u16(), 400 | 403 | 409 | 422);
    if is_theirs { again(context, of, Some(&problem)) } else { Err(problem) }
}

fn again(
    context: &PageContext<'_>,
    of: Option<(&str, &ViewedRule)>,
    problem: Option<&Problem>,
) -> PageResult {
    let filled = RuleEditForm {
        yaml: context.sent.text("yaml").to_owned(),
        fields: rule_fields::of_sent(&context.sent, problem),
    };
    form(context, of, context.sent.text("as") == "yaml", filled, problem)
}

#[expect(clippy::unnecessary_wraps, reason = "every page ends with one of these")]
fn form(
    context: &PageContext<'_>,
    of: Option<(&str, &ViewedRule)>,
    is_yaml: bool,
    filled: RuleEditForm,
    problem: Option<&Problem>,
) -> PageResult {
    let href = of.map(|(id, _)| rule_href(id));
    let place = href.clone().unwrap_or_else(|| "/rules".to_owned());
    let edit = if of.is_some() { format!("{place}/edit") } else { "/rules/new".to_owned() };
    let version = of.and_then(|(_, seen)| seen.version);
    let sent = context.sent.filled("version").map(str::to_owned);
    let name = of.map_or("", |(_, seen)| seen.name());
    let page = RuleEditPage {
        layout: context.frame_with(NavItem::Rules, problem),
        title: match of {
            Some(_) => format!("Edit {}", escape_invisible(name)),
            None => "New rule".to_owned(),
        },
        name: UntrustedText::new(name),
        yaml_href: format!("{edit}?as=yaml"),
        form_href: edit,
        action: format!("{place}/review"),
        // The one that was read, so that nobody's change is lost unseen.
        version: sent.or(version.map(|it| it.to_string())).unwrap_or_default(),
        is_yaml,
        yaml: filled.yaml,
        fields: filled.fields,
        has_more: of.is_some_and(|(_, seen)| has_more(&seen.rule)),
        href,
    };
    Ok(response::page(problem.map_or(StatusCode::OK, |it| it.status), &page))
}

/// Returns what a change would do.
fn tried(outcome: ChangeResult) -> Result<Box<DryRun>, Problem> {
    match outcome {
        ChangeResult::DryRun(dry_run) => Ok(dry_run),
        ChangeResult::Done(_) => Err(untried()),
    }
}

fn untried() -> Problem {
    Problem::unavailable("the change was made without a review")
}

impl RuleReviewPage {
    fn of(
        context: &PageContext<'_>,
        href: Option<String>,
        action: String,
        before: Option<&Rule>,
        dry_run: &DryRun,
    ) -> Self {
        let denied = |it: &NewDenial| NewDenialRow {
            subject: UntrustedText::new(&*it.subject),
            limit: UntrustedText::new(&*it.limit_text),
            until: it.reset_at.text().as_str()[..19].replace('T', " "),
        };
        let fresh = dry_run.diff.changed.iter().flat_map(|it| &it.starts_fresh);
        Self {
            layout: context.layout(NavItem::Rules),
            title: String::new(),
            name: UntrustedText::new(""),
            href,
            action,
            edit_action: None,
            button: "Save",
            is_dangerous: false,
            carried: Vec::new(),
            fields: changes(before, dry_run.rule.as_ref().map(|it| &it.rule)),
            unchanged: dry_run.diff.unchanged,
            starts_fresh: fresh.map(|it| UntrustedText::new(&**it)).collect(),
            newly_denied: dry_run.newly_denied.iter().map(denied).collect(),
            examined: dry_run.examined_keys,
        }
    }
}
