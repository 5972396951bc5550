//! A flood of keys that ask once does not free the keys that are throttled.
//!
//! The store has room for 10,000 keys. A hundred victims spend all they have; then twice as many keys
//! as fit ask for one token each. A full store forgets the counters that use the smallest share of
//! their limit, so every victim must still be throttled, whatever the algorithm.

use std::time::Duration;

use tollbar::store::Once;
use tollbar::{
    Batch, Concurrency, Decisions, Entry, ManualClock, MemoryStore, MemoryStoreBuilder, Policy,
    Rate, Store, Timestamp, WarmUp,
};
use tollbar_testkit::spec::{Kind, PolicySpec};

const KEYS_MAX: usize = 10_000;
const FLOOD: u32 = 2 * KEYS_MAX as u32;
const VICTIMS: u32 = 100;

const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;

/// A minute into an hour, a day, a week and a month.
const START: Timestamp = Timestamp::from_micros(1_696_204_860_000_000 - 14 * DAY_US);

fn builder(clock: &ManualClock) -> MemoryStoreBuilder {
    MemoryStore::builder().max_keys(KEYS_MAX).clock(clock.clone())
}

/// `limit` in `window_us` for every algorithm, and for a limit that climbs.
fn policies(limit: u64, window_us: u64) -> Vec<Policy> {
    let plain = Kind::ALL.map(|kind| {
        // A day is the shortest calendar window.
        let window_us = if kind == Kind::CalendarWindow { 24 * window_us } else { window_us };
        PolicySpec::new(kind, limit, window_us).build().unwrap()
    });
    let warm_up = WarmUp { start: 3, over: Duration::from_mins(1), steps: 2 };
    let climbing = [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindowStrict]
        .map(|kind| PolicySpec::new(kind, limit, window_us).build().unwrap())
        .map(|policy| policy.with_warm_up(warm_up).unwrap());
    plain.into_iter().chain(climbing).collect()
}

fn describe(policy: &Policy) -> String {
    let warm_up = if policy.warm_up().is_some() { ", climbing" } else { "" };
    format!("{}{warm_up}", policy.algorithm().name())
}

/// Permits in flight end with their process, so they are not in a snapshot; and while they last, they
/// make room for nobody.
fn counts_permits(policy: &Policy) -> bool {
    policy.algorithm().name() == "concurrency"
}

/// A store and its clock.
struct Fixture {
    clock: ManualClock,
    store: MemoryStore,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::at(START);
        Self { store: builder(&clock).build(), clock }
    }

    /// Asks for one token, a little later than whatever was asked before.
    fn ask(&self, key: &str, policy: &Policy) -> bool {
        self.clock.advance(Duration::from_micros(10));
        self.store.check_now(key.as_bytes(), policy, 1).is_allowed()
    }

    /// A hundred keys spend all they have.
    fn exhaust_victims(&self, policy: &Policy) {
        for victim in 0..VICTIMS {
            while self.ask(&format!("victim:{victim}"), policy) {}
        }
        assert_eq!(self.throttled_victims(policy), VICTIMS);
    }

    /// Asks `asks` times for each of twice as many keys as there is room for.
    fn flood(&self, name: &str, policy: &Policy, asks: usize) {
        for key in 0..FLOOD {
            for _ in 0..asks {
                self.ask(&format!("{name}:{key}"), policy);
            }
        }
    }

    /// How many victims would be denied. Charges nothing.
    fn throttled_victims(&self, policy: &Policy) -> u32 {
        let is_throttled = |victim: &u32| {
            let key = format!("victim:{victim}");
            self.store.check_now(key.as_bytes(), policy, 0).remaining().unwrap() == 0
        };
        (0..VICTIMS).filter(is_throttled).count() as u32
    }

    /// A store of this size with the counters of this one, and the clock where it is.
    fn restored(self) -> Self {
        let mut bytes = Vec::new();
        self.store.write_snapshot(&mut bytes).unwrap();
        let store = builder(&self.clock).restore(&mut &bytes[..]).unwrap();
        Self { store, clock: self.clock }
    }

    #[track_caller]
    fn assert_all_throttled(&self, policy: &Policy) {
        let throttled = self.throttled_victims(policy);
        assert_eq!(throttled, VICTIMS, "{}: throttled victims", describe(policy));
    }
}

/// Until issue 19, newer keys that had asked once displaced exhausted ones under strict windows, logs,
/// leases and staggered windows: of a hundred victims of logs, none was throttled any more.
#[test]
fn a_flood_of_one_request_keys_frees_no_victim_of_the_same_rule() {
    for policy in policies(5, HOUR_US) {
        let fixture = Fixture::new();
        fixture.exhaust_victims(&policy);
        fixture.flood("flood", &policy, 1);
        fixture.assert_all_throttled(&policy);
        assert!(fixture.store.stats().forced_evictions > 0, "the flood was too small");
    }
}

/// Victims of every algorithm at once. Every key of the flood uses a thousandth of its limit, but its
/// counters are fresh much later than the victims', which once made them worth more.
#[test]
fn a_flood_on_rules_with_longer_windows_frees_no_victim_of_any_algorithm() {
    let (policies, longer) = (policies(5, HOUR_US), policies(1_000, DAY_US));
    let fixture = Fixture::new();
    for policy in &policies {
        fixture.exhaust_victims(policy);
    }
    for policy in longer.iter().filter(|policy| !counts_permits(policy)) {
        fixture.flood("flood", policy, 1);
    }
    for policy in &policies {
        fixture.assert_all_throttled(policy);
    }
    assert!(fixture.store.stats().forced_evictions > 0, "the flood was too small");
}

#[test]
fn a_flood_of_one_permit_each_frees_no_victim_whose_permits_are_all_out() {
    let fixture = Fixture::new();
    fixture.exhaust_victims(&Concurrency::new(5).unwrap().into_policy());
    fixture.flood("flood", &Concurrency::new(1_000).unwrap().into_policy(), 1);
    fixture.assert_all_throttled(&Concurrency::new(5).unwrap().into_policy());
}

/// The snapshot is taken of a full store, so that restored victims are among restored keys of the
/// flood. Restored leases once ranked as if all permits of their key were out; then 93 of 100 victims
/// were free after the second flood, because they were the oldest.
#[test]
fn a_flood_before_and_after_a_restart_frees_no_victim() {
    for policy in policies(5, HOUR_US).into_iter().filter(|policy| !counts_permits(policy)) {
        let fixture = Fixture::new();
        fixture.exhaust_victims(&policy);
        fixture.flood("before", &policy, 1);
        let fixture = fixture.restored();
        fixture.assert_all_throttled(&policy);
        fixture.flood("after", &policy, 1);
        fixture.assert_all_throttled(&policy);
    }
}

/// What no bounded store can hold: here every key of the flood is as exhausted as the victims, and
/// there is room for half of them. Whatever is forgotten is counted.
#[test]
fn a_flood_that_spends_whole_bursts_can_free_victims_and_is_counted() {
    for policy in policies(5, HOUR_US).iter().filter(|policy| policy.warm_up().is_none()) {
        let fixture = Fixture::new();
        fixture.exhaust_victims(policy);
        fixture.flood("flood", policy, 5);
        let freed = VICTIMS - fixture.throttled_victims(policy);
        let evicted = fixture.store.stats().forced_evictions;
        assert!(freed > 0, "{}: the documents promise too little", describe(policy));
        assert!(evicted >= u64::from(freed), "{}: {evicted} evictions", describe(policy));
    }
}

/// A table that forgot permits in flight would let others in beside their holders. So the counter of
/// a single permit makes room for nobody, and as many held permits as there are slots can free
/// throttled keys of other rules.
#[test]
fn a_flood_of_permits_that_are_all_held_can_free_victims_of_a_rate_and_is_counted() {
    let (rate, permits) =
        (Policy::token_bucket("5/h").unwrap(), Concurrency::new(5).unwrap().into_policy());
    let fixture = Fixture::new();
    fixture.exhaust_victims(&rate);
    fixture.flood("flood", &permits, 1);
    let freed = VICTIMS - fixture.throttled_victims(&rate);
    assert!(freed > 0, "the documents promise too little");
    assert!(fixture.store.stats().forced_evictions >= u64::from(freed));
}

const REQUEST_IDS_MAX: usize = 1_000;
const REQUEST_IDS: u32 = 2 * REQUEST_IDS_MAX as u32;

/// Sends request `id`, which pays for one token of `policy`; true where it is allowed.
fn send(store: &MemoryStore, id: u32, policy: &Policy) -> bool {
    let mut entries = [Entry::new("key", policy)];
    let request_id = id.to_le_bytes();
    let once = Once::new(&request_id, Duration::from_mins(10));
    store.decide(Batch::all_or_none(&mut entries).once(once)).wait().unwrap();
    Decisions::from_entries(&entries).is_allowed()
}

/// How many of the request ids the store remembers, where they have spent the whole limit: of those
/// the answer was yes, and any other would have to pay and cannot.
fn remembered_ids(store: &MemoryStore, policy: &Policy) -> u32 {
    (0..REQUEST_IDS).filter(|id| send(store, *id, policy)).count() as u32
}

/// Request ids once shared the room of wide counters, and were forgotten when those came.
#[test]
fn request_ids_that_are_forgotten_early_are_counted_and_take_no_room_from_counters() {
    let clock = ManualClock::at(START);
    let fixture =
        Fixture { store: builder(&clock).max_request_ids(REQUEST_IDS_MAX).build(), clock };
    let policies = policies(5, HOUR_US);
    for policy in &policies {
        fixture.exhaust_victims(policy);
    }

    let spent = Policy::fixed_window(Rate::new(u64::from(REQUEST_IDS), Duration::from_hours(1)));
    let spent = spent.unwrap();
    assert!((0..REQUEST_IDS).all(|id| send(&fixture.store, id, &spent)), "each can pay");
    let remembered = remembered_ids(&fixture.store, &spent);
    let stats = fixture.store.stats();
    assert_eq!(stats.request_ids_forgotten, u64::from(REQUEST_IDS - remembered));
    assert!((REQUEST_IDS_MAX as u32..REQUEST_IDS).contains(&remembered), "{remembered}");
    assert_eq!(stats.forced_evictions, 0, "a counter made room for a request id");
    for policy in &policies {
        fixture.assert_all_throttled(policy);
    }

    for policy in policies.iter().filter(|policy| !counts_permits(policy)) {
        fixture.flood("flood", policy, 1);
    }
    assert_eq!(remembered_ids(&fixture.store, &spent), remembered, "an id made room for a counter");
    assert_eq!(fixture.store.stats().request_ids_forgotten, stats.request_ids_forgotten);
}
