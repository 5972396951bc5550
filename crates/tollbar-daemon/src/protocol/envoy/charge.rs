//! Hits counted in a store: each descriptor by itself as the reference service does, or all or none.
//!
//! The reference adds every hit to its counter and looks afterwards whether that was too much, so denied
//! hits count: whoever goes on after a denial of many hits may be denied fewer that had room before. A
//! counter here goes on beyond the limit as well (see [`EnvoyLimit`]), in one call of the store.

use std::borrow::Cow;
use std::sync::Arc;

use tollbar::{
    Batch, Decision, Entry, Outcome as DecisionOutcome, Role, Store, StoreError, Timestamp,
};
use tollbar_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollbar_rules::{StandaloneLimit, Verdict};

use super::domains::{EnforcementMode, EnvoyRule};
use super::limit::EnvoyLimit;
use crate::metrics::Outcome;

/// The hits that one descriptor adds to one counter, or takes back.
#[derive(Debug)]
pub(super) struct CounterCharge<'t> {
    /// The descriptor, by its place in the call.
    pub(super) descriptor: usize,
    pub(super) key: Vec<u8>,
    /// The rule of the files whose limit it is; `None` for a limit that is brought along.
    pub(super) rule: Option<&'t EnvoyRule>,
    pub(super) limit: Cow<'t, EnvoyLimit>,
    pub(super) mode: EnforcementMode,
    pub(super) hits: Hits,
}

/// How many hits are added or taken back. Adding zero only looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hits {
    Add(u64),
    /// They are taken back, as far as the window that is open now has any.
    Refund(u64),
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CounterReading {
    /// More than the limit, whatever follows from that.
    pub(super) is_over: bool,
    pub(super) remaining: u64,
    pub(super) reset_at: Timestamp,
    /// The hits that were taken back.
    pub(super) refunded: u64,
}

/// Counts each charge by itself, whatever becomes of the others.
pub(super) async fn count_each(
    store: &dyn Store,
    charges: &[CounterCharge<'_>],
) -> Result<Vec<CounterReading>, StoreError> {
    let cost = |charge: &CounterCharge<'_>| charge.limit.charge(charge.hits.cost());
    // One charge by itself is decided sooner than a batch of one.
    if let [charge] = charges {
        let answer = store.check(&charge.key, &charge.limit.counter, cost(charge));
        return Ok(vec![charge.counted(store, answer.await?).await?]);
    }
    let mut entries: Vec<Entry<'_>> = Vec::with_capacity(charges.len());
    for charge in charges {
        let entry = Entry::new(&charge.key, &charge.limit.counter);
        entries.push(entry.with_cost(cost(charge)));
    }
    store.decide(Batch::independent(&mut entries)).await?;
    let mut all = Vec::with_capacity(charges.len());
    for (charge, entry) in charges.iter().zip(&entries) {
        let decision = entry.decision().ok_or_else(undecided)?;
        all.push(charge.counted(store, decision).await?);
    }
    Ok(all)
}

impl CounterCharge<'_> {
    /// What the counter's answer comes to, hits taken back.
    async fn counted(
        &self,
        store: &dyn Store,
        answer: Decision,
    ) -> Result<CounterReading, StoreError> {
        let limit = u64::from(self.limit.requests_per_unit);
        let counter = &self.limit.counter;
        let (remaining, reset_at) = counter_of(answer)?;
        let count = counter.limit().saturating_sub(remaining);
        let Hits::Refund(hits) = self.hits else {
            // A counter that is full denies, and is above the limit.
            let is_over = count > limit || !answer.is_allowed();
            return Ok(CounterReading {
                is_over,
                remaining: limit.saturating_sub(count),
                reset_at,
                refunded: 0,
            });
        };
        // A charge of a window is known by the window's end.
        let refunded = store.refund(&self.key, counter, reset_at.as_micros(), hits).await?;
        let remaining = limit.saturating_sub(count.saturating_sub(refunded));
        // As in the reference: who gives back is never told that it was too much.
        Ok(CounterReading { is_over: false, remaining, reset_at, refunded })
    }

    fn adds(&self) -> bool {
        self.hits.cost() > 0
    }

    /// The name of its limit, where the files give it one.
    pub(super) fn name(&self) -> &str {
        self.rule.map_or("", |rule| &rule.name)
    }

    /// What was decided, as the outcome of a check. A quota that others make up for denies nothing.
    pub(super) fn outcome(&self, reading: CounterReading, is_call_denied: bool) -> Outcome {
        match self.mode {
            _ if !reading.is_over => Outcome::Allow,
            EnforcementMode::Shadow => Outcome::ShadowDeny,
            EnforcementMode::Quota if !is_call_denied => Outcome::Allow,
            EnforcementMode::Enforce | EnforcementMode::Quota => Outcome::Deny,
        }
    }

    /// The verdict that a reading is, for logs and traces, under the [label](Self::label) of its limit.
    pub(super) fn verdict(&self, label: &str, reading: CounterReading, now: Timestamp) -> Verdict {
        let limit = u64::from(self.limit.requests_per_unit);
        let outcome = match reading.is_over {
            false => DecisionOutcome::Allow,
            true if limit == 0 => DecisionOutcome::Never,
            true => DecisionOutcome::Deny {
                retry_after_us: reading.reset_at.as_micros().saturating_sub(now.as_micros()),
            },
        };
        let decision = Decision::new(outcome, limit, reading.remaining, reading.reset_at);
        let make = || self.limit.standalone(label);
        let verdict = |limit: &StandaloneLimit| limit.verdict(self.hits.cost(), decision);
        match (self.rule, &self.limit) {
            // A boosted limit is another one.
            (Some(rule), Cow::Borrowed(_)) => verdict(rule.standalone.get_or_init(make)),
            _ => verdict(&make()),
        }
    }

    /// The name of its limit in logs: `envoy:edge:plan.path`, or by the name that the files give it.
    pub(super) fn label(&self, domain: &str, descriptor: &RateLimitDescriptor) -> String {
        match self.name() {
            "" => {
                let keys: Vec<&str> = descriptor.entries.iter().map(|entry| &*entry.key).collect();
                format!("envoy:{domain}:{}", keys.join("."))
            }
            name => format!("envoy:{domain}:{name}"),
        }
    }
}

impl Hits {
    /// What they cost: hits that are taken back cost nothing.
    pub(super) fn cost(self) -> u64 {
        match self {
            Self::Add(hits) => hits,
            Self::Refund(_) => 0,
        }
    }
}

/// All are counted, or none: where one is over its limit, the counters of the others stay as they were.
/// Hits that are given back are given back in any case.
pub(super) async fn count_all_or_none(
    store: &dyn Store,
    charges: &[CounterCharge<'_>],
    now: Timestamp,
) -> Result<Vec<CounterReading>, StoreError> {
    let is_quota =
        |charge: &CounterCharge<'_>| charge.mode == EnforcementMode::Quota && charge.adds();
    let quota_count = charges.iter().filter(|charge| is_quota(charge)).count();
    let denies = |charge: &CounterCharge<'_>| match charge.mode {
        EnforcementMode::Enforce => true,
        EnforcementMode::Shadow => false,
        // One of many quotas denies nothing; the only one does.
        EnforcementMode::Quota => quota_count == 1,
    };
    // Where nothing passes at all, the others are only looked at.
    let nothing_passes = |charge: &CounterCharge<'_>| {
        charge.limit.bound.is_none() && charge.adds() && denies(charge)
    };
    let is_blocked = charges.iter().any(nothing_passes);

    let mut entries: Vec<Entry<'_>> = Vec::with_capacity(charges.len());
    for charge in charges {
        let Some(bound) = &charge.limit.bound else {
            continue;
        };
        let cost = match charge.hits {
            Hits::Add(hits) if !is_blocked => hits,
            _ => 0,
        };
        let role = if denies(charge) { Role::Enforce } else { Role::Shadow };
        entries.push(Entry::new(&charge.key, bound).with_cost(cost).with_role(role));
    }
    if !entries.is_empty() {
        store.decide(Batch::all_or_none(&mut entries)).await?;
    }

    let mut all = Vec::with_capacity(charges.len());
    let mut answers = entries.iter();
    for charge in charges {
        if charge.limit.bound.is_none() {
            all.push(charge.never(now));
            continue;
        }
        let decision = answers.next().and_then(Entry::decision).ok_or_else(undecided)?;
        let (mut remaining, reset_at) = counter_of(decision)?;
        let mut refunded = 0;
        if let (Hits::Refund(hits), Some(bound)) = (charge.hits, &charge.limit.bound) {
            refunded = store.refund(&charge.key, bound, reset_at.as_micros(), hits).await?;
            remaining = remaining.saturating_add(refunded).min(bound.limit());
        }
        let is_over = !decision.is_allowed();
        all.push(CounterReading { is_over, remaining, reset_at, refunded });
    }
    let over_count = |all: &[CounterReading]| {
        charges
            .iter()
            .zip(all)
            .filter(|(charge, counted)| is_quota(charge) && counted.is_over)
            .count()
    };
    if quota_count > 1 && over_count(&all) == quota_count {
        give_back(store, &entries, charges, &mut all).await?;
    }
    Ok(all)
}

impl CounterCharge<'_> {
    /// The answer where nothing passes: no counter is needed for it.
    pub(super) fn never(&self, now: Timestamp) -> CounterReading {
        let window_us = self.limit.unit.window().as_micros() as u64;
        let end_us = (now.as_micros() / window_us + 1) * window_us;
        CounterReading {
            is_over: self.adds(),
            remaining: 0,
            reset_at: Timestamp::from_micros(end_us),
            refunded: 0,
        }
    }
}

/// The quotas, which deny together, have denied: what the others were charged comes back.
async fn give_back(
    store: &dyn Store,
    entries: &[Entry<'_>],
    charges: &[CounterCharge<'_>],
    all: &mut [CounterReading],
) -> Result<(), StoreError> {
    let mut entries = entries.iter();
    for (charge, counted) in charges.iter().zip(all) {
        if charge.limit.bound.is_none() {
            continue;
        }
        let Some(entry) = entries.next() else {
            break;
        };
        if !counted.is_over && entry.cost() > 0 {
            let stamp = counted.reset_at.as_micros();
            let refunded = store.refund(entry.key(), entry.policy(), stamp, entry.cost()).await?;
            counted.remaining = counted.remaining.saturating_add(refunded);
        }
    }
    Ok(())
}

/// What remains of a counter, and when it resets.
fn counter_of(decision: Decision) -> Result<(u64, Timestamp), StoreError> {
    decision.remaining().zip(decision.reset_at()).ok_or_else(undecided)
}

/// A store that says it has answered, and has not.
fn undecided() -> StoreError {
    StoreError::Unavailable { source: Arc::from(Box::from("the store left a question undecided")) }
}
