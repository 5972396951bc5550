//! The one server of a run, on a core of its own.

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use redis::Connection;
use redis::aio::MultiplexedConnection;
use tollbar_testkit::redis::process::RedisProcess;

/// The core of the server, and that of whoever asks it.
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;

pub(crate) struct RedisServer {
    process: RedisProcess,
    client: Connection,
}

impl RedisServer {
    pub(crate) fn start() -> Result<Self, redis::RedisError> {
        // A program starts on the core of the thread that starts it.
        pin(SERVER_CORE);
        let process = RedisProcess::start();
        let client = redis::Client::open(process.url())?.get_connection()?;
        Ok(Self { process, client })
    }

    pub(crate) fn url(&self) -> String {
        self.process.url()
    }

    pub(crate) fn port(&self) -> u16 {
        self.process.port()
    }

    /// A connection of one's own, which does not wait for one answer before it asks for the next.
    pub(crate) async fn connection(&self) -> Result<MultiplexedConnection, redis::RedisError> {
        redis::Client::open(self.url())?.get_multiplexed_async_connection().await
    }

    /// The name of `script` on the server.
    pub(crate) fn load(&mut self, script: &str) -> Result<String, redis::RedisError> {
        redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut self.client)
    }

    /// Seconds of processor time that the server's main thread has used.
    pub(crate) fn cpu_s(&mut self) -> f64 {
        let info = self.info("cpu");
        let of = |name: &str| -> f64 { number(&info, name).unwrap_or(0.0) };
        of("used_cpu_user_main_thread:") + of("used_cpu_sys_main_thread:")
    }

    /// How often `command` was called.
    pub(crate) fn calls_of(&mut self, command: &str) -> f64 {
        number(&self.info("commandstats"), &format!("cmdstat_{command}:calls=")).unwrap_or(0.0)
    }

    fn info(&mut self, section: &str) -> String {
        redis::cmd("INFO").arg(section).query(&mut self.client).unwrap_or_default()
    }
}

/// Seconds of processor time that this thread has used: who asks does so on one.
pub(crate) fn client_cpu_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    // On the processor, waiting for it (in nanoseconds), and how often.
    let ns: f64 = text.split(' ').next()?.parse().ok()?;
    Some(ns / 1e9)
}

fn number(info: &str, name: &str) -> Option<f64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name))?;
    line.split(',').next()?.trim().parse().ok()
}

/// Looked at once, before this thread is bound to one of them.
static CORE_COUNT: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));

/// Keeps this thread, and the programs it starts from now on, away from the server.
pub(crate) fn pin_client() {
    pin(CLIENT_CORE);
}

fn pin(core: usize) {
    if *CORE_COUNT > CLIENT_CORE {
        core_affinity::set_for_current(core_affinity::CoreId { id: core });
    }
}
