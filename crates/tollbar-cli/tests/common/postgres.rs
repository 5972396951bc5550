//! A real PostgreSQL for tests, in a directory of its own, reached by a socket in it.
//!
//! It does not run as root, so that a test that does lends it another user.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// `nobody`, who is nobody on every Debian.
const NOBODY: u32 = 65_534;

/// How often it is started again while the one before is still about to be gone.
const STARTS_MAX: usize = 50;

/// A server of the test's own, which it can end and start again.
pub(crate) struct Postgres {
    child: Child,
    directory: PathBuf,
}

impl Postgres {
    pub(crate) fn start() -> Self {
        let directory = new_directory();
        let child = spawn(server(&directory)).expect("PostgreSQL starts");
        Self { child, directory }
    }

    /// One that also listens on a free port of loopback, with a certificate and its key, in PEM; and
    /// the port.
    pub(crate) fn start_tls(cert: &str, key: &str) -> (Self, u16) {
        let directory = new_directory();
        for (name, pem) in [("cert.pem", cert), ("key.pem", key)] {
            let path = directory.join(name);
            fs::write(&path, pem).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            if is_root() {
                chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        let started = (0..STARTS_MAX).find_map(|_| {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut server = server(&directory);
            let file = |name: &str| directory.join(name).display().to_string();
            for setting in [
                "listen_addresses=127.0.0.1".to_owned(),
                format!("port={port}"),
                "ssl=on".to_owned(),
                format!("ssl_cert_file={}", file("cert.pem")),
                format!("ssl_key_file={}", file("key.pem")),
            ] {
                server.args(["-c", &setting]);
            }
            Some((spawn(server)?, port))
        });
        let (child, port) = started.expect("PostgreSQL starts with TLS");
        (Self { child, directory }, port)
    }

    /// The URL of a new and empty database.
    pub(crate) fn database(&self) -> String {
        create_database(&self.directory)
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        // At once, and with what it shares with its children.
        signal("QUIT", self.child.id());
        self.child.wait().unwrap();
    }

    /// Freezes all its processes: connections are accepted, and nothing is answered.
    pub(crate) fn freeze(&self) {
        // Its children last: until it is frozen itself it may start others.
        signal("STOP", self.child.id());
        for id in self.children() {
            signal("STOP", id);
        }
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        for id in self.children().into_iter().chain([self.child.id()]) {
            signal("CONT", id);
        }
    }

    fn children(&self) -> Vec<u32> {
        let parent = format!("PPid:\t{}\n", self.child.id());
        let is_child = |id: &u32| {
            fs::read_to_string(format!("/proc/{id}/status"))
                .is_ok_and(|status| status.contains(&parent))
        };
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|process| process.file_name().to_str()?.parse().ok())
            .filter(is_child)
            .collect()
    }

    /// Starts it again, with what it had.
    pub(crate) fn restart(&mut self) {
        let started = (0..STARTS_MAX).find_map(|_| spawn(server(&self.directory)));
        self.child = started.expect("PostgreSQL starts again");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal("QUIT", self.child.id());
            self.thaw();
        }
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The URL of a new and empty database on the server that all tests of this process share. It goes
/// with the process.
pub(crate) fn shared_database() -> String {
    static SHARED: OnceLock<(PathBuf, Child)> = OnceLock::new();
    let (directory, _) = SHARED.get_or_init(|| {
        let directory = new_directory();
        let server = server(&directory);
        // It ends when nobody holds the other end of its input, which is when this process ends.
        let script = "\"$@\" </dev/null & cat >/dev/null; kill -QUIT $!; wait $!; rm -rf \"$DATA\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(server.get_program()).args(server.get_args());
        shell.env("DATA", &directory).stdin(Stdio::piped());
        (directory, spawn(shell).expect("PostgreSQL starts"))
    });
    create_database(directory)
}

/// What somebody does by hand.
pub(crate) fn execute(url: &str, statement: &str) {
    try_execute(url, statement).unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the rows that a statement yields, a line each; or what the database has against it.
pub(crate) fn try_execute(url: &str, statement: &str) -> Result<String, String> {
    let mut psql = Command::new(program("psql"));
    psql.args(["-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", url, "-c", statement]);
    let output = psql.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn create_database(directory: &Path) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let mut create = Command::new(program("createdb"));
    create.arg("-h").arg(directory).args(["-U", "tollbar", &name]);
    assert!(create.status().unwrap().success());
    format!("postgres:///{name}?host={}&user=tollbar", directory.display())
}

fn new_directory() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let directory =
        std::env::temp_dir().join(format!("tollbar-postgres-{}-{count}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    if is_root() {
        chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut init = command("initdb");
    // Ordered as people read, which is not how bytes are: what has to be by bytes must say so.
    init.arg("-D").arg(directory.join("data")).args(["-U", "tollbar", "-A", "trust", "--no-sync"]);
    init.args(["-E", "UTF8", "--locale-provider=icu", "--icu-locale=en-US", "--locale=C"]);
    let output = init.output().expect("initdb of PostgreSQL is there: install `postgresql`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    directory
}

fn server(directory: &Path) -> Command {
    let mut server = command("postgres");
    server.arg("-D").arg(directory.join("data")).arg("-k").arg(directory);
    let settings = ["listen_addresses=", "fsync=off", "max_connections=60", "log_min_messages=log"];
    for setting in settings {
        server.args(["-c", setting]);
    }
    server
}

/// Started, and ready to be asked.
fn spawn(mut command: Command) -> Option<Child> {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while log.read_line(&mut line).is_ok_and(|length| length > 0) {
        if line.contains("ready to accept connections") {
            // A pipe that nobody reads holds 64 KiB, and then whoever writes.
            std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
            return Some(child);
        }
        line.clear();
    }
    child.wait().unwrap();
    None
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn command(name: &str) -> Command {
    if !is_root() {
        return Command::new(program(name));
    }
    let mut command = Command::new("setpriv");
    let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
    command.args(ids).arg("--clear-groups").arg(program(name));
    // Where it is, `nobody` may not be.
    command.current_dir("/");
    command
}

/// Where Debian puts the newest, or wherever it is found.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .map(|version| version.path().join("bin").join(name))
        .filter(|path| path.exists())
        .max();
    newest.unwrap_or_else(|| name.into())
}

fn signal(name: &str, id: u32) {
    let _ = Command::new("kill").args(["-s", name, &id.to_string()]).status();
}
