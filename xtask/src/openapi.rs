//! `cargo xtask openapi`: writes the document of the HTTP interface, which the daemon generates from
//! its own types, to where people read it. A test of the daemon says when it is not current.

use std::path::Path;

use anyhow::{Context, Result};

use crate::shell::{cargo, read};

const COPY: &str = "docs/reference/openapi.json";

pub(crate) fn run(root: &Path) -> Result<()> {
    let args = ["run", "--quiet", "--package", "tollbar-server", "--", "openapi"];
    let document = read(cargo(&args).current_dir(root))?;
    std::fs::write(root.join(COPY), document).with_context(|| format!("cannot write {COPY}"))?;
    println!("openapi: {COPY} is current");
    Ok(())
}
