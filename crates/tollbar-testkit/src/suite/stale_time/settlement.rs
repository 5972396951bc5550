//! Reservations that are settled at less than they reserved: what is spent stays within the limit.
//!
//! Judged is what was spent in the end, at the moment it was reserved, as if the rest had never been
//! asked for.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::store::{Adjustment, Hold, ReservationId, Spending};
use tollbar::{Outcome, Policy, Role};

use super::{KINDS, Simulation, policy_of, run, staleness_us};
use crate::bounds::{AdmissionLog, Span, Spans};
use crate::oracle::OracleEntry;
use crate::strategy::{self, Move};
use crate::subject::Factory;
use crate::suite::stale_time::answer_log::{turn, turns_follow_each_other};

/// A request that reserves what it asks for, and perhaps the settlement of an earlier one.
#[derive(Debug, Clone)]
struct ReservationStep {
    next_move: Move,
    staleness_us: u64,
    settlement: Option<PartialSettlement>,
}

#[derive(Debug, Clone, Copy)]
struct PartialSettlement {
    /// Which open reservation; taken modulo their number.
    which: usize,
    /// How much of it was spent, in fourths.
    fourths: u64,
    staleness_us: u64,
}

fn steps(
    settlement_staleness_us: BoxedStrategy<u64>,
) -> impl Strategy<Value = Vec<ReservationStep>> {
    let next_move = strategy::trace(1..2).prop_map(|moves| moves[0]);
    let settlement = (0_usize..8, 0_u64..=4, settlement_staleness_us).prop_map(
        |(which, fourths, staleness_us)| PartialSettlement { which, fourths, staleness_us },
    );
    let step = (next_move, staleness_us(), prop::option::of(settlement)).prop_map(
        |(next_move, staleness_us, settlement)| ReservationStep {
            next_move,
            staleness_us,
            settlement,
        },
    );
    vec(step, 1..60)
}

/// Requests have old readings here, settlements have not: nothing is forgiven.
pub(super) fn stale_reservations(factory: &Factory<'_>, trace_count: u32) {
    judge(factory, trace_count, &Just(0).boxed());
}

/// A settlement whose reading is old by d may give back to a bucket what time has paid in those d: so
/// an interval has at most rate x d more in it. No charge can then be counted from more than d before
/// its own reading, however many settlements there are. Windows and queues have no such allowance.
pub(super) fn stale_settlements(factory: &Factory<'_>, trace_count: u32) {
    judge(factory, trace_count, &staleness_us().boxed());
}

fn judge(factory: &Factory<'_>, trace_count: u32, settlement_staleness_us: &BoxedStrategy<u64>) {
    for kind in KINDS {
        let traces = (policy_of(kind), steps(settlement_staleness_us.clone()));
        run(factory, trace_count, kind.name(), traces, |simulation, (policy, steps)| {
            play(simulation, &policy, &steps).map_err(|story| format!("{policy:?}: {story}"))
        });
    }
}

struct OpenReservation {
    id: ReservationId,
    stamp: u64,
    reserved: u64,
    /// Which of the spans is its.
    at: usize,
}

fn play(
    mut simulation: Simulation<'_>,
    policy: &Policy,
    steps: &[ReservationStep],
) -> Result<(), String> {
    let key = simulation.keys[0].clone();
    let mut open: Vec<OpenReservation> = Vec::new();
    let mut spent: Vec<Span> = Vec::new();
    let mut delays_us = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        simulation.trace_state.now =
            simulation.trace_state.advanced(step.next_move.advance, policy);
        let moment = simulation.moment(step.staleness_us);
        let cost = simulation.trace_state.cost(step.next_move.price, policy);
        let id = ReservationId(u128::from(simulation.trace) << 64 | number as u128);
        let asked = OracleEntry { key: &key, policy, cost, role: Role::Enforce, alternative: None };
        let hold = Some(Hold { id, ttl: Duration::from_hours(24 * 365) });
        let charged = simulation.subject.check_marked(moment.reading(), &[asked], None, hold);
        let charged = charged.map_err(|_| "a request without an id was sent twice")?[0];
        if charged.answer.outcome == Outcome::Allow {
            open.push(OpenReservation {
                id,
                stamp: charged.stamp,
                reserved: cost,
                at: spent.len(),
            });
            spent.push(moment.span(cost));
            delays_us.push(charged.answer.delay_us);
        }
        simulation.trace_state.last = Some(charged.answer);
        if let Some(settlement) = step.settlement.filter(|_| !open.is_empty()) {
            let OpenReservation { id, stamp, reserved, at } =
                open.swap_remove(settlement.which % open.len());
            let spending = Spending { reserved, spent: reserved * settlement.fourths / 4 };
            let mut adjustments = [Adjustment::new(&key, policy, stamp, spending)];
            let reading = simulation.moment(settlement.staleness_us).reading();
            if !simulation.subject.settle(reading, id, &mut adjustments) {
                return Err("an open reservation was not there to be settled".to_owned());
            }
            spent[at].tokens = spending.spent;
        }
    }
    let settlements = steps.iter().filter_map(|step| step.settlement);
    let staleness_us_max = settlements.map(|settlement| settlement.staleness_us).max().unwrap_or(0);
    let Some(token) = policy.interval() else {
        return AdmissionLog { admitted: spent, ..AdmissionLog::default() }.at_most(policy, &key);
    };
    if policy.queue_length().is_some() {
        let turns = spent.iter().zip(&delays_us);
        let turns = turns.map(|(span, delay_us)| turn(*span, token, *delay_us)).collect();
        return turns_follow_each_other(token, turns);
    }
    Spans::new(spent).at_most_at_rate(token, policy.capacity(), staleness_us_max)
}
