//! Rules that change under load, judged by the oracle: every answer that any thread got is the one that
//! a naive judge gives who sees the same requests, in the order in which they were decided, under the
//! numbers of the version that each was decided by. Not a charge is lost, and none is minted.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tollbar::store::{Adjustment, ReservationRef, block_on};
use tollbar::{
    Batch, Charge, Decision, Feature, ManualClock, MemoryStore, Policy, Reply, Role, Store,
    StoreError, Timestamp,
};
use tollbar_rules::{AsyncEngine, Request, RuleFile, RuleSet};
use tollbar_testkit::oracle::{Oracle, OracleEntry};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// So much time passes between two decisions: windows end and buckets fill while rules change.
const STEP: Duration = Duration::from_millis(17);

/// Tokens of whole microseconds. Between others, a change of the rate rounds what is owed by less than
/// a microsecond, because a counter does not say in what parts of one it was written.
const BUCKET_RATES: [u64; 4] = [4, 5, 2, 8];

const CHECKS_PER_THREAD: usize = 600;
const CHECKS_PER_VERSION: usize = 10;
const THREADS: usize = 3;
const USERS: usize = 3;

thread_local! {
    /// Which decision this thread's last one was.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// The memory store, which notes the order in which it decides. Rules are selected on all threads at
/// once; only the decisions follow one another, so that there is an order to be judged in.
#[derive(Debug)]
struct OrderedStore {
    store: MemoryStore,
    clock: ManualClock,
    decided: Mutex<usize>,
}

impl Store for OrderedStore {
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        self.store.supports(feature)
    }

    fn check<'a>(&'a self, key: &'a [u8], policy: &'a Policy, cost: u64) -> Reply<'a, Decision> {
        self.store.check(key, policy, cost)
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        self.clock.advance(STEP);
        *decided += 1;
        LAST.set(*decided);
        Reply::Ready(self.store.decide(batch).wait())
    }

    fn refund<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
        amount: u64,
    ) -> Reply<'a, u64> {
        self.store.refund(key, policy, stamp, amount)
    }

    fn renew<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        stamp: u64,
    ) -> Reply<'a, Option<Timestamp>> {
        self.store.renew(key, policy, stamp)
    }

    fn settle<'a, 'e: 'a>(
        &'a self,
        reservation: ReservationRef<'a>,
        adjustments: &'a mut [Adjustment<'e>],
    ) -> Reply<'a, bool> {
        self.store.settle(reservation, adjustments)
    }

    fn reset<'a>(&'a self, key: &'a [u8], policy: &'a Policy) -> Reply<'a, ()> {
        self.store.reset(key, policy)
    }
}

/// What a version of the rules says, in words that need no engine to be understood.
struct Version {
    everybody: u64,
    bucket: (u64, u64),
    window: Option<u64>,
    shadow: u64,
}

impl Version {
    fn from_number(version: u64) -> Self {
        Self {
            everybody: 60 + version * 7 % 40,
            bucket: (BUCKET_RATES[version as usize % 4], 4 + version * 3 % 9),
            // Gone in every fourth version, and back in the next with what it had counted.
            window: (!version.is_multiple_of(4)).then_some(5 + version % 3),
            shadow: 2 + version % 7,
        }
    }

    fn rules(version: u64) -> RuleSet {
        let Self { everybody, bucket: (rate, burst), window, shadow } = Self::from_number(version);
        let window = window.map_or_else(String::new, |limit| {
            format!("- {{ name: window, per: user, limit: {limit}/2s, algorithm: sliding_window_strict }}")
        });
        // The order in which they are looked at changes too.
        let priority = version % 3;
        let text = format!(
            "rules:
             - {{ name: everybody, per: [], limit: {everybody}/s, algorithm: fixed_window }}
             - {{ name: bucket, per: user, limit: {rate}/s, burst: {burst}, priority: {priority} }}
             - {{ name: shadow, per: user, mode: shadow, limit: {shadow}/s }}
             {window}"
        );
        RuleFile::parse("r", &text).unwrap_or_else(|error| panic!("{error}")).rules
    }

    /// Every limit by its rule, whom it counts, and whether it may deny.
    fn limits(&self, user: usize) -> Vec<(&'static str, String, Policy, Role)> {
        let user = format!("user {user}");
        let rate = |limit: u64, window: &str| format!("{limit}/{window}");
        let everybody = Policy::fixed_window(&*rate(self.everybody, "s")).unwrap();
        let bucket = Policy::token_bucket(&*rate(self.bucket.0, "s")).unwrap();
        let bucket = bucket.with_burst(self.bucket.1).unwrap();
        let shadow = Policy::sliding_window(&*rate(self.shadow, "s")).unwrap();
        let mut limits = vec![
            ("everybody", "all".to_owned(), everybody, Role::Enforce),
            ("bucket", user.clone(), bucket, Role::Enforce),
            ("shadow", user.clone(), shadow, Role::Shadow),
        ];
        if let Some(limit) = self.window {
            let window = Policy::sliding_window_strict(&*rate(limit, "2s"), 10).unwrap();
            limits.push(("window", user, window, Role::Enforce));
        }
        limits
    }
}

/// A request, and what its thread was told.
struct CheckRecord {
    at: usize,
    version: u64,
    user: usize,
    cost: u64,
    decisions: Vec<(String, Decision)>,
}

/// The first thread changes the rules as well, so that however few cores there are, they change.
fn ask(engine: &AsyncEngine, thread: usize) -> Vec<CheckRecord> {
    let mut records = Vec::new();
    // The first version that an engine has is 1.
    let mut version = 1;
    for n in 0..CHECKS_PER_THREAD {
        if thread == 0 && n % CHECKS_PER_VERSION == 0 {
            version += 1;
            engine.replace(Version::rules(version)).unwrap();
        }
        let (user, cost) = ((n + thread) % USERS, 1 + u64::from(n % 3 == 0));
        let name = user.to_string();
        let attributes = [("user", name.as_str())];
        let request = Request::new("GET", "/").unwrap().with_attributes(&attributes).unwrap();
        let verdict = block_on(engine.check(&request.with_cost(cost)));
        let decisions = verdict
            .decisions()
            .map(|limit| (limit.rule().name.to_string(), limit.decision()))
            .collect();
        records.push(CheckRecord {
            at: LAST.get(),
            version: verdict.rules_version(),
            user,
            cost,
            decisions,
        });
    }
    records
}

/// The same by the judge.
fn judge(records: &[CheckRecord]) -> (usize, usize) {
    let mut oracle = Oracle::new();
    let (mut allowed, mut denied) = (0, 0);
    for record in records {
        let now = START.after(STEP * record.at as u32);
        let limits = Version::from_number(record.version).limits(record.user);
        let keys: Vec<String> =
            limits.iter().map(|(rule, who, ..)| format!("{rule}: {who}")).collect();
        let questions: Vec<OracleEntry<'_>> = limits
            .iter()
            .zip(&keys)
            .map(|((_, _, policy, role), key)| OracleEntry {
                key: key.as_bytes(),
                policy,
                cost: record.cost,
                role: *role,
                alternative: None,
            })
            .collect();
        let answers = oracle.check_all(now, Charge::AllOrNone, &questions);
        let mut expected: Vec<(String, Decision)> = limits
            .iter()
            .zip(answers)
            .map(|((rule, ..), answer)| ((*rule).to_owned(), answer.into()))
            .collect();
        let mut decisions = record.decisions.clone();
        expected.sort_by(|one, other| one.0.cmp(&other.0));
        decisions.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(decisions, expected, "decision {} by version {}", record.at, record.version);
        let is_allowed = limits.iter().all(|(rule, _, _, role)| {
            *role == Role::Shadow
                || expected.iter().any(|(name, decision)| name == rule && decision.is_allowed())
        });
        (allowed, denied) = (allowed + usize::from(is_allowed), denied + usize::from(!is_allowed));
    }
    (allowed, denied)
}

#[test]
fn every_answer_under_changing_rules_is_the_judges() {
    let clock = ManualClock::at(START);
    let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
    let store = Arc::new(OrderedStore { store, clock: clock.clone(), decided: Mutex::new(0) });
    let engine = AsyncEngine::builder(Version::rules(1), store).clock(clock).build().unwrap();
    let mut records: Vec<CheckRecord> = thread::scope(|scope| {
        let engine = &engine;
        let workers: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || ask(engine, thread))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    records.sort_by_key(|record| record.at);
    assert!(
        records.iter().map(|record| record.at).eq(1..=THREADS * CHECKS_PER_THREAD),
        "each is decided once"
    );
    let (allowed, denied) = judge(&records);
    let mut versions: Vec<u64> = records.iter().map(|record| record.version).collect();
    versions.dedup();
    assert!(versions.len() >= CHECKS_PER_THREAD / CHECKS_PER_VERSION, "{}", versions.len());
    assert!(allowed > 100 && denied > 100, "{allowed} allowed, {denied} denied");
}
