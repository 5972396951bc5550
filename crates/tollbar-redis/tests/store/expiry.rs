//! Every key in Redis lives until its state is fresh: not a moment less, and no more than 2 ms longer.
//!
//! The other tests keep keys for an hour longer than needed, because they move a clock that the server
//! does not see. Here the clock is the server's own, plus an offset. When the offset grows, every key is
//! made to expire earlier by as much, as if that time had passed on the server as well.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Patient, RUNTIME, server, unique};
use tollbar::store::{Adjustment, Hold, Once, ReservationId, Spending};
use tollbar::{
    Batch, Concurrency, Decision, Entry, ManualClock, Period, Policy, Store, Timestamp, WarmUp,
};
use tollbar_redis::{KeyNames, RedisStore};
use tollbar_testkit::redis::process::RedisProcess;

/// 14 November 2023, 00:00 UTC, a Tuesday. Windows of 100 s begin there as well.
const MIDNIGHT_US: u64 = 1_699_920_000_000_000;

const DAY_S: u64 = 86_400;

/// Shifts the expiry of all keys that begin with ARGV[1] to ARGV[2] ms earlier.
const AGE: &str = "
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local expires_at = redis.call('PEXPIRETIME', key)
  if expires_at > 0 then
    redis.call('PEXPIREAT', key, expires_at - ARGV[2])
  end
end";

/// A store whose keys expire as they do in production, and a client to look at them.
struct ExpiryFixture {
    store: RedisStore,
    clock: ManualClock,
    client: redis::Connection,
    prefix: String,
    /// How far the store's clock is behind the server's.
    behind_us: u64,
    /// The longest time that an operation took: by as much a key may live longer, because the clock stands
    /// still during an operation and the server's does not.
    took_us_max: u64,
    holds: u128,
    _server: Arc<RedisProcess>,
}

impl ExpiryFixture {
    /// At 35 s past midnight.
    fn new() -> Self {
        let server = server();
        let namespace = unique();
        let clock = ManualClock::default();
        let store = RedisStore::builder(&server.url(), KeyNames::Raw)
            .namespace(&namespace)
            .test_clock(clock.clone(), Duration::ZERO)
            .patient();
        let store = RUNTIME.block_on(store.connect()).expect("the server is there");
        let client = redis::Client::open(server.url()).and_then(|client| client.get_connection());
        let mut fixture = Self {
            store,
            clock,
            client: client.expect("the server is there"),
            prefix: format!("tollbar1:{namespace}:"),
            behind_us: 0,
            took_us_max: 0,
            holds: 0,
            _server: server,
        };
        fixture.behind_us = fixture.server_now_us() - MIDNIGHT_US - 35_000_000;
        fixture
    }

    fn server_now_us(&mut self) -> u64 {
        let [seconds, micros]: [u64; 2] =
            redis::cmd("TIME").query(&mut self.client).expect("the server tells the time");
        seconds * 1_000_000 + micros
    }

    /// Lets `seconds` pass, for the store and for the server; negative ones put both clocks back.
    fn advance(&mut self, seconds: i64) {
        self.behind_us = self.behind_us.checked_add_signed(-seconds * 1_000_000).expect("it fits");
        let mut command = redis::cmd("EVAL");
        command.arg(AGE).arg(0).arg(&self.prefix).arg(seconds * 1_000);
        command.exec(&mut self.client).expect("the server ages its keys");
    }

    /// Asks the store for something, and says when that was.
    fn act<T>(&mut self, act: impl FnOnce(&RedisStore) -> T) -> (u64, T) {
        let before_us = self.server_now_us();
        let now_us = before_us - self.behind_us;
        self.clock.set(Timestamp::from_micros(now_us));
        let answer = act(&self.store);
        self.took_us_max = self.took_us_max.max(self.server_now_us() - before_us);
        (now_us, answer)
    }

    /// When the key expires that has `part` in its name; `None` where there is no such key.
    fn expiry(&mut self, part: &str) -> Option<Expiry> {
        let pattern = format!("{}*{part}*", self.prefix);
        let keys: Vec<String> =
            redis::cmd("KEYS").arg(pattern).query(&mut self.client).expect("the server answers");
        assert!(keys.len() <= 1, "{keys:?}");
        let key = keys.first()?;
        let expires_ms: i64 =
            redis::cmd("PEXPIRETIME").arg(key).query(&mut self.client).expect("the server answers");
        match expires_ms {
            // It has expired since it was found.
            -2 => None,
            -1 => Some(Expiry::Never),
            _ => Some(Expiry::AtUs(expires_ms.unsigned_abs() * 1_000 - self.behind_us)),
        }
    }

    /// The key with `part` in its name must expire at `fresh_at_us`, or up to 2 ms later: times to live are
    /// whole milliseconds, rounded up, and one more because Redis may have read its clock before.
    fn assert_lives_until(&mut self, part: &str, fresh: Expiry, when: &str) {
        let found = self.expiry(part).unwrap_or_else(|| panic!("{when}: there is no {part}"));
        let (Expiry::AtUs(at_us), Expiry::AtUs(fresh_us)) = (found, fresh) else {
            assert_eq!(found, fresh, "{when}: {part}");
            return;
        };
        assert!(at_us >= fresh_us, "{when}: {part} expires {} us early", fresh_us - at_us);
        let longer_us = at_us - fresh_us;
        assert!(
            longer_us <= 2_000 + self.took_us_max,
            "{when}: {part} lives {longer_us} us too long"
        );
    }

    /// The counter must expire at once, if it has not yet.
    fn assert_is_gone(&mut self, when: &str) {
        let now_us = self.server_now_us() - self.behind_us;
        if let Some(found) = self.expiry(COUNTER) {
            let Expiry::AtUs(at_us) = found else { panic!("{when}: it never expires") };
            assert!(at_us <= now_us + 2_000, "{when}: it lives for {} us", at_us - now_us);
        }
    }

    /// Asks for `cost` in one of the ways there are, each of which is another script; says when.
    fn charge(
        &mut self,
        way: Way,
        policy: &Policy,
        cost: u64,
    ) -> (u64, Decision, Option<HeldReservation>) {
        self.holds += 1;
        let number = self.holds;
        let beside = Policy::fixed_window("1000/day").expect("it is a policy");
        let (now_us, (decision, held)) = self.act(|store| {
            if way == Way::One {
                let decision = store.check(KEY, policy, cost).wait().expect("it answers");
                return (decision, None);
            }
            let mut entries =
                [Entry::new(BESIDE, &beside), Entry::new(KEY, policy).with_cost(cost)];
            let id = number.to_le_bytes();
            let hold = Hold { id: ReservationId(number), ttl: HOLD_TTL };
            let batch = match way {
                Way::Independent => Batch::independent(&mut entries),
                Way::Once => Batch::all_or_none(&mut entries).once(Once::new(&id, ONCE_TTL)),
                Way::Held => Batch::all_or_none(&mut entries).held(hold),
                Way::One | Way::Few => Batch::all_or_none(&mut entries),
            };
            store.decide(batch).wait().expect("it answers");
            let decision = entries[1].decision().expect("it is decided");
            (
                decision,
                Some(HeldReservation { id: hold.id, stamp: entries[1].stamp(), reserved: cost }),
            )
        });
        (now_us, decision, held)
    }

    /// Settles a reservation at `spent`; says when.
    fn settle(&mut self, policy: &Policy, held: HeldReservation, spent: u64) -> u64 {
        let HeldReservation { id, stamp, reserved } = held;
        let (now_us, is_settled) = self.act(|store| {
            let spending = Spending { reserved, spent };
            let mut adjustments = [Adjustment::new(KEY, policy, stamp, spending)];
            store.settle(id.into(), &mut adjustments).wait().expect("it answers")
        });
        assert!(is_settled);
        now_us
    }
}

const KEY: &[u8] = b"user:43";
const BESIDE: &[u8] = b"beside";
const COUNTER: &str = "{user:43}";
const REQUEST: &str = "}once:";
const RESERVATION: &str = "}hold:";

const ONCE_TTL: Duration = Duration::from_secs(77);
const HOLD_TTL: Duration = Duration::from_secs(888);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    One,
    Few,
    Independent,
    Once,
    Held,
}

const WAYS: [Way; 5] = [Way::One, Way::Few, Way::Independent, Way::Once, Way::Held];

#[derive(Debug, Clone, Copy)]
struct HeldReservation {
    id: ReservationId,
    stamp: u64,
    reserved: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expiry {
    AtUs(u64),
    Never,
}

/// When a state is fresh, in seconds if nothing else is said.
#[derive(Debug, Clone, Copy)]
enum Fresh {
    /// After midnight.
    Past(u64),
    /// After midnight, in microseconds.
    PastUs(u64),
    /// After the first charge.
    First(u64),
    /// After the last operation.
    Last(u64),
    Never,
}

use Fresh::{First, Last, Never, Past, PastUs};

impl Fresh {
    fn expiry(self, first_us: u64, last_us: u64) -> Expiry {
        match self {
            Past(seconds) => Expiry::AtUs(MIDNIGHT_US + seconds * 1_000_000),
            PastUs(micros) => Expiry::AtUs(MIDNIGHT_US + micros),
            First(seconds) => Expiry::AtUs(first_us + seconds * 1_000_000),
            Last(seconds) => Expiry::AtUs(last_us + seconds * 1_000_000),
            Never => Expiry::Never,
        }
    }
}

/// One algorithm: ten in 100 s, and when its state is fresh after each of these.
struct Row {
    name: &'static str,
    policy: Policy,
    /// After 5 tokens at 35 s past midnight.
    five: Fresh,
    /// After 1 more at 45 s.
    six: Fresh,
    /// After 1 more at 105 s.
    later: Fresh,
    /// After the 5 at 35 s, of which 3 were given back at 45 s.
    refunded: Fresh,
    /// After the 5 at 35 s, 1 more at 45 s, and 3 of the 5 given back then.
    refunded_behind: Fresh,
    /// After the 5 at 35 s, which turned out to be 7 at 45 s.
    overdrawn: Fresh,
}

fn rows() -> Vec<Row> {
    let row = |name, policy: Result<Policy, _>, fresh: [Fresh; 6]| {
        let [five, six, later, refunded, refunded_behind, overdrawn] = fresh;
        let policy = policy.unwrap_or_else(|error| panic!("{name}: {error}"));
        Row { name, policy, five, six, later, refunded, refunded_behind, overdrawn }
    };
    let warm = |policy: Policy, over_s: u64| {
        policy.with_warm_up(WarmUp { start: 6, over: Duration::from_secs(over_s), steps: 2 })
    };
    let calendar = |period| Policy::calendar_window(10, period);
    // A token takes 10 s. A bucket remembers what was given back for as long as somebody may ask for it.
    let bucket = [First(50), First(60), Last(10), First(50), First(50), First(70)];
    vec![
        row(
            "token bucket",
            Policy::token_bucket("10/100s").and_then(|policy| policy.with_overdraft(5)),
            bucket,
        ),
        row(
            "leaky bucket",
            Policy::leaky_bucket("10/100s").and_then(|policy| policy.with_overdraft(5)),
            bucket,
        ),
        // Nobody is in a queue who was not let in, so it is never overdrawn.
        row(
            "leaky queue",
            Policy::leaky_queue("10/100s", 9),
            [First(50), First(60), Last(10), First(20), First(60), First(50)],
        ),
        row(
            "fixed window",
            Policy::fixed_window("10/100s"),
            [Past(100), Past(100), Past(200), Past(100), Past(100), Past(100)],
        ),
        row("calendar day", calendar(Period::Day), [Past(DAY_S); 6]),
        // From Tuesday to Monday, and to the first of December.
        row("calendar week", calendar(Period::Week), [Past(6 * DAY_S); 6]),
        row("calendar month", calendar(Period::Month), [Past(17 * DAY_S); 6]),
        // It weighs for one window after its own.
        row(
            "sliding window counter",
            Policy::sliding_window("10/100s"),
            [Past(200), Past(200), Past(300), Past(200), Past(200), Past(200)],
        ),
        // Sub-windows of 10 s, each of which counts for ten more.
        row(
            "sliding window strict",
            Policy::sliding_window_strict("10/100s", 10),
            [Past(140), Past(150), Past(210), Past(140), Past(150), Past(150)],
        ),
        row(
            "sliding window log",
            Policy::sliding_window_log("10/100s"),
            [First(100), Last(100), Last(100), First(100), Last(100), Last(100)],
        ),
        row("concurrency", Concurrency::new(10).map(Concurrency::into_policy), [Never; 6]),
        row(
            "leased concurrency",
            Concurrency::new(10)
                .and_then(|permits| permits.with_lease(Duration::from_secs(30)))
                .map(Concurrency::into_policy),
            [First(30), Last(30), Last(30), First(30), Last(30), First(30)],
        ),
        // A key is new again after as long as its climb takes, counted from its last charge.
        row(
            "long warm-up of a token bucket",
            Policy::token_bucket("10/100s")
                .and_then(|policy| policy.with_overdraft(5))
                .and_then(|policy| warm(policy, 300)),
            [First(300), Last(300), Last(300), First(300), Last(300), Last(300)],
        ),
        row(
            "long warm-up of a fixed window",
            Policy::fixed_window("10/100s").and_then(|policy| warm(policy, 300)),
            [First(300), Last(300), Last(300), First(300), Last(300), Last(300)],
        ),
        row(
            "short warm-up of a fixed window",
            Policy::fixed_window("10/100s").and_then(|policy| warm(policy, 20)),
            [Past(100), Past(100), Past(200), Past(100), Past(100), Past(100)],
        ),
        // The life of the key outlasts the list; permits in flight outlast it.
        row(
            "long warm-up of a log",
            // In a shorter window, or the first step is full for too long.
            Policy::sliding_window_log("10/60s").and_then(|policy| warm(policy, 300)),
            [First(300), Last(300), Last(300), First(300), Last(300), Last(300)],
        ),
        row(
            "long warm-up of a queue",
            Policy::leaky_queue("10/100s", 9).and_then(|policy| warm(policy, 300)),
            [First(300), Last(300), Last(300), First(300), Last(300), First(300)],
        ),
        row(
            "long warm-up of leased permits",
            Concurrency::new(10)
                .and_then(|permits| permits.with_lease(Duration::from_secs(30)))
                .and_then(|permits| warm(permits.into_policy(), 300)),
            [First(300), Last(300), Last(300), First(300), Last(300), First(300)],
        ),
        row(
            "warm-up of permits",
            Concurrency::new(10).and_then(|permits| warm(permits.into_policy(), 120)),
            [Never; 6],
        ),
        staggered(),
    ]
}

/// Windows that end at a time of the key's own: 92.6 s past a full 100 s for this one.
fn staggered() -> Row {
    let policy = Policy::fixed_window("10/100s").and_then(Policy::with_stagger);
    let policy = policy.expect("it is a policy");
    let stagger_us = policy.stagger_us(KEY).expect("it is staggered");
    let [this, next] = [0, 100_000_000].map(|length_us| PastUs(stagger_us + length_us));
    Row {
        name: "staggered window",
        policy,
        five: this,
        six: this,
        later: next,
        refunded: this,
        refunded_behind: this,
        overdrawn: this,
    }
}

#[test]
fn a_charge_lives_until_it_is_fresh_in_every_algorithm_and_script() {
    for Row { name, policy, five, six, later, .. } in rows() {
        for way in WAYS {
            let mut fixture = ExpiryFixture::new();
            let (first_us, decision, _) = fixture.charge(way, &policy, 5);
            assert!(decision.is_allowed(), "{name}, {way:?}: {decision:?}");
            let fresh = five.expiry(first_us, first_us);
            fixture.assert_lives_until(COUNTER, fresh, &format!("{name}, {way:?}, five"));
            fixture.advance(10);
            // A peek, a denial and a request that can never pass leave it as it was.
            for cost in [0, 10, 11] {
                let (_, decision, _) = fixture.charge(way, &policy, cost);
                assert_eq!(decision.is_allowed(), cost == 0, "{name}, {way:?}: {decision:?}");
                fixture.assert_lives_until(COUNTER, fresh, &format!("{name}, {way:?}, {cost}"));
            }
            for (wait_s, fresh, when) in [(0, six, "six"), (60, later, "later")] {
                fixture.advance(wait_s);
                let (last_us, decision, _) = fixture.charge(way, &policy, 1);
                assert!(decision.is_allowed(), "{name}, {way:?}, {when}: {decision:?}");
                let fresh = fresh.expiry(first_us, last_us);
                fixture.assert_lives_until(COUNTER, fresh, &format!("{name}, {way:?}, {when}"));
            }
        }
    }
}

#[test]
fn a_settled_counter_lives_until_it_is_fresh_and_its_reservation_is_gone() {
    for Row { name, policy, refunded, overdrawn, .. } in rows() {
        for (spent, fresh, what) in [(2, refunded, "refunded"), (7, overdrawn, "overdrawn")] {
            let mut fixture = ExpiryFixture::new();
            let (first_us, decision, held) = fixture.charge(Way::Held, &policy, 5);
            assert!(decision.is_allowed(), "{name}: {decision:?}");
            fixture.advance(10);
            let last_us = fixture.settle(&policy, held.expect("it was held"), spent);
            let fresh = fresh.expiry(first_us, last_us);
            fixture.assert_lives_until(COUNTER, fresh, &format!("{name}, {what}"));
            assert_eq!(fixture.expiry(RESERVATION), None, "{name}, {what}");
        }
    }
}

/// What is given back is not the newest charge: the newest is what the key lives for.
#[test]
fn a_refund_of_an_older_charge_leaves_the_life_of_the_newest() {
    for Row { name, policy, refunded_behind, later, .. } in rows() {
        for (wait_s, fresh) in [(10, refunded_behind), (70, later)] {
            let mut fixture = ExpiryFixture::new();
            let (first_us, _, held) = fixture.charge(Way::Held, &policy, 5);
            fixture.advance(wait_s);
            let (last_us, decision, _) = fixture.charge(Way::One, &policy, 1);
            assert!(decision.is_allowed(), "{name}: {decision:?}");
            fixture.settle(&policy, held.expect("it was held"), 2);
            let when = format!("{name}, {wait_s} s later");
            fixture.assert_lives_until(COUNTER, fresh.expiry(first_us, last_us), &when);
        }
    }
}

/// A state that was written at a later time stays in force, and so does its life.
#[test]
fn a_charge_lives_until_it_is_fresh_where_the_clock_has_gone_back() {
    let leased = Concurrency::new(10)
        .and_then(|permits| permits.with_lease(Duration::from_secs(30)))
        .map(Concurrency::into_policy);
    let table = [
        (Policy::token_bucket("10/100s"), First(20)),
        (Policy::leaky_queue("10/100s", 9), First(20)),
        (Policy::fixed_window("10/100s"), Past(100)),
        (Policy::calendar_window(10, Period::Day), Past(DAY_S)),
        (Policy::sliding_window("10/100s"), Past(200)),
        (Policy::sliding_window_strict("10/100s", 10), Past(140)),
        (Policy::sliding_window_log("10/100s"), First(100)),
        (leased, First(30)),
    ];
    for (policy, fresh) in table.map(|(policy, fresh)| (policy.unwrap(), fresh)) {
        for way in WAYS {
            let mut fixture = ExpiryFixture::new();
            let (first_us, ..) = fixture.charge(way, &policy, 1);
            fixture.advance(-10);
            let (last_us, decision, _) = fixture.charge(way, &policy, 1);
            assert!(decision.is_allowed());
            let name = format!("{}, {way:?}", policy.algorithm().name());
            fixture.assert_lives_until(COUNTER, fresh.expiry(first_us, last_us), &name);
        }
    }
}

/// A lease keeps the end it was granted, whatever the rule says later.
#[test]
fn leases_live_to_their_ends_after_the_time_of_leases_was_cut() {
    let leased = |seconds| {
        Concurrency::new(10)?.with_lease(Duration::from_secs(seconds)).map(Concurrency::into_policy)
    };
    let mut fixture = ExpiryFixture::new();
    let (first_us, ..) = fixture.charge(Way::One, &leased(30).unwrap(), 1);
    let (_, decision, _) = fixture.charge(Way::One, &leased(10).unwrap(), 1);
    assert_eq!(decision.remaining().unwrap(), 8);
    fixture.assert_lives_until(COUNTER, First(30).expiry(first_us, 0), "the first is still held");
}

#[test]
fn request_ids_and_reservations_live_as_long_as_was_asked_for() {
    let policy = Policy::fixed_window("10/100s").unwrap();
    for (way, mark, ttl) in [(Way::Once, REQUEST, ONCE_TTL), (Way::Held, RESERVATION, HOLD_TTL)] {
        let mut fixture = ExpiryFixture::new();
        let (now_us, ..) = fixture.charge(way, &policy, 1);
        let ends = Expiry::AtUs(now_us + ttl.as_micros() as u64);
        fixture.assert_lives_until(mark, ends, &format!("{way:?}"));
        // The same id again is answered from memory, and remembered no longer for that.
        fixture.advance(10);
        if way == Way::Once {
            fixture.holds -= 1;
            fixture.charge(way, &policy, 1);
            fixture.assert_lives_until(mark, ends, &format!("{way:?}, again"));
        }
    }
}

/// The sum of what was given back outlives the debt: where it was forgotten early, a later refund would be
/// reckoned from a sum that began anew.
#[test]
fn a_bucket_remembers_refunds_until_the_last_reservation_could_be_settled() {
    let policy = Policy::token_bucket("10/100s").unwrap();
    let mut fixture = ExpiryFixture::new();
    let (first_us, ..) = fixture.charge(Way::Held, &policy, 1);
    let (_, _, held) = fixture.charge(Way::Held, &policy, 5);
    fixture.settle(&policy, held.expect("it was held"), 0);
    fixture.assert_lives_until(COUNTER, First(60).expiry(first_us, 0), "the second was the longer");

    let mut fixture = ExpiryFixture::new();
    let (first_us, _, held) = fixture.charge(Way::Held, &policy, 5);
    let asked_until = First(50).expiry(first_us, first_us);
    fixture.settle(&policy, held.expect("it was held"), 0);
    fixture.assert_lives_until(COUNTER, asked_until, "all was given back");
    fixture.advance(10);
    for (way, when) in [(Way::Held, "a shorter reservation"), (Way::One, "a charge")] {
        fixture.charge(way, &policy, 1);
        fixture.assert_lives_until(COUNTER, asked_until, when);
    }
}

/// The sum of what was given back ran ahead of the clock, the key expired, and the next sum began at the
/// clock. So a reservation of before, which time had paid, was given back once more.
#[test]
fn a_reservation_that_time_has_paid_is_not_given_back_after_the_bucket_was_forgotten() {
    let policy =
        Policy::token_bucket("10/100s").and_then(|policy| policy.with_overdraft(5)).unwrap();
    let reserve = |fixture: &mut ExpiryFixture, cost: u64| {
        let (_, decision, held) = fixture.charge(Way::Held, &policy, cost);
        assert!(decision.is_allowed());
        held.expect("it was held")
    };
    // Whatever is done to the bucket last, it has to be remembered for as long.
    for last in ["reservation", "charge", "refund", "overdraft"] {
        let mut fixture = ExpiryFixture::new();
        for _ in 0..4 {
            let held = reserve(&mut fixture, 5);
            fixture.settle(&policy, held, 0);
        }
        let old = reserve(&mut fixture, 3);
        match last {
            "charge" => drop(fixture.charge(Way::One, &policy, 1)),
            "refund" | "overdraft" => {
                let held = reserve(&mut fixture, 1);
                fixture.settle(&policy, held, if last == "refund" { 0 } else { 2 });
            }
            _ => {}
        }
        fixture.advance(60);
        reserve(&mut fixture, 5);
        fixture.settle(&policy, old, 0);
        let (_, decision, _) = fixture.charge(Way::One, &policy, 0);
        assert_eq!(decision.remaining().unwrap(), 5, "{last}");
    }
}

#[test]
fn a_counter_of_leases_lives_until_the_last_lease_ends() {
    let policy = Concurrency::new(10)
        .and_then(|permits| permits.with_lease(Duration::from_secs(30)))
        .map(Concurrency::into_policy);
    let policy = policy.unwrap();
    let mut fixture = ExpiryFixture::new();
    let stamp_of = |held: Option<HeldReservation>| held.expect("it was not a single check").stamp;
    let (_, _, first) = fixture.charge(Way::Few, &policy, 2);
    fixture.advance(10);
    let (second_us, _, second) = fixture.charge(Way::Few, &policy, 3);
    let (first, second) = (stamp_of(first), stamp_of(second));
    let second_ends = Last(30).expiry(0, second_us);
    fixture.advance(10);
    // The first is now the one that ends last.
    let (now_us, ends_at) = fixture.act(|store| store.renew(KEY, &policy, first).wait().unwrap());
    assert_eq!(ends_at, Some(Timestamp::from_micros(now_us + 30_000_000)));
    let first_ends = Last(30).expiry(0, now_us);
    fixture.assert_lives_until(COUNTER, first_ends, "the first was renewed");
    fixture.act(|store| store.renew(KEY, &policy, first + 1).wait().unwrap());
    fixture.assert_lives_until(COUNTER, first_ends, "another was renewed, which there is not");
    let (_, released) = fixture.act(|store| store.refund(KEY, &policy, first, 1).wait().unwrap());
    assert_eq!(released, 1);
    fixture.assert_lives_until(COUNTER, first_ends, "a part of the first was released");
    let (_, released) = fixture.act(|store| store.refund(KEY, &policy, first, 2).wait().unwrap());
    assert_eq!(released, 1);
    fixture.assert_lives_until(COUNTER, second_ends, "the rest of the first was released");
    fixture.act(|store| store.refund(KEY, &policy, second, 3).wait().unwrap());
    fixture.assert_is_gone("all were released");
}

/// A lease that has ended holds nothing back, and a renewal of it brings nothing back.
#[test]
fn a_renewal_after_the_end_leaves_the_other_leases() {
    let policy = Concurrency::new(10)
        .and_then(|permits| permits.with_lease(Duration::from_secs(30)))
        .map(Concurrency::into_policy);
    let policy = policy.unwrap();
    let mut fixture = ExpiryFixture::new();
    let (_, _, first) = fixture.charge(Way::Few, &policy, 2);
    fixture.advance(10);
    let (second_us, ..) = fixture.charge(Way::Few, &policy, 3);
    fixture.advance(25);
    let first = first.expect("it was not a single check").stamp;
    let (_, renewed) = fixture.act(|store| store.renew(KEY, &policy, first).wait().unwrap());
    assert_eq!(renewed, None);
    fixture.assert_lives_until(COUNTER, Last(30).expiry(0, second_us), "the first has ended");
    let (_, decision, _) = fixture.charge(Way::One, &policy, 0);
    assert_eq!(decision.remaining().unwrap(), 7);
}

#[test]
fn permits_that_all_came_back_leave_no_key() {
    let policy = Concurrency::new(10).unwrap().into_policy();
    let mut fixture = ExpiryFixture::new();
    fixture.charge(Way::One, &policy, 5);
    for (count, left) in [(3, 2), (9, 0)] {
        fixture.act(|store| store.refund(KEY, &policy, 0, count).wait().unwrap());
        if left > 0 {
            fixture.assert_lives_until(COUNTER, Expiry::Never, "some are out");
        } else {
            fixture.assert_is_gone("none is out");
        }
    }
}

/// The key of a counter from which all permits came back expires a moment later. One that is taken in that
/// moment must not go with it.
#[test]
fn a_permit_that_is_taken_just_after_all_came_back_does_not_expire() {
    let policy = Concurrency::new(10).unwrap().into_policy();
    let mut fixture = ExpiryFixture::new();
    fixture.charge(Way::One, &policy, 1);
    // As if all had come back, with time enough for the next charge to find the key.
    let pattern = format!("{}*", fixture.prefix);
    let key: Vec<String> =
        redis::cmd("KEYS").arg(pattern).query(&mut fixture.client).expect("the server answers");
    redis::cmd("PEXPIRE").arg(&key[0]).arg(60_000).exec(&mut fixture.client).expect("it expires");
    for way in [Way::One, Way::Few] {
        fixture.charge(way, &policy, 1);
        fixture.assert_lives_until(COUNTER, Expiry::Never, &format!("{way:?}"));
    }
}
