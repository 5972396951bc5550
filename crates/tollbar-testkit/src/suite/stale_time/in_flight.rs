//! Permits and leases: never more are out than the limit, whatever the clocks say.
//!
//! Readings are old here, and the clock is set back now and then. A permit is out until it is
//! returned. A lease lasts for its time from the reading by which it was granted: a clock that is set
//! back makes it last longer, and no reading makes it end sooner.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{Concurrency, Outcome, Policy, Role, Timestamp};

use super::{Simulation, run, staleness_us};
use crate::bounds::in_flight_at_most;
use crate::oracle::OracleEntry;
use crate::strategy::{self, Move};
use crate::subject::Factory;
use crate::suite::stale_time::clock_steps;

/// One step of a trace.
#[derive(Debug, Clone)]
struct PermitStep {
    next_move: Move,
    staleness_us: u64,
    step_back_us: u64,
    /// Gives back what was taken so many acts ago, instead of taking something.
    release: Option<usize>,
}

/// What was taken and has not come back.
struct HeldPermit {
    stamp: u64,
    count: u64,
    from_us: u64,
    until_us: u64,
}

fn policies() -> impl Strategy<Value = Policy> {
    let ttl_us = prop_oneof![Just(None), (1_000_u64..200_000).prop_map(Some)];
    (1_u64..6, ttl_us).prop_map(|(limit, ttl_us)| {
        let permits = Concurrency::new(limit).expect("a small limit is one");
        let permits = match ttl_us.map(Duration::from_micros) {
            Some(ttl) => permits.with_lease(ttl).expect("a lease of that time is one"),
            None => permits,
        };
        permits.into_policy()
    })
}

fn steps() -> impl Strategy<Value = Vec<PermitStep>> {
    let next_move = strategy::trace(1..2).prop_map(|moves| moves[0]);
    let release = prop_oneof![2 => Just(None), 1 => (0_usize..8).prop_map(Some)];
    let step = (next_move, staleness_us(), clock_steps::step_back_us(), release).prop_map(
        |(next_move, staleness_us, step_back_us, release)| PermitStep {
            next_move,
            staleness_us,
            step_back_us,
            release,
        },
    );
    vec(step, 1..60)
}

pub(super) fn permits_and_leases(factory: &Factory<'_>, trace_count: u32) {
    run(factory, trace_count, "in flight", (policies(), steps()), |simulation, (policy, steps)| {
        play(simulation, &policy, &steps)
    });
}

fn play(
    mut simulation: Simulation<'_>,
    policy: &Policy,
    steps: &[PermitStep],
) -> Result<(), String> {
    let mut behind_us = 0;
    let mut held: Vec<HeldPermit> = Vec::new();
    let mut returned: Vec<(u64, u64)> = Vec::new();
    let each_permit = |permit: &HeldPermit| {
        std::iter::repeat_n((permit.from_us, permit.until_us), permit.count as usize)
            .collect::<Vec<_>>()
    };
    let key = simulation.keys[0].clone();
    for step in steps {
        simulation.trace_state.now =
            simulation.trace_state.advanced(step.next_move.advance, policy);
        behind_us += step.step_back_us;
        let moment = simulation.moment(step.staleness_us);
        let reading = Timestamp::from_micros(moment.read_us - behind_us);
        if let Some(ago) = step.release.filter(|_| !held.is_empty()) {
            let mut permit = held.remove(held.len().saturating_sub(1 + ago));
            let count = permit.count;
            simulation.subject.release_lease(reading, &key, policy, permit.stamp, count);
            permit.until_us = permit.until_us.min(moment.applied_us);
            returned.extend(each_permit(&permit));
            continue;
        }
        let cost = simulation.trace_state.cost(step.next_move.price, policy);
        let asked = OracleEntry { key: &key, policy, cost, role: Role::Enforce, alternative: None };
        let charged = simulation.subject.check_marked(reading, &[asked], None, None);
        let charged = charged.map_err(|_| "a request without an id was sent twice")?[0];
        if charged.answer.outcome == Outcome::Allow && cost > 0 {
            let ttl_us = policy.lease_ttl().map(|ttl| ttl.as_micros() as u64);
            let until_us = ttl_us.map_or(u64::MAX, |ttl_us| moment.read_us + ttl_us);
            let from_us = moment.applied_us;
            held.push(HeldPermit { stamp: charged.stamp, count: cost, from_us, until_us });
        }
        simulation.trace_state.last = Some(charged.answer);
    }
    returned.extend(held.iter().flat_map(each_permit));
    in_flight_at_most(policy.limit(), &returned).map_err(|story| format!("{policy:?}: {story}"))
}
