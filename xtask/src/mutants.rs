//! Mutants: `cargo-mutants` changes one operator or one answer of the code, and a test has to fail.
//!
//! There are thousands of mutants, and each takes a build and a test run. So every run draws other
//! ones at random, tries as many of them as fit into its time, and wants nearly all of them to be
//! caught. `TOLLBAR_MUTANTS_SEED` draws those of an earlier run again.
//!
//! A sample is one of cargo-mutants' shards, which has every n-th mutant. Its filters by name would
//! not do: they let every deletion of a field pass (issue 632 of cargo-mutants).
//!
//! `.cargo/mutants.toml` says what is not mutated, and why.

use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{self, Steps};

/// The packages that are mutated.
const PACKAGES: [&str; 4] = ["tollbar", "tollbar-rules", "tollbar-redis", "tollbar-http"];

/// For how long, with the build and the tests of the unchanged code.
const SECONDS: u32 = 20 * 60;

/// About as many mutants are drawn: more than can be tried in the time.
const SAMPLE: usize = 150;

/// How many of the mutants that were tried the tests have to catch.
const CAUGHT_PERCENT_MIN: usize = 96;

/// Mutants are caught in the first few cases of a property, or not at all.
const PROPTEST_CASES: &str = "32";

const SEED_VARIABLE: &str = "TOLLBAR_MUTANTS_SEED";

/// Exit codes of cargo-mutants: all were caught, some were missed, some ran for too long.
/// And that of `timeout` when the time is over.
const EXIT_CODES: [i32; 4] = [0, 2, 3, 124];

/// Tries a sample of the mutants. `servers` are the variables by which tests find their servers.
pub(crate) fn run(
    root: &Path,
    servers: &[(&'static str, OsString)],
    steps: &mut Steps,
) -> Result<()> {
    let program = shell::ensure_tool(root, steps, "cargo-mutants")?;
    let seed = seed(std::env::var(SEED_VARIABLE).ok().as_deref())?;
    println!("\nmutants are drawn with {SEED_VARIABLE}={seed}");
    let directory = root.join("target/mutants");
    let scratch = scratch(&directory);
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let count = shell::read(list(&program).current_dir(root))?.lines().count();
    let mut command = try_shard(&program, &directory, &shard(count, seed));
    command.current_dir(root).envs(servers.iter().cloned());
    steps.run_accepting("mutants", &mut command, &EXIT_CODES)?;
    MutantResults::read(&directory.join("mutants.out"))?.judge()
}

/// Prints every mutant, one on a line.
fn list(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["mutants", "--list"]).args(PACKAGES.map(|name| format!("--package={name}")));
    command
}

/// Tries the mutants of one shard, in any order. Whatever is written goes to `directory`.
fn try_shard(program: &Path, directory: &Path, shard: &str) -> Command {
    let mut command = Command::new("timeout");
    // Interrupted, cargo-mutants puts away what it has made.
    command.args(["--signal=INT", "--kill-after=60", &SECONDS.to_string()]);
    command.arg(program).arg("mutants").args(PACKAGES.map(|name| format!("--package={name}")));
    command.args(["--sharding=round-robin", "--shard", shard, "--shuffle"]);
    command.arg("--output").arg(directory);
    command.args(["--jobs=1", "--all-features", "--cargo-arg=--locked"]);
    // No examples and no documentation: they take longer to link than the tests to run.
    command.args(["--cargo-test-arg=--lib", "--cargo-test-arg=--tests"]);
    // A mutant has the time in which all packages are tested unchanged, and is tested in its own.
    command.args(["--timeout-multiplier=1", "--minimum-test-timeout=60"]);
    command
        .env("CARGO_TARGET_DIR", directory.join("build"))
        // The tests are several times faster so, for little more time in the compiler.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
        .env("PROPTEST_CASES", PROPTEST_CASES)
        // Where the sources are copied to.
        .env("TMPDIR", scratch(directory));
    command
}

fn scratch(directory: &Path) -> PathBuf {
    directory.join("tmp")
}

/// The number that decides which mutants are drawn: the one that is asked for, or any.
#[expect(clippy::disallowed_methods, reason = "a draw is no secret, and needs no dependency")]
fn seed(asked_for: Option<&str>) -> Result<u64> {
    match asked_for {
        Some(text) => text.parse().with_context(|| format!("{SEED_VARIABLE} is no number: {text}")),
        // The standard library's way to random bits: its own hash keys, seeded by the system.
        None => Ok(RandomState::new().build_hasher().finish() >> 32),
    }
}

/// The shard of `count` mutants that `seed` draws: `3/40` is every 40th from the fourth on.
fn shard(count: usize, seed: u64) -> String {
    let shards = (count / SAMPLE).max(1) as u64;
    format!("{}/{shards}", seed % shards)
}

/// What became of the mutants that were tried and could be built.
#[derive(Debug, Default)]
struct MutantResults {
    caught: usize,
    missed: Vec<String>,
}

impl MutantResults {
    /// What cargo-mutants has written to its output directory.
    fn read(output: &Path) -> Result<Self> {
        let lines = |name: &str| -> Result<Vec<String>> {
            let path = output.join(name);
            let text = fs::read_to_string(&path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        // A test that never ends is noticed as well.
        let caught = lines("caught.txt")?.len() + lines("timeout.txt")?.len();
        Ok(Self { caught, missed: lines("missed.txt")? })
    }

    /// Tells how many were caught and which were missed. An error where those are too many.
    fn judge(&self) -> Result<()> {
        let count = self.caught + self.missed.len();
        println!("\nthe tests caught {} of {count} mutants", self.caught);
        for mutant in &self.missed {
            println!("    missed {mutant}");
        }
        if count == 0 {
            bail!("no mutant was tried: give cargo-mutants more time");
        }
        if self.caught * 100 < count * CAUGHT_PERCENT_MIN {
            bail!(
                "the tests caught {} of {count} mutants, and {CAUGHT_PERCENT_MIN}% are wanted: test \
                 what the missed ones change, or prove them equivalent and add them to \
                 `.cargo/mutants.toml`",
                self.caught
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(command: &Command) -> String {
        let arguments = command.get_args().map(|argument| argument.to_string_lossy());
        arguments.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_run_is_bounded_in_time_and_has_directories_of_its_own() {
        let program = Path::new("/tools/cargo-mutants");
        let packages = "--package=tollbar --package=tollbar-rules --package=tollbar-redis \
                        --package=tollbar-http";
        assert_eq!(arguments(&list(program)), format!("mutants --list {packages}"));
        let command = try_shard(program, Path::new("/target/mutants"), "3/40");
        assert_eq!(command.get_program(), "timeout");
        let expected = format!(
            "--signal=INT --kill-after=60 1200 /tools/cargo-mutants mutants {packages} \
             --sharding=round-robin --shard 3/40 --shuffle --output /target/mutants --jobs=1 \
             --all-features --cargo-arg=--locked --cargo-test-arg=--lib --cargo-test-arg=--tests \
             --timeout-multiplier=1 --minimum-test-timeout=60"
        );
        assert_eq!(arguments(&command), expected);
        let build = command.get_envs().find(|(name, _)| *name == "CARGO_TARGET_DIR").unwrap();
        assert_eq!(build.1.unwrap(), "/target/mutants/build");
    }

    #[test]
    fn a_shard_has_about_as_many_mutants_as_are_wanted() {
        assert_eq!(shard(6_886, 0), "0/45");
        assert_eq!(shard(6_886, 46), "1/45");
        assert_eq!(shard(299, 7), "0/1");
        assert_eq!(shard(5, 7), "0/1", "fewer than are wanted");
    }

    #[test]
    fn a_seed_is_the_one_that_is_asked_for() {
        assert_eq!(seed(Some("42")).unwrap(), 42);
        assert!(seed(Some("forty")).is_err() && seed(None).is_ok());
    }

    #[test]
    fn outcomes_are_read_from_the_files_of_cargo_mutants() {
        let output = std::env::temp_dir().join(format!("xtask-mutants-{}", std::process::id()));
        fs::create_dir_all(&output).unwrap();
        assert!(MutantResults::read(&output).is_err(), "there are no files yet");
        for (name, text) in
            [("caught.txt", "a\nb\n"), ("timeout.txt", "c\n"), ("missed.txt", "d\n")]
        {
            fs::write(output.join(name), text).unwrap();
        }
        let tried = MutantResults::read(&output).unwrap();
        assert_eq!((tried.caught, tried.missed), (3, vec!["d".to_owned()]));
        fs::remove_dir_all(&output).unwrap();
    }

    #[test]
    fn four_missed_mutants_in_a_hundred_are_accepted_and_five_are_not() {
        let tried =
            |caught, missed| MutantResults { caught, missed: vec!["it".to_owned(); missed] };
        assert!(tried(96, 4).judge().is_ok() && tried(1, 0).judge().is_ok());
        assert!(tried(95, 5).judge().is_err() && tried(0, 1).judge().is_err());
        assert!(tried(0, 0).judge().is_err(), "nothing was tried");
    }
}
