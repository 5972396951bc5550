//! `fleet`: hot keys of a fleet that borrows, beside the same fleet checking exactly, and beside optimistic batching
//! as others do it.
//!
//! All nodes are in this process, on one core, each with a store of its own over its own connection; Redis has the
//! other core. Every admission is logged with when it was asked for and when it was answered, and the merged log is
//! judged over every interval: what it has above the limit in the worst one is the over-admission.

mod batching;
mod excess;
mod node;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;
use tollbar::{LoanMode, LoanTerms, Policy};
use tollbar_bench::machine::Machine;
use tollbar_bench::report::{Bound, Report, Row, Target, TrialName};
use tollbar_bench::sample::summarise;
use tollbar_bench::timer::Stopwatch;
use tollbar_testkit::bounds::Span;

use crate::redis::callers::Ticker;
use crate::redis::server::{self, RedisServer};
use crate::runner;
use node::Node;

/// How many nodes share the limit.
const NODES: usize = 20;
const FIVE_PERCENT: LoanMode = LoanMode::Conservative { share_ppm: 50_000 };

/// How often nodes that take turns go on and off.
const TURN: Duration = Duration::from_millis(200);

/// Cold keys: asked for in turn, each too seldom to be borrowed for.
const COLD_KEYS: u64 = 10_000;

#[derive(Clone, Copy)]
struct FleetSchedule {
    rounds: usize,
    duration: Duration,
}

const FULL: FleetSchedule = FleetSchedule { rounds: 5, duration: Duration::from_secs(6) };
const QUICK: FleetSchedule = FleetSchedule { rounds: 1, duration: Duration::from_secs(3) };

/// How the nodes count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Exact,
    Loans,
    Batching,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact checks",
            Self::Loans => "loans, conservative(5%)",
            Self::Batching => "optimistic batching, 100 ms",
        }
    }
}

/// What a fleet is asked for.
#[derive(Debug, Clone)]
struct FleetLoad {
    name: &'static str,
    policy: Policy,
    per_s: u64,
    takes_turns: bool,
    subjects: &'static [Subject],
}

const ALL: &[Subject] = &[Subject::Exact, Subject::Loans, Subject::Batching];
const TWO: &[Subject] = &[Subject::Exact, Subject::Loans];

/// The window and the bucket of the targets, at 20,000 a second and at a tenth of that.
fn loads() -> Result<Vec<FleetLoad>, Box<dyn Error>> {
    let window = |per_s: u64| Policy::fixed_window(format!("{per_s}/s").as_str());
    let bucket =
        |per_s: u64| Policy::token_bucket(format!("{per_s}/s").as_str())?.with_burst(10 * per_s);
    let load = |name, policy, per_s, subjects| FleetLoad {
        name,
        policy,
        per_s,
        takes_turns: false,
        subjects,
    };
    Ok(vec![
        load("window 20k/s, load 1.5", window(20_000)?, 30_000, ALL),
        load("window 2k/s, load 1.5", window(2_000)?, 3_000, ALL),
        load("bucket 20k/s, load 1.5", bucket(20_000)?, 30_000, ALL),
        load("bucket 2k/s, load 1.5", bucket(2_000)?, 3_000, ALL),
        FleetLoad {
            takes_turns: true,
            // Half of the nodes are on at any time.
            ..load("bucket 2k/s, nodes on and off", bucket(2_000)?, 6_000, TWO)
        },
        load("window 20k/s, load 0.7", window(20_000)?, 14_000, TWO),
    ])
}

const ADMITTED: &str = "admitted_per_s";
const OVER: &str = "tokens_over_the_limit";
const CALLS: &str = "evalsha_per_100_admitted";
const SERVER_CPU: &str = "server_cpu_us_per_decision";
const P50: &str = "p50_us";
const P99: &str = "p99_us";
const COLD: &str = "cold_decisions_per_s";

/// Figures of all rounds, by load, subject and metric.
type FleetResults = BTreeMap<(&'static str, Subject, &'static str), Vec<f64>>;

pub(crate) fn main(args: &[&str]) -> ExitCode {
    runner::run(args, [FULL, QUICK], measure)
}

fn measure(schedule: FleetSchedule) -> Result<Report, Box<dyn Error>> {
    let mut server = RedisServer::start()?;
    server::pin_client();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut results = FleetResults::new();
    let loads = loads()?;
    for load in &loads {
        let terms = LoanTerms::new(&load.policy, FIVE_PERCENT)?;
        eprintln!(
            "{}: {NODES} nodes, burst or limit {}, term {:?}",
            load.name,
            load.policy.capacity(),
            terms.term
        );
        for round in 0..schedule.rounds {
            for subject in load.subjects {
                let key = format!("{} {round} {subject:?}", load.name);
                let trial =
                    FleetTrial { load, subject: *subject, terms, key, duration: schedule.duration };
                for (metric, figure) in runtime.block_on(trial.run(&mut server))? {
                    results.entry((load.name, *subject, metric)).or_default().push(figure);
                }
            }
        }
    }
    for _ in 0..schedule.rounds {
        for subject in TWO {
            let per_s = runtime.block_on(cold(&server, *subject, schedule.duration / 3))?;
            results.entry(("cold keys", *subject, COLD)).or_default().push(per_s);
        }
    }
    let rows = results.iter().map(|(&(load, subject, metric), figures)| {
        Row::new(&TrialName::new(subject.name(), load, NODES), metric, summarise(figures))
    });
    Ok(Report {
        benchmark: "fleet",
        machine: Machine::detect(),
        rows: rows.collect(),
        targets: targets(&results),
    })
}

/// One subject under one load.
struct FleetTrial<'a> {
    load: &'a FleetLoad,
    subject: Subject,
    terms: LoanTerms,
    key: String,
    duration: Duration,
}

/// What the nodes of a trial have logged.
#[derive(Default)]
struct TrialLog {
    start_us: u64,
    admitted: Vec<Span>,
    latencies_us: Vec<f64>,
}

impl FleetTrial<'_> {
    async fn run(
        &self,
        server: &mut RedisServer,
    ) -> Result<Vec<(&'static str, f64)>, Box<dyn Error>> {
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(Rc::new(Node::new(&server.url(), self.subject, self.terms).await?));
        }
        let log = Rc::new(RefCell::new(TrialLog::default()));
        // A bucket that is full would admit the whole load for seconds, whoever counts. One that is empty has no room
        // for a first loan, because exact checks take every token at once.
        let mut spent = None;
        if self.load.policy.algorithm().name() == "token_bucket" {
            let from_us = excess::wall_clock_us();
            let tokens = self.load.policy.capacity() * 94 / 100;
            nodes[0].spend(&self.key, &self.load.policy, tokens).await?;
            let to_us = excess::wall_clock_us();
            spent = Some(Span { from_us, to_us, tokens });
        }
        let before = (server.cpu_s(), server.calls_of("evalsha"));
        let watch = Stopwatch::start();
        self.ask_all(&nodes, &log, watch).await;
        let elapsed_s = watch.elapsed().as_secs_f64();
        let calls = server.calls_of("evalsha") - before.1;
        let cpu_us = (server.cpu_s() - before.0) * 1e6;
        let mut log = log.take();
        let decisions = log.latencies_us.len() as f64;
        let admitted = log.admitted.iter().map(|span| span.tokens).sum::<u64>() as f64;
        // Without the beginning, in which keys are promoted and a bucket falls to its cut.
        let late_from_us = log.start_us + self.duration.as_micros() as u64 / 3;
        let late = log.admitted.iter().filter(|span| span.from_us >= late_from_us).count() as f64;
        let late_per_s = late / (elapsed_s - self.duration.as_secs_f64() / 3.0);
        log.admitted.extend(spent);
        log.latencies_us.sort_by(f64::total_cmp);
        let at = |percent: usize| log.latencies_us.get(log.latencies_us.len() * percent / 100);
        Ok(vec![
            (ADMITTED, late_per_s),
            (OVER, excess::tokens_over(&self.load.policy, log.admitted.clone()) as f64),
            (CALLS, calls * 100.0 / admitted.max(1.0)),
            (SERVER_CPU, cpu_us / decisions.max(1.0)),
            (P50, at(50).copied().unwrap_or(f64::NAN)),
            (P99, at(99).copied().unwrap_or(f64::NAN)),
        ])
    }

    /// Asks the nodes in turn, so many times a second, without waiting for answers.
    async fn ask_all(&self, nodes: &[Rc<Node>], log: &Rc<RefCell<TrialLog>>, watch: Stopwatch) {
        let start_us = excess::wall_clock_us();
        log.borrow_mut().start_us = start_us;
        let ticker = Ticker::start(Duration::from_micros(100));
        let (key, policy): (Rc<str>, Rc<Policy>) =
            (self.key.as_str().into(), Rc::new(self.load.policy.clone()));
        let tasks = LocalSet::new();
        let ask = async {
            let mut number = 0_u64;
            while watch.elapsed() < self.duration {
                if watch.elapsed().as_secs_f64() < number as f64 / self.load.per_s as f64 {
                    ticker.next().await;
                    continue;
                }
                let at = number as usize % NODES;
                number += 1;
                // Even nodes and odd ones take turns.
                let turn = watch.elapsed().as_millis() / TURN.as_millis();
                let at = if self.load.takes_turns { at / 2 * 2 + turn as usize % 2 } else { at };
                let (node, log) = (Rc::clone(&nodes[at]), Rc::clone(log));
                let (key, policy) = (Rc::clone(&key), Rc::clone(&policy));
                tokio::task::spawn_local(async move {
                    let sent = watch.elapsed();
                    let is_admitted = node.ask(&key, &policy).await;
                    let received = watch.elapsed();
                    let mut log = log.borrow_mut();
                    log.latencies_us.push(received.saturating_sub(sent).as_secs_f64() * 1e6);
                    if is_admitted {
                        log.admitted.push(Span {
                            from_us: start_us + sent.as_micros() as u64,
                            to_us: start_us + received.as_micros() as u64,
                            tokens: 1,
                        });
                    }
                });
            }
        };
        tasks.run_until(ask).await;
        tasks.await;
    }
}

/// How many decisions a second 64 callers get who ask for one cold key after another.
async fn cold(
    server: &RedisServer,
    subject: Subject,
    duration: Duration,
) -> Result<f64, Box<dyn Error>> {
    let policy = Rc::new(Policy::token_bucket("100/s")?.with_burst(1_000)?);
    let terms = LoanTerms::new(&policy, FIVE_PERCENT)?;
    let node = Rc::new(Node::new(&server.url(), subject, terms).await?);
    let watch = Stopwatch::start();
    let tasks = LocalSet::new();
    let count = Rc::new(RefCell::new(0_u64));
    for _ in 0..64 {
        let (node, policy, count) = (Rc::clone(&node), Rc::clone(&policy), Rc::clone(&count));
        tasks.spawn_local(async move {
            while watch.elapsed() < duration {
                let number = {
                    let mut count = count.borrow_mut();
                    *count += 1;
                    *count
                };
                node.ask(&format!("cold {}", number % COLD_KEYS), &policy).await;
            }
        });
    }
    tasks.await;
    let decisions = *count.borrow() as f64;
    Ok(decisions / watch.elapsed().as_secs_f64())
}

fn targets(results: &FleetResults) -> Vec<Target> {
    let median = |load, subject, metric| {
        summarise(results.get(&(load, subject, metric))?).map(|summary| summary.value)
    };
    let share = |load, metric| {
        let exact = median(load, Subject::Exact, metric)?;
        Some(median(load, Subject::Loans, metric)? / exact)
    };
    let worst_over = |subject| {
        let over = results.iter().filter(|((_, of, metric), _)| *of == subject && *metric == OVER);
        over.flat_map(|(_, figures)| figures).copied().max_by(f64::total_cmp)
    };
    let at_most = |name: &str, unit, value, target| {
        Target::new(name.to_owned(), unit, value, Bound::AtMost, target)
    };
    let at_least = |name: &str, value: Option<f64>, target| {
        let percent = value.map(|share| share * 100.0);
        Target::new(name.to_owned(), "%", percent, Bound::AtLeast, target)
    };
    let calls = |load| median(load, Subject::Loans, CALLS);
    let calm = "window 20k/s, load 0.7";
    let mut targets = vec![
        at_most(
            "over-admission of loans, worst interval",
            "tokens",
            worst_over(Subject::Loans),
            0.0,
        ),
        at_most(
            "EVALSHA per 100 admitted, window 20k/s",
            "calls",
            calls("window 20k/s, load 1.5"),
            5.0,
        ),
        at_most(
            "EVALSHA per 100 admitted, window 2k/s",
            "calls",
            calls("window 2k/s, load 1.5"),
            25.0,
        ),
        at_most(
            "EVALSHA per 100 admitted, bucket 20k/s",
            "calls",
            calls("bucket 20k/s, load 1.5"),
            15.0,
        ),
        at_most(
            "EVALSHA of loans vs exact, bucket 2k/s",
            "ratio",
            share("bucket 2k/s, load 1.5", CALLS),
            1.0,
        ),
        at_least("admitted vs exact, window", share("window 20k/s, load 1.5", ADMITTED), 99.9),
        at_least("admitted vs exact, bucket", share("bucket 20k/s, load 1.5", ADMITTED), 99.0),
        at_least(
            "admitted vs exact, bucket, nodes on and off every 200 ms",
            share("bucket 2k/s, nodes on and off", ADMITTED),
            94.0,
        ),
        at_most("p50 of loans vs exact, load 0.7", "ratio", share(calm, P50), 0.05),
        at_most("p99 of loans vs exact, load 0.7", "ratio", share(calm, P99), 0.2),
        at_most("Redis CPU per decision vs exact, load 0.7", "ratio", share(calm, SERVER_CPU), 0.2),
    ];
    let cold = share("cold keys", COLD).map(|share| 1.0 / share);
    targets.push(at_most("time per decision of cold keys vs exact", "ratio", cold, 1.05));
    targets
}
