//! `cargo xtask openapi`: writes the documents of the HTTP interfaces, which the daemon generates from
//! its own types, and the schema of files of rules to where people read them. Tests of the daemon and of
//! the rules say when they are not current.

use std::path::Path;

use anyhow::{Context, Result};

use crate::shell::{cargo, read};

/// What prints each document, and where it is kept.
const COPIES: [(&[&str], &str); 2] = [
    (&["openapi"], "docs/reference/openapi.json"),
    (&["openapi", "--admin"], "docs/reference/admin-openapi.json"),
];

/// The schema of files of rules, and where it is kept.
const SCHEMA: (&str, &str) =
    ("crates/tollbar-rules/src/admin/rules.schema.json", "docs/reference/rules.schema.json");

pub(crate) fn run(root: &Path) -> Result<()> {
    let (schema, copy) = SCHEMA;
    std::fs::copy(root.join(schema), root.join(copy))
        .with_context(|| format!("cannot copy {schema}"))?;
    for (command, copy) in COPIES {
        let args = ["run", "--quiet", "--package", "tollbar-cli", "--"];
        let document = read(cargo(&args).args(command).current_dir(root))?;
        std::fs::write(root.join(copy), document)
            .with_context(|| format!("cannot write {copy}"))?;
        println!("openapi: {copy} is current");
    }
    Ok(())
}
