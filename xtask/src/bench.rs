//! `cargo xtask bench NAME`: builds the benchmarks in release mode and runs one of them.
//!
//! What a benchmark measures, and its flags, belong to crates/bench; here only names are known.

use anyhow::{Result, bail};

use crate::shell;

/// Each benchmark, and what it measures.
const BENCHMARKS: &[(&str, &str)] = &[
    ("core", "checks in process, beside other limiters and a floor"),
    ("redis", "checks in Redis, beside a minimal script by redis-benchmark"),
    ("fleet", "hot keys of a fleet that borrows, beside exact checks and optimistic batching"),
    ("rules", "requests against 1 to 10,000 rules, beside limitador"),
    ("http", "what a layer adds to a request to an axum service, beside tower_governor"),
    ("server", "the daemon over its wires, beside redis-cell, throttlecrab-server and nginx"),
    ("proxy", "the daemon as a reverse proxy, beside nginx"),
    ("admin", "10,000 rules of a database, changed while requests are checked"),
];

pub(crate) fn run(args: &[String]) -> Result<()> {
    let (name, flags) = parse(args)?;
    if matches!(name, "admin" | "server" | "proxy") {
        // What is measured there is the daemon as a program.
        shell::run(&mut shell::cargo(&["build", "--release", "--package", "tollbar-cli"]))?;
    }
    let mut command = shell::cargo(&["run", "--release", "--package", "tollbar-bench", "--"]);
    // The directory is the caller's, so that `--json FILE` lands where they are.
    shell::run(command.arg(name).args(flags))
}

fn parse(args: &[String]) -> Result<(&str, &[String])> {
    match args.split_first() {
        Some((name, flags)) if BENCHMARKS.iter().any(|(known, _)| known == name) => {
            Ok((name, flags))
        }
        Some((name, _)) => bail!("unknown benchmark `{name}`; there is\n{}", known()),
        None => bail!("`bench` needs a name; there is\n{}", known()),
    }
}

fn known() -> String {
    let lines: Vec<String> =
        BENCHMARKS.iter().map(|(name, what)| format!("  {name:<8} {what}")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(args: &[&str]) -> Vec<String> {
        args.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn flags_are_handed_on_as_they_are() {
        let args = owned(&["core", "--quick", "--json", "out.json"]);
        let (name, flags) = parse(&args).expect("core is known");
        assert_eq!(name, "core");
        assert_eq!(flags, ["--quick", "--json", "out.json"]);
    }

    #[test]
    fn an_unknown_or_absent_name_is_answered_with_the_known_ones() {
        for args in [&["cores"][..], &[], &["--quick"]] {
            let message = parse(&owned(args)).expect_err("no such benchmark").to_string();
            assert!(message.contains("  core "), "{args:?} gave: {message}");
        }
    }
}
