//! Reservations and requests that pay once, as a user of the limiter sees them.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollbar::store::Store;
use tollbar::{
    Algorithm, Decision, Entry, Limiter, ManualClock, MemoryStore, Outcome, Policy, Receipt,
    ReceiptError, ReceiptKey, RequestError, Role, SettleError, StoreError, Timestamp, WarmUp,
};
use tollbar_testkit::strategy;

const TTL: Duration = Duration::from_mins(1);

/// A clock that tests move, and limiters on the same store.
struct World {
    clock: ManualClock,
    store: Arc<MemoryStore>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
        Self { clock, store: Arc::new(store) }
    }

    fn limiter(&self, policy: Policy) -> Limiter {
        let key = ReceiptKey::new([7; 32]);
        Limiter::builder(policy).store(self.store.clone()).receipt_key(key).build()
    }
}

fn bucket(rate: &str) -> Policy {
    Policy::token_bucket(rate).unwrap()
}

fn reserve(limiter: &Limiter, cost: u64) -> Receipt {
    limiter.reserve("key", cost, TTL).unwrap().into_receipt().expect("it is allowed")
}

#[test]
fn what_is_not_spent_is_given_back_and_a_receipt_is_redeemed_once() {
    let limiter = World::new().limiter(bucket("100/min"));
    let receipt = reserve(&limiter, 30);
    assert_eq!(limiter.peek("key").remaining(), 70);
    let settlement = limiter.commit(&receipt, 10).unwrap();
    let charge = settlement.charges()[0];
    assert_eq!((charge.reserved, charge.spent, charge.refunded, charge.overdrawn), (30, 10, 20, 0));
    assert_eq!(limiter.peek("key").remaining(), 90);
    assert!(matches!(limiter.commit(&receipt, 0), Err(SettleError::NotOpen)));
    assert!(matches!(limiter.cancel(&receipt), Err(SettleError::NotOpen)));
    assert_eq!(limiter.peek("key").remaining(), 90);
}

#[test]
fn what_is_spent_in_excess_becomes_debt_as_far_as_the_overdraft_goes() {
    let world = World::new();
    let limiter = world.limiter(bucket("60/min").with_overdraft(30).unwrap());
    let receipt = reserve(&limiter, 50);
    let charge = limiter.commit(&receipt, 80).unwrap().charges()[0];
    assert_eq!((charge.refunded, charge.overdrawn), (0, 30));
    // 20 more than it holds: 20 s until it is empty, one more for the token.
    let denied = limiter.check("key");
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(21)));
    // Denials do not cut the debt.
    world.clock.advance(Duration::from_secs(20));
    assert!(!limiter.check("key").is_allowed());
    world.clock.advance(Duration::from_secs(1));
    assert!(limiter.check("key").is_allowed());

    let receipt = limiter.reserve("other", 60, TTL).unwrap().into_receipt().unwrap();
    let charge = limiter.commit(&receipt, 100).unwrap().charges()[0];
    assert_eq!((charge.spent, charge.overdrawn), (100, 30), "10 could not be charged");
}

#[test]
fn without_an_overdraft_an_excess_takes_what_is_there() {
    let limiter = World::new().limiter(bucket("60/min"));
    let receipt = reserve(&limiter, 50);
    let charge = limiter.commit(&receipt, 80).unwrap().charges()[0];
    assert_eq!(charge.overdrawn, 10);
    assert_eq!(limiter.check("key").retry_after(), Some(Duration::from_secs(1)));
}

#[test]
fn an_excess_in_a_window_counts_until_it_ends() {
    let world = World::new();
    let limiter = world.limiter(Policy::fixed_window("100/min").unwrap());
    let receipt = reserve(&limiter, 50);
    assert_eq!(limiter.commit(&receipt, 1_000_000).unwrap().charges()[0].overdrawn, 999_950);
    let denied = limiter.check("key");
    assert_eq!(denied.remaining(), 0);
    world.clock.advance(denied.retry_after().unwrap());
    assert_eq!(limiter.check("key").remaining(), 99);
}

#[test]
fn a_count_that_no_longer_fits_a_word_keeps_counting() {
    let world = World::new();
    // A window of 4 us leaves ten bits for the count.
    let limiter = world.limiter(Policy::fixed_window("1000/4us").unwrap());
    let receipt = reserve(&limiter, 1);
    assert_eq!(limiter.commit(&receipt, 5_000).unwrap().charges()[0].overdrawn, 4_999);
    assert!(!limiter.check("key").is_allowed());
    world.clock.advance(Duration::from_micros(4));
    assert!(limiter.check("key").is_allowed());
}

#[test]
fn a_reservation_that_nobody_settles_stays_charged_and_cannot_be_settled_later() {
    let world = World::new();
    let limiter = world.limiter(Policy::fixed_window("100/h").unwrap());
    let receipt = reserve(&limiter, 30);
    world.clock.advance(TTL);
    assert!(matches!(limiter.cancel(&receipt), Err(SettleError::NotOpen)));
    assert_eq!(limiter.peek("key").remaining(), 70);
}

#[test]
fn what_a_window_or_time_has_given_back_is_not_given_back_again() {
    let world = World::new();
    let limiter = world.limiter(bucket("60/min"));
    let receipt = reserve(&limiter, 30);
    world.clock.advance(Duration::from_secs(20));
    // 20 of the 30 have been earned since. Somebody else takes them.
    assert!(limiter.check_cost("key", 50).is_allowed());
    assert_eq!(limiter.cancel(&receipt).unwrap().charges()[0].refunded, 10);

    let window = world.limiter(Policy::fixed_window("60/min").unwrap());
    let receipt = reserve(&window, 30);
    let end = window.peek("key").reset_at();
    world.clock.set(end);
    assert!(window.check_cost("key", 60).is_allowed());
    assert_eq!(window.cancel(&receipt).unwrap().charges()[0].refunded, 0);
    assert!(!window.check("key").is_allowed());
}

#[test]
fn a_reservation_under_several_limits_charges_and_settles_all_of_them_or_none() {
    let world = World::new();
    let limiter = world.limiter(bucket("1/s"));
    let tokens = bucket("1000/min").named("tokens");
    let requests = Policy::fixed_window("2/min").unwrap().named("requests");
    let entries = || [Entry::new("key", &tokens).with_cost(400), Entry::new("key", &requests)];
    let reservation = limiter.reserve_all(&mut entries(), TTL).unwrap();
    let receipt = reservation.into_receipt().unwrap();
    let refused = limiter.commit(&receipt, 100);
    assert!(matches!(refused, Err(SettleError::AmountCount { charges: 2, amounts: 1 })));
    let settlement = limiter.commit_each(&receipt, &[100, 1]).unwrap();
    let refunds: Vec<u64> = settlement.charges().iter().map(|charge| charge.refunded).collect();
    assert_eq!(refunds, [300, 0]);

    assert!(limiter.reserve_all(&mut entries(), TTL).unwrap().is_allowed());
    let denied = limiter.reserve_all(&mut entries(), TTL).unwrap();
    assert!(!denied.is_allowed() && denied.receipt().is_none());
    assert_eq!(denied.verdict().binding(), Some(1));
    let left = world.store.check(b"key", &tokens, 0).wait().unwrap().remaining();
    assert_eq!(left, 500);
}

#[test]
fn permits_of_a_reservation_come_back_when_it_is_settled() {
    let world = World::new();
    let limiter = world.limiter(bucket("1/s"));
    let tokens = bucket("1000/min").named("tokens");
    let in_flight = Policy::concurrency(1).unwrap();
    let leased = Policy::concurrency(1).unwrap().leased(TTL).unwrap();
    for permits in [in_flight, leased] {
        let mut entries = [Entry::new("key", &permits), Entry::new("key", &tokens).with_cost(400)];
        let receipt = limiter.reserve_all(&mut entries, TTL).unwrap().into_receipt().unwrap();
        let left = || world.store.check(b"key", &permits, 0).wait().unwrap().remaining();
        assert_eq!(left(), 0);
        let denied = limiter.reserve_all(&mut entries, TTL).unwrap();
        assert_eq!(denied.verdict().outcome(), Outcome::Busy);
        let settlement = limiter.commit(&receipt, 100).unwrap();
        let refunds: Vec<u64> = settlement.charges().iter().map(|it| it.refunded).collect();
        assert_eq!((refunds, settlement.permits_returned(), left()), (vec![300], 1, 1));
    }
}

#[test]
fn a_shadow_that_denied_was_not_charged_and_is_not_on_the_receipt() {
    let world = World::new();
    let limiter = world.limiter(bucket("1/s"));
    let (live, candidate) = (bucket("100/min").named("live"), bucket("5/min").named("candidate"));
    let mut entries = [
        Entry::new("key", &candidate).with_cost(10).with_role(Role::Shadow),
        Entry::new("key", &live).with_cost(10),
    ];
    let receipt = limiter.reserve_all(&mut entries, TTL).unwrap().into_receipt().unwrap();
    assert_eq!(limiter.commit(&receipt, 4).unwrap().charges().len(), 1);
    assert_eq!(world.store.check(b"key", &live, 0).wait().unwrap().remaining(), 96);
}

#[test]
fn a_receipt_travels_as_text_and_any_limiter_with_the_key_and_the_store_settles_it() {
    let world = World::new();
    let limiter = world.limiter(bucket("100/min").named("tokens"));
    let text = reserve(&limiter, 30).to_string();
    assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    // Its own policy is another: the receipt says which one was charged.
    let elsewhere = world.limiter(bucket("1/s"));
    elsewhere.cancel(&text.parse().unwrap()).unwrap();
    assert_eq!(limiter.peek("key").remaining(), 100);

    let stranger = Limiter::builder(bucket("1/s")).store(world.store.clone()).build();
    let refused = stranger.cancel(&reserve(&limiter, 1)).unwrap_err();
    assert!(matches!(refused, SettleError::Receipt(ReceiptError::NotOurs)));
}

#[test]
fn a_receipt_that_was_changed_anywhere_is_refused() {
    let limiter = World::new().limiter(bucket("100/min"));
    let receipt = reserve(&limiter, 30);
    let text = receipt.to_string();
    for at in 0..text.len() {
        for other in ['A', 'z', '-'] {
            let mut changed: Vec<char> = text.chars().collect();
            changed[at] = other;
            let changed: String = changed.into_iter().collect();
            if changed == text {
                continue;
            }
            // The bits that fill up the last letter must be zero, or it is no receipt.
            let Ok(changed) = changed.parse::<Receipt>() else { continue };
            let refused = limiter.cancel(&changed).unwrap_err();
            assert!(matches!(refused, SettleError::Receipt(ReceiptError::NotOurs)), "{changed}");
        }
        let cut: Result<Receipt, _> = text[..at].parse();
        assert!(cut.is_err() || limiter.cancel(&cut.unwrap()).is_err());
    }
    limiter.cancel(&receipt).unwrap();
}

#[test]
fn what_cannot_be_on_a_receipt_is_refused_before_it_is_charged() {
    /// Allows everything.
    #[derive(Debug)]
    struct Open;
    impl Algorithm for Open {
        fn name(&self) -> &'static str {
            "open"
        }
        fn limit(&self) -> u64 {
            1
        }
        fn window_us(&self) -> u64 {
            1
        }
        fn words(&self) -> usize {
            1
        }
        fn transition(&self, state: &mut [u64], now: Timestamp, _cost: u64) -> Decision {
            state[0] += 1;
            Decision::new(Outcome::Allow, 1, 1, now)
        }
        fn fresh_at(&self, _state: &[u64]) -> Timestamp {
            Timestamp::ZERO
        }
    }
    let world = World::new();
    let custom = world.limiter(Policy::custom(Arc::new(Open)).unwrap());
    let refused = custom.reserve("key", 1, TTL).unwrap_err();
    assert!(matches!(
        refused,
        RequestError::Receipt(ReceiptError::CustomAlgorithm { algorithm: "open" })
    ));
    // An algorithm names no charge, and gives none back, unless it says so itself.
    let refund = Open.refund(&mut [9], Timestamp::ZERO, 0, 1);
    assert_eq!((Open.stamp(&[9]), refund.tokens), (0, 0));
    let limiter = world.limiter(bucket("100/min"));
    let long = vec![b'k'; tollbar::RECEIPT_BYTES_MAX];
    let refused = limiter.reserve(&long, 1, TTL).unwrap_err();
    assert!(matches!(refused, RequestError::Receipt(ReceiptError::TooLong)));
    assert_eq!(limiter.peek(&long).remaining(), 100);
    let shorter = vec![b'k'; 48_000];
    let receipt = limiter.reserve(&shorter, 1, TTL).unwrap().into_receipt().unwrap();
    assert_eq!(receipt.to_string().parse(), Ok(receipt));
    assert_eq!("%".parse::<Receipt>(), Err(ReceiptError::Malformed));
    assert_eq!("A".repeat(100_000).parse::<Receipt>(), Err(ReceiptError::Malformed));
}

/// What has been charged since would be given back instead.
#[test]
fn a_warming_window_gives_nothing_back_that_was_charged_before_a_reset() {
    let warm_up = WarmUp { start: 50, over: Duration::from_mins(1), steps: 2 };
    for plain in [
        Policy::fixed_window("100/h"),
        Policy::fixed_window("100/h").and_then(Policy::staggered),
        Policy::sliding_window("100/h"),
        Policy::sliding_window_strict("100/h", 4),
    ] {
        let limiter = World::new().limiter(plain.unwrap().with_warm_up(warm_up).unwrap());
        let receipt = reserve(&limiter, 30);
        limiter.reset("key");
        assert!(limiter.check_cost("key", 40).is_allowed());
        assert_eq!(limiter.cancel(&receipt).unwrap().charges()[0].refunded, 0);
        assert_eq!(limiter.peek("key").remaining(), 10, "{limiter:?}");
        let receipt = reserve(&limiter, 10);
        assert_eq!(limiter.cancel(&receipt).unwrap().charges()[0].refunded, 10);
    }
}

#[test]
fn a_request_pays_once_by_its_id_and_a_denied_one_is_decided_anew() {
    let world = World::new();
    let limiter = Limiter::builder(bucket("60/min"))
        .store(world.store.clone())
        .request_id_ttl(Duration::from_secs(30))
        .build();
    let first = limiter.check_once("id", "key", 50).unwrap();
    assert_eq!(limiter.check_once("id", "key", 50).unwrap(), first);
    assert_eq!(limiter.peek("key").remaining(), 10);

    // Another cost, another key: not the same request.
    for (key, cost) in [("key", 49), ("other", 50)] {
        let refused = limiter.check_once("id", key, cost).unwrap_err();
        assert!(matches!(refused, RequestError::RequestIdReused));
    }
    assert_eq!(limiter.peek("key").remaining(), 10);

    assert!(!limiter.check_once("late", "key", 20).unwrap().is_allowed());
    world.clock.advance(Duration::from_secs(10));
    assert!(limiter.check_once("late", "key", 20).unwrap().is_allowed());

    // Forgotten, it is another request.
    world.clock.advance(Duration::from_secs(20));
    assert_eq!(limiter.check_once("id", "key", 5).unwrap().remaining(), 15);
}

#[test]
fn a_reservation_by_id_gets_the_same_receipt_and_pays_once() {
    let limiter = World::new().limiter(bucket("60/min"));
    let policy = bucket("60/min");
    let reserve = || {
        let mut entries = [Entry::new("key", &policy).with_cost(20)];
        limiter.reserve_all_once("id", &mut entries, TTL).unwrap()
    };
    let first = reserve().into_receipt().unwrap();
    assert_eq!(reserve().into_receipt(), Some(first.clone()));
    assert_eq!(limiter.peek("key").remaining(), 40);
    limiter.commit(&first, 5).unwrap();
    assert_eq!(limiter.peek("key").remaining(), 55);
    let again = reserve().into_receipt().unwrap();
    assert!(matches!(limiter.commit(&again, 0), Err(SettleError::NotOpen)));
}

#[test]
fn more_answers_than_can_be_remembered_are_refused_before_they_are_charged() {
    let world = World::new();
    let limiter = Limiter::builder(bucket("60/min")).store(world.store.clone()).build();
    let policies: Vec<Policy> =
        (0..32).map(|number| bucket("60/min").named(&number.to_string())).collect();
    let mut entries: Vec<Entry<'_>> = policies.iter().map(|each| Entry::new("key", each)).collect();
    assert!(limiter.check_all_once("id", &mut entries[..21]).unwrap().is_allowed());
    let error = limiter.check_all_once("another", &mut entries).unwrap_err();
    assert!(matches!(error, RequestError::Store(StoreError::BatchTooLarge { .. })), "{error:?}");
    assert_eq!(world.store.check(b"key", &policies[0], 0).wait().unwrap().remaining(), 59);
}

proptest! {
    #![proptest_config(strategy::cases(512))]

    /// Whatever the policy, a receipt leads back to its counter, and to the same numbers.
    #[test]
    fn every_policy_can_be_reserved_and_given_back(policy in strategy::policy(), named: bool) {
        let policy = if named { policy.named("a name") } else { policy };
        let world = World::new();
        let limiter = world.limiter(policy.clone());
        let fresh = limiter.peek("key").remaining();
        let receipt = reserve(&limiter, fresh);
        let text = receipt.to_string();
        let stranger = world.limiter(bucket("1/s"));
        let settlement = stranger.cancel(&text.parse().unwrap()).unwrap();
        if policy.has_permits() {
            prop_assert_eq!((settlement.charges().len(), settlement.permits_returned()), (0, fresh));
            prop_assert_eq!(limiter.peek("key").remaining(), fresh);
            return Ok(());
        }
        let charge = settlement.charges()[0];
        prop_assert_eq!(charge.reserved, fresh);
        // Of a bucket that earns by parts of a microsecond, the last one is taken as paid.
        let intervals = policy.warm_up_intervals().or(policy.interval().map(|interval| vec![interval]));
        let mut intervals = intervals.into_iter().flatten();
        // In an empty queue the first place has its turn at once.
        let is_queue = policy.queue_length().is_some();
        if !is_queue && intervals.all(|interval| interval.denominator == 1) {
            prop_assert_eq!(charge.refunded, fresh);
            prop_assert_eq!(limiter.peek("key").remaining(), fresh);
        }
    }

    #[test]
    fn any_text_is_a_receipt_of_ours_or_an_error(text in "[A-Za-z0-9_-]{0,200}") {
        let limiter = World::new().limiter(bucket("60/min"));
        if let Ok(receipt) = text.parse::<Receipt>() {
            prop_assert!(limiter.cancel(&receipt).is_err());
        }
    }
}

/// More time was given back than had passed, the sum of it was forgotten when no charge could be given
/// back any more, and the next sum began at the clock. Less than the last one, it made a reservation
/// that time had paid look unpaid, and five tokens were given back for nothing.
#[test]
fn a_reservation_that_time_has_paid_is_not_given_back_after_other_keys_took_its_place() {
    let world = World::new();
    let limiter = world.limiter(bucket("10/100s"));
    let reserve = |key: &str, ttl: Duration| {
        let reserved = limiter.reserve(key, 5, ttl).unwrap();
        reserved.into_receipt().expect("it is allowed")
    };
    let long = Duration::from_mins(15);
    for _ in 0..4 {
        limiter.cancel(&reserve("key", long)).unwrap();
    }
    let old = reserve("key", long);
    world.clock.advance(Duration::from_mins(1));
    for other in 0..20_000 {
        reserve(&format!("other:{other}"), Duration::from_secs(1));
    }
    reserve("key", long);
    limiter.cancel(&old).unwrap();
    assert_eq!(limiter.peek("key").remaining(), 5);
}
