//! What a subject has used of a rule's limits, without charging anything.

use std::time::Duration;

use arrayvec::ArrayVec;
use thiserror::Error;
use tollbar::{Batch, Entry, Policy, StoreError, Timestamp};

use crate::rule_set::LIMITS_PER_RULE_MAX;
use crate::snapshot::Snapshot;
use crate::subject::{Found, KeyBuffer, readable, write_key};
use crate::suggest::nearest;
use crate::top::Limited;
use crate::{AsyncEngine, Limit, Request, RequestError};

/// What is left of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The limit as it was written.
    pub text: String,
    /// Whom it counts, for people.
    pub subject: String,
    /// Tokens a window.
    pub limit: u64,
    /// The largest cost that would pass now.
    pub remaining: u64,
    /// The window's end; for a bucket, when it is full again.
    pub reset_at: Timestamp,
    /// The window.
    pub window: Duration,
}

/// Why there is nothing to be told.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum UsageError {
    /// There is no such rule.
    #[error("there is no rule `{rule}`{}", did_you_mean(suggestion.as_deref()))]
    UnknownRule {
        /// The name asked for.
        rule: String,
        /// A name that is near.
        suggestion: Option<String>,
    },
    /// The request does not say whom the rule would count.
    #[error("rule `{rule}` counts per `{attribute}`, which the request lacks: send it")]
    MissingAttribute {
        /// The rule.
        rule: String,
        /// The attribute.
        attribute: String,
    },
    /// A subject is one value, and the rule counts by none or by several.
    #[error(
        "rule `{rule}` counts {}, which one subject does not tell: send a request with its attributes",
        per_text(per)
    )]
    NotOneAttribute {
        /// The rule.
        rule: String,
        /// What it counts per.
        per: Vec<String>,
    },
    /// A subject that names nobody.
    #[error("the subject is empty: send whom rule `{rule}` counts")]
    EmptySubject {
        /// The rule.
        rule: String,
    },
    /// The subject is not one that a request could have.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The store cannot answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The limits of a rule that a request would be under, and its key.
struct Place<'s> {
    limits: &'s [Limit],
    policies: &'s [Policy],
    key: KeyBuffer,
}

impl AsyncEngine {
    /// What the request's subject has left of the limits of `rule`, whether or not the rule applies
    /// to the request. Charges nothing. An unlimited tier has no limits.
    pub async fn usage(&self, rule: &str, request: &Request<'_>) -> Result<Vec<Usage>, UsageError> {
        self.usage_of(&self.snapshot(), rule, request).await
    }

    pub(crate) async fn usage_of(
        &self,
        snapshot: &Snapshot,
        rule: &str,
        request: &Request<'_>,
    ) -> Result<Vec<Usage>, UsageError> {
        let place = Place::find(snapshot, rule, request, self.now())?;
        let ask = |policy| Entry::new(&*place.key, policy).with_cost(0);
        let mut entries: ArrayVec<Entry<'_>, LIMITS_PER_RULE_MAX> =
            place.policies.iter().map(ask).collect();
        self.store().decide(Batch::all_or_none(&mut entries)).await?;
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
        Ok(entries.iter().zip(place.limits).filter_map(usage).collect())
    }

    /// Makes the counters of the request's subject under `rule` fresh.
    pub async fn reset(&self, rule: &str, request: &Request<'_>) -> Result<(), UsageError> {
        self.reset_of(&self.snapshot(), rule, request).await
    }

    pub(crate) async fn reset_of(
        &self,
        snapshot: &Snapshot,
        rule: &str,
        request: &Request<'_>,
    ) -> Result<(), UsageError> {
        let place = Place::find(snapshot, rule, request, self.now())?;
        for policy in place.policies {
            self.store().reset(&place.key, policy).await?;
        }
        Ok(())
    }

    /// The keys that `rule` has denied most often since it has been there, the first first: at most
    /// 256, by a sketch of bounded size.
    pub fn top_limited(&self, rule: &str, count: usize) -> Result<Vec<Limited>, UsageError> {
        let snapshot = self.snapshot();
        let at = snapshot.find(rule).ok_or_else(|| unknown(&snapshot, rule))?;
        Ok(snapshot.plan(at).top.list(count))
    }
}

impl<'s> Place<'s> {
    fn find(
        snapshot: &'s Snapshot,
        name: &str,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Self, UsageError> {
        let at = snapshot.find(name).ok_or_else(|| unknown(snapshot, name))?;
        let rule = snapshot.rule(at);
        let mut key = KeyBuffer::new();
        match write_key(&rule.per, rule.missing, request, &mut key) {
            Found::Key => {}
            Found::Skip(per) | Found::Deny(per) => {
                let (rule, attribute) = (name.to_owned(), rule.per[per].name().to_owned());
                return Err(UsageError::MissingAttribute { rule, attribute });
            }
        }
        let tier = snapshot.tier(at, request);
        let boost = match &snapshot.overrides {
            Some(overrides) => snapshot.said(overrides, at, &key, request, now).1,
            None => 0,
        };
        let policies = snapshot.policies(at, tier, boost).unwrap_or_default();
        Ok(Self { limits: rule.limits_of(tier), policies, key })
    }
}

fn per_text(per: &[String]) -> String {
    if per.is_empty() { "everybody together".to_owned() } else { format!("per {}", per.join(", ")) }
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |it| format!(": did you mean `{it}`?"))
}

pub(crate) fn unknown(snapshot: &Snapshot, name: &str) -> UsageError {
    let names = snapshot.rules.rules().iter().map(|rule| &*rule.name);
    let suggestion = nearest(name, names).map(str::to_owned);
    UsageError::UnknownRule { rule: crate::pattern::shorten(name), suggestion }
}
