//! The real binary, on free ports, for every file of tests beside this directory.
//!
//! Nothing here waits for time to pass: a line that the daemon prints says that it is so far.

#![allow(dead_code, reason = "each file of tests uses a part of it")]

pub(crate) mod authority;
pub(crate) mod http;
pub(crate) mod postgres;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

pub(crate) use http::status;

/// A directory of its own for each test, gone at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollbar-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The path of a file that may not be there.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file; its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes a file that nobody else can read, as files of tokens and keys should be; its path.
    pub(crate) fn secret(&self, name: &str, text: &str) -> String {
        let path = self.file(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `tollbar serve` as it runs.
pub(crate) struct Daemon {
    pub(crate) process: Child,
    lines: OutputLines,
    log: Option<OutputLines>,
    /// Where it listens, by protocol: `http`, `grpc`, `resp`.
    addresses: BTreeMap<String, String>,
    /// Everything it said before it was ready.
    pub(crate) greeting: Vec<String>,
}

/// `tollbar serve` with these flags. All listeners take a free port unless a flag says otherwise, and
/// nothing of the caller's own environment speaks to it.
pub(crate) fn serve(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollbar"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("TOLLBAR_") || name == "NOTIFY_SOCKET")
        {
            command.env_remove(name);
        }
    }
    // By the environment, so that a test can say something else by a flag.
    for listener in ["TOLLBAR_LISTEN", "TOLLBAR_GRPC", "TOLLBAR_RESP"] {
        command.env(listener, "127.0.0.1:0");
    }
    // What has no effect is an error.
    if args.contains(&"--database") {
        command.env("TOLLBAR_ADMIN", "127.0.0.1:0");
    }
    if !args.contains(&"--store") {
        command.env("TOLLBAR_MAX_KEYS", "1000");
    }
    command.arg("serve").args(args).stdin(Stdio::null());
    command
}

impl Daemon {
    /// Starts it, and returns when it listens.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::spawn(serve(args))
    }

    /// As [`start`](Self::start), with its log to be read by [`logged`](Self::logged).
    pub(crate) fn start_logged(args: &[&str]) -> Self {
        let mut command = serve(args);
        command.stderr(Stdio::piped());
        Self::spawn(command)
    }

    /// As [`start`](Self::start), for a command that was changed further.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = OutputLines::read(process.stdout.take().unwrap());
        let log = process.stderr.take().map(OutputLines::read);
        let addresses = BTreeMap::new();
        let mut daemon = Self { process, lines, log, addresses, greeting: Vec::new() };
        loop {
            let line = daemon.line();
            if let Some((protocol, address)) =
                line.strip_prefix("listening on ").and_then(|listener| listener.split_once("://"))
            {
                daemon.addresses.insert(protocol.to_owned(), address.to_owned());
            }
            let is_last = line.starts_with("try: ") || line == "ready";
            daemon.greeting.push(line);
            if is_last {
                return daemon;
            }
        }
    }

    /// Where it speaks `protocol`: `http`, `grpc`, `resp`; with TLS `https`, `grpcs`, `resps`.
    pub(crate) fn address(&self, protocol: &str) -> &str {
        let address = self.addresses.get(protocol);
        address.unwrap_or_else(|| panic!("no {protocol} in {:?}", self.greeting))
    }

    /// Every protocol it speaks, and where.
    pub(crate) fn addresses(&self) -> &BTreeMap<String, String> {
        &self.addresses
    }

    /// The next line of its standard output.
    pub(crate) fn line(&mut self) -> String {
        self.lines.wait_for_next().expect("the daemon has ended")
    }

    /// The next line of its log that has `part` in it.
    pub(crate) fn logged(&mut self, part: &str) -> String {
        let log = self.log.as_mut().expect("started by `start_logged`");
        loop {
            let line = log.wait_for_next().unwrap_or_else(|| panic!("it ended without `{part}`"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// The rest of its log, once it has ended.
    pub(crate) fn rest_of_log(&mut self) -> String {
        let log = self.log.as_mut().expect("started by `start_logged`");
        let mut rest = String::new();
        while let Some(line) = log.wait_for_next() {
            rest.push_str(&line);
            rest.push('\n');
        }
        rest
    }

    /// What it has in memory.
    pub(crate) fn rss_kib(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        memory.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Tells it to stop; its exit code.
    pub(crate) fn stop(mut self) -> i32 {
        self.signal("TERM");
        self.wait()
    }

    /// Its exit code, once it has ended.
    pub(crate) fn wait(&mut self) -> i32 {
        self.process.wait().unwrap().code().unwrap()
    }

    /// A connection that speaks HTTP.
    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address("http")).unwrap()
    }

    /// The whole response to a request over HTTP that closes its connection.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        self.send("POST", path, "content-type: application/json\r\n", body)
    }

    /// The whole response to a GET with these lines of headers.
    pub(crate) fn get_with(&self, path: &str, lines: &str) -> String {
        self.send("GET", path, lines, "")
    }

    /// The whole response to any request.
    pub(crate) fn send(&self, method: &str, path: &str, lines: &str, body: &str) -> String {
        http::exchange(self.connect(), http::request_with(method, path, lines, body))
    }

    /// The status of a check of this user over HTTP.
    pub(crate) fn check(&self, user: &str) -> u16 {
        status(&self.post("/v1/check", &format!(r#"{{"attributes":{{"user":"{user}"}}}}"#)))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // For a test that has failed: who was stopped is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The lines that a process prints, read as they come. A pipe that nobody reads holds 64 KiB and then blocks the
/// process: two backtraces are enough.
///
/// The lock is never contended: it lets threads of a test share a daemon.
struct OutputLines(Mutex<Receiver<String>>);

impl OutputLines {
    /// The longest time between two lines that a test waits for.
    const SILENCE_MAX: Duration = Duration::from_mins(2);

    fn read(output: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self(Mutex::new(receiver))
    }

    /// Returns the next line, or `None` once the process has closed its end.
    fn wait_for_next(&mut self) -> Option<String> {
        match self.0.get_mut().unwrap().recv_timeout(Self::SILENCE_MAX) {
            Ok(line) => Some(line.trim_end().to_owned()),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line for {:?}", Self::SILENCE_MAX),
        }
    }
}

/// A request over HTTP that closes its connection.
pub(crate) fn request(path: &str, body: &str) -> String {
    String::from_utf8(http::request_with("POST", path, "", body)).unwrap()
}

/// A check on a connection that is kept.
pub(crate) const KEPT: &str =
    "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";

/// One response with its body; `None` where the connection ends without one.
pub(crate) fn response(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        let length = stream.read(&mut buffer).unwrap_or_default();
        if length == 0 {
            assert!(bytes.is_empty(), "half a response: {}", String::from_utf8_lossy(&bytes));
            return None;
        }
        bytes.extend(&buffer[..length]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let announced =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() >= announced.parse().unwrap() {
            return Some(text.into_owned());
        }
    }
}
