//! Reservations and requests that pay once, as a user of the limiter sees them.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollbar::{
    AdmitError, Algorithm, Charges, Clock, Concurrency, Decision, DenyReason, Limiter,
    LimiterBuilder, ManualClock, MemoryStore, Outcome, Policy, Receipt, ReceiptError, ReceiptKey,
    ReserveError, SettleError, Timestamp, WarmUp,
};
use tollbar_testkit::strategy;

const TTL: Duration = Duration::from_mins(1);

/// A clock that tests move, and limiters on the same store.
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

    fn builder(&self, policy: Policy) -> LimiterBuilder {
        let policy = if policy.name().is_some() { policy } else { policy.with_name("limiter") };
        Limiter::builder(policy).store(self.store.clone()).reservation_ttl(TTL)
    }

    fn limiter(&self, policy: Policy) -> Limiter {
        self.builder(policy).receipt_key(ReceiptKey::new([7; 32])).build().unwrap()
    }

    fn left(&self, policy: &Policy) -> u64 {
        self.store.check_now(b"key", policy, 0).remaining().unwrap()
    }
}

fn bucket(rate: &str) -> Policy {
    Policy::token_bucket(rate).unwrap().with_name("limiter")
}

fn reserve(limiter: &Limiter, cost: u64) -> Receipt {
    limiter.reserve("key", cost).unwrap().receipt().expect("it is allowed").clone()
}

#[test]
fn what_is_not_spent_is_given_back_and_a_receipt_is_redeemed_once() {
    let limiter = Fixture::new().limiter(bucket("100/min"));
    let receipt = reserve(&limiter, 30);
    assert_eq!(limiter.peek("key").remaining().unwrap(), 70);
    let settlement = limiter.commit(&receipt, 10).unwrap();
    let charge = settlement.charges()[0];
    assert_eq!((charge.reserved, charge.spent, charge.refunded, charge.overdrawn), (30, 10, 20, 0));
    assert_eq!(limiter.peek("key").remaining().unwrap(), 90);
    assert!(matches!(limiter.commit(&receipt, 0), Err(SettleError::NotOpen)));
    assert!(matches!(limiter.cancel(&receipt), Err(SettleError::NotOpen)));
    assert_eq!(limiter.peek("key").remaining().unwrap(), 90);
}

#[test]
fn what_is_spent_in_excess_becomes_debt_as_far_as_the_overdraft_goes() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(bucket("60/min").with_overdraft(30).unwrap());
    let receipt = reserve(&limiter, 50);
    let charge = limiter.commit(&receipt, 80).unwrap().charges()[0];
    assert_eq!((charge.refunded, charge.overdrawn), (0, 30));
    // 20 more than it holds: 20 s until it is empty, one more for the token.
    let denied = limiter.check("key");
    assert_eq!(denied.ok().unwrap_err().retry_after(), Some(Duration::from_secs(21)));
    // Denials do not cut the debt.
    fixture.clock.advance(Duration::from_secs(20));
    assert!(!limiter.check("key").is_allowed());
    fixture.clock.advance(Duration::from_secs(1));
    assert!(limiter.check("key").is_allowed());

    let receipt = limiter.reserve("other", 60).unwrap().receipt().unwrap().clone();
    let charge = limiter.commit(&receipt, 100).unwrap().charges()[0];
    assert_eq!((charge.spent, charge.overdrawn), (100, 30), "10 could not be charged");
}

#[test]
fn without_an_overdraft_an_excess_takes_what_is_there() {
    let limiter = Fixture::new().limiter(bucket("60/min"));
    let receipt = reserve(&limiter, 50);
    let charge = limiter.commit(&receipt, 80).unwrap().charges()[0];
    assert_eq!(charge.overdrawn, 10);
    let denied = limiter.check("key").ok().unwrap_err();
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
}

#[test]
fn an_excess_in_a_window_counts_until_it_ends() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(Policy::fixed_window("100/min").unwrap());
    let receipt = reserve(&limiter, 50);
    assert_eq!(limiter.commit(&receipt, 1_000_000).unwrap().charges()[0].overdrawn, 999_950);
    let denied = limiter.check("key");
    assert_eq!(denied.remaining().unwrap(), 0);
    fixture.clock.advance(denied.ok().unwrap_err().retry_after().unwrap());
    assert_eq!(limiter.check("key").remaining().unwrap(), 99);
}

#[test]
fn a_count_that_no_longer_fits_a_word_keeps_counting() {
    let fixture = Fixture::new();
    // A window of 4 us leaves ten bits for the count.
    let limiter = fixture.limiter(Policy::fixed_window("1000/4us").unwrap());
    let receipt = reserve(&limiter, 1);
    assert_eq!(limiter.commit(&receipt, 5_000).unwrap().charges()[0].overdrawn, 4_999);
    assert!(!limiter.check("key").is_allowed());
    fixture.clock.advance(Duration::from_micros(4));
    assert!(limiter.check("key").is_allowed());
}

#[test]
fn a_reservation_that_nobody_settles_stays_charged_and_cannot_be_settled_later() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(Policy::fixed_window("100/h").unwrap());
    let receipt = reserve(&limiter, 30);
    fixture.clock.advance(TTL);
    assert!(matches!(limiter.cancel(&receipt), Err(SettleError::NotOpen)));
    assert_eq!(limiter.peek("key").remaining().unwrap(), 70);
}

#[test]
fn what_a_window_or_time_has_given_back_is_not_given_back_again() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(bucket("60/min"));
    let receipt = reserve(&limiter, 30);
    fixture.clock.advance(Duration::from_secs(20));
    // 20 of the 30 have been earned since. Somebody else takes them.
    assert!(limiter.check_n("key", 50).is_allowed());
    assert_eq!(limiter.cancel(&receipt).unwrap().charges()[0].refunded, 10);

    let window = fixture.limiter(Policy::fixed_window("60/min").unwrap());
    let receipt = reserve(&window, 30);
    let end = window.peek("key").reset_at().unwrap();
    fixture.clock.set(end);
    assert!(window.check_n("key", 60).is_allowed());
    assert_eq!(window.cancel(&receipt).unwrap().charges()[0].refunded, 0);
    assert!(!window.check("key").is_allowed());
}

#[test]
fn a_reservation_under_several_limits_charges_and_settles_all_of_them_or_none() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(bucket("1/s"));
    let tokens = bucket("1000/min").with_name("tokens");
    let requests = Policy::fixed_window("2/min").unwrap().with_name("requests");
    let admit = || {
        let charges = Charges::new().charge("key", &tokens, 400).charge("key", &requests, 1);
        limiter.admit(charges.reserve_for(TTL))
    };
    let receipt = admit().unwrap().into_receipt().unwrap();
    let refused = limiter.commit(&receipt, 100);
    assert!(matches!(refused, Err(SettleError::AmountCount { charges: 2, amounts: 1 })));
    let settlement = limiter.commit_each(&receipt, &[100, 1]).unwrap();
    let refunds: Vec<u64> = settlement.charges().iter().map(|charge| charge.refunded).collect();
    assert_eq!(refunds, [300, 0]);

    let grant = admit().unwrap();
    assert_eq!(admit().unwrap_err().decisions().unwrap().binding(), Some(1));
    assert_eq!(fixture.left(&tokens), 500);
    let settlement = grant.settle(&[150, 1]).unwrap();
    assert_eq!(settlement.charges()[0].refunded, 250);
    assert_eq!(fixture.left(&tokens), 750);
    assert!(matches!(admit().unwrap_err(), AdmitError::Denied(_)));
}

#[test]
fn a_reservation_is_settled_by_itself_and_if_it_is_dropped_the_charge_stands() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(bucket("100/min"));
    let settlement = limiter.reserve("key", 30).unwrap().commit(10).unwrap();
    assert_eq!(settlement.charges()[0].refunded, 20);
    assert_eq!(limiter.peek("key").remaining(), Some(90));
    limiter.reserve("key", 30).unwrap().cancel().unwrap();
    assert_eq!(limiter.peek("key").remaining(), Some(90));
    drop(limiter.reserve("key", 30).unwrap());
    assert_eq!(limiter.peek("key").remaining(), Some(60));
    let denied = limiter.reserve("key", 61).unwrap_err();
    let ReserveError::Denied(denied) = denied else { panic!("{denied:?}") };
    assert_eq!(denied.reason(), DenyReason::RateLimited);
    assert_eq!(limiter.peek("key").remaining(), Some(60));
}

#[test]
fn a_grant_that_was_not_reserved_cannot_be_settled_and_returns_its_permits() {
    let fixture = Fixture::new();
    let policy = bucket("100/min");
    let limiter = fixture.limiter(policy.clone());
    let permits = Concurrency::new(1).unwrap();
    let admit = || {
        limiter.admit(Charges::new().charge("key", &policy, 10).permit("key", &permits, 1)).unwrap()
    };
    assert!(matches!(admit().settle(&[1]), Err(SettleError::NotReserved)));
    assert!(matches!(admit().cancel(), Err(SettleError::NotReserved)));
    assert!(matches!(admit().into_receipt(), Err(SettleError::NotReserved)));
    assert_eq!((fixture.left(&policy), fixture.left(permits.as_policy())), (70, 1));
}

/// Reserved or not, the charge stands and the permits come back.
#[test]
fn a_reserved_grant_that_is_dropped_returns_its_permits_and_stays_charged() {
    let fixture = Fixture::new();
    let policy = bucket("100/min");
    let limiter = fixture.limiter(policy.clone());
    let permits = Concurrency::new(1).unwrap();
    let charges = Charges::new().charge("key", &policy, 10).permit("key", &permits, 1);
    let grant = limiter.admit(charges.reserve_for(TTL)).unwrap();
    assert_eq!(fixture.left(permits.as_policy()), 0);
    drop(grant);
    assert_eq!((fixture.left(&policy), fixture.left(permits.as_policy())), (90, 1));
}

#[test]
fn permits_of_a_reservation_come_back_when_it_is_settled() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(bucket("1/s"));
    let tokens = bucket("1000/min").with_name("tokens");
    let in_flight = Concurrency::new(1).unwrap();
    let leased = Concurrency::new(1).unwrap().with_lease(TTL).unwrap();
    for permits in [in_flight, leased] {
        let admit = || {
            let charges = Charges::new().permit("key", &permits, 1).charge("key", &tokens, 400);
            limiter.admit(charges.reserve_for(TTL))
        };
        let receipt = admit().unwrap().into_receipt().unwrap();
        let left = || fixture.left(permits.as_policy());
        assert_eq!(left(), 0);
        let denied = admit().unwrap_err().decisions().unwrap().denied().unwrap();
        assert_eq!(denied.reason(), DenyReason::Busy);
        let settlement = limiter.commit(&receipt, 100).unwrap();
        let refunds: Vec<u64> = settlement.charges().iter().map(|charge| charge.refunded).collect();
        assert_eq!((refunds, settlement.permits_returned(), left()), (vec![300], 1, 1));
    }
}

#[test]
fn a_shadow_that_denied_was_not_charged_and_is_not_on_the_receipt() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(bucket("1/s"));
    let (live, candidate) =
        (bucket("100/min").with_name("live"), bucket("5/min").with_name("candidate"));
    let charges = Charges::new().shadow("key", &candidate, 10).charge("key", &live, 10);
    let receipt = limiter.admit(charges.reserve_for(TTL)).unwrap().into_receipt().unwrap();
    assert_eq!(limiter.commit(&receipt, 4).unwrap().charges().len(), 1);
    assert_eq!(fixture.left(&live), 96);
}

#[test]
fn a_receipt_travels_as_text_and_any_limiter_with_the_key_and_the_store_settles_it() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(bucket("100/min").with_name("tokens"));
    let text = reserve(&limiter, 30).to_string();
    assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    // Its own policy is another: the receipt says which one was charged.
    let elsewhere = fixture.limiter(bucket("1/s"));
    elsewhere.cancel(&text.parse().unwrap()).unwrap();
    assert_eq!(limiter.peek("key").remaining().unwrap(), 100);

    let stranger = fixture.builder(bucket("1/s")).build().unwrap();
    let refused = stranger.cancel(&reserve(&limiter, 1)).unwrap_err();
    assert!(matches!(refused, SettleError::Receipt(ReceiptError::NotOurs)));
}

#[test]
fn a_receipt_that_was_changed_anywhere_is_refused() {
    let limiter = Fixture::new().limiter(bucket("100/min"));
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
    let fixture = Fixture::new();
    let custom = fixture.limiter(Policy::custom(Open).unwrap());
    let refused = custom.reserve("key", 1).unwrap_err();
    assert!(matches!(
        refused,
        ReserveError::Receipt(ReceiptError::CustomAlgorithm { algorithm: "open" })
    ));
    // An algorithm names no charge, and gives none back, unless it says so itself.
    let refund = Open.refund(&mut [9], Timestamp::ZERO, 0, 1);
    assert_eq!((Open.stamp(&[9]), refund.tokens), (0, 0));
    let limiter = fixture.limiter(bucket("100/min"));
    let long = vec![b'k'; tollbar::RECEIPT_BYTES_MAX];
    let refused = limiter.reserve(&long, 1).unwrap_err();
    assert!(matches!(refused, ReserveError::Receipt(ReceiptError::TooLong)));
    assert_eq!(limiter.peek(&long).remaining().unwrap(), 100);
    let shorter = vec![b'k'; 48_000];
    let receipt = limiter.reserve(&shorter, 1).unwrap().receipt().unwrap().clone();
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
        Policy::fixed_window("100/h").and_then(Policy::with_stagger),
        Policy::sliding_window("100/h"),
        Policy::sliding_window_strict("100/h", 4),
    ] {
        let limiter = Fixture::new().limiter(plain.unwrap().with_warm_up(warm_up).unwrap());
        let receipt = reserve(&limiter, 30);
        limiter.reset("key");
        assert!(limiter.check_n("key", 40).is_allowed());
        assert_eq!(limiter.cancel(&receipt).unwrap().charges()[0].refunded, 0);
        assert_eq!(limiter.peek("key").remaining().unwrap(), 10, "{limiter:?}");
        let receipt = reserve(&limiter, 10);
        assert_eq!(limiter.cancel(&receipt).unwrap().charges()[0].refunded, 10);
    }
}

#[test]
fn a_request_pays_once_by_its_id_and_a_denied_one_is_decided_anew() {
    let fixture = Fixture::new();
    let policy = bucket("60/min");
    let limiter = fixture.builder(policy.clone()).request_id_ttl(Duration::from_secs(30));
    let limiter = limiter.build().unwrap();
    let once = |id: &str, key: &str, cost| {
        let charges = Charges::new().charge(key, &policy, cost).request_id(id);
        Ok::<_, AdmitError>(limiter.admit(charges)?.decisions().each()[0])
    };
    let first = once("id", "key", 50).unwrap();
    assert_eq!(once("id", "key", 50).unwrap(), first);
    assert_eq!(limiter.peek("key").remaining().unwrap(), 10);

    // Another cost, another key: not the same request.
    for (key, cost) in [("key", 49), ("other", 50)] {
        let refused = once("id", key, cost).unwrap_err();
        assert!(matches!(refused, AdmitError::RequestIdReused));
    }
    assert_eq!(limiter.peek("key").remaining().unwrap(), 10);

    assert!(matches!(once("late", "key", 20), Err(AdmitError::Denied(_))));
    fixture.clock.advance(Duration::from_secs(10));
    assert!(once("late", "key", 20).unwrap().is_allowed());

    // Forgotten, it is another request.
    fixture.clock.advance(Duration::from_secs(20));
    assert_eq!(once("id", "key", 5).unwrap().remaining().unwrap(), 15);
}

#[test]
fn a_reservation_by_id_gets_the_same_receipt_and_pays_once() {
    let limiter = Fixture::new().limiter(bucket("60/min"));
    let policy = bucket("60/min");
    let reserve = || {
        let charges = Charges::new().charge("key", &policy, 20).request_id("id").reserve_for(TTL);
        limiter.admit(charges).unwrap().into_receipt().unwrap()
    };
    let first = reserve();
    assert_eq!(reserve(), first);
    assert_eq!(limiter.peek("key").remaining().unwrap(), 40);
    // All of it was needed: the request has paid, and is done.
    limiter.commit(&first, 20).unwrap();
    assert!(matches!(limiter.commit(&reserve(), 0), Err(SettleError::NotOpen)));
    assert_eq!(limiter.peek("key").remaining().unwrap(), 40);
}

/// Reserve, cancel, reserve again with the same id: 90 of 90 passed, and one had paid.
#[test]
fn an_id_whose_reservation_gave_something_back_pays_again() {
    let limiter = Fixture::new().limiter(bucket("60/min"));
    let policy = bucket("60/min");
    let reserve = || {
        let charges = Charges::new().charge("key", &policy, 20).request_id("id").reserve_for(TTL);
        Some(limiter.admit(charges).ok()?.into_receipt().unwrap())
    };
    let left = || limiter.peek("key").remaining().unwrap();
    limiter.cancel(&reserve().unwrap()).unwrap();
    assert_eq!(left(), 60);
    // Of 20 reserved, 15 are spent each time, until the limit denies.
    for spent in [15, 30, 45] {
        limiter.commit(&reserve().unwrap(), 15).unwrap();
        assert_eq!(left(), 60 - spent);
    }
    assert!(reserve().is_none(), "what is left, 15, is less than is reserved");
}

/// A concurrency limit of 2 admitted 100 of 100: each took a permit, gave it back and came with the same id.
#[test]
fn an_id_whose_lease_came_back_takes_another() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(bucket("60/min"));
    let lease = Duration::from_secs(5);
    let permits = Concurrency::new(2).unwrap().with_lease(lease).unwrap();
    let admit = || limiter.admit(Charges::new().permit("key", &permits, 1).request_id("id"));
    let in_flight =
        || 2 - fixture.store.check_now(b"key", permits.as_policy(), 0).remaining().unwrap();
    let grant = admit().unwrap();
    assert_eq!(in_flight(), 1);
    drop(grant);
    assert_eq!(in_flight(), 0);
    let again = admit().unwrap();
    assert_eq!(in_flight(), 1, "the id takes another permit");
    // A lease that ends by itself ends the id as well.
    fixture.clock.advance(lease);
    assert_eq!(in_flight(), 0);
    let third = admit().unwrap();
    assert_eq!(in_flight(), 1);
    drop((again, third));
}

/// An id lasts as long as the shortest lease of its request. Cancelled after that, the reservation left the ended id where
/// it was, and a clock that went back let the next request with that id pass without paying.
#[test]
fn an_id_that_ended_before_its_reservation_gave_back_pays_again_though_the_clock_goes_back() {
    let fixture = Fixture::new();
    let policy = bucket("60/min");
    let limiter = fixture.limiter(policy.clone());
    let permits = Concurrency::new(2).unwrap().with_lease(Duration::from_secs(5)).unwrap();
    let reserve = || {
        let charges = Charges::new().charge("key", &policy, 20).permit("key", &permits, 1);
        let grant = limiter.admit(charges.request_id("id").reserve_for(TTL)).unwrap();
        grant.into_receipt().unwrap()
    };
    let receipt = reserve();
    let reserved_at = fixture.clock.now();
    fixture.clock.advance(Duration::from_secs(6));
    limiter.cancel(&receipt).unwrap();
    assert_eq!(fixture.left(&policy), 60);
    fixture.clock.set(reserved_at);
    let left = fixture.left(&policy);
    reserve();
    assert_eq!(fixture.left(&policy), left - 20, "the second reservation pays");
}

#[test]
fn more_answers_than_can_be_remembered_are_refused_before_they_are_charged() {
    let fixture = Fixture::new();
    let limiter = fixture.limiter(bucket("60/min"));
    let policies: Vec<Policy> =
        (0..32).map(|number| bucket("60/min").with_name(&number.to_string())).collect();
    let admit = |count: usize, id: &str| {
        let none = Charges::new().request_id(id);
        let charges =
            policies[..count].iter().fold(none, |charges, each| charges.charge("key", each, 1));
        limiter.admit(charges).map(drop)
    };
    admit(21, "id").unwrap();
    let error = admit(32, "another").unwrap_err();
    assert!(matches!(error, AdmitError::TooManyCharges { .. }), "{error:?}");
    assert_eq!(fixture.left(&policies[0]), 59);
}

proptest! {
    #![proptest_config(strategy::cases(512))]

    /// Whatever the policy, a receipt leads back to its counter, and to the same numbers.
    #[test]
    fn every_policy_can_be_reserved_and_given_back(policy in strategy::policy(), named: bool) {
        let policy = if named { policy.with_name("a name") } else { policy };
        let fixture = Fixture::new();
        let limiter = fixture.limiter(bucket("1/s"));
        let fresh = fixture.left(&policy);
        let charges = Charges::new().charge("key", &policy, fresh).reserve_for(TTL);
        let text = limiter.admit(charges).unwrap().into_receipt().unwrap().to_string();
        let stranger = fixture.limiter(bucket("1/s"));
        let settlement = stranger.cancel(&text.parse().unwrap()).unwrap();
        if policy.has_permits() {
            prop_assert_eq!((settlement.charges().len(), settlement.permits_returned()), (0, fresh));
            prop_assert_eq!(fixture.left(&policy), fresh);
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
            prop_assert_eq!(fixture.left(&policy), fresh);
        }
    }

    #[test]
    fn any_text_is_a_receipt_of_ours_or_an_error(text in "[A-Za-z0-9_-]{0,200}") {
        let limiter = Fixture::new().limiter(bucket("60/min"));
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
    let fixture = Fixture::new();
    let policy = bucket("10/100s");
    let limiter = fixture.limiter(policy.clone());
    let reserve = |key: &str, ttl: Duration| {
        let charges = Charges::new().charge(key, &policy, 5).reserve_for(ttl);
        limiter.admit(charges).unwrap().into_receipt().unwrap()
    };
    let long = Duration::from_mins(15);
    for _ in 0..4 {
        limiter.cancel(&reserve("key", long)).unwrap();
    }
    let old = reserve("key", long);
    fixture.clock.advance(Duration::from_mins(1));
    for other in 0..20_000 {
        reserve(&format!("other:{other}"), Duration::from_secs(1));
    }
    reserve("key", long);
    limiter.cancel(&old).unwrap();
    assert_eq!(limiter.peek("key").remaining().unwrap(), 5);
}
