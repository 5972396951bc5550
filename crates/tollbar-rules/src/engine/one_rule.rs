//! Checks under one rule alone, whatever it matches; and by one value instead of a whole request.

use arrayvec::ArrayVec;
use tollbar::store::block_on;

use super::Engine;
use super::selection::Selection;
use crate::matcher::ItemId;
use crate::snapshot::Snapshot;
use crate::subject::client_attribute;
use crate::usage::unknown;
use crate::{Per, Request, Rule, Usage, UsageError, Verdict};

impl Engine {
    /// May the request pass under `rule`? Charges it if so. What the rule matches is no matter, and
    /// no other rule is looked at; its exemptions, tiers, costs and mode are as usual. One that is not
    /// enabled limits nothing.
    ///
    /// Over a store across a network this blocks the thread; see
    /// [`check_rule_async`](Self::check_rule_async).
    pub fn check_rule(&self, rule: &str, request: &Request<'_>) -> Result<Verdict, UsageError> {
        block_on(self.check_rule_async(rule, request))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn check_rule_async(
        &self,
        rule: &str,
        request: &Request<'_>,
    ) -> Result<Verdict, UsageError> {
        let snapshot = self.snapshot();
        let at = snapshot.find(rule).ok_or_else(|| unknown(&snapshot, rule))?;
        let mut selection = Selection::default();
        self.select_only(&snapshot, at, request, &mut selection);
        Ok(self.verdict_on(&snapshot, &mut selection, request).await)
    }

    /// May `subject` pay `cost` under `rule`? Charges it if so; cost 0 peeks.
    ///
    /// The subject is the value of the one attribute that the rule counts per. Where that is `client`,
    /// it is what a request of that client has: `api:abc`, `user:42` or `ip:203.0.113.7`, each the
    /// same counter as the request's own; any other text is counted as it stands, apart from those.
    /// The rest of the request is empty: no method, the path `/`, no tier.
    ///
    /// ```
    /// use tollbar_rules::{Engine, Request, RuleFile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = "rules: [{ name: per_client, match: { path: /v1/** }, limit: 10/h }]";
    /// let engine = Engine::new(RuleFile::parse("rules.yaml", rules)?.rules);
    ///
    /// let request = Request::new("GET", "/v1/users")?.with_attributes(&[("user", "42")])?;
    /// assert!(engine.check(&request).is_allowed());
    /// let verdict = engine.check_subject("per_client", "user:42", 3, Some("request-7f3a"))?;
    /// assert_eq!(verdict.binding().unwrap().decision().remaining(), 6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_subject(
        &self,
        rule: &str,
        subject: &str,
        cost: u64,
        request_id: Option<&str>,
    ) -> Result<Verdict, UsageError> {
        block_on(self.check_subject_async(rule, subject, cost, request_id))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn check_subject_async(
        &self,
        rule: &str,
        subject: &str,
        cost: u64,
        request_id: Option<&str>,
    ) -> Result<Verdict, UsageError> {
        let snapshot = self.snapshot();
        let (at, small) = Small::find(&snapshot, rule, subject)?;
        let request = small.request()?.with_cost(cost);
        let request = match request_id {
            Some(id) => request.with_request_id(id),
            None => request,
        };
        let mut selection = Selection::default();
        self.select_only(&snapshot, at, &request, &mut selection);
        Ok(self.verdict_on(&snapshot, &mut selection, &request).await)
    }

    /// What `subject` has left of the limits of `rule`. Charges nothing.
    pub fn usage_subject(&self, rule: &str, subject: &str) -> Result<Vec<Usage>, UsageError> {
        block_on(self.usage_subject_async(rule, subject))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn usage_subject_async(
        &self,
        rule: &str,
        subject: &str,
    ) -> Result<Vec<Usage>, UsageError> {
        let snapshot = self.snapshot();
        let (_, small) = Small::find(&snapshot, rule, subject)?;
        self.usage_of(&snapshot, rule, &small.request()?).await
    }

    /// Makes the counters of `subject` under `rule` fresh.
    pub fn reset_subject(&self, rule: &str, subject: &str) -> Result<(), UsageError> {
        block_on(self.reset_subject_async(rule, subject))
    }

    /// The same, without blocking the thread while a store across a network answers.
    pub async fn reset_subject_async(&self, rule: &str, subject: &str) -> Result<(), UsageError> {
        let snapshot = self.snapshot();
        let (_, small) = Small::find(&snapshot, rule, subject)?;
        self.reset_of(&snapshot, rule, &small.request()?).await
    }
}

/// A request of which one value is known.
pub(crate) struct Small<'a> {
    method: &'a str,
    path: &'a str,
    attributes: ArrayVec<(&'a str, &'a str), 1>,
}

impl<'a> Small<'a> {
    fn find(
        snapshot: &'a Snapshot,
        rule: &str,
        subject: &'a str,
    ) -> Result<(ItemId, Self), UsageError> {
        let at = snapshot.find(rule).ok_or_else(|| unknown(snapshot, rule))?;
        Ok((at, Self::of(snapshot.rule(at), subject)?))
    }

    pub(crate) fn of(rule: &'a Rule, subject: &'a str) -> Result<Self, UsageError> {
        let [per] = rule.per.as_slice() else {
            let per = rule.per.iter().map(|per| per.name().to_owned()).collect();
            return Err(UsageError::NotOneAttribute { rule: rule.name.to_string(), per });
        };
        let (name, value) = match per {
            Per::Client => client_attribute(subject),
            Per::Attribute(name) => (&**name, subject),
        };
        if value.is_empty() {
            return Err(UsageError::EmptySubject { rule: rule.name.to_string() });
        }
        let mut small = Self { method: "", path: "/", attributes: ArrayVec::new() };
        match name {
            "method" => small.method = value,
            "path" => small.path = value,
            name => small.attributes.push((name, value)),
        }
        Ok(small)
    }

    pub(crate) fn request(&self) -> Result<Request<'_>, UsageError> {
        Ok(Request::new(self.method, self.path)?.with_known_attributes(&self.attributes)?)
    }
}
