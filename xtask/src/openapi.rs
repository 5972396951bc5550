//! `cargo xtask openapi`: writes the documents of the HTTP interfaces, which the daemon generates from
//! its own types, to where people read them. Tests of the daemon say when they are not current.

use std::path::Path;

use anyhow::{Context, Result};

use crate::shell::{cargo, read};

/// What prints each document, and where it is kept.
const COPIES: [(&[&str], &str); 2] = [
    (&["openapi"], "docs/reference/openapi.json"),
    (&["openapi", "--admin"], "docs/reference/admin-openapi.json"),
];

pub(crate) fn run(root: &Path) -> Result<()> {
    for (command, copy) in COPIES {
        let args = ["run", "--quiet", "--package", "tollbar-server", "--"];
        let document = read(cargo(&args).args(command).current_dir(root))?;
        std::fs::write(root.join(copy), document)
            .with_context(|| format!("cannot write {copy}"))?;
        println!("openapi: {copy} is current");
    }
    Ok(())
}
