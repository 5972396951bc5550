//! Reservations that are settled after their counter was reset, grew cold, or got another rule.

use std::sync::Arc;
use std::time::Duration;

use tollbar::{Limiter, ManualClock, MemoryStore, Policy, Receipt, Timestamp, WarmUp};

use super::limiter_over;

struct Fixture {
    clock: ManualClock,
    store: Arc<MemoryStore>,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
        Self { clock, store: Arc::new(store) }
    }

    fn limiter(&self, policy: Policy) -> Limiter {
        limiter_over(&self.store, policy.with_name("settled"))
    }
}

fn reserve(limiter: &Limiter, cost: u64) -> Receipt {
    limiter.reserve("key", cost).unwrap().receipt().expect("it is allowed").clone()
}

/// A reset makes a bucket fresh. What was reserved before it is no longer owed, so giving it back
/// would free tokens that were charged after the reset.
#[test]
fn reservation_made_before_a_reset_gives_nothing_back_after_it() {
    for bucket in [Policy::token_bucket("10/min"), Policy::leaky_bucket("10/min")] {
        let fixture = Fixture::new();
        let limiter = fixture.limiter(bucket.unwrap());
        let before = reserve(&limiter, 6);
        limiter.reset("key");
        assert!(limiter.check_n("key", 7).is_allowed());
        assert_eq!(limiter.cancel(&before).unwrap().charges()[0].refunded, 0);
        assert_eq!(limiter.peek("key").remaining().unwrap(), 3);
        // Nor does it take anything away from reservations that were made after the reset.
        let after = reserve(&limiter, 3);
        assert_eq!(limiter.cancel(&after).unwrap().charges()[0].refunded, 3);
        assert_eq!(limiter.peek("key").remaining().unwrap(), 3);
    }
}

fn warming(policy: Policy) -> Policy {
    policy.with_warm_up(WarmUp { start: 2, over: Duration::from_mins(1), steps: 1 }).unwrap()
}

/// A key is new again once it has been charged nothing for a minute, and an overdraft is a charge.
#[test]
fn overdraft_keeps_a_key_warm() {
    for policy in [
        Policy::token_bucket("60/min").unwrap().with_overdraft(40).unwrap(),
        Policy::fixed_window("60/h").unwrap(),
        Policy::sliding_window_strict("60/h", 6).unwrap(),
    ] {
        let fixture = Fixture::new();
        let limiter = fixture.limiter(warming(policy));
        // Born at 0 s.
        let receipt = reserve(&limiter, 1);
        fixture.clock.advance(Duration::from_secs(50));
        assert_eq!(limiter.commit(&receipt, 3).unwrap().charges()[0].overdrawn, 2);
        // Without the overdraft it would be new at 60 s.
        fixture.clock.advance(Duration::from_secs(59));
        assert!(limiter.check_n("key", 40).is_allowed(), "{:?}", limiter.peek("key"));
    }
}

/// A bucket that cannot owe more is charged nothing, and what is charged nothing grows cold.
#[test]
fn overdraft_that_charges_nothing_leaves_a_key_to_grow_cold() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(warming(Policy::token_bucket("60/min").unwrap()));
    let first = reserve(&limiter, 2);
    let charged_at = Duration::from_millis(500);
    fixture.clock.advance(charged_at);
    // At first the limit is 2 a minute, so a full bucket owes 60 s, and half a second is paid.
    assert_eq!(limiter.commit(&first, 3).unwrap().charges()[0].overdrawn, 0);
    fixture.clock.advance(Duration::from_mins(1).checked_sub(charged_at).unwrap());
    assert_eq!(limiter.peek("key").remaining().unwrap(), 2, "it is new again");
}
