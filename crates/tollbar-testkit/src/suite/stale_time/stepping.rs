//! A clock that is set back and runs on from there, as a server's may be.
//!
//! Judged in true time. While the clock is not touched it runs with true time, and setting it back
//! makes whatever is owed or counted last longer. So no interval of true time has more than the limit
//! in it: a bucket admits at most burst + rate x T.

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{Policy, Role, Timestamp};

use super::ledger::{Ledger, Moment};
use super::{KINDS, World, policy_of, run};
use crate::oracle::Question;
use crate::strategy::{self, Move};
use crate::subject::Factory;

/// How far the clock is set back before a request: mostly not at all.
pub(super) fn step_back_us() -> impl Strategy<Value = u64> {
    prop_oneof![8 => Just(0), 1 => 1_u64..100_000, 1 => 100_000_u64..5_000_000]
}

pub(super) fn case(factory: &Factory<'_>) {
    for kind in KINDS {
        let moved = strategy::trace(1..2).prop_map(|moves| moves[0]);
        let acts = vec((moved, step_back_us()), 1..60);
        run(factory, kind.name(), (policy_of(kind), acts), |world, (policy, acts)| {
            play(world, &policy, &acts)
        });
    }
}

fn play(mut world: World<'_>, policy: &Policy, acts: &[(Move, u64)]) -> Result<(), String> {
    let mut ledger = Ledger::default();
    let mut behind_us = 0;
    let key = world.keys[0].clone();
    for (moved, step_back_us) in acts {
        world.standing.now = world.standing.advanced(moved.advance, policy);
        behind_us += step_back_us;
        let applied_us = world.standing.now.as_micros();
        let cost = world.standing.cost(moved.price, policy);
        let reading = Timestamp::from_micros(applied_us - behind_us);
        let answer = world.subject.check(reading, &key, policy, cost);
        let asked = Question { key: &key, policy, cost, role: Role::Enforce };
        ledger.record(&asked, Moment { read_us: applied_us, applied_us }, &answer, true);
        world.standing.last = Some(answer);
    }
    ledger.judge_prolonged()
}
