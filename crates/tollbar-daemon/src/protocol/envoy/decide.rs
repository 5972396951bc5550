//! A plan carried out: counted in the store, asked of the rules, all or none of it where that is wanted.

use std::sync::Once;
use std::time::Duration;

use tollbar::Timestamp;
use tollbar_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollbar_rules::{Hold, Verdict};
use tonic::Status;
use tracing::warn;

use super::charge;
use super::charge::{CounterReading, Hits, Question};
use super::charge_plan::{Plan, Step, bad_descriptor};
use super::descriptor_request::Facts;
use super::domains::Mode;
use super::response;
use super::response::DescriptorAnswer;
use super::{ChargeBy, Envoy};

/// How long what rules have charged for one descriptor can be given back because another is denied.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(10);

/// What rules have said, and what they have charged for it.
struct Ruling {
    answered: DescriptorAnswer,
    hold: Option<Hold>,
    /// What is to be counted as usage, once it is known that nothing is given back.
    usage: Option<Usage>,
}

/// What rules have said to the descriptor in this place.
struct Usage {
    at: usize,
    cost: u64,
    verdict: Verdict,
}

impl Envoy {
    pub(super) async fn decide(
        &self,
        request: &RateLimitRequest,
        mut plan: Plan<'_>,
    ) -> Result<Vec<DescriptorAnswer>, Status> {
        let now = self.daemon.now();
        let is_one = self.options.charge == ChargeBy::AllOrNone && plan.steps.len() > 1;
        let mut rulings = Vec::new();
        for (at, step) in plan.steps.iter().enumerate() {
            if let Step::Ruled { cost } = step {
                match self.rule(at, request, *cost, is_one, now).await {
                    Ok(ruling) => rulings.push(ruling),
                    Err(status) => {
                        self.give_back(&rulings).await;
                        return Err(status);
                    }
                }
            }
        }
        if is_one && rulings.iter().any(|it| it.answered.is_over()) {
            // Denied as it is: the rest is only looked at.
            for question in &mut plan.questions {
                if let Hits::Add(hits) = &mut question.hits {
                    *hits = 0;
                }
            }
        }
        let questions = &plan.questions;
        let counted = match self.options.charge {
            _ if questions.is_empty() => Ok(Vec::new()),
            ChargeBy::Independent => charge::count_each(&*self.store, questions).await,
            ChargeBy::AllOrNone => charge::count_all_or_none(&*self.store, questions, now).await,
        };
        let counted = match counted {
            Ok(counted) => counted,
            // Envoy lets calls pass that are not answered, and this one never would be.
            Err(error) if !error.is_outage() => {
                static WARNED: Once = Once::new();
                WARNED.call_once(
                    || warn!(%error, "a call of Envoy's is denied: it cannot be counted"),
                );
                questions.iter().map(|question| question.never(now)).collect()
            }
            Err(error) => {
                self.give_back(&rulings).await;
                // UNAVAILABLE, so that Envoy's own `failure_mode_deny` says what follows.
                return Err(Status::unavailable(error.to_string()));
            }
        };
        self.look_ahead(questions, &counted, now).await;
        let answer = |ruled: &mut dyn Iterator<Item = DescriptorAnswer>, step: &Step<'_>| match step
        {
            Step::Unlimited => DescriptorAnswer::unlimited(),
            Step::Counted { at, name } => {
                let question = &questions[*at];
                DescriptorAnswer::counted(&question.limit, name, question.mode, counted[*at], now)
            }
            Step::Ruled { .. } => ruled.next().unwrap_or_else(DescriptorAnswer::free),
            Step::Free => DescriptorAnswer::free(),
        };
        let mut answers = Vec::new();
        let (mut holds, mut usages) = (Vec::new(), Vec::new());
        for ruling in rulings {
            answers.push(ruling.answered);
            holds.extend(ruling.hold);
            usages.extend(ruling.usage);
        }
        let mut ruled = answers.into_iter();
        let answers: Vec<DescriptorAnswer> =
            plan.steps.iter().map(|step| answer(&mut ruled, step)).collect();
        for (step, answered) in plan.steps.iter().zip(&answers) {
            if matches!(step, Step::Counted { .. }) {
                self.daemon.count(!answered.is_over());
            }
        }
        let is_given_back = is_one && response::is_denied(&answers);
        if is_given_back {
            self.give_back_all(holds.iter()).await;
        }
        for Usage { at, cost, verdict } in usages {
            let facts = Facts::of(&request.domain, &request.descriptors[at]);
            if let Ok(facts) = facts
                && let Ok(asked) = facts.request(cost)
                && !(is_given_back && verdict.is_allowed())
            {
                self.daemon.meter(&verdict, &asked);
            }
        }
        Ok(answers)
    }

    /// Has the engine look for counters that are ahead of the clock. Only in memory: there the end of a
    /// window and `now` are by the same clock.
    async fn look_ahead(
        &self,
        questions: &[Question<'_>],
        counted: &[CounterReading],
        now: Timestamp,
    ) {
        if self.daemon.counters.memory().is_none() {
            return;
        }
        for (Question { key, limit, mode, .. }, it) in questions.iter().zip(counted) {
            if it.is_over && *mode != Mode::Shadow {
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
    ) -> Result<Ruling, Status> {
        let bad = |error| bad_descriptor(at, &format!("{error}"));
        let facts = Facts::of(&request.domain, &request.descriptors[at]).map_err(bad)?;
        let asked = facts.request(cost).map_err(bad)?;
        let (verdict, hold) = if is_one_of_many {
            let admission = self.daemon.engine.admit(&asked, Some(GIVEN_BACK_WITHIN)).await;
            self.daemon.count_verdict(&admission.verdict);
            (admission.verdict, admission.hold)
        } else {
            let (admission, _) = self.daemon.admit(&asked, None).await;
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
        let answered = DescriptorAnswer::ruled(&verdict, now);
        // A check by itself has been counted already.
        let is_open = is_one_of_many && self.daemon.is_metered();
        let usage = is_open.then_some(Usage { at, cost, verdict });
        Ok(Ruling { answered, hold, usage })
    }

    async fn give_back(&self, rulings: &[Ruling]) {
        self.give_back_all(rulings.iter().filter_map(|it| it.hold.as_ref())).await;
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
