//! What people type and what they see, one command after the other.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{Daemon, Scratch, serve};

pub(crate) struct Transcript {
    pub(crate) daemon: Daemon,
    directory: PathBuf,
    token: String,
    text: String,
}

/// The binary, to which nothing of the caller's own environment speaks.
pub(crate) fn tollbar() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollbar"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("TOLLBAR_")) {
            command.env_remove(name);
        }
    }
    command
}

fn daemon(scratch: &Scratch, args: &[&str]) -> Daemon {
    let database = scratch.path("rules.sqlite");
    let mut command = serve(&["--database", &database, "--admin", "127.0.0.1:0"]);
    command.args(args);
    Daemon::spawn(command)
}

impl Transcript {
    /// Over a daemon with a new database.
    pub(crate) fn start(scratch: &Scratch, args: &[&str]) -> Self {
        let daemon = daemon(scratch, args);
        let token = daemon.greeting.iter().find_map(|line| line.split_once("(shown once): "));
        let token = token.expect("a token at the first start").1.to_owned();
        Self { daemon, directory: scratch.0.clone(), token, text: String::new() }
    }

    /// Stops the daemon, and starts it again.
    pub(crate) fn restart(&mut self, scratch: &Scratch, args: &[&str]) {
        self.daemon.signal("TERM");
        assert_eq!(self.daemon.wait(), 0);
        self.daemon = daemon(scratch, args);
    }

    pub(crate) fn with_token(&mut self, token: &Value) {
        token.as_str().unwrap().clone_into(&mut self.token);
    }

    pub(crate) fn say(&mut self, text: &str) {
        writeln!(self.text, "# {text}").unwrap();
    }

    /// Runs a command, and writes down what it printed and how it ended.
    pub(crate) fn run(&mut self, line: &str) {
        let (code, out, err) = self.tollbar(line);
        writeln!(self.text, "$ tollbar {line}\n{out}{err}").unwrap();
        if !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
        if code != 0 {
            self.text.truncate(self.text.trim_end().len());
            writeln!(self.text, "\n(exit code {code})\n").unwrap();
        }
    }

    /// What a command prints, which must end well.
    pub(crate) fn output(&self, line: &str) -> String {
        let (code, out, err) = self.tollbar(line);
        assert_eq!(code, 0, "{line}: {err}");
        out
    }

    fn tollbar(&self, line: &str) -> (i32, String, String) {
        let mut command = tollbar();
        let admin = self.daemon.address("admin");
        command.env("TOLLBAR_SERVER", format!("http://{admin}")).env("TOLLBAR_TOKEN", &self.token);
        command.current_dir(&self.directory).args(words(line));
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Compares all of it with the file of that name.
    #[track_caller]
    pub(crate) fn compare(self, name: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/daemon/cli")
            .join(format!("{name}.txt"));
        let text = self.text.replace(&*self.directory.to_string_lossy(), "DIRECTORY");
        let text =
            text.lines().map(|line| masked(line).trim_end().to_owned() + "\n").collect::<String>();
        let text = numbered(&text.replace(self.daemon.address("http"), "127.0.0.1:8080"));
        if std::env::var_os("TOLLBAR_WRITE_TRANSCRIPTS").is_some() {
            return fs::write(path, text).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        if let Some((at, (expected, found))) = expected
            .lines()
            .zip(text.lines())
            .enumerate()
            .find(|(_, (expected, found))| expected != found)
        {
            panic!(
                "{}:{}\nexpected: {expected}\n   found: {found}\n\n{text}",
                path.display(),
                at + 1
            );
        }
        assert_eq!(expected, text, "{}", path.display());
    }
}

/// The words of a line; those between apostrophes are one.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// A line in which instants, days and tokens are others of the same length.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    let mut rest = line;
    let token = format!("tbar_{}", "f".repeat(64));
    while let Some(first) = rest.chars().next() {
        if has_shape(rest, "2000-00-00") && !rest.starts_with("2099") {
            masked.push_str("2026-01-01");
            rest = &rest[10..];
            if has_shape(rest, "T00:00:00.000Z") {
                masked.push_str("T00:00:00.000Z");
                rest = &rest[14..];
            }
        } else if has_shape(rest, &token) {
            masked.push_str("tbar_..");
            rest = &rest[token.len()..];
        } else {
            masked.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    masked
}

/// Whether a text begins with this, where `0` is any digit and `f` any hexadecimal one.
fn has_shape(text: &str, shape: &str) -> bool {
    let is_match = |(byte, expected): (u8, u8)| match expected {
        b'0' => byte.is_ascii_digit(),
        b'f' => byte.is_ascii_hexdigit(),
        expected => byte == expected,
    };
    text.len() >= shape.len() && text.bytes().zip(shape.bytes()).all(is_match)
}

/// A text in which ids are counted in the order in which they come.
fn numbered(text: &str) -> String {
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
    let is_id = |word: &&str| {
        word.len() == 36 && [8, 13, 18, 23].iter().all(|at| word.as_bytes()[*at] == b'-')
    };
    for id in text.split(|c| !is_part(c)).filter(is_id) {
        let next = known.len() + 1;
        known.entry(id).or_insert(next);
    }
    let replace = |text: String, (id, at): (&&str, &usize)| {
        text.replace(*id, &format!("00000000-0000-0000-0000-{at:012}"))
    };
    known.iter().fold(text.to_owned(), replace)
}
