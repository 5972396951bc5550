//! A rule is changed in two steps: a form, or YAML, and then a page that says what would be different and
//! who would be denied. Only the second changes anything.

use askama::Template;
use hyper::StatusCode;
use tollbar_rules::admin::to_yaml;
use tollbar_rules::{Conditions, Rule, Test};

use super::super::rule_text::{Changed, changes, read};
use super::rule::Seen;
use super::rule_fields::{Field, has_more, rule_of};
use crate::dashboard::page::rule_fields::{self};
use crate::dashboard::page_context::{Came, Visit};
use crate::dashboard::panel::overview::rule_href;
use crate::dashboard::response;
use crate::dashboard::view::layout::{Frame, Place};
use crate::dashboard::view::untrusted_text::{Shown, spelled};
use crate::operations::auth::access::{Need, Reach};
use crate::operations::precondition::{IfMatch, etag};
use crate::operations::proposal::{DryRun, NewlyDenied};
use crate::operations::rule_json::RuleSent;
use crate::operations::rules::{self, Outcome, Rollback};
use tollbar_daemon::problem::Problem;

#[derive(Debug, Template)]
#[template(path = "rule_edit.html")]
struct Edit {
    frame: Frame,
    title: String,
    name: Shown,
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
struct Review {
    frame: Frame,
    title: String,
    name: Shown,
    href: Option<String>,
    action: String,
    edit_action: Option<String>,
    button: &'static str,
    is_dangerous: bool,
    carried: Vec<(String, String)>,
    fields: Vec<Changed>,
    unchanged: usize,
    starts_fresh: Vec<Shown>,
    newly_denied: Vec<Denied>,
    examined: usize,
}

#[derive(Debug)]
struct Denied {
    subject: Shown,
    limit: Shown,
    until: String,
}

/// The empty form.
pub(crate) fn new(visit: &Visit<'_>) -> Came {
    visit.actor().reach(Need::Change)?;
    // A tenant's rules are its own, and named after it.
    let mut start = Rule::new("");
    if let Reach::Tenant(tenant) = visit.actor().reach(Need::Change)? {
        start = Rule::new(&format!("{tenant}/"));
        start.conditions = Conditions::new().and("tenant", Test::equal(tenant));
    }
    let is_yaml = visit.query.text("as") == "yaml";
    let yaml = "name: \nmatch: { path: \"/v1/**\" }\nlimit: 100/min\n".to_owned();
    let fields = rule_fields::of_rule(&start);
    form(visit, None, is_yaml, Filled { yaml, fields }, None)
}

/// The form, filled with what the rule says.
pub(crate) async fn edit(visit: &Visit<'_>, id: &str) -> Came {
    let seen = changeable(visit, id).await?;
    let yaml = to_yaml(&seen.rule);
    let fields = rule_fields::of_rule(&seen.rule);
    form(visit, Some((id, &seen)), visit.query.text("as") == "yaml", Filled { yaml, fields }, None)
}

/// The form again, filled with what was sent.
pub(crate) async fn edit_again(visit: &Visit<'_>, id: Option<&str>) -> Came {
    let seen = existing(visit, id).await?;
    again(visit, id.zip(seen.as_ref()), None)
}

/// What would become of a rule, or of a new one, by what was sent.
pub(crate) async fn review(visit: &Visit<'_>, id: Option<&str>) -> Came {
    let seen = existing(visit, id).await?;
    let of = id.zip(seen.as_ref());
    match sent(visit, of, true).await {
        Ok(Outcome::DryRun(dry_run)) => {
            let href = id.map(rule_href);
            let place = href.clone().unwrap_or_else(|| "/rules".to_owned());
            let name = dry_run.rule.as_ref().map_or("", |it| &it.rule.name).to_owned();
            let before = seen.as_ref().map(|it| &it.rule);
            let verb = if id.is_some() { "Change" } else { "Create" };
            let page = Review {
                title: format!("{verb} {}?", spelled(&name)),
                name: Shown::new(name),
                edit_action: Some(format!("{place}/edit")),
                button: if id.is_some() { "Save" } else { "Create" },
                carried: visit.sent.carried(),
                ..Review::of(visit, href, place, before, &dry_run)
            };
            Visit::page(&page)
        }
        Ok(Outcome::Done(_)) => Err(untried()),
        Err(problem) => refused(visit, of, problem),
    }
}

/// Makes the change.
pub(crate) async fn save(visit: &Visit<'_>, id: Option<&str>) -> Came {
    let seen = existing(visit, id).await?;
    let of = id.zip(seen.as_ref());
    match sent(visit, of, false).await {
        Ok(Outcome::Done(row)) => {
            let notice = if id.is_some() { "Saved." } else { "Created." };
            visit.done(notice, &rule_href(&row.id.to_string()))
        }
        Ok(Outcome::DryRun(_)) => Err(Problem::unavailable("the change was only tried")),
        Err(problem) => refused(visit, of, problem),
    }
}

/// What would be gone.
pub(crate) async fn review_delete(visit: &Visit<'_>, id: &str) -> Came {
    let seen = changeable(visit, id).await?;
    let version = seen.version.unwrap_or_default();
    let if_match = meant(version);
    let tried = rules::delete(visit.admin, visit.actor(), id, &if_match, true).await?;
    let dry_run = tried.ok_or_else(untried)?;
    let href = rule_href(id);
    let action = format!("{href}/delete");
    Visit::page(&Review {
        title: format!("Delete {}?", spelled(seen.name())),
        name: Shown::new(seen.name()),
        button: "Delete",
        is_dangerous: true,
        carried: vec![("version".to_owned(), version.to_string())],
        ..Review::of(visit, Some(href), action, Some(&seen.rule), &dry_run)
    })
}

pub(crate) async fn delete(visit: &Visit<'_>, id: &str) -> Came {
    let if_match = meant(visit.sent.number("version")?);
    rules::delete(visit.admin, visit.actor(), id, &if_match, false).await?;
    visit.done("Deleted. Its history stays.", "/rules")
}

/// What would be put back.
pub(crate) async fn review_rollback(visit: &Visit<'_>, id: &str) -> Came {
    let seen = Seen::find(visit, id).await?;
    let (version, to) = (seen.version.unwrap_or_default(), visit.query.number("version")?);
    let rollback = Rollback { version: to };
    let if_match = meant(version);
    let outcome =
        rules::roll_back(visit.admin, visit.actor(), id, &if_match, &rollback, true).await?;
    let dry_run = tried(outcome)?;
    let before = Some(&seen.rule).filter(|_| !seen.is_gone);
    let href = rule_href(id);
    let action = format!("{href}/rollback");
    Visit::page(&Review {
        title: format!("Roll {} back to version {to}?", spelled(seen.name())),
        name: Shown::new(seen.name()),
        button: "Roll back",
        carried: vec![
            ("version".to_owned(), version.to_string()),
            ("to".to_owned(), to.to_string()),
        ],
        ..Review::of(visit, Some(href), action, before, &dry_run)
    })
}

pub(crate) async fn roll_back(visit: &Visit<'_>, id: &str) -> Came {
    let if_match = meant(visit.sent.number("version")?);
    let rollback = Rollback { version: visit.sent.number("to")? };
    rules::roll_back(visit.admin, visit.actor(), id, &if_match, &rollback, false).await?;
    visit.done("Rolled back.", &rule_href(id))
}

/// What stands in the form.
struct Filled {
    yaml: String,
    fields: Vec<Field>,
}

/// The rule, if it may be changed here.
async fn changeable(visit: &Visit<'_>, id: &str) -> Result<Seen, Problem> {
    visit.actor().reach(Need::Change)?;
    let seen = Seen::find(visit, id).await?;
    if seen.is_file {
        return Err(Problem::read_only(id));
    }
    if seen.is_gone {
        return Err(Problem::not_found("rule: it was deleted"));
    }
    Ok(seen)
}

async fn existing(visit: &Visit<'_>, id: Option<&str>) -> Result<Option<Seen>, Problem> {
    visit.actor().reach(Need::Change)?;
    match id {
        Some(id) => changeable(visit, id).await.map(Some),
        None => Ok(None),
    }
}

/// Asks for what was sent to be done, or tried.
async fn sent(
    visit: &Visit<'_>,
    of: Option<(&str, &Seen)>,
    is_dry_run: bool,
) -> Result<Outcome, Problem> {
    let rule = if visit.sent.text("as") == "yaml" {
        read(visit.sent.text("yaml"))?
    } else {
        rule_of(of.map(|(_, seen)| &seen.rule), &visit.sent)?
    };
    let rule = RuleSent(Ok(rule));
    let (admin, actor) = (visit.admin, visit.actor());
    match of {
        None => rules::create(admin, actor, &rule, is_dry_run).await,
        Some((id, _)) => {
            let if_match = meant(visit.sent.number("version")?);
            rules::replace(admin, actor, id, &if_match, &rule, is_dry_run).await
        }
    }
}

/// The version that somebody has looked at.
fn meant(version: u64) -> IfMatch {
    IfMatch::OneOf(vec![etag(version)])
}

/// What people can mend is told on the form; the rest on a page of its own.
fn refused(visit: &Visit<'_>, of: Option<(&str, &Seen)>, problem: Problem) -> Came {
    let is_theirs = matches!(problem.status.as_u16(), 400 | 403 | 409 | 422);
    if is_theirs { again(visit, of, Some(&problem)) } else { Err(problem) }
}

fn again(visit: &Visit<'_>, of: Option<(&str, &Seen)>, problem: Option<&Problem>) -> Came {
    let filled = Filled {
        yaml: visit.sent.text("yaml").to_owned(),
        fields: rule_fields::of_sent(&visit.sent, problem),
    };
    form(visit, of, visit.sent.text("as") == "yaml", filled, problem)
}

#[expect(clippy::unnecessary_wraps, reason = "every page ends with one of these")]
fn form(
    visit: &Visit<'_>,
    of: Option<(&str, &Seen)>,
    is_yaml: bool,
    filled: Filled,
    problem: Option<&Problem>,
) -> Came {
    let href = of.map(|(id, _)| rule_href(id));
    let place = href.clone().unwrap_or_else(|| "/rules".to_owned());
    let edit = if of.is_some() { format!("{place}/edit") } else { "/rules/new".to_owned() };
    let version = of.and_then(|(_, seen)| seen.version);
    let sent = visit.sent.filled("version").map(str::to_owned);
    let name = of.map_or("", |(_, seen)| seen.name());
    let page = Edit {
        frame: visit.frame_with(Place::Rules, problem),
        title: match of {
            Some(_) => format!("Edit {}", spelled(name)),
            None => "New rule".to_owned(),
        },
        name: Shown::new(name),
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
fn tried(outcome: Outcome) -> Result<Box<DryRun>, Problem> {
    match outcome {
        Outcome::DryRun(dry_run) => Ok(dry_run),
        Outcome::Done(_) => Err(untried()),
    }
}

fn untried() -> Problem {
    Problem::unavailable("the change was made without a review")
}

impl Review {
    fn of(
        visit: &Visit<'_>,
        href: Option<String>,
        action: String,
        before: Option<&Rule>,
        dry_run: &DryRun,
    ) -> Self {
        let denied = |it: &NewlyDenied| Denied {
            subject: Shown::new(&*it.subject),
            limit: Shown::new(&*it.limit_text),
            until: it.reset_at.text().as_str()[..19].replace('T', " "),
        };
        let fresh = dry_run.diff.changed.iter().flat_map(|it| &it.starts_fresh);
        Self {
            frame: visit.frame(Place::Rules),
            title: String::new(),
            name: Shown::new(""),
            href,
            action,
            edit_action: None,
            button: "Save",
            is_dangerous: false,
            carried: Vec::new(),
            fields: changes(before, dry_run.rule.as_ref().map(|it| &it.rule)),
            unchanged: dry_run.diff.unchanged,
            starts_fresh: fresh.map(|it| Shown::new(&**it)).collect(),
            newly_denied: dry_run.newly_denied.iter().map(denied).collect(),
            examined: dry_run.examined_keys,
        }
    }
}
