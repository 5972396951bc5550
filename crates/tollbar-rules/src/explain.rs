//! Why a request is limited, or not: every rule, and what became of it. Charges nothing.

mod display;

use std::cmp::Ordering;
use std::ops::Range;

use arrayvec::ArrayVec;
use tollbar::{Accuracy, Batch, Decision, Entry, StoreError, Timestamp};

use crate::engine::in_process::{Engine, now};
use crate::engine::new_keys::Visit;
use crate::engine::selection::{MatchFate, Observer, SelectedLimit, Selection};
use crate::matcher::ItemId;
use crate::request::CriticalityClaim;
use crate::rule::subject::{network_of_key, readable};
use crate::rule_set::POLICIES_PER_REQUEST_MAX;
use crate::snapshot::Snapshot;
use crate::verdict::{Enforcement, StoredReason};
use crate::{AsyncEngine, Criticality, Effect, Limit, LimitAccuracy, Request, Rule};

/// Why a request is normal of which nobody says how critical it is.
const NOT_SAID: &str = "by default";

/// What every rule says to a request, and why. Prints as a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The method, as rules see it.
    pub method: String,
    /// The path, as rules see it.
    pub path: String,
    /// Whether the request would pass now.
    pub is_allowed: bool,
    /// Why, in a sentence.
    pub summary: String,
    /// How critical the request is.
    pub criticality: Criticality,
    /// What makes it so: ``by rule `checkout` ``.
    pub criticality_why: String,
    /// Every rule, in the order in which they are looked at.
    pub rules: Vec<RuleExplanation>,
    /// Why the counters could not be read.
    pub store_error: Option<String>,
}

/// What became of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleExplanation {
    /// Its name.
    pub name: String,
    /// What became of it, for programs.
    pub fate: RuleFate,
    /// Why, in a sentence.
    pub why: String,
    /// The tier whose limits hold, where they are one's.
    pub tier: Option<String>,
    /// What the request costs under it.
    pub cost: u64,
    /// Whom it counts, where it counts.
    pub subject: Option<String>,
    /// Its limits that would be checked.
    pub limits: Vec<LimitExplanation>,
}

/// What may become of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuleFate {
    /// Its conditions do not hold.
    NotMatched,
    /// Its limits hold.
    Applied,
    /// It is not enabled.
    Disabled,
    /// The request is exempt from it.
    Exempt,
    /// It lets the request pass without a limit.
    Unlimited,
    /// The request lacks an attribute, so it is skipped.
    Skipped,
    /// The request lacks an attribute, so it denies.
    Denied,
    /// Its subject is banned, so it denies.
    Banned,
    /// Another rule keeps it from applying: by `stop`, `replaces` or `unlimited`.
    Overruled,
    /// It is a fallback, and another rule matches.
    FallbackNotNeeded,
}

/// The state of one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitExplanation {
    /// The limit as it was written.
    pub text: String,
    /// The algorithm.
    pub algorithm: &'static str,
    /// Whether it would be enforced, or only watched as a shadow or a candidate.
    pub enforcement: Enforcement,
    /// Tokens a window.
    pub limit: u64,
    /// The largest cost that would pass now; `None` where the store cannot say.
    pub remaining: Option<u64>,
    /// The window's end; for a bucket, when it is full again.
    pub reset_at: Option<Timestamp>,
    /// Whether the request would pass it now.
    pub would_pass: bool,
    /// Which alternative of its rule it belongs to, counted from 1; `None` for a limit that holds by itself.
    pub alternative: Option<u32>,
    /// Of alternatives, whether the request would pay this one now.
    pub would_pay: bool,
    /// Whom it counts, if those are others than its rule counts.
    pub subject: Option<String>,
    /// Whether it is the one that binds.
    pub binds: bool,
    /// How exactly it is counted.
    pub accuracy: LimitAccuracy,
    /// The tokens that this process has borrowed and not spent; `None` if it counts the key exactly.
    pub held_tokens: Option<u64>,
    /// How many tokens of it are reserved for more critical requests.
    pub reserved: u64,
}

/// Writes down what becomes of each rule. Of a path with two readings, that in which a rule limits more.
struct FateLog {
    fates: Vec<Option<MatchFate>>,
    /// Of the first reading, while the second is looked at.
    first: Vec<Option<MatchFate>>,
}

impl Observer for FateLog {
    fn observe(&mut self, rule: ItemId, fate: MatchFate) {
        self.fates[rule as usize] = Some(fate);
    }

    fn begin_other_reading(&mut self) {
        let none = vec![None; self.fates.len()];
        self.first = std::mem::replace(&mut self.fates, none);
    }
}

impl FateLog {
    fn new(rule_count: usize) -> Self {
        Self { fates: vec![None; rule_count], first: Vec::new() }
    }

    fn get(&self, at: usize) -> Option<MatchFate> {
        let limits = |fate: &MatchFate| {
            matches!(
                fate,
                MatchFate::Applied(_)
                    | MatchFate::Denied(_)
                    | MatchFate::InvalidCost
                    | MatchFate::Banned(_)
            )
        };
        let first = self.first.get(at).copied().flatten();
        first.filter(limits).or(self.fates[at]).or(first)
    }
}

impl AsyncEngine {
    /// Why the request would be limited now, or not. Charges nothing.
    pub async fn explain(&self, request: &Request<'_>) -> Explanation {
        let snapshot = self.snapshot();
        let request = &*snapshot.fold(request);
        let mut fates = FateLog::new(snapshot.rules.len());
        let mut selection = Selection::default();
        self.select(&snapshot, request, false, &mut fates, &mut selection);
        self.share_new_keys(&snapshot, request, &mut selection, Visit::Peek);
        selection.lower_policies(request, &snapshot);
        let limits = match selection.denial {
            // More than a store takes: their counters are not read.
            Some(StoredReason::TooManyLimits { .. }) => &[],
            _ => selection.limits.as_slice(),
        };
        let mut entries: ArrayVec<Entry<'_>, POLICIES_PER_REQUEST_MAX> = limits
            .iter()
            .map(|selected| selected.entry(&snapshot, &selection).with_cost(0))
            .collect();
        let answer = self.store().decide(Batch::all_or_none(&mut entries)).await;
        let decisions: Vec<Option<Decision>> = match &answer {
            Ok(()) => entries.iter().map(Entry::decision).collect(),
            Err(_) => vec![None; limits.len()],
        };
        let held = |entry: &Entry<'_>| {
            Some(self.store().loan_holding(entry.key(), entry.policy())?.tokens)
        };
        let held_tokens: Vec<Option<u64>> = entries.iter().map(held).collect();
        drop(entries);
        let explainer = Explainer {
            snapshot: &snapshot,
            request,
            selection: &selection,
            limits,
            decisions: &decisions,
            held_tokens: &held_tokens,
            now: self.now(),
        };
        explainer.explanation(&fates, answer.err().as_ref())
    }
}

impl Engine {
    /// Why the request would be limited now, or not. Charges nothing.
    #[must_use]
    pub fn explain(&self, request: &Request<'_>) -> Explanation {
        now(AsyncEngine::explain(self, request))
    }
}

/// The ranges that parts of a list take, one after the other.
fn ranges<'l, T: 'l>(
    start: usize,
    parts: impl Iterator<Item = &'l [T]>,
) -> impl Iterator<Item = Range<usize>> {
    parts.scan(start, |end, part| {
        let start = *end;
        *end += part.len();
        Some(start..*end)
    })
}

struct Explainer<'a> {
    snapshot: &'a Snapshot,
    request: &'a Request<'a>,
    selection: &'a Selection,
    limits: &'a [SelectedLimit],
    decisions: &'a [Option<Decision>],
    held_tokens: &'a [Option<u64>],
    now: Timestamp,
}

impl Explainer<'_> {
    fn explanation(&self, fates: &FateLog, failure: Option<&StoreError>) -> Explanation {
        let binding = self.binding();
        let rules = self.snapshot.rules.rules().iter().enumerate();
        let rules = rules.map(|(at, rule)| self.rule(at as ItemId, rule, fates.get(at), binding));
        let denies = |group: &Range<usize>| {
            self.limits[group.start].enforcement == Enforcement::Live
                && self.paying(group.clone()).is_none()
        };
        let is_allowed =
            self.selection.denial.is_none() && !self.groups().any(|group| denies(&group));
        Explanation {
            method: self.request.method().to_owned(),
            path: self.request.path().to_owned(),
            is_allowed,
            summary: self.summary(is_allowed, binding),
            criticality: self.selection.criticality,
            criticality_why: self.criticality_why(),
            rules: rules.collect(),
            store_error: failure.map(ToString::to_string),
        }
    }

    fn criticality_why(&self) -> String {
        let classifier = self.selection.classifier;
        let declared = classifier.map(|at| self.snapshot.rule(at));
        let by_rules =
            declared.map_or_else(|| NOT_SAID.to_owned(), |rule| format!("by rule `{}`", rule.name));
        match self.request.criticality_claim() {
            CriticalityClaim::Trusted(_) => "as the request says".to_owned(),
            CriticalityClaim::AtMost(most) => {
                let declared = declared.and_then(|rule| rule.criticality).unwrap_or_default();
                match most.cmp(&declared) {
                    Ordering::Less => {
                        format!("lowered by the caller; {} {by_rules}", declared.name())
                    }
                    Ordering::Equal => by_rules,
                    Ordering::Greater => {
                        format!(
                            "{by_rules}; the caller asked for {} and can only lower it",
                            most.name()
                        )
                    }
                }
            }
            CriticalityClaim::Nothing => by_rules,
        }
    }

    /// Which limit binds: of those that deny, the one that resets last; else the one of which the
    /// least would remain. Alternatives bind by the easiest of them.
    fn binding(&self) -> Option<usize> {
        let weight = |at: &usize| {
            let (selected, decision) = (&self.limits[*at], self.decisions[*at]?);
            let remaining = decision.remaining()?;
            let share = u128::from(remaining.saturating_sub(selected.cost)) * 1_000_000
                / u128::from(decision.limit().max(1));
            Some((selected.cost > remaining, std::cmp::Reverse(share), decision.reset_at()))
        };
        let hardest = |limits: Range<usize>| {
            limits.rev().filter(|at| self.decisions[*at].is_some()).max_by_key(weight)
        };
        let live =
            self.groups().filter(|group| self.limits[group.start].enforcement == Enforcement::Live);
        let speaker = |group| self.alternatives(group).filter_map(hardest).min_by_key(weight);
        // The first of equals: the highest priority.
        let speakers: Vec<usize> = live.filter_map(speaker).collect();
        speakers.into_iter().rev().max_by_key(weight)
    }

    /// The places of each limit that holds by itself, and of the alternatives of each rule.
    fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        ranges(0, self.limits.chunk_by(SelectedLimit::is_beside))
    }

    /// The places of each alternative of a group.
    fn alternatives(&self, group: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let start = group.start;
        ranges(start, self.limits[group].chunk_by(|a, b| a.alternative == b.alternative))
    }

    /// The places of the limits that a request would pay, of a group.
    fn paying(&self, group: Range<usize>) -> Option<Range<usize>> {
        self.alternatives(group).find(|limits| limits.clone().all(|at| self.would_pass(at)))
    }

    fn would_pass(&self, at: usize) -> bool {
        self.decisions[at].is_none_or(|decision| Some(self.limits[at].cost) <= decision.remaining())
    }

    fn rule(
        &self,
        at: ItemId,
        rule: &Rule,
        fate: Option<MatchFate>,
        binding: Option<usize>,
    ) -> RuleExplanation {
        let limits =
            || (0..self.limits.len()).filter(move |selected| self.limits[*selected].rule == at);
        // Limits with a `per` of their own count somebody else.
        let first = limits().min_by_key(|selected| self.limits[*selected].has_own_key);
        let subject = first.map(|selected| {
            let (start, end) = self.limits[selected].key;
            readable(&self.selection.keys[start..end])
        });
        let tier = match fate {
            Some(MatchFate::Applied(tier) | MatchFate::TierUnlimited(tier)) => {
                rule.tier_name(tier).map(str::to_owned)
            }
            _ => None,
        };
        let (fate, why) = match fate {
            None => match self.selection.denial {
                // A ban under every rule comes before all of them.
                Some(StoredReason::Banned { rule: None, ban, .. }) => {
                    let subject = self.banned_subject(ban);
                    (
                        RuleFate::NotMatched,
                        format!("it was not asked: `{subject}` is banned under every rule"),
                    )
                }
                _ => (RuleFate::NotMatched, self.why_not(rule)),
            },
            Some(fate) => self.why(rule, fate),
        };
        let boost = first.and_then(|selected| self.boost(&self.limits[selected]));
        let network = first.and_then(|selected| self.network(&self.limits[selected]));
        let notes = [Some(why), boost, network].into_iter().flatten();
        let why = notes.collect::<Vec<_>>().join("; ");
        RuleExplanation {
            name: rule.name.to_string(),
            fate,
            why,
            tier,
            cost: self.snapshot.cost(at, self.request),
            subject,
            limits: limits()
                .map(|selected| self.limit(selected, binding == Some(selected)))
                .collect(),
        }
    }

    fn limit(&self, at: usize, binds: bool) -> LimitExplanation {
        let selected = &self.limits[at];
        let limit = selected.limit(self.snapshot);
        let policy = self.selection.policy(selected, self.snapshot);
        let decision = self.decisions[at];
        let alternative = selected.alternative.map(|alternative| u32::from(alternative.order) + 1);
        let group =
            || self.groups().find(|group| group.contains(&at)).and_then(|group| self.paying(group));
        let (start, end) = selected.key;
        let own_key = selected.has_own_key.then(|| readable(&self.selection.keys[start..end]));
        LimitExplanation {
            alternative,
            would_pay: alternative.and_then(|_| Some(group()?.contains(&at))).unwrap_or(false),
            subject: own_key,
            text: limit.text().to_owned(),
            algorithm: limit.policy().algorithm().name(),
            enforcement: selected.enforcement,
            limit: policy.limit(),
            remaining: decision.and_then(|decision| decision.remaining()),
            reset_at: decision.and_then(|decision| decision.reset_at()),
            would_pass: self.would_pass(at),
            binds,
            accuracy: self.accuracy(selected, limit),
            held_tokens: self.held_tokens[at],
            reserved: selected.policy(self.snapshot).capacity() - policy.capacity(),
        }
    }

    fn accuracy(&self, selected: &SelectedLimit, limit: &Limit) -> LimitAccuracy {
        let (rules, rule) = (&self.snapshot.rules, self.snapshot.rule(selected.rule));
        if self.snapshot.is_in_process {
            return LimitAccuracy::in_process(rules.accuracy_of(rule));
        }
        let policy = match selected.accuracy(self.snapshot) {
            // What is counted is a part already.
            Accuracy::Local => limit.policy(),
            _ => selected.policy(self.snapshot),
        };
        LimitAccuracy::of_limit(rules, rule, limit, policy)
    }

    fn why_not(&self, rule: &Rule) -> String {
        let Some(condition) = rule.conditions.first_unmet(self.request) else {
            return "it was not looked at".to_owned();
        };
        match self.request.attribute(&condition.attribute) {
            Some(value) => format!(
                "it asks that {condition}, and the request has `{}`",
                crate::message::shorten(value)
            ),
            None => format!("it asks that {condition}, and the request has none"),
        }
    }

    fn why(&self, rule: &Rule, fate: MatchFate) -> (RuleFate, String) {
        let name = |at: ItemId| &self.snapshot.rule(at).name;
        let lacks = |per: usize| format!("the request lacks `{}`", rule.per[per].name());
        match fate {
            MatchFate::Disabled => (RuleFate::Disabled, "it is not enabled".to_owned()),
            MatchFate::BelowStop(by) => (
                RuleFate::Overruled,
                format!("`{}` applies, which stops rules of lower priority", name(by)),
            ),
            MatchFate::LiftedBy(by) => (
                RuleFate::Overruled,
                format!("`{}` lets the request pass without a limit", name(by)),
            ),
            MatchFate::ReplacedBy(by) => {
                (RuleFate::Overruled, format!("`{}` applies, which replaces it", name(by)))
            }
            MatchFate::Unlimited => {
                (RuleFate::Unlimited, "it lets the request pass without a limit".to_owned())
            }
            MatchFate::TierUnlimited(_) => {
                (RuleFate::Unlimited, "the request's tier has no limit".to_owned())
            }
            MatchFate::Exempt(at) => {
                let reason = rule.exemptions[at].reason.as_deref();
                let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
                (RuleFate::Exempt, format!("the request is exempt from it{reason}"))
            }
            MatchFate::Skipped(per) => {
                (RuleFate::Skipped, format!("{}, so it is skipped", lacks(per)))
            }
            MatchFate::Denied(per) => {
                (RuleFate::Denied, format!("{}, so it is denied", lacks(per)))
            }
            MatchFate::InvalidCost => {
                let attribute = rule.costs.attribute.as_deref().unwrap_or_default();
                (RuleFate::Denied, format!("its cost, `{attribute}`, is not a number"))
            }
            MatchFate::PermitsOnly => (
                RuleFate::Skipped,
                "it limits what is in flight, and nothing gives back".to_owned(),
            ),
            MatchFate::FallbackNotNeeded => (
                RuleFate::FallbackNotNeeded,
                "it is a fallback, and another rule matches".to_owned(),
            ),
            MatchFate::Banned(ban) => {
                (RuleFate::Banned, format!("its subject is banned{}", self.until_and_reason(ban)))
            }
            MatchFate::Applied(_) => (RuleFate::Applied, "all its conditions hold".to_owned()),
        }
    }

    /// Returns who is banned.
    fn banned_subject(&self, ban: usize) -> String {
        let overrides = self.snapshot.overrides.as_ref();
        overrides.map_or_else(String::new, |overrides| overrides.get(ban).subject.to_string())
    }

    /// Until when and why, of a ban or a boost.
    fn until_and_reason(&self, at: usize) -> String {
        let Some(overrides) = &self.snapshot.overrides else {
            return String::new();
        };
        let entry = overrides.get(at);
        let until =
            entry.until.map(|until| format!(" until {}", crate::date::readable_instant(until)));
        let reason = entry.reason.as_deref().map(|reason| format!(": {reason}"));
        format!("{}{}", until.unwrap_or_default(), reason.unwrap_or_default())
    }

    /// What is said of a limit's subject that multiplies it.
    fn boost(&self, selected: &SelectedLimit) -> Option<String> {
        let overrides = self.snapshot.overrides.as_ref().filter(|_| selected.boost > 0)?;
        let key = &self.selection.keys[selected.key.0..selected.key.1];
        let at = overrides
            .active_for_subject(self.snapshot.rule(selected.rule), key, self.request, self.now)
            .boost?;
        let Effect::Boost { factor_percent } = overrides.get(at).effect else {
            return None;
        };
        Some(format!(
            "its limits are at {factor_percent}% for this subject{}",
            self.until_and_reason(at)
        ))
    }

    /// Says which network's counter is shared, if the request's key is one new key too many.
    fn network(&self, selected: &SelectedLimit) -> Option<String> {
        let network = network_of_key(&self.selection.keys[selected.key.0..selected.key.1])?;
        let new_keys = self.snapshot.rule(selected.rule).new_keys.as_ref()?;
        Some(format!(
            "its key is new, so it shares the counter of network {network}, which has brought more than {} new keys",
            new_keys.text()
        ))
    }

    fn summary(&self, is_allowed: bool, binding: Option<usize>) -> String {
        let name = |at: ItemId| &self.snapshot.rule(at).name;
        match (self.selection.denial, self.selection.pass_reason, binding) {
            (Some(StoredReason::MissingAttribute { rule, per }), ..) => {
                let attribute = self.snapshot.rule(rule).per[per].name();
                format!("denied: `{}` needs `{attribute}`, which the request lacks", name(rule))
            }
            (Some(StoredReason::InvalidCost { rule }), ..) => {
                let attribute = self.snapshot.rule(rule).costs.attribute.as_deref();
                let attribute = attribute.unwrap_or_default();
                format!("denied: `{}` takes its cost from `{attribute}`, which is not a number", name(rule))
            }
            (Some(StoredReason::AmbiguousPath), ..) => {
                "denied: the path has a backslash or a NUL in it, which servers read in different ways; \
                 `paths: { ambiguous: allow }` lets it pass"
                    .to_owned()
            }
            (Some(StoredReason::Banned { rule, ban, .. }), ..) => {
                let under = rule
                    .map_or_else(|| "every rule".to_owned(), |at| format!("`{}`", name(at)));
                let (subject, until) = (self.banned_subject(ban), self.until_and_reason(ban));
                format!("denied: `{subject}` is banned under {under}{until}")
            }
            (Some(StoredReason::TooManyLimits { count }), ..) => {
                format!(
                    "denied: {count} limits apply, and stores check at most \
                     {POLICIES_PER_REQUEST_MAX} at once"
                )
            }
            (_, _, Some(at)) => {
                let verb = if is_allowed { "allowed" } else { "denied" };
                format!("{verb}: `{}` binds", name(self.limits[at].rule))
            }
            (_, Some(StoredReason::Unlimited(rule)), None) => {
                format!("allowed: `{}` sets no limit", name(rule))
            }
            (_, Some(StoredReason::Exempt { rule, .. }), None) => {
                format!("allowed: the request is exempt from `{}`", name(rule))
            }
            _ if self.decisions.iter().any(Option::is_some) || self.limits.is_empty() => {
                "allowed: no rule limits the request".to_owned()
            }
            _ => "the counters could not be read".to_owned(),
        }
    }
}
