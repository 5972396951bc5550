//! The one server of a run, on a core of its own.

use redis::Connection;
use tollbar_testkit::redis_process::RedisProcess;

/// The core of the server, and that of whoever asks it.
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;

pub(super) struct Server {
    process: RedisProcess,
    client: Connection,
}

impl Server {
    pub(super) fn start() -> Result<Self, redis::RedisError> {
        let core = SERVER_CORE.to_string();
        let options: &[&str] = if has_two_cores() { &["--server-cpulist", &core] } else { &[] };
        let process = RedisProcess::start_with(options);
        let client = redis::Client::open(process.url())?.get_connection()?;
        Ok(Self { process, client })
    }

    pub(super) fn url(&self) -> String {
        self.process.url()
    }

    pub(super) fn port(&self) -> u16 {
        self.process.port()
    }

    /// The name of `script` on the server.
    pub(super) fn load(&mut self, script: &str) -> Result<String, redis::RedisError> {
        redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut self.client)
    }

    /// Seconds of processor time that the server's main thread has used.
    pub(super) fn cpu_s(&mut self) -> f64 {
        let info = self.info("cpu");
        let of = |name: &str| -> f64 { number(&info, name).unwrap_or(0.0) };
        of("used_cpu_user_main_thread:") + of("used_cpu_sys_main_thread:")
    }

    /// How often `command` was called.
    pub(super) fn calls_of(&mut self, command: &str) -> f64 {
        number(&self.info("commandstats"), &format!("cmdstat_{command}:calls=")).unwrap_or(0.0)
    }

    fn info(&mut self, section: &str) -> String {
        redis::cmd("INFO").arg(section).query(&mut self.client).unwrap_or_default()
    }
}

fn number(info: &str, name: &str) -> Option<f64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name))?;
    line.split(',').next()?.trim().parse().ok()
}

fn has_two_cores() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() > CLIENT_CORE)
}

/// Keeps this thread, and the programs it starts, away from the server.
pub(super) fn pin_client() {
    if has_two_cores() {
        core_affinity::set_for_current(core_affinity::CoreId { id: CLIENT_CORE });
    }
}
