//! Fleets in simulated time: nodes that borrow from a store which answers late or not at all, are stopped and go on,
//! and have clocks of their own. Whatever they admit together is judged over every interval.
//!
//! A seed that fails is printed. `TOLLBAR_SIMULATION_SEED=7 cargo test -p tollbar-fleet --test simulation` runs it
//! again, and the same happens.

mod counted_store;
mod fleet;
mod model_store;
mod network;

use std::sync::Arc;
use std::time::Duration;

use counted_store::CountedStore;
use fleet::{COLD, HOT, Outcome, Scenario, run};
use model_store::{ModelFault, ModelStore};
use network::Weather;
use tollbar::{LoanMode, Policy, Store};
use tollbar_testkit::xorshift::Xorshift;

const SEED: &str = "TOLLBAR_SIMULATION_SEED";
const SEEDS: u64 = 20;
const SEEDS_LONG: u64 = 4_000;

const FIVE_PERCENT: LoanMode = LoanMode::Conservative { share_ppm: 50_000 };

fn bucket(rate: &str, burst: u64) -> Policy {
    Policy::token_bucket(rate).unwrap().with_burst(burst).unwrap()
}

/// A calm fleet of four nodes.
fn calm(hot: Policy, load_per_second: u64) -> Scenario {
    let is_spent = hot.algorithm().name() == "token_bucket";
    Scenario {
        seed: 1,
        hot,
        mode: FIVE_PERCENT,
        cold: Policy::fixed_window("100/s").unwrap(),
        nodes: 4,
        load_per_second,
        duration: Duration::from_secs(12),
        weather: Weather {
            delay_us_max: 500,
            loss_permille: 0,
            deadline: Duration::from_millis(25),
        },
        mixed_permille: 0,
        cost_max: 1,
        turn_us: None,
        quiet_permille: 0,
        has_common_turns: false,
        is_spent,
        freeze_us_max: 0,
        lending_nodes: 4,
    }
}

/// A fleet to which everything may happen.
fn rough(seed: u64) -> Scenario {
    let mut random = Xorshift::named(&format!("scenario {seed}"));
    let (hot, rate) = match random.below(5) {
        0 => (bucket("1000/s", 500), 1_000),
        1 => (bucket("1000/s", 5_000), 1_000),
        2 => (bucket("100/s", 100), 100),
        3 if seed % 2 == 1 => (Policy::sliding_window("1000/s").unwrap(), 1_000),
        3 => (Policy::fixed_window("1000/s").unwrap(), 1_000),
        _ => (Policy::fixed_window("500/s").unwrap(), 500),
    };
    let mode = match random.below(3) {
        0 => LoanMode::Conservative { share_ppm: 500_000 },
        1 => LoanMode::Optimistic { share_ppm: 200_000 },
        _ => LoanMode::Conservative { share_ppm: 200_000 },
    };
    let nodes = 1 + random.below(6) as usize;
    Scenario {
        seed,
        hot,
        mode,
        cold: Policy::fixed_window("50/s").unwrap(),
        nodes,
        load_per_second: rate * random.pick(&[1, 3, 16]) / 2,
        duration: Duration::from_secs(4),
        weather: Weather {
            delay_us_max: random.pick(&[200, 5_000, 20_000, 200_000]),
            loss_permille: random.pick(&[0, 10, 200]),
            deadline: Duration::from_millis(random.pick(&[25, 300, 2_000])),
        },
        mixed_permille: random.pick(&[0, 100, 500]),
        cost_max: random.pick(&[1, 1, 5]),
        turn_us: random.pick(&[None, Some(400_000), Some(1_500_000)]),
        quiet_permille: random.pick(&[0, 100]),
        has_common_turns: random.below(2) == 0,
        is_spent: random.below(2) == 0,
        freeze_us_max: random.pick(&[0, 0, 300_000, 3_000_000]),
        lending_nodes: 1 + random.below(nodes as u64) as usize,
    }
}

/// What the mode promises: the limit, or for optimistic loans of a bucket somewhat more.
fn promise(scenario: &Scenario) -> Policy {
    match scenario.mode {
        LoanMode::Optimistic { share_ppm } if scenario.hot.algorithm().name() == "token_bucket" => {
            let burst = scenario.hot.capacity();
            let more = (burst * u64::from(share_ppm)).div_ceil(1_000_000);
            scenario.hot.clone().with_burst(burst + more).unwrap()
        }
        _ => scenario.hot.clone(),
    }
}

fn judge(scenario: &Scenario, outcome: &Outcome) -> Result<(), String> {
    outcome.hot.at_most(&promise(scenario), HOT)?;
    outcome.cold.at_most(&scenario.cold, COLD)
}

fn run_seeds(seeds: std::ops::Range<u64>) {
    let seeds = match std::env::var(SEED) {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => seeds,
    };
    let (mut admitted, mut by_loan) = (0, 0);
    for seed in seeds {
        let scenario = rough(seed);
        // By turns a store by the book, and the real one.
        let store: Arc<dyn Store> = match seed % 2 {
            0 => Arc::new(ModelStore::default()),
            _ => Arc::new(CountedStore::new()),
        };
        let outcome = run(&scenario, &store);
        admitted += outcome.hot.admitted.len() as u64;
        by_loan += outcome.admitted_by_loan;
        if let Err(excess) = judge(&scenario, &outcome) {
            panic!("{SEED}={seed}: {excess}\n{scenario:#?}");
        }
    }
    println!("{by_loan} of {admitted} requests were paid by loans");
    assert!(by_loan * 4 > admitted, "hardly anything was lent: {by_loan} of {admitted}");
}

#[test]
fn a_fleet_never_admits_more_than_the_limit() {
    run_seeds(0..SEEDS);
}

#[test]
#[ignore = "long: thousands of fleets"]
fn thousands_of_fleets_never_admit_more_than_the_limit() {
    run_seeds(SEEDS..SEEDS_LONG);
}

/// The simulation itself is judged: a store that breaks one of the conditions is caught.
#[test]
fn a_store_that_lends_wrongly_is_caught() {
    let cases = [
        (ModelFault::NoCut, bucket("1000/s", 500)),
        (ModelFault::LongLife, Policy::fixed_window("1000/s").unwrap()),
    ];
    for (fault, hot) in cases {
        let is_caught = |seed: &u64| {
            let scenario = surge(*seed, hot.clone());
            let store: Arc<dyn Store> = Arc::new(ModelStore::with_fault(fault));
            judge(&scenario, &run(&scenario, &store)).is_err()
        };
        let seed = (0..SEEDS).find(is_caught);
        println!("{fault:?} is caught by seed {seed:?}");
        assert!(seed.is_some(), "{fault:?} is not caught");
    }
}

/// Quiet nodes hold tokens of a limit that is hardly used, and then all of them are asked for much more than there is.
fn surge(seed: u64, hot: Policy) -> Scenario {
    Scenario {
        seed,
        mode: LoanMode::Conservative { share_ppm: 500_000 },
        turn_us: Some(1_500_000),
        quiet_permille: 100,
        has_common_turns: true,
        is_spent: false,
        duration: Duration::from_secs(5),
        ..calm(hot, 8_000)
    }
}

#[test]
fn a_seed_replays() {
    let admitted = || {
        let store: Arc<dyn Store> = Arc::new(ModelStore::default());
        run(&rough(8), &store).hot.admitted
    };
    assert_eq!(admitted(), admitted());
}

/// Returns what was admitted, and how often the store was asked, with and without loans.
fn compare(scenario: &Scenario) -> [Outcome; 2] {
    [scenario.nodes, 0].map(|lending_nodes| {
        let scenario = Scenario { lending_nodes, ..scenario.clone() };
        let store: Arc<dyn Store> = Arc::new(ModelStore::default());
        let outcome = run(&scenario, &store);
        judge(&scenario, &outcome).unwrap();
        outcome
    })
}

#[test]
fn loans_admit_nearly_as_much_as_exact_checks_and_ask_far_less() {
    let cases = [
        ("window", calm(Policy::fixed_window("2000/s").unwrap(), 3_000), 999, 250),
        ("bucket", calm(bucket("2000/s", 20_000), 3_000), 960, 150),
        (
            "bucket, nodes on and off",
            Scenario {
                turn_us: Some(400_000),
                load_per_second: 6_000,
                ..calm(bucket("2000/s", 20_000), 3_000)
            },
            940,
            150,
        ),
    ];
    for (name, scenario, least_permille, calls_permille_max) in cases {
        let [loaned, exact] = compare(&scenario);
        let permille = loaned.tokens_admitted_late * 1_000 / exact.tokens_admitted_late;
        let calls_permille = loaned.calls * 1_000 / loaned.tokens_admitted;
        println!("{name}: {permille} of 1000 admitted, {calls_permille} calls per 1000");
        assert!(permille >= least_permille, "{name}: {permille} of 1000");
        assert!(calls_permille <= calls_permille_max, "{name}: {calls_permille} calls per 1000");
    }
}

/// If empty loans denied, a node that borrows would get nothing beside busy nodes that check exactly.
#[test]
fn a_node_that_borrows_does_not_starve_among_exact_ones() {
    let scenario = Scenario { lending_nodes: 1, ..calm(bucket("1000/s", 10_000), 4_000) };
    let store: Arc<dyn Store> = Arc::new(ModelStore::default());
    let outcome = run(&scenario, &store);
    judge(&scenario, &outcome).unwrap();
    let [loaned, exact @ ..] = &outcome.tokens_by_node[..] else { panic!("four nodes") };
    let mean = exact.iter().sum::<u64>() / exact.len() as u64;
    println!("{loaned} beside {mean}");
    assert!(*loaned * 2 > mean, "{loaned} beside {mean}");
}
