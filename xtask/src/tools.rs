//! Tools that cargo builds and installs for us, kept over runs in `target/tools`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::shell::{Steps, cargo};

/// The path of `tool`, which is installed if it is missing.
pub(crate) fn ensure(root: &Path, steps: &mut Steps, tool: &str) -> Result<PathBuf> {
    let tools = root.join("target/tools");
    let program = tools.join("bin").join(tool);
    if !program.exists() {
        let mut install = cargo(&["install", "--locked", "--root"]);
        steps.run(&format!("install {tool}"), install.arg(&tools).arg(tool))?;
    }
    Ok(program)
}
