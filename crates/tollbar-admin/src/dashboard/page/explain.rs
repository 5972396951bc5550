//! Why: of a denial that is remembered, or of a request that is described. Nothing is charged.

use askama::Template;
use hyper::StatusCode;
use tollbar::{Outcome, Source};
use tollbar_rules::{
    Enforcement, Explanation, LimitExplanation, Request, RuleAccuracy, RuleExplanation, RuleFate,
    Verdict, readable_wait,
};

use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::panel::overview::{DeniedRequest, render};
use crate::dashboard::response;
use crate::dashboard::view::formatting::{Count, DateTime};
use crate::dashboard::view::layout::{Layout, NavItem};
use crate::dashboard::view::untrusted_text::UntrustedText;
use crate::operations::auth::access::Permission;
use tollbar_daemon::decision_log::DecisionId;
use tollbar_daemon::decision_log::Denial;
use tollbar_daemon::problem::Problem;
use tollbar_daemon::protocol::http::describe_denial;

/// Rules that are listed although they do not apply.
const IDLE_MAX: usize = 50;

#[derive(Debug, Template)]
#[template(path = "explain.html")]
struct ExplainPage {
    layout: Layout,
    about: String,
    is_described: bool,
    method: String,
    path: String,
    cost: String,
    attributes: String,
    explanation: Option<String>,
}

/// An explanation, on a page or by itself.
#[derive(Debug, Default, Template)]
#[template(path = "part/explained.html")]
struct ExplanationPanel {
    is_allowed: bool,
    heading: &'static str,
    summary: String,
    facts: Vec<Fact>,
    limits: Vec<LimitDecisionRow>,
    fates: Vec<RuleFateRow>,
    /// Where the same request is explained again.
    again: Option<String>,
}

#[derive(Debug)]
struct Fact {
    name: &'static str,
    value: UntrustedText,
}

#[derive(Debug)]
struct LimitDecisionRow {
    rule: UntrustedText,
    text: UntrustedText,
    badge: Option<&'static str>,
    /// Which alternative it belongs to, what of it is reserved, how exactly it is counted unless it is exact, or where the
    /// decision came from.
    note: Option<UntrustedText>,
    passes: bool,
    binds: bool,
    cost: Count,
    remaining: String,
    reset: String,
}

#[derive(Debug)]
struct RuleFateRow {
    rule: UntrustedText,
    word: &'static str,
    why: UntrustedText,
    is_used: bool,
}

/// A request as the form or a line of text describes it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct RequestDescription {
    method: String,
    path: String,
    attributes: Vec<(String, String)>,
    cost: u64,
}

pub(crate) async fn show(context: &PageContext<'_>) -> PageResult {
    context.actor().reach(Permission::SeeAll)?;
    let query = &context.query;
    let about = query.text("about").trim();
    let is_described = about.is_empty() && query.non_empty("path").is_some();
    let explanation = if about.is_empty() && !is_described {
        Ok(None)
    } else {
        explain(context, about).await.map(Some)
    };
    if !query.text("part").is_empty() {
        return PageContext::page(&explanation?.unwrap_or_default());
    }
    let layout = context.layout(NavItem::Explain);
    let (layout, explanation, status) = match explanation {
        Ok(explanation) => (layout, explanation, StatusCode::OK),
        Err(problem) => (layout.with_problem(&problem), None, problem.status),
    };
    let text = |name: &str| query.text(name).to_owned();
    let page = ExplainPage {
        layout,
        about: about.to_owned(),
        is_described,
        method: text("method"),
        path: text("path"),
        cost: text("cost"),
        attributes: text("attributes"),
        explanation: explanation.as_ref().map(render),
    };
    Ok(response::render_page(status, &page))
}

async fn explain(context: &PageContext<'_>, about: &str) -> Result<ExplanationPanel, Problem> {
    if let Some(id) = DecisionId::parse(about) {
        let denial = context.admin.daemon.decision_log.find(id).ok_or_else(|| {
            let detail = "no denial of this id is remembered here: each node keeps its latest ones";
            Problem::invalid_field("", detail)
        })?;
        return Ok(ExplanationPanel::from_denial(&denial));
    }
    let description = if about.is_empty() {
        RequestDescription::of_form(context)?
    } else {
        RequestDescription::read(about)?
    };
    let pairs: Vec<(&str, &str)> =
        description.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
    let request = Request::new(&description.method, &description.path)?
        .with_attributes(&pairs)?
        .with_cost(description.cost);
    let explanation = context.admin.daemon.engine.explain(&request).await;
    Ok(ExplanationPanel::from_explanation(&explanation))
}

impl RequestDescription {
    /// `GET /v1/orders user=42 tenant=acme cost=5`. A value with spaces is for the form.
    fn read(text: &str) -> Result<Self, Problem> {
        let mut description =
            Self { method: "GET".to_owned(), path: "/".to_owned(), cost: 1, ..Self::default() };
        for (at, word) in text.split_whitespace().enumerate() {
            let is_method = at == 0 && !word.contains(['/', '=']);
            match word.split_once('=') {
                _ if word.starts_with('/') => word.clone_into(&mut description.path),
                _ if is_method => word.clone_into(&mut description.method),
                Some((name, value)) => description.set_field(name, value)?,
                None => {
                    let detail = "write a decision id of 32 digits, or a request such as \
                                  GET /v1/orders user=42";
                    return Err(Problem::invalid_field("", detail));
                }
            }
        }
        Ok(description)
    }

    fn of_form(context: &PageContext<'_>) -> Result<Self, Problem> {
        let query = &context.query;
        let mut description = Self {
            method: query.non_empty("method").unwrap_or("GET").to_owned(),
            path: query.non_empty("path").unwrap_or("/").to_owned(),
            cost: 1,
            attributes: Vec::new(),
        };
        if query.non_empty("cost").is_some() {
            description.cost = query.number("cost")?;
        }
        let lines = query.text("attributes").lines().filter(|line| !line.trim().is_empty());
        for line in lines {
            let (name, value) = line.split_once('=').ok_or_else(|| {
                Problem::invalid_field("attributes", "write one a line, such as user=42")
            })?;
            description.attributes.push((name.trim().to_owned(), value.to_owned()));
        }
        Ok(description)
    }

    fn set_field(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        if name == "cost" {
            self.cost = value.parse().map_err(|_| {
                Problem::invalid_field("cost", "this is no whole number: write one such as 5")
            })?;
        } else {
            self.attributes.push((name.to_owned(), value.to_owned()));
        }
        Ok(())
    }
}

impl ExplanationPanel {
    fn from_denial(denial: &Denial) -> Self {
        let request = DeniedRequest::from_denial(denial);
        let verdict = &denial.verdict;
        let mut facts = vec![
            Fact::new("When (UTC)", DateTime(denial.at).to_string()),
            Fact::new("Request", request.description()),
        ];
        facts.extend(request.subject.as_ref().map(|subject| Fact::new("Subject", subject.clone())));
        let attributes: Vec<String> =
            request.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !attributes.is_empty() {
            facts.push(Fact::new("Attributes", attributes.join(" ")));
        }
        if request.cost > 1 {
            facts.push(Fact::new("Cost", Count(request.cost).to_string()));
        }
        if let Some(wait) = verdict.retry_after() {
            facts.push(Fact::new("Retry after", readable_wait(wait, denial.at)));
        }
        facts.push(Fact::new("Decision", denial.id.to_string()));
        Self {
            is_allowed: false,
            heading: match verdict.outcome() {
                Outcome::Never => "Denied for good.",
                _ => "Denied.",
            },
            summary: sentence(&describe_denial(verdict, denial.at)),
            facts,
            limits: limits(verdict),
            fates: Vec::new(),
            again: again(&request),
        }
    }

    fn from_explanation(explanation: &Explanation) -> Self {
        let mut facts = vec![Fact::new(
            "As rules see it",
            format!("{} {}", explanation.method, explanation.path),
        )];
        let Explanation { criticality, criticality_why, .. } = explanation;
        facts.push(Fact::new("Criticality", format!("{}, {criticality_why}", criticality.name())));
        facts.extend(
            explanation.store_error.as_ref().map(|error| Fact::new("Store", error.clone())),
        );
        let limits = explanation.rules.iter().flat_map(|rule| {
            rule.limits.iter().map(|limit| LimitDecisionRow {
                rule: UntrustedText::new(&*rule.name),
                text: UntrustedText::new(&*limit.text),
                badge: badge(limit.enforcement),
                note: notes(limit).map(UntrustedText::new),
                passes: limit.would_pass,
                binds: limit.binds,
                cost: Count(rule.cost),
                remaining: or_dash(limit.remaining.map(Count)),
                reset: or_dash(limit.reset_at.map(DateTime)),
            })
        });
        let is_idle = |rule: &&RuleExplanation| rule.fate == RuleFate::NotMatched;
        let used = explanation.rules.iter().filter(|rule| !is_idle(rule));
        let idle = explanation.rules.iter().filter(is_idle).take(IDLE_MAX);
        Self {
            is_allowed: explanation.is_allowed,
            heading: if explanation.is_allowed { "It would pass." } else { "It would be denied." },
            summary: sentence(&explanation.summary),
            facts,
            limits: limits.collect(),
            fates: used.chain(idle).map(RuleFateRow::from_explanation).collect(),
            again: None,
        }
    }
}

impl Fact {
    fn new(name: &'static str, value: String) -> Self {
        Self { name, value: UntrustedText::new(value) }
    }
}

impl RuleFateRow {
    fn from_explanation(rule: &RuleExplanation) -> Self {
        let word = match rule.fate {
            RuleFate::NotMatched => "does not match",
            RuleFate::Applied => "applies",
            RuleFate::Disabled => "disabled",
            RuleFate::Exempt => "exempt",
            RuleFate::Unlimited => "unlimited",
            RuleFate::Skipped => "skipped",
            RuleFate::Denied | RuleFate::Banned => "denies",
            RuleFate::Overruled => "overruled",
            RuleFate::FallbackNotNeeded => "not needed",
            _ => "other",
        };
        Self {
            rule: UntrustedText::new(&*rule.name),
            word,
            why: UntrustedText::new(&*rule.why),
            is_used: rule.fate != RuleFate::NotMatched,
        }
    }
}

/// Says which alternative a limit is, what of it is reserved for more critical requests, and how exactly it is counted
/// unless its rule asks for nothing but exact counting.
fn notes(limit: &LimitExplanation) -> Option<String> {
    let alternative = alternative_note(limit.alternative, limit.would_pay, "would pay");
    let reserved = (limit.reserved > 0)
        .then(|| format!("{} reserved for more critical requests", limit.reserved));
    let accuracy = (limit.accuracy.written != RuleAccuracy::Exact).then(|| {
        let held = limit.held_tokens.map(|tokens| format!("; {tokens} tokens held here"));
        format!("{}{}", limit.accuracy, held.unwrap_or_default())
    });
    let notes: Vec<String> = [alternative, reserved, accuracy].into_iter().flatten().collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// Says which alternative of its rule a limit belongs to, and whether that is the one that pays.
fn alternative_note(alternative: Option<u32>, pays: bool, verb: &str) -> Option<String> {
    let alternative = alternative?;
    let pays = if pays { format!(", {verb}") } else { String::new() };
    Some(format!("alternative {alternative}{pays}"))
}

/// Says where a decision came from, if it did not come from the store.
fn source_note(source: Option<Source>) -> Option<UntrustedText> {
    let note = match source? {
        Source::Loan => "paid from a loan",
        Source::Local => "counted by this node",
        _ => return None,
    };
    Some(UntrustedText::new(note))
}

/// Returns a dash for what is not known.
fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

/// What each limit said then.
fn limits(verdict: &Verdict) -> Vec<LimitDecisionRow> {
    let binding = verdict.binding().map(|rule_decision| {
        (rule_decision.rule().name.clone(), rule_decision.place(), rule_decision.enforcement())
    });
    let limit = |rule_decision: tollbar_rules::RuleDecision<'_>| {
        let decision = rule_decision.decision();
        LimitDecisionRow {
            binds: binding
                == Some((
                    rule_decision.rule().name.clone(),
                    rule_decision.place(),
                    rule_decision.enforcement(),
                )),
            rule: UntrustedText::new(&*rule_decision.rule().name),
            text: UntrustedText::new(rule_decision.limit().text()),
            badge: if rule_decision.degraded().is_some() {
                Some("degraded")
            } else {
                badge(rule_decision.enforcement())
            },
            note: source_note(rule_decision.source()).or_else(|| {
                let (alternative, pays) = (rule_decision.alternative(), rule_decision.is_paid());
                alternative_note(alternative, pays, "paid").map(UntrustedText::new)
            }),
            passes: decision.is_allowed(),
            cost: Count(rule_decision.cost()),
            remaining: or_dash(rule_decision.remaining().map(Count)),
            reset: or_dash(rule_decision.reset_at().map(DateTime)),
        }
    };
    verdict.decisions().map(limit).collect()
}

fn badge(capacity: Enforcement) -> Option<&'static str> {
    match capacity {
        Enforcement::Live => None,
        Enforcement::Shadow => Some("shadow"),
        Enforcement::Candidate => Some("candidate"),
    }
}

/// Where the same request is explained as of now.
fn again(request: &DeniedRequest) -> Option<String> {
    let (Some(method), Some(path), None) = (&request.method, &request.path, &request.rule) else {
        return None;
    };
    let attributes: Vec<String> =
        request.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut pairs = form_urlencoded::Serializer::new(String::new());
    pairs.append_pair("method", method).append_pair("path", path);
    pairs.append_pair("cost", &request.cost.to_string());
    pairs.append_pair("attributes", &attributes.join("\n"));
    Some(format!("/explain?{}", pairs.finish()))
}

/// Without what the heading says, and with a full stop.
fn sentence(text: &str) -> String {
    let text = ["allowed: ", "denied: "]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .unwrap_or(text);
    let text = crate::dashboard::view::untrusted_text::escape_invisible(text);
    if text.is_empty() || text.ends_with('.') { text } else { format!("{text}.") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_from_words() {
        let read = RequestDescription::read("POST /v1/orders user=42 note=a=b cost=5").unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!((&*read.method, &*read.path, read.cost), ("POST", "/v1/orders", 5));
        assert_eq!(read.attributes, [pair("user", "42"), pair("note", "a=b")]);
        assert_eq!(RequestDescription::read("/x").unwrap().method, "GET");
        assert_eq!(RequestDescription::read("user=42").unwrap().path, "/");
        for text in ["GET /x 42", "GET /x cost=much"] {
            assert!(RequestDescription::read(text).is_err(), "{text}");
        }
    }
}
