//! One rule of an engine by itself: checks under it whatever it matches, usage, resets, and the keys that it
//! denies most.

use std::ops::Deref;
use std::sync::Arc;

use arrayvec::ArrayVec;
use smallvec::SmallVec;
use tollbar::{Batch, Entry};

use super::in_process::{Engine, now};
use super::selection::Selection;
use super::usage::{UnknownRule, Usage, UsageError};
use super::{Admission, AsyncEngine};
use crate::matcher::ItemId;
use crate::message::nearest;
use crate::rule::Tier;
use crate::rule::subject::{
    CLIENT_ATTRIBUTES, EVERYBODY, KeyBuffer, NONE, SEPARATOR, SubjectKey, client_attribute,
    readable, write_key,
};
use crate::rule_set::LIMITS_PER_RULE_MAX;
use crate::snapshot::Snapshot;
use crate::snapshot::top::TopKey;
use crate::{InvalidRequest, Limit, OnMissing, Per, Request, Rule, Verdict};

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

/// A request that names whom a rule counts, made by [`AsyncRuleHandle::subject`] or
/// [`AsyncRuleHandle::look_up`].
#[derive(Debug, Clone)]
pub struct SubjectRequest<'a> {
    method: &'a str,
    path: &'a str,
    attributes: SmallVec<[(&'a str, &'a str); 4]>,
}

/// The most tiers whose counters one look-up reads.
const TIERS_READ_MAX: usize = 32;

/// The counters of a subject under a rule: its key, and the tiers under which they are read.
struct Counters {
    key: KeyBuffer,
    boost: u32,
    /// The subject's own tier first, or the one that a check would use.
    tiers: SmallVec<[Tier; 4]>,
    own_tier: OwnTier,
}

/// How a look-up knows the tier of its subject.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnTier {
    /// The request names it, or the rule has no tiers.
    Named,
    /// It is the tier of the subject's latest request.
    Latest,
    Unknown,
}

/// What a look-up has read of one limit.
struct LimitReading<'s> {
    limit: &'s Limit,
    is_used: bool,
    usage: Usage,
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
    /// let subject = rule.subject("user:42", &[])?;
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
    ///
    /// If the rule has tiers and the request names none, these are the limits of the subject's latest request and any
    /// other counters of its that are in use, each with its tier. If this process has not seen the subject, they are
    /// those of every tier in use, and if none is, of the default tier.
    pub async fn usage(&self, request: &Request<'_>) -> Result<Vec<Usage>, UsageError> {
        let mut counters = self.counters(request)?;
        let Self { engine, snapshot, at } = self;
        if let Some(shared) = engine.shared_key(snapshot, *at, request, &counters.key) {
            counters.key = shared;
        }
        let mut tiers = Vec::new();
        for tier in counters.tiers.iter().take(TIERS_READ_MAX) {
            tiers.push(self.read(&counters, *tier, request).await?);
            let is_unlimited = tiers[0].is_empty() && counters.own_tier == OwnTier::Latest;
            if is_unlimited || counters.own_tier == OwnTier::Named {
                break;
            }
        }
        let is_used = |readings: &Vec<LimitReading<'_>>| readings.iter().any(|read| read.is_used);
        if counters.own_tier == OwnTier::Unknown && tiers.iter().any(is_used) {
            tiers.retain(is_used);
        } else if counters.own_tier == OwnTier::Unknown {
            tiers.truncate(1);
        } else if let [own, others @ ..] = &mut *tiers {
            let is_shared = |read: &LimitReading<'_>| {
                let counter = |limit: &Limit| {
                    limit.counter_kind() == read.limit.counter_kind()
                        && limit.per() == read.limit.per()
                };
                own.iter().any(|own| counter(own.limit))
            };
            for other in others {
                other.retain(|read| read.is_used && !is_shared(read));
                for read in other {
                    read.usage.is_current = false;
                }
            }
        }
        Ok(tiers.into_iter().flatten().map(|read| read.usage).collect())
    }

    /// Reads what is left of the limits of one tier.
    async fn read(
        &self,
        counters: &Counters,
        tier: Tier,
        request: &Request<'_>,
    ) -> Result<Vec<LimitReading<'_>>, UsageError> {
        let rule = self.rule();
        let policies = self.snapshot.policies(self.at, tier, counters.boost).unwrap_or_default();
        if policies.is_empty() {
            return Ok(Vec::new());
        }
        let accuracies = self.snapshot.accuracies(self.at, tier, counters.boost);
        let keys = self.keys(counters, tier, request);
        let is_known = |at: &usize| keys[*at].is_some();
        let places: ArrayVec<usize, LIMITS_PER_RULE_MAX> =
            (0..policies.len()).filter(is_known).collect();
        let peek = |at: &usize| {
            let accuracy = accuracies.get(*at).copied().unwrap_or_default();
            let key = keys[*at].as_deref().unwrap_or_default();
            Entry::new(key, &policies[*at]).with_cost(0).with_accuracy(accuracy)
        };
        let mut entries: ArrayVec<Entry<'_>, LIMITS_PER_RULE_MAX> =
            places.iter().map(peek).collect();
        self.engine.store().decide(Batch::all_or_none(&mut entries)).await?;
        let mut readings = Vec::new();
        let limits = places.iter().map(|at| &rule.limits_of(tier)[*at]);
        for (entry, limit) in entries.iter().zip(limits) {
            let (Some(decision), policy) = (entry.decision(), entry.policy()) else {
                continue;
            };
            let Some((remaining, reset_at)) = decision.remaining().zip(decision.reset_at()) else {
                continue;
            };
            let usage = Usage {
                text: limit.text().to_owned(),
                subject: readable(entry.key()),
                tier: rule.tier_name(tier).map(str::to_owned),
                is_current: true,
                alternative: limit.alternative().map(|order| u32::from(order) + 1),
                has_own_per: rule.own_per(limit).is_some(),
                limit: decision.limit(),
                remaining,
                reset_at,
                window: policy.limit_window(),
            };
            // What others may have used says nothing of this subject.
            let is_used = remaining < policy.capacity() && !usage.has_own_per;
            readings.push(LimitReading { limit, is_used, usage });
        }
        Ok(readings)
    }

    /// Returns the key of each limit of a tier. `None` for a limit that counts by a `per` of its own of which the request
    /// lacks an attribute: nobody has said which counter is meant.
    fn keys(
        &self,
        counters: &Counters,
        tier: Tier,
        request: &Request<'_>,
    ) -> ArrayVec<Option<KeyBuffer>, LIMITS_PER_RULE_MAX> {
        let (snapshot, rule) = (&self.snapshot, self.rule());
        let request = &*snapshot.fold(request);
        let key = |limit| {
            let Some(per) = rule.own_per(limit) else {
                return Some(counters.key.clone());
            };
            let mut key = KeyBuffer::new();
            let written = write_key(per, OnMissing::Deny, request, &mut key);
            (written == SubjectKey::Written).then_some(key)
        };
        rule.limits_of(tier).iter().map(key).collect()
    }

    /// Makes the counters of the request's subject fresh: those of the tier that it names, or of all tiers, and of
    /// alternatives all of them, also those that others count in. A limit that counts by a `per` of its own of which the
    /// request lacks an attribute is left as it is.
    pub async fn reset(&self, request: &Request<'_>) -> Result<(), UsageError> {
        let counters = self.counters(request)?;
        for tier in &counters.tiers {
            let policies = self.snapshot.policies(self.at, *tier, counters.boost);
            let keys = self.keys(&counters, *tier, request);
            for (policy, key) in policies.unwrap_or_default().iter().zip(&keys) {
                if let Some(key) = key {
                    self.engine.store().reset(key, policy).await?;
                }
            }
        }
        Ok(())
    }

    /// Returns the keys that the rule has denied most often since it has been there, the first first: at most
    /// 256, by a sketch of bounded size.
    #[must_use]
    pub fn top_denied(&self, count: usize) -> Vec<TopKey> {
        self.snapshot.plan(self.at).top.list(count)
    }

    /// Returns a request of `subject`, with other attributes, such as `tier`, beside it.
    ///
    /// A subject has the values that the rule counts by, in the order of `per`, joined by ` | `: `42`, or `42 | /v1/a`.
    /// A client is `api:abc`, `user:42` or `ip:203.0.113.7`, with the counters of its own requests; any other
    /// text is counted as it stands, apart from those. If the rule counts everybody together, the subject is
    /// `(everybody)`.
    pub fn subject<'a>(
        &'a self,
        subject: &'a str,
        attributes: &[(&'a str, &'a str)],
    ) -> Result<SubjectRequest<'a>, UsageError> {
        self.subject_request(subject, attributes, |_| None)
    }

    /// Returns a request of a subject that [`readable`] has written, with other attributes beside it. Unlike for
    /// [`subject`](Self::subject), `ip:203.0.113.7` and `(none)` are requests that lack what the rule counts by.
    pub fn readable_subject<'a>(
        &'a self,
        subject: &'a str,
        attributes: &[(&'a str, &'a str)],
    ) -> Result<SubjectRequest<'a>, UsageError> {
        let missing = self.rule().missing;
        self.subject_request(subject, attributes, |value| match missing {
            OnMissing::Ip | OnMissing::Shared if value == NONE => Some(None),
            OnMissing::Ip => value.strip_prefix("ip:").map(|address| Some(("ip", address))),
            _ => None,
        })
    }

    /// Makes the request of a subject. `replace` has what stands for an attribute that requests lack.
    fn subject_request<'a>(
        &'a self,
        subject: &'a str,
        attributes: &[(&'a str, &'a str)],
        replace: impl Fn(&'a str) -> Option<Option<(&'a str, &'a str)>>,
    ) -> Result<SubjectRequest<'a>, UsageError> {
        let rule = self.rule();
        Request::new("GET", "/")?.with_attributes(attributes)?;
        let values: SmallVec<[&str; 4]> = match rule.per.as_slice() {
            [] if subject == EVERYBODY => SmallVec::new(),
            [_] => SmallVec::from_elem(subject, 1),
            _ => subject.split(SEPARATOR).collect(),
        };
        if values.len() != rule.per.len() {
            return Err(UsageError::SubjectValues {
                rule: rule.name.to_string(),
                per: rule.per_names(),
            });
        }
        let mut request = SubjectRequest { method: "", path: "/", attributes: attributes.into() };
        for (per, value) in rule.per.iter().zip(values) {
            let is_same = |name: &str| match per {
                Per::Client => CLIENT_ATTRIBUTES.contains(&name),
                Per::Attribute(own) => **own == *name,
            };
            if let Some((name, _)) = attributes.iter().find(|(name, _)| is_same(name)) {
                let (rule, attribute) = (rule.name.to_string(), (*name).to_owned());
                return Err(UsageError::SubjectTwice { rule, attribute });
            }
            let (name, value) = match per {
                Per::Client => client_attribute(value),
                Per::Attribute(name) if **name == *"ip" => {
                    ("ip", value.strip_prefix("ip:").unwrap_or(value))
                }
                Per::Attribute(name) => match replace(value) {
                    Some(Some(pair)) => pair,
                    Some(None) => continue,
                    None => (&**name, value),
                },
            };
            // An IPv6 address is counted by its network, and may be called so.
            let value =
                if name == "ip" { value.strip_suffix("/64").unwrap_or(value) } else { value };
            if value.is_empty() {
                return Err(UsageError::EmptySubject { rule: rule.name.to_string() });
            }
            request.set(name, value)?;
        }
        Ok(request)
    }

    /// Returns a request with these attributes, `method` and `path` among them. They have to say which counter is
    /// meant: see [`check_complete`](Self::check_complete).
    pub fn look_up<'a>(
        &self,
        attributes: &[(&'a str, &'a str)],
    ) -> Result<SubjectRequest<'a>, UsageError> {
        self.check_complete(|name| attributes.iter().any(|(known, _)| *known == name))?;
        let mut request = SubjectRequest { method: "GET", path: "/", attributes: SmallVec::new() };
        let (own, others): (Vec<_>, Vec<_>) =
            attributes.iter().copied().partition(|(name, _)| matches!(*name, "method" | "path"));
        Request::new("GET", "/")?.with_attributes(&others)?;
        request.attributes.extend(others);
        own.into_iter().try_for_each(|(name, value)| request.set(name, value))?;
        Ok(request)
    }

    /// Returns an error that names what a look-up lacks to be about one counter. Under a rule that counts by several
    /// attributes, or by method or path, each of them has to be given. An address stands for others if the
    /// rule says so.
    pub fn check_complete(&self, is_given: impl Fn(&str) -> bool) -> Result<(), UsageError> {
        let rule = self.rule();
        let by_address = rule.missing == OnMissing::Ip && is_given("ip");
        let is_fixed = |name: &str| matches!(name, "method" | "path");
        let is_missing = |per: &&Per| match per {
            // What stands for the one attribute of a rule is part of its counters.
            Per::Client => rule.per.len() > 1 && !CLIENT_ATTRIBUTES.into_iter().any(&is_given),
            Per::Attribute(name) if is_fixed(name) => !is_given(name),
            Per::Attribute(name) => rule.per.len() > 1 && !is_given(name) && !by_address,
        };
        // What only some alternatives count by has to be said, too: what a request lacks would be another counter.
        let is_other = |per: &&Per| !rule.per.contains(per);
        let mut others: Vec<&Per> = Vec::new();
        for per in rule.all_limits().filter_map(Limit::per).flatten().filter(is_other) {
            if !others.contains(&per) {
                others.push(per);
            }
        }
        let is_unsaid = |per: &&&Per| match per {
            Per::Client => !CLIENT_ATTRIBUTES.into_iter().any(&is_given),
            Per::Attribute(name) => !is_given(name),
        };
        let missing = rule.per.iter().filter(is_missing);
        let missing = missing.chain(others.iter().filter(is_unsaid).copied());
        let missing: Vec<_> = missing.map(|per| per.name().to_owned()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut per = rule.per_names();
        per.extend(others.iter().map(|per| per.name().to_owned()));
        Err(UsageError::Incomplete { rule: rule.name.to_string(), per, missing })
    }

    fn counters(&self, request: &Request<'_>) -> Result<Counters, UsageError> {
        let (snapshot, rule) = (&self.snapshot, self.rule());
        let request = &*snapshot.fold(request);
        let mut key = KeyBuffer::new();
        match write_key(&rule.per, rule.missing, request, &mut key) {
            SubjectKey::Written => {}
            SubjectKey::Skip(per) | SubjectKey::Deny(per) => {
                let (rule, attribute) = (rule.name.to_string(), rule.per[per].name().to_owned());
                return Err(UsageError::MissingAttribute { rule, attribute });
            }
        }
        let boost = match &snapshot.overrides {
            Some(overrides) => {
                snapshot.active_overrides(overrides, self.at, &key, request, self.engine.now()).1
            }
            None => 0,
        };
        let named = snapshot.tier(self.at, request);
        if rule.tiers.limits.is_empty() || request.attribute("tier").is_some() {
            let (tiers, own_tier) = (SmallVec::from_elem(named, 1), OwnTier::Named);
            return Ok(Counters { key, boost, tiers, own_tier });
        }
        let latest = self.engine.latest_tiers.find(rule, &key);
        let own_tier = if latest.is_some() { OwnTier::Latest } else { OwnTier::Unknown };
        let first = latest.unwrap_or(named);
        let others = rule.all_tiers().filter(|tier| *tier != first);
        let tiers = std::iter::once(first).chain(others).collect();
        Ok(Counters { key, boost, tiers, own_tier })
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

    /// Makes the counters of the request's subject fresh. See [`AsyncRuleHandle::reset`].
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

impl<'a> SubjectRequest<'a> {
    fn set(&mut self, name: &'a str, value: &'a str) -> Result<(), InvalidRequest> {
        match name {
            "method" => self.method = value,
            "path" => self.path = value,
            name => {
                // Two parts of a subject may name one attribute.
                let mut others = self.attributes.iter();
                if others.any(|(known, other)| *known == name && *other != value) {
                    return Err(InvalidRequest::DuplicateAttribute { name: name.to_owned() });
                }
                self.attributes.push((name, value));
            }
        }
        Ok(())
    }

    /// Returns the request, of cost 1.
    pub fn request(&self) -> Result<Request<'_>, UsageError> {
        Ok(Request::new(self.method, self.path)?.with_known_attributes(&self.attributes)?)
    }
}
