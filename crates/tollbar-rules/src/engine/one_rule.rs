//! Checks under one rule alone, whatever it matches; and by one value instead of a whole request.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::selection::Selection;
use super::{Admission, AsyncEngine};
use crate::matcher::ItemId;
use crate::snapshot::Snapshot;
use crate::subject::client_attribute;
use crate::usage::unknown;
use crate::{Per, Request, Rule, Usage, UsageError, Verdict};

impl AsyncEngine {
    /// Decides whether the request may pass under `rule`, and charges it if so. What the rule matches does
    /// not matter, and no other rule is looked at; its exemptions, tiers, costs and mode are as usual.
    /// A rule that is not enabled limits nothing.
    pub async fn admit_rule(
        &self,
        rule: &str,
        request: &Request<'_>,
    ) -> Result<Admission, UsageError> {
        let snapshot = self.snapshot();
        let at = snapshot.find(rule).ok_or_else(|| unknown(&snapshot, rule))?;
        Ok(self.admit_only(snapshot, at, request).await)
    }

    /// Decides whether `subject` may pay `cost` under `rule`, and charges it if so; cost 0 peeks.
    ///
    /// The subject is the value of the one attribute that the rule counts per. If that is `client`, the
    /// subject is what a request of that client has: `api:abc`, `user:42` or `ip:203.0.113.7`, each the
    /// same counter as the request's own; any other text is counted as it stands, apart from those.
    /// The rest of the request is empty: no method, the path `/`, no tier.
    pub async fn admit_subject(
        &self,
        rule: &str,
        subject: &str,
        cost: u64,
        request_id: Option<&str>,
    ) -> Result<Admission, UsageError> {
        let snapshot = self.snapshot();
        let (at, small) = Small::find(&snapshot, rule, subject)?;
        let request = small.request()?.with_cost(cost);
        let request = match request_id {
            Some(id) => request.with_request_id(id),
            None => request,
        };
        Ok(self.admit_only(Arc::clone(&snapshot), at, &request).await)
    }

    async fn admit_only(
        &self,
        snapshot: Arc<Snapshot>,
        rule: ItemId,
        request: &Request<'_>,
    ) -> Admission {
        let mut selection = Selection::default();
        self.select_only(&snapshot, rule, request, &mut selection);
        let mut admission = Admission { verdict: Verdict::unmade(snapshot), hold: None };
        admission.hold = self.decide(request, None, &mut selection, &mut admission.verdict).await;
        admission
    }

    /// What `subject` has left of the limits of `rule`. Charges nothing.
    pub async fn usage_subject(&self, rule: &str, subject: &str) -> Result<Vec<Usage>, UsageError> {
        let snapshot = self.snapshot();
        let (_, small) = Small::find(&snapshot, rule, subject)?;
        self.usage_of(&snapshot, rule, &small.request()?).await
    }

    /// Makes the counters of `subject` under `rule` fresh.
    pub async fn reset_subject(&self, rule: &str, subject: &str) -> Result<(), UsageError> {
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
