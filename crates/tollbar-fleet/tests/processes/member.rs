//! A member: a process that borrows, asks in bursts, and writes down every admission at once.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tollbar::{
    Accuracy, Batch, Entry, Feature, Loan, LoanMode, LoanRequest, LoanTerms, Policy, Reply, Source,
    Store, StoreError,
};
use tollbar_fleet::LendingStore;
use tollbar_redis::{FleetSecret, KeyNames, RedisStore};
use tollbar_testkit::client_log::ClientClock;

/// What a member is told: `server` or `cluster`, and the addresses.
pub(crate) const STORE: &str = "TOLLBAR_TEST_STORE";
/// Where it writes down what it admits.
pub(crate) const LOG: &str = "TOLLBAR_TEST_LOG";
/// By how much replies of the store are delayed, in milliseconds.
pub(crate) const DELAY: &str = "TOLLBAR_TEST_DELAY";

const MODE: LoanMode = LoanMode::Conservative { share_ppm: 500_000 };

/// Everybody asks in the first half of each such time, and is silent in the second: buckets fill up, lots are held,
/// and then all ask at once.
const TURN_US: u64 = 700_000;

/// Tokens that a member asks for in a millisecond, of each limit.
const ASKS_PER_MS: u64 = 2;

/// The limits, by their keys, and on which terms they are lent.
pub(crate) fn limits() -> Vec<(&'static str, Policy, LoanTerms)> {
    let bucket = |rate: &str, burst| Policy::token_bucket(rate)?.with_burst(burst);
    let limits = [
        ("bucket", bucket("1000/s", 400)),
        ("slow bucket", bucket("300/s", 200)),
        ("window", Policy::fixed_window("700/s")),
        ("sliding window", Policy::sliding_window("700/s")),
    ];
    let with_terms = |(key, policy): (_, Result<Policy, _>)| {
        let policy = policy.unwrap();
        let terms = LoanTerms::new(&policy, MODE).unwrap();
        (key, policy, terms)
    };
    limits.map(with_terms).into()
}

/// Runs until it is killed. Returns at once in a process that is no member.
pub(crate) fn run() {
    let (Ok(store), Ok(log)) = (std::env::var(STORE), std::env::var(LOG)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    runtime.block_on(async move {
        let inner = connect(&store).await;
        let store = LendingStore::new(inner);
        store.set_lending(true);
        let member = Rc::new(Member { store, clock: ClientClock::start(), log: RefCell::new(log) });
        LocalSet::new().run_until(member.ask_in_turns()).await;
    });
}

async fn connect(told: &str) -> Arc<dyn Store> {
    let (kind, urls) = told.split_once(' ').unwrap();
    let urls: Vec<&str> = urls.split(' ').collect();
    let names = KeyNames::Hashed(FleetSecret::new([7; 32]));
    let builder = match kind {
        "cluster" => RedisStore::cluster_builder(&urls, names),
        _ => RedisStore::builder(urls[0], names),
    };
    // A busy machine must not make answers fail that are late.
    let store = builder.timeout(Duration::from_secs(1)).connect().await.unwrap();
    let delay_ms = std::env::var(DELAY).map_or(0, |text| text.parse().unwrap());
    Arc::new(SlowStore { store, delay: Duration::from_millis(delay_ms) })
}

struct Member {
    store: LendingStore,
    clock: ClientClock,
    log: RefCell<std::fs::File>,
}

impl Member {
    async fn ask_in_turns(self: Rc<Self>) {
        let mut ticks = interval(Duration::from_millis(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            if self.clock.now_us() % TURN_US < TURN_US / 2 {
                for (key, policy, terms) in limits() {
                    for _ in 0..ASKS_PER_MS {
                        let ask = Rc::clone(&self).ask(key, policy.clone(), terms);
                        tokio::task::spawn_local(ask);
                    }
                }
            }
        }
    }

    /// Asks for one token. The line is written by one call, so that it is there if the process is killed.
    async fn ask(self: Rc<Self>, key: &'static str, policy: Policy, terms: LoanTerms) {
        let mut entries = [Entry::new(key, &policy).with_accuracy(Accuracy::Loaned(terms))];
        let sent_us = self.clock.now_us();
        let mut reply = self.store.decide(Batch::all_or_none(&mut entries));
        // An answer that is there was given between the two readings; for any other, the store decided in between.
        let answer = match &mut reply {
            Reply::Ready(_) => reply.wait(),
            Reply::Pending(_) => reply.await,
        };
        let received_us = self.clock.now_us();
        let [entry] = entries;
        if answer.is_ok() && entry.is_paid() {
            let source = if entry.source() == Source::Loan { "loan" } else { "store" };
            let line = format!("{key}: admitted {sent_us} {received_us} 1 {source}\n");
            self.log.borrow_mut().write_all(line.as_bytes()).unwrap();
        }
    }
}

/// Redis, whose replies take some time longer to arrive.
#[derive(Debug)]
struct SlowStore {
    store: RedisStore,
    delay: Duration,
}

impl Store for SlowStore {
    fn supports(&self, feature: Feature<'_>) -> Result<(), StoreError> {
        self.store.supports(feature)
    }

    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        Reply::Pending(Box::pin(async move {
            let answer = self.store.decide(batch).await;
            sleep(self.delay).await;
            answer
        }))
    }

    fn lend<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        request: LoanRequest,
    ) -> Reply<'a, Loan> {
        Reply::Pending(Box::pin(async move {
            let answer = self.store.lend(key, policy, request).await;
            sleep(self.delay).await;
            answer
        }))
    }
}
