//! One rule of an engine by itself: checks under it whatever it matches, usage, resets, and the keys that it
//! denies most.

use std::ops::Deref;
use std::sync::Arc;

use arrayvec::ArrayVec;
use tollbar::{Batch, Entry, Policy};

use super::in_process::{Engine, now};
use super::selection::Selection;
use super::usage::{UnknownRule, Usage, UsageError};
use super::{Admission, AsyncEngine};
use crate::matcher::ItemId;
use crate::message::nearest;
use crate::rule::subject::{KeyBuffer, SubjectKey, client_attribute, readable, write_key};
use crate::rule_set::LIMITS_PER_RULE_MAX;
use crate::snapshot::Snapshot;
use crate::snapshot::top::TopKey;
use crate::{Limit, Per, Request, Rule, Verdict};

/// One rule of an [`AsyncEngine`], as it was in force when [`AsyncEngine::rule`] looked it up.
///
/// What the rule matches does not matter here, and no other rule is looked at.
#[derive(Debug, Clone)]
pub struct AsyncRuleHandle<'e> {
    engine: &'e AsyncEngine,
    snapshot: Arc<Snapshot>,
    at: ItemId,
}

/// One rule of an [`Engine`], as it was in force when [`Engine::rule`] looked it up. See [`AsyncRuleHandle`],
/// to which it dereferences.
#[derive(Debug, Clone)]
pub struct RuleHandle<'e>(AsyncRuleHandle<'e>);

/// A request of which only the value that a rule counts by is known: no method, the path `/`, no tier.
#[derive(Debug, Clone)]
pub struct SubjectRequest<'a> {
    method: &'a str,
    path: &'a str,
    attributes: ArrayVec<(&'a str, &'a str), 1>,
}

/// The limits of a rule that a request would be under, and its key.
struct Counters<'s> {
    limits: &'s [Limit],
    policies: &'s [Policy],
    key: KeyBuffer,
}

impl AsyncEngine {
    /// Returns the rule in force that is called `name`.
    pub fn rule(&self, name: &str) -> Result<AsyncRuleHandle<'_>, UnknownRule> {
        let snapshot = self.snapshot();
        let Some(at) = snapshot.find(name) else {
            let names = snapshot.rules.rules().iter().map(|rule| &*rule.name);
            let suggestion = nearest(name, names).map(str::to_owned);
            return Err(UnknownRule { rule: crate::message::shorten(name), suggestion });
        };
        Ok(AsyncRuleHandle { engine: self, snapshot, at })
    }
}

impl Engine {
    /// Returns the rule in force that is called `name`.
    ///
    /// ```
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = "rules: [{ name: per_client, match: { path: /v1/** }, limit: 10/h }]";
    /// let engine = Engine::new(RuleFile::parse("rules.yaml", rules)?.rules);
    /// let request = Request::new("GET", "/v1/users")?.with_attributes(&[("user", "42")])?;
    /// assert!(engine.check(&request).is_allowed());
    ///
    /// let rule = engine.rule("per_client")?;
    /// let subject = rule.subject("user:42")?;
    /// assert!(rule.check(&subject.request()?.with_cost(3)).is_allowed());
    /// assert_eq!(rule.usage(&request)?[0].remaining, 6);
    /// rule.reset(&request)?;
    /// assert_eq!(rule.usage(&request)?[0].remaining, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rule(&self, name: &str) -> Result<RuleHandle<'_>, UnknownRule> {
        AsyncEngine::rule(self, name).map(RuleHandle)
    }
}

impl AsyncRuleHandle<'_> {
    /// The rule.
    #[must_use]
    pub fn rule(&self) -> &Rule {
        self.snapshot.rule(self.at)
    }

    /// Decides whether the request may pass under this rule, and charges it if so; cost 0 peeks. Permits
    /// come back when their leases end.
    pub async fn check(&self, request: &Request<'_>) -> Verdict {
        self.admit(request).await.verdict
    }

    /// Decides whether the request may pass under this rule, charges it if so, and returns the permits that
    /// it holds. Exemptions, tiers, costs and mode are as usual, and a rule that is not enabled limits
    /// nothing.
    pub async fn admit(&self, request: &Request<'_>) -> Admission {
        let Self { engine, snapshot, at } = self;
        let mut selection = Selection::default();
        engine.select_only(snapshot, *at, request, &mut selection);
        let verdict = Verdict::undecided(Arc::clone(snapshot));
        let mut admission = Admission { verdict, hold: None };
        admission.hold = engine.decide(request, None, &mut selection, &mut admission.verdict).await;
        admission
    }

    /// Returns what the request's subject has left of the rule's limits, whether or not the rule applies to
    /// the request. Charges nothing. An unlimited tier has no limits, and a limit whose counter was not read
    /// is left out.
    pub async fn usage(&self, request: &Request<'_>) -> Result<Vec<Usage>, UsageError> {
        let mut counters = self.counters(request)?;
        let Self { engine, snapshot, at } = self;
        if let Some(shared) = engine.shared_key(snapshot, *at, request, &counters.key) {
            counters.key = shared;
        }
        let peek = |policy| Entry::new(&*counters.key, policy).with_cost(0);
        let mut entries: ArrayVec<Entry<'_>, LIMITS_PER_RULE_MAX> =
            counters.policies.iter().map(peek).collect();
        self.engine.store().decide(Batch::all_or_none(&mut entries)).await?;
        let usage = |(entry, limit): (&Entry<'_>, &Limit)| {
            let decision = entry.decision()?;
            Some(Usage {
                text: limit.text().to_owned(),
                subject: readable(entry.key()),
                limit: decision.limit(),
                remaining: decision.remaining()?,
                reset_at: decision.reset_at()?,
                window: entry.policy().window(),
            })
        };
        Ok(entries.iter().zip(counters.limits).filter_map(usage).collect())
    }

    /// Makes the counters of the request's subject fresh.
    pub async fn reset(&self, request: &Request<'_>) -> Result<(), UsageError> {
        let counters = self.counters(request)?;
        for policy in counters.policies {
            self.engine.store().reset(&counters.key, policy).await?;
        }
        Ok(())
    }

    /// Returns the keys that the rule has denied most often since it has been there, the first first: at most
    /// 256, by a sketch of bounded size.
    #[must_use]
    pub fn top_denied(&self, count: usize) -> Vec<TopKey> {
        self.snapshot.plan(self.at).top.list(count)
    }

    /// Returns a request that has `subject` for the one attribute that the rule counts by.
    ///
    /// If that is `client`, the subject is what a request of that client has: `api:abc`, `user:42` or
    /// `ip:203.0.113.7`, each with the counters of the client's own requests; any other text is counted as it
    /// stands, apart from those.
    pub fn subject<'a>(&'a self, subject: &'a str) -> Result<SubjectRequest<'a>, UsageError> {
        let rule = self.rule();
        let [per] = rule.per.as_slice() else {
            let per = rule.per.iter().map(|per| per.name().to_owned()).collect();
            return Err(UsageError::NotOneAttribute { rule: rule.name.to_string(), per });
        };
        let (name, value) = match per {
            Per::Client => client_attribute(subject),
            Per::Attribute(name) if **name == *"ip" => {
                ("ip", subject.strip_prefix("ip:").unwrap_or(subject))
            }
            Per::Attribute(name) => (&**name, subject),
        };
        // An IPv6 address is counted by its network, and may be called so.
        let value = if name == "ip" { value.strip_suffix("/64").unwrap_or(value) } else { value };
        if value.is_empty() {
            return Err(UsageError::EmptySubject { rule: rule.name.to_string() });
        }
        let mut request = SubjectRequest { method: "", path: "/", attributes: ArrayVec::new() };
        match name {
            "method" => request.method = value,
            "path" => request.path = value,
            name => request.attributes.push((name, value)),
        }
        Ok(request)
    }

    fn counters(&self, request: &Request<'_>) -> Result<Counters<'_>, UsageError> {
        let (snapshot, rule) = (&self.snapshot, self.rule());
        let mut key = KeyBuffer::new();
        match write_key(&rule.per, rule.missing, request, &mut key) {
            SubjectKey::Written => {}
            SubjectKey::Skip(per) | SubjectKey::Deny(per) => {
                let (rule, attribute) = (rule.name.to_string(), rule.per[per].name().to_owned());
                return Err(UsageError::MissingAttribute { rule, attribute });
            }
        }
        let tier = snapshot.tier(self.at, request);
        let boost = match &snapshot.overrides {
            Some(overrides) => {
                snapshot.active_overrides(overrides, self.at, &key, request, self.engine.now()).1
            }
            None => 0,
        };
        let policies = snapshot.policies(self.at, tier, boost).unwrap_or_default();
        Ok(Counters { limits: rule.limits_of(tier), policies, key })
    }
}

impl RuleHandle<'_> {
    /// Decides whether the request may pass under this rule, and charges it if so. See
    /// [`AsyncRuleHandle::check`].
    #[must_use]
    pub fn check(&self, request: &Request<'_>) -> Verdict {
        now(self.0.check(request))
    }

    /// Decides whether the request may pass under this rule, and returns the permits that it holds. See
    /// [`AsyncRuleHandle::admit`].
    pub fn admit(&self, request: &Request<'_>) -> Admission {
        now(self.0.admit(request))
    }

    /// Returns what the request's subject has left. See [`AsyncRuleHandle::usage`].
    pub fn usage(&self, request: &Request<'_>) -> Result<Vec<Usage>, UsageError> {
        now(self.0.usage(request))
    }

    /// Makes the counters of the request's subject fresh.
    pub fn reset(&self, request: &Request<'_>) -> Result<(), UsageError> {
        now(self.0.reset(request))
    }
}

impl<'e> Deref for RuleHandle<'e> {
    type Target = AsyncRuleHandle<'e>;

    fn deref(&self) -> &AsyncRuleHandle<'e> {
        &self.0
    }
}

impl SubjectRequest<'_> {
    /// Returns the request, of cost 1.
    pub fn request(&self) -> Result<Request<'_>, UsageError> {
        Ok(Request::new(self.method, self.path)?.with_known_attributes(&self.attributes)?)
    }
}
