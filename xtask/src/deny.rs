//! What cargo-deny says about the crates that we depend on: bans, licences and sources by `deny.toml`, and advisories where
//! their database can be fetched.
//!
//! `cargo xtask tidy` checks most of it in less time. This reads the texts of licences too, and knows which versions are
//! vulnerable.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::shell::{self, Steps};

/// Checks with `cargo-deny`, which is installed if missing.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut steps = Steps::begin();
    let program = shell::ensure_tool(root, &mut steps, "cargo-deny")?;
    let deny = |args: &[&str]| {
        let mut deny = Command::new(&program);
        deny.current_dir(root).args(args);
        deny
    };
    let offline = ["--offline", "check", "bans", "licenses", "sources"];
    steps.run("crates that we depend on", &mut deny(&offline))?;
    if deny(&["fetch", "db"]).status().is_ok_and(|status| status.success()) {
        steps.run("advisories", &mut deny(&["check", "--disable-fetch", "advisories"]))?;
    } else {
        println!("\n==> advisories: skipped, their database cannot be fetched");
    }
    steps.finish();
    Ok(())
}
