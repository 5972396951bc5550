//! A fleet of nodes in simulated time: what they ask for, what goes wrong, and a log of all they admitted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::sleep;
use tollbar::{Accuracy, Batch, Entry, LoanMode, LoanTerms, Policy, Source, Store};
use tollbar_fleet::LendingStore;
use tollbar_testkit::bounds::{AdmissionLog, Span};
use tollbar_testkit::xorshift::Xorshift;

use crate::network::{self, DriftingClock, EXECUTED_US, Freezer, Link, Weather, true_now_us};

pub(crate) const HOT: &[u8] = b"hot";
pub(crate) const COLD: &[u8] = b"cold";

/// What is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) hot: Policy,
    pub(crate) mode: LoanMode,
    /// A limit that requests with several limits have besides, counted exactly.
    pub(crate) cold: Policy,
    pub(crate) nodes: usize,
    /// Tokens per second that all nodes together are asked for.
    pub(crate) load_per_second: u64,
    pub(crate) duration: Duration,
    pub(crate) weather: Weather,
    /// How many of a thousand requests have the cold limit besides.
    pub(crate) mixed_permille: u64,
    pub(crate) cost_max: u64,
    /// Nodes are busy and quiet by turns of up to this.
    pub(crate) turn_us: Option<u64>,
    /// How many of a thousand requests a quiet node still makes.
    pub(crate) quiet_permille: u64,
    /// All nodes take the same turns.
    pub(crate) has_common_turns: bool,
    /// The hot limit is nearly spent when the simulation begins. If it were spent entirely, exact checks would take
    /// every token at once, and a bucket would never have room for a first loan.
    pub(crate) is_spent: bool,
    /// Nodes are stopped for up to this, now and then.
    pub(crate) freeze_us_max: u64,
    /// Nodes that lend; the others check exactly.
    pub(crate) lending_nodes: usize,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) hot: AdmissionLog,
    pub(crate) cold: AdmissionLog,
    pub(crate) admitted_by_loan: u64,
    pub(crate) calls: u64,
    pub(crate) tokens_admitted: u64,
    /// Of these, how many in the second half: without the beginning, in which a bucket falls to its cut.
    pub(crate) tokens_admitted_late: u64,
    /// What each node got.
    pub(crate) tokens_by_node: Vec<u64>,
}

/// One process of the fleet.
struct Node {
    at: usize,
    scenario: Scenario,
    terms: LoanTerms,
    store: LendingStore,
    link: Arc<Link>,
    freezer: Arc<Freezer>,
    outcome: Rc<RefCell<Outcome>>,
    is_busy: Cell<bool>,
    late_from_us: u64,
}

/// Runs a scenario over `store`.
pub(crate) fn run(scenario: &Scenario, store: &Arc<dyn Store>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let outcome = Rc::new(RefCell::new(Outcome::default()));
    outcome.borrow_mut().tokens_by_node = vec![0; scenario.nodes];
    runtime.block_on(async {
        network::begin();
        if scenario.is_spent {
            let cost = scenario.hot.capacity() * 94 / 100;
            store.check(HOT, &scenario.hot, cost).wait().expect("the store is there");
            let span = Span { from_us: true_now_us(), to_us: true_now_us(), tokens: cost };
            outcome.borrow_mut().hot.admitted.push(span);
        }
        let local = LocalSet::new();
        let nodes: Vec<Rc<Node>> = (0..scenario.nodes)
            .map(|at| Rc::new(Node::new(at, scenario, store, &outcome)))
            .collect();
        for node in &nodes {
            local.spawn_local(Rc::clone(node).make_requests());
            local.spawn_local(Rc::clone(node).take_turns());
            local.spawn_local(Rc::clone(node).stop_now_and_then());
        }
        local.run_until(sleep(scenario.duration)).await;
        let calls = nodes.iter().map(|node| node.link.calls.load(Ordering::Relaxed)).sum();
        outcome.borrow_mut().calls = calls;
        drop(local);
    });
    outcome.take()
}

impl Node {
    fn new(
        at: usize,
        scenario: &Scenario,
        store: &Arc<dyn Store>,
        outcome: &Rc<RefCell<Outcome>>,
    ) -> Self {
        let mut random = random(scenario.seed, at, "node");
        let freezer = Arc::new(Freezer::default());
        let link = Arc::new(Link {
            store: Arc::clone(store),
            weather: scenario.weather,
            freezer: Arc::clone(&freezer),
            random: Mutex::new(random.clone()),
            calls: AtomicU64::new(0),
        });
        // A lot ends a thousandth early, which is for clocks like these.
        let clock = DriftingClock {
            offset_us: random.below(1_000_000_000),
            drift_ppm: random.below(900).cast_signed() - 450,
        };
        let inner: Arc<dyn Store> = link.clone();
        let store = LendingStore::builder(inner)
            .boot_clock(Arc::new(clock))
            .jitter_seed(random.next_u64())
            .build();
        store.set_lending(at < scenario.lending_nodes);
        Self {
            at,
            scenario: scenario.clone(),
            terms: LoanTerms::new(&scenario.hot, scenario.mode).expect("it can be lent"),
            store,
            link,
            freezer,
            outcome: Rc::clone(outcome),
            is_busy: Cell::new(true),
            late_from_us: true_now_us() + scenario.duration.as_micros() as u64 / 2,
        }
    }

    /// Asks at random moments, at the load that falls to this node, without waiting for answers.
    async fn make_requests(self: Rc<Self>) {
        let mut random = random(self.scenario.seed, self.at, "requests");
        let cost_max = self.scenario.cost_max;
        let per_second = self.scenario.load_per_second / self.scenario.nodes as u64;
        let gap_us = 1_000_000 * (cost_max + 1) / 2 / per_second.max(1);
        loop {
            sleep(Duration::from_micros(random.below(2 * gap_us + 1))).await;
            self.freezer.wait().await;
            if self.is_busy.get() || random.below(1_000) < self.scenario.quiet_permille {
                let cost = 1 + random.below(cost_max);
                let is_mixed = random.below(1_000) < self.scenario.mixed_permille;
                let request = Rc::clone(&self).request(cost, is_mixed);
                tokio::task::spawn_local(EXECUTED_US.scope(Cell::new(0), request));
            }
        }
    }

    async fn request(self: Rc<Self>, cost: u64, is_mixed: bool) {
        let Scenario { hot, cold, .. } = &self.scenario;
        let hot = Entry::new(HOT, hot).with_cost(cost).with_accuracy(Accuracy::Loaned(self.terms));
        let mut entries = vec![hot];
        if is_mixed {
            entries.push(Entry::new(COLD, cold));
        }
        let answer = self.store.decide(Batch::all_or_none(&mut entries)).await;
        // No await from here on: what is paid from lots is admitted now.
        if answer.is_err() || !entries.iter().all(Entry::is_paid) {
            return;
        }
        let mut outcome = self.outcome.borrow_mut();
        let now_us = true_now_us();
        for entry in &entries {
            let is_loan = entry.source() == Source::Loan;
            let at_us = if is_loan { now_us } else { EXECUTED_US.with(Cell::get) };
            let span = Span { from_us: at_us, to_us: at_us, tokens: entry.cost() };
            match entry.key() {
                HOT => {
                    outcome.hot.admitted.push(span);
                    outcome.tokens_admitted += entry.cost();
                    if now_us >= self.late_from_us {
                        outcome.tokens_admitted_late += entry.cost();
                    }
                    outcome.tokens_by_node[self.at] += entry.cost();
                    outcome.admitted_by_loan += u64::from(is_loan);
                }
                _ => outcome.cold.admitted.push(span),
            }
        }
    }

    async fn take_turns(self: Rc<Self>) {
        let Some(turn_us) = self.scenario.turn_us else { return };
        let at = if self.scenario.has_common_turns { 0 } else { self.at };
        let mut random = random(self.scenario.seed, at, "turns");
        loop {
            sleep(Duration::from_micros(random.below(turn_us + 1))).await;
            self.is_busy.set(!self.is_busy.get());
        }
    }

    async fn stop_now_and_then(self: Rc<Self>) {
        if self.scenario.freeze_us_max == 0 {
            return;
        }
        let mut random = random(self.scenario.seed, self.at, "freezes");
        loop {
            sleep(Duration::from_micros(random.below(1_000_000))).await;
            self.freezer.freeze(random.below(self.scenario.freeze_us_max + 1));
        }
    }
}

fn random(seed: u64, node: usize, purpose: &str) -> Xorshift {
    Xorshift::named(&format!("{seed} {node} {purpose}"))
}
