//! Small worlds in full: every sequence of requests, every algorithm, against the oracle.
//!
//! A step moves the clock by 0, 1 or 2 us and asks for 0, 1, 2 or 3 tokens; windows are 2 to 4 us
//! long and hold 1 to 3 tokens. All sequences of up to six steps are covered: at each point all
//! four costs are asked from the same state, and the ways that lead to the same history and the
//! same time are followed once, since an algorithm is a pure function.

use std::collections::HashSet;

use tollbar::{Outcome, Period, Policy, Timestamp};
use tollbar_testkit::oracle::{Log, PolicyModel};
use tollbar_testkit::spec::{Kind, PolicySpec, WarmUpSpec};

const STEPS_MAX: usize = 6;

/// What has happened on the way to a point, and where it is in time.
#[derive(Clone)]
struct Point {
    now_us: u64,
    log: Log,
    state: Vec<u64>,
}

struct Fixture<'a> {
    policy: &'a Policy,
    policy_model: PolicyModel,
    answers: usize,
}

impl Fixture<'_> {
    fn explore(&mut self, start: Point) {
        let mut asked = HashSet::new();
        let mut reached = vec![start];
        for _ in 0..STEPS_MAX {
            let moved = reached.iter().flat_map(|from| {
                (0..=2).map(|advance_us| Point { now_us: from.now_us + advance_us, ..from.clone() })
            });
            let new = moved.filter(|point| asked.insert((point.now_us, point.log.clone())));
            let mut new: Vec<Point> = new.collect();
            let asks = new.iter().flat_map(|point| (0..=3).map(move |cost| (point, cost)));
            let charged: Vec<_> = asks.filter_map(|(at, cost)| self.ask(at, cost)).collect();
            new.extend(charged);
            reached = new;
        }
    }

    /// Asks both sides; the point after the charge, if there was one.
    fn ask(&mut self, at: &Point, cost: u64) -> Option<Point> {
        let mut next = at.clone();
        let now = Timestamp::from_micros(at.now_us);
        let expected = self.policy_model.answer(&mut next.log, now, cost);
        let got = self.policy.algorithm().transition(&mut next.state, now, cost).into();
        assert_eq!(
            expected, got,
            "oracle (left) and {:?} differ: cost {cost} at {} after {:?}",
            self.policy, at.now_us, at.log,
        );
        self.answers += 1;
        let is_charge = cost > 0 && expected.outcome == Outcome::Allow;
        assert!(is_charge || next.state == at.state, "{got:?} changed the state");
        is_charge.then_some(next)
    }
}

fn explore_all(kind: Kind, vary: impl Fn(&PolicySpec) -> Vec<PolicySpec>) {
    let mut answers = 0;
    for (limit, window_us) in
        (1..=3).flat_map(|limit| (2..=4).map(move |window_us| (limit, window_us)))
    {
        for spec in vary(&PolicySpec::new(kind, limit, window_us)) {
            let policy = spec.build().unwrap();
            // Windows of all lengths begin here. The beginning of time is a case of its own where
            // windows are looked for before it; to buckets all times are alike.
            let starts_us: &[u64] = if kind.is_bucket() { &[24] } else { &[0, 24] };
            answers += starts_us.iter().map(|start| explore_from(*start, &policy)).sum::<usize>();
        }
    }
    assert!(answers > 10_000, "only {answers} answers were compared");
    println!("{answers} answers compared");
}

/// How many answers were compared.
fn explore_from(start_us: u64, policy: &Policy) -> usize {
    let state = vec![0; policy.algorithm().words()];
    let start = Point { now_us: start_us, log: Log::default(), state };
    let mut fixture =
        Fixture { policy, policy_model: PolicyModel::from_policy(policy), answers: 0 };
    fixture.explore(start);
    fixture.answers
}

fn bursts(spec: &PolicySpec) -> Vec<PolicySpec> {
    (1..=3).map(|burst| spec.clone().with_burst(burst)).collect()
}

#[test]
fn token_bucket_agrees_with_the_oracle_in_every_small_world() {
    explore_all(Kind::TokenBucket, bursts);
}

#[test]
fn leaky_bucket_agrees_with_the_oracle_in_every_small_world() {
    explore_all(Kind::LeakyBucket, |spec| vec![spec.clone()]);
}

#[test]
fn leaky_queue_agrees_with_the_oracle_in_every_small_world() {
    explore_all(Kind::LeakyQueue, |spec| {
        let waits = |spec: PolicySpec| [spec.clone().with_max_wait_us(1), spec];
        bursts(spec).into_iter().flat_map(waits).collect()
    });
}

#[test]
fn fixed_window_agrees_with_the_oracle_in_every_small_world() {
    explore_all(Kind::FixedWindow, |spec| vec![spec.clone()]);
}

/// Without a key, so without a stagger: what is left is the fixed window.
#[test]
fn unbound_staggered_window_agrees_with_the_oracle_in_every_small_world() {
    explore_all(Kind::StaggeredWindow, |spec| vec![spec.clone()]);
}

/// No calendar has windows of a few microseconds, so these worlds lie around the end of one.
#[test]
fn calendar_window_agrees_with_the_oracle_in_every_small_world_around_a_midnight() {
    // 1970-01-02, Monday 1970-01-05, 1970-02-01, 2000-03-01, 2024-03-01 after a leap day,
    // 2100-03-01 after none; each at an offset of its own.
    let midnights_s = [
        (86_400, 0),
        (345_600, 330),
        (2_678_400, -570),
        (951_868_800, 1_080),
        (1_709_251_200, 0),
        (4_107_542_400, -1_080),
    ];
    let mut answers = 0;
    for (midnight_s, minutes) in midnights_s {
        let midnight_us = (midnight_s - i64::from(minutes) * 60).cast_unsigned() * 1_000_000;
        for period in [Period::Day, Period::Week, Period::Month] {
            let policy = Policy::calendar_window(2, period).unwrap();
            let policy = policy.with_utc_offset(minutes).unwrap();
            answers += explore_from(midnight_us - 3, &policy);
        }
    }
    assert!(answers > 10_000, "only {answers} answers were compared");
    println!("{answers} answers compared");
}

#[test]
fn sliding_window_agrees_with_the_oracle_in_every_small_world() {
    explore_all(Kind::SlidingWindow, |spec| vec![spec.clone()]);
}

/// Into how many parts of whole microseconds a window can be cut.
fn parts(spec: &PolicySpec) -> impl Iterator<Item = u32> {
    let window_us = spec.window_us;
    (1..=4).filter(move |parts| window_us.is_multiple_of(u64::from(*parts)))
}

#[test]
fn strict_window_agrees_with_the_oracle_in_every_small_world() {
    explore_all(Kind::SlidingWindowStrict, |spec| {
        parts(spec).map(|parts| spec.clone().with_parts(parts)).collect()
    });
}

#[test]
fn window_log_agrees_with_the_oracle_in_every_small_world() {
    explore_all(Kind::SlidingWindowLog, |spec| vec![spec.clone()]);
}

/// Climbs of one to three steps over 2 to 5 us: keys grow old and are new again within a few steps.
#[test]
fn warm_ups_agree_with_the_oracle_in_every_small_world() {
    let warm_ups = [(2, 1), (3, 2), (5, 3)];
    let climbs = |spec: PolicySpec| {
        (1..spec.limit).flat_map(move |start| {
            let spec = spec.clone();
            warm_ups.map(|(over_us, steps)| {
                spec.clone().with_warm_up(WarmUpSpec { start, over_us, steps })
            })
        })
    };
    explore_all(Kind::TokenBucket, |spec| bursts(spec).into_iter().flat_map(climbs).collect());
    for kind in [Kind::FixedWindow, Kind::SlidingWindow] {
        explore_all(kind, |spec| climbs(spec.clone()).collect());
    }
    explore_all(Kind::SlidingWindowStrict, |spec| {
        parts(spec).skip(1).flat_map(|parts| climbs(spec.clone().with_parts(parts))).collect()
    });
}
