//! Four processes that borrow from a real Redis, and what goes wrong: one is killed, one is stopped for longer than
//! a term, one hears late, and Redis is started anew; counters of a cluster move to other masters, and masters are lost.
//! Each process writes down every admission with when it asked and when it was answered, by the machine's clock; the
//! merged log is judged over every interval.

mod member;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tollbar::Policy;
use tollbar_testkit::bounds::{AdmissionLog, Span};
use tollbar_testkit::client_log::ClientClock;
use tollbar_testkit::redis::cluster::RedisCluster;
use tollbar_testkit::redis::process::RedisProcess;

use member::{DELAY, LOG, STORE, limits};

/// How far the clocks of two processes may differ.
const CLOCK_ERROR_US: u64 = 50;
/// The longest term of the limits, and some more.
const TERM_MAX: Duration = Duration::from_millis(500);

/// Not a test, but a process of those below.
#[test]
fn member_that_borrows() {
    member::run();
}

/// Processes of one fleet, and the files that they write.
struct Fleet {
    store: String,
    directory: PathBuf,
    members: Vec<Child>,
    started: usize,
    clock: ClientClock,
}

impl Fleet {
    fn start(name: &str, store: String) -> Self {
        let directory =
            std::env::temp_dir().join(format!("tollbar-fleet-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let clock = ClientClock::start();
        let mut fleet = Self { store, directory, members: Vec::new(), started: 0, clock };
        for delay_ms in [0, 0, 0, 120] {
            fleet.add(delay_ms);
        }
        fleet
    }

    fn add(&mut self, delay_ms: u64) {
        let log = self.directory.join(format!("{}.log", self.started));
        self.started += 1;
        let member = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "member_that_borrows", "--nocapture"])
            .env(STORE, &self.store)
            .env(LOG, log)
            .env(DELAY, delay_ms.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.members.push(member);
    }

    /// Kills a member without notice, and starts another one in its place.
    fn replace(&mut self, at: usize) {
        let mut member = self.members.remove(at);
        member.kill().unwrap();
        member.wait().unwrap();
        self.add(0);
    }

    fn signal(&self, at: usize, signal: Signal) {
        let pid = Pid::from_child(&self.members[at]);
        kill_process(pid, signal).unwrap();
    }

    /// Ends all members, and returns what they admitted.
    fn finish(mut self) -> Log {
        for member in &mut self.members {
            member.kill().unwrap();
            member.wait().unwrap();
        }
        let texts = (0..self.started)
            .map(|at| std::fs::read_to_string(self.directory.join(format!("{at}.log"))));
        let log = Log::read(&texts.map(Result::unwrap).collect::<String>());
        std::fs::remove_dir_all(&self.directory).unwrap();
        log
    }
}

/// A fleet that a failed assertion leaves behind.
impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.kill().ok();
            member.wait().ok();
        }
    }
}

/// What was admitted of each limit.
struct Log {
    admitted: Vec<Vec<Span>>,
    by_loan: u64,
}

impl Log {
    fn read(text: &str) -> Self {
        let keys: Vec<&str> = limits().iter().map(|(key, ..)| *key).collect();
        let mut log = Self { admitted: vec![Vec::new(); keys.len()], by_loan: 0 };
        for line in text.lines() {
            let (key, rest) = line.split_once(": admitted ").expect(line);
            let mut words = rest.split(' ');
            let mut number = || words.next().unwrap().parse::<u64>().unwrap();
            let (from_us, to_us) = (number() - CLOCK_ERROR_US, number() + CLOCK_ERROR_US);
            let span = Span { from_us, to_us, tokens: number() };
            let at = keys.iter().position(|known| *known == key).unwrap();
            log.admitted[at].push(span);
            log.by_loan += u64::from(rest.ends_with("loan"));
        }
        log
    }

    fn len(&self) -> u64 {
        self.admitted.iter().map(|spans| spans.len() as u64).sum()
    }

    /// Panics if more was admitted, of spans that are wholly within `within_us`, than `policy_of` says.
    fn judge(&self, when: &str, within_us: std::ops::Range<u64>, more: fn(Policy) -> Policy) {
        for ((key, policy, _), spans) in limits().into_iter().zip(&self.admitted) {
            let is_within =
                |span: &&Span| within_us.start <= span.from_us && span.to_us <= within_us.end;
            let admitted: Vec<Span> = spans.iter().filter(is_within).copied().collect();
            let log = AdmissionLog { admitted, questions_us: Vec::new() };
            let policy = more(policy);
            log.at_most(&policy, key.as_bytes()).unwrap_or_else(|error| {
                panic!("{key}, {when}: {error}");
            });
        }
    }
}

/// Twice the burst, or twice the limit: what a store that loses its data admits at most.
fn twice(policy: Policy) -> Policy {
    match policy.algorithm().name() {
        "token_bucket" => {
            let burst = 2 * policy.capacity();
            policy.with_burst(burst).unwrap()
        }
        "fixed_window" => Policy::fixed_window("1400/s").unwrap(),
        _ => Policy::sliding_window("1400/s").unwrap(),
    }
}

#[expect(clippy::disallowed_methods, reason = "the members are other processes, in real time")]
fn let_run(duration: Duration) {
    thread::sleep(duration);
}

/// Kills one member, stops another for longer than a term, and lets all run for `turn` before and after each.
fn trouble(fleet: &mut Fleet, turn: Duration) {
    let_run(turn);
    fleet.replace(0);
    let_run(turn);
    fleet.signal(0, Signal::STOP);
    let_run(2 * TERM_MAX);
    fleet.signal(0, Signal::CONT);
    let_run(turn);
}

fn over_one_redis(name: &str, turn: Duration) {
    let mut redis = RedisProcess::start();
    let mut fleet = Fleet::start(name, format!("server {}", redis.url()));
    trouble(&mut fleet, turn);
    let lost_at_us = fleet.clock.now_us();
    redis.kill();
    redis.restart();
    let back_at_us = fleet.clock.now_us();
    trouble(&mut fleet, turn);
    let log = fleet.finish();
    println!("{} admitted, {} by loans", log.len(), log.by_loan);
    assert!(log.by_loan * 5 > log.len(), "{} of {} by loans", log.by_loan, log.len());
    log.judge("before Redis lost its data", 0..lost_at_us, |policy| policy);
    // What was lent before is spent by then. A window that began before may have been counted in part.
    let settled_us = back_at_us + TERM_MAX.as_micros() as u64;
    let settled_us = settled_us.next_multiple_of(1_000_000);
    log.judge("after Redis lost its data", settled_us..u64::MAX, |policy| policy);
    log.judge("across the loss", 0..u64::MAX, twice);
}

#[test]
fn four_processes_that_borrow_never_exceed_the_limits() {
    over_one_redis("one", Duration::from_millis(1_400));
}

#[test]
#[ignore = "long: minutes over one Redis, and over a cluster whose counters move and that loses its masters"]
fn four_processes_that_borrow_never_exceed_the_limits_for_longer() {
    over_one_redis("long", Duration::from_secs(7));
    let mut cluster = RedisCluster::start();
    let mut fleet = Fleet::start("cluster", format!("cluster {}", cluster.urls().join(" ")));
    trouble(&mut fleet, Duration::from_secs(7));
    // All counters with their cuts go to other masters, while they are lent from.
    let moved: usize = (0..6)
        .map(|_| {
            let_run(Duration::from_millis(900));
            cluster.move_all_keys()
        })
        .sum();
    println!("{moved} counters have moved");
    assert!(moved > limits().len(), "only {moved} counters have moved");
    trouble(&mut fleet, Duration::from_secs(3));
    let failed_at_us = fleet.clock.now_us();
    for master in cluster.masters() {
        cluster.kill_master_of(*master.slots[0].start());
        let_run(Duration::from_secs(15));
    }
    trouble(&mut fleet, Duration::from_secs(7));
    let log = fleet.finish();
    println!("{} admitted, {} by loans", log.len(), log.by_loan);
    log.judge("before the failover", 0..failed_at_us, |policy| policy);
    log.judge("across the failover", 0..u64::MAX, twice);
}
