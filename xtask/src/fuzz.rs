//! Fuzzing: every target of `fuzz/` for a minute, by `cargo fuzz`, which is installed if missing.
//!
//! On the stable toolchain, so without sanitizers: what is looked for are panics, overflows and
//! answers that differ from the oracle's.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{self, Steps};

const SECONDS_PER_TARGET: u32 = 60;

pub(crate) fn run(root: &Path, steps: &mut Steps) -> Result<()> {
    let cargo_fuzz = shell::ensure_tool(root, steps, "cargo-fuzz")?;
    for target in targets(root)? {
        let seconds = format!("-max_total_time={SECONDS_PER_TARGET}");
        let mut fuzz = Command::new(&cargo_fuzz);
        fuzz.current_dir(root.join("fuzz"));
        fuzz.args(["fuzz", "run", "--sanitizer", "none", target.as_str(), "--", seconds.as_str()]);
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
                "envoy_config",
                "json_body",
                "limit",
                "path",
                "rate",
                "resp",
                "rls",
                "rule_file",
                "trace"
            ]
        );
    }
}
