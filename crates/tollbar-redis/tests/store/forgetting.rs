//! The Redis store and the oracle agree where the server forgets every counter as soon as it may.
//!
//! The tests of `agreement.rs` keep keys for an hour longer than needed, so a key that would expire early
//! is still there. Here a key is deleted when the clock of the test has passed the end of its life. The
//! clock never goes back: what a server has forgotten does not come back either.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Patient, RUNTIME, server, unique};
use proptest::collection::vec;
use proptest::prelude::*;
use tollbar::store::{Hold, Once, ReservationId};
use tollbar::{Charge, Clock, ManualClock, Policy, Store, Timestamp};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore};
use tollbar_testkit::adversary::TraceState;
use tollbar_testkit::duel::Duel;
use tollbar_testkit::oracle::OracleEntry;
use tollbar_testkit::redis::process::RedisProcess;
use tollbar_testkit::strategy::{self, Move, cases};
use tollbar_testkit::subject::Subject;

/// Keys are given this much more, so that none expires by the clock of the server.
const GRACE: Duration = Duration::from_hours(1);

/// Answers the time in microseconds, and each key that begins with ARGV[1] and was written since the last
/// time, with when it expires in ms (-1: never). Then its expiry is replaced by ARGV[2], by which a key that
/// was not written, or kept its expiry, is known the next time.
const WRITTEN: &str = "
local time, found = redis.call('TIME'), {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local expires_at = redis.call('PEXPIRETIME', key)
  if expires_at ~= tonumber(ARGV[2]) then
    found[#found + 1] = { key, expires_at }
    if expires_at > 0 then
      redis.call('PEXPIREAT', key, ARGV[2])
    end
  end
end
return { time[1] * 1000000 + time[2], found }";

/// The year 2200: no state is kept for so long.
const SEEN_MS: u64 = 7_258_118_400_000;

/// A store on a server that forgets as soon as it may.
struct ForgetfulStore {
    store: RedisStore,
    clock: ManualClock,
    prefix: String,
    keys: RefCell<Keys>,
    _server: Arc<RedisProcess>,
}

struct Keys {
    client: redis::Connection,
    /// The time of the server when it was last asked which keys were written.
    seen_at_us: u64,
    /// When keys expire, by the clock of the test.
    ends_us: HashMap<Vec<u8>, u64>,
}

impl ForgetfulStore {
    fn boxed(now: Timestamp) -> Box<dyn Subject> {
        let server = server();
        let namespace = unique();
        let clock = ManualClock::at(now);
        let store = RedisStore::builder(&server.url(), KeyNames::Hashed(FleetSecret::new([7; 32])))
            .namespace(&namespace)
            .test_clock(clock.clone(), GRACE)
            .patient();
        let store = RUNTIME.block_on(store.connect()).expect("the server is there");
        let client = redis::Client::open(server.url()).and_then(|client| client.get_connection());
        let client = client.expect("the server is there");
        let keys = RefCell::new(Keys { client, seen_at_us: 0, ends_us: HashMap::new() });
        let prefix = format!("tollbar1:{namespace}:");
        let forgetful = Self { store, clock, prefix, keys, _server: server };
        forgetful.set_now(now);
        Box::new(forgetful)
    }
}

impl Subject for ForgetfulStore {
    fn name(&self) -> &'static str {
        "forgetful redis"
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_now(&self, now: Timestamp) {
        let Keys { client, seen_at_us, ends_us } = &mut *self.keys.borrow_mut();
        let mut command = redis::cmd("EVAL");
        command.arg(WRITTEN).arg(0).arg(&self.prefix).arg(SEEN_MS);
        let (server_us, written): (u64, Vec<(Vec<u8>, i64)>) =
            command.query(client).expect("the server answers");
        for (key, expires_ms) in written {
            let Ok(expires_ms) = u64::try_from(expires_ms) else {
                ends_us.remove(&key);
                continue;
            };
            // It was written some time after the last look. Reckoned from there, its life is a little too
            // long and never too short.
            let life_us = expires_ms * 1_000 - *seen_at_us - GRACE.as_micros() as u64;
            ends_us.insert(key, self.clock.now().as_micros() + life_us);
        }
        ends_us.retain(|key, end_us| {
            let is_kept = now.as_micros() < *end_us;
            if !is_kept {
                redis::cmd("DEL").arg(key).exec(client).expect("the server deletes a key");
            }
            is_kept
        });
        *seen_at_us = server_us;
        self.clock.set(now);
    }
}

impl Drop for ForgetfulStore {
    /// All tests share a server, which looks through all of its keys at every step.
    fn drop(&mut self) {
        let Keys { client, ends_us, .. } = self.keys.get_mut();
        for key in ends_us.keys() {
            // A key that is left costs the others some time, and nothing else.
            let _ = redis::cmd("DEL").arg(key).exec(client);
        }
    }
}

/// How a request is sent: each is another script, or another branch of one.
#[derive(Debug, Clone, Copy)]
enum Way {
    One,
    Few,
    Independent,
    Once { request_id: u8, ttl_s: u64 },
    Held { ttl_s: u64 },
    Reset,
    Lend { parts: (u64, u64) },
}

#[derive(Debug, Clone)]
struct Act {
    way: Way,
    moves: Vec<Move>,
    /// Which reservation is settled then, at how many fourths of it.
    settled: Option<(usize, u64)>,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let ttl_s = || prop::sample::select(vec![1_u64, 20, 100_000]);
    let way = prop_oneof![
        3 => Just(Way::One),
        3 => Just(Way::Few),
        1 => Just(Way::Independent),
        2 => (0_u8..3, ttl_s()).prop_map(|(request_id, ttl_s)| Way::Once { request_id, ttl_s }),
        4 => ttl_s().prop_map(|ttl_s| Way::Held { ttl_s }),
        1 => Just(Way::Reset),
        3 => (0_u64..20, 0_u64..20).prop_map(|parts| Way::Lend { parts }),
    ];
    let settled = prop::option::of((0_usize..20, 0_u64..8));
    let act = (way, strategy::trace(1..4), settled);
    vec(act.prop_map(|(way, moves, settled)| Act { way, moves, settled }), 1..30)
}

/// Policies whose states live for a tenth of a second or longer: what lives for less is not told from what
/// lives for the few milliseconds that a step of this test takes.
fn policies() -> impl Strategy<Value = Vec<Policy>> {
    strategy::policies().prop_filter_map("they live too short", |mut policies| {
        policies.retain(|policy| {
            let life = policy.lease_ttl().unwrap_or_else(|| policy.window());
            life >= Duration::from_millis(100)
        });
        (!policies.is_empty()).then_some(policies)
    })
}

fn play(
    duel: &mut Duel,
    start: Timestamp,
    policies: &[Policy],
    acts: &[Act],
) -> Result<(), String> {
    const NAMES: [[u8; 1]; 2] = [[0], [1]];
    let policy_of = |each: &Move| &policies[each.policy % policies.len()];
    let mut trace_state = TraceState::at(start);
    let mut reserved = Vec::new();
    for (number, Act { way, moves, settled }) in acts.iter().enumerate() {
        trace_state.now = trace_state.advanced(moves[0].advance, policy_of(&moves[0]));
        let question = |each: &Move| OracleEntry {
            key: &NAMES[each.key % NAMES.len()],
            policy: policy_of(each),
            cost: trace_state.cost(each.price, policy_of(each)),
            role: each.role,
            alternative: None,
        };
        let asked: Vec<OracleEntry<'_>> = moves.iter().map(question).collect();
        let mut now = trace_state.now;
        match *way {
            Way::One => {
                duel.check(now, asked[0].key, asked[0].policy, asked[0].cost)?;
            }
            Way::Few => {
                duel.check_all(now, Charge::AllOrNone, &asked)?;
            }
            Way::Independent => {
                duel.check_all(now, Charge::Independent, &asked)?;
            }
            Way::Once { request_id, ttl_s } => {
                let request_id = [request_id];
                let once = Once::new(&request_id, Duration::from_secs(ttl_s));
                duel.check_marked(now, &asked, Some(once), None)?;
            }
            Way::Reset => {
                // The store tells charges before a reset from those after it by the microsecond, so the
                // clock has to move on. At its last instant it cannot.
                let next = now.after(Duration::from_micros(1));
                if next <= Timestamp::MAX {
                    duel.reset(now, asked[0].key, asked[0].policy);
                    (now, trace_state.now) = (next, next);
                }
            }
            Way::Lend { parts } => {
                let request = strategy::loan_request(asked[0].policy, asked[0].cost, parts);
                duel.lend(now, asked[0].key, asked[0].policy, request)?;
            }
            Way::Held { ttl_s } => {
                let id = ReservationId(number as u128);
                let hold = Hold { id, ttl: Duration::from_secs(ttl_s) };
                let charged = duel.check_marked(now, &asked, None, Some(hold))?;
                reserved.extend(charged.map(|charged| (id, charged)));
            }
        }
        if let Some((which, fourths)) = settled
            && !reserved.is_empty()
        {
            let (id, charged) = &reserved[which % reserved.len()];
            duel.settle(now, *id, charged, |at, cost| cost * ((fourths + at as u64) % 8) / 4)?;
        }
        for name in &NAMES {
            for policy in policies {
                trace_state.last = Some(duel.check(now, name, policy, 0)?);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn redis_store_agrees_with_the_oracle_where_it_forgets_as_soon_as_it_may(
        policies in policies(),
        start in 1_700_000_000_000_000_u64..1_700_000_100_000_000,
        acts in acts(),
    ) {
        let start = Timestamp::from_micros(start);
        let mut duel = Duel::new(ForgetfulStore::boxed(start));
        play(&mut duel, start, &policies, &acts).map_err(TestCaseError::fail)?;
    }
}
