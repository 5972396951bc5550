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
use crate::tools;

/// The packages that are mutated, each for as long.
const PACKAGES: [&str; 4] = ["tollbar", "tollbar-rules", "tollbar-redis", "tollbar-http"];
const SECONDS_PER_PACKAGE: u32 = 300;

/// About as many are drawn: more than can be tried in the time.
const SAMPLE_PER_PACKAGE: usize = 60;

/// How many of the mutants that were tried the tests have to catch.
const CAUGHT_PERCENT_MIN: usize = 96;

/// Mutants are caught in the first few cases of a property, or not at all.
const PROPTEST_CASES: &str = "32";

const SEED_VARIABLE: &str = "TOLLBAR_MUTANTS_SEED";

/// Exit codes of cargo-mutants: all were caught, some were missed, some ran for too long.
/// And that of `timeout` when the time is over.
const EXIT_CODES: [i32; 4] = [0, 2, 3, 124];

/// Tries a sample of the mutants of every package. `servers` are the variables by which tests find
/// their servers.
pub(crate) fn run(
    root: &Path,
    servers: &[(&'static str, OsString)],
    steps: &mut Steps,
) -> Result<()> {
    let program = tools::ensure(root, steps, "cargo-mutants")?;
    let seed = seed(std::env::var(SEED_VARIABLE).ok().as_deref())?;
    println!("\nmutants are drawn with {SEED_VARIABLE}={seed}");
    let mut tried = Tried::default();
    for package in PACKAGES {
        let run = Run { package, program: &program, directory: root.join("target/mutants") };
        fs::create_dir_all(run.scratch())
            .with_context(|| format!("cannot make {}", run.scratch().display()))?;
        let count = shell::read(run.list().current_dir(root))?.lines().count();
        let mut command = run.command(&shard(count, seed));
        command.current_dir(root).envs(servers.iter().cloned());
        steps.run_accepting(&format!("mutants of {package}"), &mut command, &EXIT_CODES)?;
        tried.add(&run.output().join("mutants.out"))?;
    }
    tried.judge()
}

/// One run of cargo-mutants.
struct Run<'a> {
    package: &'a str,
    program: &'a Path,
    /// For whatever it writes.
    directory: PathBuf,
}

impl Run<'_> {
    /// Prints every mutant of the package, one on a line.
    fn list(&self) -> Command {
        let mut command = Command::new(self.program);
        command.args(["mutants", "--list", "--package", self.package]);
        command
    }

    /// Tries the mutants of one shard, in any order.
    fn command(&self, shard: &str) -> Command {
        let mut command = Command::new("timeout");
        // It puts everything away when it is interrupted.
        command.args(["--signal=INT", "--kill-after=60", &SECONDS_PER_PACKAGE.to_string()]);
        command.arg(self.program).args(["mutants", "--package", self.package]);
        command.args(["--sharding=round-robin", "--shard", shard, "--shuffle"]);
        command.arg("--output").arg(self.output());
        command.args(["--jobs=1", "--all-features", "--cargo-arg=--locked"]);
        // The time of a test run is known from the unchanged code, which comes first.
        command.args(["--timeout-multiplier=3", "--minimum-test-timeout=30"]);
        // No examples and no documentation: they take longer to link than the tests to run.
        command.args(["--cargo-test-arg=--lib", "--cargo-test-arg=--tests"]);
        command
            .env("CARGO_TARGET_DIR", self.directory.join("build"))
            // The tests are several times faster so, for little more time in the compiler.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "none")
            .env("PROPTEST_CASES", PROPTEST_CASES)
            // Where the sources are copied to.
            .env("TMPDIR", self.scratch());
        command
    }

    fn output(&self) -> PathBuf {
        self.directory.join(self.package)
    }

    fn scratch(&self) -> PathBuf {
        self.directory.join("tmp")
    }
}

/// The number that decides which mutants are drawn: the one that is asked for, or any.
fn seed(asked_for: Option<&str>) -> Result<u64> {
    match asked_for {
        Some(text) => text.parse().with_context(|| format!("{SEED_VARIABLE} is no number: {text}")),
        // The standard library's way to random bits: its own hash keys, seeded by the system.
        None => Ok(RandomState::new().build_hasher().finish() >> 32),
    }
}

/// The shard of `count` mutants that `seed` draws: `3/60` is every 60th from the fourth on.
fn shard(count: usize, seed: u64) -> String {
    let shards = (count / SAMPLE_PER_PACKAGE).max(1) as u64;
    format!("{}/{shards}", seed % shards)
}

/// What became of the mutants that were tried and could be built.
#[derive(Debug, Default)]
struct Tried {
    caught: usize,
    missed: Vec<String>,
}

impl Tried {
    /// Adds what cargo-mutants has written to its output directory.
    fn add(&mut self, output: &Path) -> Result<()> {
        let read = |name: &str| {
            let path = output.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        // A test that never ends is noticed as well.
        self.caught += read("caught.txt")?.lines().count() + read("timeout.txt")?.lines().count();
        self.missed.extend(read("missed.txt")?.lines().map(str::to_owned));
        Ok(())
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

    fn arguments(command: &Command) -> Vec<String> {
        command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_run_is_bounded_in_time_and_has_directories_of_its_own() {
        let program = Path::new("/tools/cargo-mutants");
        let run = Run { package: "tollbar", program, directory: "/target/mutants".into() };
        assert_eq!(arguments(&run.list()), ["mutants", "--list", "--package", "tollbar"]);
        let command = run.command("3/60");
        assert_eq!(command.get_program(), "timeout");
        assert_eq!(
            arguments(&command).join(" "),
            "--signal=INT --kill-after=60 300 /tools/cargo-mutants mutants --package tollbar \
             --sharding=round-robin --shard 3/60 --shuffle --output /target/mutants/tollbar \
             --jobs=1 --all-features --cargo-arg=--locked --timeout-multiplier=3 \
             --minimum-test-timeout=30 --cargo-test-arg=--lib --cargo-test-arg=--tests"
        );
        let build = command.get_envs().find(|(name, _)| *name == "CARGO_TARGET_DIR").unwrap();
        assert_eq!(build.1.unwrap(), "/target/mutants/build");
    }

    #[test]
    fn a_shard_has_about_as_many_mutants_as_are_wanted() {
        assert_eq!(shard(3_692, 0), "0/61");
        assert_eq!(shard(3_692, 62), "1/61");
        assert_eq!(shard(119, 7), "0/1");
        assert_eq!(shard(5, 7), "0/1", "fewer than are wanted");
    }

    #[test]
    fn a_seed_is_the_one_that_is_asked_for() {
        assert_eq!(seed(Some("42")).unwrap(), 42);
        assert!(seed(Some("forty")).is_err() && seed(None).is_ok());
    }

    #[test]
    fn four_missed_mutants_in_a_hundred_are_accepted_and_five_are_not() {
        let tried = |caught, missed| Tried { caught, missed: vec!["it".to_owned(); missed] };
        assert!(tried(96, 4).judge().is_ok() && tried(1, 0).judge().is_ok());
        assert!(tried(95, 5).judge().is_err() && tried(0, 1).judge().is_err());
        assert!(tried(0, 0).judge().is_err(), "nothing was tried");
    }
}
