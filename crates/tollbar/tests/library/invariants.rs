//! What the library promises, each promise as a property that can fail.
//!
//! The bounds are checked by brute force over every interval of a trace, with no help from the
//! oracle; what the oracle says is compared in `invariants/agreement.rs`.

mod agreement;
mod edges;
mod log;
mod queue;
mod settlements;
mod warming;

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollbar::{Interval, Outcome, Policy, Timestamp};
use tollbar_testkit::admissions::{Admissions, IntervalSum};
use tollbar_testkit::adversary::TraceState;
use tollbar_testkit::memory_subject::MemorySubject;
use tollbar_testkit::oracle::almanac::Almanac;
use tollbar_testkit::spec::Kind;
use tollbar_testkit::strategy::{self, Move, cases};
use tollbar_testkit::subject::Subject;

const REQUESTS: usize = 150;

/// Long before the end of time, so that every retry-after can be waited for.
fn start() -> impl Strategy<Value = Timestamp> {
    (1_700_000_000_000_000_u64..1_700_000_100_000_000).prop_map(Timestamp::from_micros)
}

fn bucket() -> impl Strategy<Value = Policy> {
    strategy::policy()
        .prop_filter("a bucket", |policy| policy.interval().is_some() && policy.warm_up().is_none())
}

fn admitted(policy: &Policy, start: Timestamp, moves: &[Move]) -> Admissions {
    Admissions::from_trace(&MemorySubject::at(start), policy, start, moves)
}

fn greedy(policy: &Policy, start: Timestamp) -> Admissions {
    Admissions::from_greedy_client(&MemorySubject::at(start), policy, start, REQUESTS)
}

/// With the windows of the key where aligned ones are.
fn on_the_clock_of_the_key(policy: &Policy, mut admitted: Admissions) -> Admissions {
    let stagger_us = policy.stagger_us(b"key").unwrap();
    for (at_us, _) in &mut admitted.charges {
        *at_us -= stagger_us;
    }
    admitted
}

/// Any time before 2100: long enough before the end for every window that follows.
fn any_time() -> impl Strategy<Value = Timestamp> {
    (0_u64..4_102_444_800_000_000).prop_map(Timestamp::from_micros)
}

fn almanac(policy: &Policy) -> Almanac {
    Almanac {
        period: policy.period().unwrap(),
        utc_offset_minutes: policy.utc_offset_minutes().unwrap(),
    }
}

/// What passed in each window, by the calendar that was written out day by day.
fn by_calendar_window(policy: &Policy, admitted: &Admissions) -> BTreeMap<u128, u64> {
    let mut sums = BTreeMap::new();
    for (at_us, cost) in &admitted.charges {
        *sums.entry(almanac(policy).window(u128::from(*at_us))).or_default() += cost;
    }
    sums
}

fn window_us(policy: &Policy) -> u64 {
    policy.window().as_micros() as u64
}

/// tokens x interval <= burst x interval + T, in units of 1 / denominator us.
fn is_within_burst_and_rate(policy: &Policy, span: IntervalSum) -> bool {
    let Interval { numerator_us, denominator } = policy.interval().unwrap();
    let earned = u128::from(span.length_us) * u128::from(denominator);
    let token = u128::from(numerator_us);
    u128::from(span.tokens) * token <= u128::from(policy.capacity()) * token + earned
}

/// (tokens + 1) x interval > T: short of the rate by less than one token.
fn is_short_by_less_than_one(policy: &Policy, span: IntervalSum) -> bool {
    let Interval { numerator_us, denominator } = policy.interval().unwrap();
    let earned = u128::from(span.length_us) * u128::from(denominator);
    u128::from(span.tokens + 1) * u128::from(numerator_us) > earned
}

/// Nobody can ask between two microseconds. A bucket that gets full in between earns nothing for
/// the rest of that microsecond; one whose last token but one takes longer than that never does,
/// nor one that gets full on the tick.
fn holds_what_it_earns_in_a_tick(policy: &Policy) -> bool {
    let Interval { numerator_us, denominator } = policy.interval().unwrap();
    let all_but_one = u128::from(policy.capacity() - 1) * u128::from(numerator_us);
    // A queue may hold less than it has places for, because nobody waits for the last of them.
    let wait = policy.max_wait().map(|wait| wait.as_micros() * u128::from(denominator));
    let all_but_one = all_but_one.min(wait.unwrap_or(all_but_one));
    denominator == 1 || all_but_one >= u128::from(denominator)
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn a_bucket_admits_at_most_burst_and_rate_in_any_interval(
        policy in bucket(), start in start(), moves in strategy::trace(1..REQUESTS),
    ) {
        for span in admitted(&policy, start, &moves).intervals() {
            prop_assert!(is_within_burst_and_rate(&policy, span), "{span:?}");
        }
    }

    #[test]
    fn a_greedy_client_gets_the_rate_of_a_bucket_but_for_one_token(
        policy in bucket().prop_filter("holds a tick", holds_what_it_earns_in_a_tick),
        start in start(),
    ) {
        let admitted = greedy(&policy, start);
        for span in admitted.gaps() {
            prop_assert!(is_short_by_less_than_one(&policy, span), "{span:?}");
        }
        for span in admitted.intervals() {
            prop_assert!(is_within_burst_and_rate(&policy, span), "{span:?}");
        }
    }

    #[test]
    fn a_fixed_window_admits_at_most_its_limit_in_any_aligned_window(
        policy in strategy::policy_of(Kind::FixedWindow),
        start in start(),
        moves in strategy::trace(1..REQUESTS),
    ) {
        let sums = admitted(&policy, start, &moves).by_aligned_window(window_us(&policy));
        prop_assert!(sums.values().all(|sum| *sum <= policy.limit()), "{sums:?}");
    }

    #[test]
    fn a_greedy_client_gets_the_limit_of_every_fixed_window(
        policy in strategy::policy_of(Kind::FixedWindow), start in start(),
    ) {
        let mut sums = greedy(&policy, start).by_aligned_window(window_us(&policy));
        // The requests may have run out in the last one.
        sums.pop_last();
        let first = start.as_micros() / window_us(&policy);
        prop_assert!(sums.keys().copied().eq(first..first + sums.len() as u64), "{sums:?}");
        prop_assert!(sums.values().all(|sum| *sum == policy.limit()), "{sums:?}");
    }

    #[test]
    fn a_staggered_window_admits_at_most_its_limit_in_any_window_of_its_key(
        policy in strategy::policy_of(Kind::StaggeredWindow),
        start in start(),
        moves in strategy::trace(1..REQUESTS),
    ) {
        let sums = on_the_clock_of_the_key(&policy, admitted(&policy, start, &moves))
            .by_aligned_window(window_us(&policy));
        prop_assert!(sums.values().all(|sum| *sum <= policy.limit()), "{sums:?}");
    }

    #[test]
    fn a_greedy_client_gets_the_limit_of_every_staggered_window(
        policy in strategy::policy_of(Kind::StaggeredWindow), start in start(),
    ) {
        let mut sums = on_the_clock_of_the_key(&policy, greedy(&policy, start))
            .by_aligned_window(window_us(&policy));
        // The requests may have run out in the last one.
        sums.pop_last();
        let first = sums.first_key_value().map_or(0, |(first, _)| *first);
        prop_assert!(sums.keys().copied().eq(first..first + sums.len() as u64), "{sums:?}");
        prop_assert!(sums.values().all(|sum| *sum == policy.limit()), "{sums:?}");
    }

    #[test]
    fn a_calendar_window_admits_at_most_its_limit_in_any_day_week_or_month(
        policy in strategy::policy_of(Kind::CalendarWindow),
        start in any_time(),
        moves in strategy::trace(1..REQUESTS),
    ) {
        let sums = by_calendar_window(&policy, &admitted(&policy, start, &moves));
        prop_assert!(sums.values().all(|sum| *sum <= policy.limit()), "{sums:?}");
    }

    #[test]
    fn a_greedy_client_gets_the_limit_of_every_calendar_window(
        policy in strategy::policy_of(Kind::CalendarWindow), start in any_time(),
    ) {
        let mut sums = by_calendar_window(&policy, &greedy(&policy, start));
        let first = almanac(&policy).window(start.as_micros().into());
        // The requests may have run out in the last one.
        sums.pop_last();
        prop_assert!(sums.keys().copied().eq(first..first + sums.len() as u128), "{sums:?}");
        prop_assert!(sums.values().all(|sum| *sum == policy.limit()), "{sums:?}");
    }

    #[test]
    fn a_sliding_window_keeps_its_estimate_within_the_limit_and_a_window_below_twice_that(
        policy in strategy::policy_of(Kind::SlidingWindow),
        start in start(),
        moves in strategy::trace(1..REQUESTS),
    ) {
        let admitted = admitted(&policy, start, &moves);
        let window_us = window_us(&policy);
        let granularity_us = policy.sliding_granularity_us().unwrap();
        let sums = admitted.by_aligned_window(window_us);
        let previous = |window: u64| sums.get(&(window - 1)).copied().unwrap_or(0);
        let mut current = (0, 0);
        for (at_us, cost) in &admitted.charges {
            let window = at_us / window_us;
            current = if current.0 == window { (window, current.1 + cost) } else { (window, *cost) };
            let elapsed_us = at_us % window_us / granularity_us * granularity_us;
            let estimate = u128::from(previous(window)) * u128::from(window_us - elapsed_us)
                + u128::from(current.1) * u128::from(window_us);
            // A cost of 0 passes at any time, and the estimate only ever falls between charges.
            prop_assert!(estimate <= u128::from(policy.limit()) * u128::from(window_us));
        }
        let most = admitted.most_in_any_window(window_us);
        prop_assert!(most < 2 * policy.limit(), "{most}");
    }

    #[test]
    fn a_strict_window_admits_at_most_its_limit_in_any_window(
        policy in strategy::policy_of(Kind::SlidingWindowStrict),
        start in start(),
        moves in strategy::trace(1..REQUESTS),
    ) {
        let most = admitted(&policy, start, &moves).most_in_any_window(window_us(&policy));
        prop_assert!(most <= policy.limit(), "{most}");
    }

    /// n + 1 sub-windows are (n + 1) / n of a window: the limit in each is n / (n + 1) of it in a
    /// window.
    #[test]
    fn a_greedy_client_gets_the_limit_of_a_strict_window_in_n_plus_1_sub_windows(
        policy in strategy::policy_of(Kind::SlidingWindowStrict), start in start(),
    ) {
        let parts = policy.algorithm().variant();
        let part_us = window_us(&policy).div_ceil(parts);
        let admitted = greedy(&policy, start);
        let sums = admitted.by_aligned_window(part_us);
        let first = start.as_micros() / part_us;
        // The requests may have run out in the last one.
        let last = sums.last_key_value().map_or(first, |(last, _)| *last);
        let in_force = |newest: u64| sums.range(newest - parts..=newest).map(|(_, sum)| *sum);
        let newest = (first + parts..last).take(500);
        for newest in newest {
            prop_assert_eq!(in_force(newest).sum::<u64>(), policy.limit());
        }
        prop_assert!(admitted.most_in_any_window(window_us(&policy)) <= policy.limit());
    }

    /// Headers told clients to come back at the end of the window, when a sliding window counter
    /// that was used up denied them still.
    #[test]
    fn a_client_that_waits_until_the_reset_is_not_denied(
        policy in strategy::policy(), start in start(), moves in strategy::trace(1..60),
    ) {
        let subject = MemorySubject::at(start);
        let subject: &dyn Subject = &subject;
        let mut trace_state = TraceState::at(start);
        let mut charged_at = None;
        for each in &moves {
            trace_state.now = trace_state.advanced(each.advance, &policy);
            let cost = trace_state.cost(each.price, &policy);
            let answer = subject.check(trace_state.now, b"key", &policy, cost);
            trace_state.last = Some(answer);
            match answer.outcome {
                Outcome::Allow if cost > 0 => charged_at = Some(trace_state.now),
                Outcome::Deny { retry_after_us } => {
                    let wait = answer.reset_at.since(trace_state.now);
                    prop_assert!(wait.as_micros() >= retry_after_us.into(), "{:?}", answer);
                }
                // Permits, and costs that only a key with more requests is allowed.
                Outcome::Busy => continue,
                Outcome::Never if policy.warm_up().is_some() => continue,
                Outcome::Allow | Outcome::Never => {}
            }
            // A key that waits for as long as it warms up is new, and allowed less than before.
            let is_new_again = policy.warm_up().zip(charged_at).is_some_and(
                |(warm_up, charged_at)| answer.reset_at >= charged_at.after(warm_up.over),
            );
            if policy.has_permits() || is_new_again || answer.reset_at > Timestamp::MAX {
                continue;
            }
            trace_state.now = answer.reset_at.max(trace_state.now);
            // A peek is told of a request of cost 1.
            let again = cost.clamp(1, policy.capacity());
            let at_reset = subject.check(trace_state.now, b"key", &policy, again);
            prop_assert_eq!(at_reset.outcome, Outcome::Allow, "{:?}, then {:?}", answer, at_reset);
            charged_at = Some(trace_state.now);
            trace_state.last = Some(at_reset);
        }
    }

    #[test]
    fn a_retry_after_is_honest_to_the_tick(
        policy in strategy::policy(), start in start(), moves in strategy::trace(1..60),
    ) {
        let subject = MemorySubject::at(start);
        let subject: &dyn Subject = &subject;
        let mut trace_state = TraceState::at(start);
        for each in &moves {
            trace_state.now = trace_state.advanced(each.advance, &policy);
            let cost = trace_state.cost(each.price, &policy);
            let mut answer = subject.check(trace_state.now, b"key", &policy, cost);
            if let Outcome::Deny { retry_after_us } = answer.outcome {
                prop_assert!(retry_after_us > 0);
                let due_us = trace_state.now.as_micros() + retry_after_us;
                // No clock shows what comes after the end of time.
                if due_us > Timestamp::MAX.as_micros() {
                    return Ok(());
                }
                let early = Timestamp::from_micros(due_us - 1);
                trace_state.now = Timestamp::from_micros(due_us);
                let too_early = subject.check(early, b"key", &policy, cost);
                prop_assert_eq!(too_early.outcome, Outcome::Deny { retry_after_us: 1 });
                answer = subject.check(trace_state.now, b"key", &policy, cost);
                prop_assert_eq!(answer.outcome, Outcome::Allow);
            }
            trace_state.last = Some(answer);
        }
    }
}
