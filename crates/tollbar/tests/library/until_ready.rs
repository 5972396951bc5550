//! Waiting for one's turn: in order, once per turn, and without a trace left behind.

mod fixture;
mod others;
mod properties;
mod soak;
mod stores;

use std::time::Duration;

use fixture::Fixture;
use tollbar::{DenyReason, Policy, Timer, WaitError};

/// One every 10 us; four wait.
fn policy() -> Policy {
    Policy::leaky_queue("1/10us", 4).unwrap()
}

fn long() -> Policy {
    Policy::leaky_queue("1/10us", 100_000).unwrap()
}

#[test]
fn who_comes_first_goes_first_an_interval_apart() {
    let mut fixture = Fixture::new(policy());
    fixture.come_times("key", 5);
    assert_eq!(fixture.went(), [(0, 0)]);
    assert_eq!(fixture.timer.sleepers(), 1, "only the first sleeps");
    assert_eq!((fixture.limiter.waiting().waiters, fixture.limiter.waiting().keys), (4, 1));
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40)]);
    fixture.assert_empty();
}

#[test]
fn keys_do_not_wait_for_each_other() {
    let mut fixture = Fixture::new(policy());
    fixture.come_times("a", 3);
    fixture.come_times("b", 3);
    assert_eq!((fixture.timer.sleepers(), fixture.limiter.waiting().keys), (2, 2));
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (3, 0), (1, 10), (4, 10), (2, 20), (5, 20)]);
    fixture.assert_empty();
}

#[test]
fn whoever_finds_the_queue_full_is_told_at_once() {
    let mut fixture = Fixture::new(policy());
    fixture.come_times("key", 6);
    let [(5, WaitError::Denied(denied))] = fixture.refused[..] else {
        panic!("{:?}", fixture.refused);
    };
    assert_eq!(denied.retry_after(), Some(Duration::from_micros(10)));
    let never = fixture.come("key", 6);
    let (refused, WaitError::Denied(denied)) = fixture.refused[1] else { panic!("it was denied") };
    assert_eq!((refused, denied.reason()), (never, DenyReason::ExceedsCapacity));
    assert_eq!(fixture.limiter.waiting().waiters, 4);
}

#[test]
fn nobody_waits_for_longer_than_the_policy_allows() {
    let policy = policy().with_max_wait(Duration::from_micros(20)).unwrap();
    let mut fixture = Fixture::new(policy);
    fixture.come_times("key", 5);
    assert_eq!(fixture.refused.iter().map(|(task, _)| *task).collect::<Vec<_>>(), [3, 4]);
    let denied = fixture.refused[0].1.denied().unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_micros(10)));
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (1, 10), (2, 20)]);
}

#[test]
fn no_more_wait_than_the_limiter_has_room_for_and_who_is_too_many_takes_no_place() {
    let mut fixture = Fixture::with(policy(), |builder| builder.max_waiters(3));
    fixture.come_times("a", 3);
    fixture.come_times("b", 3);
    let [(5, WaitError::TooManyWaiters { waiters_max: 3 })] = fixture.refused[..] else {
        panic!("{:?}", fixture.refused);
    };
    assert_eq!(fixture.limiter.peek("b").remaining().unwrap(), 3, "its place was given back");
    // Who does not have to wait needs no room.
    assert_eq!(fixture.come("c", 1), 6);
    assert_eq!(fixture.went().last(), Some(&(6, 0)));
    fixture.finish();
    assert_eq!(fixture.departures.len(), 6);
    fixture.come_times("a", 3);
    assert_eq!(fixture.refused.len(), 1, "there is room again");
}

#[test]
fn when_the_first_gives_up_the_others_move_up_and_the_last_place_is_free() {
    let mut fixture = Fixture::new(policy());
    fixture.come_times("key", 5);
    assert_eq!(fixture.limiter.peek("key").remaining().unwrap(), 0);
    fixture.cancel(1);
    assert_eq!(fixture.timer.sleepers(), 1, "the new first sleeps");
    assert_eq!([2, 3, 4].map(|task| fixture.woken(task)), [1, 0, 0]);
    assert_eq!(fixture.limiter.peek("key").remaining().unwrap(), 1);
    fixture.come("key", 1);
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (2, 10), (3, 20), (4, 30), (5, 40)]);
    fixture.assert_empty();
}

#[test]
fn when_one_in_the_middle_gives_up_those_behind_it_move_up() {
    let mut fixture = Fixture::new(policy());
    fixture.come_times("key", 5);
    fixture.cancel(3);
    assert_eq!(fixture.limiter.peek("key").remaining().unwrap(), 1);
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (1, 10), (2, 20), (4, 30)]);
    fixture.assert_empty();
}

#[test]
fn when_the_last_gives_up_its_place_is_free() {
    let mut fixture = Fixture::new(policy());
    fixture.come_times("key", 5);
    fixture.cancel(4);
    assert_eq!(fixture.come("key", 1), 5);
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (1, 10), (2, 20), (3, 30), (5, 40)]);
    fixture.assert_empty();
}

#[test]
fn when_all_give_up_the_queue_is_as_if_they_had_never_come() {
    let mut fixture = Fixture::new(long());
    fixture.come_times("key", 1_000);
    let bytes = fixture.limiter.waiting().bytes;
    for task in (1..1_000).map(|task| task * 7 % 1_000) {
        fixture.cancel(task);
    }
    fixture.assert_empty();
    assert!(fixture.limiter.waiting().bytes < bytes / 10, "{bytes}");
    assert_eq!(fixture.limiter.check("key").delay(), Duration::from_micros(10));
}

#[test]
fn one_that_was_let_go_and_dropped_unpolled_has_used_its_turn() {
    let mut fixture = Fixture::new(policy());
    fixture.come_times("key", 3);
    fixture.timer.advance(Duration::from_micros(25));
    // Both are due. Nobody polls the first any more.
    fixture.cancel(1);
    assert_eq!(fixture.went(), [(0, 0), (2, 25)]);
    fixture.assert_empty();
}

/// A plain check has queued behind the waiters, so that the store can take nothing back: the turn
/// is for whoever comes next, and nobody goes at the same time as the other.
#[test]
fn a_turn_that_cannot_be_given_back_is_kept_for_the_next() {
    let mut fixture = Fixture::new(long());
    fixture.come_times("key", 3);
    let elsewhere = fixture.limiter.check("key");
    assert_eq!(elsewhere.delay(), Duration::from_micros(30));
    fixture.cancel(1);
    fixture.come("key", 1);
    // The place it had asked for is free again: the last one is that of the check.
    assert_eq!(fixture.limiter.check("key").delay(), Duration::from_micros(40));
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (2, 10), (3, 20)]);
    fixture.assert_empty();
}

#[test]
fn a_request_of_several_places_has_the_first_of_them() {
    let mut fixture = Fixture::new(long());
    for cost in [1, 3, 1, 2, 1] {
        fixture.come("key", cost);
    }
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (1, 10), (2, 40), (3, 50), (4, 70)]);
}

#[test]
fn who_needs_fewer_places_moves_up_and_who_needs_more_stays() {
    let mut fixture = Fixture::new(long());
    for cost in [1, 3, 1, 2, 1] {
        fixture.come("key", cost);
    }
    // The one place at 40 fits into the three at 10; the two at 50 do not fit into the one at 40.
    fixture.cancel(1);
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (2, 10), (3, 50), (4, 70)]);
    fixture.assert_empty();
}

/// A turn of one place was kept for the next, which needs two: the check elsewhere has the second.
#[test]
fn a_turn_that_was_kept_is_not_for_one_that_needs_more() {
    let mut fixture = Fixture::new(long());
    fixture.come_times("key", 3);
    assert_eq!(fixture.limiter.check("key").delay(), Duration::from_micros(30));
    fixture.cancel(2);
    fixture.come("key", 2);
    fixture.finish();
    assert_eq!(fixture.went(), [(0, 0), (1, 10), (3, 40)]);
    fixture.assert_empty();
}

/// Used late, it would meet the one after it, which a check elsewhere has.
#[test]
fn a_turn_that_was_kept_and_has_passed_is_lost() {
    let mut fixture = Fixture::new(long());
    let (limiter, timer) = (fixture.limiter.clone(), fixture.timer.clone());
    let late = fixture.spawn(async move {
        timer.sleep(Duration::from_micros(35)).await;
        limiter.wait("key").await
    });
    let tasks = fixture.come_times("key", 4);
    assert_eq!(fixture.limiter.check("key").delay(), Duration::from_micros(40));
    fixture.cancel(tasks[1]);
    // The turn at 30 was kept. The late one comes before anybody else is polled.
    fixture.timer.advance(Duration::from_micros(35));
    fixture.run();
    fixture.finish();
    assert_eq!(fixture.went(), [(tasks[0], 0), (tasks[2], 35), (tasks[3], 35), (late, 50)]);
    fixture.assert_empty();
}

#[test]
fn ten_thousand_wait_and_each_goes_in_its_turn() {
    let mut fixture = Fixture::new(long());
    for _ in 0..10_000 {
        fixture.come("crowd", 1);
    }
    assert_eq!(fixture.limiter.waiting().waiters, 9_999);
    assert_eq!(fixture.timer.sleepers(), 1);
    for turn in 1..100 {
        fixture.advance_us(u64::MAX);
        assert_eq!(fixture.went().last(), Some(&(turn, turn as u64 * 10)));
    }
    // All that is left at once, if nobody looks for long enough.
    fixture.timer.advance(Duration::from_secs(1));
    fixture.run();
    let order: Vec<usize> = fixture.departures.iter().map(|departure| departure.task).collect();
    assert!(order.is_sorted() && order.len() == 10_000);
    fixture.assert_empty();
}

#[test]
fn jitter_comes_after_the_turn_and_holds_nobody_up() {
    let mut fixture = Fixture::with(long(), |builder| builder.jitter(Duration::from_millis(1)));
    fixture.come_times("key", 50);
    // The one that did not wait has no jitter.
    assert_eq!(fixture.went(), [(0, 0)]);
    fixture.finish();
    let mut late_us: Vec<u64> = Vec::new();
    for (task, after_us) in fixture.went() {
        let turn_us = task as u64 * 10;
        assert!((turn_us..=turn_us + 1_000).contains(&after_us), "{task} after {after_us} us");
        late_us.push(after_us - turn_us);
    }
    late_us.sort_unstable();
    late_us.dedup();
    assert!(late_us.len() > 10, "{late_us:?}");
    fixture.assert_empty();
}

#[test]
fn nobody_is_woken_for_nothing() {
    let mut fixture = Fixture::new(long());
    fixture.come_times("key", 100);
    fixture.finish();
    // Once as it becomes the first, and once by the timer.
    for task in 2..100 {
        assert!(fixture.woken(task) <= 2, "{task}: {}", fixture.woken(task));
    }
}

/// One that gives up moves all behind it up. They are woken one by one, as each becomes the first, so
/// that a thousand that give up do not wake a thousand each.
#[test]
fn one_that_gives_up_wakes_those_behind_it_one_by_one() {
    let mut fixture = Fixture::new(long());
    fixture.come_times("key", 100);
    for task in 1..50 {
        fixture.cancel(task);
    }
    assert!((51..100).all(|task| fixture.woken(task) == 0));
    fixture.finish();
    for task in 50..100 {
        assert_eq!(fixture.departures[task - 49].after_us, (task as u64 - 49) * 10);
        assert!(fixture.woken(task) <= 2, "{task}: {}", fixture.woken(task));
    }
    fixture.assert_empty();
}

#[test]
fn a_future_can_be_sent_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    let fixture = Fixture::new(policy());
    is_send(&fixture.limiter.wait("key"));
}
