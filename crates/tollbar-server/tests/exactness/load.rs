//! Clients that ask as fast as they can, each in a thread of its own, and the judgement over what they got.

use std::fs;
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
    let mut command = serve(&[&["--rules", &file, "--log-denials", "0"], flags].concat());
    command.env("TOKIO_WORKER_THREADS", "2");
    let daemon = Daemon::spawn(command);
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
    let failures: Vec<_> = judged.iter().filter_map(|it| it.as_ref().err()).collect();
    assert!(failures.is_empty(), "{name}: {failures:#?}");
    judged.into_iter().flatten().collect()
}

/// What one client got.
fn client_log(mut client: impl Client, clock: ClientClock, limit: &Limit, load: Load) -> ClientLog {
    let end_us = clock.now_us() + load.duration.as_micros() as u64;
    let mut log = ClientLog::default();
    loop {
        let sent_us = clock.now_us();
        let allowed = client.ask(limit, load.pipeline);
        let received_us = clock.now_us();
        log.record(sent_us, received_us, allowed as u64, (load.pipeline - allowed) as u64);
        if received_us > end_us {
            return log;
        }
    }
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
            fields.skip(11).take(2).map(|it| it.parse::<u64>().unwrap()).sum()
        })
        .collect();
    ticks.sort_unstable_by(|a, b| b.cmp(a));
    println!("processor time of the daemon's threads, in ticks: {ticks:?}");
    assert!(ticks[1] * 5 >= ticks[0], "one worker did nearly everything: {ticks:?}");
}
