//! Numbers of a policy that others read, and counters that were written under other numbers.

use std::time::Duration;

use proptest::prelude::*;
use tollbar::{
    Clock, Limiter, ManualClock, MemoryStore, Policy, Rate, Receipt, ReceiptKey, Timestamp,
};
use tollbar_testkit::strategy::cases;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

#[test]
fn every_unit_of_time_is_as_long_as_it_says() {
    let day = Duration::from_hours(24);
    for (units, window) in [
        (["us", "microsecond", "microseconds"], Duration::from_micros(1)),
        (["ms", "millisecond", "milliseconds"], Duration::from_millis(1)),
        (["s", "sec", "second"], Duration::from_secs(1)),
        (["min", "minute", "minutes"], Duration::from_mins(1)),
        (["h", "hour", "hours"], Duration::from_hours(1)),
        (["d", "day", "days"], day),
        (["w", "week", "weeks"], 7 * day),
        (["month", "months", "1month"], 30 * day),
        (["year", "years", "1 year"], 365 * day),
    ] {
        for unit in units {
            assert_eq!(Policy::fixed_window(&*format!("9/{unit}")).unwrap().window(), window);
        }
    }
}

#[test]
fn a_queue_tells_how_many_may_wait_in_it() {
    for length in [0, 1, 7, 1_000] {
        let queue = Policy::leaky_queue("2/s", length).unwrap();
        assert_eq!((queue.queue_length(), queue.capacity()), (Some(length), length + 1));
    }
    assert_eq!(Policy::leaky_bucket("2/s").unwrap().queue_length(), None);
}

/// A receipt holds its policy in bytes. Were a queue longer in them, a place that is given back by
/// receipt would be given back to a queue of another length.
#[test]
fn a_receipt_has_the_queue_that_it_was_written_for() {
    let key = ReceiptKey::new([7; 32]);
    let queue = Policy::leaky_queue("2/s", 7).unwrap();
    let queue = queue.with_max_wait(Duration::from_secs(3)).unwrap();
    let limiter = Limiter::builder(queue.clone()).receipt_key(key.clone()).build().unwrap();
    let reservation = limiter.reserve("key", 2).unwrap();
    let text = reservation.receipt().expect("it is allowed").to_string();
    let receipt: Receipt = text.parse().unwrap();
    let content = receipt.content(&key).unwrap();
    let kept = &content.charges[0].policy;
    assert_eq!((kept.queue_length(), kept.max_wait()), (queue.queue_length(), queue.max_wait()));
}

fn owed_us(store: &MemoryStore, clock: &ManualClock, policy: &Policy) -> u64 {
    store.check_now(b"key", policy, 0).reset_at().unwrap().as_micros() - clock.now().as_micros()
}

proptest! {
    #![proptest_config(cases(512))]

    /// A bucket keeps a part of a microsecond in units of its own rate. Read by a rule with another
    /// rate, it is still less than a microsecond.
    #[test]
    fn a_changed_rate_changes_what_is_owed_by_less_than_a_microsecond(
        limits in [1_u64..30, 1_u64..30],
        // Within the burst under either limit.
        cost in 1_u64..30,
        window_us in 1_u64..2_000,
        is_queue in any::<bool>(),
    ) {
        let clock = ManualClock::at(START);
        let store = MemoryStore::builder().max_keys(16).clock(clock.clone()).build();
        let [before, after] = limits.map(|limit| {
            let rate = Rate::new(limit, Duration::from_micros(window_us));
            if is_queue {
                Policy::leaky_queue(rate, 999).unwrap()
            } else {
                Policy::token_bucket(rate).unwrap().with_burst(1_000).unwrap()
            }
        });
        prop_assert!(store.check_now(b"key", &before, cost).is_allowed());
        let owed_before = owed_us(&store, &clock, &before);
        let owed_after = owed_us(&store, &clock, &after);
        // Both are rounded up, so the second is no more than the first.
        let range = owed_before - 1..=owed_before;
        prop_assert!(range.contains(&owed_after), "{owed_before} us, then {owed_after}");
    }
}
