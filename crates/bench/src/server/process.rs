//! Servers as processes, on a core of their own, and what they use of it.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use tollbar_bench::timer::Stopwatch;

/// The core of the servers, and that of whoever asks them.
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;

/// For a server to listen.
const START_TIME_MAX: Duration = Duration::from_secs(10);

/// Of `/proc`: a hundred a second, whatever the kernel.
const TICKS_PER_S: f64 = 100.0;

/// A server that ends with this.
#[derive(Debug)]
pub(super) struct ServerProcess {
    process: Child,
}

impl ServerProcess {
    /// Starts `command`, and returns when it takes connections at `port`.
    pub(super) fn start(command: &mut Command, port: u16) -> io::Result<Self> {
        pin(SERVER_CORE);
        // A program starts on the core of the thread that starts it.
        let server = Self::start_unpinned(command, port);
        pin(CLIENT_CORE);
        server
    }

    /// The same, on whichever cores this thread may use.
    pub(super) fn start_unpinned(command: &mut Command, port: u16) -> io::Result<Self> {
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { process: process.spawn()? };
        let watch = Stopwatch::start();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = server.process.try_wait()? {
                return Err(io::Error::other(format!("it ended at once: {status}")));
            }
            if watch.elapsed() > START_TIME_MAX {
                return Err(io::Error::other("it does not listen"));
            }
            std::thread::yield_now();
        }
        Ok(server)
    }

    /// Seconds of processor time that all its threads have used.
    pub(super) fn cpu_s(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).ok()?;
        // The name may have spaces in it; behind it, user and system time are the 12th and 13th.
        let (_, behind) = stat.rsplit_once(") ")?;
        let mut ticks = behind.split(' ').skip(11).map(str::parse::<f64>);
        Some((ticks.next()?.ok()? + ticks.next()?.ok()?) / TICKS_PER_S)
    }

    /// Megabytes of memory in use.
    pub(super) fn rss_mb(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).ok()?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: f64 = kib.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1_024.0 / 1e6)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port that nobody has at this moment.
pub(super) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Looked at once, before this thread is bound to one of them.
static CORE_COUNT: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));

fn pin(core: usize) {
    if *CORE_COUNT > CLIENT_CORE {
        core_affinity::set_for_current(core_affinity::CoreId { id: core });
    }
}
