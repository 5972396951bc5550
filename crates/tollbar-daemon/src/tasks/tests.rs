//! Tasks that panic, hang, end early and fail, on a clock that is moved.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::advance;

use super::*;
use crate::panics;

const TURN: Duration = Duration::from_secs(1);
const TURN_MAX: Duration = Duration::from_secs(5);

/// Counts its turns, and does something else at some of them.
struct Counter {
    turns: u64,
    seen: Arc<AtomicU64>,
    at: fn(u64) -> Fate,
}

/// What becomes of a turn.
enum Fate {
    Succeed,
    Fail,
    Panic,
    Hang,
    Return,
}

impl Task for Counter {
    async fn run(&mut self, pulse: &Pulse, mut stopped: ShutdownSignal) {
        loop {
            tokio::select! {
                () = stopped.wait() => return,
                () = sleep(TURN) => {}
            }
            self.turns += 1;
            self.seen.store(self.turns, Ordering::Relaxed);
            match (self.at)(self.turns) {
                Fate::Succeed => pulse.succeed(),
                Fate::Fail => pulse.fail("the disk is full"),
                Fate::Panic => panic!("a fault on purpose"),
                Fate::Hang => std::future::pending().await,
                Fate::Return => return,
            }
        }
    }
}

struct Setup {
    tasks: Tasks,
    pulse: Pulse,
    seen: Arc<AtomicU64>,
    stop: Option<crate::shutdown::ShutdownTrigger>,
}

impl Setup {
    fn new(at: fn(u64) -> Fate) -> Self {
        let (stop, stopped) = ShutdownSignal::new();
        let (tasks, seen) = (Tasks::default(), Arc::default());
        let task = Counter { turns: 0, seen: Arc::clone(&seen), at };
        let pulse = tasks.start("counter", TURN_MAX, &stopped, task);
        Self { tasks, pulse, seen, stop: Some(stop) }
    }

    fn turns(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    fn report(&self) -> TaskReport {
        self.tasks.reports().remove(0)
    }

    /// Waits by the clock of the test, which moves when nothing else is left to do.
    async fn wait(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    fn why(&self) -> String {
        match self.tasks.health() {
            Health::Ok => "ok".to_owned(),
            Health::Degraded { why } => why.to_string(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_goes_on_with_what_it_knows_and_is_reported_for_a_minute() {
    let setup = Setup::new(|turn| if turn == 3 { Fate::Panic } else { Fate::Succeed });
    setup.wait(2).await;
    assert_eq!((setup.why(), setup.report().restarts), ("ok".to_owned(), 0));
    setup.wait(8).await;
    assert!(setup.turns() > 6, "it is started again with its own state: {}", setup.turns());
    assert_eq!(setup.why(), "task counter panicked and was started again");
    let TaskReport { restarts, failures, age, .. } = setup.report();
    assert_eq!((restarts, failures), (1, 0));
    assert!(age <= TURN * 2, "{age:?}");
    setup.wait(60).await;
    assert_eq!(setup.why(), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_hangs_is_dropped_and_started_again() {
    let setup = Setup::new(|turn| if turn == 3 { Fate::Hang } else { Fate::Succeed });
    setup.wait(7).await;
    assert_eq!(setup.turns(), 3, "within the time of a turn nothing happens");
    assert!(setup.report().age > TURN * 4);
    setup.wait(5).await;
    assert!(setup.turns() > 5, "{}", setup.turns());
    assert_eq!(setup.why(), "task counter took too long and was started again");
    assert_eq!(setup.report().restarts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_before_the_daemon_is_started_again() {
    let setup = Setup::new(|turn| if turn == 2 { Fate::Return } else { Fate::Succeed });
    setup.wait(6).await;
    assert!(setup.turns() > 3);
    assert_eq!(setup.why(), "task counter ended and was started again");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_always_fails_at_once_is_tried_less_and_less_often_and_stays_reported() {
    let setup = Setup::new(|_| Fate::Panic);
    setup.wait(600).await;
    let restarts = setup.report().restarts;
    assert!((50..70).contains(&restarts), "every 11 s in the end: {restarts}");
    assert_eq!(setup.why(), "task counter panicked and was started again");
    assert!(setup.report().age >= Duration::from_secs(599));
}

/// It was called outside of what catches panics: its supervisor ended with it.
#[tokio::test(start_paused = true)]
async fn a_closure_that_panics_before_it_has_a_future_is_started_again() {
    let (_stop, stopped) = ShutdownSignal::new();
    let (tasks, starts) = (Tasks::default(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&starts);
    tasks.start("early", TURN_MAX, &stopped, move |pulse: Pulse, mut stopped: ShutdownSignal| {
        assert!(counted.fetch_add(1, Ordering::Relaxed) > 0, "a fault on purpose");
        pulse.succeed();
        async move { stopped.wait().await }
    });
    sleep(TURN).await;
    assert_eq!(starts.load(Ordering::Relaxed), 2);
    assert_eq!(tasks.health(), Health::degraded("task early panicked and was started again"));
}

/// A listener that is out of files accepts nothing for as long as that lasts.
#[tokio::test(start_paused = true)]
async fn turns_that_fail_for_long_are_a_fault_of_the_task_until_one_succeeds() {
    let setup = Setup::new(|turn| if turn <= 14 { Fate::Fail } else { Fate::Succeed });
    setup.wait(10).await;
    assert_eq!(setup.why(), "ok", "it may pass");
    setup.wait(3).await;
    assert_eq!(setup.why(), "task counter fails: the disk is full");
    assert_eq!(setup.report().restarts, 0);
    setup.wait(3).await;
    assert_eq!(setup.why(), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_connection_is_counted_as_one() {
    // In front of the hook that shows the panics of all other tests.
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        panics::record(info);
        others(info);
    }));
    let [connections, ..] = panics::counts();
    let (running, ended) = tokio::sync::oneshot::channel::<()>();
    spawn_connection("--grpc", async move {
        let _running = running;
        tokio::task::yield_now().await;
        panic!("a fault on purpose");
    });
    assert!(ended.await.is_err());
    assert_eq!(panics::counts()[0], ("connection", connections.1 + 1));
}

#[tokio::test(start_paused = true)]
async fn turns_that_fail_are_not_a_fault_of_the_task_and_have_a_reason() {
    let setup = Setup::new(|turn| if turn <= 10 { Fate::Fail } else { Fate::Succeed });
    assert_eq!(setup.pulse.health(), Health::Ok);
    setup.wait(9).await;
    assert_eq!(setup.pulse.health(), Health::degraded("the disk is full"));
    let TaskReport { restarts, failures, age, .. } = setup.report();
    assert_eq!(restarts, 0, "a turn that fails is a turn");
    assert!((8..=9).contains(&failures) && age >= Duration::from_secs(9), "{failures} {age:?}");
    assert_eq!(setup.why(), "ok");
    setup.wait(5).await;
    assert_eq!(setup.pulse.health(), Health::Ok);
    assert!(setup.report().age <= TURN * 2);
}

/// A thread that is blocked cannot be taken away from its task, so the supervisor of the task cannot tell.
#[tokio::test(start_paused = true)]
async fn a_task_that_blocks_its_thread_is_reported_by_those_who_look() {
    let tasks = Tasks::default();
    let pulse = Pulse::new("blocked", TURN_MAX);
    lock(&tasks.states).push(Arc::clone(pulse.state()));
    advance(TURN_MAX).await;
    assert_eq!(tasks.health(), Health::Ok);
    advance(TURN).await;
    assert_eq!(tasks.health(), Health::degraded("task blocked hangs"));
    assert_eq!(pulse.health(), Health::degraded("task blocked hangs"));
    pulse.succeed();
    assert_eq!((tasks.health(), pulse.health()), (Health::Ok, Health::Ok));
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_tasks_and_starts_none_again_but_does_not_wait_for_ever() {
    let mut setup = Setup::new(|_| Fate::Succeed);
    setup.wait(3).await;
    drop(setup.stop.take());
    setup.tasks.join().await;
    let turns = setup.turns();
    setup.wait(60).await;
    assert_eq!(setup.turns(), turns);

    let mut setup = Setup::new(|_| Fate::Hang);
    setup.wait(2).await;
    drop(setup.stop.take());
    let before = Instant::now();
    setup.tasks.join().await;
    assert_eq!(Instant::now() - before, END_MAX);
    assert_eq!(setup.report().restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn periodic_work_is_done_every_period_and_its_errors_are_kept() {
    let (stop, stopped) = ShutdownSignal::new();
    let tasks = Tasks::default();
    let turns = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&turns);
    let work = move || {
        let turn = counted.fetch_add(1, Ordering::Relaxed);
        async move { if turn == 2 { Err("it is gone".into()) } else { Ok(()) } }
    };
    let pulse = tasks.start_periodic("work", TURN, TURN_MAX, &stopped, work);
    sleep(Duration::from_millis(2_500)).await;
    assert_eq!(turns.load(Ordering::Relaxed), 3, "at once, and after each period");
    assert_eq!(pulse.health(), Health::degraded("it is gone"));
    sleep(TURN).await;
    assert_eq!(pulse.health(), Health::Ok);
    drop(stop);
    tasks.join().await;
}
