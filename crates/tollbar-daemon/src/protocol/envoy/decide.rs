//! A plan carried out: asked of the rules, counted in the store, all or none of it where that is wanted.
//!
//! Envoy lets calls pass that are answered with an error, unless it is told otherwise. So a call is denied
//! wherever that is known, also if something else about it is not: what cannot be decided denies, and an
//! outage is reported only where nothing else has denied.

use std::borrow::Cow;
use std::sync::Once;
use std::time::Duration;

use tollbar::{StoreError, Timestamp};
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_rules::{
    Admission, GLOBAL_BAN, Hold, UsageAmounts, UsageRecord, Verdict, meter_standalone,
};
use tonic::Status;
use tracing::warn;

use super::charge;
use super::charge::{CounterCharge, CounterReading, Hits};
use super::charge_plan::{ChargePlan, DescriptorStep, RuleCheck};
use super::descriptor_request::{CallFacts, facts_of};
use super::domains::EnforcementMode;
use super::response;
use super::response::DescriptorResult;
use super::{ChargeBy, Envoy};
use crate::daemon::{Check, Daemon};
use crate::decision_log::{DecisionId, LoggedRequest};
use crate::metrics::Outcome;

/// How long what rules have charged for one descriptor can be given back because another is denied.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(10);

/// The verdict of our own rules on one request, and what they have charged for it.
struct CheckedRequest {
    /// The descriptor that reports it.
    at: usize,
    result: DescriptorResult,
    outcome: Outcome,
    hold: Option<Hold>,
    /// The verdict, where usage is counted: that is done once it is known how the whole call ends.
    unmetered: Option<Verdict>,
}

/// A descriptor that is denied by a ban, or because it cannot be decided.
struct BannedDescriptor {
    at: usize,
    result: DescriptorResult,
    /// What it asked for, where no rule has accounted for it.
    cost: u64,
}

/// Counts the usage of one call, which is one request whatever the number of its descriptors.
struct CallUsage<'a> {
    daemon: &'a Daemon,
    is_denied: bool,
    is_request_counted: bool,
}

impl CallUsage<'_> {
    fn count(&mut self, mut record: UsageRecord<'_>) {
        // Hits that are taken back are of a request that was counted when it was charged.
        let is_charge = record.amounts.admitted >= 0;
        let counts = i64::from(is_charge && !self.is_request_counted);
        self.is_request_counted |= is_charge;
        let (admitted, denied) = if self.is_denied { (0, counts) } else { (counts, 0) };
        record.amounts.admitted_requests = admitted;
        record.amounts.denied_requests = denied;
        self.daemon.count_usage(&record);
    }
}

impl Envoy {
    pub(super) async fn decide(
        &self,
        request: &RateLimitRequest,
        mut plan: ChargePlan<'_>,
    ) -> Result<Vec<DescriptorResult>, Status> {
        let now = self.daemon.now();
        let is_rejected = plan.is_rejected();
        let part_count = plan.checks.len() + plan.charges.len() + usize::from(is_rejected);
        let is_joint = self.config.charge == ChargeBy::AllOrNone && part_count > 1;
        self.report_rejections(request, &plan);
        let mut checked = Vec::with_capacity(plan.checks.len());
        for check in &plan.checks {
            // Denied as it is: the rest is only looked at.
            let cost = if is_joint && is_rejected { 0 } else { check.cost };
            checked.push(self.check_rules(request, &plan, check, cost, is_joint, now).await);
        }
        let banned = if self.config.has_rules && self.daemon.engine.has_overrides() {
            self.apply_overrides(request, &mut plan.charges, now)
        } else {
            Vec::new()
        };
        let is_denied = is_rejected || checked.iter().any(|checked| checked.result.is_over());
        if is_joint && is_denied || !banned.is_empty() {
            for charge in &mut plan.charges {
                if let Hits::Add(hits) = &mut charge.hits {
                    *hits = 0;
                }
            }
        }
        let charges = &plan.charges;
        let began: Vec<Option<Check>> =
            charges.iter().map(|charge| self.daemon.begin_standalone(charge.hits.cost())).collect();
        let counted = match self.count(charges, now).await {
            Ok(counted) => Some(counted),
            // UNAVAILABLE, so that Envoy's own `failure_mode_deny` says what follows.
            Err(error) if !is_denied && banned.is_empty() => {
                self.give_back(checked.iter()).await;
                // Envoy lets it pass unless `failure_mode_deny` is set.
                for _ in charges.iter().filter(|charge| charge.hits.cost() > 0) {
                    self.daemon.count(Outcome::DegradedAllow);
                }
                return Err(Status::unavailable(error.to_string()));
            }
            Err(_) => None,
        };
        if let Some(counted) = &counted {
            self.report_ahead_of_clock(charges, counted, now).await;
        }
        let jitter = self.daemon.client_headers.jitter;
        let reading = |at: usize| counted.as_ref().map(|counted| counted[at]);
        let result = |step: &DescriptorStep| match step {
            DescriptorStep::Unlimited => DescriptorResult::unlimited(),
            DescriptorStep::Count(at) => match reading(*at) {
                Some(reading) => DescriptorResult::counted(&charges[*at], reading, jitter, now),
                None => DescriptorResult::free(),
            },
            DescriptorStep::CheckRules | DescriptorStep::Free | DescriptorStep::Replaced => {
                DescriptorResult::free()
            }
            DescriptorStep::Reject(_) => DescriptorResult::rejected(),
        };
        let mut results: Vec<DescriptorResult> = plan.steps.iter().map(result).collect();
        let is_ruled = checked.iter().any(|checked| checked.outcome != Outcome::NoRule);
        for CheckedRequest { at, result, .. } in &mut checked {
            results[*at].join(std::mem::replace(result, DescriptorResult::free()));
        }
        let mut denied_by_ban = Vec::with_capacity(banned.len());
        for BannedDescriptor { at, result, cost } in banned {
            results[at].join(result);
            denied_by_ban.push((at, cost));
        }
        let is_call_denied = response::is_denied(&results);
        for (at, (charge, began)) in charges.iter().zip(began).enumerate() {
            if let Some(reading) = reading(at) {
                let outcome = charge.outcome(reading, is_call_denied);
                let id = self.conclude_charge(request, charge, reading, outcome, began, now);
                let result = &mut results[charge.descriptor];
                result.decision_id = result.decision_id.or(id);
            }
        }
        for step in &plan.steps {
            if matches!(step, DescriptorStep::Free) && !is_ruled {
                self.daemon.count(Outcome::NoRule);
            }
        }
        if is_joint && is_call_denied {
            self.give_back(checked.iter()).await;
            for CheckedRequest { unmetered, .. } in &mut checked {
                unmetered.take_if(|verdict| verdict.is_allowed());
            }
        }
        if self.daemon.is_metered() {
            let counted = counted.as_deref().unwrap_or_default();
            self.meter_call(request, &plan, &checked, &denied_by_ban, counted, is_call_denied);
        }
        Ok(results)
    }

    /// Logs and counts the descriptors that cannot be decided.
    fn report_rejections(&self, request: &RateLimitRequest, plan: &ChargePlan<'_>) {
        for (at, step) in plan.steps.iter().enumerate() {
            if let DescriptorStep::Reject(why) = step {
                self.daemon
                    .reject(&format!("domain `{}`, descriptors[{at}]: {why}", request.domain));
            }
        }
    }

    /// Counts the usage of a call: by rules, of descriptors that a ban denies, and by counters. `counted` is empty if they
    /// were not read.
    fn meter_call(
        &self,
        request: &RateLimitRequest,
        plan: &ChargePlan<'_>,
        checked: &[CheckedRequest],
        denied_by_ban: &[(usize, u64)],
        counted: &[CounterReading],
        is_denied: bool,
    ) {
        let daemon = &self.daemon;
        let mut usage = CallUsage { daemon, is_denied, is_request_counted: false };
        for (check, checked) in plan.checks.iter().zip(checked) {
            if let Some(verdict) = &checked.unmetered
                && let Ok(rule_request) = check.request.request(check.cost)
            {
                verdict.meter(&rule_request, |record| usage.count(record));
            }
        }
        for (at, cost) in denied_by_ban.iter().filter(|(_, cost)| *cost > 0) {
            let amounts = UsageAmounts::of_request(*cost, false, true);
            let facts: Vec<_> = facts_of(&request.descriptors[*at]).collect();
            meter_standalone(GLOBAL_BAN, &facts, amounts, |record| usage.count(record));
        }
        for (charge, reading) in plan.charges.iter().zip(counted) {
            self.meter_charge(request, charge, *reading, &mut usage);
        }
    }

    /// Counts the usage of one charge. Shadows are not usage; hits that are taken back are usage below zero.
    fn meter_charge(
        &self,
        request: &RateLimitRequest,
        charge: &CounterCharge<'_>,
        reading: CounterReading,
        usage: &mut CallUsage<'_>,
    ) {
        if charge.mode == EnforcementMode::Shadow {
            return;
        }
        let cost = charge.hits.cost();
        let is_uncharged = self.config.charge == ChargeBy::AllOrNone && usage.is_denied;
        let mut amounts = match charge.outcome(reading, usage.is_denied) {
            Outcome::Deny => UsageAmounts::of_request(cost, false, false),
            Outcome::Allow if reading.is_over || is_uncharged => UsageAmounts::default(),
            Outcome::Allow => UsageAmounts::of_request(cost, true, false),
            _ => UsageAmounts::default(),
        };
        amounts.admitted -= i64::try_from(reading.refunded).unwrap_or(i64::MAX);
        if amounts == UsageAmounts::default() {
            return;
        }
        let facts: Vec<_> = facts_of(&request.descriptors[charge.descriptor]).collect();
        let label = charge.label(&request.domain, &request.descriptors[charge.descriptor]);
        meter_standalone(&label, &facts, amounts, |record| usage.count(record));
    }

    /// Counts what files, or descriptors themselves, limit. A mistake is never answered by counting again, so
    /// it denies; an outage is an error.
    async fn count(
        &self,
        charges: &[CounterCharge<'_>],
        now: Timestamp,
    ) -> Result<Vec<CounterReading>, StoreError> {
        let counted = match self.config.charge {
            _ if charges.is_empty() => return Ok(Vec::new()),
            ChargeBy::Independent => charge::count_each(&*self.store, charges).await,
            ChargeBy::AllOrNone => charge::count_all_or_none(&*self.store, charges, now).await,
        };
        match counted {
            Err(error) if !error.is_outage() => {
                static WARNED: Once = Once::new();
                WARNED.call_once(
                    || warn!(%error, "a call of Envoy's is denied: it cannot be counted"),
                );
                Ok(charges.iter().map(|charge| charge.never(now)).collect())
            }
            counted => counted,
        }
    }

    /// Has the engine look for counters that are ahead of the clock. Only in memory: there the end of a
    /// window and `now` are by the same clock.
    async fn report_ahead_of_clock(
        &self,
        charges: &[CounterCharge<'_>],
        counted: &[CounterReading],
        now: Timestamp,
    ) {
        if self.daemon.counters.memory().is_none() {
            return;
        }
        for (CounterCharge { key, limit, mode, .. }, reading) in charges.iter().zip(counted) {
            if reading.is_over && *mode != EnforcementMode::Shadow {
                let (engine, wait) = (&self.daemon.engine, reading.reset_at.since(now));
                engine.denied_elsewhere("Envoy", key, &limit.counter, wait).await;
            }
        }
    }

    /// By our own rules; to be given back, perhaps, where it is one of several that are charged together.
    async fn check_rules(
        &self,
        request: &RateLimitRequest,
        plan: &ChargePlan<'_>,
        check: &RuleCheck<'_>,
        cost: u64,
        is_joint: bool,
        now: Timestamp,
    ) -> CheckedRequest {
        let at = check.at;
        let rule_request = match check.request.request(cost) {
            Ok(rule_request) => rule_request,
            Err(error) => {
                let domain = &request.domain;
                self.daemon.reject(&format!("domain `{domain}`, descriptors[{at}]: {error}"));
                let (result, outcome) = (DescriptorResult::rejected(), Outcome::Rejected);
                return CheckedRequest { at, result, outcome, hold: None, unmetered: None };
            }
        };
        let began = self.daemon.begin(cost);
        let reserve_for = is_joint.then_some(GIVEN_BACK_WITHIN);
        let Admission { verdict, hold } = self.daemon.decide(&rule_request, reserve_for).await;
        let outcome = Outcome::from_verdict(&verdict);
        if verdict.permit_limits_skipped() > 0 {
            self.daemon.metrics.count_permit_limits_skipped(verdict.permit_limits_skipped());
        }
        // A call that the files limit is not one without a limit.
        if !(plan.is_of_files && outcome == Outcome::NoRule) {
            self.daemon.conclude(&verdict, &began, || LoggedRequest::from_request(&rule_request));
        }
        let jitter = self.daemon.client_headers.jitter;
        let mut result = DescriptorResult::ruled(&verdict, jitter, now);
        result.decision_id = outcome.is_denial().then_some(began.id);
        let unmetered = self.daemon.is_metered().then_some(verdict);
        CheckedRequest { at, result, outcome, hold, unmetered }
    }

    /// Multiplies the limits of what is boosted under every rule, and returns the descriptors that are denied
    /// because their subject is banned. Rules have looked for bans themselves, but they do not decide what brings
    /// its own limit.
    fn apply_overrides(
        &self,
        request: &RateLimitRequest,
        charges: &mut [CounterCharge<'_>],
        now: Timestamp,
    ) -> Vec<BannedDescriptor> {
        let jitter = self.daemon.client_headers.jitter;
        let mut banned = Vec::new();
        let facts = CallFacts::new(request);
        for charge in charges {
            let at = charge.descriptor;
            let completed = match &facts {
                Ok(facts) => facts.requests_of(at).next().transpose(),
                Err(error) => Err(error.clone()),
            };
            let rule_request = match &completed {
                Ok(None) => continue,
                Ok(Some(completed)) => completed.request(charge.hits.cost()),
                Err(error) => Err(error.clone()),
            };
            let rule_request = match rule_request {
                Ok(rule_request) => rule_request,
                // Rules have said so already, but not of what brings its own limit.
                Err(_) if charge.rule.is_some() => continue,
                Err(error) => {
                    let domain = &request.domain;
                    self.daemon.reject(&format!("domain `{domain}`, descriptors[{at}]: {error}"));
                    let result = DescriptorResult::rejected();
                    banned.push(BannedDescriptor { at, result, cost: 0 });
                    continue;
                }
            };
            let overrides = self.daemon.engine.global_overrides(&rule_request);
            if let Some(factor_percent) = overrides.factor_percent {
                charge.limit = Cow::Owned(charge.limit.boosted(factor_percent));
            }
            if let Some(verdict) = overrides.ban.filter(|_| charge.hits.cost() > 0) {
                let mut result = DescriptorResult::ruled(&verdict, jitter, now);
                let mut cost = 0;
                if charge.rule.is_none() {
                    cost = charge.hits.cost();
                    let began = self.daemon.begin(cost);
                    let logged = || LoggedRequest::from_request(&rule_request);
                    self.daemon.conclude(&verdict, &began, logged);
                    result.decision_id = Some(began.id);
                }
                banned.push(BannedDescriptor { at, result, cost });
            }
        }
        banned
    }

    /// Counts, traces and records what one charge came to.
    fn conclude_charge(
        &self,
        request: &RateLimitRequest,
        charge: &CounterCharge<'_>,
        reading: CounterReading,
        outcome: Outcome,
        began: Option<Check>,
        now: Timestamp,
    ) -> Option<DecisionId> {
        let (cost, domain) = (charge.hits.cost(), &request.domain);
        let (mut entries, mut label) = (Vec::new(), String::new());
        if outcome.is_denial() || began.is_some() {
            let descriptor = &request.descriptors[charge.descriptor];
            entries.extend(descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)));
            label = charge.label(domain, descriptor);
        }
        let verdict = || charge.verdict(&label, reading, now);
        let logged = || LoggedRequest::attributes(&label, &entries, cost);
        self.daemon.conclude_standalone(outcome, cost, began, verdict, logged)
    }

    /// Gives back what was charged. If the store cannot do it, it stays charged: never too much passes.
    async fn give_back(&self, checked: impl Iterator<Item = &CheckedRequest>) {
        for hold in checked.filter_map(|checked| checked.hold.as_ref()) {
            if let Err(error) = self.daemon.engine.cancel(hold).await {
                self.daemon.report_hold_failure(&error);
            }
        }
    }
}
