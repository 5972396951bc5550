//! Running other programs: each is announced, timed, and named again if it fails.
//!
//! No shell is involved: arguments are passed as they are, and nothing is quoted or expanded.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Cargo as the one that started us, so that `cargo +toolchain xtask` stays on its toolchain.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

/// Returns the path of `tool`, which cargo builds and installs if it is missing. Tools are kept over runs in
/// `target/tools`.
pub(crate) fn ensure_tool(root: &Path, steps: &mut Steps, tool: &str) -> Result<PathBuf> {
    let tools = root.join("target/tools");
    let program = tools.join("bin").join(tool);
    if !program.exists() {
        let mut install = cargo(&["install", "--locked", "--root"]);
        steps.run(&format!("install {tool}"), install.arg(&tools).arg(tool))?;
    }
    Ok(program)
}

/// Runs `command` with its output going straight to the terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    run_accepting(command, &[0])
}

/// Runs `command`, for which each of `codes` is a success.
fn run_accepting(command: &mut Command, codes: &[i32]) -> Result<()> {
    let shown = describe(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.code().is_some_and(|code| codes.contains(&code)) {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Runs `command` and returns what it printed to standard output.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let shown = describe(command);
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed ({})", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` did not print UTF-8"))
}

/// Whether `command` can be started and succeeds. Its output is dropped.
pub(crate) fn succeeds(command: &[&str]) -> bool {
    let Some((program, args)) = command.split_first() else {
        return false;
    };
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// The command as one would type it, with the variables it sets in front.
fn describe(command: &Command) -> String {
    let mut words: Vec<String> = command
        .get_envs()
        .filter_map(|(name, value)| {
            Some(format!("{}={}", name.to_string_lossy(), quoted(&value?.to_string_lossy())))
        })
        .collect();
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    words.push(name.to_string_lossy().into_owned());
    words.extend(command.get_args().map(|word| quoted(&word.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("'{word}'") } else { word.to_owned() }
}

/// The steps of a verb, counted and timed.
#[derive(Debug)]
pub(crate) struct Steps {
    begun: Stopwatch,
    passed: usize,
}

impl Steps {
    pub(crate) fn begin() -> Self {
        Self { begun: Stopwatch::start(), passed: 0 }
    }

    /// Runs `command` as the next step. The first that fails ends the verb.
    pub(crate) fn run(&mut self, title: &str, command: &mut Command) -> Result<()> {
        self.run_accepting(title, command, &[0])
    }

    /// Runs `command` as the next step, which passes with any of these exit codes.
    pub(crate) fn run_accepting(
        &mut self,
        title: &str,
        command: &mut Command,
        codes: &[i32],
    ) -> Result<()> {
        let step = Stopwatch::start();
        println!("\n==> {title}\n    {}", describe(command));
        run_accepting(command, codes)
            .with_context(|| format!("step `{title}` failed after {step}"))?;
        println!("<== {title}: passed in {step}");
        self.passed += 1;
        Ok(())
    }

    /// The closing line.
    pub(crate) fn finish(&self) {
        println!("\nall {} steps passed in {}", self.passed, self.begun);
    }
}

/// Real time, for people who wait; nothing is decided by it.
#[derive(Debug)]
struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "tells a person how long a step took")]
    fn start() -> Self {
        Self { started: Instant::now() }
    }
}

impl fmt::Display for Stopwatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&seconds(self.started.elapsed()))
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("/some/where/cargo");
        command.args(["test", "two words"]).env("RUSTFLAGS", "--cfg x").env_remove("HOME");
        assert_eq!(describe(&command), "RUSTFLAGS='--cfg x' cargo test 'two words'");
    }

    #[test]
    fn a_failing_program_is_named_with_its_status() {
        let error = run(&mut Command::new("false")).expect_err("false fails");
        assert_eq!(error.to_string(), "`false` failed (exit status: 1)");
    }

    #[test]
    fn a_step_passes_with_the_exit_codes_that_it_accepts() {
        let exit_3 = || {
            let mut command = Command::new("sh");
            command.args(["-c", "exit 3"]);
            command
        };
        assert!(run_accepting(&mut exit_3(), &[0, 3]).is_ok());
        assert!(run_accepting(&mut exit_3(), &[0, 2]).is_err());
        assert!(run(&mut exit_3()).is_err());
    }

    #[test]
    fn a_missing_program_is_an_error_and_not_a_success() {
        assert!(run(&mut Command::new("no-such-program-here")).is_err());
        assert!(!succeeds(&["no-such-program-here"]));
        assert!(!succeeds(&["false"]));
        assert!(succeeds(&["true"]));
    }

    #[test]
    fn output_is_returned_and_a_failure_returns_none() {
        assert_eq!(read(Command::new("echo").arg("hello")).expect("echo prints"), "hello\n");
        assert!(read(&mut Command::new("false")).is_err());
    }

    #[test]
    fn seconds_have_one_decimal() {
        assert_eq!(seconds(Duration::from_millis(12_345)), "12.3 s");
    }
}
