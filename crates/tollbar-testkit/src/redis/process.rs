//! A Redis server of the test's own: on a port that was free, in a directory that is removed, ended
//! by its process handle and by nothing else.
//!
//! Asks the server by `redis-cli` alone. A test that asks much has a client of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::redis::launch::Launch;

/// How often another port is tried, where somebody else took the free one first.
const PORTS_TRIED_MAX: usize = 10;

/// Among the options, a port that is free when the server is started.
pub(crate) const FREE_PORT: &str = "{free port}";

/// What a server writes when it can be asked, and what a sentinel does.
const READY: [&str; 2] = ["Ready to accept connections", "+monitor master"];

/// The file that a sentinel keeps its state in.
const SENTINEL_FILE: &str = "sentinel.conf";

/// A running server, or one that was [killed](Self::kill) and can be [restarted](Self::restart).
#[derive(Debug)]
pub struct RedisProcess {
    child: Child,
    directory: PathBuf,
    port: u16,
    launch: Launch,
}

impl RedisProcess {
    /// An empty server that keeps nothing on disk.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with options as on its command line: `&["--maxmemory", "2mb"]`.
    ///
    /// # Panics
    /// If there is no `redis-server`, or it does not start.
    #[must_use]
    pub fn start_with(options: &[&str]) -> Self {
        Self::launch(Launch::default().with(options))
    }

    /// The same of any program, with or without TLS.
    ///
    /// # Panics
    /// If there is no such program, or it does not start.
    #[must_use]
    pub fn launch(launch: Launch) -> Self {
        Self::start_in(new_directory(), launch)
    }

    #[expect(clippy::needless_pass_by_value, reason = "they are given away, with ports filled in")]
    fn start_in(directory: PathBuf, launch: Launch) -> Self {
        for _ in 0..PORTS_TRIED_MAX {
            let port = free_port();
            // Another one every time: somebody else may have taken the last.
            let fill = |option: &String| match option.as_str() {
                FREE_PORT => free_port().to_string(),
                option => option.to_owned(),
            };
            let options: Vec<String> = launch.options.iter().map(fill).collect();
            let launch = Launch { options, ..launch.clone() };
            if let Some(child) = spawn(&directory, port, &launch) {
                return Self { child, directory, port, launch };
            }
        }
        panic!("redis-server did not start; its output is above");
    }

    /// A sentinel that watches over `master` by the name `name`, and alone decides when it is gone:
    /// after half a second of silence. It is the same program, and as secure.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_sentinel(master: &Self, name: &str) -> Self {
        let directory = new_directory();
        let text = format!(
            "sentinel monitor {name} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {name} 500\n\
             sentinel failover-timeout {name} 2000\n",
            master.port
        );
        fs::write(directory.join(SENTINEL_FILE), text).expect("its directory can be written to");
        let launch = Launch { options: Vec::new(), ..master.launch.clone() };
        Self::start_in(directory, launch.with(&["--sentinel"]))
    }

    /// The port it listens on, at 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.launch.scheme(), self.port)
    }

    /// The path of its unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket_in(&self.directory)
    }

    /// The directory it runs in.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What it answers, as `redis-cli` prints it.
    ///
    /// # Panics
    /// If there is no `redis-cli`.
    #[expect(clippy::must_use_candidate, reason = "most are asked to do something")]
    pub fn ask(&self, words: &[&str]) -> String {
        self.launch.ask(self.port, words)
    }

    /// Ends it at once, as `kill -9` does.
    ///
    /// # Panics
    /// If it cannot be ended.
    pub fn kill(&mut self) {
        // One that has ended by itself is as good.
        let _ = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }

    /// Ends it if it runs, and starts it again at the same port, empty.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let child = spawn(&self.directory, self.port, &self.launch);
        self.child = child.expect("redis-server starts again at its port");
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        self.kill();
        // What cannot be removed is in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn new_directory() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tollbar-redis-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    fs::create_dir_all(&directory).expect("the directory for temporary files can be written to");
    directory
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

/// A port that is free now. Somebody else may take it before the server does.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    listener.local_addr().expect("a bound socket has an address").port()
}

/// The server, once it can be asked; `None` where it has ended without that.
fn spawn(directory: &Path, port: u16, launch: &Launch) -> Option<Child> {
    let mut command = Command::new(launch.program.path());
    if launch.options.iter().any(|option| option == "--sentinel") {
        command.arg(SENTINEL_FILE);
    } else {
        command
            .args(["--save", "", "--appendonly", "no"])
            .args(launch.program.own_options())
            .arg("--unixsocket")
            .arg(socket_in(directory));
    }
    let mut child = command
        .args(launch.port_options(port))
        .args(["--bind", "127.0.0.1"])
        .args(&launch.options)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            let program = launch.program.path();
            panic!(
                "{} cannot be started ({error}): `cargo xtask test` installs it",
                program.display()
            )
        });
    let mut lines = BufReader::new(child.stdout.take().expect("it was piped")).lines();
    let mut said = Vec::new();
    for line in lines.by_ref() {
        let line = line.unwrap_or_default();
        if READY.iter().any(|ready| line.contains(ready)) {
            // What it says from now on is read and dropped: a full pipe would stop the server.
            thread::spawn(move || lines.for_each(drop));
            return Some(child);
        }
        said.push(line);
    }
    println!("{}", said.join("\n"));
    child.wait().expect("a child can be waited for");
    None
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn ping(server: &RedisProcess) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
        stream.write_all(b"PING\r\nQUIT\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    #[test]
    fn a_server_answers_until_it_is_killed_and_again_after_a_restart() {
        let mut server = RedisProcess::start();
        assert_eq!(ping(&server), "+PONG\r\n+OK\r\n");
        server.kill();
        assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
        server.restart();
        assert_eq!(ping(&server), "+PONG\r\n+OK\r\n");
        let directory = server.directory().to_owned();
        drop(server);
        assert!(!directory.exists());
    }
}
