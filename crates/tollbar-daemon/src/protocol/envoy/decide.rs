//! A plan carried out: counted in the store, asked of the rules, all or none of it where that is wanted.

use std::sync::Once;
use std::time::Duration;

use tollbar::Timestamp;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_rules::{Hold, Verdict};
use tonic::Status;
use tracing::warn;

use super::charge;
use super::charge::{CounterCharge, CounterReading, Hits};
use super::charge_plan::{ChargePlan, Step, bad_descriptor};
use super::descriptor_request::DescriptorRequest;
use super::domains::EnforcementMode;
use super::response;
use super::response::DescriptorResult;
use super::{ChargeBy, Envoy};

/// How long what rules have charged for one descriptor can be given back because another is denied.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(10);

/// The verdict of our own rules on one descriptor, and what they have charged for it.
struct DescriptorVerdict {
    result: DescriptorResult,
    hold: Option<Hold>,
    /// What is to be counted as usage, once it is known that nothing is given back.
    usage: Option<PendingUsage>,
}

/// Usage to be metered once it is known that nothing is given back.
struct PendingUsage {
    at: usize,
    cost: u64,
    verdict: Verdict,
}

impl Envoy {
    pub(super) async fn decide(
        &self,
        request: &RateLimitRequest,
        mut plan: ChargePlan<'_>,
    ) -> Result<Vec<DescriptorResult>, Status> {
        let now = self.daemon.now();
        let is_one = self.config.charge == ChargeBy::AllOrNone && plan.steps.len() > 1;
        let mut ruled_descriptors = Vec::new();
        for (at, step) in plan.steps.iter().enumerate() {
            if let Step::CheckRules { cost } = step {
                match self.rule(at, request, *cost, is_one, now).await {
                    Ok(descriptor) => ruled_descriptors.push(descriptor),
                    Err(status) => {
                        self.give_back(&ruled_descriptors).await;
                        return Err(status);
                    }
                }
            }
        }
        if is_one && ruled_descriptors.iter().any(|it| it.result.is_over()) {
            // Denied as it is: the rest is only looked at.
            for charge in &mut plan.charges {
                if let Hits::Add(hits) = &mut charge.hits {
                    *hits = 0;
                }
            }
        }
        let charges = &plan.charges;
        let counted = match self.config.charge {
            _ if charges.is_empty() => Ok(Vec::new()),
            ChargeBy::Independent => charge::count_each(&*self.store, charges).await,
            ChargeBy::AllOrNone => charge::count_all_or_none(&*self.store, charges, now).await,
        };
        let counted = match counted {
            Ok(counted) => counted,
            // Envoy lets calls pass that are not answered, and this one never would be.
            Err(error) if !error.is_outage() => {
                static WARNED: Once = Once::new();
                WARNED.call_once(
                    || warn!(%error, "a call of Envoy's is denied: it cannot be counted"),
                );
                charges.iter().map(|charge| charge.never(now)).collect()
            }
            Err(error) => {
                self.give_back(&ruled_descriptors).await;
                // UNAVAILABLE, so that Envoy's own `failure_mode_deny` says what follows.
                return Err(Status::unavailable(error.to_string()));
            }
        };
        self.report_ahead_of_clock(charges, &counted, now).await;
        let answer = |ruled: &mut dyn Iterator<Item = DescriptorResult>, step: &Step<'_>| match step
        {
            Step::Unlimited => DescriptorResult::unlimited(),
            Step::Count { at, name } => {
                let charge = &charges[*at];
                DescriptorResult::counted(&charge.limit, name, charge.mode, counted[*at], now)
            }
            Step::CheckRules { .. } => ruled.next().unwrap_or_else(DescriptorResult::free),
            Step::Free => DescriptorResult::free(),
        };
        let mut answers = Vec::new();
        let (mut holds, mut usages) = (Vec::new(), Vec::new());
        for descriptor in ruled_descriptors {
            answers.push(descriptor.result);
            holds.extend(descriptor.hold);
            usages.extend(descriptor.usage);
        }
        let mut ruled = answers.into_iter();
        let answers: Vec<DescriptorResult> =
            plan.steps.iter().map(|step| answer(&mut ruled, step)).collect();
        for (step, result) in plan.steps.iter().zip(&answers) {
            if matches!(step, Step::Count { .. }) {
                self.daemon.count(!result.is_over());
            }
        }
        let is_given_back = is_one && response::is_denied(&answers);
        if is_given_back {
            self.give_back_all(holds.iter()).await;
        }
        for PendingUsage { at, cost, verdict } in usages {
            let descriptor_request =
                DescriptorRequest::of(&request.domain, &request.descriptors[at]);
            if let Ok(descriptor_request) = descriptor_request
                && let Ok(rule_request) = descriptor_request.request(cost)
                && !(is_given_back && verdict.is_allowed())
            {
                self.daemon.meter(&verdict, &rule_request);
            }
        }
        Ok(answers)
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
        for (CounterCharge { key, limit, mode, .. }, it) in charges.iter().zip(counted) {
            if it.is_over && *mode != EnforcementMode::Shadow {
                let (engine, wait) = (&self.daemon.engine, it.reset_at.since(now));
                engine.denied_elsewhere("Envoy", key, &limit.counter, wait).await;
            }
        }
    }

    /// By our own rules; to be given back, perhaps.
    async fn rule(
        &self,
        at: usize,
        request: &RateLimitRequest,
        cost: u64,
        is_one_of_many: bool,
        now: Timestamp,
    ) -> Result<DescriptorVerdict, Status> {
        let bad = |error| bad_descriptor(at, &format!("{error}"));
        let descriptor_request =
            DescriptorRequest::of(&request.domain, &request.descriptors[at]).map_err(bad)?;
        let rule_request = descriptor_request.request(cost).map_err(bad)?;
        let (verdict, hold) = if is_one_of_many {
            let admission = self.daemon.engine.admit(&rule_request, Some(GIVEN_BACK_WITHIN)).await;
            self.daemon.count_verdict(&admission.verdict);
            (admission.verdict, admission.hold)
        } else {
            let (admission, _) = self.daemon.admit(&rule_request, None).await;
            (admission.verdict, admission.hold)
        };
        if let Some(rule) = in_flight(&verdict) {
            self.give_back_all(hold.iter()).await;
            return Err(Status::failed_precondition(format!(
                "rule `{rule}` limits what is in flight, and Envoy gives nothing back: add a condition \
                 to the rule that requests of the domain `{}` do not meet",
                request.domain
            )));
        }
        let result = DescriptorResult::ruled(&verdict, now);
        // A check by itself has been counted already.
        let is_open = is_one_of_many && self.daemon.is_metered();
        let usage = is_open.then_some(PendingUsage { at, cost, verdict });
        Ok(DescriptorVerdict { result, hold, usage })
    }

    async fn give_back(&self, ruled_descriptors: &[DescriptorVerdict]) {
        self.give_back_all(ruled_descriptors.iter().filter_map(|it| it.hold.as_ref())).await;
    }

    /// Gives back what was charged. If the store cannot do it, it stays charged: never too much passes.
    async fn give_back_all(&self, holds: impl Iterator<Item = &Hold>) {
        let engine = &self.daemon.engine;
        for hold in holds {
            if hold.is_reservation() {
                let _ = engine.cancel(hold).await;
            } else {
                let _ = engine.release(hold).await;
            }
        }
    }
}

/// The first rule of a verdict that counts permits.
fn in_flight(verdict: &Verdict) -> Option<String> {
    let mut decisions = verdict.decisions();
    let decision = decisions.find(|it| it.limit().policy().has_permits())?;
    Some(decision.rule().name.to_string())
}
