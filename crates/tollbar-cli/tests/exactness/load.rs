//! Clients that ask as fast as they can, each in a thread of its own, and the judgement over what they got.

use std::fs;
use std::process::{Command, Stdio};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tollbar_testkit::client_log::{ClientClock, ClientLog};

use crate::common::{Daemon, Scratch, serve};
use crate::limits::{Limit, rules};

/// A connection to the daemon.
pub(crate) trait Client {
    /// Asks `count` times for a token of `limit` and returns how often that was allowed. All requests are
    /// sent before the first reply is awaited.
    fn ask(&mut self, limit: &Limit, count: usize) -> usize;
}

/// How the daemon is asked.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// For how long each limit is asked for.
    pub(crate) duration: Duration,
    pub(crate) connections: usize,
    /// How many requests are sent before the first reply is awaited.
    pub(crate) pipeline: usize,
}

/// How often the rules change in a test of that.
const RELOADS: usize = 12;

/// One after the other: each wants the machine for itself.
static TURN: Mutex<()> = Mutex::new(());

/// Starts a daemon with two worker threads and the rules of `limits`. For one limit after the other, several
/// connections ask as fast as they can. Panics unless all they got together is within the bounds of each limit.
/// Returns for how long the lower bound of each could be checked.
pub(crate) fn judge<C: Client>(
    name: &str,
    flags: &[&str],
    limits: &[Limit],
    load: Load,
    connect: impl Fn(&Daemon) -> C + Sync,
) -> Vec<Duration> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new(&format!("exactness-{name}"));
    let file = scratch.file("rules.yaml", &rules(limits));
    let daemon = Daemon::spawn(command(&file, flags));
    let clock = ClientClock::start();
    let judged: Vec<_> = limits
        .iter()
        .map(|limit| {
            let log = thread::scope(|scope| {
                let start = || scope.spawn(|| client_log(connect(&daemon), clock, limit, load));
                let clients: Vec<_> = (0..load.connections).map(|_| start()).collect();
                let mut all = ClientLog::default();
                for client in clients {
                    all.merge(client.join().unwrap());
                }
                all
            });
            verdict(limit, &log)
        })
        .collect();
    assert_both_workers_were_busy(&daemon);
    assert_eq!(daemon.stop(), 0);
    let failures: Vec<_> = judged.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failures.is_empty(), "{name}: {failures:#?}");
    judged.into_iter().flatten().collect()
}

/// A daemon with two worker threads and the rules of `file`.
fn command(file: &str, flags: &[&str]) -> Command {
    let mut command = serve(&[&["--rules", file, "--log-denials", "0"], flags].concat());
    command.env("TOKIO_WORKER_THREADS", "2");
    command
}

/// Four connections ask for `limit` under load while the rules change to and fro between those of `limit` and
/// those of `other`. Panics if they get more than `limit` allows.
pub(crate) fn judge_reloads<C: Client + Send>(
    limit: &Limit,
    other: &Limit,
    connect: impl Fn(&Daemon) -> C,
) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new("exactness-reloads");
    let texts = [other, limit].map(|limit| rules(slice::from_ref(limit)));
    let file = scratch.file("rules.yaml", &texts[1]);
    let mut command = command(&file, &["--no-watch"]);
    command.stderr(Stdio::piped());
    let mut daemon = Daemon::spawn(command);
    let clients: Vec<C> = (0..4).map(|_| connect(&daemon)).collect();
    let (clock, is_over) = (ClientClock::start(), AtomicBool::new(false));
    let log = thread::scope(|scope| {
        let is_over = &is_over;
        let ask = |mut client: C| {
            scope.spawn(move || {
                let mut log = ClientLog::default();
                while !is_over.load(Ordering::Relaxed) {
                    ask_once(&mut client, clock, limit, 32, &mut log);
                }
                log
            })
        };
        let clients: Vec<_> = clients.into_iter().map(ask).collect();
        for text in texts.iter().cycle().take(RELOADS) {
            scratch.file("rules.yaml", text);
            daemon.signal("HUP");
            daemon.logged("rules reloaded");
        }
        is_over.store(true, Ordering::Relaxed);
        let mut all = ClientLog::default();
        for client in clients {
            all.merge(client.join().unwrap());
        }
        all
    });
    drop(daemon);
    println!("{} admitted over {RELOADS} reloads", log.admitted());
    log.at_most(&limit.policy, b"").unwrap();
}

/// What one client got.
fn client_log(mut client: impl Client, clock: ClientClock, limit: &Limit, load: Load) -> ClientLog {
    let end_us = clock.now_us() + load.duration.as_micros() as u64;
    let mut log = ClientLog::default();
    while clock.now_us() < end_us {
        ask_once(&mut client, clock, limit, load.pipeline, &mut log);
    }
    log
}

fn ask_once(
    client: &mut impl Client,
    clock: ClientClock,
    limit: &Limit,
    count: usize,
    log: &mut ClientLog,
) {
    let sent_us = clock.now_us();
    let allowed = client.ask(limit, count);
    log.record(sent_us, clock.now_us(), allowed as u64, (count - allowed) as u64);
}

/// For how long the lower bound could be checked; or what is wrong.
fn verdict(limit: &Limit, log: &ClientLog) -> Result<Duration, String> {
    let (name, admitted) = (limit.name, log.admitted());
    let summary = log.judge(&limit.policy, b"").map_err(|error| {
        format!("{name} ({}): {error}; {admitted} were admitted in all", limit.policy.limit())
    })?;
    let saturated = Duration::from_micros(summary.saturated_us);
    println!("{name}: {admitted} admitted, lower bound checked for {saturated:?}");
    Ok(saturated)
}

/// Looks at the processor time of each thread: a daemon that served all connections on one thread would prove
/// nothing.
fn assert_both_workers_were_busy(daemon: &Daemon) {
    let tasks = format!("/proc/{}/task", daemon.process.id());
    let mut ticks: Vec<u64> = fs::read_dir(tasks)
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("stat")).ok())
        .map(|stat| {
            // The name, in brackets, may have spaces in it; user and system time are the 14th and 15th field.
            let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
            fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
        })
        .collect();
    ticks.sort_unstable_by(|a, b| b.cmp(a));
    println!("processor time of the daemon's threads, in ticks: {ticks:?}");
    assert!(ticks[1] * 5 >= ticks[0], "one worker did nearly everything: {ticks:?}");
}
