//! Any number of people coming, giving up and asking elsewhere, in any order.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::{Interval, Policy, WarmUp};
use tollbar_testkit::strategy::cases;

use super::fixture::Fixture;

#[derive(Debug, Clone, Copy)]
enum Event {
    /// Somebody comes to wait.
    Come { cost: u64 },
    /// One of those who wait gives up.
    GiveUp { which: usize },
    /// Somebody takes places without waiting here: another process, say.
    Elsewhere { cost: u64 },
    /// Time passes.
    Pass { us: u64 },
}

fn event(cost_max: u64) -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..=cost_max).prop_map(|cost| Event::Come { cost }),
        4 => any::<usize>().prop_map(|which| Event::GiveUp { which }),
        1 => (1..=cost_max).prop_map(|cost| Event::Elsewhere { cost }),
        4 => (1_u64..25).prop_map(|us| Event::Pass { us }),
    ]
}

/// Whole intervals and fractions of microseconds, with a warm-up and without.
fn policy() -> impl Strategy<Value = Policy> {
    let rates = prop::sample::select(vec!["1/10us", "3/10us", "7/2us", "1/1us", "0.7/3us"]);
    let warm_up = (1_u64..7, 1_u64..100, 1_u32..4);
    (rates, 0_u64..12, proptest::option::of(warm_up)).prop_map(|(rate, length, warm_up)| {
        let plain = Policy::leaky_queue(rate, length).unwrap();
        let Some((start, over_us, steps)) = warm_up else { return plain };
        let warm_up = WarmUp { start, over: Duration::from_micros(over_us), steps };
        // One token has nothing to climb.
        plain.clone().with_warm_up(warm_up).unwrap_or(plain)
    })
}

/// Someone who left, when, and for how many places.
type Left = (u64, u64);

/// Plays `events`; who left, here and elsewhere.
fn play(fixture: &mut Fixture, events: &[Event]) -> Vec<Left> {
    let mut costs = Vec::new();
    let mut left = Vec::new();
    for event in events {
        match *event {
            Event::Come { cost } => {
                costs.push(cost);
                fixture.come("key", cost);
            }
            Event::GiveUp { which } => {
                let waiting = fixture.waiting();
                if !waiting.is_empty() {
                    fixture.cancel(waiting[which % waiting.len()]);
                }
            }
            Event::Elsewhere { cost } => {
                let decision = fixture.limiter.check_n("key", cost);
                if decision.is_allowed() {
                    left.push((fixture.after_us() + decision.delay().as_micros() as u64, cost));
                }
            }
            Event::Pass { us } => fixture.advance_us(us),
        }
    }
    fixture.finish();
    left.extend(
        fixture.departures.iter().map(|departure| (departure.after_us, costs[departure.task])),
    );
    left.sort_by_key(|(after_us, _)| *after_us);
    left
}

/// Any two are as many intervals apart as the places from the one to the other. Of those who leave
/// in the same microsecond nobody can say who was first, so they count only if all cost the same.
fn assert_apart(policy: &Policy, left: &[Left]) -> Result<(), TestCaseError> {
    let Interval { numerator_us, denominator } = policy.interval().unwrap();
    let costs_differ = left.iter().any(|(_, cost)| *cost != left[0].1);
    for (at, (first_us, cost)) in left.iter().enumerate() {
        for (end, (later_us, _)) in left.iter().enumerate().skip(at + 1) {
            let between = left[at + 1..end].iter().filter(|(after_us, _)| {
                !costs_differ || (after_us != first_us && after_us != later_us)
            });
            let places = cost + between.map(|(_, cost)| cost).sum::<u64>();
            let least_us = places * numerator_us / denominator;
            let apart_us = later_us - first_us;
            let same_tick = costs_differ && apart_us == 0;
            prop_assert!(same_tick || apart_us >= least_us, "{first_us}, {later_us}: {left:?}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn no_turn_is_used_twice_and_nobody_waits_for_ever(
        policy in policy(), events in vec(event(1), 1..120),
    ) {
        let mut fixture = Fixture::new(policy.clone());
        let left = play(&mut fixture, &events);
        assert_apart(&policy, &left)?;
        let is_in_order = fixture.departures.is_sorted_by_key(|departure| departure.task);
        prop_assert!(is_in_order, "{:?}", fixture.departures);
        prop_assert_eq!(fixture.waiting(), [0; 0]);
        fixture.assert_empty();
    }

    #[test]
    fn no_turn_is_used_twice_whatever_the_costs(
        policy in policy(), events in vec(event(4), 1..120),
    ) {
        let mut fixture = Fixture::new(policy.clone());
        let left = play(&mut fixture, &events);
        assert_apart(&policy, &left)?;
        let is_in_order = fixture.departures.is_sorted_by_key(|departure| departure.task);
        prop_assert!(is_in_order, "{:?}", fixture.departures);
        fixture.assert_empty();
    }

    /// With nobody elsewhere a place given up is never lost: whoever comes afterwards finds the
    /// queue as long as it is here.
    #[test]
    fn a_place_given_up_is_free_for_the_next(
        length in 1_u64..12, events in vec(event(1), 1..120),
    ) {
        let policy = Policy::leaky_queue("1/10us", length).unwrap();
        let mut fixture = Fixture::new(policy);
        let here = events.into_iter().filter(|event| !matches!(event, Event::Elsewhere { .. }));
        for event in here {
            match event {
                Event::Come { .. } => drop(fixture.come("key", 1)),
                Event::GiveUp { which } => {
                    let waiting = fixture.waiting();
                    if !waiting.is_empty() {
                        fixture.cancel(waiting[which % waiting.len()]);
                    }
                }
                Event::Pass { us } => fixture.advance_us(us),
                Event::Elsewhere { .. } => {}
            }
            let waiting = fixture.limiter.waiting().waiters as u64;
            // One may be on its way out.
            let remaining = fixture.limiter.peek("key").remaining().unwrap();
            prop_assert!((length..=length + 1).contains(&(remaining + waiting)));
        }
    }
}
