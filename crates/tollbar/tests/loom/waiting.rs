//! Models of waiting: two who come, give up or are let go at the same time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tollbar::{Clock, Limiter, ManualClock, ManualTimer, MemoryStore, Policy, Timestamp};

use super::{model, race};

const INTERVAL: Duration = Duration::from_micros(10);

/// A limiter of one every 10 us whose first turn has been taken.
struct Fixture {
    limiter: Limiter,
    timer: ManualTimer,
    clock: ManualClock,
}

/// Somebody who waits, and whether it was woken. Nothing between two threads goes by the flag, so
/// loom need not know of it.
struct WaitingTask {
    future: Pin<Box<dyn Future<Output = bool> + Send>>,
    woken: Arc<Flag>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
        let timer = ManualTimer::new(clock.clone());
        let store =
            MemoryStore::builder().max_keys(2).max_wide_keys(1).clock(clock.clone()).build();
        let policy = Policy::leaky_queue("1/10us", 9).unwrap().with_name("queue");
        let limiter =
            Limiter::builder(policy).store(Arc::new(store)).timer(timer.clone()).build().unwrap();
        assert!(limiter.check("key").delay().is_zero());
        Self { limiter, timer, clock }
    }

    fn come(&self) -> WaitingTask {
        come(&self.limiter)
    }

    /// Lets time pass until all of `tasks` have gone; when each did, in intervals.
    fn finish(&self, tasks: &mut [WaitingTask]) -> Vec<u64> {
        let mut went = vec![0; tasks.len()];
        for _ in 1..=4 {
            while let Some(at) = (0..tasks.len()).find(|at| went[*at] == 0 && tasks[*at].is_awake())
            {
                if tasks[at].poll() {
                    let after_us = self.clock.now().as_micros() - 1_000_000;
                    went[at] = after_us / INTERVAL.as_micros() as u64;
                }
            }
            self.timer.advance(INTERVAL);
        }
        let stats = self.limiter.waiting();
        assert_eq!((stats.waiters, stats.keys, self.timer.sleepers()), (0, 0, 0));
        went
    }
}

fn come(limiter: &Limiter) -> WaitingTask {
    let limiter = limiter.clone();
    let future = Box::pin(async move { limiter.wait("key").await.is_ok() });
    let mut task = WaitingTask { future, woken: Arc::default() };
    assert!(!task.poll(), "the first turn is taken");
    task
}

impl WaitingTask {
    /// Whether it has gone.
    fn poll(&mut self) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        self.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
    }

    fn is_awake(&self) -> bool {
        self.woken.0.swap(false, Ordering::SeqCst)
    }
}

#[test]
fn two_who_come_at_once_have_a_turn_each() {
    model(|| {
        let fixture = Fixture::new();
        let (left, right) = (fixture.limiter.clone(), fixture.limiter.clone());
        let (left, right) = race(move || come(&left), move || come(&right));
        let mut went = fixture.finish(&mut [left, right]);
        went.sort_unstable();
        assert_eq!(went, [1, 2]);
    });
}

#[test]
fn one_that_comes_while_another_gives_up_goes_in_one_of_the_two_turns() {
    model(|| {
        let fixture = Fixture::new();
        let gives_up = fixture.come();
        let limiter = fixture.limiter.clone();
        let ((), comes) = race(move || drop(gives_up), move || come(&limiter));
        let went = fixture.finish(&mut [comes]);
        // In the later one where it had asked for its place already and had not joined the line yet:
        // then there was nobody to keep the earlier one for.
        assert!([[1], [2]].contains(&[went[0]]), "{went:?}");
    });
}

#[test]
fn two_who_give_up_at_once_leave_nothing_behind() {
    model(|| {
        let fixture = Fixture::new();
        let (left, right) = (fixture.come(), fixture.come());
        race(move || drop(left), move || drop(right));
        assert_eq!(fixture.limiter.waiting().keys, 0);
        assert_eq!(fixture.limiter.check("key").delay(), INTERVAL, "both places are free");
    });
}

#[test]
fn one_that_is_let_go_while_it_gives_up_uses_one_turn_at_most() {
    // The turn of the first has come. It gives up while the second looks who is due.
    model(|| {
        let fixture = Fixture::new();
        let (first, mut second) = (fixture.come(), fixture.come());
        fixture.timer.advance(INTERVAL);
        let ((), (second, has_gone)) = race(
            move || drop(first),
            move || {
                let has_gone = second.poll();
                (second, has_gone)
            },
        );
        if has_gone {
            // It had moved up, and no place is taken for it any more.
            let stats = fixture.limiter.waiting();
            assert_eq!((stats.waiters, stats.keys), (0, 0));
        } else {
            let went = fixture.finish(&mut [second]);
            assert!([1, 2].contains(&went[0]), "{went:?}");
        }
    });
}

#[test]
fn one_that_comes_while_the_first_is_let_go_is_not_forgotten() {
    model(|| {
        let fixture = Fixture::new();
        let mut first = fixture.come();
        fixture.timer.advance(INTERVAL);
        let limiter = fixture.limiter.clone();
        let (has_gone, comes) = race(move || first.poll(), move || come(&limiter));
        assert!(has_gone);
        let went = fixture.finish(&mut [comes]);
        assert_eq!(went, [2]);
    });
}
