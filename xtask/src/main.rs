//! The chores of this repository as commands, so that a laptop and CI run the same ones.
//!
//! Nothing here is published, and no other crate depends on it.
//!
//! | module | what it has |
//! |---|---|
//! | `test`, `fuzz`, `mutants` | the steps of `test` and `test --long` |
//! | `bench`, `deny`, `openapi`, `tidy` | a verb each |
//! | `debian`, `python`, `node` | packages that the tests need, installed if missing |
//! | `shell` | commands and how long they took; tools that cargo installs |

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod bench;
mod debian;
mod deny;
mod fuzz;
mod mutants;
mod node;
mod openapi;
mod python;
mod shell;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

pub(crate) const USAGE: &str = "\
usage: cargo xtask VERB

  test [--long [STEP]]                   run every test; --long adds the slow ones, or runs one slow step:
                                         bench-tests, long-tests, fuzz, flood or mutants
  bench NAME [--quick] [--json FILE]     run a benchmark in release mode
  tidy                                   check what STYLE.md says a program can check
  deny                                   check crates we depend on with cargo-deny, advisories included
  openapi                                write docs/reference/openapi.json from the daemon's types";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let Some((verb, rest)) = args.split_first() else {
        bail!("no verb given\n{USAGE}");
    };
    match verb.as_str() {
        "test" => test::run(&root(), rest),
        "bench" => bench::run(rest),
        "tidy" if rest.is_empty() => tidy::run(&root()),
        "tidy" => bail!("`tidy` takes no arguments\n{USAGE}"),
        "deny" if rest.is_empty() => deny::run(&root()),
        "deny" => bail!("`deny` takes no arguments\n{USAGE}"),
        "openapi" if rest.is_empty() => openapi::run(&root()),
        "openapi" => bail!("`openapi` takes no arguments\n{USAGE}"),
        "help" | "-h" | "--help" => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("unknown verb `{other}`\n{USAGE}"),
    }
}

/// The repository: the directory above this crate, wherever the command was typed.
fn root() -> PathBuf {
    // Cargo says at run time where the crate is; the path seen by the compiler serves a binary
    // that is started by hand.
    let crate_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    crate_dir.parent().map(Path::to_path_buf).unwrap_or(crate_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        run(&args).expect_err("the arguments are wrong").to_string()
    }

    #[test]
    fn wrong_arguments_are_answered_with_the_usage() {
        for args in [
            &[][..],
            &["frobnicate"],
            &["tidy", "now"],
            &["openapi", "now"],
            &["deny", "now"],
            &["test", "--longer"],
        ] {
            let message = message_of(args);
            assert!(message.contains("usage: cargo xtask"), "{args:?} gave: {message}");
        }
    }

    #[test]
    fn root_holds_the_workspace_manifest() {
        assert!(root().join("Cargo.toml").is_file());
        assert!(root().join("xtask/Cargo.toml").is_file());
    }
}
