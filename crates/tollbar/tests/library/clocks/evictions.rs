//! A key whose counter is forgotten as fresh and put back, again and again, while threads ask for it.
//!
//! The store has room for a few keys, and new ones come all the time. They use a tenth of their
//! limit, so they cannot displace the key that is judged while it is throttled; but as soon as it is
//! fresh, its slot is the first to go. A thread that looks for it in vain may have read the clock
//! before it was forgotten, and must not count from there.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tollbar::{Clock, MemoryStore, Policy, Store, SystemClock, Timestamp};
use tollbar_testkit::xorshift::Xorshift;

use super::recorder::{JudgeClock, Recorder};

const KEYS_MAX: usize = 8;
const ASKING_THREADS: u64 = 4;
const NEW_KEY_THREADS: u64 = 2;

thread_local! {
    /// For how long the next reading of the clock is held.
    static HOLD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The system's clock, which can hold on to a reading before it returns it: as if the thread had
/// been interrupted just then, which the machine does too seldom.
#[derive(Debug, Default)]
struct HeldClock(SystemClock);

impl Clock for HeldClock {
    fn now(&self) -> Timestamp {
        let now = self.0.now();
        let until = now.after(HOLD.take());
        while self.0.now() < until {
            thread::yield_now();
        }
        now
    }
}

/// Asks for one key from four threads with old readings of the clock, while two others bring new keys.
fn ask(store: &MemoryStore, policy: &Policy, duration: Duration) -> Recorder {
    let clock = JudgeClock::beside(store.clock().unwrap());
    let interval_us = policy.window().as_micros() as u64 / policy.limit();
    let is_over = AtomicBool::new(false);
    let ask = |thread: u64| {
        let mut recorder = Recorder::new(policy);
        let mut random = Xorshift::named(&format!("thread {thread}"));
        let end_us = clock.now_us() + duration.as_micros() as u64;
        let mut to_us = 0;
        while to_us < end_us {
            HOLD.set(Duration::from_micros(random.below(2 * interval_us)));
            let from_us = clock.now_us();
            let decision = store.check_now(b"hot", policy, 1);
            to_us = clock.now_us();
            recorder.record(from_us, to_us, &decision);
        }
        is_over.store(true, Ordering::Relaxed);
        recorder
    };
    let bring_new_keys = |thread: u64| {
        let other = Policy::token_bucket("10/s").unwrap();
        let mut key = thread;
        while !is_over.load(Ordering::Relaxed) {
            store.check_now(&key.to_le_bytes(), &other, 1);
            key += NEW_KEY_THREADS;
        }
    };
    thread::scope(|scope| {
        let (ask, bring_new_keys) = (&ask, &bring_new_keys);
        for thread in 0..NEW_KEY_THREADS {
            scope.spawn(move || bring_new_keys(thread));
        }
        let asking: Vec<_> =
            (0..ASKING_THREADS).map(|thread| scope.spawn(move || ask(thread))).collect();
        let mut log = Recorder::new(policy);
        for thread in asking {
            log.merge(thread.join().unwrap());
        }
        log
    })
}

fn judge(duration: Duration) {
    for rate in ["500/s", "2000/s"] {
        // With a burst of 1, the counter uses its whole limit whenever it is not fresh.
        let policy = Policy::token_bucket(rate).unwrap().with_burst(1).unwrap();
        let store = MemoryStore::builder().max_keys(KEYS_MAX).clock(HeldClock::default()).build();
        let log = ask(&store, &policy, duration);
        log.judge(&policy, "hot").unwrap_or_else(|story| panic!("{rate}: {story}"));
        assert!(store.stats().forced_evictions > 0, "no key made room");
    }
}

/// A reading that was taken before the counter was forgotten would count the time in between twice.
#[test]
fn a_key_that_is_forgotten_as_fresh_and_comes_back_stays_within_its_bounds() {
    judge(Duration::from_millis(700));
}

#[test]
#[ignore = "long: a minute of threads that ask and are interrupted"]
fn a_key_that_is_forgotten_as_fresh_and_comes_back_stays_within_its_bounds_for_long() {
    judge(Duration::from_secs(30));
}
