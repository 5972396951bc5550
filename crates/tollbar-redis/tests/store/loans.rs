//! What loans leave in a server: how large it is, how long it lives, and what versions from before loans make of it.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Patient, RUNTIME, RedisSubject, server};
use tollbar::store::{Hold, LoanRequest, ReservationId};
use tollbar::{Batch, Clock, Entry, ManualClock, Outcome, Policy, Role, Store, Timestamp};
use tollbar_redis::{KeyNames, RedisStore};
use tollbar_testkit::duel::Duel;
use tollbar_testkit::oracle::OracleEntry;
use tollbar_testkit::redis::process::RedisProcess;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

const KEY: &[u8] = b"user:42";

/// Longer than any test: the server expires counters by its own clock.
const GRACE: Duration = Duration::from_hours(1);

/// A store, and the one key of the one counter that it has in its server.
struct Fixture {
    store: RedisStore,
    clock: ManualClock,
    policy: Policy,
    namespace: String,
    server: Arc<RedisProcess>,
}

impl Fixture {
    /// A token takes 2 s, and five fit.
    fn new() -> Self {
        let (server, namespace) = (server(), crate::support::unique());
        let clock = ManualClock::at(NOW);
        let store = RedisStore::builder(&server.url(), KeyNames::Raw)
            .namespace(&namespace)
            .test_clock(clock.clone(), GRACE)
            .patient();
        let store = RUNTIME.block_on(store.connect()).expect("the server is there");
        let policy = Policy::token_bucket("5/10s").unwrap();
        Self { store, clock, policy, namespace, server }
    }

    fn lend(&self, tokens: u64) -> u64 {
        let term = Duration::from_secs(2);
        let request = LoanRequest { tokens, term, cut: term };
        self.store.lend(KEY, &self.policy, request).wait().unwrap().tokens
    }

    fn check(&self, cost: u64) -> Outcome {
        self.store.check(KEY, &self.policy, cost).wait().unwrap().outcome()
    }

    fn remaining(&self) -> u64 {
        self.store.check(KEY, &self.policy, 0).wait().unwrap().remaining().unwrap()
    }

    fn reserve(&self, cost: u64) {
        let hold = Hold { id: ReservationId(7), ttl: Duration::from_secs(1) };
        let mut entries = [Entry::new(KEY, &self.policy).with_cost(cost)];
        self.store.decide(Batch::all_or_none(&mut entries).held(hold)).wait().unwrap();
        assert!(entries[0].decision().unwrap().is_allowed());
    }

    fn client(&self) -> redis::Connection {
        redis::Client::open(self.server.url()).unwrap().get_connection().unwrap()
    }

    /// The key of the counter: that of a reservation is shorter than any state.
    fn state(&self) -> (String, Vec<u8>) {
        let mut client = self.client();
        let pattern = format!("tollbar1:{}:*", self.namespace);
        let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut client).unwrap();
        let states = keys.into_iter().map(|key| {
            let state: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut client).unwrap();
            (key, state)
        });
        states.into_iter().find(|(_, state)| state.len() > 8).expect("there is a counter")
    }

    /// What remains, as a version from before loans reads it.
    fn remaining_before_loans(&self) -> Result<u64, String> {
        let (key, _) = self.state();
        let number = |number: u64| (number as f64).to_be_bytes();
        // A bucket, a peek, and its numbers: an interval, what may be owed, with an overdraft, and the burst.
        let mut blob = vec![1];
        for each in [0, 2_000_000, 1, 10_000_000, 10_000_000, 5] {
            blob.extend(number(each));
        }
        let clock = [number(self.now_us()), number(0)].concat();
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("fixtures/check_before_loans.lua")).arg(1);
        command.arg(key).arg(blob).arg(clock);
        let reply: Result<Vec<u8>, _> = command.query(&mut self.client());
        let reply = reply.map_err(|error| error.to_string())?;
        let remaining = f64::from_be_bytes(reply[1..9].try_into().unwrap());
        Ok(format!("{remaining:.0}").parse().unwrap())
    }

    fn now_us(&self) -> u64 {
        self.clock.now().as_micros()
    }
}

#[test]
fn states_are_larger_only_while_tokens_are_lent() {
    let fixture = Fixture::new();
    let size = || fixture.state().1.len();
    assert_eq!(fixture.check(1), Outcome::Allow);
    assert_eq!(size(), 12);
    assert_eq!(fixture.lend(1), 1);
    assert_eq!(size(), 19);
    fixture.reserve(1);
    assert_eq!(size(), 33);
    // 6 s are owed, and 2 s are cut.
    fixture.clock.advance(Duration::from_secs(8));
    assert_eq!(fixture.check(1), Outcome::Allow);
    assert_eq!(size(), 26);
    let without_reservation = Fixture::new();
    without_reservation.lend(1);
    without_reservation.clock.advance(Duration::from_secs(4));
    assert_eq!(without_reservation.check(1), Outcome::Allow);
    assert_eq!(without_reservation.state().1.len(), 12);
}

#[test]
fn the_key_of_a_lent_counter_lives_until_its_cut_has_shrunk() {
    let fixture = Fixture::new();
    assert_eq!(fixture.lend(3), 3);
    let (key, _) = fixture.state();
    let ttl_ms: u64 = redis::cmd("PTTL").arg(key).query(&mut fixture.client()).unwrap();
    // Three tokens are paid after 6 s, and the cut is 2 s.
    let life_ms = ttl_ms - GRACE.as_millis() as u64;
    assert!((7_000..=8_001).contains(&life_ms), "{life_ms} ms");
}

/// A rolling upgrade: while nothing is lent, older nodes read whatever newer ones write.
#[test]
fn versions_from_before_loans_read_every_state_without_a_cut() {
    let fixture = Fixture::new();
    let reads = |what: &str| {
        assert_eq!(fixture.remaining_before_loans(), Ok(fixture.remaining()), "{what}");
    };
    fixture.check(1);
    reads("a check");
    fixture.reserve(2);
    reads("a reservation");
    let mut adjustments = Vec::new();
    fixture.store.settle(ReservationId(7).into(), &mut adjustments).wait().unwrap();
    reads("a settlement");
    fixture.store.reset(KEY, &fixture.policy).wait().unwrap();
    reads("a reset");
    // A loan that finds nothing, and one without a cut.
    fixture.check(5);
    assert_eq!(fixture.lend(1), 0);
    reads("a loan of nothing");
    fixture.clock.advance(Duration::from_secs(4));
    let term = Duration::from_secs(2);
    let optimistic = LoanRequest { tokens: 1, term, cut: Duration::ZERO };
    let loan = fixture.store.lend(KEY, &fixture.policy, optimistic).wait().unwrap();
    assert_eq!(loan.tokens, 1);
    reads("a loan without a cut");
    // A loan whose cut is gone: with the next charge the state is as it was before loans.
    fixture.clock.advance(Duration::from_secs(10));
    assert_eq!(fixture.lend(2), 2);
    fixture.clock.advance(Duration::from_secs(6));
    assert_eq!(fixture.check(1), Outcome::Allow);
    reads("a cut that is gone");
}

/// What happens without the switch on lending: older nodes refuse the counter, and never misread it.
#[test]
fn versions_from_before_loans_refuse_states_with_a_cut() {
    for is_reserved in [false, true] {
        let fixture = Fixture::new();
        if is_reserved {
            fixture.reserve(1);
        }
        assert_eq!(fixture.lend(2), 2);
        for _ in 0..3 {
            let refused = fixture.remaining_before_loans().unwrap_err();
            assert!(refused.contains("TOLLBARSTATE"), "{refused}");
            fixture.clock.advance(Duration::from_secs(1));
        }
    }
}

/// A shadow that denies is held with its request, and charged nothing. Its counter was written as of that instant, with a
/// debt that is paid then; when the clock went back by a microsecond, that was owed beside the cut of the next loan.
#[test]
fn a_reservation_of_nothing_leaves_debt_and_cut_as_they_are() {
    let policy = Policy::token_bucket("5/10s").unwrap();
    let mut duel = Duel::new(RedisSubject::boxed(NOW));
    let term = Duration::from_secs(2);
    duel.lend(NOW, KEY, &policy, LoanRequest { tokens: 1, term, cut: term }).unwrap();
    let shadow =
        OracleEntry { key: KEY, policy: &policy, cost: 5, role: Role::Shadow, alternative: None };
    let hold = Hold { id: ReservationId(7), ttl: Duration::from_secs(20) };
    // The token is paid after 2 s, and a second of the cut is left.
    let later = NOW.after(Duration::from_secs(3));
    duel.check_marked(later, &[shadow], None, Some(hold)).unwrap();
    let before = Timestamp::from_micros(later.as_micros() - 1);
    duel.lend(before, KEY, &policy, LoanRequest { tokens: 1, term, cut: term }).unwrap();
    duel.check(before, KEY, &policy, 0).unwrap();
}

/// A denial that is remembered holds after a loan, and does not answer one.
#[test]
fn loans_and_remembered_denials_do_not_mix() {
    let server = server();
    let builder = crate::support::builder(&server).deny_cache(16).patient();
    let store = RUNTIME.block_on(builder.connect()).unwrap();
    let policy = Policy::token_bucket("5/h").unwrap();
    let check = |cost| store.check(KEY, &policy, cost).wait().unwrap().is_allowed();
    let lend = |tokens| {
        let term = Duration::from_secs(2);
        store.lend(KEY, &policy, LoanRequest { tokens, term, cut: term }).wait().unwrap()
    };
    assert!(check(1));
    assert!(!check(5));
    // The denial of five says nothing of the tokens that are left.
    assert_eq!(lend(5).tokens, 3);
    assert!(!check(5) && !check(2));
    assert!(lend(1).decision.is_some_and(|decision| !decision.is_allowed()));
}
