//! What `tollbar rules bounds` states of limits that are lent, held against random rules and traffic: nodes that
//! borrow from one store, over every interval of what they admitted together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use tokio::runtime::Runtime;
use tokio::task::yield_now;
use tollbar::counter::CounterStore;
use tollbar::store::block_on;
use tollbar::{
    Batch, Clock, Loan, LoanRequest, ManualClock, MemoryStore, Outcome, Policy, Reply, Store,
    Timestamp,
};
use tollbar_fleet::{BootClock, LendingStore};
use tollbar_rules::{AdmittedTokens, AsyncEngine, IntervalBounds, Request, RuleFile, RuleSet};
use tollbar_testkit::admissions::{Admissions, IntervalSum};
use tollbar_testkit::failing_store::FailingStore;
use tollbar_testkit::memory_backend::MemoryBackend;
use tollbar_testkit::strategy::cases;

/// Requests of a client that always asks.
const REQUESTS: usize = 600;

/// The nodes' way to their store: a loan is there some time after it was made, and the store can be out of reach.
#[derive(Debug)]
struct Link {
    store: CounterStore<Arc<MemoryBackend>>,
    is_down: AtomicBool,
}

impl Link {
    fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }
}

impl Store for Link {
    fn decide<'a, 'e: 'a>(&'a self, batch: Batch<'a, 'e>) -> Reply<'a, ()> {
        if self.is_down() {
            return Reply::Ready(Err(FailingStore::unavailable().0));
        }
        self.store.decide(batch)
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

    fn lend<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a Policy,
        request: LoanRequest,
    ) -> Reply<'a, Loan> {
        Reply::Pending(Box::pin(async move {
            if self.is_down() {
                return Err(FailingStore::unavailable().0);
            }
            let loan = self.store.lend(key, policy, request).await;
            yield_now().await;
            loan
        }))
    }
}

#[derive(Debug)]
struct StoreTime(ManualClock);

impl BootClock for StoreTime {
    fn now_us(&self) -> u64 {
        self.0.now().as_micros()
    }
}

/// Nodes that borrow, and what they have admitted.
struct Fleet {
    runtime: Runtime,
    clock: ManualClock,
    rules: RuleSet,
    link: Arc<Link>,
    stores: Vec<Arc<LendingStore>>,
    nodes: Vec<AsyncEngine>,
    admitted: Admissions,
}

impl Fleet {
    fn new(text: &str) -> Self {
        let rules = RuleFile::parse("r", text).unwrap_or_else(|error| panic!("{error}")).rules;
        let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        let backend = Arc::new(MemoryBackend::new(clock.clone(), usize::MAX));
        let store = CounterStore::new(backend, [7; 32]);
        let link = Arc::new(Link { store, is_down: false.into() });
        let lend = |seed| {
            let inner: Arc<dyn Store> = link.clone();
            let local = MemoryStore::builder().clock(clock.clone()).max_keys(1_000).build();
            let builder = LendingStore::builder(inner).local_store(local).jitter_seed(seed);
            let store = Arc::new(builder.boot_clock(Arc::new(StoreTime(clock.clone()))).build());
            store.set_lending(true);
            store
        };
        let stores: Vec<_> = (0..rules.node_count()).map(lend).collect();
        let node = |store: &Arc<LendingStore>| {
            let builder = AsyncEngine::builder(rules.clone(), store.clone());
            builder.clock(clock.clone()).build().unwrap()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let nodes = stores.iter().map(node).collect();
        Self { runtime, clock, link, stores, nodes, rules, admitted: Admissions::default() }
    }

    /// Asks a node. What passes is written down: what passes at one instant as one.
    fn ask(&mut self, node: usize, path: &str, cost: u64) -> Outcome {
        let _runtime = self.runtime.enter();
        let node = &self.nodes[node % self.nodes.len()];
        let request = Request::new("GET", path).unwrap().with_cost(cost);
        let verdict = block_on(node.check(&request));
        if verdict.is_allowed() {
            let now_us = self.clock.now().as_micros();
            match self.admitted.charges.last_mut() {
                Some((at_us, tokens)) if *at_us == now_us => *tokens += cost,
                _ => self.admitted.charges.push((now_us, cost)),
            }
        }
        verdict.outcome()
    }

    /// Asks the first node, as fast as it answers, until it denies.
    fn ask_until_denied(&mut self) {
        while self.ask(0, "/", 1) == Outcome::Allow {
            self.carry_loans();
        }
        self.carry_loans();
    }

    /// Has loans that were asked for make a step: to the store, or back.
    fn carry_loans(&self) {
        self.runtime.block_on(yield_now());
    }

    fn spent_by_loan(&self) -> u64 {
        self.stores.iter().map(|store| store.stats().tokens_spent).sum()
    }

    /// Ends what was admitted so far, and says whether each interval of it is as `is_sound` wants it.
    fn judge(
        &mut self,
        intervals: impl Fn(&Admissions) -> Vec<IntervalSum>,
        stated: fn(&IntervalBounds) -> AdmittedTokens,
        is_sound: fn(IntervalSum, AdmittedTokens) -> bool,
    ) -> Result<(), String> {
        let spans = intervals(&std::mem::take(&mut self.admitted));
        let length = |span: &IntervalSum| Duration::from_micros(span.length_us);
        let lengths: Vec<Duration> = spans.iter().map(length).collect();
        for limit in self.rules.bounds_of(self.rules.get("a").unwrap(), &lengths) {
            for (span, bounds) in spans.iter().zip(&limit.intervals) {
                let stated = stated(bounds);
                if !is_sound(*span, stated) {
                    return Err(format!("{span:?} {stated:?} {:?}", limit.accuracy));
                }
            }
        }
        Ok(())
    }
}

/// A limit that is lent: buckets and windows of all kinds.
fn limit() -> impl Strategy<Value = String> {
    let bucket = (select(vec![5_u64, 40, 500]), 1_u64..5).prop_map(|(rate, seconds)| {
        format!("{{ limit: {rate}/s, algorithm: token_bucket, burst: {} }}", rate * seconds)
    });
    let algorithms = vec![
        "algorithm: fixed_window",
        "algorithm: fixed_window, staggered: true",
        "algorithm: sliding_window_counter",
    ];
    let window = (4_u64..300, select(vec!["1s", "1500ms", "4s", "1min"]), select(algorithms))
        .prop_map(|(limit, window, algorithm)| {
            format!("{{ limit: {limit}/{window}, {algorithm} }}")
        });
    let calendar = (4_u64..300).prop_map(|limit| format!("{limit} per calendar day"));
    prop_oneof![4 => bucket, 5 => window, 1 => calendar]
}

/// A file with a rule `a` that is lent, and one that is always exact and asked for beside it under `/b`.
fn file() -> impl Strategy<Value = String> {
    let accuracy = select(vec![
        "conservative",
        "conservative(20%)",
        "conservative(50%)",
        "optimistic(20%)",
        "optimistic(50%)",
    ]);
    let failure = select(vec!["allow", "deny", "local", "shed"]);
    // A limit that is spent at once denies what makes `a` hot, and charges nothing: then much is held and little spent.
    let beside = select(vec!["1000000/s", "1 per calendar month"]);
    let parts = (limit(), accuracy, failure, 1_u64..9, beside);
    let file = parts.prop_map(|(limit, accuracy, failure, nodes, beside)| {
        format!(
            "nodes: {nodes}\nrules:\n\
             - {{ name: a, per: [], limit: {limit}, accuracy: {accuracy}, on_store_failure: {failure} }}\n\
             - {{ name: b, match: {{ path: /b }}, limit: {beside}, accuracy: exact, on_store_failure: allow }}"
        )
    });
    file.prop_filter("a burst may be too small to be lent", |text| {
        RuleFile::parse("r", text).is_ok()
    })
}

/// What happens at an instant.
#[derive(Debug, Clone)]
struct Step {
    advance_us: u64,
    node: usize,
    /// All nodes are asked, from this one on.
    is_rush: bool,
    requests: u64,
    cost: u64,
    is_beside_another: bool,
    /// By how many steps loans that were asked for get on.
    carried: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let advance = prop_oneof![
        6 => Just(0_u64),
        3 => 1_u64..30_000,
        2 => 1_u64..300_000,
        1 => 1_u64..3_000_000,
    ];
    let is_rush = proptest::bool::weighted(0.15);
    let is_beside = proptest::bool::weighted(0.8);
    let parts = (advance, 0_usize..8, is_rush, 1_u64..13, 1_u64..4, is_beside, 0_u64..5);
    parts.prop_map(|(advance_us, node, is_rush, requests, cost, is_beside_another, carried)| Step {
        advance_us,
        node,
        is_rush,
        requests,
        cost,
        is_beside_another,
        carried,
    })
}

fn is_within(span: IntervalSum, stated: AdmittedTokens) -> bool {
    stated.most.is_none_or(|most| span.tokens <= most)
}

fn is_enough(span: IntervalSum, stated: AdmittedTokens) -> bool {
    stated.least.is_none_or(|least| span.tokens >= least)
}

fn intervals(admitted: &Admissions) -> Vec<IntervalSum> {
    admitted.intervals().collect()
}

fn gaps(admitted: &Admissions) -> Vec<IntervalSum> {
    admitted.gaps().collect()
}

proptest! {
    #![proptest_config(cases(128))]

    /// While the store answers, and once it does not: then lots that were lent before are spent beside what the rule
    /// does without the store.
    #[test]
    fn no_interval_admits_more_than_is_stated_of_a_limit_that_is_lent(
        text in file(),
        steps in proptest::collection::vec(step(), 1..50),
        down_at in 0_usize..60,
    ) {
        let mut fleet = Fleet::new(&text);
        let judge = |fleet: &mut Fleet, stated| {
            let is_sound = fleet.judge(intervals, stated, is_within);
            prop_assert!(is_sound.is_ok(), "{} of {text}", is_sound.unwrap_err());
            Ok(())
        };
        for (at, step) in steps.iter().enumerate() {
            fleet.clock.advance(Duration::from_micros(step.advance_us));
            if at == down_at {
                judge(&mut fleet, |bounds| bounds.answering)?;
                fleet.link.is_down.store(true, Ordering::Relaxed);
            }
            let path = if step.is_beside_another && !step.is_rush { "/b" } else { "/" };
            let nodes = if step.is_rush { fleet.nodes.len() } else { 1 };
            for at in 0..step.requests as usize * nodes {
                fleet.ask(step.node + at % nodes, path, step.cost);
            }
            (0..step.carried).for_each(|_| fleet.carry_loans());
        }
        if fleet.link.is_down() {
            judge(&mut fleet, |bounds| bounds.unreachable)?;
        } else {
            judge(&mut fleet, |bounds| bounds.answering)?;
        }
    }

    #[test]
    fn a_client_that_always_asks_gets_at_least_what_is_stated_of_a_limit_that_is_lent(
        text in file(),
        patience_us in select(vec![1_000_u64, 20_000, 1_000_000_000]),
    ) {
        let mut fleet = Fleet::new(&text);
        for _ in 0..REQUESTS {
            let outcome = fleet.ask(0, "/", 1);
            // A loan that is on its way for a window and more would be forfeited, one for each window.
            (0..3).for_each(|_| fleet.carry_loans());
            match outcome {
                Outcome::Deny { retry_after_us } => {
                    fleet.clock.advance(Duration::from_micros(retry_after_us.min(patience_us)));
                }
                Outcome::Allow => {}
                outcome => unreachable!("one token fits sooner or later: {outcome:?}"),
            }
        }
        let is_sound = fleet.judge(gaps, |bounds| bounds.answering, is_enough);
        prop_assert!(is_sound.is_ok(), "{} of {text}", is_sound.unwrap_err());
    }
}

/// The properties above say nothing unless tokens are lent.
#[test]
fn the_traffic_of_these_tests_is_paid_from_loans() {
    let mut fleet =
        Fleet::new("nodes: 2\nrules: [{ name: a, per: [], limit: 200/s, accuracy: conservative }]");
    for at in 0..REQUESTS {
        fleet.ask(at, "/", 1);
        fleet.carry_loans();
        fleet.clock.advance(Duration::from_millis(5));
    }
    let (spent, asked) = (fleet.spent_by_loan(), REQUESTS as u64);
    assert!(spent * 2 > asked, "{spent} of {asked}");
}

/// A pause denies what a sliding window has to give, and a partial loan after it pauses again: each window may end in a
/// pause. The statement once took a single loan from a whole interval, and 21 s of 400/s got 7,863 instead of 7,880.
#[test]
fn pauses_that_follow_each_other_are_in_what_a_client_gets_at_least() {
    let mut fleet =
        Fleet::new("rules: [{ name: a, per: [], limit: 400/1s, accuracy: conservative }]");
    let ask_for = |fleet: &mut Fleet, seconds| {
        let end = fleet.clock.now().after(Duration::from_secs(seconds));
        while fleet.clock.now() < end {
            fleet.ask_until_denied();
            fleet.clock.advance(Duration::from_millis(5));
        }
    };
    ask_for(&mut fleet, 3);
    // After some silence there is enough for a loan, but not for the whole of it.
    fleet.clock.advance(Duration::from_millis(200));
    fleet.admitted = Admissions::default();
    ask_for(&mut fleet, 26);
    let stats = fleet.stores[0].stats();
    assert!(stats.loans_partial > 100, "{stats:?}");
    fleet.judge(gaps, |bounds| bounds.answering, is_enough).unwrap();
}

/// An optimistic loan does not wait for the loans before it to end, so more than a burst may be held at once, and be spent
/// whether or not the store is there.
#[test]
fn all_that_nodes_hold_is_in_what_passes_at_most() {
    for is_down in [false, true] {
        let mut fleet = Fleet::new(
            "nodes: 8\nrules:\n\
             - { name: a, per: [], limit: 40/s, burst: 40, accuracy: optimistic(50%), on_store_failure: deny }\n\
             - { name: b, match: { path: /b }, limit: 1 per calendar month, accuracy: exact }",
        );
        fleet.ask(0, "/b", 1);
        // Denied by `b`: they make the key hot and charge nothing.
        let borrow = |fleet: &mut Fleet, nodes: std::ops::Range<usize>| {
            for node in nodes {
                (0..4).for_each(|_| assert_ne!(fleet.ask(node, "/b", 5), Outcome::Allow));
                (0..3).for_each(|_| fleet.carry_loans());
            }
        };
        borrow(&mut fleet, 0..4);
        fleet.clock.advance(Duration::from_millis(450));
        borrow(&mut fleet, 4..8);
        fleet.link.is_down.store(is_down, Ordering::Relaxed);
        fleet.admitted = Admissions::default();
        for node in 0..8 {
            (0..20).for_each(|_| _ = fleet.ask(node, "/", 1));
        }
        let admitted: u64 = fleet.admitted.charges.iter().map(|(_, tokens)| tokens).sum();
        assert!(admitted > 40, "{admitted} is no more than a burst");
        let stated = if is_down {
            |bounds: &IntervalBounds| bounds.unreachable
        } else {
            |bounds: &IntervalBounds| bounds.answering
        };
        fleet.judge(intervals, stated, is_within).unwrap();
    }
}
