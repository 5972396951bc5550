//! What this process holds of each hot key: lots of tokens, oldest first, pauses, and a question on its way.
//!
//! A pure state machine: the caller passes the time and sends the questions to the store. `borrower` does both.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;
use tollbar::{Decision, Loan, LoanTerms, Outcome, Policy, PolicyParts, Timestamp};

use crate::clock::{lot_end_us, micros};
use crate::heat::Rate;

/// A key is promoted when a period asks for so many tokens.
const PROMOTION_TOKENS: u64 = 4;
/// And demoted when it asks for fewer than this.
const DEMOTION_TOKENS: u64 = PROMOTION_TOKENS / 2;

/// More lots than a term has periods.
const LOTS_MAX: usize = 16;

/// Holdings that are over are looked for at most so often.
const SWEEP_EVERY_US: u64 = 100_000;

/// The counter that an entry is charged to, and on which terms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counter<'a> {
    /// A keyed hash of the key and of the policy's identity.
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a Policy,
}

/// Tokens that were taken from lots, to be spent or put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TakenTokens {
    hash: u64,
    generation: u64,
    /// From each lot, when it ends and how many.
    parts: SmallVec<[Lot; 2]>,
}

impl TakenTokens {
    /// Returns when the first of them ends.
    pub(crate) fn end_us(&self) -> u64 {
        self.parts.iter().map(|lot| lot.end_us).min().unwrap_or(u64::MAX)
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    fn tokens(&self) -> u64 {
        self.parts.iter().map(|lot| lot.tokens).sum()
    }
}

/// What holdings say to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) outcome: Taking,
    /// To be asked of the store in the background.
    pub(crate) question: Option<Question>,
}

#[derive(Debug)]
pub(crate) enum Taking {
    /// The key is not held.
    NotHeld,
    /// Paid from lots. The decision is an estimate.
    Paid(TakenTokens, Decision),
    /// The store has to be asked.
    Exact,
    /// The store had too few tokens to lend a moment ago. The decision is an estimate.
    Denied(Decision),
}

/// A loan to ask for.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) hash: u64,
    generation: u64,
    pub(crate) key: Arc<[u8]>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) terms: LoanTerms,
    pub(crate) tokens: u64,
    /// When it was sent. What is lent lives from then on.
    pub(crate) sent_us: u64,
}

/// Tokens of one loan that are not spent yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lot {
    tokens: u64,
    end_us: u64,
}

/// How a key is answered for at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldingState {
    pub(crate) tokens: u64,
    /// When the last of them end.
    pub(crate) end_us: Option<u64>,
    pub(crate) paused_until_us: Option<u64>,
}

/// What became of loans and their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fates {
    pub(crate) loans_full: u64,
    pub(crate) loans_partial: u64,
    pub(crate) loans_empty: u64,
    pub(crate) loans_failed: u64,
    pub(crate) tokens_spent: u64,
    pub(crate) tokens_expired: u64,
    pub(crate) tokens_dropped: u64,
}

/// The holdings of a process, or of a shard of it.
#[derive(Debug, Clone)]
pub(crate) struct Holdings {
    by_hash: HashMap<u64, Holding>,
    count_max: usize,
    /// No two holdings have the same, so that nothing of a holding that is gone gets into a later one.
    last_generation: u64,
    swept_at_us: u64,
    pub(crate) fates: Fates,
}

#[derive(Debug, Clone)]
struct Holding {
    generation: u64,
    key: Arc<[u8]>,
    policy: Arc<Policy>,
    identity: u64,
    numbers: PolicyParts,
    terms: LoanTerms,
    rate: Rate,
    lots: VecDeque<Lot>,
    /// Until when requests are denied that find no lot.
    paused_until_us: u64,
    /// Until when nothing is borrowed.
    exact_until_us: u64,
    /// Until when the answer of the question that is on its way would be of use.
    asked_until_us: u64,
    /// What the store last said of the counter.
    latest: Option<StoreNews>,
}

#[derive(Debug, Clone, Copy)]
struct StoreNews {
    remaining: u64,
    reset_at: Timestamp,
    /// When the store has a token again, if it had none left.
    retry_at_us: u64,
}

/// True if a key with this rate is worth borrowing for.
pub(crate) fn is_hot(rate: &Rate, terms: &LoanTerms, now_us: u64) -> bool {
    rate.tokens_per(micros(terms.period), now_us) >= PROMOTION_TOKENS
}

impl Holdings {
    pub(crate) fn new(count_max: usize) -> Self {
        Self {
            by_hash: HashMap::new(),
            count_max,
            last_generation: 0,
            swept_at_us: 0,
            fates: Fates::default(),
        }
    }

    /// Answers a request of `cost` from what is held.
    pub(crate) fn take(
        &mut self,
        counter: Counter<'_>,
        terms: &LoanTerms,
        cost: u64,
        now_us: u64,
    ) -> Answer {
        let not_held = Answer { outcome: Taking::NotHeld, question: None };
        let Some(holding) = self.by_hash.get_mut(&counter.hash) else { return not_held };
        if !holding.is_of(counter) {
            return not_held;
        }
        if !holding.has_terms(counter.policy, terms) {
            // Tokens belong to the numbers that they were lent under.
            self.drop_holding(counter.hash);
            return not_held;
        }
        holding.rate.offer(cost, now_us);
        self.fates.tokens_expired += holding.drop_expired(now_us);
        let outcome = holding.take(counter.hash, cost, now_us);
        if matches!(outcome, Taking::Paid(..)) {
            self.fates.tokens_spent += cost;
        }
        let question = holding.question(counter.hash, now_us);
        if question.is_none() && holding.is_over(now_us) {
            self.by_hash.remove(&counter.hash);
        }
        Answer { outcome, question }
    }

    /// Holds a [hot](is_hot) key from now on if there is room, and returns the first question.
    pub(crate) fn promote(
        &mut self,
        counter: Counter<'_>,
        terms: &LoanTerms,
        rate: Rate,
        now_us: u64,
    ) -> Option<Question> {
        if self.by_hash.contains_key(&counter.hash) {
            return None;
        }
        if self.by_hash.len() >= self.count_max && now_us >= self.swept_at_us + SWEEP_EVERY_US {
            self.sweep(now_us);
        }
        if self.by_hash.len() >= self.count_max {
            return None;
        }
        self.last_generation += 1;
        let holding = Holding {
            generation: self.last_generation,
            key: counter.key.into(),
            policy: Arc::new(counter.policy.clone()),
            identity: counter.policy.identity(),
            numbers: counter.policy.parts(b""),
            terms: *terms,
            rate,
            lots: VecDeque::new(),
            paused_until_us: 0,
            exact_until_us: 0,
            asked_until_us: 0,
            latest: None,
        };
        let holding = self.by_hash.entry(counter.hash).or_insert(holding);
        holding.question(counter.hash, now_us)
    }

    /// Takes in the answer to a question; `None` if there was none. `jitter_ppm` of up to a million spreads the
    /// pauses of processes that were all refused at once.
    pub(crate) fn add(
        &mut self,
        question: &Question,
        answer: Option<Loan>,
        jitter_ppm: u32,
        now_us: u64,
    ) {
        let Fates { loans_full, loans_partial, loans_empty, loans_failed, .. } = &mut self.fates;
        let tokens = answer.map_or(0, |loan| loan.tokens);
        *match answer {
            None => loans_failed,
            Some(_) if tokens == 0 => loans_empty,
            Some(_) if tokens < question.tokens => loans_partial,
            Some(_) => loans_full,
        } += 1;
        let holding = self.by_hash.get_mut(&question.hash);
        let Some(holding) = holding.filter(|held| held.generation == question.generation) else {
            self.fates.tokens_dropped += tokens;
            return;
        };
        // A later question may be on its way: one that had not been answered within its term.
        if holding.asked_until_us == question.answer_until_us() {
            holding.asked_until_us = 0;
        }
        let period_us = micros(holding.terms.period);
        if tokens == 0 {
            holding.exact_until_us = now_us + period_us;
            return;
        }
        let loan = answer.unwrap_or(Loan::NONE);
        holding.latest = loan.decision.map(|decision| StoreNews::new(&decision, now_us));
        if tokens < question.tokens {
            holding.paused_until_us = now_us + pause_us(period_us, jitter_ppm);
        }
        let lot = Lot { tokens, end_us: lot_end_us(question.sent_us, loan.life) };
        if lot.end_us <= now_us {
            self.fates.tokens_expired += tokens;
        } else {
            holding.add(lot);
        }
    }

    /// Forgets a question that was not sent.
    pub(crate) fn withdraw(&mut self, question: &Question) {
        if let Some(holding) = self.by_hash.get_mut(&question.hash)
            && holding.generation == question.generation
        {
            holding.asked_until_us = 0;
        }
    }

    /// Puts tokens back where they came from, as far as they can still be spent.
    pub(crate) fn put_back(&mut self, taken: &TakenTokens, now_us: u64) {
        self.fates.tokens_spent -= taken.tokens();
        let holding = self.by_hash.get_mut(&taken.hash);
        let Some(holding) = holding.filter(|held| held.generation == taken.generation) else {
            self.fates.tokens_dropped += taken.tokens();
            return;
        };
        for lot in &taken.parts {
            if lot.end_us > now_us {
                holding.add(*lot);
            } else {
                self.fates.tokens_expired += lot.tokens;
            }
        }
    }

    /// Drops what is held of a counter.
    pub(crate) fn forget(&mut self, counter: Counter<'_>) {
        if self.by_hash.get(&counter.hash).is_some_and(|holding| holding.is_of(counter)) {
            self.drop_holding(counter.hash);
        }
    }

    /// Says what is held of a counter; `None` if nothing is, and nothing is asked for.
    pub(crate) fn state(&self, counter: Counter<'_>, now_us: u64) -> Option<HoldingState> {
        let holding = self.by_hash.get(&counter.hash).filter(|holding| holding.is_of(counter))?;
        let lots = || holding.lots.iter().filter(|lot| lot.end_us > now_us);
        Some(HoldingState {
            tokens: lots().map(|lot| lot.tokens).sum(),
            end_us: lots().map(|lot| lot.end_us).max(),
            paused_until_us: Some(holding.paused_until_us).filter(|until_us| *until_us > now_us),
        })
    }

    /// Drops lots that have ended and holdings that nobody asks for, and returns how many holdings are left.
    pub(crate) fn sweep(&mut self, now_us: u64) -> usize {
        let expired = &mut self.fates.tokens_expired;
        self.by_hash.retain(|_, holding| {
            *expired += holding.drop_expired(now_us);
            !holding.is_over(now_us)
        });
        self.swept_at_us = now_us;
        self.by_hash.len()
    }

    fn drop_holding(&mut self, hash: u64) {
        if let Some(holding) = self.by_hash.remove(&hash) {
            self.fates.tokens_dropped += holding.held();
        }
    }
}

impl Holding {
    fn is_of(&self, counter: Counter<'_>) -> bool {
        *self.key == *counter.key && self.identity == counter.policy.identity()
    }

    fn has_terms(&self, policy: &Policy, terms: &LoanTerms) -> bool {
        self.numbers == policy.parts(b"") && self.terms == *terms
    }

    fn held(&self) -> u64 {
        self.lots.iter().map(|lot| lot.tokens).sum()
    }

    /// Returns how many tokens have ended.
    fn drop_expired(&mut self, now_us: u64) -> u64 {
        let before = self.held();
        self.lots.retain(|lot| lot.end_us > now_us);
        before - self.held()
    }

    fn take(&mut self, hash: u64, cost: u64, now_us: u64) -> Taking {
        let held = self.held();
        if held >= cost {
            let taken = self.take_oldest(hash, cost);
            let latest = self.latest.unwrap_or(StoreNews::NONE);
            let remaining = latest.remaining.saturating_add(held - cost);
            let remaining = remaining.min(self.policy.capacity());
            return Taking::Paid(taken, self.decision(Outcome::Allow, remaining, now_us));
        }
        if held > 0 || now_us < self.exact_until_us || now_us >= self.paused_until_us {
            return Taking::Exact;
        }
        let retry_at_us = self.latest.map_or(0, |latest| latest.retry_at_us);
        let retry_after_us = retry_at_us.max(self.paused_until_us) - now_us;
        Taking::Denied(self.decision(Outcome::Deny { retry_after_us }, 0, now_us + retry_after_us))
    }

    fn take_oldest(&mut self, hash: u64, cost: u64) -> TakenTokens {
        let mut parts = SmallVec::new();
        let mut missing = cost;
        while missing > 0
            && let Some(oldest) = self.lots.front_mut()
        {
            let tokens = oldest.tokens.min(missing);
            parts.push(Lot { tokens, ..*oldest });
            oldest.tokens -= tokens;
            missing -= tokens;
            if oldest.tokens == 0 {
                self.lots.pop_front();
            }
        }
        TakenTokens { hash, generation: self.generation, parts }
    }

    /// Adds a lot in the order of their ends.
    fn add(&mut self, lot: Lot) {
        let at = self.lots.partition_point(|other| other.end_us < lot.end_us);
        if self.lots.get(at).is_some_and(|other| other.end_us == lot.end_us) {
            self.lots[at].tokens += lot.tokens;
        } else if self.lots.len() < LOTS_MAX {
            self.lots.insert(at, lot);
        } else {
            // No room: it joins a neighbour, and both end with the earlier of the two.
            let neighbour = &mut self.lots[at.saturating_sub(1)];
            neighbour.tokens += lot.tokens;
            neighbour.end_us = neighbour.end_us.min(lot.end_us);
        }
    }

    /// Asks for a period's worth, less what is held, once that is below half of it.
    fn question(&mut self, hash: u64, now_us: u64) -> Option<Question> {
        let wanted = self.rate.tokens_per(micros(self.terms.period), now_us);
        let held = self.held();
        let is_quiet =
            now_us < self.asked_until_us.max(self.paused_until_us).max(self.exact_until_us);
        if is_quiet || wanted < DEMOTION_TOKENS || held.saturating_mul(2) >= wanted {
            return None;
        }
        let question = Question {
            hash,
            generation: self.generation,
            key: Arc::clone(&self.key),
            policy: Arc::clone(&self.policy),
            terms: self.terms,
            tokens: (wanted - held).clamp(1, self.terms.tokens_max),
            sent_us: now_us,
        };
        self.asked_until_us = question.answer_until_us();
        Some(question)
    }

    /// True if nothing is held, asked for, or paused, and the key is cold.
    fn is_over(&self, now_us: u64) -> bool {
        self.lots.is_empty()
            && now_us >= self.asked_until_us.max(self.paused_until_us)
            && self.rate.tokens_per(micros(self.terms.period), now_us) < DEMOTION_TOKENS
    }

    /// A decision whose reset is the store's. A pause may outlast it, and no reset is before `earliest_us`, when the same
    /// request may pass.
    fn decision(&self, outcome: Outcome, remaining: u64, earliest_us: u64) -> Decision {
        let reset_at = self.latest.unwrap_or(StoreNews::NONE).reset_at;
        let reset_at = reset_at.max(Timestamp::from_micros(earliest_us));
        Decision::new(outcome, self.policy.limit(), remaining, reset_at)
    }
}

impl Question {
    /// After its term an answer is worth nothing, so another question may be asked.
    fn answer_until_us(&self) -> u64 {
        self.sent_us + micros(self.terms.term)
    }
}

impl StoreNews {
    const NONE: Self = Self { remaining: 0, reset_at: Timestamp::ZERO, retry_at_us: 0 };

    fn new(decision: &Decision, now_us: u64) -> Self {
        let retry_at_us = match decision.outcome() {
            Outcome::Deny { retry_after_us } => now_us.saturating_add(retry_after_us),
            Outcome::Allow | Outcome::Busy | Outcome::Never => 0,
        };
        Self {
            remaining: decision.remaining().unwrap_or(0),
            reset_at: decision.reset_at().unwrap_or(Timestamp::ZERO),
            retry_at_us,
        }
    }
}

/// Between half a period and one and a half.
fn pause_us(period_us: u64, jitter_ppm: u32) -> u64 {
    let jitter = u128::from(period_us) * u128::from(jitter_ppm.min(1_000_000)) / 1_000_000;
    period_us / 2 + u64::try_from(jitter).unwrap_or(0)
}

#[cfg(test)]
mod exploration;
#[cfg(test)]
mod tests;
