//! A store and the oracle, asked the same questions. They must agree to the last number.

use tollbar::{Charge, Policy, Role, Timestamp};

use crate::adversary::Standing;
use crate::answer::Answer;
use crate::oracle::{Oracle, Question};
use crate::strategy::Move;
use crate::subject::Subject;

/// Both sides, and every question so far.
pub struct Duel {
    subject: Box<dyn Subject>,
    oracle: Oracle,
    story: Vec<String>,
}

impl Duel {
    /// A store that has seen nothing against an oracle that has seen nothing.
    #[must_use]
    pub fn new(subject: Box<dyn Subject>) -> Self {
        Self { subject, oracle: Oracle::new(), story: Vec::new() }
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
        self.tell(now, &[Question { key, policy, cost, role: Role::Enforce }], &[got]);
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
        batch: &[Question<'_>],
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
        let mut standing = Standing::at(start);
        for each in moves {
            let policy = &policies[each.policy % policies.len()];
            standing.now = standing.advanced(each.advance, policy);
            let cost = standing.cost(each.price, policy);
            let key = [(each.key % keys) as u8];
            self.give_back(standing.now, policy, &key, each)?;
            standing.last = Some(self.check(standing.now, &key, policy, cost)?);
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
        let mut standing = Standing::at(start);
        for (charge, moves) in batches {
            let policy_of = |each: &Move| &policies[each.policy % policies.len()];
            let Some(first) = moves.first() else { continue };
            standing.now = standing.advanced(first.advance, policy_of(first));
            let names: Vec<[u8; 1]> = moves.iter().map(|each| [(each.key % keys) as u8]).collect();
            let questions: Vec<Question<'_>> = moves
                .iter()
                .zip(&names)
                .map(|(each, key)| Question {
                    key,
                    policy: policy_of(each),
                    cost: standing.cost(each.price, policy_of(each)),
                    role: each.role,
                })
                .collect();
            for (each, key) in moves.iter().zip(&names) {
                self.give_back(standing.now, policy_of(each), key, each)?;
            }
            standing.last = self.check_all(standing.now, *charge, &questions)?.last().copied();
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

    /// Forgets one counter on both sides.
    pub fn reset(&mut self, now: Timestamp, key: &[u8], policy: &Policy) {
        self.oracle.reset(key, policy);
        self.subject.reset(now, key, policy);
        self.story.push(format!("at {}: reset", now.as_micros()));
    }

    fn tell(&mut self, now: Timestamp, batch: &[Question<'_>], got: &[Answer]) {
        for (asked, answer) in batch.iter().zip(got) {
            self.story.push(format!(
                "at {}: key {:?}, {:?}, cost {}, {:?} of {} per {:?} (capacity {}): {answer:?}",
                now.as_micros(),
                String::from_utf8_lossy(asked.key),
                asked.role,
                asked.cost,
                asked.policy.algorithm().name(),
                asked.policy.limit(),
                asked.policy.window(),
                asked.policy.capacity(),
            ));
        }
    }

    fn compare(&self, expected: &[Answer], got: &[Answer]) -> Result<(), String> {
        if expected == got {
            return Ok(());
        }
        Err(format!(
            "store `{}` and the oracle differ\nstore:  {got:?}\noracle: {expected:?}\nstory:\n{}",
            self.subject.name(),
            self.story.join("\n"),
        ))
    }
}
