//! A request's answer: whether it may pass, which rule says so, and what the others said.

pub(crate) mod denial;
pub(crate) mod standalone;
pub(crate) mod summary;
pub(crate) mod usage_record;

use std::time::Duration;

use smallvec::SmallVec;
use tollbar::store::{Alternative, binding_place};
use tollbar::{Decision, Degraded, Outcome, Source, StoreError, Timestamp};

use crate::matcher::ItemId;
use crate::rule::Tier;
use crate::snapshot::PinnedSnapshot;
use crate::{Criticality, Exemption, Limit, Override, Rule};

/// What the rules say to a request.
///
/// Holds on to the version of the rules by which it was made, so that rules can be read from it
/// after they have changed.
#[derive(Debug, Clone)]
pub struct Verdict {
    pub(crate) snapshot: PinnedSnapshot,
    pub(crate) outcome: Outcome,
    pub(crate) reason: StoredReason,
    pub(crate) binding: Option<usize>,
    pub(crate) decisions: Decisions,
    pub(crate) failure: Option<StoreError>,
    pub(crate) permit_limits_skipped: u32,
    /// When the charge was made whose answer this repeats.
    pub(crate) repeat_of: Option<Timestamp>,
    pub(crate) criticality: Criticality,
    pub(crate) classifier: Option<ItemId>,
}

/// Why a verdict is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason<'v> {
    /// Limits were checked: the binding decision says it.
    Limits,
    /// No rule applies, so nothing limits the request.
    NoRule,
    /// An unlimited rule matches, or the request's tier is unlimited.
    Unlimited(&'v Rule),
    /// The request is exempt from this rule, and no other limits it.
    Exempt(&'v Rule, &'v Exemption),
    /// The request lacks an attribute that a rule cannot do without.
    MissingAttribute {
        /// The rule.
        rule: &'v Rule,
        /// The attribute.
        attribute: &'v str,
    },
    /// The attribute from which a rule takes the cost is no number.
    InvalidCost {
        /// The rule.
        rule: &'v Rule,
        /// The attribute.
        attribute: &'v str,
    },
    /// The path has a backslash or a NUL in it, which servers read in different ways.
    AmbiguousPath,
    /// The subject is banned: under this rule, or whatever the rules say.
    Banned {
        /// The rule, where it is under one.
        rule: Option<&'v Rule>,
        /// The ban, and until when it lasts.
        ban: &'v Override,
    },
    /// More limits apply than a store takes at once: to check some of them would be to enforce
    /// some of them, so the request is denied.
    TooManyLimits {
        /// How many.
        count: usize,
    },
    /// The request's id came with another request before: another method, path, cost, limit, or attribute that
    /// a rule looks at. Nothing was charged.
    RequestIdReused,
    /// What the rules count by is longer than a receipt or the text of a lease can be. Nothing was
    /// charged.
    ReceiptTooLong,
    /// The request has an id or is a reservation, and its counters lie in several slots of a
    /// cluster. Nothing was charged.
    CrossSlot,
    /// The store cannot do what the request asks of it. Nothing was charged.
    Unsupported,
}

/// The name that logs, pages and usage show in place of a rule's if a ban under every rule has denied a request. No rule can
/// have it: the names of rules have no spaces.
pub const GLOBAL_BAN: &str = "global ban";

/// A [`Reason`] as a verdict stores it: rules, exemptions and bans by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredReason {
    Limits,
    NoRule,
    Unlimited(ItemId),
    Exempt { rule: ItemId, exemption: usize },
    MissingAttribute { rule: ItemId, per: usize },
    InvalidCost { rule: ItemId },
    AmbiguousPath,
    Banned { rule: Option<ItemId>, ban: usize, ends_in_us: Option<u64> },
    TooManyLimits { count: usize },
    RequestIdReused,
    ReceiptTooLong,
    CrossSlot,
    Unsupported,
}

impl StoredReason {
    /// What a denial that needs no store tells a client. Where an attribute is missing, no wait helps
    /// and no other cost; a ban may have an end.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Self::Banned { ends_in_us: Some(retry_after_us), .. } => {
                Outcome::Deny { retry_after_us }
            }
            _ => Outcome::Busy,
        }
    }

    /// The rule that denies by itself, without a store.
    pub(crate) fn denying_rule(self) -> Option<ItemId> {
        match self {
            Self::MissingAttribute { rule, .. } | Self::InvalidCost { rule } => Some(rule),
            Self::Banned { rule, .. } => rule,
            _ => None,
        }
    }
}

/// How a limit was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// It may deny.
    Live,
    /// Its rule is in shadow mode: it only reports.
    Shadow,
    /// It is a candidate: it only reports.
    Candidate,
}

/// The decision of one limit, as a verdict stores it: the rule, the tier and the limit by their places.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitDecision {
    pub(crate) rule: ItemId,
    /// `u32::MAX` for the rule's own limits.
    pub(crate) tier: u32,
    pub(crate) limit: u32,
    pub(crate) enforcement: Enforcement,
    pub(crate) source: Source,
    pub(crate) cost: u64,
    pub(crate) decision: Decision,
    /// Its place among the alternatives of the request.
    pub(crate) alternative: Option<Alternative>,
    /// Of alternatives, whether this is the one that pays; otherwise whether it allows. Without meaning on the fast path,
    /// where there are no alternatives.
    pub(crate) pays: bool,
}

impl LimitDecision {
    pub(crate) fn tier(&self) -> Tier {
        if self.tier == u32::MAX { Tier::Rule } else { Tier::At(self.tier as usize) }
    }

    /// Returns true if both are of the limits of one rule that are in force, or of those that are tried out.
    pub(crate) fn is_of_same_rule(&self, other: &Self) -> bool {
        (self.rule, self.enforcement) == (other.rule, other.enforcement)
    }

    /// Returns true if the limit denies, and of alternatives none pays. `all` are the decisions of the check.
    #[inline]
    pub(crate) fn denies(&self, all: &[Self]) -> bool {
        let is_denied = !self.decision.is_allowed();
        is_denied
            && (self.alternative.is_none()
                || !all.iter().any(|other| other.is_of_same_rule(self) && other.pays))
    }

    /// Returns true if the limit is in force and denies.
    #[inline]
    pub(crate) fn denies_live(&self, all: &[Self]) -> bool {
        self.enforcement == Enforcement::Live && self.denies(all)
    }
}

/// Finds out which alternatives pay, where no store has said it: the first of each rule that allows.
pub(crate) fn mark_paid(decisions: &mut [LimitDecision]) {
    for of_rule in decisions.chunk_by_mut(LimitDecision::is_of_same_rule) {
        let mut is_paid = false;
        for limits in of_rule.chunk_by_mut(|a, b| a.alternative == b.alternative) {
            let is_group = limits.iter().any(|limit| limit.alternative.is_some());
            let pays = !is_paid && limits.iter().all(|limit| limit.decision.is_allowed());
            for limit in limits {
                limit.pays = if is_group { pays } else { limit.decision.is_allowed() };
            }
            is_paid |= pays && is_group;
        }
    }
}

/// The decisions of a check: those of usual number without an allocation.
pub(crate) type Decisions = SmallVec<[LimitDecision; 8]>;

/// What one limit of one rule said.
#[derive(Debug, Clone, Copy)]
pub struct RuleDecision<'v> {
    verdict: &'v Verdict,
    inner: &'v LimitDecision,
}

impl Verdict {
    /// One without decisions so far, which allows.
    #[inline]
    pub(crate) fn undecided(snapshot: impl Into<PinnedSnapshot>) -> Self {
        Self {
            snapshot: snapshot.into(),
            outcome: Outcome::Allow,
            reason: StoredReason::NoRule,
            binding: None,
            decisions: SmallVec::new(),
            failure: None,
            permit_limits_skipped: 0,
            repeat_of: None,
            criticality: Criticality::Normal,
            classifier: None,
        }
    }

    /// True where the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow)
    }

    /// Allow, deny, busy or never.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> Reason<'_> {
        match self.reason {
            StoredReason::Limits => Reason::Limits,
            StoredReason::NoRule => Reason::NoRule,
            StoredReason::Unlimited(rule) => Reason::Unlimited(self.snapshot.rule(rule)),
            StoredReason::Exempt { rule, exemption } => {
                let rule = self.snapshot.rule(rule);
                Reason::Exempt(rule, &rule.exemptions[exemption])
            }
            StoredReason::MissingAttribute { rule, per } => {
                let rule = self.snapshot.rule(rule);
                Reason::MissingAttribute { rule, attribute: rule.per[per].name() }
            }
            StoredReason::InvalidCost { rule } => {
                let rule = self.snapshot.rule(rule);
                let attribute = rule.costs.attribute.as_deref().unwrap_or_default();
                Reason::InvalidCost { rule, attribute }
            }
            StoredReason::AmbiguousPath => Reason::AmbiguousPath,
            StoredReason::Banned { rule, ban, .. } => match &self.snapshot.overrides {
                Some(overrides) => Reason::Banned {
                    rule: rule.map(|at| self.snapshot.rule(at)),
                    ban: overrides.get(ban),
                },
                None => Reason::NoRule,
            },
            StoredReason::TooManyLimits { count } => Reason::TooManyLimits { count },
            StoredReason::RequestIdReused => Reason::RequestIdReused,
            StoredReason::ReceiptTooLong => Reason::ReceiptTooLong,
            StoredReason::CrossSlot => Reason::CrossSlot,
            StoredReason::Unsupported => Reason::Unsupported,
        }
    }

    /// The decision that binds. Denied: the longest wait; allowed: the least of its limit
    /// remaining; ties: the rule of the highest priority, then the first by name. `None` where no
    /// limit was enforced.
    #[must_use]
    pub fn binding(&self) -> Option<RuleDecision<'_>> {
        self.binding.map(|at| RuleDecision { verdict: self, inner: &self.decisions[at] })
    }

    /// The rule that binds.
    #[must_use]
    pub fn rule(&self) -> Option<&Rule> {
        match self.reason {
            StoredReason::Unlimited(rule)
            | StoredReason::Exempt { rule, .. }
            | StoredReason::MissingAttribute { rule, .. }
            | StoredReason::InvalidCost { rule }
            | StoredReason::Banned { rule: Some(rule), .. } => Some(self.snapshot.rule(rule)),
            _ => self.binding.map(|at| self.snapshot.rule(self.decisions[at].rule)),
        }
    }

    /// Returns the name of the rule that binds, or [`GLOBAL_BAN`] for a ban under every rule. `None` if no rule binds.
    #[must_use]
    pub fn decided_by(&self) -> Option<&str> {
        match self.reason {
            StoredReason::Banned { rule: None, .. } => Some(GLOBAL_BAN),
            _ => self.rule().map(|rule| &*rule.name),
        }
    }

    /// How long to wait before asking again, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Deny { retry_after_us } => Some(Duration::from_micros(retry_after_us)),
            _ => None,
        }
    }

    /// When the same request passes again at the latest, if nobody else asks: the reset of the limit that binds, or a
    /// later one of another limit that has no room left for it. `None` where no counter was read, and where permits
    /// bind, which may come back at any moment.
    #[must_use]
    pub fn reset_at(&self) -> Option<Timestamp> {
        let reset_at = self.binding()?.reset_at()?;
        // Who is denied waits for the longest of all.
        if !self.is_allowed() || self.decisions.len() == 1 {
            return Some(reset_at);
        }
        let live: SmallVec<[RuleDecision<'_>; 8]> =
            self.decisions().filter(|limit| limit.enforcement() == Enforcement::Live).collect();
        let resets = live
            .chunk_by(|a, b| a.alternative().is_some() && a.inner.is_of_same_rule(b.inner))
            .filter_map(|limits| {
                let alternatives = limits.chunk_by(|a, b| a.alternative() == b.alternative());
                // `None` is before any time: an alternative that has room needs none.
                alternatives.map(reset_of_used_up).min().flatten()
            });
        Some(resets.fold(reset_at, Timestamp::max))
    }

    /// How long an allowed request has to wait for its turn: the longest of all queues.
    #[must_use]
    pub fn delay(&self) -> Duration {
        let paid = self.decisions.iter().filter(|limit| {
            limit.enforcement == Enforcement::Live && (limit.pays || limit.alternative.is_none())
        });
        paid.map(|limit| limit.decision.delay()).max().unwrap_or_default()
    }

    /// Every decision: live ones, those of shadows, those of candidates.
    pub fn decisions(&self) -> impl Iterator<Item = RuleDecision<'_>> {
        self.decisions.iter().map(|inner| RuleDecision { verdict: self, inner })
    }

    /// What would have denied, had it been live. Of alternatives, that is all of them or none.
    pub fn would_deny(&self) -> impl Iterator<Item = RuleDecision<'_>> {
        self.decisions().filter(|limit| limit.enforcement() != Enforcement::Live && limit.denies())
    }

    /// Why the store could not answer, where the rules' failure policies did in its place.
    #[must_use]
    pub fn degraded(&self) -> Option<&StoreError> {
        self.failure.as_ref()
    }

    /// When the charge was made whose answer this verdict repeats: the request was sent before under its
    /// [id](crate::Request::with_request_id), and has paid nothing now.
    #[must_use]
    pub fn repeat_of(&self) -> Option<Timestamp> {
        self.repeat_of
    }

    /// How critical the request was: as the rules say, or as whoever sent it, where that counts.
    #[must_use]
    pub fn criticality(&self) -> Criticality {
        self.criticality
    }

    /// The rule that says how critical such requests are.
    #[must_use]
    pub fn classifier(&self) -> Option<&Rule> {
        self.classifier.map(|at| self.snapshot.rule(at))
    }

    /// How many limits on what is in flight would have applied, had the request not been
    /// [without permits](crate::Request::without_permits).
    #[must_use]
    pub fn permit_limits_skipped(&self) -> u32 {
        self.permit_limits_skipped
    }

    /// Which version of the rules this is by; counts up with every change, from 1. It is 0 for a verdict by
    /// a [`StandaloneLimit`](crate::StandaloneLimit), which no rule has made.
    #[must_use]
    pub fn rules_version(&self) -> u64 {
        self.snapshot.version
    }
}

/// When the last of the limits resets that have no room left for the request; `None` if all of them have.
fn reset_of_used_up(limits: &[RuleDecision<'_>]) -> Option<Timestamp> {
    let used_up = limits
        .iter()
        .filter(|limit| limit.remaining().is_some_and(|left| left < limit.cost().max(1)));
    used_up.filter_map(RuleDecision::reset_at).max()
}

impl<'v> RuleDecision<'v> {
    /// Whose limit it is.
    #[must_use]
    pub fn rule(&self) -> &'v Rule {
        self.verdict.snapshot.rule(self.inner.rule)
    }

    /// The tier whose limit it is, where it is one's.
    #[must_use]
    pub fn tier(&self) -> Option<&'v str> {
        let (name, _) = self.rule().tiers.limits.get(self.inner.tier as usize)?;
        Some(name)
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> &'v Limit {
        let rule = self.rule();
        let at = self.inner.limit as usize;
        match (self.inner.enforcement, rule.tiers.limits.get(self.inner.tier as usize)) {
            (Enforcement::Candidate, _) => &rule.candidate[at],
            (_, Some((_, limits))) => &limits.limits()[at],
            (_, None) => &rule.limits[at],
        }
    }

    /// Which of its rule's limits, or of its tier's, it is: 0 is the first.
    #[must_use]
    pub fn place(&self) -> usize {
        self.inner.limit as usize
    }

    /// Which alternative of its rule the limit belongs to, counted from 1; `None` for a limit that holds by itself.
    #[must_use]
    pub fn alternative(&self) -> Option<u32> {
        self.inner.alternative.map(|alternative| u32::from(alternative.order) + 1)
    }

    /// True if the request has paid under the limit: it passed, and of alternatives this is the one that was charged.
    #[must_use]
    pub fn is_paid(&self) -> bool {
        let pays = self.inner.pays && self.inner.decision.is_allowed();
        self.verdict.is_allowed() && pays
    }

    /// True if the limit denies. Alternatives deny if none of them allows.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.inner.denies(&self.verdict.decisions)
    }

    /// Returns true unless another alternative has more left, or allows sooner. Of alternatives, one decision speaks for all:
    /// what remains is the most of any of them, and not the least.
    #[must_use]
    pub fn speaks(&self) -> bool {
        if self.inner.alternative.is_none() {
            return true;
        }
        let all = &self.verdict.decisions;
        let speaker = binding_place(all, |limit| {
            limit.is_of_same_rule(self.inner).then_some((limit.alternative, limit.decision))
        });
        speaker.is_some_and(|at| std::ptr::eq(&raw const all[at], self.inner))
    }

    /// Whether it may deny.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        self.inner.enforcement
    }

    /// What the request costs under it.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.inner.cost
    }

    /// What it said.
    #[must_use]
    pub fn decision(&self) -> Decision {
        self.inner.decision
    }

    /// Where it comes from: the counter, a loan, or this node's own part of the limit. `None` where no counter was
    /// read. Under a loan, what remains and when it resets are estimates.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        self.degraded().is_none().then_some(self.inner.source)
    }

    /// What is left of the limit; `None` where no counter was read.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.inner.decision.remaining()
    }

    /// The window's end, or when a bucket is full again: the same request passes the limit then, if nobody else asks.
    /// `None` where no counter was read, and of permits, which may come back at any moment.
    #[must_use]
    pub fn reset_at(&self) -> Option<Timestamp> {
        self.inner.decision.reset_at().filter(|_| !self.limit().policy().has_permits())
    }

    /// Set where the store could not answer and the rule's failure policy did.
    #[must_use]
    pub fn degraded(&self) -> Option<Degraded> {
        self.inner.decision.degraded()
    }
}
