//! A clock that is set back, as a server's may be, and perhaps corrected later.
//!
//! As long as it is not corrected it runs with true time, and setting it back makes whatever is owed
//! or counted last longer. So no interval of true time has more than the limit in it: a bucket admits
//! at most burst + rate x T. Whether or not it is corrected, each reading is merely old, and the
//! bounds hold as they do for readings that are.

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{Policy, Role};

use super::{KINDS, Simulation, policy_of, run};
use crate::oracle::OracleEntry;
use crate::strategy::{self, Move};
use crate::subject::Factory;
use crate::suite::stale_time::answer_log::{AnswerLog, Moment};

/// What happens to the clock before a request.
#[derive(Debug, Clone, Copy)]
enum ClockStep {
    Back(u64),
    Corrected,
}

/// How far the clock is set back before a request: mostly not at all.
pub(super) fn step_back_us() -> impl Strategy<Value = u64> {
    prop_oneof![8 => Just(0), 1 => 1_u64..100_000, 1 => 100_000_u64..5_000_000]
}

pub(super) fn set_back(factory: &Factory<'_>, trace_count: u32) {
    for kind in KINDS {
        let next_move = strategy::trace(1..2).prop_map(|moves| moves[0]);
        let step = prop_oneof![6 => step_back_us().prop_map(ClockStep::Back), 1 => Just(ClockStep::Corrected)];
        let steps = vec((next_move, step), 1..60);
        run(
            factory,
            trace_count,
            kind.name(),
            (policy_of(kind), steps),
            |simulation, (policy, steps)| play(simulation, &policy, &steps),
        );
    }
}

fn play(
    mut simulation: Simulation<'_>,
    policy: &Policy,
    steps: &[(Move, ClockStep)],
) -> Result<(), String> {
    let (mut by_reading, mut in_true_time) = (AnswerLog::default(), AnswerLog::default());
    let mut behind_us = 0;
    let mut is_corrected = false;
    let key = simulation.keys[0].clone();
    for (next_move, step) in steps {
        simulation.trace_state.now = simulation.trace_state.advanced(next_move.advance, policy);
        match step {
            ClockStep::Back(step_us) => behind_us += step_us,
            ClockStep::Corrected => {
                is_corrected |= behind_us > 0;
                behind_us = 0;
            }
        }
        let moment = simulation.moment(behind_us);
        let cost = simulation.trace_state.cost(next_move.price, policy);
        let answer = simulation.subject.check(moment.reading(), &key, policy, cost);
        let asked = OracleEntry { key: &key, policy, cost, role: Role::Enforce, alternative: None };
        by_reading.record(&asked, moment, &answer, true);
        let now = Moment { read_us: moment.applied_us, ..moment };
        in_true_time.record(&asked, now, &answer, true);
        simulation.trace_state.last = Some(answer);
    }
    by_reading.judge()?;
    if is_corrected { Ok(()) } else { in_true_time.judge_prolonged() }
}
