//! Fuzzing: every target of `fuzz/` for a minute, by `cargo fuzz`, which is installed if missing.
//!
//! On the stable toolchain, so without sanitizers: what is looked for are panics, overflows and
//! answers that differ from the oracle's.
//!
//! A target begins with its files in `fuzz/seeds`. The inputs that it finds are kept in `fuzz/corpus`, which git ignores.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{self, Steps};

const SECONDS_PER_TARGET: u32 = 60;

pub(crate) fn run(root: &Path, steps: &mut Steps) -> Result<()> {
    let cargo_fuzz = shell::ensure_tool(root, steps, "cargo-fuzz")?;
    for target in targets(root)? {
        let seconds = format!("-max_total_time={SECONDS_PER_TARGET}");
        let folder = root.join("fuzz");
        let corpus = format!("corpus/{target}");
        std::fs::create_dir_all(folder.join(&corpus)).context("cannot keep what is found")?;
        let mut fuzz = Command::new(&cargo_fuzz);
        fuzz.args(["fuzz", "run", "--sanitizer", "none", target.as_str(), corpus.as_str()]);
        let seeds = format!("seeds/{target}");
        if folder.join(&seeds).is_dir() {
            fuzz.arg(seeds);
        }
        fuzz.args(["--", seconds.as_str()]).current_dir(folder);
        steps.run(&format!("fuzz {target}"), &mut fuzz)?;
    }
    Ok(())
}

/// The names of the files in `fuzz/fuzz_targets`, in order.
fn targets(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("fuzz/fuzz_targets");
    let entries = folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if let (Some(name), Some("rs")) =
            (path.file_stem(), path.extension().and_then(|end| end.to_str()))
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_of_the_folder_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(
            targets(root).unwrap(),
            [
                "admin_forms",
                "client_ip",
                "envoy_config",
                "gateway_framing",
                "json_body",
                "jwt",
                "limit",
                "path",
                "proxy_header",
                "rate",
                "receipt",
                "resp",
                "rls",
                "rule_file",
                "snapshot",
                "trace"
            ]
        );
    }

    #[test]
    fn seeds_are_of_targets() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let targets = targets(root).unwrap();
        for entry in root.join("fuzz/seeds").read_dir().unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(targets.contains(&name), "{name} is no target");
        }
    }
}
