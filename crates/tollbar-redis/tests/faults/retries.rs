//! Processes that send the same request ids at the same time, over a cluster, under limits in different slots: what is
//! admitted stays within every limit, each id is charged once in each slot, and what a killed process has charged
//! comes back.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::support::{Patient, RUNTIME};
use tokio::time::{Instant, sleep};
use tollbar::store::Once;
use tollbar::{Batch, Decision, Entry, Policy, Store};
use tollbar_redis::{FleetSecret, KeyNames, RedisStore};
use tollbar_testkit::client_log::{ClientClock, ClientLog};
use tollbar_testkit::redis::cluster::RedisCluster;

/// What a process is told: the addresses, the first id, and for how long to send, in milliseconds.
const CLUSTER: &str = "TOLLBAR_TEST_RETRIES_CLUSTER";
const FIRST_ID: &str = "TOLLBAR_TEST_RETRIES_FIRST_ID";
const DURATION: &str = "TOLLBAR_TEST_RETRIES_DURATION";

const PROCESSES: usize = 4;
const TASKS: u64 = 2;
/// How often a task sends an id that is denied before it goes on to the next.
const TRIES: usize = 4;
const TTL: Duration = Duration::from_mins(10);
/// Of the limit that is never reached, and counts every charge.
const TOTAL: u64 = 1_000_000;
/// A process that dies leaves what it has begun for so long, and 2 s until others have ended it.
const TIMEOUT: Duration = Duration::from_millis(500);
const RECOVERY_MAX: Duration = Duration::from_secs(5);

/// The limits, each in a slot of its own. The first two fill again, the others count what was charged.
fn limits() -> [(&'static str, Policy); 4] {
    let bucket = Policy::token_bucket("200/s").and_then(|policy| policy.with_burst(20));
    let total = || Policy::fixed_window("1000000/day").unwrap();
    [
        ("bucket", bucket.unwrap()),
        ("log", Policy::sliding_window_log("50/100ms").unwrap()),
        ("total a", total()),
        ("total b", total()),
    ]
}

async fn connect(urls: &str) -> RedisStore {
    let urls: Vec<&str> = urls.split(' ').collect();
    let names = KeyNames::Hashed(FleetSecret::new([7; 32]));
    let builder = RedisStore::cluster_builder(&urls, names).patient().timeout(TIMEOUT);
    builder.connect().await.unwrap()
}

/// Sends one id once. None where the store could not answer.
async fn send(store: &RedisStore, limits: &[(&str, Policy)], id: u64) -> Option<bool> {
    let request_id = id.to_le_bytes();
    let mut entries: Vec<Entry<'_>> =
        limits.iter().map(|(key, policy)| Entry::new(*key, policy)).collect();
    let once = Once::new(&request_id, TTL);
    store.decide(Batch::all_or_none(&mut entries).once(once)).await.ok()?;
    Some(entries.iter().filter_map(Entry::decision).all(|decision: Decision| decision.is_allowed()))
}

/// How much was charged in both slots that count everything.
async fn totals(store: &RedisStore) -> [u64; 2] {
    let [_, _, (a, policy), (b, _)] = limits();
    let mut used = [0; 2];
    for (used, key) in used.iter_mut().zip([a, b]) {
        let left = store.check(key.as_bytes(), &policy, 0).await.unwrap().remaining().unwrap();
        *used = TOTAL - left;
    }
    used
}

/// Not a test, but a process of those below: sends id after id, and prints those that were let through.
#[test]
fn member_that_sends_again() {
    let Ok(urls) = std::env::var(CLUSTER) else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = connect(&urls).await;
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let clock = ClientClock::start();
        let end_us = clock.now_us() + number(DURATION) * 1_000;
        let (limits, first_id) = (limits(), number(FIRST_ID));
        // All tasks of all processes send the same ids in the same order.
        let task = async || {
            for id in first_id.. {
                for _ in 0..TRIES {
                    let sent_us = clock.now_us();
                    let is_allowed = send(&store, &limits, id).await.unwrap_or(false);
                    let received_us = clock.now_us();
                    if is_allowed {
                        println!("\n{id} {sent_us} {received_us}");
                        break;
                    }
                }
                if clock.now_us() > end_us {
                    return;
                }
            }
        };
        let tasks = (0..TASKS).map(|_| task());
        futures_util::future::join_all(tasks).await;
    });
}

fn start(urls: &str, first_id: u64, duration: Duration) -> (Child, BufReader<ChildStdout>) {
    let mut member = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "retries::member_that_sends_again", "--nocapture"])
        .env(CLUSTER, urls)
        .env(FIRST_ID, first_id.to_string())
        .env(DURATION, duration.as_millis().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(member.stdout.take().unwrap());
    let mut line = String::new();
    while line != "ready\n" {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "a process has ended");
    }
    (member, output)
}

fn begin(member: &mut Child) {
    member.stdin.take().unwrap().write_all(b"begin\n").unwrap();
}

/// Who was let through: the id, and from when to when that was under way.
fn admissions(output: &str) -> impl Iterator<Item = (u64, (u64, u64))> + '_ {
    output.lines().filter_map(|line| {
        let mut numbers = line.split(' ').map(str::parse);
        let [id, sent, received] = std::array::from_fn(|_| numbers.next()?.ok());
        Some((id?, (sent?, received?)))
    })
}

#[test]
fn four_processes_that_send_the_same_ids_stay_within_every_limit() {
    let cluster = RedisCluster::start();
    let urls = cluster.urls().join(" ");
    let mut members: Vec<_> =
        (0..PROCESSES).map(|_| start(&urls, 0, Duration::from_secs(3))).collect();
    for (member, _) in &mut members {
        begin(member);
    }
    // An id is charged by the attempt that was let through first, or by one before it that was let through too.
    let mut charged: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut answers = 0;
    for (mut member, mut output) in members {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert!(member.wait().unwrap().success(), "{text}");
        for (id, (sent_us, received_us)) in admissions(&text) {
            let span = charged.entry(id).or_insert((sent_us, received_us));
            *span = (span.0.min(sent_us), span.1.min(received_us));
            answers += 1;
        }
    }
    let mut log = ClientLog::default();
    for (sent_us, received_us) in charged.values() {
        log.record(*sent_us, *received_us, 1, 0);
    }
    for (key, policy) in limits() {
        log.at_most(&policy, key.as_bytes()).unwrap_or_else(|error| panic!("{key}: {error}"));
    }
    let ids = charged.len() as u64;
    println!("result: {ids} ids were let through, {answers} times");
    assert!(ids > 100 && answers > ids, "{ids} ids, {answers} answers");
    RUNTIME.block_on(async {
        let store = connect(&urls).await;
        assert_eq!(totals(&store).await, [ids; 2], "each id is charged once in each slot");
    });
}

/// Killed at any moment, as `kill -9` does: whatever it has charged and not concluded comes back, and what it has
/// concluded is paid.
#[test]
fn what_killed_processes_have_charged_comes_back() {
    const ROUNDS: u64 = 12;
    const IDS_PER_ROUND: u64 = 100_000;
    let cluster = RedisCluster::start();
    let urls = cluster.urls().join(" ");
    let mut sent = Vec::new();
    for round in 0..ROUNDS {
        let first_id = round * IDS_PER_ROUND;
        let mut members = [0, 1].map(|_| start(&urls, first_id, Duration::from_mins(1)));
        for (member, _) in &mut members {
            begin(member);
        }
        // Another moment each time.
        RUNTIME.block_on(async { sleep(Duration::from_millis(60 + round * 17)).await });
        let mut last = first_id;
        for (mut member, mut output) in members {
            member.kill().unwrap();
            member.wait().unwrap();
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            last = admissions(&text).fold(last, |last, (id, _)| last.max(id));
        }
        // One more may have been under way in each task.
        sent.extend(first_id..=last + TASKS + 1);
    }
    RUNTIME.block_on(async {
        let store = connect(&urls).await;
        let started = Instant::now();
        // Nothing else charges, so both slots agree for good once they do and nothing is under way.
        let is_over = || {
            cluster.masters().iter().all(|master| {
                let keys = cluster.ask(master.port, &["KEYS", "*intents"]);
                keys.trim().is_empty()
            })
        };
        let mut waited = false;
        while !is_over() {
            waited = true;
            assert!(started.elapsed() < RECOVERY_MAX, "still under way");
            sleep(Duration::from_millis(20)).await;
        }
        println!("result: all was over after {:?}", started.elapsed());
        assert!(waited, "no process was killed in the middle of a request");
        let [used, beside] = totals(&store).await;
        assert_eq!(used, beside);
        // Those that were concluded are answered without a charge; the others are charged now.
        let (limits, mut concluded) = (limits(), 0);
        for id in &sent {
            let [before, _] = totals(&store).await;
            while send(&store, &limits, *id).await != Some(true) {
                sleep(Duration::from_millis(5)).await;
            }
            concluded += u64::from(totals(&store).await == [before; 2]);
        }
        println!("result: {used} of {} ids were charged", sent.len());
        assert_eq!(used, concluded, "of {} ids", sent.len());
    });
}
