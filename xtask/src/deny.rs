//! What `deny.toml` says about the crates that we depend on, as far as that needs no network: bans, licences and
//! sources. Advisories need the network; `cargo deny check` before a release asks for them.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::shell::{self, Steps};

/// Checks with `cargo-deny`, which is installed if missing.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut steps = Steps::begin();
    let program = shell::ensure_tool(root, &mut steps, "cargo-deny")?;
    let mut deny = Command::new(program);
    deny.current_dir(root).args(["--offline", "check", "bans", "licenses", "sources"]);
    steps.run("crates that we depend on", &mut deny)?;
    steps.finish();
    Ok(())
}
