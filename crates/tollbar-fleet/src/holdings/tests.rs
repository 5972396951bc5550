//! What a holding lends, pauses, drops and takes back, at instants that the tests choose.

use super::*;
use std::time::Duration;
use tollbar::LoanMode;

const MS: u64 = 1_000;
const KEY: &[u8] = b"key";

fn policy() -> Policy {
    Policy::token_bucket("1000/s").unwrap().with_burst(10_000).unwrap()
}

/// Half a second, in periods of 125 ms; at most 2,375 tokens.
fn terms(policy: &Policy) -> LoanTerms {
    LoanTerms::new(policy, LoanMode::Conservative { share_ppm: 50_000 }).unwrap()
}

/// A rate of `per_100_ms` tokens, all in the window of `now_us`.
fn rate(per_100_ms: u64, now_us: u64) -> Rate {
    let mut rate = Rate::default();
    rate.offer(per_100_ms, now_us);
    rate
}

/// One key, held since 0, which asked for 100 tokens in 100 ms.
struct One {
    holdings: Holdings,
    policy: Policy,
    terms: LoanTerms,
    first: Question,
}

impl One {
    fn new() -> Self {
        let policy = policy();
        let terms = terms(&policy);
        let mut holdings = Holdings::new(10);
        let first = holdings.promote(counter(&policy), &terms, rate(100, 0), 0).unwrap();
        Self { holdings, policy, terms, first }
    }

    /// One whose first question got so many tokens, at 1 ms.
    fn with_tokens(tokens: u64) -> Self {
        let mut one = Self::new();
        let first = one.first.clone();
        one.add(&first, tokens, MS);
        one
    }

    fn take(&mut self, cost: u64, now_us: u64) -> Answer {
        self.holdings.take(counter(&self.policy), &self.terms, cost, now_us)
    }

    fn add(&mut self, question: &Question, tokens: u64, now_us: u64) {
        let outcome = Outcome::Deny { retry_after_us: 7 };
        let decision = Decision::new(outcome, 1_000, 0, Timestamp::from_micros(9));
        let loan = Loan { tokens, life: self.terms.term, decision: Some(decision) };
        self.holdings.add(question, Some(loan), 500_000, now_us);
    }

    fn held(&self, now_us: u64) -> u64 {
        self.holdings.state(counter(&self.policy), now_us).map_or(0, |state| state.tokens)
    }
}

fn counter(policy: &Policy) -> Counter<'_> {
    Counter { hash: 7, key: KEY, policy }
}

fn paid(answer: Answer) -> TakenTokens {
    match answer.outcome {
        Taking::Paid(taken, _) => taken,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_question_asks_for_a_periods_worth() {
    let one = One::new();
    assert_eq!((one.first.tokens, one.first.sent_us), (125, 0));
}

#[test]
fn no_question_asks_for_more_than_the_terms_allow() {
    let policy = policy();
    let mut holdings = Holdings::new(10);
    let question = holdings.promote(counter(&policy), &terms(&policy), rate(10_000, 0), 0);
    assert_eq!(question.unwrap().tokens, 2_375);
}

#[test]
fn tokens_are_spent_and_then_the_store_is_asked() {
    let mut one = One::with_tokens(125);
    paid(one.take(125, 2 * MS));
    assert!(matches!(one.take(1, 3 * MS).outcome, Taking::Exact));
    assert_eq!(one.holdings.fates.tokens_spent, 125);
}

/// A pause may outlast the window of which the store had told.
#[test]
fn no_reset_is_before_the_retry_after_and_none_has_passed() {
    // The store said at 1 ms that the counter resets 9 us after 0, and that it has nothing left.
    let mut one = One::with_tokens(100);
    let Taking::Paid(_, allowed) = one.take(100, 2 * MS).outcome else {
        panic!("100 are held");
    };
    assert_eq!(allowed.reset_at(), Some(Timestamp::from_micros(2 * MS)));
    let Taking::Denied(denied) = one.take(1, 3 * MS).outcome else {
        panic!("a partial loan is followed by a pause");
    };
    let Outcome::Deny { retry_after_us } = denied.outcome() else {
        panic!("{denied:?}");
    };
    assert!(retry_after_us > 50 * MS, "{denied:?}");
    assert_eq!(denied.reset_at(), Some(Timestamp::from_micros(3 * MS + retry_after_us)));
}

#[test]
fn one_question_is_under_way_at_a_time() {
    let mut one = One::with_tokens(125);
    assert!(one.take(1, 2 * MS).question.is_none(), "124 of 125 are held");
    let second = one.take(70, 3 * MS).question.expect("54 are less than half a period's worth");
    assert!(one.take(1, 4 * MS).question.is_none());
    one.add(&second, second.tokens, 5 * MS);
    assert!(one.held(5 * MS) > 125);
}

#[test]
fn a_question_that_is_never_answered_is_asked_again_after_its_term() {
    let mut one = One::new();
    let mut asked_at_ms = Vec::new();
    for at_ms in 1..1_400 {
        if one.take(1, at_ms * MS).question.is_some() {
            asked_at_ms.push(at_ms);
        }
    }
    assert_eq!(asked_at_ms, [500, 1_000]);
    // Its answer comes at last, and is worth nothing.
    let first = one.first.clone();
    one.add(&first, 125, 1_400 * MS);
    assert_eq!((one.held(1_400 * MS), one.holdings.fates.tokens_expired), (0, 125));
}

#[test]
fn a_lot_that_has_ended_is_not_spent() {
    let mut one = One::with_tokens(125);
    // 500 ms from when it was sent, less 0.5 ms and 1 ms.
    let end_us = 498_500;
    assert_eq!(one.held(end_us - 1), 125);
    assert_eq!(one.held(end_us), 0);
    assert!(matches!(one.take(1, end_us).outcome, Taking::Exact));
    assert_eq!(one.holdings.fates.tokens_expired, 125);
}

#[test]
fn the_oldest_lot_is_spent_first() {
    let mut one = One::with_tokens(125);
    let second = one.take(100, 100 * MS).question.unwrap();
    one.add(&second, 50, 101 * MS);
    let taken = paid(one.take(30, 102 * MS));
    assert_eq!(taken.end_us(), 498_500);
    assert_eq!(taken.parts.iter().map(|lot| lot.tokens).collect::<Vec<_>>(), [25, 5]);
    assert_eq!(one.held(498_500), 45);
}

#[test]
fn a_request_that_costs_more_than_the_lots_hold_leaves_them_alone() {
    let mut one = One::with_tokens(125);
    assert!(matches!(one.take(126, 2 * MS).outcome, Taking::Exact));
    assert_eq!(one.held(2 * MS), 125);
}

#[test]
fn a_partial_loan_denies_once_it_is_spent_and_for_a_while() {
    let mut one = One::with_tokens(10);
    paid(one.take(10, 2 * MS));
    // Half a period and half of the jitter: 125 ms from when the answer came.
    let Taking::Denied(decision) = one.take(1, 3 * MS).outcome else { panic!("not denied") };
    assert_eq!(decision.outcome(), Outcome::Deny { retry_after_us: 123 * MS });
    assert!(matches!(one.take(1, 126 * MS - 1).outcome, Taking::Denied(_)));
    let after = one.take(1, 126 * MS);
    assert!(matches!(after.outcome, Taking::Exact));
    assert!(after.question.is_some());
}

/// The lots are not spent yet: others can have them, and the store may have enough for this one.
#[test]
fn a_pause_denies_nothing_while_there_are_lots() {
    let mut one = One::with_tokens(10);
    assert!(matches!(one.take(11, 2 * MS).outcome, Taking::Exact));
    assert_eq!(one.held(2 * MS), 10);
}

#[test]
fn a_denial_lasts_until_the_store_has_a_token_if_that_is_later() {
    let mut one = One::new();
    let decision =
        Decision::new(Outcome::Deny { retry_after_us: 700 * MS }, 1_000, 0, Timestamp::ZERO);
    let loan = Loan { tokens: 1, life: one.terms.term, decision: Some(decision) };
    let first = one.first.clone();
    one.holdings.add(&first, Some(loan), 0, MS);
    paid(one.take(1, 2 * MS));
    let Taking::Denied(decision) = one.take(1, 3 * MS).outcome else { panic!("not denied") };
    assert_eq!(decision.outcome(), Outcome::Deny { retry_after_us: 698 * MS });
}

/// A process that joins busy exact ones gets no loan for long. If it denied then, it would starve.
#[test]
fn an_empty_loan_means_exact_checks_for_a_period_and_no_denial() {
    let mut one = One::with_tokens(0);
    for now_us in [2 * MS, 126 * MS - 1] {
        let answer = one.take(1, now_us);
        assert!(matches!(answer.outcome, Taking::Exact));
        assert!(answer.question.is_none());
    }
    assert!(one.take(1, 126 * MS).question.is_some());
}

#[test]
fn a_failed_question_means_exact_checks_for_a_period() {
    let mut one = One::new();
    let first = one.first.clone();
    one.holdings.add(&first, None, 0, MS);
    let answer = one.take(1, 2 * MS);
    assert!(matches!(answer.outcome, Taking::Exact) && answer.question.is_none());
    assert_eq!(one.holdings.fates.loans_failed, 1);
}

#[test]
fn tokens_that_are_put_back_can_be_spent_until_their_lot_ends() {
    let mut one = One::with_tokens(125);
    let taken = paid(one.take(100, 2 * MS));
    one.holdings.put_back(&taken, 3 * MS);
    assert_eq!(one.held(3 * MS), 125);
    assert_eq!(one.holdings.fates.tokens_spent, 0);
    let taken = paid(one.take(100, 4 * MS));
    one.holdings.put_back(&taken, 498_500);
    assert_eq!(one.held(498_499), 25, "they had ended when they were put back");
    assert_eq!(one.holdings.fates.tokens_expired, 100);
}

#[test]
fn other_numbers_drop_the_lots() {
    let changes: [fn(Policy) -> Policy; 2] = [
        |policy| policy.with_burst(9_999).unwrap(),
        |_| Policy::token_bucket("999/s").unwrap().with_burst(10_000).unwrap(),
    ];
    for change in changes {
        let mut one = One::with_tokens(125);
        let taken = paid(one.take(5, 2 * MS));
        one.policy = change(one.policy.clone());
        assert!(matches!(one.take(1, 3 * MS).outcome, Taking::NotHeld));
        assert_eq!(one.holdings.fates.tokens_dropped, 120);
        // Nor does anything of it come back, when the old numbers do.
        one.policy = policy();
        one.holdings.promote(counter(&one.policy), &one.terms, rate(100, 0), 4 * MS).unwrap();
        one.holdings.put_back(&taken, 4 * MS);
        let late = one.first.clone();
        one.add(&late, 125, 4 * MS);
        assert_eq!(one.held(4 * MS), 0);
    }
}

#[test]
fn other_terms_drop_the_lots() {
    let mut one = One::with_tokens(125);
    let mode = LoanMode::Optimistic { share_ppm: 50_000 };
    one.terms = LoanTerms::new(&one.policy, mode).unwrap();
    assert!(matches!(one.take(1, 3 * MS).outcome, Taking::NotHeld));
}

#[test]
fn a_reset_drops_lots_and_what_is_on_its_way() {
    let mut one = One::with_tokens(125);
    let question = one.take(70, 2 * MS).question.unwrap();
    one.holdings.forget(counter(&one.policy));
    one.add(&question, 50, 3 * MS);
    assert_eq!((one.held(3 * MS), one.holdings.fates.tokens_dropped), (0, 105));
}

#[test]
fn two_keys_with_one_hash_do_not_share_tokens() {
    let mut one = One::with_tokens(125);
    let other = Counter { key: b"other", ..counter(&one.policy) };
    let terms = one.terms;
    assert!(matches!(one.holdings.take(other, &terms, 1, 2 * MS).outcome, Taking::NotHeld));
    let named = one.policy.clone().with_name("other");
    let other = counter(&named);
    assert!(matches!(one.holdings.take(other, &terms, 1, 2 * MS).outcome, Taking::NotHeld));
    assert_eq!(one.held(2 * MS), 125);
}

#[test]
fn a_key_is_promoted_at_four_tokens_a_period_and_demoted_at_half() {
    let terms = terms(&policy());
    // 125 ms: 4 tokens are 3.2 per 100 ms.
    assert!(!is_hot(&rate(3, 0), &terms, 0));
    assert!(is_hot(&rate(4, 0), &terms, 0));
    // Three requests in 100 ms are 3.75 in a period: not enough to be promoted, enough to stay.
    let mut one = One::with_tokens(1);
    paid(one.take(1, 2 * MS));
    let mut questions = 0;
    for at_ms in (35..900).step_by(33) {
        questions += u64::from(one.take(1, at_ms * MS).question.is_some());
    }
    assert!(questions > 0);
    // One request in 100 ms is 1.25: over, once nothing is on its way.
    for at_ms in (950..2_500).step_by(100) {
        one.take(1, at_ms * MS);
    }
    assert!(one.holdings.state(counter(&one.policy), 2_500 * MS).is_none());
}

#[test]
fn holdings_are_bounded_and_make_room_for_others_when_they_are_over() {
    let policy = policy();
    let terms = terms(&policy);
    let mut holdings = Holdings::new(2);
    let keys = [b"a", b"b", b"c"];
    let at = |at: usize| Counter { hash: at as u64, key: keys[at], policy: &policy };
    assert!(holdings.promote(at(0), &terms, rate(100, MS), MS).is_some());
    assert!(holdings.promote(at(1), &terms, rate(100, MS), MS).is_some());
    assert!(holdings.promote(at(2), &terms, rate(100, MS), MS).is_none());
    // Their questions are no longer of use, and nobody asks for the keys.
    let later_us = 700 * MS;
    assert!(holdings.promote(at(2), &terms, rate(100, later_us), later_us).is_some());
    assert_eq!(holdings.by_hash.len(), 1);
}

#[test]
fn lots_are_bounded() {
    let mut one = One::with_tokens(100);
    let taken = paid(one.take(100, 2 * MS));
    let holding = one.holdings.by_hash.get_mut(&7).unwrap();
    for at in 0..100 {
        holding.add(Lot { tokens: 1, end_us: 1_000_000 + at });
    }
    assert_eq!((holding.lots.len(), holding.held()), (LOTS_MAX, 100));
    assert!(holding.lots.iter().all(|lot| lot.end_us < 1_000_100));
    one.holdings.put_back(&taken, 3 * MS);
    let holding = &one.holdings.by_hash[&7];
    // The earlier end counts.
    assert_eq!((holding.lots.len(), holding.held()), (LOTS_MAX, 200));
    assert!(holding.lots[0].end_us <= taken.end_us());
}

#[test]
fn a_pause_is_half_a_period_to_one_and_a_half() {
    let period_us = micros(Duration::from_millis(100));
    assert_eq!([0, 1_000_000].map(|jitter| pause_us(period_us, jitter)), [50 * MS, 150 * MS]);
    let terms = terms(&policy());
    assert_eq!(pause_us(micros(terms.period), 1_000_000), micros(terms.pause_max()));
}
