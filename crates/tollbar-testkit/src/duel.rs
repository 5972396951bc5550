//! A store and the oracle, asked the same questions. They must agree to the last number.

use tollbar::store::{Adjustment, Hold, Loan, LoanRequest, Once, ReservationRef, Spending};
use tollbar::{Charge, Outcome, Policy, Role, Timestamp};

use crate::adversary::TraceState;
use crate::answer::Answer;
use crate::oracle::{ChargedAnswer, Oracle, OracleEntry, RequestIdReused, paid_places};
use crate::strategy::{Move, roles_and_alternatives};
use crate::subject::Subject;

/// Both sides, and every question so far.
pub struct Duel {
    subject: Box<dyn Subject>,
    oracle: Oracle,
    story: Vec<String>,
    ignores_unused_resets: bool,
}

/// What a batch has charged, and what each side calls it.
pub struct ReservedBatch<'q> {
    /// Each with the oracle's stamp and the store's.
    charges: Vec<(OracleEntry<'q>, (u64, u64))>,
}

impl ReservedBatch<'_> {
    /// True where all of it were shadows that denied: there is nothing to settle.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }
}

impl Duel {
    /// A store that has seen nothing against an oracle that has seen nothing.
    #[must_use]
    pub fn new(subject: Box<dyn Subject>) -> Self {
        Self { subject, oracle: Oracle::new(), story: Vec::new(), ignores_unused_resets: false }
    }

    /// Does not compare when counters are reset of which nothing is used, and lets a reset be sooner.
    ///
    /// A store that charges a request for a moment and gives that back may leave a window that counts nothing where
    /// another one, of which all was refunded, began earlier. It may also forget a part of a strict window of which
    /// all was refunded before, and that the oracle still waits for.
    #[must_use]
    pub fn ignoring_unused_resets(self) -> Self {
        Self { ignores_unused_resets: true, ..self }
    }

    /// One request.
    ///
    /// # Errors
    /// If the answers differ: both, and what was asked before.
    pub fn check(
        &mut self,
        now: Timestamp,
        key: &[u8],
        policy: &Policy,
        cost: u64,
    ) -> Result<Answer, String> {
        let expected = self.oracle.check(now, key, policy, cost);
        let got = self.subject.check(now, key, policy, cost);
        self.tell(
            now,
            &[OracleEntry { key, policy, cost, role: Role::Enforce, alternative: None }],
            &[got],
        );
        self.compare(&[expected], &[got])?;
        Ok(got)
    }

    /// A batch.
    ///
    /// # Errors
    /// If the answers differ: both, and what was asked before.
    pub fn check_all(
        &mut self,
        now: Timestamp,
        charge: Charge,
        batch: &[OracleEntry<'_>],
    ) -> Result<Vec<Answer>, String> {
        let expected = self.oracle.check_all(now, charge, batch);
        let got = self.subject.check_all(now, charge, batch);
        self.tell(now, batch, &got);
        self.compare(&expected, &got)?;
        Ok(got)
    }

    /// A whole trace of single requests, over so many keys.
    ///
    /// # Errors
    /// If the answers differ: both, and what was asked before.
    pub fn play(
        &mut self,
        start: Timestamp,
        policies: &[Policy],
        keys: usize,
        moves: &[Move],
    ) -> Result<(), String> {
        let mut trace_state = TraceState::at(start);
        for each in moves {
            let policy = &policies[each.policy % policies.len()];
            trace_state.now = trace_state.advanced(each.advance, policy);
            let cost = trace_state.cost(each.price, policy);
            let key = [(each.key % keys) as u8];
            self.give_back(trace_state.now, policy, &key, each)?;
            trace_state.last = Some(self.check(trace_state.now, &key, policy, cost)?);
        }
        Ok(())
    }

    /// A request that leaves `reserved` tokens to others. The oracle knows no such requests: it is asked whether one
    /// of so many tokens more would pass, and charges this one if it would.
    ///
    /// # Errors
    /// If the outcomes differ, or what remains: both, and what was asked before.
    pub fn check_reserving(
        &mut self,
        now: Timestamp,
        key: &[u8],
        (policy, reserved): (&Policy, u64),
        cost: u64,
    ) -> Result<Answer, String> {
        let of_class = policy.reserving(reserved).map_err(|error| error.to_string())?;
        let weighed = if cost == 0 { 0 } else { cost.saturating_add(reserved) };
        let outcome = self.oracle.clone().check(now, key, policy, weighed).outcome;
        let charged = if outcome == Outcome::Allow { cost } else { 0 };
        let whole = self.oracle.check(now, key, policy, charged);
        let got = self.subject.check(now, key, &of_class, cost);
        let (role, policy) = (Role::Enforce, &of_class);
        self.tell(now, &[OracleEntry { key, policy, cost, role, alternative: None }], &[got]);
        let remaining = whole.remaining.saturating_sub(reserved);
        let expected = Answer { outcome, remaining, delay_us: whole.delay_us, ..got };
        self.compare(&[expected], &[got])?;
        Ok(got)
    }

    /// A whole trace of single requests that leave different parts of one policy to others, over so many keys.
    ///
    /// # Errors
    /// If the answers differ: both, and what was asked before.
    pub fn play_reserving(
        &mut self,
        start: Timestamp,
        policy: &Policy,
        reserved: [u64; 3],
        keys: usize,
        moves: &[Move],
    ) -> Result<(), String> {
        let mut trace_state = TraceState::at(start);
        for each in moves {
            trace_state.now = trace_state.advanced(each.advance, policy);
            let cost = trace_state.cost(each.price, policy);
            let key = [(each.key % keys) as u8];
            self.give_back(trace_state.now, policy, &key, each)?;
            let part = reserved[each.policy % reserved.len()];
            let answer = self.check_reserving(trace_state.now, &key, (policy, part), cost)?;
            trace_state.last = Some(answer);
        }
        Ok(())
    }

    /// A whole trace of batches, over so many keys: the first move of each batch sets its time.
    ///
    /// # Errors
    /// If the answers differ: both, and what was asked before.
    pub fn play_batches(
        &mut self,
        start: Timestamp,
        policies: &[Policy],
        keys: usize,
        batches: &[(Charge, Vec<Move>)],
    ) -> Result<(), String> {
        let mut trace_state = TraceState::at(start);
        for (charge, moves) in batches {
            let policy_of = |each: &Move| &policies[each.policy % policies.len()];
            let Some(first) = moves.first() else { continue };
            trace_state.now = trace_state.advanced(first.advance, policy_of(first));
            let names: Vec<[u8; 1]> = moves.iter().map(|each| [(each.key % keys) as u8]).collect();
            let questions: Vec<OracleEntry<'_>> = moves
                .iter()
                .zip(&names)
                .zip(roles_and_alternatives(moves))
                .map(|((each, key), (role, alternative))| OracleEntry {
                    key,
                    policy: policy_of(each),
                    cost: trace_state.cost(each.price, policy_of(each)),
                    role,
                    alternative,
                })
                .collect();
            for (each, key) in moves.iter().zip(&names) {
                self.give_back(trace_state.now, policy_of(each), key, each)?;
            }
            trace_state.last =
                self.check_all(trace_state.now, *charge, &questions)?.last().copied();
        }
        Ok(())
    }

    /// Gives permits back on both sides.
    ///
    /// # Errors
    /// If one side thinks that another number was out: both, and what was asked before.
    pub fn release(
        &mut self,
        now: Timestamp,
        key: &[u8],
        policy: &Policy,
        count: u64,
    ) -> Result<(), String> {
        let expected = self.oracle.refund(now, key, policy, 0, count);
        let got = self.subject.release(now, key, policy, count);
        self.story.push(format!("at {}: key {key:?} gives back {count}: {got}", now.as_micros()));
        if got == expected {
            return Ok(());
        }
        Err(format!("{got} came back, {expected} should\nstory:\n{}", self.story.join("\n")))
    }

    /// Gives the permits of a request back on both sides, and forgets its id with each, as a hold does that is
    /// released. Answers whether it had any.
    ///
    /// # Errors
    /// If one side gives back another number than the other: both, and what was asked before.
    pub fn release_request(
        &mut self,
        now: Timestamp,
        request_id: &[u8],
        charged: &ReservedBatch<'_>,
    ) -> Result<bool, String> {
        let has_permits = |(asked, _): &&(OracleEntry<'_>, _)| asked.policy.has_permits();
        let mut is_released = false;
        for (asked, (theirs, ours)) in charged.charges.iter().filter(has_permits) {
            let OracleEntry { key, policy, cost, .. } = *asked;
            self.oracle.forget_request(request_id);
            self.subject.forget_request(now, request_id, key);
            let expected = self.oracle.refund(now, key, policy, *theirs, cost);
            let got = self.subject.release_lease(now, key, policy, *ours, cost);
            self.story.push(format!("at {}: {request_id:?} gives back {got}", now.as_micros()));
            if got != expected {
                return Err(self.difference(&format!("{expected}"), &format!("{got}")));
            }
            is_released = true;
        }
        Ok(is_released)
    }

    /// What a move gives back before it asks: only permits ever come back.
    fn give_back(
        &mut self,
        now: Timestamp,
        policy: &Policy,
        key: &[u8],
        each: &Move,
    ) -> Result<(), String> {
        if each.release == 0 || policy.algorithm().name() != "concurrency" {
            return Ok(());
        }
        self.release(now, key, policy, each.release)
    }

    /// One request under several policies, perhaps charged once, perhaps to be settled.
    ///
    /// # Errors
    /// If the answers differ: both, and what was asked before.
    pub fn check_marked<'q>(
        &mut self,
        now: Timestamp,
        batch: &[OracleEntry<'q>],
        once: Option<Once<'_>>,
        hold: Option<Hold>,
    ) -> Result<Option<ReservedBatch<'q>>, String> {
        let expected = self.oracle.check_marked(now, batch, once, hold);
        let got = self.subject.check_marked(now, batch, once, hold);
        self.story.push(format!("at {}: {once:?} {hold:?}: {got:?}", now.as_micros()));
        let (expected, got) = match (expected, got) {
            (Ok(expected), Ok(got)) => (expected, got),
            (Err(RequestIdReused), Err(RequestIdReused)) => return Ok(None),
            (expected, got) => {
                return Err(self.difference(&format!("{expected:?}"), &format!("{got:?}")));
            }
        };
        let answers =
            |all: &[ChargedAnswer]| all.iter().map(|each| each.answer).collect::<Vec<_>>();
        self.tell(now, batch, &answers(&got));
        self.compare(&answers(&expected), &answers(&got))?;
        let repeats =
            |all: &[ChargedAnswer]| all.iter().map(|each| each.repeat_of).collect::<Vec<_>>();
        if repeats(&expected) != repeats(&got) {
            let [expected, got] = [&expected, &got].map(|all| format!("{:?}", repeats(all)));
            return Err(self.difference(&expected, &got));
        }
        let Some(paid) = paid_places(batch, |at| got[at].answer.outcome == Outcome::Allow) else {
            return Ok(None);
        };
        let charge = |at: usize| (batch[at], (expected[at].stamp, got[at].stamp));
        let paid = paid.into_iter().map(charge).collect();
        Ok(Some(ReservedBatch { charges: paid }))
    }

    /// Settles a reservation with what it has spent, entry by entry.
    ///
    /// # Errors
    /// If the two sides give back or charge different amounts.
    pub fn settle<'r>(
        &mut self,
        now: Timestamp,
        reservation: impl Into<ReservationRef<'r>>,
        reserved: &ReservedBatch<'_>,
        spent: impl Fn(usize, u64) -> u64,
    ) -> Result<bool, String> {
        let reservation = reservation.into();
        let adjustments = |stamp_of: fn(&(u64, u64)) -> u64| {
            let mut adjustments = Vec::new();
            for (at, (asked, stamps)) in reserved.charges.iter().enumerate() {
                let spending = Spending { reserved: asked.cost, spent: spent(at, asked.cost) };
                let stamp = stamp_of(stamps);
                adjustments.push(Adjustment::new(asked.key, asked.policy, stamp, spending));
            }
            adjustments
        };
        let mut expected = adjustments(|stamps| stamps.0);
        let mut got = adjustments(|stamps| stamps.1);
        let outcome = |settled: bool, all: &[Adjustment<'_>]| {
            (settled, all.iter().map(Adjustment::adjusted).collect::<Vec<_>>())
        };
        let expected = outcome(self.oracle.settle(now, reservation, &mut expected), &expected);
        let got = outcome(self.subject.settle(now, reservation, &mut got), &got);
        self.story.push(format!("at {}: settle {reservation:?}: {got:?}", now.as_micros()));
        if expected == got {
            Ok(got.0)
        } else {
            Err(self.difference(&format!("{expected:?}"), &format!("{got:?}")))
        }
    }

    /// Borrows tokens on both sides.
    ///
    /// # Errors
    /// If one lends other tokens than the other, or for another time: both, and what was asked before.
    pub fn lend(
        &mut self,
        now: Timestamp,
        key: &[u8],
        policy: &Policy,
        request: LoanRequest,
    ) -> Result<Loan, String> {
        let expected = self.oracle.lend(now, key, policy, request);
        let got = self.subject.lend(now, key, policy, request);
        self.story.push(format!("at {}: key {key:?}, {request:?}: {got:?}", now.as_micros()));
        if got == expected {
            return Ok(got);
        }
        Err(self.difference(&format!("{expected:?}"), &format!("{got:?}")))
    }

    /// Forgets one counter on both sides.
    pub fn reset(&mut self, now: Timestamp, key: &[u8], policy: &Policy) {
        self.oracle.reset(key, policy);
        self.subject.reset(now, key, policy);
        self.story.push(format!("at {}: reset", now.as_micros()));
    }

    fn tell(&mut self, now: Timestamp, batch: &[OracleEntry<'_>], got: &[Answer]) {
        for (asked, answer) in batch.iter().zip(got) {
            self.story.push(format!(
                "at {}: key {:?}, {:?} {:?}, cost {}, {:?} of {} per {:?} (capacity {}): {answer:?}",
                now.as_micros(),
                String::from_utf8_lossy(asked.key),
                asked.role,
                asked.alternative,
                asked.cost,
                asked.policy.algorithm().name(),
                asked.policy.limit(),
                asked.policy.window(),
                asked.policy.capacity(),
            ));
        }
    }

    fn compare(&self, expected: &[Answer], got: &[Answer]) -> Result<(), String> {
        let agrees = |(expected, got): (&Answer, &Answer)| {
            let is_unused = expected.remaining == expected.limit;
            let is_reset_ignored =
                self.ignores_unused_resets && (is_unused || got.reset_at <= expected.reset_at);
            let reset_at = if is_reset_ignored { expected.reset_at } else { got.reset_at };
            *expected == Answer { reset_at, ..*got }
        };
        if expected.len() == got.len() && expected.iter().zip(got).all(agrees) {
            return Ok(());
        }
        Err(self.difference(&format!("{expected:?}"), &format!("{got:?}")))
    }

    fn difference(&self, expected: &str, got: &str) -> String {
        format!(
            "store `{}` and the oracle differ\nstore:  {got}\noracle: {expected}\nstory:\n{}",
            self.subject.name(),
            self.story.join("\n"),
        )
    }
}
